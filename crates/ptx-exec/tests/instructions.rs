//! Single instructions on edge cases, against what the PTX manual says.

mod kernels;

use kernels::{Device, Params, alloc, download};

/// Runs `body` with a, b, c in %rd1..3 (and %r1..3, %f1..3, %d1..3); answers what it leaves in %rd0.
struct Bench {
    device: Device,
    out: u64,
}

impl Bench {
    fn new(body: &str) -> Bench {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n
            .entry k(.param .u64 o, .param .u64 a, .param .u64 b, .param .u64 c) {{
                .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .b64 %o;
                ld.param.u64 %o, [o]; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; mov.u64 %rd0, 0; mov.u32 %r0, 0;
                cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3;
                cvt.u16.u64 %h1, %rd1; cvt.u16.u64 %h2, %rd2; cvt.u16.u64 %h3, %rd3;
                mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3; mov.b64 %d1, %rd1; mov.b64 %d2, %rd2; mov.b64 %d3, %rd3;
                {body}
                st.global.u64 [%o], %rd0; st.global.u32 [%o+8], %r0; ret;
            }}"
        );
        Bench { device: Device::load(&text), out: alloc(64) }
    }

    fn run(&self, a: u64, b: u64, c: u64) {
        self.device.run("k", 1, 1, Params::new().add(self.out).add(a).add(b).add(c));
    }

    /// %rd0
    fn wide(&self, a: u64, b: u64, c: u64) -> u64 {
        self.run(a, b, c);
        download::<u64>(self.out, 1)[0]
    }

    /// %r0
    fn narrow(&self, a: u32, b: u32, c: u32) -> u32 {
        self.run(a.into(), b.into(), c.into());
        download::<u32>(self.out, 3)[2]
    }
}

const EDGES: [u32; 12] = [0, 1, 2, 31, 32, 33, 255, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_ffff, 0x1357_9bdf];

/// Checks a 32-bit instruction on all pairs of edges.
fn check(instruction: &str, expected: impl Fn(u32, u32) -> u32) {
    let bench = Bench::new(instruction);
    for a in EDGES {
        for b in EDGES {
            assert_eq!(bench.narrow(a, b, 0), expected(a, b), "{instruction} {a:#x} {b:#x}");
        }
    }
}

#[test]
fn integers() {
    check("shl.b32 %r0, %r1, %r2;", |a, b| a.checked_shl(b).unwrap_or(0));
    check("shr.u32 %r0, %r1, %r2;", |a, b| a.checked_shr(b).unwrap_or(0));
    check("shr.s32 %r0, %r1, %r2;", |a, b| (a as i32 >> b.min(31)) as u32);
    check("shr.s32 %r0, %r1, 40;", |a, _| (a as i32 >> 31) as u32);
    check("shl.b32 %r0, %r1, 32;", |_, _| 0);
    check("div.u32 %r0, %r1, %r2;", |a, b| a.checked_div(b).unwrap_or(u32::MAX));
    check("div.s32 %r0, %r1, %r2;", |a, b| if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 });
    check("rem.s32 %r0, %r1, %r2;", |a, b| if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 });
    check("rem.u32 %r0, %r1, %r2;", |a, b| a.checked_rem(b).unwrap_or(a));
    check("add.sat.s32 %r0, %r1, %r2;", |a, b| (a as i32).saturating_add(b as i32) as u32);
    check("sub.sat.s32 %r0, %r1, %r2;", |a, b| (a as i32).saturating_sub(b as i32) as u32);
    check("abs.s32 %r0, %r1;", |a, _| (a as i32).wrapping_abs() as u32);
    check("cnot.b32 %r0, %r1;", |a, _| u32::from(a == 0));
    check("bfind.u32 %r0, %r1;", |a, _| if a == 0 { u32::MAX } else { 31 - a.leading_zeros() });
    check("bfind.shiftamt.u32 %r0, %r1;", |a, _| if a == 0 { u32::MAX } else { a.leading_zeros() });
    check("bfind.s32 %r0, %r1;", |a, _| {
        let x = if (a as i32) < 0 { !a } else { a };
        if x == 0 { u32::MAX } else { 31 - x.leading_zeros() }
    });
    check("mul24.lo.u32 %r0, %r1, %r2;", |a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff));
    check("set.lt.u32.s32 %r0, %r1, %r2;", |a, b| if (a as i32) < b as i32 { u32::MAX } else { 0 });
    check("setp.hi.u32 %p1|%p2, %r1, %r2; selp.u32 %r0, 1, 0, %p1; @%p2 add.u32 %r0, %r0, 2;", |a, b| {
        if a > b { 1 } else { 2 }
    });
    check("slct.u32.s32 %r0, 7, 9, %r1;", |a, _| if (a as i32) >= 0 { 7 } else { 9 });
    check("lop3.b32 %r0, %r1, %r2, 0x0f0f0f0f, 0x96;", |a, b| a ^ b ^ 0x0f0f_0f0f);
    check("lop3.b32 %r0, %r1, %r2, 0xff00ff, 0xe0;", |a, b| a & (b | 0xff_00ff));
    check("cvt.sat.u8.s32 %r0, %r1;", |a, _| (a as i32).clamp(0, 255) as u32);
    check("cvt.sat.s8.u32 %r0, %r1;", |a, _| a.min(127));
    check("cvt.s8.s32 %r0, %r1;", |a, _| a as i8 as i32 as u32);
    check("bmsk.clamp.b32 %r0, %r1, %r2;", |a, b| (((1u64 << b.min(32)) - 1) << a.min(32)) as u32);
    check("szext.clamp.s32 %r0, %r1, %r2;", |a, b| match b.min(32) {
        0 => 0,
        n => (a << (32 - n)).cast_signed().wrapping_shr(32 - n) as u32,
    });
}

