//! Kernels with one mistake each, and the same without it.

use ptx_exec::Check::{self, Init, Races, Sync};

/// `@` in the text stands for what makes it wrong, or right.
pub struct Case {
    pub name: &'static str,
    pub check: Check,
    pub blocks: u32,
    pub threads: u32,
    pub text: &'static str,
    pub bug: &'static str,
    pub good: &'static str,
}

/// Before each kernel's text: `%t` the thread, `%w` its lane; `%mine`, `%next`, `%far`, `%cells`: words of shared memory, of the thread, of the one
/// behind it, and of one in another warp; `%data` is written memory, `%g` and `%gnext` words in it of the thread and of the one behind it;
/// nobody has written to `%raw` but to its first 256 bytes.
pub const PROLOGUE: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 data, .param .u64 raw)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>, %t, %w, %b, %n, %mine, %next, %far, %cells;
    .reg .b64 %rd<16>, %data, %raw, %g, %gnext;
    .reg .b16 %h<4>;
    .shared .align 16 .b8 cells[4096];
    ld.param.u64 %data, [data];
    ld.param.u64 %raw, [raw];
    mov.u32 %t, %tid.x;
    mov.u32 %w, %laneid;
    mov.u32 %b, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mov.u32 %cells, cells;
    mad.lo.u32 %mine, %t, 4, %cells;
    add.u32 %r0, %t, 1;
    rem.u32 %r0, %r0, %n;
    mad.lo.u32 %next, %r0, 4, %cells;
    add.u32 %r1, %t, 32;
    rem.u32 %r1, %r1, %n;
    mad.lo.u32 %far, %r1, 4, %cells;
    mad.lo.u32 %r2, %b, %n, %t;
    mul.wide.u32 %rd0, %r2, 4;
    add.u64 %g, %data, %rd0;
    mad.lo.u32 %r2, %b, %n, %r0;
    mul.wide.u32 %rd0, %r2, 4;
    add.u64 %gnext, %data, %rd0;
    setp.ne.u32 %p0, %t, 0;
    setp.ge.u32 %p1, %t, 32;
"#;

pub const EPILOGUE: &str = "\nDONE:\n    ret;\n}\n";

const fn case(
    name: &'static str,
    check: Check,
    (blocks, threads): (u32, u32),
    text: &'static str,
    bug: &'static str,
    good: &'static str,
) -> Case {
    Case { name, check, blocks, threads, text, bug, good }
}

