//! `bits.cu`.

use cuda_abi::driver::Driver;

use super::device::Kernels;
use super::values::*;

super::tests! {
    bit_shift_32,
    bit_shift_64,
    bit_shift_16,
    bit_funnel,
    bit_logic,
    bit_logic_64,
    bit_count,
    bit_find,
    bit_extract,
    bit_insert,
    bit_permute,
    bit_find_nth,
    bit_mask_and_extend,
    bit_bytes_at_once,
    bit_video,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "bits")
}

/// Distances, sensible and not.
const AMOUNTS: [u32; 14] = [0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 0xffff_ffff];

fn bit_shift_32(gpu: &Driver) {
    load(gpu).check2("bit_shift_32", &words(), &AMOUNTS, |a: u32, b: u32| {
        [a.checked_shl(b).unwrap_or(0), a.checked_shr(b).unwrap_or(0), (a as i32 >> b.min(31)) as u32]
    });
}

fn bit_shift_64(gpu: &Driver) {
    load(gpu).check2("bit_shift_64", &long_words(), &AMOUNTS, |a: u64, b: u32| {
        [a.checked_shl(b).unwrap_or(0), a.checked_shr(b).unwrap_or(0), (a as i64 >> b.min(63)) as u64]
    });
}

fn bit_shift_16(gpu: &Driver) {
    load(gpu).check2("bit_shift_16", &half_words(), &AMOUNTS, |a: u16, b: u32| {
        [a.checked_shl(b).unwrap_or(0), a.checked_shr(b).unwrap_or(0), (a as i16 >> b.min(15)) as u16]
    });
}

fn bit_funnel(gpu: &Driver) {
    load(gpu).check3("bit_funnel", &few_words(), &few_words(), &AMOUNTS, |a: u32, b: u32, c: u32| {
        let both = u64::from(b) << 32 | u64::from(a);
        let left = |by: u32| (both << by >> 32) as u32;
        let right = |by: u32| (both >> by) as u32;
        [left(c & 31), right(c & 31), left(c.min(32)), right(c.min(32))]
    });
}

fn bit_logic(gpu: &Driver) {
    let words = few_words();
    load(gpu).check3("bit_logic", &words, &words, &words, |a: u32, b: u32, c: u32| {
        let table = |table: u32| {
            (0..32).fold(0, |result, bit| {
                let index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1;
                result | (table >> index & 1) << bit
            })
        };
        [a & b | c, (a ^ b) & !c, !(a | b | c), table(0x96), table(0xca), table(0x1b)]
    });
}

fn bit_logic_64(gpu: &Driver) {
    load(gpu).check2("bit_logic_64", &long_words(), &long_words(), |a: u64, b: u64| [a & b, a | b, a ^ b, !a]);
}

fn bit_count(gpu: &Driver) {
    load(gpu).check1("bit_count", &long_words(), |a: u64| {
        let word = a as u32;
        let first = |zeros: u32, none: bool| if none { 0 } else { zeros + 1 };
        [
            word.count_ones(),
            a.count_ones(),
            word.leading_zeros(),
            a.leading_zeros(),
            word.reverse_bits(),
            (a.reverse_bits() >> 32) as u32,
            a.reverse_bits() as u32,
            first(word.trailing_zeros(), word == 0),
            first(a.trailing_zeros(), a == 0),
        ]
    });
}

fn bit_find(gpu: &Driver) {
    load(gpu).check1("bit_find", &long_words(), |a: u64| {
        let highest = |value: u64| if value == 0 { !0 } else { 63 - value.leading_zeros() };
        let word = a as u32;
        let positive = |value: i64| if value < 0 { !value as u64 } else { value as u64 };
        let shift = |found: u32, top: u32| if found == !0 { !0 } else { top - found };
        let (unsigned, signed) = (highest(u64::from(word)), highest(positive(i64::from(word as i32))));
        let signed_long = highest(positive(a as i64));
        [unsigned, signed, shift(unsigned, 31), highest(a), signed_long, shift(signed_long, 63)]
    });
}

fn extract(value: u64, top: u32, at: u32, len: u32, signed: bool) -> u64 {
    let (at, len) = (at & 255, len & 255);
    let bit = |index: u32| value >> index & 1;
    let sign = if signed && len != 0 { bit((at + len - 1).min(top)) } else { 0 };
    (0..=top).fold(0, |result, index| {
        let taken = if index < len && at + index <= top { bit(at + index) } else { sign };
        result | taken << index
    })
}

fn bit_extract(gpu: &Driver) {
    let places = [0, 1, 5, 16, 31, 32, 40, 63, 64, 200, 255];
    load(gpu).check3("bit_extract", &few_long_words(), &places, &places, |a: u64, at: u32, len: u32| {
        let low = a & 0xffff_ffff;
        [
            extract(low, 31, at, len, false),
            extract(low, 31, at, len, true),
            extract(a, 63, at, len, false),
            extract(a, 63, at, len, true),
        ]
    });
}