#[test]
fn bit_fields() {
    let lengths = [0u32, 1, 7, 8, 31, 32, 33, 64, 255];
    let (unsigned, signed) = (Bench::new("bfe.u32 %r0, %r1, %r2, %r3;"), Bench::new("bfe.s32 %r0, %r1, %r2, %r3;"));
    let wide = Bench::new("bfe.s64 %rd0, %rd1, %r2, %r3;");
    let insert = Bench::new("bfi.b32 %r0, %r1, 0xaaaaaaaa, %r2, %r3;");
    for a in EDGES {
        for position in lengths {
            for length in lengths {
                let bit = |i: u32| if i < 32 { a >> i & 1 } else { 0 };
                let plain = (0..32).filter(|i| *i < length).fold(0, |sum, i| sum | bit(position + i) << i);
                assert_eq!(unsigned.narrow(a, position, length), plain, "{a:#x} {position} {length}");
                let sign = if length == 0 { 0 } else { bit((position + length - 1).min(31)) };
                let expected = (0..32).fold(0, |sum, i| {
                    let b = if i < length && position + i <= 31 { bit(position + i) } else { sign };
                    sum | b << i
                });
                assert_eq!(signed.narrow(a, position, length), expected, "signed {a:#x} {position} {length}");
                let mask = (0..32).filter(|i| *i >= position && *i < position + length).fold(0u32, |m, i| m | 1 << i);
                let moved = a.checked_shl(position).unwrap_or(0);
                assert_eq!(
                    insert.narrow(a, position, length),
                    moved & mask | 0xaaaa_aaaa & !mask,
                    "{a:#x} {position} {length}"
                );
            }
        }
    }
    assert_eq!(wide.wide(0x8000_0000_0000_0000, 60, 4), (-8i64) as u64);
}

