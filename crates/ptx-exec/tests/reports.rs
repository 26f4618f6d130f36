//! What a fault says about where it happened.

mod kernels;

use kernels::{Device, Params, alloc};
use ptx_exec::{Fault, FaultKind, Source};

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
    .loc 3 88 1
    bar.sync 1, 64;
    ret;
ELSEWHERE:
    ret;
}

.visible .entry apart(.param .u64 out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 bra ELSEWHERE;
    .loc 3 91 1
    bar.sync 0;
    ret;
ELSEWHERE:
    .loc 3 93 1
    bar.sync 2;
    ret;
}

.func deep(.param .u32 depth)
{
    .reg .b32 %r<4>;
    .loc 3 96 1
    ld.param.u32 %r1, [depth];
    add.u32 %r2, %r1, 1;
    { .param .u32 next; st.param.u32 [next], %r2; call deep, (next); }
    ret;
}

.visible .entry overflow(.param .u64 out)
{
    { .param .u32 next; st.param.u32 [next], 0; call deep, (next); }
    ret;
}
"#;

/// Shared memory of 63 words and a local array of 15, one access behind the other.
const ENDS: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry one(.param .u32 word)
{
    .reg .b32 %r<4>;
    .shared .align 4 .b8 cells[252];
    ld.param.u32 %r1, [word];
    shl.b32 %r1, %r1, 2;
    mov.u32 %r2, cells;
    add.u32 %r2, %r2, %r1;
    st.shared.u32 [%r2], 1;
    bar.sync 0;
    ret;
}

.visible .entry row(.param .u32 word)
{
    .reg .b32 %r<4>;
    .shared .align 4 .b8 cells[252];
    ld.param.u32 %r1, [word];
    shl.b32 %r1, %r1, 2;
    mov.u32 %r2, cells;
    add.u32 %r2, %r2, %r1;
    st.shared.u32 [%r2+4], 1;
    st.shared.u32 [%r2], 1;
    st.shared.u32 [%r2+8], 1;
    ret;
}

.visible .entry array(.param .u32 word)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .local .align 4 .b8 cells[60];
    ld.param.u32 %r1, [word];
    mul.wide.u32 %rd1, %r1, 4;
    mov.u64 %rd2, cells;
    add.s64 %rd2, %rd2, %rd1;
    st.local.u32 [%rd2], 1;
    ret;
}

.visible .entry dynamic(.param .u32 word)
{
    .reg .b32 %r<4>;
    .extern .shared .align 4 .b8 more[];
    ld.param.u32 %r1, [word];
    shl.b32 %r1, %r1, 2;
    mov.u32 %r2, more;
    add.u32 %r2, %r2, %r1;
    st.shared.u32 [%r2], 1;
    ret;
}

.visible .entry trapped(.param .u64 address)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [address];
    ld.global.u32 %r1, [%rd1];
    trap;
    ld.global.u32 %r2, [%rd1+1048572];
    ld.global.u32 %r3, [%rd1+4];
    ret;
}
"#;

/// Where a launch faults, if it does.
fn address(kernel: &str, word: u32, dynamic: u32) -> Option<u64> {
    let device = Device::load(ENDS);
    let fault = device.launch(kernel, [1, 1, 1], [1, 1, 1], dynamic, Params::new().add(word)).err()?;
    assert_eq!(fault.kind, FaultKind::IllegalAddress, "{fault}");
    fault.address
}

#[test]
fn memory_ends_where_it_ends() {
    assert_eq!((address("one", 62, 0), address("one", 63, 0)), (None, Some(252)));
    assert_eq!((address("array", 14, 0), address("array", 15, 0)), (None, Some(60)));
    assert_eq!((address("dynamic", 20, 84), address("dynamic", 21, 84)), (None, Some(84)));
}

#[test]
fn of_accesses_that_are_checked_together_the_wrong_one_is_named() {
    assert_eq!(address("row", 60, 0), None);
    assert_eq!(address("row", 61, 0), Some(252));
    assert_eq!(address("row", 62, 0), Some(252));
    assert_eq!(address("row", 63, 0), Some(252));
    assert_eq!(address("row", 70, 0), Some(280));
}

#[test]
fn what_comes_behind_a_trap_is_not_looked_at() {
    let last = ptx_exec::window::BASE + ptx_exec::window::SIZE - 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping at the very end of the window, which nobody else uses.
    let got = unsafe { libc::mmap(last as *mut _, 4096, libc::PROT_READ, flags, -1, 0) };
    assert_eq!(got as u64, last);
    let device = Device::load(ENDS);
    let fault = device.launch("trapped", [1, 1, 1], [1, 1, 1], 0, Params::new().add(last)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Trap, "{fault}");
}

fn fault(kernel: &str, params: Params) -> Fault {
    let device = Device::load(TEXT);
    device.launch(kernel, [2, 1, 1], [64, 1, 1], 0, params).expect_err("it must fault")
}

/// The line of the text that holds `what`.
fn line(what: &str) -> u32 {
    TEXT.lines().position(|line| line.contains(what)).map_or(0, |at| at as u32 + 1)
}

fn source(line: u32) -> Option<Box<Source>> {
    Some(Box::new(Source { file: "/src/planted.cu".to_owned(), line, caller: None }))
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

/// A function of a header, inlined into another, inlined into the kernel.
const INLINED: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.file 1 "/src/planted.cu"
.file 2 "/usr/include/header.hpp"

.visible .entry store(.param .u64 address)
{
    .reg .b64 %rd<4>;
    .loc 1 10 0
    ld.param.u64 %rd1, [address];
    .loc 1 5 9, function_name $L__info_string0, inlined_at 1 12 3
    .loc 2 107 3, function_name $L__info_string0 + 4, inlined_at 1 5 9
    st.global.u32 [%rd1], 1;
    ret;
}
"#;

#[test]
fn a_fault_in_a_header_names_who_called() {
    let device = Device::load(INLINED);
    let fault = device.launch("store", [1, 1, 1], [1, 1, 1], 0, Params::new().add(8u64)).unwrap_err();
    let said = "/usr/include/header.hpp:107, called from /src/planted.cu:12 (PTX line";
    assert!(fault.to_string().contains(said), "{fault}");
}

#[test]
fn a_thread_that_left_a_barrier_is_noticed() {
    let fault = fault("gap", Params::new().add(0u64));
    assert_eq!(fault.kind, FaultKind::Deadlock);
    let said = "63 threads wait for threads that never arrive: 63 threads at barrier 1 (the first is 0,0,0), which waits for \
                64; 1 of 64 have exited";
    assert_eq!(fault.message, said);
    assert!(fault.to_string().contains("/src/planted.cu:88"), "{fault}");
}

#[test]
fn threads_at_different_barriers_are_told_apart() {
    let fault = fault("apart", Params::new().add(0u64));
    assert_eq!(fault.kind, FaultKind::Deadlock);
    let said = "64 threads wait for threads that never arrive: 61 threads at barrier 0 (the first is 3,0,0); 3 threads at \
                barrier 2 (the first is 0,0,0)";
    assert_eq!(fault.message, said);
    assert!(fault.to_string().contains("/src/planted.cu:93"), "{fault}");
}

#[test]
fn calls_that_nest_too_deep_have_a_place() {
    let fault = fault("overflow", Params::new().add(0u64));
    assert_eq!(fault.kind, FaultKind::StackOverflow);
    assert!(fault.to_string().contains("/src/planted.cu:96"), "{fault}");
}
