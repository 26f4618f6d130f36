//! `half.cu`.

use cuda_abi::driver::Driver;
use testkit::exact::*;

use super::device::Kernels;
use super::values::*;

super::tests! {
    half_arithmetic,
    half_fma,
    half_saturate,
    half_min_max,
    half_compare,
    half_pairs,
    half_pair_compare,
    half_functions,
    half_to_others,
    half_from_float,
    half_from_double,
    half_from_int,
    bfloat_from_float,
    half_pairs_from_floats,
    bfloat_arithmetic,
    bfloat_fma,
    bfloat_min_max,
    bfloat_pairs,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "half")
}

/// One NaN for all: for results whose NaN PTX leaves open (see `expected`).
fn plain(format: Format, bits: u16) -> u16 {
    if format.is_nan(u64::from(bits)) { 0x7fff } else { bits }
}

fn read(format: Format, bits: u16) -> Exact {
    format.read(u64::from(bits))
}

fn write(format: Format, value: &Exact) -> u16 {
    format.write(value, Round::Nearest) as u16
}

fn add(format: Format, a: u16, b: u16) -> u16 {
    write(format, &read(format, a).add(&read(format, b), Round::Nearest))
}

fn multiply(format: Format, a: u16, b: u16) -> u16 {
    write(format, &read(format, a).multiply(&read(format, b)))
}

fn fma(format: Format, a: u16, b: u16, c: u16) -> u16 {
    write(format, &read(format, a).multiply(&read(format, b)).add(&read(format, c), Round::Nearest))
}

fn value(format: Format, bits: u16) -> f64 {
    to_double(&read(format, bits), Round::Nearest)
}

/// To [0, 1]; NaN becomes 0.
fn saturate(bits: u16) -> u16 {
    let x = value(HALF, bits);
    if x.is_nan() || x <= 0.0 {
        0
    } else if x > 1.0 {
        0x3c00
    } else {
        bits
    }
}

/// Negative numbers become 0, NaN stays.
fn relu(format: Format, bits: u16) -> u16 {
    let x = value(format, bits);
    if x < 0.0 || bits == 0x8000 { 0 } else { bits }
}

fn smaller(format: Format, a: u16, b: u16) -> u16 {
    let (x, y) = (value(format, a), value(format, b));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => 0x7fff,
        (true, _) => b,
        (_, true) => a,
        _ if x == 0.0 && y == 0.0 => a | b,
        _ if x < y => a,
        _ => b,
    }
}

fn larger(format: Format, a: u16, b: u16) -> u16 {
    let (x, y) = (value(format, a), value(format, b));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => 0x7fff,
        (true, _) => b,
        (_, true) => a,
        _ if x == 0.0 && y == 0.0 => a & b,
        _ if x > y => a,
        _ => b,
    }
}

/// Every result through `plain`.
fn check_open2<const K: usize>(
    kernels: &Kernels,
    name: &str,
    format: Format,
    values: &[u16],
    expected: impl Fn(u16, u16) -> [u16; K],
) {
    let pairs: Vec<(u16, u16)> = values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).collect();
    let (a, b): (Vec<u16>, Vec<u16>) = pairs.iter().copied().unzip();
    let out = kernels.zeros::<[u16; K]>(pairs.len());
    let args = super::device::args![kernels.upload(&a), kernels.upload(&b), out, pairs.len() as i32];
    kernels.run(name, pairs.len().div_ceil(128) as u32, 128, args);
    let results: Vec<u16> = kernels.download(out, pairs.len() * K);
    for ((a, b), results) in pairs.into_iter().zip(results.chunks(K)) {
        for (place, (got, wanted)) in results.iter().zip(expected(a, b)).enumerate() {
            let (got, wanted) = (plain(format, *got), plain(format, wanted));
            assert!(got == wanted, "{name}({a:#x}, {b:#x})[{place}] is {got:#x}, not {wanted:#x}");
        }
    }
}

fn half_arithmetic(gpu: &Driver) {
    let kernels = load(gpu);
    check_open2(&kernels, "half_arithmetic", HALF, &halves(), |a, b| {
        let quotient = write(HALF, &read(HALF, a).divide(&read(HALF, b)));
        [add(HALF, a, b), add(HALF, a, b ^ 0x8000), multiply(HALF, a, b), quotient]
    });
}

fn half_fma(gpu: &Driver) {
    let values = few_halves();
    load(gpu).check3("half_fma", &values, &values, &values, |a, b, c| {
        let sum = fma(HALF, a, b, c);
        [sum, saturate(sum), relu(HALF, sum)]
    });
}

fn half_saturate(gpu: &Driver) {
    load(gpu).check2("half_saturate", &halves(), &halves(), |a: u16, b: u16| {
        [saturate(add(HALF, a, b)), saturate(multiply(HALF, a, b)), saturate(add(HALF, a, b ^ 0x8000))]
    });
}