#[test]
fn carry_chains() {
    let bench = Bench::new(
        "mov.b64 {%r4, %r5}, %rd1; mov.b64 {%r6, %r7}, %rd2;
         add.cc.u32 %r4, %r4, %r6; addc.cc.u32 %r5, %r5, %r7; addc.u32 %r0, 0, 0; mov.b64 %rd0, {%r4, %r5};",
    );
    let subtract = Bench::new(
        "mov.b64 {%r4, %r5}, %rd1; mov.b64 {%r6, %r7}, %rd2;
         sub.cc.u32 %r4, %r4, %r6; subc.u32 %r5, %r5, %r7; mov.b64 %rd0, {%r4, %r5};",
    );
    let multiply = Bench::new("mad.lo.cc.u64 %rd4, %rd1, %rd2, %rd3; madc.hi.u64 %rd0, %rd1, %rd2, 0;");
    let values = [0, 1, 0xffff_ffff, 0x1_0000_0000, u64::MAX, 0x8000_0000_0000_0000, 0x1234_5678_9abc_def0];
    for a in values {
        for b in values {
            assert_eq!(bench.wide(a, b, 0), a.wrapping_add(b), "{a:#x} {b:#x}");
            assert_eq!(download::<u32>(bench.out, 3)[2], u32::from(a.checked_add(b).is_none()), "{a:#x} {b:#x}");
            assert_eq!(subtract.wide(a, b, 0), a.wrapping_sub(b), "{a:#x} {b:#x}");
            let product = u128::from(a) * u128::from(b) + u128::from(values[6]);
            assert_eq!(multiply.wide(a, b, values[6]), (product >> 64) as u64, "{a:#x} {b:#x}");
        }
    }
}

#[test]
fn permutations() {
    let (a, b) = (0x8382_8180u32, 0x0706_0504);
    let run = |mode: &str, c: u32| Bench::new(&format!("prmt.b32{mode} %r0, %r1, %r2, %r3;")).narrow(a, b, c);
    assert_eq!(run("", 0x7531), 0x0705_8381);
    assert_eq!(run("", 0xfb08), 0x00ff_80ff);
    assert_eq!(Bench::new("prmt.b32 %r0, %r1, %r2, 0xfb08;").narrow(a, b, 0), 0x00ff_80ff);
    assert_eq!((run(".f4e", 0), run(".f4e", 1), run(".f4e", 3)), (0x8382_8180, 0x0483_8281, 0x0605_0483));
    assert_eq!((run(".b4e", 0), run(".b4e", 1)), (0x0506_0780, 0x0607_8081));
    assert_eq!(run(".rc8", 2), 0x8282_8282);
    assert_eq!((run(".ecl", 1), run(".ecr", 1)), (0x8382_8181, 0x8181_8180));
    assert_eq!((run(".rc16", 0), run(".rc16", 1)), (0x8180_8180, 0x8382_8382));
}

