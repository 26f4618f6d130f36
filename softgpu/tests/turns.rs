//! Threads that run in turns between barriers.

mod kernels;

use kernels::{Device, Params, alloc, download};

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
