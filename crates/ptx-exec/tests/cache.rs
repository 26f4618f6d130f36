//! Compiled kernels on disk.

mod kernels;

use std::fs::OpenOptions;

use kernels::{Device, Params, alloc, download};
use ptx_exec::cache;

const TEXT: &str = r#"
.version 8.0
.target sm_75
.address_size 64

.func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r<2>;
    ld.param.u32 %r1, [value];
    add.u32 %r1, %r1, %r1;
    st.param.u32 [result], %r1;
    ret;
}

.visible .entry first(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    {
    .param .b32 given;
    .param .b32 returned;
    st.param.u32 [given], %r1;
    call (returned), twice, (given);
    ld.param.u32 %r2, [returned];
    }
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}

.visible .entry second(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 cells[256];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, cells;
    add.u32 %r2, %r2, %r3;
    st.shared.u32 [%r2], %r1;
    bar.sync 0;
    ld.shared.u32 %r2, [cells+252];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}

.visible .entry wrong(.param .u64 out)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    st.global.u32 [%rd1+1073741824], 1;
    ret;
}
"#;

/// What the kernels say, and the line of the one that fails.
fn results() -> (Vec<u32>, Vec<u32>, Option<u32>) {
    let device = Device::load(TEXT);
    let out = alloc(256);
    device.run("first", 1, 64, Params::new().add(out));
    let first = download::<u32>(out, 64);
    device.run("second", 1, 64, Params::new().add(out));
    let second = download::<u32>(out, 64);
    let fault = device.launch("wrong", [1, 1, 1], [1, 1, 1], 0, Params::new().add(out)).unwrap_err();
    (first, second, fault.line)
}

#[test]
fn a_module_that_was_seen_before_is_not_compiled_again() {
    let directory = testkit::directory();
    let path = directory.join("kernels");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    cache::keep_in(file);
    let made = results();
    assert_eq!(cache::found(), 0);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size > 0);
    let kept = results();
    assert_eq!(cache::found(), 3, "one for each kernel");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), size, "nothing was added");
    assert_eq!(made, kept);
    assert_eq!(made.0, (0..64).map(|i| 2 * i).collect::<Vec<u32>>());
    assert_eq!(made.1, vec![63; 64]);
    assert!(made.2.is_some(), "the line of a fault is kept too");
}
