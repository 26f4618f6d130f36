//! More kernels as nvcc compiles them (tests/ptx/second.cu and half.cu): arithmetic of all widths, mathematics,
//! virtual functions, cooperative groups, scans, halves.

mod kernels;

use half::{bf16, f16};
use kernels::{Device, Params, alloc, download, upload};

fn device() -> Device {
    Device::load(include_str!("ptx/second.ptx"))
}

macro_rules! arithmetic {
    ($test:ident, $kernel:literal, $ty:ty) => {
        #[test]
        fn $test() {
            let device = device();
            let values: [$ty; 9] =
                [0, 1, 2, 7, 100, <$ty>::MAX, <$ty>::MIN, <$ty>::MAX / 3, <$ty>::MIN.wrapping_add(1)];
            for a in values {
                for b in values {
                    let out = alloc(14 * size_of::<$ty>() as u64);
                    device.run($kernel, 1, 1, Params::new().add(out).add(a).add(b));
                    // C computes in int what is narrower, which shows only in shifts and divisions.
                    let amount = (b & 7) as u32;
                    let expected = [
                        a.wrapping_add(b),
                        a.wrapping_sub(b),
                        a.wrapping_mul(b),
                        if b == 0 { 0 } else { a.wrapping_div(b) },
                        if b == 0 { 0 } else { a.wrapping_rem(b) },
                        a >> amount,
                        a << amount,
                        a & b,
                        a ^ b,
                        !a,
                        a.min(b),
                        a.max(b),
                        <$ty>::from(a < b),
                        a.wrapping_neg(),
                    ];
                    assert_eq!(download::<$ty>(out, 14), expected, "{a} {b}");
                }
            }
        }
    };
}

arithmetic!(arithmetic_i32, "arithIiE", i32);
arithmetic!(arithmetic_u32, "arithIjE", u32);
arithmetic!(arithmetic_i64, "arithIxE", i64);
arithmetic!(arithmetic_u64, "arithIyE", u64);
arithmetic!(arithmetic_i16, "arithIsE", i16);
arithmetic!(arithmetic_u8, "arithIhE", u8);
arithmetic!(arithmetic_i8, "arithIaE", i8);

#[test]
fn intrinsics() {
    let device = device();
    let values = [0u32, 1, 5, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 0xdead_beef, 0x7fff_ffff, 0x3f80_0000];
    for a in values {
        for b in values {
            for c in [0u32, 1, 7, 31, 33, 0x7654, 0xba98] {
                let out = alloc(22 * 4);
                device.run("intr", 1, 1, Params::new().add(out).add(a).add(b).add(c));
                let got = download::<u32>(out, 22);
                let pair = u64::from(b) << 32 | u64::from(a);
                let byte = |n: u32| u32::from((pair >> (8 * (n & 7))) as u8);
                let permuted = (0..4).fold(0, |sum, i| sum | byte(c >> (4 * i) & 15) << (8 * i));
                let (sa, sb) = (a as i32, b as i32);
                let bytes = |f: fn(u8, u8) -> u8| {
                    let (x, y) = (a.to_le_bytes(), b.to_le_bytes());
                    u32::from_le_bytes([0, 1, 2, 3].map(|i| f(x[i], y[i])))
                };
                let dot = (0..4).fold(c as i32, |sum, i| {
                    sum.wrapping_add(i32::from(a.to_le_bytes()[i] as i8) * i32::from(b.to_le_bytes()[i] as i8))
                });
                let cut = |x: i32| i64::from(x << 8 >> 8);
                let rz = {
                    let nearest = a as f32;
                    if f64::from(nearest) > f64::from(a) { nearest.next_down() } else { nearest }
                };
                let expected = [
                    (0, a.count_ones()),
                    (1, a.leading_zeros()),
                    (2, if a == 0 { 0 } else { a.trailing_zeros() + 1 }),
                    (3, a.reverse_bits()),
                    (4, permuted),
                    (5, ((pair << (c & 31)) >> 32) as u32),
                    (6, (pair >> (c & 31)) as u32),
                    (7, ((u64::from(a) * u64::from(b)) >> 32) as u32),
                    (8, ((i64::from(sa) * i64::from(sb)) >> 32) as u32),
                    (9, a.abs_diff(b).wrapping_add(c)),
                    (10, sa.abs_diff(sb).wrapping_add(c)),
                    (11, bytes(u8::wrapping_add)),
                    (13, dot as u32),
                    (14, (u64::from(a) << 32 | u64::from(b)).count_ones()),
                    (15, u64::from(b).leading_zeros()),
                    (16, rz.to_bits()),
                    (18, (1.5 * c as f32).ceil() as u32),
                    (19, ((i64::from(sa) + i64::from(sb)) >> 1) as u32),
                    (20, (cut(sa).wrapping_mul(cut(sb))) as u32),
                    (21, {
                        let (x, y) = (u64::from(a) << 32 | u64::from(c), u64::from(b) << 32 | u64::from(a));
                        (((u128::from(x) * u128::from(y)) >> 64) as u64 >> 7) as u32
                    }),
                ];
                for (index, expected) in expected {
                    assert_eq!(got[index], expected, "o[{index}] of {a:#x} {b:#x} {c:#x}");
                }
            }
        }
    }
}

