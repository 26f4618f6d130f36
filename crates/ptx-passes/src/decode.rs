//! Instructions by name: modifiers are read once into `Form`, then each family has its own table.

use ptx::ast::{Instruction, Operand};

use super::CheckError;
use super::function::Builder;
use super::ir::{End, Guard, Mods, Op, Rounding, Type, Value};
use super::video;

type Result<T> = std::result::Result<T, CheckError>;

/// The modifiers of an instruction, sorted by what they say.
#[derive(Debug, Default)]
pub(crate) struct Form<'a> {
    /// Types, in order.
    pub types: Vec<Type>,
    pub mods: Mods,
    /// `.rni` and friends, or `.rn` and friends: was there any?
    pub rounding: Option<Rounding>,
    /// Round to an integral value.
    pub integral: bool,
    pub approx: bool,
    /// All modifiers as they are written.
    pub modifiers: Vec<&'a str>,
    /// All others, in order.
    pub words: Vec<&'a str>,
}

impl<'a> Form<'a> {
    fn new(instruction: &Instruction<'a>) -> Form<'a> {
        let mut form = Form { modifiers: instruction.modifiers.clone(), ..Form::default() };
        for &modifier in &instruction.modifiers {
            if let Some(ty) = Type::parse(modifier) {
                form.types.push(ty);
                continue;
            }
            let (rounding, integral) = match modifier {
                "rn" => (Rounding::Nearest, false),
                "rz" => (Rounding::Zero, false),
                "rm" => (Rounding::Down, false),
                "rp" => (Rounding::Up, false),
                "rni" => (Rounding::Nearest, true),
                "rzi" => (Rounding::Zero, true),
                "rmi" => (Rounding::Down, true),
                "rpi" => (Rounding::Up, true),
                _ => {
                    match modifier {
                        "ftz" => form.mods.ftz = true,
                        "sat" => form.mods.sat = true,
                        "NaN" => form.mods.nan = true,
                        "relu" => form.mods.relu = true,
                        "approx" | "full" => form.approx = true,
                        "uni" => {}
                        _ => form.words.push(modifier),
                    }
                    continue;
                }
            };
            form.mods.rounding = rounding;
            form.rounding = Some(rounding);
            form.integral = integral;
        }
        form
    }

    /// The first type, which most instructions compute in.
    pub(crate) fn ty(&self) -> Result<Type> {
        match self.types.first() {
            Some(ty) => Ok(*ty),
            None => CheckError::invalid("missing or unknown type"),
        }
    }

    /// Takes a word out, if it is there.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let found = self.words.iter().position(|w| *w == word);
        if let Some(at) = found {
            self.words.remove(at);
        }
        found.is_some()
    }

    /// Refuses modifiers that were not taken.
    pub(crate) fn done(&self) -> Result<()> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => CheckError::unsupported(format!("modifier .{word}")),
        }
    }
}

/// Refuses a wrong number of operands, so that tables may index.
pub(crate) fn expect(operands: &[Operand], count: usize) -> Result<()> {
    if operands.len() == count {
        Ok(())
    } else {
        CheckError::invalid(format!("{count} operands expected, {} found", operands.len()))
    }
}

