//! Strong accesses: volatile, relaxed, acquire and release.
//!
//! They are neither dropped nor merged with others, and a pair or vector of words is one access, as on a GPU: programs pass a
//! value and the word that says whether it is valid in one vector (CUB's decoupled look-back), which must not be torn.
//!
//! Up to eight bytes are one load or store of an integer register. Sixteen bytes are one of a vector register. Their
//! address is aligned, or else the access has faulted already; at such addresses processors with AVX do these as one access, as
//! Intel's and AMD's manuals promise. Of older ones nobody promises that. Thirty-two bytes are two accesses.

use cranelift_codegen::ir::{InstBuilder, Type as Machine, Value, types};
use ptx_passes::ir::{Reg, Type, Value as Operand};

use super::Lower;
use super::memory::Place;
use super::registers::{machine, untyped};

/// Bytes of the widest access that is one.
const WIDEST: u32 = 16;
/// Bits of the words that wider accesses are taken apart into.
const WORD: u32 = 64;

/// The type of a piece that fits into an integer register.
fn integer(bytes: u32) -> Machine {
    match bytes {
        1 => types::I8,
        2 => types::I16,
        4 => types::I32,
        _ => types::I64,
    }
}

impl Lower<'_, '_> {
    pub(crate) fn strong_load(&mut self, place: Place, ty: Type, dst: &[Option<Reg>]) {
        let total = ty.bytes() * dst.len() as u32;
        // Without it a later load could be given what an earlier one has found, and this one, too.
        self.b.ins().sequence_point();
        let mut words = Vec::new();
        for at in (0..total).step_by(WIDEST as usize) {
            let at = place.offset + at as i32;
            if total < WIDEST {
                let pointer = self.b.ins().iadd_imm_s(place.pointer, i64::from(at));
                words.push(self.b.ins().atomic_load(integer(total), place.flags, pointer));
            } else {
                let both = self.b.ins().load(types::I64X2, place.flags, place.pointer, at);
                words.extend([0, 1].map(|lane| self.b.ins().extractlane(both, lane)));
            }
        }
        for (index, reg) in dst.iter().enumerate() {
            let Some(reg) = reg else { continue };
            let bit = index as u32 * ty.bits();
            let word = words[(bit / WORD) as usize];
            let value = match words.get((bit / WORD) as usize + 1) {
                Some(high) if ty == Type::B128 => self.b.ins().iconcat(word, *high),
                _ if bit.is_multiple_of(WORD) => word,
                _ => self.b.ins().ushr_imm_u(word, i64::from(bit % WORD)),
            };
            let value = self.fit(value, machine(untyped(ty)), false);
            self.set(*reg, value, ty);
        }
    }

    /// The words that a strong store writes, of values that are taken before its address is checked.
    pub(crate) fn strong_words(&mut self, ty: Type, src: &[Operand]) -> Vec<Value> {
        let total = ty.bytes() * src.len() as u32;
        let class = integer(total);
        let mut words: Vec<Value> = Vec::new();
        for (index, operand) in src.iter().enumerate() {
            let value = self.get(*operand, untyped(ty));
            if ty == Type::B128 {
                let (low, high) = self.b.ins().isplit(value);
                words.extend([low, high]);
                continue;
            }
            let bit = index as u32 * ty.bits() % WORD;
            let wide = self.fit(value, class, false);
            if bit == 0 {
                words.push(wide);
            } else if let Some(last) = words.pop() {
                let placed = self.b.ins().ishl_imm_u(wide, i64::from(bit));
                words.push(self.b.ins().bor(last, placed));
            }
        }
        words
    }

    pub(crate) fn strong_store(&mut self, place: Place, words: &[Value]) {
        // Without it a store could be dropped that writes what was written before, although another thread has written meanwhile.
        self.b.ins().sequence_point();
        for (index, piece) in words.chunks((WIDEST * 8 / WORD) as usize).enumerate() {
            let at = place.offset + (index as u32 * WIDEST) as i32;
            let value = match *piece {
                [low, high] => {
                    let low = self.b.ins().scalar_to_vector(types::I64X2, low);
                    self.b.ins().insertlane(low, high, 1)
                }
                _ => piece[0],
            };
            self.b.ins().store(place.flags, value, place.pointer, at);
        }
    }
}
