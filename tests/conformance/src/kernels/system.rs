//! `system.cu`.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;

use super::device::{Kernels, args};
use crate::calls::code;

super::tests! {
    system_places,
    system_registers,
    system_clocks,
    system_printf,
    system_assert,
    system_trap,
    system_message,
    system_fences,
    system_null,
    system_out_of_bounds,
    system_misaligned,
    system_deep,
    system_stack_overflow,
    system_shared_bounds,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "system")
}

fn system_places(gpu: &Driver) {
    let kernels = load(gpu);
    let ([gx, gy, gz], [bx, by, bz]) = ([3u32, 2, 4], [5u32, 3, 2]);
    let count = (gx * gy * gz * bx * by * bz) as usize;
    let out = kernels.zeros::<[u32; 4]>(count);
    kernels.run_shaped("system_places", [gx, gy, gz], [bx, by, bz], 0, args![out]);
    for (at, result) in kernels.download::<u32>(out, count * 4).chunks(4).enumerate() {
        let at = at as u32;
        let (block, thread) = (at / (bx * by * bz), at % (bx * by * bz));
        let pack = |x: u32, y: u32, z: u32| x | y << 8 | z << 16;
        let expected = [
            pack(thread % bx, thread / bx % by, thread / bx / by),
            pack(block % gx, block / gx % gy, block / gx / gy),
            pack(bx, by, bz),
            pack(gx, gy, gz),
        ];
        assert_eq!(result, expected, "{at}");
    }
}

fn system_registers(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(96);
    kernels.run("system_registers", 1, 96, args![out]);
    assert_eq!(kernels.download::<u32>(out, 96), [7; 96]);
}

fn system_clocks(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u64>(4);
    kernels.run("system_clocks", 1, 1, args![out]);
    assert_eq!(kernels.download::<u64>(out, 4), [1; 4]);
}

/// What the process writes to its standard output while `body` runs.
fn captured(body: impl FnOnce()) -> String {
    let directory = testkit::directory();
    let options =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(directory.join("printed"));
    let mut file = options.expect("a file for the output");
    // SAFETY: plain calls on descriptors of our own.
    let kept = unsafe { libc::dup(1) };
    // SAFETY: as above.
    assert!(kept >= 0 && unsafe { libc::dup2(file.as_raw_fd(), 1) } == 1);
    body();
    // SAFETY: as above; the file of C's output is the process's own.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::dup2(kept, 1);
        libc::close(kept);
    }
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("what was printed");
    text
}

fn system_printf(gpu: &Driver) {
    let text = captured(|| {
        let kernels = load(gpu);
        let unused = kernels.zeros::<u8>(1);
        kernels.run("system_printf", 1, 3, args![42i32, 1.25f64, unused]);
    });
    for thread in 0..3 {
        let number = format!("{:5.2}", 1.25 + f64::from(thread));
        let line = format!("thread {thread} of 3: text {number} z -5000000000 2a %");
        assert!(text.lines().any(|printed| printed == line), "{line:?} is not in {text:?}");
    }
    assert!(text.contains("[42    |000042|+42|1.250000e+00|0x1234]"), "{text:?}");
    assert_eq!(text.lines().count(), 4);
}

/// The kernel ends with this code, and so does everything after it.
fn poisons(kernels: &Kernels, name: &str, threads: u32, args: super::device::Args, wanted: &[u32]) {
    let code = kernels.attempt(name, [1, 1, 1], [threads, 1, 1], 0, args);
    assert!(wanted.contains(&code), "{name} ended with {code} {}", cuda_abi::error::name(code));
    assert_eq!(code!(kernels.gpu, cuCtxSynchronize()), code, "the context stays broken");
    let mut pointer = 0;
    assert_eq!(code!(kernels.gpu, cuMemAlloc_v2(&mut pointer, 16)), code, "for every call");
}

fn system_assert(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(32);
    kernels.run("system_assert", 1, 32, args![out, 32u32]);
    poisons(&kernels, "system_assert", 32, args![out, 31u32], &[CUDA_ERROR_ASSERT]);
}

fn system_trap(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(32);
    kernels.run("system_trap", 1, 32, args![out, 32u32]);
    poisons(&kernels, "system_trap", 32, args![out, 5u32], &[CUDA_ERROR_LAUNCH_FAILED]);
}

fn system_message(gpu: &Driver) {
    let kernels = load(gpu);
    let (data, flag, out) = (kernels.zeros::<u32>(256), kernels.zeros::<u32>(1), kernels.zeros::<u32>(64));
    kernels.run("system_message", 2, 64, args![data, flag, out]);
    assert_eq!(kernels.download::<u32>(out, 64), [(0..256).map(|i| i * 3).sum::<u32>(); 64]);
}

fn system_fences(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(3);
    kernels.run("system_fences", 1, 1, args![out]);
    assert_eq!(kernels.download::<u32>(out, 3), [1, 2, 3]);
}

fn system_null(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(1);
    poisons(&kernels, "system_null", 1, args![out], &[CUDA_ERROR_ILLEGAL_ADDRESS]);
}

fn system_out_of_bounds(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(1);
    kernels.run("system_out_of_bounds", 1, 1, args![out, 0u64]);
    assert_eq!(kernels.download::<u32>(out, 1), [1]);
    poisons(&kernels, "system_out_of_bounds", 1, args![out, 1u64 << 40], &[CUDA_ERROR_ILLEGAL_ADDRESS]);
}

fn system_misaligned(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(2);
    kernels.run("system_misaligned", 1, 1, args![out, 4u32]);
    poisons(&kernels, "system_misaligned", 1, args![out, 2u32], &[CUDA_ERROR_MISALIGNED_ADDRESS]);
}

fn system_deep(gpu: &Driver) {
    // 20 calls deep is within the stack that threads have unless somebody asks for more.
    let kernels = load(gpu);
    let out = kernels.upload(&[1u32, 2, 3, 4, 0, 0]);
    let mut size = 0;
    assert_eq!(code!(gpu, cuCtxSetLimit(0, 16 << 10)), 0);
    assert_eq!(code!(gpu, cuCtxGetLimit(&mut size, 0)), 0);
    assert!(size >= 16 << 10);
    kernels.run("system_deep", 1, 1, args![out, 20u32]);
    fn dig(depth: u32) -> u32 {
        let local: Vec<u32> = (0..64).map(|i| i % 4 + 1 + depth).collect();
        if depth == 0 { local[1] } else { dig(depth - 1) + local[depth as usize & 63] }
    }
    assert_eq!(kernels.download::<u32>(out, 6)[5], dig(20));
}

fn system_stack_overflow(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.upload(&[1u32, 2, 3, 4, 0, 0]);
    let overflow = [
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_INVALID_PC,
    ];
    poisons(&kernels, "system_deep", 1, args![out, 1_000_000u32], &overflow);
}

fn system_shared_bounds(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(1);
    kernels.run("system_shared_bounds", 1, 32, args![out, 3u32]);
    assert_eq!(kernels.download::<u32>(out, 1), [1]);
    let wanted = [CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED];
    poisons(&kernels, "system_shared_bounds", 32, args![out, 1u32 << 20], &wanted);
}
