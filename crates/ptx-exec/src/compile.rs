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

/// What the functions of a kernel share.
fn unit<'m>(module: &'m Module, reach: &'m Reach, threads: Threads, checked: bool, checks: Checks) -> Unit<'m> {
    let mut shared = vec![None; module.shared.len()];
    for (index, offset) in &reach.shared {
        shared[*index] = Some(*offset);
    }
    let pauses = if threads == Threads::Interleaved { pauses::of(module, reach) } else { None };
    let kernel = reach.functions[0];
    let frame = pauses.as_ref().map(|pauses| interleave::frame(module, kernel, pauses, reach.local_bytes));
    Unit {
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
    }
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
    let unit = unit(module, reach, threads, checked, checks);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel becomes that does this to the memory at `%rd1`, before the code generator has its way with it.
    fn lowered(body: &str) -> Function {
        let text = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry kernel(.param .u64 place)\n{{\n\
             .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %rd<8>; .reg .b128 %q<2>;\n\
             ld.param.u64 %rd1, [place];\n{body}\nret;\n}}\n"
        );
        let module = ptx_passes::build(&ptx::parse(&text).unwrap()).unwrap();
        let reach = ptx_passes::reach::reach(&module, 0);
        let unit = unit(&module, &reach, Threads::Interleaved, false, Checks::default());
        let function = &module.functions[0];
        let mut frontend = FunctionBuilderContext::new();
        let mut out = shell(0, function);
        let builder = FunctionBuilder::new(&mut out, &mut frontend);
        let body = function.body.as_ref().unwrap();
        Lower::lower(builder, &unit, function, body).finalize(isa().unwrap().frontend_config());
        out
    }

    /// Accesses of memory that may fault, which that of the kernel is and that of the runtime is not.
    fn accesses(body: &str) -> Vec<String> {
        let function = lowered(body);
        let insts = function.layout.blocks().flat_map(|block| function.layout.block_insts(block));
        let of = |inst| {
            let (dfg, opcode) = (&function.dfg, function.dfg.insts[inst].opcode());
            let flags = dfg.insts[inst].memflags_data(dfg)?;
            if flags.notrap() || !opcode.can_load() && !opcode.can_store() {
                return None;
            }
            let value = if opcode.can_store() { dfg.inst_args(inst)[0] } else { dfg.inst_results(inst)[0] };
            Some(format!("{opcode} {}", dfg.value_type(value)))
        };
        insts.filter_map(of).collect()
    }

    #[test]
    fn strong_vectors_are_one_access() {
        for (text, wanted) in [
            ("ld.relaxed.gpu.global.v2.u32 {%r1, %r2}, [%rd1];", "atomic_load i64"),
            ("ld.volatile.global.v2.f32 {%f1, %f2}, [%rd1];", "atomic_load i64"),
            ("ld.acquire.gpu.global.v4.u16 {%h1, %h2, %h3, %h4}, [%rd1];", "atomic_load i64"),
            ("ld.global.cg.v2.u64 {%rd2, %rd3}, [%rd1];", "load i64x2"),
            ("ld.relaxed.gpu.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];", "load i64x2"),
            ("ld.relaxed.gpu.v2.b64 {%rd2, _}, [%rd1];", "load i64x2"),
            ("ld.relaxed.gpu.global.b128 %q1, [%rd1];", "load i64x2"),
            ("st.relaxed.gpu.global.v2.u32 [%rd1], {%r1, 7};", "store i64"),
            ("st.volatile.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};", "store i64x2"),
            ("st.release.gpu.global.v2.u64 [%rd1], {%rd2, %rd3};", "store i64x2"),
            ("st.volatile.global.v4.u8 [%rd1], {%h1, %h2, %h3, %h4};", "store i32"),
            ("st.relaxed.gpu.global.b128 [%rd1], %q1;", "store i64x2"),
        ] {
            assert_eq!(accesses(text), [wanted], "{text}");
        }
        assert_eq!(accesses("ld.global.v2.u32 {%r1, %r2}, [%rd1];").len(), 2, "others need not be");
    }
}