fn close(got: f64, expected: f64, tolerance: f64) -> bool {
    got == expected
        || got.is_nan() && expected.is_nan()
        || (got - expected).abs() <= tolerance * expected.abs().max(1e-30)
}

#[test]
fn single_mathematics() {
    let device = device();
    for x in [0.5f32, -1.25, 2.5, 3.0, -0.75, 10.5, 1e-3, -7.5, 100.25] {
        for y in [0.25f32, 1.0, 3.5, 12.0, 1e5] {
            let out = alloc(30 * 4);
            device.run("fmath", 1, 1, Params::new().add(out).add(x).add(y));
            let got = download::<f32>(out, 30);
            let (d, e) = (f64::from(x), f64::from(y));
            let expected = [
                x.min(y),
                x.max(y),
                x.floor(),
                x.ceil(),
                x.round_ties_even(),
                x.trunc(),
                x.round(),
                x.abs(),
                x / y,
                y.sqrt(),
                1.0 / x,
                x.mul_add(y, x),
                x.copysign(y),
                e.ln() as f32,
                d.tanh() as f32,
                d.atan2(e) as f32,
                f32::NAN,
                x % y,
                d.cbrt() as f32,
                d.exp() as f32,
                x.clamp(0.0, 1.0),
                d.exp2() as f32,
                d.tan() as f32,
                0.0,
                x.trunc(),
                y.trunc(),
                d.hypot(e) as f32,
                f32::NAN,
                x * 8.0,
                f32::from(x as i32 as i8),
            ];
            for (index, expected) in expected.into_iter().enumerate() {
                if matches!(index, 16 | 27) {
                    assert!(got[index].is_finite());
                    continue;
                }
                let tolerance = if index == 19 { 2e-5 } else { 4e-6 };
                assert!(
                    close(f64::from(got[index]), f64::from(expected), tolerance),
                    "o[{index}] of {x} {y}: {} {expected}",
                    got[index]
                );
            }
        }
    }
    let out = alloc(30 * 4);
    device.run("fmath", 1, 1, Params::new().add(out).add(f32::NAN).add(f32::INFINITY));
    let got = download::<f32>(out, 30);
    assert_eq!((got[0], got[1], got[20], got[23], got[24]), (f32::INFINITY, f32::INFINITY, 0.0, 3.0, 0.0));
}

#[test]
fn double_mathematics() {
    let device = device();
    for x in [0.5f64, -1.25, 2.5, 3.0, -0.75, 10.5, 1e-3, -7.5] {
        for y in [0.25f64, 1.0, 3.5, 12.0, 1e5] {
            let out = alloc(24 * 8);
            device.run("dmath", 1, 1, Params::new().add(out).add(x).add(y));
            let got = download::<f64>(out, 24);
            let expected = [
                x.min(y),
                x.max(y),
                x.floor(),
                x.ceil(),
                x.round_ties_even(),
                x / y,
                y.sqrt(),
                1.0 / x,
                x.mul_add(y, x),
                y.ln(),
                x.tanh(),
                y.powf(x),
                x.exp(),
                x.cos(),
                x.atan(),
                f64::NAN,
                x % y,
                f64::from(x as f32),
                x.trunc(),
                f64::NAN,
                f64::NAN,
                1.0 / y.sqrt(),
                x.sinh(),
                f64::from(y as u32),
            ];
            for (index, expected) in expected.into_iter().enumerate().filter(|(_, e)| !e.is_nan()) {
                assert!(close(got[index], expected, 1e-14), "o[{index}] of {x} {y}: {} {expected}", got[index]);
            }
            assert!(got[19] >= x + y && got[19] <= (x + y).next_up(), "rounded up");
            assert!(got[20] <= x.mul_add(y, x) && got[20] >= x.mul_add(y, x).next_down(), "rounded down");
        }
    }
}