/// Of shared memory, and of lanes and warps of one block.
const IN_A_BLOCK: &[Case] = &[
    case(
        "a warp reads what another wrote",
        Races,
        (1, 64),
        "st.shared.u32 [%mine], %t; @ ld.shared.u32 %r5, [%far];",
        "",
        "bar.sync 0;",
    ),
    case(
        "a lane reads what another wrote",
        Races,
        (1, 32),
        "st.shared.u32 [%mine], %t; @ ld.shared.u32 %r5, [%next];",
        "",
        "bar.warp.sync -1;",
    ),
    case(
        "a warp writes what another reads",
        Races,
        (1, 64),
        "st.shared.u32 [%mine], %t; bar.sync 0; ld.shared.u32 %r5, [%far]; @ st.shared.u32 [%mine], %r5;",
        "",
        "bar.sync 0;",
    ),
    case("all write one word", Races, (1, 64), "@ st.shared.u32 [%cells], %t;", "", "@%p0 bra DONE;"),
    case(
        "a step of a reduction without its barrier",
        Races,
        (1, 128),
        "st.shared.u32 [%mine], %t; bar.sync 0; setp.ge.u32 %p2, %t, 64; @%p2 bra A; ld.shared.u32 %r5, [%mine+256]; st.shared.u32 [%mine], %r5; A: @ setp.ge.u32 %p2, %t, 32; @%p2 bra DONE; ld.shared.u32 %r5, [%mine+128]; st.shared.u32 [%mine], %r5;",
        "",
        "bar.sync 0;",
    ),
    case(
        "a buffer used again too early",
        Races,
        (1, 64),
        "st.shared.u32 [%mine], %t; bar.sync 0; ld.shared.u32 %r5, [%far]; @ st.shared.u32 [%mine], 7; bar.sync 0; ld.shared.u32 %r5, [%far];",
        "",
        "bar.sync 0;",
    ),
    case(
        "a word of which another wrote a byte",
        Races,
        (1, 64),
        "st.shared.u32 [%mine], %t; bar.sync 0; st.shared.u8 [%mine+1], %t; @ ld.shared.u32 %r5, [%far];",
        "",
        "bar.sync 0;",
    ),
    case(
        "a vector over words of others",
        Races,
        (1, 64),
        "st.shared.u32 [%mine], 9; @ mad.lo.u32 %r6, %t, 16, %cells; st.shared.v4.u32 [%r6], {%t, %t, %t, %t};",
        "",
        "bar.sync 0;",
    ),
    case(
        "a barrier of the warp for two warps",
        Races,
        (1, 64),
        "st.shared.u32 [%mine], %t; @ ld.shared.u32 %r5, [%far];",
        "bar.warp.sync -1;",
        "bar.sync 0;",
    ),
    case(
        "a mask of half a warp",
        Races,
        (1, 32),
        "st.shared.u32 [%mine], %t; setp.lt.u32 %p2, %t, 16; selp.u32 %r6, 0xffff, 0xffff0000, %p2; @ ld.shared.u32 %r5, [%next];",
        "bar.warp.sync %r6;",
        "bar.warp.sync -1;",
    ),
    case(
        "a barrier of half a block",
        Races,
        (1, 128),
        "st.shared.u32 [%mine], %t; shr.u32 %r6, %t, 6; add.u32 %r6, %r6, 1; @ add.u32 %r7, %t, 64; rem.u32 %r7, %r7, 128; mad.lo.u32 %r7, %r7, 4, %cells; ld.shared.u32 %r5, [%r7];",
        "bar.sync %r6, 64;",
        "bar.sync 1, 128;",
    ),
    case(
        "a consumer that does not wait",
        Races,
        (1, 64),
        "@%p1 bra C; st.shared.u32 [%mine], %t; bar.arrive 1, 64; bra DONE; C: @ ld.shared.u32 %r5, [%far];",
        "bar.arrive 1, 64;",
        "bar.sync 1, 64;",
    ),
    case(
        "nothing where a shuffle would order",
        Races,
        (1, 32),
        "st.shared.u32 [%mine], %t; @ ld.shared.u32 %r5, [%next];",
        "",
        "shfl.sync.idx.b32 %r5, %t, 0, 31, -1;",
    ),
    case(
        "a sum read while others add",
        Races,
        (1, 64),
        "@%p0 bra A; st.shared.u32 [%cells], 0; A: bar.sync 0; red.shared.add.u32 [%cells], 1; @ ld.shared.u32 %r5, [%cells];",
        "",
        "bar.sync 0;",
    ),
    case(
        "a flag that is an ordinary word",
        Races,
        (1, 64),
        "setp.gt.u32 %p2, %t, 32; @%p2 bra DONE; @%p0 bra C; st.shared.u32 [%cells+64], 5; @ bra DONE; C: setp.ne.u32 %p2, %t, 32; @%p2 bra DONE; ld.volatile.shared.u32 %r5, [%cells]; ld.shared.u32 %r5, [%cells+64];",
        "st.shared.u32 [%cells], 1;",
        "st.volatile.shared.u32 [%cells], 1;",
    ),
    case(
        "a generic address of shared memory",
        Races,
        (1, 64),
        "cvta.shared.u64 %rd5, 0; cvt.u64.u32 %rd6, %mine; add.u64 %rd5, %rd5, %rd6; st.u32 [%rd5], %t; @ ld.shared.u32 %r5, [%far];",
        "",
        "bar.sync 0;",
    ),
    case(
        "an asynchronous copy that others read",
        Races,
        (1, 64),
        "cp.async.ca.shared.global [%mine], [%g], 4; cp.async.wait_all; @ ld.shared.u32 %r5, [%far];",
        "",
        "bar.sync 0;",
    ),
    case(
        "a lock that is none",
        Races,
        (1, 64),
        "@%p0 bra A; st.shared.u32 [%cells], 0; st.shared.u32 [%cells+4], 0; A: bar.sync 0; @ ld.shared.u32 %r5, [%cells]; add.u32 %r5, %r5, %t; st.shared.u32 [%cells], %r5; st.volatile.shared.u32 [%cells+4], 0;",
        "",
        "atom.shared.exch.b32 %r6, [%cells+4], 1;",
    ),
];

