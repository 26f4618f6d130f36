//! Threads that one fiber interleaves.

mod kernels;

use kernels::{Device, Params, alloc, download, upload};

/// Each thread counts for a while, long enough to be interrupted, and hands its count on around the block, twice.
const TEXT: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry around(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 cells[1024];
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r9, cells;
    shl.b32 %r3, %r2, 2;
    add.u32 %r3, %r3, %r9;
    add.u32 %r4, %r2, 1;
    and.b32 %r4, %r4, 255;
    shl.b32 %r4, %r4, 2;
    add.u32 %r4, %r4, %r9;
    mov.u32 %r5, 0;
COUNT:
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, %r1;
    @%p1 bra COUNT;
    add.u32 %r5, %r5, %r2;
    st.shared.u32 [%r3], %r5;
    bar.sync 0;
    ld.shared.u32 %r6, [%r4];
    bar.sync 0;
    st.shared.u32 [%r3], %r6;
    setp.gt.u32 %p2, %r2, 199;
    @%p2 bra LEAVE;
    bar.sync 0;
    ld.shared.u32 %r7, [%r4];
    add.u32 %r7, %r7, %r5;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r7;
LEAVE:
    ret;
}
"#;

#[test]
fn threads_keep_their_registers_and_wait_for_each_other() {
    let device = Device::load(TEXT);
    for rounds in [1u32, 40_000] {
        let out = alloc(1024);
        device.run("around", 1, 256, Params::new().add(out).add(rounds));
        let expected = |i: u32| if i < 200 { (rounds + (i + 2) % 256) + (rounds + i) } else { 0 };
        assert_eq!(download::<u32>(out, 256), (0..256).map(expected).collect::<Vec<_>>(), "{rounds} rounds");
    }
}

/// Lanes of a warp shuffle, vote and match in diverged halves; then the block counts votes at a barrier.
const TOGETHER: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry together(.param .u64 out)
{
    .reg .pred %p<8>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<6>;
    .local .align 4 .b8 cells[64];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %laneid;
    and.b32 %r3, %r2, 15;
    shl.b32 %r3, %r3, 2;
    cvt.u64.u32 %rd4, %r3;
    mov.u64 %rd5, cells;
    add.s64 %rd5, %rd5, %rd4;
    st.local.u32 [%rd5], %r1;
    mov.u32 %r4, %r1;
    mov.u32 %r5, 16;
SUM:
    shfl.sync.bfly.b32 %r6, %r4, %r5, 31, -1;
    add.u32 %r4, %r4, %r6;
    shr.u32 %r5, %r5, 1;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra SUM;
    setp.lt.u32 %p2, %r2, 16;
    @%p2 bra LOW;
    vote.sync.ballot.b32 %r7, %p2, 0xffff0000;
    match.any.sync.b32 %r8, %r3, 0xffff0000;
    bra.uni MET;
LOW:
    shfl.sync.idx.b32 %r7, %r1, 3, 31, 0x0000ffff;
    mov.u32 %r8, 7;
MET:
    setp.eq.u32 %p3, %r3, 8;
    @%p3 bar.warp.sync 0x00040004;
    setp.lt.u32 %p4, %r1, 70;
    bar.red.popc.u32 %r9, 0, %p4;
    ld.local.u32 %r10, [%rd5];
    mul.wide.u32 %rd2, %r1, 20;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    st.global.u32 [%rd3+4], %r7;
    st.global.u32 [%rd3+8], %r8;
    st.global.u32 [%rd3+12], %r9;
    st.global.u32 [%rd3+16], %r10;
    ret;
}
"#;

#[test]
fn lanes_do_things_together_wherever_they_are() {
    let device = Device::load(TOGETHER);
    let out = alloc(20 * 128);
    device.run("together", 2, 128, Params::new().add(out));
    let got = download::<[u32; 5]>(out, 128);
    let expected = |thread: u32| {
        let (warp, lane) = (thread / 32 * 32, thread % 32);
        let sum = (warp..warp + 32).sum();
        let (second, third) = if lane < 16 { (warp + 3, 7) } else { (0, 1 << lane) };
        [sum, second, third, 70, thread]
    };
    assert_eq!(got, (0..128).map(expected).collect::<Vec<_>>());
}

