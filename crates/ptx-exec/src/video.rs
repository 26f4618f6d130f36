//! Arithmetic on parts of words, and conversions that pack numbers into words.

use ptx_passes::video::{Second, VideoCode, VideoOp};

/// The value of a part of a word.
fn part(word: u64, part: u8, signed: bool) -> i64 {
    let word = word as u32;
    let byte =
        |at: u8| if signed { i64::from((word >> (8 * at)) as i8) } else { i64::from((word >> (8 * at)) as u8) };
    let half = |at: u8| {
        if signed { i64::from((word >> (16 * at)) as i16) } else { i64::from((word >> (16 * at)) as u16) }
    };
    match part {
        0 if signed => i64::from(word as i32),
        0 => i64::from(word),
        1..=4 => byte(part - 1),
        _ => half(part - 5),
    }
}

fn clamp(value: i64, bits: u32, signed: bool) -> i64 {
    if signed { value.clamp(-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { value.clamp(0, (1 << bits) - 1) }
}

fn one(code: VideoCode, a: i64, b: i64, c: i64, bits: u32) -> i64 {
    let amount = || if code.wrap { b & 31 } else { b.clamp(0, 32) };
    match code.op {
        VideoOp::Add => a + b,
        VideoOp::Sub => a - b,
        VideoOp::AbsDiff => (a - b).abs(),
        VideoOp::Min => a.min(b),
        VideoOp::Max => a.max(b),
        VideoOp::Shl => a << amount(),
        VideoOp::Shr => a >> amount(),
        VideoOp::Mad => a.wrapping_mul(b).wrapping_add(c) >> code.scale,
        VideoOp::Average => (a + b + 1) >> 1,
        VideoOp::Set(compare) => {
            let order = a.cmp(&b);
            let truth = match compare {
                0 => order.is_eq(),
                1 => order.is_ne(),
                2 => order.is_lt(),
                3 => order.is_le(),
                4 => order.is_gt(),
                _ => order.is_ge(),
            };
            let _ = bits;
            i64::from(truth)
        }
    }
}

/// `vadd` and its kind, on a, b and c.
pub(crate) fn compute(code: u64, [a, b, c]: [u64; 3]) -> u64 {
    let code = VideoCode::unpack(code);
    if code.lanes > 1 {
        return lanes(code, a as u32, b as u32, c as u32);
    }
    let third = part(c, 0, code.signed[0]);
    let mut value =
        one(code, part(a, code.parts[0], code.signed[1]), part(b, code.parts[1], code.signed[2]), third, 32);
    if code.saturate {
        value = clamp(value, 32, code.signed[0]);
    }
    let cut = part(value as u64, 0, code.signed[0]);
    u64::from(match code.second {
        Second::None => cut,
        Second::Add => cut.wrapping_add(third),
        Second::Min => cut.min(third),
        Second::Max => cut.max(third),
    } as u32)
}

/// Two or four parts at once; with a second operation their results are added up.
fn lanes(code: VideoCode, a: u32, b: u32, c: u32) -> u64 {
    let bits = 32 / u32::from(code.lanes);
    let first = if code.lanes == 4 { 1 } else { 5 };
    let mut word = 0u32;
    let mut sum = c;
    for lane in 0..code.lanes {
        let (x, y) = (part(a.into(), first + lane, code.signed[1]), part(b.into(), first + lane, code.signed[2]));
        let mut value = one(code, x, y, 0, bits);
        if code.saturate {
            value = clamp(value, bits, code.signed[0]);
        }
        sum = sum.wrapping_add(value as u32);
        word |= (value as u32 & ((1 << bits) - 1)) << (u32::from(lane) * bits);
    }
    u64::from(if code.second == Second::Add { sum } else { word })
}

/// `cvt.pack.sat`: a and b as narrow numbers below each other, c above them.
pub(crate) fn pack(code: u64, [a, b, c]: [u64; 3]) -> u64 {
    let (bits, signed, third) = (code as u32 & 0xff, code >> 8 & 1 == 1, code >> 9 & 1 == 1);
    let number = |word: u64| clamp(i64::from(word as i32), bits, signed) as u64 & ((1 << bits) - 1);
    let upper = if third { (c & 0xffff_ffff) << (2 * bits) } else { 0 };
    (upper | number(a) << bits | number(b)) & 0xffff_ffff
}
