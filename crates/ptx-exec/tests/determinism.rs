//! One thread computes: then the same program does the same things in the same order each time.

mod kernels;

use kernels::{Device, Params, alloc, download};

/// Threads of many blocks put their numbers into a list, in the order in which they come by; each also adds a float to one
/// sum, whose rounding depends on the order.
const TEXT: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.visible .entry order(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 cell[4];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    st.shared.u32 [cell], %r1;
    bar.sync 0;
    shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1;
    atom.global.add.u32 %r6, [%rd1], 1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3+8], %r5;
    cvt.rn.f32.u32 %f1, %r4;
    sqrt.rn.f32 %f1, %f1;
    red.global.add.f32 [%rd1+4], %f1;
    ret;
}
"#;

const BLOCKS: u32 = 200;
const THREADS: u32 = 64;

fn once(device: &Device) -> Vec<u32> {
    let count = (BLOCKS * THREADS) as usize + 2;
    let out = alloc(count as u64 * 4);
    device.run("order", BLOCKS, THREADS, Params::new().add(out));
    download(out, count)
}

#[test]
fn one_thread_gives_one_order() {
    // SAFETY: the only test of this process, before anything of the library runs.
    unsafe { std::env::set_var("BULKHEAD_SOFT_THREADS", "1") };
    let device = Device::load(TEXT);
    let first = once(&device);
    let order: Vec<u32> = first[2..].chunks(THREADS as usize).map(|block| block[0] / THREADS).collect();
    assert_eq!(order, (0..BLOCKS).collect::<Vec<_>>(), "blocks run in their order");
    for _ in 0..20 {
        assert_eq!(once(&device), first);
    }
    assert_eq!(once(&Device::load(TEXT)), first, "also when it is compiled again");
}
