//! The module level: names of functions and variables, layout and initial bytes of variables.

use std::collections::HashMap;

use ptx::ast::{self, Declaration, Initializer, Number};

use super::CheckError;
use super::function::build_body;
use super::ir::{
    Builtin, Function, Module, Reference, Relocation, RelocationTarget, SharedVariable, Signature, Slot, Type,
    Variable,
};

/// Largest variable that is accepted; the driver's memory limit is what really counts.
const MAX_VARIABLE: u64 = 1 << 40;
/// No device has more shared memory in a block.
const MAX_SHARED: u32 = 228 << 10;
/// Kernel parameters end here, as in CUDA 12 and later.
const MAX_PARAMS: u32 = 32764;

/// What a name at module level means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Global {
    Function(usize),
    Builtin(Builtin),
    Variable(usize),
    Shared(usize),
    /// Something that this device lacks, such as a sampler of its own.
    Unsupported,
}

/// Names of a module while it is being built.
pub(crate) struct Linker<'a> {
    pub module: Module,
    pub names: HashMap<&'a str, Global>,
}

/// A message with the line it is about.
pub(crate) type LineError = (u32, String);

/// Resolves and checks a whole module.
pub fn build(tree: &ast::Module) -> Result<Module, LineError> {
    let mut linker = Linker {
        module: Module {
            version: tree.version,
            target: tree.target,
            files: tree.files.iter().map(|(number, path)| (*number, (*path).to_owned())).collect(),
            locations: tree.locations.clone(),
            ..Module::default()
        },
        names: HashMap::new(),
    };
    let mut placed = Vec::new();
    for declaration in &tree.variables {
        let global = linker.declare(declaration)?;
        placed.push(global);
        // A definition beats an `.extern` declaration of the same name.
        if !declaration.external || !linker.names.contains_key(declaration.name) {
            linker.names.insert(declaration.name, global);
        }
    }
    let mut bodies = Vec::new();
    for function in &tree.functions {
        linker.declare_function(function, &mut bodies)?;
    }
    // Initializers may name what is declared after them.
    for (declaration, global) in tree.variables.iter().zip(placed) {
        if let Global::Variable(index) = global {
            linker.initialize(index, declaration)?;
        }
    }
    for (index, function) in bodies {
        let mut line = function.line;
        let body = build_body(&mut linker, index, function, &mut line);
        let body = body.and_then(|body| match function.cluster {
            Some(cluster) if cluster.iter().any(|blocks| *blocks > 1) => {
                line = function.line;
                CheckError::unsupported("clusters of thread blocks")
            }
            _ => Ok(body),
        });
        linker.module.functions[index].body = match body {
            Ok(body) => Ok(body),
            Err(CheckError::Unsupported(message)) => Err(format!("line {line}: not supported: {message}")),
            Err(CheckError::Invalid(message)) => return Err((line, message)),
        };
    }
    Ok(linker.module)
}

fn builtin(name: &str) -> Option<Builtin> {
    Some(match name {
        "vprintf" => Builtin::Printf,
        "__assertfail" => Builtin::AssertFail,
        "malloc" => Builtin::Malloc,
        "free" => Builtin::Free,
        _ => return None,
    })
}

/// Size and alignment of a declaration; an open dimension counts as `open` elements.
pub(crate) fn layout(declaration: &Declaration, open: u64) -> Result<(u64, u64), LineError> {
    let fail = |message: &str| Err((declaration.line, format!("{}: {message}", declaration.name)));
    let Some(ty) = Type::parse(declaration.ty) else {
        return fail(&format!("unknown type .{}", declaration.ty));
    };
    let unit = u64::from(ty.bytes()) * u64::from(declaration.vector);
    let size = declaration.dims.iter().try_fold(unit, |size, dim| size.checked_mul(dim.unwrap_or(open)));
    match size {
        Some(size) if size <= MAX_VARIABLE => Ok((size, declaration.align.unwrap_or(unit))),
        _ => fail("too large"),
    }
}

/// Layout of a parameter or return value.
pub(crate) fn slot(declaration: &Declaration) -> Result<Slot, LineError> {
    let (size, align) = layout(declaration, 0)?;
    match (u32::try_from(size), u32::try_from(align)) {
        (Ok(size), Ok(align)) if size <= MAX_PARAMS => Ok(Slot { size, align }),
        _ => Err((declaration.line, format!("parameter {} is too large", declaration.name))),
    }
}

