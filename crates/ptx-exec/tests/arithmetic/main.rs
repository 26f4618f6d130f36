//! Arithmetic instructions against references that compute exactly, on edge values and on bits without a pattern.

#[path = "../kernels/mod.rs"]
mod kernels;

use kernels::{Device, Params, alloc, download, upload};
use testkit::exact::{DOUBLE, Exact, Format, ROUNDS, Round, SINGLE};

/// Bits without a pattern, the same each time.
fn noise(count: usize) -> Vec<u64> {
    let mut random = testkit::Random::new(1);
    (0..count).map(|_| random.word()).collect()
}

/// Runs `instruction` (of `ty`, from %a, %b and %c to %d) on each triple.
fn run(ty: &str, width: u32, instruction: &str, triples: &[[u64; 3]]) -> Vec<u64> {
    let to_store = if width == 16 { "st.global.b16 [%at], %d" } else { &format!("st.global.b{width} [%at], %d") };
    let load = |reg: &str, offset: u32| format!("ld.global.b{width} {reg}, [%from+{offset}];");
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 o, .param .u64 i, .param .u32 n) {{
            .reg .{ty} %a, %b, %c, %d; .reg .pred %p; .reg .b32 %t, %n, %u, %v; .reg .b64 %at, %from, %off;
            ld.param.u64 %at, [o]; ld.param.u64 %from, [i]; ld.param.u32 %n, [n];
            mov.u32 %t, %ctaid.x; mov.u32 %u, %ntid.x; mov.u32 %v, %tid.x; mad.lo.u32 %t, %t, %u, %v;
            setp.ge.u32 %p, %t, %n; @%p ret;
            mul.wide.u32 %off, %t, 8; add.u64 %at, %at, %off; mul.wide.u32 %off, %t, 24; add.u64 %from, %from, %off;
            {} {} {}
            {instruction}
            {to_store}; ret;
        }}",
        load("%a", 0),
        load("%b", 8),
        load("%c", 16)
    );
    let device = Device::load(&text);
    let (out, inputs) = (alloc(triples.len() as u64 * 8), upload(triples));
    let params = Params::new().add(out).add(inputs).add(triples.len() as u32);
    device.run("k", (triples.len() as u32).div_ceil(128), 128, params);
    download(out, triples.len())
}

/// All pairs and some triples of the edges, and noise.
fn triples(edges: &[u64]) -> Vec<[u64; 3]> {
    let mut out = Vec::new();
    for (i, a) in edges.iter().enumerate() {
        for (j, b) in edges.iter().enumerate() {
            out.push([*a, *b, edges[(i * 7 + j * 3) % edges.len()]]);
            out.push([*a, *b, edges[(i + j * 5 + 1) % edges.len()]]);
        }
    }
    let noise = noise(3000);
    out.extend(noise.chunks_exact(3).map(|three| [three[0], three[1], three[2]]));
    out
}

fn float_edges(format: Format) -> Vec<u64> {
    let one = format.write(&Exact::from_int(1), Round::Zero);
    let tiny = 1u64 << format.stored;
    let largest = format.infinity() - 1;
    let third = one - tiny - tiny / 3;
    let plain =
        [0, 1, 2, tiny - 1, tiny, tiny + 1, one - 1, one, one + 1, one + tiny / 2, one + tiny, third, largest];
    let more = [largest - 1, format.infinity(), one + tiny * 23, one - tiny * 24];
    // One that is quiet, and one that would signal.
    let nans = [format.quiet(format.infinity() | 0x12), format.infinity() | 0x34];
    plain.iter().chain(&more).chain(&nans).flat_map(|bits| [*bits, *bits | format.sign()]).collect()
}

/// What an instruction makes of its operands.
type Rule = fn(&Exact, &Exact, &Exact, Round) -> Exact;

/// Compares an instruction in all four roundings, as it is and with subnormals flushed.
fn floats(name: &str, format: Format, operands: &str, rule: Rule) {
    let (ty, width) = if format.stored == SINGLE.stored { ("f32", 32) } else { ("f64", 64) };
    let mask = u64::MAX >> (64 - width);
    let all: Vec<[u64; 3]> = triples(&float_edges(format)).into_iter().map(|t| t.map(|bits| bits & mask)).collect();
    for round in ROUNDS {
        for ftz in [false, true] {
            if ftz && width == 64 {
                continue;
            }
            let dots = if ftz { ".ftz" } else { "" };
            let instruction = format!("{name}.{}{dots}.{ty} %d, {operands};", round.suffix());
            let got = run(ty, width, &instruction, &all);
            for (triple, got) in all.iter().zip(got) {
                let got = got & mask;
                let inputs = if ftz { triple.map(|bits| format.flush(bits)) } else { *triple };
                let [a, b, c] = inputs.map(|bits| format.read(bits));
                let value = rule(&a, &b, &c, round);
                let place = || format!("{instruction} {inputs:#x?}: {got:#x}");
                if matches!(value, Exact::Nan) {
                    let used = &inputs[..operands.matches('%').count()];
                    assert!(is_right_nan(format, used, got), "{}", place());
                    continue;
                }
                let expected = format.write(&value, round);
                let flushed = if ftz { format.flush(expected) } else { expected };
                // Whether a number is tiny may be asked before or after it is rounded.
                let before = ftz && format.is_subnormal(format.write(&value, Round::Zero));
                let zero = expected & format.sign();
                assert!(got == flushed || before && got == zero, "{}, not {expected:#x}", place());
            }
        }
    }
}

