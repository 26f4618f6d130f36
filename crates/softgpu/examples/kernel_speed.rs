//! How fast kernels run here, beside the same work in plain Rust, in one process.
//! `cargo run --release -p softgpu --example kernel_speed`

#[path = "../../ptx-exec/tests/kernels/mod.rs"]
mod kernels;

use std::ptr::null_mut;
use std::time::Instant;

use kernels::{Device, Params, alloc, upload};
use ptx_exec::Module;

/// Time that all threads of this process have spent on a processor: what counts when the machine has other work.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The shortest of several runs, in seconds; in processor time when `BENCH_CPU_TIME` is set.
fn best(runs: u32, mut body: impl FnMut()) -> f64 {
    let by_processor = std::env::var_os("BENCH_CPU_TIME").is_some();
    let time = |_| {
        let (start, spent) = (Instant::now(), processor_time());
        body();
        if by_processor { processor_time() - spent } else { start.elapsed().as_secs_f64() }
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

fn saxpy(device: &Device) {
    let n = 16 << 20;
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let mut y = vec![1.0f32; n];
    let (dx, dy) = (upload(&x), upload(&y));
    let plain = best(10, || {
        for (y, x) in y.iter_mut().zip(&x) {
            *y += 2.5 * *x;
        }
        std::hint::black_box(&y);
    });
    let kernel = best(10, || {
        device.run("saxpy", n as u32 / 256, 256, Params::new().add(n as i32).add(2.5f32).add(dx).add(dy));
    });
    println!(
        "saxpy 16 Mi: plain loop {:.1} ms, kernel {:.1} ms, ratio {:.2}",
        plain * 1e3,
        kernel * 1e3,
        kernel / plain
    );
}

fn matmul(device: &Device) {
    let n = 1024u32;
    let bytes = u64::from(n * n * 4);
    let (a, b, c) = (alloc(bytes), alloc(bytes), alloc(bytes));
    let seconds = best(2, || {
        let params = Params::new().add(a).add(b).add(c).add(n);
        device.launch("matmul", [n / 16, n / 16, 1], [16, 16, 1], 0, params).unwrap();
    });
    let gflops = 2.0 * f64::from(n).powi(3) / seconds / 1e9;
    println!("matmul 1024^3 in 16x16 tiles: {:.0} ms, {gflops:.2} GFLOP/s", seconds * 1e3);
}

fn launches(device: &Device) {
    let x = alloc(4096);
    let seconds = best(3, || {
        for _ in 0..10_000 {
            device.run("saxpy", 1, 1, Params::new().add(0i32).add(2.5f32).add(x).add(x));
        }
    });
    println!("empty launch: {:.2} us for one block", seconds * 1e2);
    let seconds = best(3, || {
        for _ in 0..10_000 {
            device.run("saxpy", 64, 32, Params::new().add(0i32).add(2.5f32).add(x).add(x));
        }
    });
    println!("empty launch: {:.2} us for 64 blocks", seconds * 1e2);
}

/// The same through the driver: what a program pays until the last of a hundred thousand is done.
fn driver_launches(text: &str) {
    let gpu = softgpu::driver(softgpu::Config { devices: 1, memory: 256 << 20 });
    let text = std::ffi::CString::new(text).unwrap();
    let (mut context, mut module, mut function) = (null_mut(), null_mut(), null_mut());
    let (count, scale, vector): (i32, f32, u64) = (0, 2.5, 0);
    let mut params: [*mut std::ffi::c_void; 4] = [
        (&raw const count).cast_mut().cast(),
        (&raw const scale).cast_mut().cast(),
        (&raw const vector).cast_mut().cast(),
        (&raw const vector).cast_mut().cast(),
    ];
    let check = |code: u32| assert_eq!(code, 0);
    // SAFETY: every pointer leads to a local that outlives the call.
    unsafe {
        check((gpu.cuInit)(0));
        check((gpu.cuCtxCreate_v2)(&mut context, 0, 0));
        check((gpu.cuModuleLoadData)(&mut module, text.as_ptr().cast()));
        check((gpu.cuModuleGetFunction)(&mut function, module, c"_Z5saxpyifPKfPf".as_ptr()));
    }
    let seconds = best(3, || {
        for _ in 0..100_000 {
            let (list, none) = (params.as_mut_ptr(), null_mut());
            // SAFETY: as above.
            check(unsafe { (gpu.cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), list, none) });
        }
        // SAFETY: a plain call.
        check(unsafe { (gpu.cuCtxSynchronize)() });
    });
    println!("100,000 empty launches through the driver: {:.0} ms", seconds * 1e3);
}

/// What it costs to look whose memory each access touches: the same kernels, as text that says which lines it comes from
/// and as text that does not, in turn.
fn checks(text: &str) {
    let gpu = softgpu::driver(softgpu::Config { devices: 1, memory: 256 << 20 });
    let lines = text.replacen("ld.param", ".loc 1 1 1\n\tld.param", 1) + "\n.file 1 \"first.cu\"\n";
    let check = |code: u32| assert_eq!(code, 0);
    let functions = [text, &lines].map(|text| {
        let text = std::ffi::CString::new(text).unwrap();
        let (mut context, mut module, mut saxpy, mut matmul) = (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: every pointer leads to a local that outlives the call.
        unsafe {
            check((gpu.cuInit)(0));
            check((gpu.cuDevicePrimaryCtxRetain)(&mut context, 0));
            check((gpu.cuCtxSetCurrent)(context));
            check((gpu.cuModuleLoadData)(&mut module, text.as_ptr().cast()));
            check((gpu.cuModuleGetFunction)(&mut saxpy, module, c"_Z5saxpyifPKfPf".as_ptr()));
            check((gpu.cuModuleGetFunction)(&mut matmul, module, c"_Z6matmulPKfS0_Pfi".as_ptr()));
        }
        (saxpy, matmul)
    });
    let memory = [(); 3].map(|()| {
        let mut address = 0u64;
        // SAFETY: the output is a local.
        check(unsafe { (gpu.cuMemAlloc_v2)(&mut address, 64 << 20) });
        address
    });
    let run = |function, grid: [u32; 2], block: [u32; 2], params: &[u64]| {
        let mut list: Vec<_> = params.iter().map(|value| std::ptr::from_ref(value).cast_mut().cast()).collect();
        let ([gx, gy], [bx, by], none) = (grid, block, null_mut());
        // SAFETY: parameters of at most a word each, in the order of the kernel's.
        unsafe {
            check((gpu.cuLaunchKernel)(function, gx, gy, 1, bx, by, 1, 0, null_mut(), list.as_mut_ptr(), none));
            check((gpu.cuCtxSynchronize)());
        }
    };
    let [a, b, c] = memory;
    let count = 16u64 << 20;
    let half = u64::from(2.5f32.to_bits());
    let (mut saxpy, mut matmul) = ([f64::INFINITY; 2], [f64::INFINITY; 2]);
    for _ in 0..5 {
        for (at, (one, other)) in functions.iter().enumerate() {
            let blocks = (count / 256) as u32;
            saxpy[at] = saxpy[at].min(best(2, || run(*one, [blocks, 1], [256, 1], &[count, half, a, b])));
            matmul[at] = matmul[at].min(best(1, || run(*other, [64, 64], [16, 16], &[a, b, c, 1024])));
        }
    }
    for (name, [without, with]) in [("saxpy 16 Mi", saxpy), ("matmul 1024^3", matmul)] {
        let (without, with) = (without * 1e3, with * 1e3);
        println!("{name}: {without:.1} ms, with every access checked {with:.1} ms, ratio {:.2}", with / without);
    }
}

fn shuffles(device: &Device) {
    let out = alloc(4096);
    let seconds = best(3, || device.run("warp", 4096, 256, Params::new().add(out)));
    let operations = 4096.0 * 256.0 * 7.0;
    println!("warp operations: {:.1} ns per lane", seconds / operations * 1e9);
}

fn compiling(text: &str) {
    let lines = text.lines().count();
    let seconds = best(3, || {
        Module::from_ptx(text).unwrap();
    });
    println!("parse and check {lines} lines: {:.1} ms", seconds * 1e3);
    let seconds = best(3, || {
        let device = Device::load(text);
        for kernel in 0..device.program.module().kernels().len() {
            device.program.compile(kernel).unwrap();
        }
    });
    println!("load and compile {lines} lines: {:.1} ms", seconds * 1e3);
}

fn main() {
    let text = include_str!("../../ptx-exec/tests/ptx/first.ptx");
    let device = Device::load(text);
    compiling(text);
    // As large as a library's kernels: the same functions under other names.
    let renamed = |copy: usize| {
        text.replace("_Z", &format!("_Z{copy}z")).replace("__internal_", &format!("__internal_{copy}_"))
    };
    let large = (1..=3).fold(text.to_owned(), |all, copy| all + &renamed(copy));
    compiling(&large);
    saxpy(&device);
    matmul(&device);
    launches(&device);
    driver_launches(text);
    shuffles(&device);
    checks(text);
}