fn bit_insert(gpu: &Driver) {
    let places = [0, 1, 5, 16, 31, 32, 40, 63, 64, 200, 255];
    load(gpu).check3("bit_insert", &few_long_words(), &places, &places, |a: u64, at: u32, len: u32| {
        let insert = |from: u64, into: u64, top: u32| {
            let (at, len) = (at & 255, len & 255);
            (0..len)
                .take_while(|index| at + index <= top)
                .fold(into, |result, index| result & !(1 << (at + index)) | (from >> index & 1) << (at + index))
        };
        [insert(a & 0xffff_ffff, a >> 32, 31), insert(a, (!a).wrapping_mul(3), 63)]
    });
}

fn bit_permute(gpu: &Driver) {
    let selectors = [0x3210, 0x7654, 0x0000, 0x5140, 0xba98, 0x89ab, 0x1f3e, 0xfedc, 0x1_0001, 2, 3];
    load(gpu).check3("bit_permute", &few_words(), &few_words(), &selectors, |a: u32, b: u32, c: u32| {
        let bytes: Vec<u32> = [a, b].iter().flat_map(|word| word.to_le_bytes()).map(u32::from).collect();
        let general = (0..4).fold(0, |result, at| {
            let selector = c >> (4 * at) & 15;
            let byte = bytes[(selector & 7) as usize];
            let byte = if selector & 8 == 0 { byte } else { [0, 255][(byte >> 7) as usize] };
            result | byte << (8 * at)
        });
        // Highest byte first, as the manual lists them.
        let special = |table: [[usize; 4]; 4]| {
            table[(c & 3) as usize].iter().fold(0, |result, from| result << 8 | bytes[*from])
        };
        [
            general,
            special([[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
            special([[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
            special([[0; 4], [1; 4], [2; 4], [3; 4]]),
            special([[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
            special([[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
            special([[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
        ]
    });
}

fn bit_find_nth(gpu: &Driver) {
    let offsets = [0i32, 1, 2, 5, 16, 32, -1, -2, -7];
    load(gpu).check3("bit_find_nth", &few_words(), &[0u32, 1, 13, 31], &offsets, |mask: u32, base: u32, nth: i32| {
        let set = |bit: &u32| mask >> bit & 1 == 1;
        let skip = nth.unsigned_abs() as usize;
        [match nth {
            0 => set(&base).then_some(base),
            1.. => (base..32).filter(set).nth(skip - 1),
            _ => (0..=base).rev().filter(set).nth(skip - 1),
        }
        .unwrap_or(!0)]
    });
}

fn bit_mask_and_extend(gpu: &Driver) {
    load(gpu).check2("bit_mask_and_extend", &AMOUNTS, &AMOUNTS, |a: u32, b: u32| {
        let ones = |at: u32, count: u32| (((1u128 << count.min(32)) - 1) << at.min(32)) as u32;
        let low = |count: u32| ((1u64 << count.min(32)) - 1) as u32;
        let negative = b != 0 && a >> (b.min(32) - 1) & 1 == 1;
        let signed = if negative { a & low(b) | !low(b) } else { a & low(b) };
        [ones(a, b), ones(a & 31, b & 31), signed, a & low(b & 31)]
    });
}

fn bit_bytes_at_once(gpu: &Driver) {
    load(gpu).check2("bit_bytes_at_once", &words(), &words(), |a: u32, b: u32| {
        let bytes = |f: &dyn Fn(u8, u8) -> u8| {
            let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            pairs.rev().fold(0u32, |word, (x, y)| word << 8 | u32::from(f(x, y)))
        };
        let shorts = |f: &dyn Fn(u16, u16) -> u16| {
            u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
        };
        let differences = a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(x, y)| u32::from(x.abs_diff(y)));
        [
            bytes(&u8::wrapping_add),
            shorts(&u16::wrapping_sub),
            bytes(&|x, y| (u16::from(x) + u16::from(y)).div_ceil(2) as u8),
            bytes(&|x, y| (x as i8).max(y as i8) as u8),
            shorts(&u16::min),
            bytes(&|x, y| if x == y { 255 } else { 0 }),
            bytes(&u8::abs_diff),
            bytes(&|x, y| (x as i8).saturating_add(y as i8) as u8),
            shorts(&u16::saturating_sub),
            bytes(&|x, y| u8::from(x > y)),
            differences.sum(),
            shorts(&|x, _| x.wrapping_neg()),
        ]
    });
}

fn bit_video(gpu: &Driver) {
    let words = few_words();
    load(gpu).check3("bit_video", &words, &words, &words, |a: u32, b: u32, c: u32| {
        let signed = |value: u32| i64::from(value as i32);
        let sum = (i64::from(a) + signed(b)).clamp(i64::from(i32::MIN), i64::from(i32::MAX));
        let difference = i64::from((a >> 8) as i8) - i64::from((b >> 16) as u16);
        let distance = i64::from(a as i16).abs_diff(i64::from((b >> 24) as i8));
        [
            sum as u32,
            difference as u32,
            (distance as u32).wrapping_add(c),
            (a as i32).min(b as i32).max(c as i32) as u32,
            a << (b & 31),
            (i64::from(a as i8) * i64::from(b as i16) + signed(c)) as u32,
            u32::from(signed(a) < i64::from(b)),
        ]
    });
}
