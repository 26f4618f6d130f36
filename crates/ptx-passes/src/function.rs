//! One function body: statements to basic blocks.

use ptx::ast::{self, Declaration, Statement};

use super::CheckError;
use super::ir::{Block, Body, End, Guard, Inst, Op, Reg, Slot, Type};
use super::link::{Global, LineError, Linker, layout, signature, slot};
use super::scope::{Named, Scope, Scopes};

type Result<T> = std::result::Result<T, CheckError>;

const MAX_REGISTERS: usize = 1 << 20;
/// What CUDA allows a thread at most.
const MAX_LOCAL: u32 = 512 << 10;

/// A body under construction.
pub(crate) struct Builder<'l, 'a> {
    pub linker: &'l mut Linker<'a>,
    pub scopes: Scopes<'a>,
    pub body: Body,
    /// The carry flag of `add.cc`, once it is used.
    carry: Option<Reg>,
    /// Blocks by number, `None` until they have ended.
    blocks: Vec<Option<Block>>,
    /// Blocks in the order of the text.
    order: Vec<usize>,
    current: usize,
    insts: Vec<Inst>,
    function: usize,
}

/// Builds the body of `function`; `line` follows along for error messages.
pub(crate) fn build_body<'a>(
    linker: &mut Linker<'a>,
    index: usize,
    function: &ast::Function<'a>,
    line: &mut u32,
) -> Result<Body> {
    let mut builder = Builder {
        linker,
        scopes: Scopes::default(),
        body: Body {
            registers: Vec::new(),
            blocks: Vec::new(),
            slots: Vec::new(),
            prototypes: Vec::new(),
            local_bytes: 0,
        },
        carry: None,
        blocks: vec![None],
        order: Vec::new(),
        current: 0,
        insts: Vec::new(),
        function: index,
    };
    builder.declare_params(function)?;
    let statements = function.body.as_deref().unwrap_or_default();
    builder.block(statements, line)?;
    builder.end(End::Return);
    builder.finish()
}

fn lined<T>(result: std::result::Result<T, LineError>) -> Result<T> {
    result.map_err(|(_, message)| CheckError::Invalid(message))
}

