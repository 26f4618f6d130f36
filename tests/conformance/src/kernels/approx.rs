//! `approx.cu`: within the errors that the PTX manual and the CUDA guide state.

use cuda_abi::driver::Driver;

use super::device::Kernels;
use super::values::*;

super::tests! {
    approx_ex2,
    approx_lg2,
    approx_sin_cos,
    approx_rcp,
    approx_sqrt,
    approx_rsqrt_double,
    approx_tanh,
    approx_div,
    math_float,
    math_double,
    math_pairs,
    math_parts,
    math_huge_angles,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "approx")
}

/// How far a result may be off: a part of the exact value, or so much at least.
#[derive(Clone, Copy)]
struct Error {
    relative: f64,
    absolute: f64,
}

fn relative(relative: f64) -> Error {
    Error { relative, absolute: 0.0 }
}

/// So many units in the last place of a single.
fn single_ulps(count: f64) -> Error {
    Error { relative: count * f64::from(f32::EPSILON), absolute: count * 1.5e-45 }
}

fn double_ulps(count: f64) -> Error {
    Error { relative: count * f64::EPSILON, absolute: count * 5e-324 }
}

fn near(got: f64, exact: f64, error: Error) -> bool {
    match (got.is_nan(), exact.is_nan()) {
        (true, true) => true,
        (true, _) | (_, true) => false,
        _ if got == exact => true,
        _ if got.is_infinite() || exact.is_infinite() => false,
        _ => (got - exact).abs() <= error.relative * exact.abs() + error.absolute,
    }
}

/// A single of an exact value: what is too large for one is infinite.
fn narrow(exact: f64) -> f64 {
    if exact.abs() > f64::from(f32::MAX) { f64::from(exact as f32) } else { exact }
}

fn check_near(what: &str, got: f64, exact: f64, error: Error, inputs: impl std::fmt::Debug) {
    assert!(near(got, exact, error), "{what} of {inputs:?} is {got:e}, not {exact:e}");
}

fn approx_ex2(gpu: &Driver) {
    let values: Vec<f32> = floats().into_iter().chain((-1300..1300).map(|value| value as f32 / 10.0)).collect();
    for (a, [kept, flushed]) in values.iter().zip(load(gpu).map1::<f32, f32, 2>("approx_ex2", &values)) {
        let exact = narrow(f64::from(*a).exp2());
        let small = Error { relative: 2f64.powi(-22), absolute: 1.5e-45 };
        check_near("ex2", f64::from(kept), exact, small, a);
        let flushes = exact.abs() < f64::from(f32::MIN_POSITIVE);
        check_near("ex2.ftz", f64::from(flushed), if flushes { 0.0 } else { exact }, small, a);
    }
}

fn approx_lg2(gpu: &Driver) {
    let values: Vec<f32> = floats().into_iter().chain((1..1000).map(|value| value as f32 / 333.0)).collect();
    for (a, [kept, flushed]) in values.iter().zip(load(gpu).map1::<f32, f32, 2>("approx_lg2", &values)) {
        let error = Error { relative: 2f64.powi(-22), absolute: 2f64.powi(-22) };
        check_near("lg2", f64::from(kept), f64::from(*a).log2(), error, a);
        let flushed_input = if a.is_subnormal() { 0.0f64 } else { f64::from(*a) };
        check_near("lg2.ftz", f64::from(flushed), flushed_input.log2(), error, a);
    }
}

fn approx_sin_cos(gpu: &Driver) {
    let mut values: Vec<f32> = (-628..=628).map(|value| value as f32 / 100.0).collect();
    values.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0]);
    for (a, [sine, cosine]) in values.iter().zip(load(gpu).map1::<f32, f32, 2>("approx_sin_cos", &values)) {
        let error = Error { relative: 0.0, absolute: 2f64.powf(-20.5) };
        check_near("sin", f64::from(sine), f64::from(*a).sin(), error, a);
        check_near("cos", f64::from(cosine), f64::from(*a).cos(), error, a);
    }
}

