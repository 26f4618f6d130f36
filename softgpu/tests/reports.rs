//! What a fault says about where it happened.

mod kernels;

use kernels::{Device, Params, alloc};
use softgpu::exec::{Fault, FaultKind};

const TEXT: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.file 3 "/src/planted.cu"

.visible .entry store(.param .u64 address, .param .u32 guilty)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .loc 3 10 0
    ld.param.u64 %rd1, [address];
    ld.param.u32 %r1, [guilty];
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    .loc 3 12 5
    st.global.u32 [%rd1], %r2;
DONE:
    .loc 3 13 1
    ret;
}

.visible .entry stop(.param .u32 guilty)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [guilty];
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p1, %r2, %r1;
    .loc 3 77 2
    @%p1 bra DONE;
    trap;
DONE:
    ret;
}

.visible .entry gap(.param .u64 out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1, %r1, 5;
    @%p1 bra ELSEWHERE;
    bar.sync 1, 64;
    ret;
ELSEWHERE:
    ret;
}
"#;

fn fault(kernel: &str, params: Params) -> Fault {
    let device = Device::load(TEXT);
    device.launch(kernel, [2, 1, 1], [64, 1, 1], 0, params).expect_err("it must fault")
}

/// The line of the text that holds `what`.
fn line(what: &str) -> u32 {
    TEXT.lines().position(|line| line.contains(what)).map_or(0, |at| at as u32 + 1)
}

fn source(line: u32) -> Option<Box<(String, u32)>> {
    Some(Box::new(("/src/planted.cu".to_owned(), line)))
}

#[test]
fn an_address_outside_of_the_window_is_placed() {
    let fault = fault("store", Params::new().add(8u64).add(9u32));
    assert_eq!((fault.kind, fault.address, fault.thread), (FaultKind::IllegalAddress, Some(8), [9, 0, 0]));
    assert_eq!((fault.line, fault.source), (Some(line("st.global.u32")), source(12)));
}

#[test]
fn an_address_that_is_not_mapped_is_placed() {
    let hole = alloc(4096) + (1 << 19);
    let fault = fault("store", Params::new().add(hole).add(33u32));
    assert_eq!((fault.kind, fault.address, fault.thread), (FaultKind::IllegalAddress, Some(hole), [33, 0, 0]));
    assert_eq!((fault.line, fault.source), (Some(line("st.global.u32")), source(12)));
}

#[test]
fn a_trap_is_placed() {
    let fault = fault("stop", Params::new().add(3u32));
    assert_eq!((fault.kind, fault.line), (FaultKind::Trap, Some(line("trap;"))));
    assert_eq!(fault.source, source(77));
    assert!(fault.to_string().contains("/src/planted.cu:77"), "{fault}");
}

#[test]
fn a_thread_that_left_a_barrier_is_noticed() {
    let fault = fault("gap", Params::new().add(0u64));
    assert_eq!(fault.kind, FaultKind::Deadlock);
    assert!(fault.message.contains("63 threads wait"), "{fault}");
}