fn extremes(format: Format, a: u16, b: u16) -> [u16; 4] {
    let nan = format.is_nan(u64::from(a)) || format.is_nan(u64::from(b));
    let (small, large) = (smaller(format, a, b), larger(format, a, b));
    [small, large, if nan { 0x7fff } else { small }, if nan { 0x7fff } else { large }]
}

fn half_min_max(gpu: &Driver) {
    load(gpu).check2("half_min_max", &halves(), &halves(), |a, b| extremes(HALF, a, b));
}

fn half_compare(gpu: &Driver) {
    load(gpu).check2("half_compare", &halves(), &halves(), |a: u16, b: u16| {
        let (x, y) = (value(HALF, a), value(HALF, b));
        let unordered = x.is_nan() || y.is_nan();
        let facts = [x == y, x < y, x >= y, unordered || x < y, unordered || x != y];
        let [p, q, r, s, t] = facts.map(u32::from);
        [p, q, r, s, t, u32::from(x.is_nan()), u32::from(x > y), u32::from(unordered || x == y)]
    });
}

fn both(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

fn half_pairs(gpu: &Driver) {
    // NaN is left out: PTX says of sums and products not which one comes out (9.7.4), and here pairs are compared by their bits.
    let values: Vec<u32> = super::values::half_pairs();
    let (nan, pairs) = (|bits: u16| HALF.is_nan(u64::from(bits)), |word: u32| [word as u16, (word >> 16) as u16]);
    let results = |a: u32, b: u32| {
        [
            both(a, b, |x, y| add(HALF, x, y)),
            both(a, b, |x, y| multiply(HALF, x, y)),
            both(a, b, |x, y| fma(HALF, x, y, x)),
            both(a, b, |x, y| larger(HALF, x, y)),
            both(a, b, |x, _| x ^ 0x8000),
            both(a, b, |_, y| y & 0x7fff),
        ]
    };
    let usable = |a: u32, b: u32| [a, b].into_iter().chain(results(a, b)).flat_map(pairs).all(|bits| !nan(bits));
    let chosen: Vec<(u32, u32)> =
        values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).filter(|(a, b)| usable(*a, *b)).collect();
    load(gpu).check_pairs("half_pairs", &chosen, results);
}

fn half_pair_compare(gpu: &Driver) {
    let values = super::values::half_pairs();
    load(gpu).check2("half_pair_compare", &values, &values, |a: u32, b: u32| {
        let fact = |test: &dyn Fn(f64, f64) -> bool| {
            let one = |shift: u32| test(value(HALF, (a >> shift) as u16), value(HALF, (b >> shift) as u16));
            [one(0), one(16)]
        };
        let words = |facts: [bool; 2], yes: u32| {
            facts.into_iter().rev().fold(0, |word, fact| word << 16 | if fact { yes } else { 0 })
        };
        [
            words(fact(&|x, y| x == y), 0x3c00),
            words(fact(&|x, y| x < y), 0xffff),
            u32::from(fact(&|x, y| x >= y) == [true, true]),
            u32::from(fact(&|x, y| x != y) == [true, true]),
        ]
    });
}

fn half_functions(gpu: &Driver) {
    let kernels = load(gpu);
    let values = halves();
    for (a, results) in values.iter().zip(kernels.map1::<u16, u16, 6>("half_functions", &values)) {
        let x = value(HALF, *a);
        let exact = [x.exp2(), x.tanh(), x.sqrt(), 1.0 / x, x.floor(), x.round_ties_even()];
        for (place, (result, exact)) in results.into_iter().zip(exact).enumerate() {
            let rounded = HALF.write(&double(exact), Round::Nearest) as u16;
            // The first two are approximations: 2^-9.9 and 2^-10.987 relative.
            let error = if place < 2 { 2f64.powf(-9.5) * exact.abs() + 6e-8 } else { 0.0 };
            let got = value(HALF, result);
            let near = (got - exact).abs() <= error || plain(HALF, result) == plain(HALF, rounded);
            assert!(near, "function {place} of {x:e} is {got:e}, not {exact:e}");
        }
    }
}

fn half_to_others(gpu: &Driver) {
    let values: Vec<u16> = halves().into_iter().filter(|bits| !HALF.is_nan(u64::from(*bits))).collect();
    load(gpu).check1("half_to_others", &values, |a: u16| {
        let x = value(HALF, a);
        [
            (x as f32).to_bits(),
            x as i32 as u32,
            x.round_ties_even() as i32 as u32,
            x.ceil() as u32,
            u32::from(x.floor() as i16 as u16),
            x.round_ties_even() as i64 as u32,
        ]
    });
}