/// PTX ISA, 9.7.3: a double keeps the payload of a NaN operand (of either, where there are two); which NaN a single
/// instruction returns is not specified, nor is the one that comes of numbers.
fn is_right_nan(format: Format, operands: &[u64], got: u64) -> bool {
    let mut nans = operands.iter().filter(|bits| format.is_nan(**bits)).peekable();
    let open = format.stored == SINGLE.stored || nans.peek().is_none();
    let kept = |bits: &u64| format.payload(format.quiet(*bits)) == format.payload(got);
    format.is_nan(got) && (open || nans.any(kept))
}

fn both(name: &str, operands: &str, rule: Rule) {
    floats(name, SINGLE, operands, rule);
    floats(name, DOUBLE, operands, rule);
}

#[test]
fn sums_are_rounded_once() {
    both("add", "%a, %b", |a, b, _, round| a.add(b, round));
    both("sub", "%a, %b", |a, b, _, round| a.add(&b.clone().negate(), round));
}

#[test]
fn products_are_rounded_once() {
    both("mul", "%a, %b", |a, b, _, _| a.multiply(b));
    both("fma", "%a, %b, %c", |a, b, c, round| a.multiply(b).add(c, round));
}

#[test]
fn quotients_and_roots_are_rounded_once() {
    both("div", "%a, %b", |a, b, _, _| a.divide(b));
    both("rcp", "%a", |a, _, _, _| Exact::from_int(1).divide(a));
    both("sqrt", "%a", |a, _, _, _| a.root());
}

/// PTX ISA, 9.7.3.11 and 9.7.3.12: a number goes before NaN, and what comes of two NaNs is the canonical one. (Hardware
/// keeps a payload for doubles, so there it is left open.)
#[test]
fn the_extreme_of_two_nans_is_canonical() {
    let nans = [0x7fc0_0012u64, 0xffc0_0000, 0x7fa0_0034, 0x7fff_ffff];
    let pairs: Vec<[u64; 3]> = nans.iter().flat_map(|a| nans.iter().map(|b| [*a, *b, 0])).collect();
    let mixed: Vec<[u64; 3]> = nans.iter().flat_map(|nan| [[*nan, 0x3f80_0000, 0], [0x3f80_0000, *nan, 0]]).collect();
    for name in ["min", "max"] {
        let results = |suffix: &str, inputs: &[[u64; 3]]| -> Vec<u32> {
            let instruction = format!("{name}{suffix}.f32 %d, %a, %b;");
            run("f32", 32, &instruction, inputs).into_iter().map(|bits| bits as u32).collect()
        };
        for suffix in ["", ".ftz", ".NaN"] {
            assert_eq!(results(suffix, &pairs), vec![0x7fff_ffff; pairs.len()], "{name}{suffix}");
        }
        assert_eq!(results("", &mixed), vec![0x3f80_0000; mixed.len()], "{name}");
        assert_eq!(results(".NaN", &mixed), vec![0x7fff_ffff; mixed.len()], "{name}.NaN");
    }
}

#[test]
fn conversions_are_rounded_once() {
    let doubles: Vec<[u64; 3]> = triples(&float_edges(DOUBLE));
    let singles = float_edges(SINGLE).into_iter().map(|bits| f64::from(f32::from_bits(bits as u32)).to_bits());
    let near = singles.flat_map(|bits| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)]).map(|bits| [bits; 3]);
    let all: Vec<[u64; 3]> =
        doubles.into_iter().chain(near).filter(|t| t[0] & DOUBLE.infinity() != DOUBLE.infinity()).collect();
    for round in ROUNDS {
        let suffix = round.suffix();
        let body = format!("{{ .reg .f32 %s; cvt.{suffix}.f32.f64 %s, %a; cvt.f64.f32 %d, %s; }}");
        for (triple, got) in all.iter().zip(run("f64", 64, &body, &all)) {
            let expected = SINGLE.write(&DOUBLE.read(triple[0]), round);
            let expected = f64::from(f32::from_bits(expected as u32)).to_bits();
            assert_eq!(got, expected, "cvt.{suffix}.f32.f64 {:#x}", triple[0]);
        }
    }
}