impl<'a> Builder<'_, 'a> {
    fn declare_params(&mut self, function: &ast::Function<'a>) -> Result<()> {
        let mut scope = Scope::default();
        for (position, param) in function.params.iter().enumerate() {
            if param.space != "param" {
                return CheckError::unsupported("parameters in registers");
            }
            let named = if function.entry {
                Named::KernelParam(self.linker.module.functions[self.function].param_offsets[position])
            } else {
                Named::Argument(position)
            };
            scope.names.insert(param.name, named);
        }
        for (position, result) in function.returns.iter().enumerate() {
            if result.space != "param" {
                return CheckError::unsupported("return values in registers");
            }
            scope.names.insert(result.name, Named::Result(position));
        }
        self.scopes.0.push(scope);
        Ok(())
    }

    fn block(&mut self, statements: &[Statement<'a>], line: &mut u32) -> Result<()> {
        let mut scope = Scope::default();
        for statement in statements {
            if let Statement::Label(name) = statement {
                if scope.labels.insert(name, self.blocks.len()).is_some() {
                    return CheckError::invalid(format!("duplicate label {name}"));
                }
                self.blocks.push(None);
            }
        }
        self.scopes.0.push(scope);
        for statement in statements {
            if let Statement::Targets { label, targets } = statement {
                let targets = targets.iter().map(|name| self.label(name)).collect::<Result<_>>()?;
                self.scopes.top().targets.insert(label, targets);
            }
        }
        for statement in statements {
            self.statement(statement, line)?;
        }
        self.scopes.0.pop();
        Ok(())
    }

    fn statement(&mut self, statement: &Statement<'a>, line: &mut u32) -> Result<()> {
        match statement {
            Statement::Label(name) => {
                let target = self.label(name)?;
                self.end(End::Jump(target));
                self.current = target;
            }
            Statement::Register { line: at, ty, name, count } => {
                *line = *at;
                let Some(ty) = Type::parse(ty) else {
                    return CheckError::unsupported(format!("registers of type .{ty}"));
                };
                let first = self.next_register();
                let total = self.body.registers.len() + count.unwrap_or(1) as usize;
                if total > MAX_REGISTERS {
                    return CheckError::invalid("too many registers");
                }
                self.body.registers.resize(total, ty);
                let scope = self.scopes.top();
                match count {
                    Some(count) => {
                        scope.ranges.insert(name, (first, *count, ty));
                    }
                    None => {
                        scope.registers.insert(name, (first, ty));
                    }
                }
            }
            Statement::Declaration(declaration) => {
                *line = declaration.line;
                self.declaration(declaration)?;
            }
            Statement::Block(statements) => self.block(statements, line)?,
            Statement::Targets { .. } => {}
            Statement::Prototype { label, returns, params } => {
                let prototype = lined(signature(returns, params))?;
                self.body.prototypes.push(prototype);
                let index = self.body.prototypes.len() - 1;
                self.scopes.top().names.insert(label, Named::Prototype(index));
            }
            Statement::Instruction(instruction) => {
                *line = instruction.line;
                self.instruction(instruction).map_err(|error| {
                    let place = |message: String| format!("{}: {message}", spelling(instruction));
                    match error {
                        CheckError::Invalid(message) => CheckError::Invalid(place(message)),
                        CheckError::Unsupported(message) => CheckError::Unsupported(place(message)),
                    }
                })?;
            }
        }
        Ok(())
    }

    fn declaration(&mut self, declaration: &Declaration<'a>) -> Result<()> {
        let named = match declaration.space {
            "local" => {
                let (size, align) = lined(layout(declaration, 0))?;
                let at = u64::from(self.body.local_bytes).next_multiple_of(align);
                match (u32::try_from(at), u32::try_from(at + size)) {
                    (Ok(start), Ok(end)) if end <= MAX_LOCAL => {
                        self.body.local_bytes = end;
                        Named::Local(start)
                    }
                    _ => return CheckError::invalid("too much local memory"),
                }
            }
            "param" => {
                let slot = lined(slot(declaration))?;
                self.body.slots.push(slot);
                Named::Slot(self.body.slots.len() - 1)
            }
            _ => match lined(self.linker.declare(declaration))? {
                Global::Shared(index) => Named::Shared(index),
                Global::Variable(index) => {
                    lined(self.linker.initialize(index, declaration))?;
                    Named::Variable(index)
                }
                _ => return CheckError::unsupported(format!(".{} variables", declaration.ty)),
            },
        };
        self.scopes.top().names.insert(declaration.name, named);
        Ok(())
    }

    /// The block that a label starts.
    pub(crate) fn label(&self, name: &str) -> Result<usize> {
        match self.scopes.label(name) {
            Some(block) => Ok(block),
            None => CheckError::invalid(format!("undefined label {name}")),
        }
    }

    /// Adds an instruction to the current block.
    pub(crate) fn push(&mut self, line: u32, guard: Option<Guard>, op: Op) {
        self.insts.push(Inst { line, guard, op });
    }

    /// Ends the current block and goes on in a new one; guarded ends fall through to it.
    pub(crate) fn end_guarded(&mut self, guard: Option<Guard>, end: End) {
        let next = self.blocks.len();
        self.blocks.push(None);
        match (guard, end) {
            (None, end) => self.end(end),
            (Some(guard), End::Jump(then)) => self.end(End::Branch { guard, then, otherwise: next }),
            (Some(guard), end) => {
                let then = self.blocks.len();
                self.blocks.push(Some(Block { insts: Vec::new(), end }));
                self.end(End::Branch { guard, then, otherwise: next });
                self.order.push(then);
            }
        }
        self.current = next;
    }

    fn end(&mut self, end: End) {
        let insts = std::mem::take(&mut self.insts);
        self.blocks[self.current] = Some(Block { insts, end });
        self.order.push(self.current);
    }

    /// The register that holds the carry flag.
    pub(crate) fn carry(&mut self) -> Reg {
        match self.carry {
            Some(reg) => reg,
            None => {
                let reg = self.scratch(Type::Pred);
                self.carry = Some(reg);
                reg
            }
        }
    }

    /// A register for a result that is not used.
    pub(crate) fn scratch(&mut self, ty: Type) -> Reg {
        let reg = self.next_register();
        self.body.registers.push(ty);
        reg
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are at most MAX_REGISTERS, and a few for each instruction of a text of limited length"
    )]
    fn next_register(&self) -> Reg {
        self.body.registers.len() as Reg
    }

    pub(crate) fn slot(&self, index: usize) -> Slot {
        self.body.slots[index]
    }

    /// Whether the function is a kernel.
    pub(crate) fn is_entry(&self) -> bool {
        self.linker.module.functions[self.function].entry
    }

    /// Layout of a parameter of this function.
    pub(crate) fn argument(&self, index: usize) -> Slot {
        self.linker.module.functions[self.function].signature.params[index]
    }

    /// Layout of a return value of this function.
    pub(crate) fn result(&self, index: usize) -> Slot {
        self.linker.module.functions[self.function].signature.returns[index]
    }

    /// Size of the parameter buffer of this kernel.
    pub(crate) fn param_bytes(&self) -> u32 {
        self.linker.module.functions[self.function].param_bytes
    }

    /// Numbers the blocks in the order of the text, so that every loop has an edge to an earlier (or the same) block.
    fn finish(mut self) -> Result<Body> {
        let mut place = vec![usize::MAX; self.blocks.len()];
        for (position, block) in self.order.iter().enumerate() {
            place[*block] = position;
        }
        for block in &self.order {
            let Some(mut block) = self.blocks[*block].take() else {
                return CheckError::invalid("duplicate label");
            };
            match &mut block.end {
                End::Jump(target) => *target = place[*target],
                End::Branch { then, otherwise, .. } => {
                    *then = place[*then];
                    *otherwise = place[*otherwise];
                }
                End::Table { targets, .. } => targets.iter_mut().for_each(|target| *target = place[*target]),
                End::Return | End::Exit => {}
            }
            self.body.blocks.push(block);
        }
        Ok(self.body)
    }
}

fn spelling(instruction: &ast::Instruction) -> String {
    let mut out = instruction.name.to_owned();
    for modifier in &instruction.modifiers {
        out.push('.');
        out.push_str(modifier);
    }
    out
}