fn approx_rcp(gpu: &Driver) {
    let values: Vec<f32> = floats().into_iter().filter(|value| !value.is_subnormal()).collect();
    for (a, [result]) in values.iter().zip(load(gpu).map1::<f32, f32, 1>("approx_rcp", &values)) {
        let exact = 1.0 / f64::from(*a);
        // Denormal results are flushed.
        let exact = if exact.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { exact };
        check_near("rcp", f64::from(result), exact, single_ulps(1.0), a);
    }
}

fn approx_sqrt(gpu: &Driver) {
    for (a, [root, inverse]) in floats().iter().zip(load(gpu).map1::<f32, f32, 2>("approx_sqrt", &floats())) {
        let exact = f64::from(*a).sqrt();
        check_near("sqrt", f64::from(root), exact, relative(2f64.powi(-22)), a);
        check_near("rsqrt", f64::from(inverse), 1.0 / exact, relative(2f64.powf(-22.4)), a);
    }
}

fn approx_rsqrt_double(gpu: &Driver) {
    // Denormals count as zeros.
    let values: Vec<f64> = doubles().into_iter().filter(|value| !value.is_subnormal()).collect();
    for (a, [result]) in values.iter().zip(load(gpu).map1::<f64, f64, 1>("approx_rsqrt_double", &values)) {
        check_near("rsqrt", result, 1.0 / a.sqrt(), relative(1.8e-9), a);
    }
}

fn approx_tanh(gpu: &Driver) {
    let values: Vec<f32> = (-100..=100).map(|value| value as f32 / 9.0).chain([f32::NAN, 1e30, -1e30]).collect();
    for (a, [result]) in values.iter().zip(load(gpu).map1::<f32, f32, 1>("approx_tanh", &values)) {
        check_near("tanh", f64::from(result), f64::from(*a).tanh(), relative(2f64.powi(-10)), a);
    }
}

fn approx_div(gpu: &Driver) {
    let ordinary = |value: &f32| *value == 0.0 || (1e-15..1e15).contains(&value.abs());
    let values: Vec<f32> = floats().into_iter().filter(ordinary).collect();
    let pairs: Vec<(f32, f32)> = values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).collect();
    let kernels = load(gpu);
    let (a, b): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let out = kernels.zeros::<[f32; 2]>(pairs.len());
    let count = pairs.len();
    let args = super::device::args![kernels.upload(&a), kernels.upload(&b), out, count as i32];
    kernels.run("approx_div", count.div_ceil(128) as u32, 128, args);
    let results: Vec<f32> = kernels.download(out, count * 2);
    for ((a, b), result) in pairs.iter().zip(results.chunks(2)) {
        let exact = f64::from(*a) / f64::from(*b);
        check_near("div.approx", f64::from(result[0]), exact, single_ulps(2.0), (a, b));
        check_near("div.full", f64::from(result[1]), exact, single_ulps(2.0), (a, b));
    }
}

fn cube_root(x: f64) -> f64 {
    x.cbrt()
}