#[test]
fn scan_and_barrier_reductions() {
    let x: Vec<i32> = (0..128).map(|i| i % 5).collect();
    let (dx, dy) = (upload(&x), alloc(128 * 4));
    device().launch("scan", [1, 1, 1], [128, 1, 1], 512, Params::new().add(dx).add(dy).add(128i32)).unwrap();
    let sums: Vec<i32> = x
        .iter()
        .scan(0, |sum, x| {
            *sum += x;
            Some(*sum)
        })
        .collect();
    let odd = sums.iter().filter(|s| *s & 1 == 1).count() as i32;
    let expected: Vec<i32> = sums.iter().map(|s| s + odd * 100_000).collect();
    assert_eq!(download::<i32>(dy, 128), expected);
}

#[test]
fn histogram() {
    let x: Vec<u8> = (0..50_000u32).map(|i| ((i * i) >> 3) as u8).collect();
    let (dx, h) = (upload(&x), alloc(1024));
    device().run("histo", 13, 96, Params::new().add(dx).add(h).add(x.len() as i32));
    let mut expected = vec![0u32; 256];
    x.iter().for_each(|x| expected[usize::from(*x)] += 1);
    assert_eq!(download::<u32>(h, 256), expected);
}

#[test]
fn vectors_virtual_functions_and_pointers() {
    let device = device();
    let a: Vec<[f32; 4]> = (0..32).map(|i| [i as f32; 4]).collect();
    let b: Vec<[f64; 2]> = (0..32).map(|i| [f64::from(i) * 1.5, -f64::from(i)]).collect();
    let (da, db, dc) = (upload(&a), upload(&b), alloc(256));
    device.run("vec", 1, 32, Params::new().add(da).add(db).add(dc));
    assert_eq!(download::<[f32; 4]>(da, 32)[3], [4.0, 3.0, 3.0, 6.0]);
    assert_eq!(download::<[i32; 2]>(dc, 32)[5], [7, -5]);
    device.run("virt", 1, 32, Params::new().add(dc));
    let expected: Vec<i32> = (0..32).map(|i| if i & 1 == 1 { i + 10 } else { i * 3 }).collect();
    assert_eq!(download::<i32>(dc, 32), expected);
    let x = upload(&[1.0f32, 2.0, 3.0]);
    device.run("funcs", 1, 3, Params::new().add(x));
    assert_eq!(download::<f32>(x, 3), [5.0, 8.0, 11.0]);
}

#[test]
fn cooperative_groups() {
    let out = alloc(64 * 4);
    device().run("cgk", 1, 64, Params::new().add(out));
    let got = download::<i32>(out, 64);
    for (thread, got) in got.iter().enumerate() {
        let (lane, warp) = (thread % 32, thread / 32 * 32);
        let active: Vec<usize> = (0..32).filter(|l| (warp + l) % 3 == 0).collect();
        let extra = match active.iter().position(|l| *l == lane) {
            Some(rank) => active.len() * 1000 + rank,
            None => 0,
        };
        assert_eq!(*got as usize, 120 + extra, "{thread}");
    }
}

#[test]
fn matches_votes_and_warp_memory() {
    let device = device();
    let out = alloc(128);
    device.run("match", 1, 32, Params::new().add(out));
    let expected: Vec<u32> = (0..32u32).map(|t| (15 << (t / 4 * 4)) + 2 + 2 + 4).collect();
    assert_eq!(download::<u32>(out, 32), expected);
    device.run("tmpl", 1, 32, Params::new().add(out));
    let got = download::<u32>(out, 32);
    assert_eq!(&got[..8], (0..8).map(|i| i + i + 16 + i + 8 + i + 24).collect::<Vec<u32>>());
}

