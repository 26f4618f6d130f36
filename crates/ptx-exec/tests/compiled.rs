//! Kernels as nvcc compiles them (tests/ptx/first.cu), against the same computation on the CPU.

mod kernels;

use kernels::{Device, Params, alloc, download, upload};
use ptx_exec::FaultKind;

fn device() -> Device {
    Device::load(include_str!("ptx/first.ptx"))
}

#[test]
fn saxpy() {
    let n = 100_003;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
    let y: Vec<f32> = (0..n).map(|i| i as f32 - 7.0).collect();
    let (dx, dy) = (upload(&x), upload(&y));
    device().run("saxpy", (n as u32).div_ceil(256), 256, Params::new().add(n as i32).add(2.5f32).add(dx).add(dy));
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.5f32.mul_add(*x, *y)).collect();
    assert_eq!(download::<f32>(dy, n), expected);
}

#[test]
fn reduction_with_barriers() {
    let n = 10_000;
    let x: Vec<f32> = (0..n).map(|i| (i % 17) as f32).collect();
    let (dx, out) = (upload(&x), upload(&[0.0f32]));
    device().run("reduce", 7, 256, Params::new().add(dx).add(out).add(n));
    assert_eq!(download::<f32>(out, 1)[0], x.iter().sum::<f32>());
}

#[test]
fn tiled_matrix_product() {
    let n = 64usize;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 13) as f32).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let (da, db, dc) = (upload(&a), upload(&b), alloc((n * n * 4) as u64));
    let params = Params::new().add(da).add(db).add(dc).add(n as i32);
    device().launch("matmul", [4, 4, 1], [16, 16, 1], 0, params).unwrap();
    let c = download::<f32>(dc, n * n);
    for y in 0..n {
        for x in 0..n {
            let expected: f32 = (0..n).map(|k| a[y * n + k] * b[k * n + x]).sum();
            assert_eq!(c[y * n + x], expected, "{y} {x}");
        }
    }
}

#[test]
fn printf_and_assert() {
    let device = device();
    device.run("hello", 1, 1, Params::new().add(3i32));
    assert_eq!(device.text(), "hello 3 str 4.500000 1234567890123\n");
    let fault = device.launch("hello", [1, 1, 1], [1, 1, 1], 0, Params::new().add(9i32)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Assert);
    assert!(fault.message.contains("Assertion `k<5` failed"), "{fault}");
}

#[test]
fn local_memory_recursion_and_variables() {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct S {
        a: [i32; 5],
        d: f64,
    }
    let s = S { a: [3, 1, 4, 1, 5], d: 2.75 };
    let n = 13;
    let out = alloc(64 * 4);
    device().run("misc", 1, 64, Params::new().add(s).add(out).add(n));
    let mut local = [0i32; 16];
    for i in 0..n {
        local[(i & 15) as usize] = i * s.a[(i % 5) as usize];
    }
    let rest = [1, 2, 3, 4][(n & 3) as usize] + [1, 2, 3][(n % 3) as usize] + 233;
    let got = download::<i32>(out, 64);
    for (thread, got) in got.iter().enumerate() {
        if (thread & 15) < n as usize {
            assert_eq!(*got, (f64::from(local[thread & 15] + rest) + s.d) as i32, "{thread}");
        }
    }
}

#[test]
fn shuffles_and_votes() {
    let out = alloc(64 * 4);
    device().run("warp", 1, 64, Params::new().add(out));
    let got = download::<u32>(out, 64);
    for warp in 0..2 {
        let mut v: Vec<u32> = (0..32).map(|lane| warp * 32 + lane).collect();
        for k in [16, 8, 4, 2, 1] {
            v = (0..32).map(|i| v[i] + if i + k < 32 { v[i + k] } else { v[i] }).collect();
        }
        let ballot = (0..32).filter(|i| v[*i] & 1 == 1).fold(0u32, |mask, i| mask | 1 << i);
        for lane in 0..32 {
            let expected = v[lane].wrapping_add(ballot).wrapping_add(u32::MAX);
            assert_eq!(got[warp as usize * 32 + lane], expected, "{warp} {lane}");
        }
    }
}

#[test]
fn indirect_calls() {
    let out = alloc(32 * 4);
    let device = device();
    device.run("indirect", 1, 32, Params::new().add(out).add(0i32));
    assert_eq!(download::<i32>(out, 32), (1..33).collect::<Vec<_>>());
    device.run("indirect", 1, 32, Params::new().add(out).add(1i32));
    assert_eq!(download::<i32>(out, 32), (0..32).map(|i| i * 2).collect::<Vec<_>>());
}

#[test]
fn branches() {
    let data: Vec<i32> = (0..8).collect();
    let d = upload(&data);
    device().launch("sw", [1, 1, 1], [1, 1, 1], 0, Params::new().add(d).add(5i32)).unwrap();
    assert_eq!(download::<i32>(d, 1), [8]);
    let d = upload(&data);
    device().run("sw", 1, 8, Params::new().add(d).add(7i32));
    assert_eq!(download::<i32>(d, 8), [10, 49, 7 ^ 55, 0, 7, 56, 3, 7]);
}

#[test]
fn mathematics() {
    let x: Vec<f32> = (1..33).map(|i| i as f32 * 0.3).collect();
    let d: Vec<f64> = (1..33).map(|i| f64::from(i) * 0.7).collect();
    let (dx, dd) = (upload(&x), upload(&d));
    device().run("mathk", 1, 32, Params::new().add(dx).add(dd));
    for (got, x) in download::<f32>(dx, 32).iter().zip(&x) {
        let expected = x.sin() + x.exp() + x.powf(2.5) + x / 3.0 + 1.0 / x.sqrt() + x.sin();
        assert!((got - expected).abs() <= expected.abs() * 1e-5, "{x}: {got} {expected}");
    }
    for (got, d) in download::<f64>(dd, 32).iter().zip(&d) {
        let expected = d.exp() / d.sqrt() + d.sin();
        assert!((got - expected).abs() <= expected.abs() * 1e-13, "{d}: {got} {expected}");
    }
}

#[test]
fn atomics_of_all_kinds() {
    let x: Vec<i32> = (0..64).collect();
    let (dx, h, u, d) = (upload(&x), upload(&[0i32, 0, 0, 0, 1, 0]), upload(&[0u64]), upload(&[0.0f64]));
    let params = Params::new().add(h).add(dx).add(u).add(d).add(64i32);
    device().launch("atom", [8, 1, 1], [64, 1, 1], 64 * 4, params).unwrap();
    let h = download::<i32>(h, 6);
    assert_eq!(&h[..4], [4, 4, 4, 4]);
    assert_eq!(h[5], (8 * 64) % 8);
    assert_eq!(download::<u64>(u, 1), [5 * 8 * 64]);
    assert_eq!(download::<f64>(d, 1), [1.5 * 8.0 * 64.0]);
}