fn half_from_float(gpu: &Driver) {
    check_from_float(&load(gpu), "half_from_float", HALF);
}

fn bfloat_from_float(gpu: &Driver) {
    check_from_float(&load(gpu), "bfloat_from_float", BFLOAT);
}

fn check_from_float(kernels: &Kernels, name: &str, format: Format) {
    let mut values = floats();
    values.extend([
        65_504.0,
        65_519.0,
        65_520.0,
        1e-7,
        5.97e-8,
        2.98e-8,
        6.1e-5,
        -65_530.0,
        1.000_488_3,
        0.333_251_95,
    ]);
    for (a, results) in values.iter().zip(kernels.map1::<f32, u16, 4>(name, &values)) {
        for (round, result) in ROUNDS.into_iter().zip(results) {
            let (got, wanted) = (plain(format, result), plain(format, format.write(&single(*a), round) as u16));
            assert!(got == wanted, "{name} {round:?} of {a:e} is {got:#x}, not {wanted:#x}");
        }
    }
}

fn half_from_double(gpu: &Driver) {
    let kernels = load(gpu);
    for (a, results) in doubles().iter().zip(kernels.map1::<f64, u16, 2>("half_from_double", &doubles())) {
        for (format, result) in [HALF, BFLOAT].into_iter().zip(results) {
            let wanted = plain(format, format.write(&double(*a), Round::Nearest) as u16);
            let got = plain(format, result);
            assert!(got == wanted, "{format:?} of {a:e} is {got:#x}, not {wanted:#x}");
        }
    }
}

fn half_from_int(gpu: &Driver) {
    let values: Vec<i32> =
        words().into_iter().map(|value| value as i32).chain([65_519, 65_520, 2_049, -2_051]).collect();
    load(gpu).check1("half_from_int", &values, |a: i32| {
        let half = |value: i128, round: Round| HALF.write(&Exact::from_int(value), round) as u16;
        [
            half(i128::from(a), Round::Nearest),
            half(i128::from(a), Round::Zero),
            half(i128::from(a as u32), Round::Up),
            half(i128::from(a as i16), Round::Nearest),
            BFLOAT.write(&Exact::from_int(i128::from(a)), Round::Nearest) as u16,
        ]
    });
}

fn half_pairs_from_floats(gpu: &Driver) {
    let values: Vec<f32> = floats().into_iter().filter(|value| !value.is_nan()).collect();
    load(gpu).check2("half_pairs_from_floats", &values, &values, |a: f32, b: f32| {
        let half = |value: f32| write(HALF, &single(value));
        let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        [
            pair(half(a), half(b)),
            pair(write(BFLOAT, &single(a)), write(BFLOAT, &single(b))),
            pair(relu(HALF, half(a)), relu(HALF, half(b))),
        ]
    });
}

fn bfloat_arithmetic(gpu: &Driver) {
    check_open2(&load(gpu), "bfloat_arithmetic", BFLOAT, &halves(), |a, b| {
        let quotient = write(BFLOAT, &read(BFLOAT, a).divide(&read(BFLOAT, b)));
        [add(BFLOAT, a, b), add(BFLOAT, a, b ^ 0x8000), multiply(BFLOAT, a, b), quotient]
    });
}

fn bfloat_fma(gpu: &Driver) {
    let values: Vec<u16> = few_halves().into_iter().filter(|bits| *bits != 0x7fff).collect();
    let kernels = load(gpu);
    kernels.check3("bfloat_fma", &values, &values, &values, |a, b, c| {
        let sum = fma(BFLOAT, a, b, c);
        [sum, relu(BFLOAT, sum)]
    });
}

fn bfloat_min_max(gpu: &Driver) {
    load(gpu).check2("bfloat_min_max", &halves(), &halves(), |a, b| extremes(BFLOAT, a, b));
}

fn bfloat_pairs(gpu: &Driver) {
    let values: Vec<u32> = super::values::half_pairs();
    let nan = |word: u32| [word as u16, (word >> 16) as u16].into_iter().any(|bits| BFLOAT.is_nan(u64::from(bits)));
    let results = |a: u32, b: u32| {
        [
            both(a, b, |x, y| add(BFLOAT, x, y)),
            both(a, b, |x, y| multiply(BFLOAT, x, y)),
            both(a, b, |x, y| fma(BFLOAT, x, y, y)),
            both(a, b, |x, _| x ^ 0x8000),
        ]
    };
    let usable = |a: u32, b: u32| ![a, b].into_iter().chain(results(a, b)).any(nan);
    let chosen: Vec<(u32, u32)> =
        values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).filter(|(a, b)| usable(*a, *b)).collect();
    load(gpu).check_pairs("bfloat_pairs", &chosen, results);
}