const OF_GLOBAL_MEMORY: &[Case] = &[
    case(
        "a block reads what another wrote",
        Races,
        (2, 32),
        "st.global.u32 [%g], %b; @ ld.global.u32 %r5, [%data+4];",
        "",
        "setp.ne.u32 %p2, %b, 0; @%p2 bra DONE; bar.sync 0;",
    ),
    case(
        "a thread reads what another wrote",
        Races,
        (1, 64),
        "st.global.u32 [%g], %t; @ ld.global.u32 %r5, [%gnext];",
        "",
        "bar.sync 0;",
    ),
    case(
        "blocks write one word",
        Races,
        (2, 1),
        "add.u32 %r5, %b, 1; @",
        "st.global.u32 [%data], %r5;",
        "st.global.u32 [%g], %r5;",
    ),
    case(
        "a histogram without atomics",
        Races,
        (2, 32),
        "and.b32 %r5, %t, 7; mul.wide.u32 %rd5, %r5, 4; add.u64 %rd5, %data, %rd5; @",
        "ld.global.u32 %r6, [%rd5]; add.u32 %r6, %r6, 1; st.global.u32 [%rd5], %r6;",
        "red.global.add.u32 [%rd5], 1;",
    ),
    case(
        "a flag between blocks that is an ordinary word",
        Races,
        (2, 1),
        "setp.ne.u32 %p2, %b, 0; @%p2 bra C; st.global.u32 [%data+64], 5; membar.gl; @ bra DONE; C: ld.acquire.gpu.global.u32 %r5, [%data+128]; ld.global.u32 %r5, [%data+64];",
        "st.global.u32 [%data+128], 1;",
        "st.release.gpu.global.u32 [%data+128], 1;",
    ),
    case(
        "the last block by an ordinary counter",
        Races,
        (4, 1),
        "st.global.u32 [%g+256], %b; membar.gl; @ setp.ne.u32 %p2, %r5, 3; @%p2 bra DONE; ld.global.u32 %r6, [%data+256];",
        "ld.global.u32 %r5, [%data]; add.u32 %r6, %r5, 1; st.global.u32 [%data], %r6;",
        "atom.global.add.u32 %r5, [%data], 1;",
    ),
    case(
        "an atomic and an ordinary write",
        Races,
        (2, 1),
        "setp.ne.u32 %p2, %b, 0; @%p2 bra C; @ bra DONE; C: red.global.add.u32 [%data], 1;",
        "st.global.u32 [%data], 5;",
        "red.global.add.u32 [%data], 5;",
    ),
    case(
        "halves that blocks write at an odd place",
        Races,
        (2, 1),
        "mul.wide.u32 %rd5, %b, 2; add.u64 %rd5, %data, %rd5; cvt.u16.u32 %h1, %b; add.u16 %h1, %h1, 3; st.global.u16 [%rd5], %h1; @",
        "ld.global.u32 %r5, [%data];",
        "ld.global.u16 %h2, [%rd5];",
    ),
];

const OF_WHAT_NOBODY_WROTE: &[Case] = &[
    case("device memory", Init, (1, 1), "@ ld.global.u32 %r5, [%raw+1024];", "", "st.global.u32 [%raw+1024], 1;"),
    case(
        "half of a word",
        Init,
        (1, 1),
        "@ ld.global.u32 %r5, [%raw+1024];",
        "mov.u16 %h1, 1; st.global.u16 [%raw+1024], %h1;",
        "mov.u16 %h1, 1; st.global.u16 [%raw+1024], %h1; st.global.u16 [%raw+1026], %h1;",
    ),
    case(
        "one word beyond what the host copied",
        Init,
        (1, 64),
        "mul.wide.u32 %rd5, %t, 4; add.u64 %rd5, %raw, %rd5; @",
        "ld.global.u32 %r5, [%rd5+4];",
        "ld.global.u32 %r5, [%rd5];",
    ),
    case("shared memory", Init, (1, 32), "@ ld.shared.u32 %r5, [%mine];", "", "st.shared.u32 [%mine], 0;"),
    case(
        "shared memory that half of the threads wrote",
        Init,
        (1, 64),
        "@%p1 bra A; st.shared.u32 [%mine], 1; A: bar.sync 0; @ ld.shared.u32 %r5, [%mine];",
        "",
        "@%p1 bra DONE;",
    ),
    case(
        "a counter in device memory",
        Init,
        (1, 1),
        "@ red.global.add.u32 [%raw+1024], 1;",
        "",
        "st.global.u32 [%raw+1024], 0;",
    ),
    case(
        "a counter in shared memory",
        Init,
        (1, 64),
        "@%p0 bra A; @ A: bar.sync 0; atom.shared.add.u32 %r5, [%cells], 1;",
        "",
        "st.shared.u32 [%cells], 0;",
    ),
    case(
        "the end of a vector",
        Init,
        (1, 1),
        "@ ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%raw+1024];",
        "st.global.v2.u32 [%raw+1024], {%t, %t}; st.global.u32 [%raw+1032], 1;",
        "st.global.v4.u32 [%raw+1024], {%t, %t, %t, %t};",
    ),
    case(
        "through a generic address",
        Init,
        (1, 1),
        "cvta.global.u64 %rd5, %raw; @ ld.u8 %r5, [%rd5+1024];",
        "",
        "st.u8 [%rd5+1024], %t;",
    ),
    case(
        "by an asynchronous copy",
        Init,
        (1, 1),
        "cp.async.ca.shared.global [%mine], [%raw+@], 4; cp.async.wait_all;",
        "1024",
        "0",
    ),
    case(
        "what another block would have written",
        Init,
        (2, 1),
        "setp.ne.u32 %p2, %b, 0; @%p2 bra C; @ bra DONE; C: st.global.u32 [%raw+1024], 1;",
        "ld.volatile.global.u32 %r5, [%raw+1024];",
        "ld.volatile.global.u32 %r5, [%raw+128];",
    ),
];