/// The error function, from its series and its continued fraction.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let size = x.abs();
    let value = if size < 3.0 {
        let (mut term, mut sum) = (size, size);
        for n in 1..200 {
            term *= -size * size / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else if size > 7.0 {
        1.0
    } else {
        let fraction = (1..200).rev().fold(0.0, |rest, n| f64::from(n) / 2.0 / (size + rest));
        1.0 - (-size * size).exp() / (size + fraction) / std::f64::consts::PI.sqrt()
    };
    value.copysign(x)
}

/// Half away from zero.
fn functions(a: f64) -> [f64; 16] {
    [
        a.exp(),
        a.abs().ln(),
        a.sin(),
        a.cos(),
        a.tan(),
        a.atan(),
        a.tanh(),
        cube_root(a),
        erf(a),
        a.abs().ln_1p(),
        a.exp_m1(),
        a.floor(),
        a.ceil(),
        a.trunc(),
        a.round_ties_even(),
        a.round(),
    ]
}

const NAMES: [&str; 16] = [
    "exp", "log", "sin", "cos", "tan", "atan", "tanh", "cbrt", "erf", "log1p", "expm1", "floor", "ceil", "trunc",
    "rint", "round",
];

fn math_float(gpu: &Driver) {
    let mut values: Vec<f32> = (-400..400).map(|value| value as f32 / 7.0).collect();
    values.extend([0.0, 0.5, 1.5, 2.5, -0.5, 1e-6, 1e10, -1e10, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.9]);
    for (a, results) in values.iter().zip(load(gpu).map1::<f32, f32, 16>("math_float", &values)) {
        for ((result, exact), name) in results.into_iter().zip(functions(f64::from(*a))).zip(NAMES) {
            check_near(name, f64::from(result), narrow(exact), single_ulps(4.0), a);
        }
    }
}

fn math_double(gpu: &Driver) {
    let mut values: Vec<f64> = (-400..400).map(|value| f64::from(value) / 7.0).collect();
    values.extend([0.0, 0.5, 1.5, 2.5, -0.5, 1e-9, 1e15, -1e15, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 709.9]);
    for (a, results) in values.iter().zip(load(gpu).map1::<f64, f64, 16>("math_double", &values)) {
        for ((result, exact), name) in results.into_iter().zip(functions(*a)).zip(NAMES) {
            // Our own reference for erf loses a few places itself.
            let ulps = if name == "erf" { 1000.0 } else { 8.0 };
            check_near(name, result, exact, double_ulps(ulps), a);
        }
    }
}

fn math_pairs(gpu: &Driver) {
    let values = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.7, -3.7, 10.25, 1e-5, 123.456];
    let pairs: Vec<(f64, f64)> = values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let kernels = load(gpu);
    let out = kernels.zeros::<[f64; 8]>(pairs.len());
    let args = super::device::args![kernels.upload(&a), kernels.upload(&b), out, pairs.len() as i32];
    kernels.run("math_pairs", 1, 128, args);
    let results: Vec<f64> = kernels.download(out, pairs.len() * 8);
    let remainder = |a: f64, b: f64| if b == 0.0 { f64::NAN } else { a - b * (a / b).round_ties_even() };
    for ((a, b), results) in pairs.into_iter().zip(results.chunks(8)) {
        let next = if a < b {
            a.next_up()
        } else if a > b {
            a.next_down()
        } else {
            b
        };
        let power = a.abs().powf(b);
        let exact = [power, a % b, a.atan2(b), a.hypot(b), remainder(a, b), (a - b).max(0.0), next];
        let names = ["pow", "fmod", "atan2", "hypot", "remainder", "fdim", "nextafter"];
        for ((result, exact), name) in results.iter().zip(exact).zip(names) {
            let error =
                if name == "remainder" { Error { relative: 1e-9, absolute: 1e-12 } } else { double_ulps(8.0) };
            check_near(name, *result, exact, error, (a, b));
        }
        let single = f64::from((a as f32).abs()).powf(f64::from(b as f32));
        check_near("powf", results[7], narrow(single), single_ulps(8.0), (a, b));
    }
}

fn math_parts(gpu: &Driver) {
    let values: Vec<f64> = doubles().into_iter().filter(|value| value.is_finite() && *value != 0.0).collect();
    for (a, [fraction, exponent, part, whole, again]) in
        values.iter().zip(load(gpu).map1::<f64, f64, 5>("math_parts", &values))
    {
        assert!(
            (0.5..1.0).contains(&fraction.abs()) && again == *a,
            "frexp of {a:e}: {fraction} {exponent} {again:e}"
        );
        assert!(whole == a.trunc() && part == a - a.trunc(), "modf of {a:e}: {part} {whole}");
    }
}

fn math_huge_angles(gpu: &Driver) {
    let values: Vec<f32> = vec![1e5, 123_456.79, 1e7, 1e15, 1e30, 3.4e38, -2e20, 105_414.35];
    for (a, [sine, cosine]) in values.iter().zip(load(gpu).map1::<f32, f32, 2>("math_huge_angles", &values)) {
        check_near("sinf", f64::from(sine), f64::from(*a).sin(), single_ulps(4.0), a);
        check_near("cosf", f64::from(cosine), f64::from(*a).cos(), single_ulps(4.0), a);
    }
}