/// Layouts of all of them.
pub(crate) fn signature(returns: &[Declaration], params: &[Declaration]) -> Result<Signature, LineError> {
    Ok(Signature {
        returns: returns.iter().map(slot).collect::<Result<_, _>>()?,
        params: params.iter().map(slot).collect::<Result<_, _>>()?,
    })
}

impl<'a> Linker<'a> {
    /// Gives a variable its place, at module level or inside of a function.
    pub(crate) fn declare(&mut self, declaration: &Declaration<'a>) -> Result<Global, LineError> {
        let reference = match declaration.ty {
            "texref" => Some(Reference::Texture),
            "surfref" => Some(Reference::Surface),
            _ => None,
        };
        if let Some(reference) = reference.filter(|_| declaration.dims.is_empty() && declaration.space == "global") {
            self.module.variables.push(Variable {
                name: declaration.name.to_owned(),
                size: 8,
                align: 8,
                init: Vec::new(),
                relocations: Vec::new(),
                external: declaration.external,
                reference: Some(reference),
            });
            return Ok(Global::Variable(self.module.variables.len() - 1));
        }
        if reference.is_some() || declaration.ty == "samplerref" || declaration.space == "tex" {
            return Ok(Global::Unsupported);
        }
        let (size, align) = layout(declaration, declaration.init.len() as u64)?;
        if declaration.space == "shared" {
            let dynamic = declaration.external && declaration.dims.contains(&None);
            let name = declaration.name.to_owned();
            return match (u32::try_from(size), u32::try_from(align)) {
                (Ok(size), Ok(align)) if size <= MAX_SHARED && align <= 1024 => {
                    self.module.shared.push(SharedVariable { name, size, align, dynamic });
                    Ok(Global::Shared(self.module.shared.len() - 1))
                }
                _ => Err((declaration.line, format!("{name}: too much shared memory"))),
            };
        }
        self.module.variables.push(Variable {
            name: declaration.name.to_owned(),
            size,
            align,
            init: Vec::new(),
            relocations: Vec::new(),
            external: declaration.external,
            reference: None,
        });
        Ok(Global::Variable(self.module.variables.len() - 1))
    }

    /// Fills in the initial bytes of variable `index`.
    pub(crate) fn initialize(&mut self, index: usize, declaration: &Declaration<'a>) -> Result<(), LineError> {
        let Some(ty) = Type::parse(declaration.ty) else { return Ok(()) };
        let width = ty.bytes() as usize;
        let mut bytes = Vec::with_capacity(declaration.init.len() * width);
        let mut relocations: Vec<Relocation> = Vec::new();
        for element in &declaration.init {
            let at = bytes.len();
            match *element {
                Initializer::Number(number) => {
                    bytes.extend_from_slice(&u128::from(literal(number, ty)).to_le_bytes()[..width]);
                }
                Initializer::Symbol { name, addend, byte } => {
                    bytes.resize(at + width, 0);
                    let target = self.relocation_target(name, declaration.line)?;
                    match byte {
                        None if width == 4 || width == 8 => {
                            relocations.push(Relocation { offset: at as u64, width: ty.bytes(), target, addend });
                        }
                        // Eight masked bytes in a row make one address.
                        Some(0) if width == 1 => {
                            relocations.push(Relocation { offset: at as u64, width: 8, target, addend });
                        }
                        Some(byte) if width == 1 => {
                            let follows = relocations.last().is_some_and(|r| r.offset + u64::from(byte) == at as u64);
                            if !follows {
                                return Err((declaration.line, "bytes of an address must be consecutive".into()));
                            }
                        }
                        _ => {
                            return Err((
                                declaration.line,
                                format!("an address does not fit into .{}", declaration.ty),
                            ));
                        }
                    }
                }
            }
        }
        let variable = &mut self.module.variables[index];
        let fits = |r: &Relocation| r.offset + u64::from(r.width) <= variable.size;
        if bytes.len() as u64 > variable.size || !relocations.iter().all(fits) {
            return Err((declaration.line, format!("too many initial values for {}", declaration.name)));
        }
        variable.init = bytes;
        variable.relocations = relocations;
        Ok(())
    }

    fn relocation_target(&self, name: &str, line: u32) -> Result<RelocationTarget, LineError> {
        match self.names.get(name) {
            Some(Global::Variable(index)) => Ok(RelocationTarget::Variable(*index)),
            Some(Global::Function(index)) => Ok(RelocationTarget::Function(*index)),
            _ => Err((line, format!("{name} has no address"))),
        }
    }

