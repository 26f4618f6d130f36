//! A kernel and what it calls to machine code.

use std::sync::OnceLock;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{ExternalName, Function};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context as Codegen, FinalizedRelocTarget};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use ptx_passes::ir::{Module, Op, Signature};
use ptx_passes::pauses;
use ptx_passes::reach::Reach;

use super::code::Image;
use super::lower::{Lower, Unit, interleave, shell};
use super::module::Threads;
use super::sanitize::Checks;

/// Code that could not be made. Nothing that a text can say should lead here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompileError {
    #[error("this processor is not supported: {0}")]
    Host(String),
    #[error("code generation failed in {function}: {message}")]
    Codegen { function: String, message: String },
}

fn isa() -> Result<OwnedTargetIsa, CompileError> {
    static ISA: OnceLock<Result<OwnedTargetIsa, String>> = OnceLock::new();
    let made = ISA.get_or_init(|| {
        let builder = cranelift_native::builder().map_err(str::to_owned)?;
        let mut flags = settings::builder();
        let options = [
            ("opt_level", "speed"),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
            ("is_pic", "true"),
            ("use_colocated_libcalls", "false"),
            ("preserve_frame_pointers", "true"),
        ];
        for (name, value) in options {
            flags.set(name, value).map_err(|error| error.to_string())?;
        }
        builder.finish(settings::Flags::new(flags)).map_err(|error| error.to_string())
    });
    made.clone().map_err(CompileError::Host)
}

/// What code is made for: the processor's abilities as the code generator sees them.
pub(crate) fn processor() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let flags = |isa: OwnedTargetIsa| isa.isa_flags().iter().map(|flag| flag.to_string() + " ").collect();
        let abilities: String = isa().map(flags).unwrap_or_default();
        format!("{abilities}fma={}", std::arch::is_x86_feature_detected!("fma"))
    })
}

/// Whether threads of the kernel may have to wait for each other.
fn waits(module: &Module, reach: &Reach) -> bool {
    let bodies = reach.functions.iter().filter_map(|index| module.functions[*index].body.as_ref().ok());
    let ops = bodies.flat_map(|body| &body.blocks).flat_map(|block| &block.insts).map(|inst| &inst.op);
    ops.into_iter().any(|op| match op {
        Op::Barrier { .. } | Op::Warp { .. } => true,
        Op::Runtime { routine, .. } => routine.waits(),
        _ => false,
    })
}

/// Whether nothing in the kernel can make its fiber pause: then threads simply follow each other.
fn straight(module: &Module, reach: &Reach) -> bool {
    let [kernel] = reach.functions[..] else { return false };
    let Ok(body) = &module.functions[kernel].body else { return false };
    let loops = body.blocks.iter().enumerate().any(|(index, block)| block.end.goes_back(index));
    let pauses = |op: &Op| matches!(op, Op::Barrier { .. } | Op::Warp { .. } | Op::Runtime { .. } | Op::Sleep(_));
    !loops && !body.blocks.iter().flat_map(|block| &block.insts).any(|inst| pauses(&inst.op))
}

fn signatures(module: &Module, reach: &Reach) -> Vec<Signature> {
    let mut out: Vec<Signature> = Vec::new();
    let mut add = |signature: &Signature| {
        if !out.contains(signature) {
            out.push(signature.clone());
        }
    };
    for index in &reach.functions {
        let function = &module.functions[*index];
        add(&function.signature);
        if let Ok(body) = &function.body {
            body.prototypes.iter().for_each(&mut add);
        }
    }
    out
}

/// Compiles a kernel with everything it can reach.
pub(crate) fn compile(
    module: &Module,
    reach: &Reach,
    threads: Threads,
    checked: bool,
    checks: Checks,
) -> Result<Image, CompileError> {
    let isa = isa()?;
    let mut shared = vec![None; module.shared.len()];
    for (index, offset) in &reach.shared {
        shared[*index] = Some(*offset);
    }
    let pauses = if threads == Threads::Interleaved { pauses::of(module, reach) } else { None };
    let kernel = reach.functions[0];
    let frame = pauses.as_ref().map(|pauses| interleave::frame(module, kernel, pauses, reach.local_bytes));
    let unit = Unit {
        module,
        reach,
        shared,
        waits: waits(module, reach) || checks.lockstep(),
        straight: straight(module, reach) && !checks.lockstep(),
        signatures: signatures(module, reach),
        pauses,
        frame,
        checked,
        checks,
        has_fma: std::arch::is_x86_feature_detected!("fma"),
    };
    let frame_bytes = unit.frame.map_or(0, |(bytes, _)| bytes);
    let mut image = Image {
        bytes: Vec::new(),
        entry: 0,
        frame_bytes,
        lines: Vec::new(),
        functions: vec![None; module.functions.len()],
    };
    let mut calls: Vec<(usize, usize, i64)> = Vec::new();
    let mut frontend = FunctionBuilderContext::new();
    let mut codegen = Codegen::new();
    for index in &reach.functions {
        let function = &module.functions[*index];
        let Ok(body) = &function.body else { continue };
        let failed = |message: String| CompileError::Codegen { function: function.name.clone(), message };
        codegen.clear();
        codegen.func = shell(*index as u32, function);
        let builder = FunctionBuilder::new(&mut codegen.func, &mut frontend);
        Lower::lower(builder, &unit, function, body).finalize(isa.frontend_config());
        let code = codegen
            .compile(&*isa, &mut ControlPlane::default())
            .map_err(|error| failed(format!("{:?}", error.inner)))?;
        image.bytes.resize(image.bytes.len().next_multiple_of(32), 0xcc);
        let start = image.bytes.len();
        image.bytes.extend_from_slice(code.code_buffer());
        let code = codegen.compiled_code().ok_or_else(|| failed("no code".into()))?;
        for place in code.buffer.get_srclocs_sorted() {
            let line = place.loc.bits();
            image.lines.push((start as u32 + place.start, start as u32 + place.end, line));
        }
        for reloc in code.buffer.relocs() {
            let target = relocated_function(&codegen.func, &reloc.target);
            match (reloc.kind, target) {
                (Reloc::X86CallPCRel4 | Reloc::X86CallPLTRel4 | Reloc::X86PCRel4, Some(target)) => {
                    calls.push((start + reloc.offset as usize, target, reloc.addend));
                }
                (kind, _) => return Err(failed(format!("unexpected relocation {kind:?} to {:?}", reloc.target))),
            }
        }
        let number = unit.signature_number(&function.signature).unwrap_or(0);
        image.functions[*index] = Some((start, if function.entry { 0 } else { number }));
    }
    for (place, target, addend) in calls {
        let Some((start, _)) = image.functions[target] else { continue };
        let distance = (start as i64 + addend - place as i64) as i32;
        image.bytes[place..place + 4].copy_from_slice(&distance.to_le_bytes());
    }
    image.entry = image.functions[reach.functions[0]].map_or(0, |(start, _)| start);
    Ok(image)
}

fn relocated_function(function: &Function, target: &FinalizedRelocTarget) -> Option<usize> {
    match target {
        FinalizedRelocTarget::ExternalName(ExternalName::User(name)) => {
            Some(function.params.user_named_funcs()[*name].index as usize)
        }
        _ => None,
    }
}