#[test]
fn clocks_and_text() {
    let device = device();
    let out = alloc(64);
    device.run("clk", 1, 1, Params::new().add(out));
    let got = download::<i64>(out, 3);
    assert!(got[0] >= 10 && got[2] == 0, "{got:?}");
    device.run("bigprint", 1, 1, Params::new());
    assert_eq!(device.text(), "-1 2 -3 4 ff x s  3.14 1.000000e+10 0.0001 0x10 %\n");
}

#[test]
fn halves() {
    let device = Device::load(include_str!("ptx/half.ptx"));
    let h: Vec<u16> = (0..32).map(|i| f16::from_f32(i as f32 / 4.0).to_bits()).collect();
    let h2: Vec<[u16; 2]> =
        (0..32).map(|i| [f16::from_f32(i as f32).to_bits(), f16::from_f32(-0.5).to_bits()]).collect();
    let b: Vec<u16> = (0..32).map(|i| bf16::from_f32(i as f32).to_bits()).collect();
    let f: Vec<f32> = (0..32).map(|i| i as f32 * 0.5).collect();
    let (dh, dh2, db, df) = (upload(&h), upload(&h2), upload(&b), upload(&f));
    device.run("halfk", 1, 1, Params::new().add(dh).add(dh2).add(db).add(df));
    device.run("halfk", 1, 32, Params::new().add(dh).add(dh2).add(db).add(df));
    let (got_f, got_b) = (download::<f32>(df, 32), download::<u16>(db, 32));
    for i in 1..32 {
        let x = i as f32 / 4.0;
        let half = f16::from_f32(f16::from_f32(x * x).to_f32() + 1.0).to_f32();
        let big = bf16::from_f32(i as f32 + i as f32 * 0.5).to_f32();
        let low = f16::from_f32((i * i + i) as f32).to_f32();
        let more = if half > 3.0 { 1.0 } else { 0.0 };
        assert_eq!(got_f[i], half + big + low + more, "{i}");
        assert_eq!(bf16::from_bits(got_b[i]).to_f32(), big.max(2.0), "{i}");
    }
}

/// A grid that meets through CUDA's device library, as Numba's do.
const BETWEEN_BLOCKS: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);

.visible .entry meet(.param .u64 cells)
{
    .reg .pred %p<2>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [cells];
    {
        .param .b32 scope;
        .param .b64 result;
        st.param.b32 [scope], 1;
        call (result), cudaCGGetIntrinsicHandle, (scope);
        ld.param.b64 %rd2, [result];
    }
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd3, %rd1, %rd3;
    add.u32 %r3, %r1, 1;
    rem.u32 %r3, %r3, %r2;
    mul.wide.u32 %rd4, %r3, 4;
    add.s64 %rd4, %rd1, %rd4;
    mov.u32 %r4, 0;
ROUND:
    ld.volatile.global.u32 %r5, [%rd4];
    {
        .param .b64 handle;
        .param .b32 flags;
        .param .b32 error;
        st.param.b64 [handle], %rd2;
        st.param.b32 [flags], 0;
        call (error), cudaCGSynchronize, (handle, flags);
        ld.param.b32 %r6, [error];
    }
    st.volatile.global.u32 [%rd3], %r5;
    {
        .param .b64 handle;
        .param .b32 flags;
        .param .b32 error;
        st.param.b64 [handle], %rd2;
        st.param.b32 [flags], 0;
        call (error), cudaCGSynchronize, (handle, flags);
        ld.param.b32 %r6, [error];
    }
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 5;
    @%p1 bra ROUND;
    ret;
}
"#;

#[test]
fn grids_meet_through_the_device_library() {
    let device = Device::load(BETWEEN_BLOCKS);
    let (cells, workspace) = (upload(&(0..8u32).collect::<Vec<_>>()), alloc(16));
    let params = Params::new().add(cells);
    let launch = ptx_exec::Launch {
        grid: [8, 1, 1],
        block: [3, 2, 1],
        dynamic_shared: 0,
        params: &params.0,
        stop: &device.stop,
        output: &device.printed,
        heap: None,
        workspace: Some(workspace),
    };
    device.program.launch(device.kernel("meet"), &launch).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(download::<u32>(cells, 8), [5, 6, 7, 0, 1, 2, 3, 4]);
}