/// One thread waits for a word that another one of the block writes after it, and all take a lock in turn.
const SPINNING: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry spinning(.param .u64 words)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra OTHERS;
WAIT:
    ld.volatile.global.u32 %r2, [%rd1];
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra WAIT;
    bra.uni LOCK;
OTHERS:
    setp.ne.u32 %p1, %r1, 63;
    @%p1 bra LOCK;
    st.volatile.global.u32 [%rd1], 1;
LOCK:
    atom.global.cas.b32 %r3, [%rd1+4], 0, 1;
    setp.ne.u32 %p2, %r3, 0;
    @%p2 bra LOCK;
    ld.global.u32 %r4, [%rd1+8];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd1+8], %r4;
    membar.gl;
    atom.global.exch.b32 %r5, [%rd1+4], 0;
    bar.sync 0;
    ret;
}
"#;

#[test]
fn a_thread_that_spins_lets_others_run() {
    let device = Device::load(SPINNING);
    let words = alloc(12);
    device.run("spinning", 3, 64, Params::new().add(words));
    assert_eq!(download::<u32>(words, 3), [1, 0, 192]);
}

/// Half of the threads wait at another barrier than the rest.
const STUCK: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry stuck()
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra FIRST;
    bar.sync 1;
    ret;
FIRST:
    bar.sync 0;
    ret;
}
"#;

#[test]
fn threads_at_different_barriers_are_reported() {
    let device = Device::load(STUCK);
    let fault = device.launch("stuck", [1, 1, 1], [64, 1, 1], 0, Params::new()).unwrap_err();
    assert_eq!(fault.kind, ptx_exec::FaultKind::Deadlock);
    assert!(fault.message.contains("64 threads"), "{}", fault.message);
}

/// Something sleeps between the arguments of a call and the call, and before the result is fetched.
const INTERRUPTED: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b64 result) malloc(.param .b64 size);
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 list);
.global .align 1 .b8 text[4] = {37, 100, 10, 0};

.visible .entry interrupted()
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<6>;
    .local .align 8 .b8 list[8];
    mov.u32 %r1, %tid.x;
    mov.u64 %rd1, list;
    st.local.u32 [%rd1], %r1;
    cvta.local.u64 %rd2, %rd1;
    mov.u64 %rd3, text;
    cvta.global.u64 %rd3, %rd3;
    {
        .param .b64 format;
        .param .b64 arguments;
        .param .b32 result;
        st.param.b64 [format], %rd3;
        st.param.b64 [arguments], %rd2;
        nanosleep.u32 20;
        call (result), vprintf, (format, arguments);
        ld.param.b32 %r2, [result];
    }
    bar.sync 0;
    ret;
}
"#;

#[test]
fn arguments_of_a_call_survive_a_pause() {
    let device = Device::load(INTERRUPTED);
    device.run("interrupted", 1, 8, Params::new());
    let mut lines: Vec<u32> = device.text().lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..8).collect::<Vec<_>>());
}

/// Threads go through memory in strides, in loops of different lengths, one inside the other, with a barrier between them.
const STRIDES: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry strides(.param .u64 table, .param .u32 count, .param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .shared .align 4 .b8 cells[400];
    ld.param.u64 %rd1, [table];
    ld.param.u32 %r1, [count];
    ld.param.u64 %rd2, [out];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %r2;
    mov.u32 %r5, 0;
    mov.u32 %r11, 0;
OUTER:
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra MEET;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.u32 %r6, [%rd4];
    add.u32 %r5, %r5, %r6;
    and.b32 %r7, %r6, 31;
INNER:
    setp.eq.u32 %p2, %r7, 0;
    @%p2 bra NEXT;
    ld.global.u32 %r8, [%rd4];
    add.u32 %r11, %r11, %r8;
    sub.u32 %r7, %r7, 1;
    bra INNER;
NEXT:
    add.u32 %r4, %r4, %r3;
    bra OUTER;
MEET:
    mov.u32 %r9, cells;
    shl.b32 %r10, %r2, 2;
    add.u32 %r10, %r10, %r9;
    st.shared.u32 [%r10], %r5;
    bar.sync 0;
    add.u32 %r12, %r2, 1;
    rem.u32 %r12, %r12, %r3;
    shl.b32 %r12, %r12, 2;
    add.u32 %r12, %r12, %r9;
    ld.shared.u32 %r13, [%r12];
    add.u32 %r13, %r13, %r11;
    mul.wide.u32 %rd5, %r2, 4;
    add.s64 %rd6, %rd2, %rd5;
    st.global.u32 [%rd6], %r13;
    ret;
}
"#;