#[test]
fn conversions() {
    let floats = [
        0.0f32,
        -0.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        127.6,
        -128.9,
        300.0,
        3e9,
        -3e9,
        5e9,
        1e20,
        -1e20,
        f32::NAN,
        f32::INFINITY,
        f32::MIN_POSITIVE / 4.0,
    ];
    let each = |instruction: &str, expected: &dyn Fn(f32) -> u32| {
        let bench = Bench::new(instruction);
        for x in floats {
            assert_eq!(bench.narrow(x.to_bits(), 0, 0), expected(x), "{instruction} {x}");
        }
    };
    each("cvt.rzi.s32.f32 %r0, %f1;", &|x| x as i32 as u32);
    each("cvt.rni.s32.f32 %r0, %f1;", &|x| x.round_ties_even() as i32 as u32);
    each("cvt.rmi.u32.f32 %r0, %f1;", &|x| x.floor() as u32);
    each("cvt.rpi.s32.f32 %r0, %f1;", &|x| x.ceil() as i32 as u32);
    each("cvt.rzi.s8.f32 %h1, %f1; cvt.u32.u16 %r0, %h1;", &|x| u32::from(i16::from(x as i8) as u16));
    each("cvt.rzi.u16.f32 %h1, %f1; cvt.u32.u16 %r0, %h1;", &|x| u32::from(x as u16));
    each("cvt.sat.f32.f32 %f0, %f1; mov.b32 %r0, %f0;", &|x| {
        if x.is_nan() { 0 } else { x.clamp(0.0, 1.0).to_bits() & 0x7fff_ffff }
    });
    each("cvt.rni.f32.f32 %f0, %f1; setp.num.f32 %p1, %f0, %f0; @%p1 mov.b32 %r0, %f0;", &|x| {
        if x.is_nan() { 0 } else { x.round_ties_even().to_bits() }
    });
    each("cvt.ftz.f32.f32 %f0, %f1; setp.num.f32 %p1, %f0, %f0; @%p1 mov.b32 %r0, %f0;", &|x| {
        if x.is_nan() || x.is_subnormal() { 0 } else { x.to_bits() }
    });
    each("testp.subnormal.f32 %p1, %f1; selp.u32 %r0, 1, 0, %p1;", &|x| u32::from(x.is_subnormal()));
    each("testp.normal.f32 %p1, %f1; selp.u32 %r0, 1, 0, %p1;", &|x| u32::from(x.is_normal() || x == 0.0));
    each("testp.finite.f32 %p1, %f1; selp.u32 %r0, 1, 0, %p1;", &|x| u32::from(x.is_finite()));
    let long = Bench::new("cvt.rzi.s64.f32 %rd0, %f1;");
    for x in floats {
        let expected = if x.is_nan() { i64::MIN as u64 } else { x as i64 as u64 };
        assert_eq!(long.wide(x.to_bits().into(), 0, 0), expected, "{x}");
    }
    let unsigned = Bench::new("cvt.rn.f64.u64 %d0, %rd1; mov.b64 %rd0, %d0;");
    let single = Bench::new("cvt.rn.f32.u64 %f0, %rd1; mov.b32 %r0, %f0; cvt.u64.u32 %rd0, %r0;");
    for x in [0u64, 1, u64::MAX, 1 << 63, (1 << 63) + 1025, 0x7fff_ffff_ffff_ffff, 16_777_217] {
        assert_eq!(f64::from_bits(unsigned.wide(x, 0, 0)), x as f64);
        assert_eq!(single.wide(x, 0, 0), u64::from((x as f32).to_bits()), "{x}");
    }
}

#[test]
fn floats() {
    let values = [0.0f32, -0.0, 1.0, -1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 3e38, 0.1];
    let each = |instruction: &str, expected: &dyn Fn(f32, f32) -> f32| {
        let bench = Bench::new(&format!("{instruction} mov.b32 %r0, %f0;"));
        for a in values {
            for b in values {
                let got = f32::from_bits(bench.narrow(a.to_bits(), b.to_bits(), 0));
                let want = expected(a, b);
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{instruction} {a} {b}: {got} {want}"
                );
            }
        }
    };
    let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
    each("add.f32 %f0, %f1, %f2;", &|a, b| a + b);
    each("add.ftz.f32 %f0, %f1, %f2;", &|a, b| flush(flush(a) + flush(b)));
    each("mul.sat.f32 %f0, %f1, %f2;", &|a, b| if a * b > 0.0 { (a * b).min(1.0) } else { 0.0 });
    each("min.f32 %f0, %f1, %f2;", &|a, b| if a == b { if a.is_sign_negative() { a } else { b } } else { a.min(b) });
    each("max.f32 %f0, %f1, %f2;", &|a, b| if a == b { if a.is_sign_positive() { a } else { b } } else { a.max(b) });
    each("max.NaN.f32 %f0, %f1, %f2;", &|a, b| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a == b {
            if a.is_sign_positive() { a } else { b }
        } else {
            a.max(b)
        }
    });
    each("copysign.f32 %f0, %f1, %f2;", &|a, b| b.copysign(a));
    each("div.rn.f32 %f0, %f1, %f2;", &|a, b| a / b);
    each("fma.rn.f32 %f0, %f1, %f2, %f1;", &|a, b| a.mul_add(b, a));
    each("set.neu.f32.f32 %f0, %f1, %f2;", &|a, b| if a != b { 1.0 } else { 0.0 });
    each("set.ne.f32.f32 %f0, %f1, %f2;", &|a, b| if !a.is_nan() && !b.is_nan() && a != b { 1.0 } else { 0.0 });
    each("set.ltu.f32.f32 %f0, %f1, %f2;", &|a, b| if a.is_nan() || b.is_nan() || a < b { 1.0 } else { 0.0 });
}