    fn declare_function<'t>(
        &mut self,
        function: &'t ast::Function<'a>,
        bodies: &mut Vec<(usize, &'t ast::Function<'a>)>,
    ) -> Result<(), LineError> {
        let signature = signature(&function.returns, &function.params)?;
        let index = match self.names.get(function.name) {
            Some(Global::Function(index)) => *index,
            Some(Global::Builtin(_)) => return Ok(()),
            Some(_) => return Err((function.line, format!("{} is already defined as a variable", function.name))),
            None => {
                if let Some(builtin) = builtin(function.name).filter(|_| function.external) {
                    self.names.insert(function.name, Global::Builtin(builtin));
                    return Ok(());
                }
                let index = self.module.functions.len();
                let (param_offsets, param_bytes) = param_buffer(&signature.params);
                if function.entry && param_bytes > MAX_PARAMS {
                    return Err((function.line, format!("{}: too many parameters", function.name)));
                }
                self.module.functions.push(Function {
                    name: function.name.to_owned(),
                    entry: function.entry,
                    signature: signature.clone(),
                    param_offsets,
                    param_bytes,
                    max_threads: function.max_threads,
                    required_threads: function.required_threads,
                    body: Err(format!("function {} is not defined", function.name)),
                });
                self.names.insert(function.name, Global::Function(index));
                index
            }
        };
        let known = &mut self.module.functions[index];
        if known.signature != signature || known.entry != function.entry {
            return Err((function.line, format!("conflicting declarations of {}", function.name)));
        }
        if function.body.is_some() {
            known.max_threads = function.max_threads;
            known.required_threads = function.required_threads;
            if bodies.iter().any(|(other, _)| *other == index) {
                return Err((function.line, format!("{} is defined twice", function.name)));
            }
            bodies.push((index, function));
        }
        Ok(())
    }
}

/// Where each parameter lies in the parameter buffer, and the buffer's size.
fn param_buffer(params: &[Slot]) -> (Vec<u32>, u32) {
    let mut at = 0u32;
    let mut offsets = Vec::new();
    for slot in params {
        at = at.next_multiple_of(slot.align.max(1));
        offsets.push(at);
        at = at.saturating_add(slot.size).min(1 << 30);
    }
    (offsets, at)
}

/// The bits of a literal as an operand of type `ty`.
#[expect(clippy::cast_possible_truncation, reason = "PTX rounds what is written as a double")]
pub(crate) fn literal(number: Number, ty: Type) -> u64 {
    let as_double = match number {
        Number::Int(i) if !matches!(ty, Type::F16 | Type::BF16 | Type::F32 | Type::F64) => return i,
        Number::Int(i) => i.cast_signed() as f64,
        Number::Single(bits) if ty == Type::F64 => f64::from(f32::from_bits(bits)),
        Number::Single(bits) if !matches!(ty, Type::F16 | Type::BF16) => return u64::from(bits),
        Number::Single(bits) => f64::from(f32::from_bits(bits)),
        Number::Double(bits) => f64::from_bits(bits),
    };
    match ty {
        Type::F32 => u64::from((as_double as f32).to_bits()),
        Type::F16 => u64::from(half::f16::from_f64(as_double).to_bits()),
        Type::BF16 => u64::from(half::bf16::from_f64(as_double).to_bits()),
        _ => as_double.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(declaration: &str) -> Result<Variable, LineError> {
        let text = format!(".version 8.3\n.target sm_75\n.address_size 64\n{declaration}");
        let module = build(&ptx::parse(&text).expect("PTX"))?;
        Ok(module.variables[0].clone())
    }

    #[test]
    fn a_value_is_as_wide_as_its_type() {
        let bytes = |declaration| variable(declaration).unwrap().init;
        assert_eq!(bytes(".global .b8 x[2] = {1, -1};"), [1, 0xff]);
        assert_eq!(bytes(".global .f32 x = 0f3F800000;"), 1f32.to_le_bytes());
        assert_eq!(bytes(".global .b128 x = 0x0102030405060708;"), 0x0102_0304_0506_0708u128.to_le_bytes());
    }

    #[test]
    fn more_values_than_elements_are_refused() {
        assert!(variable(".global .b8 x[2] = {1, 2, 3};").is_err());
        assert!(variable(".global .b8 x[4] = {0xff(x), 0xff00(x)};").is_err(), "half an address");
    }
}
