//! `float.cu`.

use cuda_abi::driver::Driver;
use testkit::exact::*;

use super::device::Kernels;
use super::expected::Number;
use super::values::*;

super::tests! {
    float_add,
    float_sub,
    float_mul,
    float_div,
    float_sqrt,
    float_rcp,
    float_fma,
    double_add,
    double_sub,
    double_mul,
    double_div,
    double_sqrt,
    double_rcp,
    double_fma,
    float_flush,
    float_saturate,
    float_min_max,
    double_min_max,
    float_signs,
    float_kinds,
    float_compare,
    double_compare,
    float_set,
    float_flush_compare,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "float")
}

fn float_add(gpu: &Driver) {
    load(gpu).check2("float_add", &floats(), &floats(), |a, b| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(a).add(&single(b), round), round)))
    });
}

fn float_sub(gpu: &Driver) {
    load(gpu).check2("float_sub", &floats(), &floats(), |a, b| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(a).add(&single(b).negate(), round), round)))
    });
}

fn float_mul(gpu: &Driver) {
    load(gpu).check2("float_mul", &floats(), &floats(), |a, b| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(a).multiply(&single(b)), round)))
    });
}

fn float_div(gpu: &Driver) {
    load(gpu).check2("float_div", &floats(), &floats(), |a, b| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(a).divide(&single(b)), round)))
    });
}

fn float_sqrt(gpu: &Driver) {
    load(gpu).check1("float_sqrt", &floats(), |a| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(a).root(), round)))
    });
}

fn float_rcp(gpu: &Driver) {
    load(gpu).check1("float_rcp", &floats(), |a| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(1.0).divide(&single(a)), round)))
    });
}

fn float_fma(gpu: &Driver) {
    let values = few_floats();
    load(gpu).check3("float_fma", &values, &values, &values, |a, b, c| {
        ROUNDS.map(|round| Number::any_nan(to_single(&single(a).multiply(&single(b)).add(&single(c), round), round)))
    });
}

fn double_add(gpu: &Driver) {
    load(gpu).check2("double_add", &doubles(), &doubles(), |a, b| {
        ROUNDS.map(|round| Number::kept(to_double(&double(a).add(&double(b), round), round), [a, b]))
    });
}

fn double_sub(gpu: &Driver) {
    load(gpu).check2("double_sub", &doubles(), &doubles(), |a, b| {
        ROUNDS.map(|round| Number::kept(to_double(&double(a).add(&double(b).negate(), round), round), [a, b]))
    });
}

fn double_mul(gpu: &Driver) {
    load(gpu).check2("double_mul", &doubles(), &doubles(), |a, b| {
        ROUNDS.map(|round| Number::kept(to_double(&double(a).multiply(&double(b)), round), [a, b]))
    });
}

fn double_div(gpu: &Driver) {
    load(gpu).check2("double_div", &doubles(), &doubles(), |a, b| {
        ROUNDS.map(|round| Number::kept(to_double(&double(a).divide(&double(b)), round), [a, b]))
    });
}

fn double_sqrt(gpu: &Driver) {
    load(gpu).check1("double_sqrt", &doubles(), |a| {
        ROUNDS.map(|round| Number::kept(to_double(&double(a).root(), round), [a]))
    });
}

fn double_rcp(gpu: &Driver) {
    load(gpu).check1("double_rcp", &doubles(), |a| {
        ROUNDS.map(|round| Number::kept(to_double(&double(1.0).divide(&double(a)), round), [a]))
    });
}

fn double_fma(gpu: &Driver) {
    let values = few_doubles();
    load(gpu).check3("double_fma", &values, &values, &values, |a, b, c| {
        ROUNDS.map(|round| {
            Number::kept(to_double(&double(a).multiply(&double(b)).add(&double(c), round), round), [a, b, c])
        })
    });
}

/// Denormals become zeros with their sign.
fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0.0f32.copysign(value) } else { value }
}

/// The smaller one; a number wins over NaN, two of which make the canonical one, and -0 is less than +0.
fn smaller(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::from_bits(SINGLE.nan() as u32),
        (true, _) => b,
        (_, true) => a,
        _ if a == 0.0 && b == 0.0 => f32::from_bits(a.to_bits() | b.to_bits()),
        _ => a.min(b),
    }
}

fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() && b.is_nan() { smaller(a, b) } else { -smaller(-a, -b) }
}

fn float_flush(gpu: &Driver) {
    load(gpu).check2("float_flush", &floats(), &floats(), |a, b| {
        let (x, y) = (flush(a), flush(b));
        let difference = to_single(&single(x).add(&single(y).negate(), Round::Zero), Round::Zero);
        let [sum, product, difference] = [x + y, x * y, difference].map(|value| Number::any_nan(flush(value)));
        [sum, product, difference, Number::bits(smaller(x, y))]
    });
}

fn float_saturate(gpu: &Driver) {
    load(gpu).check2("float_saturate", &floats(), &floats(), |a, b| {
        let saturate = |value: f32| if value.is_nan() || value <= 0.0 { 0.0 } else { value.min(1.0) };
        let sum = to_single(&single(a).multiply(&single(b)).add(&single(a), Round::Nearest), Round::Nearest);
        [a + b, a * b, sum].map(|value| Number::bits(saturate(value)))
    });
}

fn float_min_max(gpu: &Driver) {
    load(gpu).check2("float_min_max", &floats(), &floats(), |a, b| [smaller(a, b), larger(a, b)].map(Number::bits));
}

fn double_min_max(gpu: &Driver) {
    let smaller = |a: f64, b: f64| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == 0.0 && b == 0.0 => f64::from_bits(a.to_bits() | b.to_bits()),
        _ => a.min(b),
    };
    load(gpu).check2("double_min_max", &doubles(), &doubles(), |a: f64, b: f64| {
        [smaller(a, b), -smaller(-a, -b)].map(Number::any_nan)
    });
}

fn float_signs(gpu: &Driver) {
    // The instruction takes the sign of its first operand, the C function that of its second.
    load(gpu).check2("float_signs", &floats(), &floats(), |a: f32, b: f32| {
        let [size, opposite, signed] = [a.abs(), -a, a.copysign(b)].map(Number::any_nan);
        [size, opposite, signed, Number::bits(b.copysign(a))]
    });
}

fn float_kinds(gpu: &Driver) {
    load(gpu).check1("float_kinds", &floats(), |a: f32| {
        // Zero counts as normal.
        let normal = a.is_normal() || a == 0.0;
        let facts = [a.is_finite(), a.is_infinite(), !a.is_nan(), a.is_nan(), normal, a.is_subnormal()];
        facts.map(u32::from)
    });
}

fn comparisons<T: PartialOrd>(a: T, b: T) -> [u32; 14] {
    let order = a.partial_cmp(&b);
    let known = order.is_some();
    let facts = [a == b, known && a != b, a < b, a <= b, a > b, a >= b];
    let [equal, unequal, less, at_most, more, at_least] = facts;
    [
        equal,
        unequal,
        less,
        at_most,
        more,
        at_least,
        !known || equal,
        !known || unequal,
        !known || less,
        !known || at_most,
        !known || more,
        !known || at_least,
        known,
        !known,
    ]
    .map(u32::from)
}

fn float_compare(gpu: &Driver) {
    load(gpu).check2("float_compare", &floats(), &floats(), comparisons::<f32>);
}

fn double_compare(gpu: &Driver) {
    load(gpu).check2("double_compare", &doubles(), &doubles(), comparisons::<f64>);
}

fn float_set(gpu: &Driver) {
    load(gpu).check2("float_set", &floats(), &floats(), |a: f32, b: f32| {
        let positive = a > 0.0;
        let both = a < b && positive;
        // The second result is the opposite of the comparison, with the same condition.
        let other = a.partial_cmp(&b).is_none_or(|order| order.is_ge()) && positive;
        [
            if a < b { !0 } else { 0 },
            if a >= b { 1f32.to_bits() } else { 0 },
            u32::from(both) + 2 * u32::from(other),
            if a >= 0.0 { 7 } else { 9 },
        ]
    });
}

fn float_flush_compare(gpu: &Driver) {
    load(gpu).check2("float_flush_compare", &floats(), &floats(), |a: f32, b: f32| {
        [u32::from(flush(a) == flush(b)), u32::from(flush(a) < flush(b))]
    });
}