/// The same without a barrier, and with threads that leave at once; and the last thread writes a word for which others wait with
/// loads that promise nothing.
const ALONE: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry alone(.param .u64 table, .param .u32 count, .param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [table];
    ld.param.u32 %r1, [count];
    ld.param.u64 %rd2, [out];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    rem.u32 %r4, %r2, 7;
    setp.eq.u32 %p1, %r4, 3;
    @%p1 bra LEAVE;
    mov.u32 %r4, %r2;
    mov.u32 %r5, 0;
NEXT:
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.u32 %r6, [%rd4];
    add.u32 %r5, %r5, %r6;
    add.u32 %r4, %r4, %r3;
    bra NEXT;
DONE:
    mul.wide.u32 %rd5, %r2, 4;
    add.s64 %rd6, %rd2, %rd5;
    st.global.u32 [%rd6], %r5;
LEAVE:
    ret;
}

.visible .entry behind(.param .u64 word, .param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [out];
    mov.u32 %r2, %tid.x;
    setp.eq.u32 %p1, %r2, 99;
    @%p1 bra WRITE;
WAIT:
    ld.global.cg.u32 %r3, [%rd1];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra WAIT;
    mul.wide.u32 %rd5, %r2, 4;
    add.s64 %rd6, %rd2, %rd5;
    st.global.u32 [%rd6], %r3;
    bra LEAVE;
WRITE:
    st.global.u32 [%rd1], 7;
LEAVE:
    ret;
}
"#;

#[test]
fn threads_that_never_meet_catch_up_too() {
    let device = Device::load(ALONE);
    for count in [0u32, 99, 100, 801, 5000] {
        let table: Vec<u32> = (0..count).map(|i| i.wrapping_mul(2_654_435_761) >> 7).collect();
        let out = alloc(400);
        device.run("alone", 1, 100, Params::new().add(upload(&table)).add(count).add(out));
        let sum = |thread: u32| table.iter().skip(thread as usize).step_by(100).fold(0u32, |s, w| s.wrapping_add(*w));
        let expected = |thread: u32| if thread % 7 == 3 { 0 } else { sum(thread) };
        assert_eq!(download::<u32>(out, 100), (0..100).map(expected).collect::<Vec<_>>(), "{count} words");
    }
}

#[test]
fn who_catches_up_in_vain_lets_others_run() {
    let device = Device::load(ALONE);
    let (word, out) = (upload(&[0u32]), alloc(400));
    device.run("behind", 1, 100, Params::new().add(word).add(out));
    let expected: Vec<u32> = (0..100).map(|thread| if thread == 99 { 0 } else { 7 }).collect();
    assert_eq!(download::<u32>(out, 100), expected);
}

#[test]
fn neighbours_that_catch_up_lose_nothing() {
    let device = Device::load(STRIDES);
    let threads = 100u32;
    for count in [0u32, 1, 99, 100, 801, 5000] {
        let table: Vec<u32> = (0..count).map(|i| i.wrapping_mul(2_654_435_761) >> 7).collect();
        let out = alloc(400);
        let params = Params::new().add(upload(&table)).add(count).add(out);
        device.run("strides", 1, threads, params);
        let own = |thread: u32| table.iter().skip(thread as usize % 100).step_by(100);
        let sum = |thread: u32| own(thread).fold(0u32, |sum, word| sum.wrapping_add(*word));
        let again = |sum: u32, word: &u32| sum.wrapping_add(word.wrapping_mul(word & 31));
        let expected = |thread: u32| sum(thread + 1).wrapping_add(own(thread).fold(0, again));
        assert_eq!(download::<u32>(out, 100), (0..threads).map(expected).collect::<Vec<_>>(), "{count} words");
    }
}