#[test]
fn integers_become_floats_rounded_once() {
    let edges: Vec<u64> =
        (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, !(1 << bit)]).collect();
    let all: Vec<[u64; 3]> = edges.into_iter().chain(noise(500)).map(|value| [value; 3]).collect();
    for round in ROUNDS {
        let suffix = round.suffix();
        for (ty, format) in [("f32", SINGLE), ("f64", DOUBLE)] {
            for signed in [false, true] {
                let from = if signed { "s64" } else { "u64" };
                let bits = if ty == "f32" { "mov.b32 %x, %s; cvt.u64.u32 %d, %x;" } else { "mov.b64 %d, %s;" };
                let body = format!("{{ .reg .{ty} %s; .reg .b32 %x; cvt.{suffix}.{ty}.{from} %s, %a; {bits} }}");
                for (triple, got) in all.iter().zip(run("b64", 64, &body, &all)) {
                    let value = triple[0];
                    let exact = Exact::from_int(if signed { i128::from(value as i64) } else { i128::from(value) });
                    assert_eq!(got, format.write(&exact, round), "cvt.{suffix}.{ty}.{from} {value:#x}");
                }
            }
        }
    }
}

/// Integers of all widths against integers that are wide enough.
#[test]
fn integers_wrap_at_their_width() {
    type Rule = fn(i128, i128, i128, u32) -> Option<i128>;
    let rules: [(&str, &str, Rule); 11] = [
        ("add", "%a, %b", |a, b, _, _| Some(a + b)),
        ("sub", "%a, %b", |a, b, _, _| Some(a - b)),
        ("mul.lo", "%a, %b", |a, b, _, _| Some(a.wrapping_mul(b))),
        ("mul.hi", "%a, %b", |a, b, _, w| Some(high(a, b, w))),
        ("mad.lo", "%a, %b, %c", |a, b, c, _| Some(a.wrapping_mul(b).wrapping_add(c))),
        ("mad.hi", "%a, %b, %c", |a, b, c, w| Some(high(a, b, w) + c)),
        ("div", "%a, %b", |a, b, _, _| (b != 0).then(|| a / b)),
        ("rem", "%a, %b", |a, b, _, _| (b != 0).then(|| a % b)),
        ("min", "%a, %b", |a, b, _, _| Some(a.min(b))),
        ("max", "%a, %b", |a, b, _, _| Some(a.max(b))),
        ("sad", "%a, %b, %c", |a, b, c, _| Some((a - b).abs() + c)),
    ];
    for width in [16u32, 32, 64] {
        let mask = u64::MAX >> (64 - width);
        let top = 1u64 << (width - 1);
        let edges = [0, 1, 2, 3, 5, top - 1, top, top + 1, mask, mask - 1, mask / 3, top / 7, mask >> (width / 2)];
        let all: Vec<[u64; 3]> = triples(&edges).into_iter().map(|t| t.map(|bits| bits & mask)).collect();
        for signed in [false, true] {
            let ty = format!("{}{width}", if signed { 's' } else { 'u' });
            let value = |bits: u64| match signed {
                true => i128::from((bits << (64 - width)) as i64 >> (64 - width)),
                false => i128::from(bits),
            };
            for (name, operands, rule) in rules {
                let instruction = format!("{name}.{ty} %d, {operands};");
                for (triple, got) in all.iter().zip(run(&format!("b{width}"), width, &instruction, &all)) {
                    let [a, b, c] = triple.map(value);
                    let Some(expected) = rule(a, b, c, width) else { continue };
                    let expected = expected as u64 & mask;
                    assert_eq!(got & mask, expected, "{instruction} {a} {b} {c}");
                }
            }
        }
    }
}

/// The upper half of a product, which may need all of 128 bits.
fn high(a: i128, b: i128, width: u32) -> i128 {
    if a >= 0 && b >= 0 {
        return ((a as u128 * b as u128) >> width) as i128;
    }
    (a * b) >> width
}

#[test]
fn sums_of_several_words_carry() {
    let all = triples(&[0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 0xffff_ffff, 0x1_0000_0000]);
    let parts = "mov.b64 {%a0, %a1}, %a; mov.b64 {%b0, %b1}, %b;";
    let registers = ".reg .b32 %a0, %a1, %b0, %b1, %d0, %d1;";
    for (first, then, rule) in [
        ("add.cc.u32", "addc.u32", u64::wrapping_add as fn(u64, u64) -> u64),
        ("sub.cc.u32", "subc.u32", u64::wrapping_sub),
    ] {
        let body = format!(
            "{{ {registers} {parts} {first} %d0, %a0, %b0; {then} %d1, %a1, %b1; mov.b64 %d, {{%d0, %d1}}; }}"
        );
        for (triple, got) in all.iter().zip(run("b64", 64, &body, &all)) {
            assert_eq!(got, rule(triple[0], triple[1]), "{first} {triple:x?}");
        }
    }
    let body = format!(
        "{{ {registers} {parts} mul.lo.u32 %d0, %a0, %b0; mul.hi.u32 %d1, %a0, %b0;
           mad.lo.u32 %d1, %a0, %b1, %d1; mad.lo.u32 %d1, %a1, %b0, %d1; mov.b64 %d, {{%d0, %d1}}; }}"
    );
    for (triple, got) in all.iter().zip(run("b64", 64, &body, &all)) {
        assert_eq!(got, triple[0].wrapping_mul(triple[1]), "{triple:x?}");
    }
}
