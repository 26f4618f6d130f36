//! Atomic operations that the code generator has no instruction for: on floats, on halves, and with wrap-around.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use half::{bf16, f16};
use ptx_passes::ir::{AtomicOp, Type};

/// Types by number, as compiled code passes them.
const TYPES: [Type; 12] = [
    Type::F32,
    Type::F64,
    Type::F16,
    Type::BF16,
    Type::F16x2,
    Type::BF16x2,
    Type::U32,
    Type::B16,
    Type::U64,
    Type::U16,
    Type::S16,
    Type::B64,
];
const OPS: [AtomicOp; 7] =
    [AtomicOp::Add, AtomicOp::Min, AtomicOp::Max, AtomicOp::Inc, AtomicOp::Dec, AtomicOp::Exch, AtomicOp::Cas];

/// How compiled code passes an operation on a type; `None` when it is not one of ours.
pub(crate) fn code(op: AtomicOp, ty: Type) -> Option<i64> {
    let op = OPS.iter().position(|other| *other == op)?;
    let ty = TYPES.iter().position(|other| *other == ty)?;
    Some((op | ty << 8) as i64)
}

/// The new value for an old one.
fn update(op: AtomicOp, ty: Type, old: u64, operand: u64, swap: u64) -> u64 {
    let halves = |pick: fn(u16, u16) -> u16| {
        let low = pick(old as u16, operand as u16);
        let high = pick((old >> 16) as u16, (operand >> 16) as u16);
        u64::from(low) | u64::from(high) << 16
    };
    let half = |x: u16, y: u16, pick: fn(f32, f32) -> f32| {
        f16::from_f32(pick(f16::from_bits(x).to_f32(), f16::from_bits(y).to_f32())).to_bits()
    };
    let bfloat = |x: u16, y: u16, pick: fn(f32, f32) -> f32| {
        bf16::from_f32(pick(bf16::from_bits(x).to_f32(), bf16::from_bits(y).to_f32())).to_bits()
    };
    let add: fn(f32, f32) -> f32 = |x, y| x + y;
    let pick = match op {
        AtomicOp::Min => f32::min,
        AtomicOp::Max => f32::max,
        _ => add,
    };
    match (op, ty) {
        (AtomicOp::Exch, _) => operand,
        (AtomicOp::Cas, _) => {
            if old == operand {
                swap
            } else {
                old
            }
        }
        (AtomicOp::Inc, _) => {
            if old >= operand {
                0
            } else {
                old + 1
            }
        }
        (AtomicOp::Dec, _) => {
            if old == 0 || old > operand {
                operand
            } else {
                old - 1
            }
        }
        (_, Type::F32) => u64::from(pick(f32::from_bits(old as u32), f32::from_bits(operand as u32)).to_bits()),
        (_, Type::F64) => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        (_, Type::F16) => u64::from(half(old as u16, operand as u16, pick)),
        (_, Type::BF16) => u64::from(bfloat(old as u16, operand as u16, pick)),
        (AtomicOp::Min, Type::F16x2) => {
            halves(|x, y| f16::from_f32(f16::from_bits(x).to_f32().min(f16::from_bits(y).to_f32())).to_bits())
        }
        (AtomicOp::Max, Type::F16x2) => {
            halves(|x, y| f16::from_f32(f16::from_bits(x).to_f32().max(f16::from_bits(y).to_f32())).to_bits())
        }
        (_, Type::F16x2) => {
            halves(|x, y| f16::from_f32(f16::from_bits(x).to_f32() + f16::from_bits(y).to_f32()).to_bits())
        }
        (AtomicOp::Min, Type::BF16x2) => {
            halves(|x, y| bf16::from_f32(bf16::from_bits(x).to_f32().min(bf16::from_bits(y).to_f32())).to_bits())
        }
        (AtomicOp::Max, Type::BF16x2) => {
            halves(|x, y| bf16::from_f32(bf16::from_bits(x).to_f32().max(bf16::from_bits(y).to_f32())).to_bits())
        }
        (_, Type::BF16x2) => {
            halves(|x, y| bf16::from_f32(bf16::from_bits(x).to_f32() + bf16::from_bits(y).to_f32()).to_bits())
        }
        _ => old.wrapping_add(operand),
    }
}

macro_rules! exchange {
    ($atomic:ty, $word:ty, $address:expr, $update:expr) => {{
        // SAFETY: compiled code has checked that the address is aligned and in memory that the kernel may touch; what
        // is not mapped raises a signal that ends the kernel, and nothing here needs dropping.
        let cell = unsafe { <$atomic>::from_ptr($address as *mut $word) };
        let mut old = cell.load(Ordering::Relaxed);
        loop {
            let new = $update(u64::from(old)) as $word;
            match cell.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(old) => return u64::from(old),
                Err(now) => old = now,
            }
        }
    }};
}

pub(crate) extern "C" fn atomic(address: u64, code: i32, operand: u64, swap: u64) -> u64 {
    let op = OPS.get((code & 0xff) as usize).copied().unwrap_or(AtomicOp::Add);
    let ty = TYPES.get((code >> 8) as usize).copied().unwrap_or(Type::U32);
    let mask = if ty.bits() == 64 { !0 } else { (1 << ty.bits()) - 1 };
    let (operand, swap) = (operand & mask, swap & mask);
    let update = |old: u64| update(op, ty, old, operand, swap);
    match ty.bits() {
        16 => exchange!(AtomicU16, u16, address, update),
        32 => exchange!(AtomicU32, u32, address, update),
        _ => exchange!(AtomicU64, u64, address, update),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: AtomicOp, ty: Type, memory: &mut u64, operand: u64) -> u64 {
        atomic(std::ptr::from_mut(memory) as u64, code(op, ty).unwrap() as i32, operand, 0)
    }

    #[test]
    fn counters_wrap_where_they_are_told() {
        let mut memory = 6;
        assert_eq!(run(AtomicOp::Inc, Type::U32, &mut memory, 7), 6);
        assert_eq!(run(AtomicOp::Inc, Type::U32, &mut memory, 7), 7);
        assert_eq!(memory, 0);
        assert_eq!(run(AtomicOp::Dec, Type::U32, &mut memory, 7), 0);
        assert_eq!(memory, 7);
    }

    #[test]
    fn floats_add() {
        let mut memory = 1.5f64.to_bits();
        run(AtomicOp::Add, Type::F64, &mut memory, 2.0f64.to_bits());
        assert_eq!(f64::from_bits(memory), 3.5);
        let one = u64::from(f16::from_f32(1.0).to_bits());
        let mut pair = one | one << 16;
        run(AtomicOp::Add, Type::F16x2, &mut pair, one | one << 16);
        let two = u64::from(f16::from_f32(2.0).to_bits());
        assert_eq!(pair, two | two << 16);
    }
}