impl<'a> Builder<'_, 'a> {
    /// Checks one instruction and adds it.
    pub(crate) fn instruction(&mut self, instruction: &Instruction<'a>) -> Result<()> {
        let guard = self.guard(instruction.guard)?;
        let line = instruction.line;
        let mut form = Form::new(instruction);
        let operands = &instruction.operands[..];
        let op = match instruction.name {
            "bra" | "brx" | "ret" | "exit" => return self.flow(instruction, guard),
            "ld" | "ldu" => self.load(&mut form, operands)?,
            "st" => self.store(&mut form, operands)?,
            "atom" | "red" => self.atomic(&mut form, operands, instruction.name == "red")?,
            "call" => self.call(&mut form, operands)?,
            "bar" | "barrier" => self.barrier(&mut form, operands)?,
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => {
                self.warp(instruction.name, &mut form, operands)?
            }
            // Blocks run their threads on one core, and the atomics between blocks are sequentially consistent.
            "membar" | "fence" => Op::Fence,
            // Advice about caches.
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "pmevent" | "setmaxnreg" | "griddepcontrol" => {
                return Ok(());
            }
            "nanosleep" => {
                expect(operands, 1)?;
                Op::Sleep(self.value(&operands[0], Type::U32)?)
            }
            "trap" | "brkpt" => Op::Trap,
            "cvt" => self.convert(&mut form, operands)?,
            "cvta" => self.cvta(&mut form, operands)?,
            "isspacep" => self.isspacep(&mut form, operands)?,
            "setp" => self.setp(&mut form, operands)?,
            "set" => self.set(&mut form, operands)?,
            "mov" => self.mov(&mut form, operands)?,
            "mma" => self.multiply(&form, operands, false)?,
            "wmma" => match form.modifiers.first() {
                Some(&"mma") => self.multiply(&form, operands, true)?,
                Some(&"load") => self.fragment(&mut form, operands, false)?,
                _ => self.fragment(&mut form, operands, true)?,
            },
            "ldmatrix" | "stmatrix" | "movmatrix" => self.move_matrix(instruction.name, &mut form, operands)?,
            "cp" => match self.copy_async(&mut form, operands)? {
                Some(op) => op,
                None => return Ok(()),
            },
            "mbarrier" => self.memory_barrier(&mut form, operands)?,
            // A cluster is one block here, whose memory is where it is.
            "mapa" => {
                expect(operands, 3)?;
                let src = vec![self.value(&operands[1], form.ty()?)?];
                let (ty, dst) = (form.ty()?, self.dst(&operands[0], form.ty()?)?);
                Op::Compute { op: super::ir::Compute::Mov, ty, mods: form.mods, dst, src }
            }
            // The rank of the only block, and a policy for caches that are not there.
            "getctarank" | "createpolicy" => {
                let ty = if instruction.name == "createpolicy" { Type::B64 } else { Type::U32 };
                let Some(target) = operands.first() else { return CheckError::invalid("missing operands") };
                let dst = self.dst(target, ty)?;
                Op::Compute { op: super::ir::Compute::Mov, ty, mods: form.mods, dst, src: vec![Value::Bits(0)] }
            }
            "tex" | "tld4" => self.texture(&mut form, operands, instruction.name == "tld4")?,
            "suld" | "sust" | "sured" => self.surface(instruction.name, &mut form, operands)?,
            "txq" | "suq" => self.texture_query(&mut form, operands, instruction.name == "suq")?,
            name if form.words.iter().any(|word| matches!(*word, "s16x2" | "u16x2")) => {
                self.half_words(name, &mut form, operands)?
            }
            name if video::is_video(name) => self.video(name, &mut form, operands)?,
            name => self.arithmetic(name, &mut form, operands)?,
        };
        self.push(line, guard, op);
        Ok(())
    }

    fn flow(&mut self, instruction: &Instruction<'a>, guard: Option<Guard>) -> Result<()> {
        let operands = &instruction.operands[..];
        let end = match instruction.name {
            "ret" if self.is_entry() => End::Exit,
            "ret" => End::Return,
            "exit" => End::Exit,
            "brx" => {
                expect(operands, 2)?;
                let index = self.value(&operands[0], Type::U32)?;
                let Operand::Name(name) = operands[1] else {
                    return CheckError::invalid("missing list of targets");
                };
                match self.scopes.targets(name) {
                    Some(targets) => End::Table { index, targets },
                    None => return CheckError::invalid(format!("undefined list of targets {name}")),
                }
            }
            _ => {
                expect(operands, 1)?;
                let Operand::Name(name) = operands[0] else {
                    return CheckError::invalid("missing target");
                };
                End::Jump(self.label(name)?)
            }
        };
        // A constant guard is allowed, and so is a guard on a table.
        self.end_guarded(guard, end);
        Ok(())
    }

    fn mov(&mut self, form: &mut Form<'a>, operands: &[Operand<'a>]) -> Result<Op> {
        form.done()?;
        let ty = form.ty()?;
        expect(operands, 2)?;
        match (&operands[0], &operands[1]) {
            (Operand::Vector(parts), source) => {
                let dst = parts.iter().map(|part| self.maybe_dst(part)).collect::<Result<Vec<_>>>()?;
                self.split(ty, dst.len())?;
                Ok(Op::Unpack { ty, dst, src: self.value(source, ty)? })
            }
            (target, Operand::Vector(parts)) => {
                let part = self.split(ty, parts.len())?;
                let src: Vec<Value> = self.values(parts, part)?;
                Ok(Op::Pack { ty, dst: self.dst(target, ty)?, src })
            }
            (target, source) => {
                let src = vec![self.value(source, ty)?];
                Ok(Op::Compute { op: super::ir::Compute::Mov, ty, mods: form.mods, dst: self.dst(target, ty)?, src })
            }
        }
    }

    /// The type of a part when `ty` is cut into `count`.
    fn split(&self, ty: Type, count: usize) -> Result<Type> {
        match (ty.bits() as usize).checked_div(count) {
            Some(8) => Ok(Type::B8),
            Some(16) => Ok(Type::B16),
            Some(32) => Ok(Type::B32),
            Some(64) => Ok(Type::B64),
            _ => CheckError::invalid("the vector does not match the type"),
        }
    }
}