const OF_BARRIERS: &[Case] = &[
    case(
        "a barrier in each branch",
        Sync,
        (1, 32),
        "setp.lt.u32 %p2, %t, 16; @",
        "@%p2 bra A; bar.sync 0; bra B; A: bar.sync 0; B:",
        "bar.sync 0;",
    ),
    case(
        "threads that return early",
        Sync,
        (1, 64),
        "setp.gt.u32 %p2, %t, 40; @ bar.sync 0;",
        "@%p2 bra DONE;",
        "@%p2 bra A; A:",
    ),
    case(
        "lanes that return before a shuffle",
        Sync,
        (1, 32),
        "setp.gt.u32 %p2, %t, 20; @",
        "@%p2 bra DONE; shfl.sync.idx.b32 %r5, %t, 0, 31, -1;",
        "shfl.sync.idx.b32 %r5, %t, 0, 31, -1;",
    ),
    case("a mask without its caller", Sync, (1, 32), "@", "bar.warp.sync 0xfffffffe;", "bar.warp.sync 0xffffffff;"),
    case(
        "a shuffle without its caller",
        Sync,
        (1, 32),
        "setp.ge.u32 %p2, %t, 16; @%p2 bra DONE; @",
        "shfl.sync.down.b32 %r5, %t, 1, 31, 0x7fff;",
        "shfl.sync.down.b32 %r5, %t, 1, 31, 0xffff;",
    ),
    case(
        "a vote without its caller",
        Sync,
        (1, 32),
        "@",
        "vote.sync.ballot.b32 %r5, %p0, 0x0000ffff;",
        "vote.sync.ballot.b32 %r5, %p0, 0xffffffff;",
    ),
    case("a barrier for 40 threads", Sync, (1, 64), "@", "bar.sync 1, 40;", "bar.sync 1, 64;"),
    case(
        "threads at different barriers",
        Sync,
        (1, 64),
        "setp.lt.u32 %p2, %t, 32; @%p2 bra A; bar.sync 1; bra DONE; A: @",
        "bar.sync 2;",
        "bar.sync 1;",
    ),
    case(
        "lanes that return before others meet",
        Sync,
        (1, 32),
        "@ bar.warp.sync -1;",
        "setp.eq.u32 %p2, %t, 31; @%p2 bra DONE;",
        "",
    ),
    case(
        "a loop that some threads go through more often",
        Sync,
        (1, 32),
        "and.b32 %r5, %t, 1; mov.u32 %r6, 0; L: bar.sync 0; add.u32 %r6, %r6, 1; @ @%p2 bra L; bar.sync 0; ",
        "setp.le.u32 %p2, %r6, %r5;",
        "setp.le.u32 %p2, %r6, 1;",
    ),
    case(
        "a barrier that reduces, in each branch",
        Sync,
        (1, 32),
        "setp.lt.u32 %p2, %t, 16; @ bar.sync 0;",
        "@%p2 bra A; bar.red.popc.u32 %r5, 0, %p0; bra B; A: bar.red.popc.u32 %r5, 0, %p1; B:",
        "bar.red.popc.u32 %r5, 0, %p2;",
    ),
    case(
        "a match without its caller",
        Sync,
        (1, 32),
        "@",
        "match.any.sync.b32 %r5, %t, 0xfffffff0;",
        "match.any.sync.b32 %r5, %t, -1;",
    ),
    case(
        "a reduction of lanes without its caller",
        Sync,
        (1, 32),
        "@",
        "redux.sync.add.u32 %r5, %t, 0x0fffffff;",
        "redux.sync.add.u32 %r5, %t, -1;",
    ),
];

pub fn all() -> impl Iterator<Item = &'static Case> {
    [IN_A_BLOCK, OF_GLOBAL_MEMORY, OF_WHAT_NOBODY_WROTE, OF_BARRIERS].into_iter().flatten()
}
