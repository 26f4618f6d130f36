//! Products of matrices, by all lanes of a warp together: when the last lane has come, its fiber computes for all.
//!
//! A fragment is the part of a matrix that lies in a lane's registers. For `mma` the manual says which elements those
//! are: with p elements in a register, lane l and g = l / 4, t = l % 4, register r holds
//!
//! ```text
//! of a: row g + 8 (r % 2), columns 4 p (r / 2) + t p + 0..p
//! of b: column g, rows 4 p r + t p + 0..p
//! of c: element i of the fragment is row g + 8 (i / 2), column 2 t + i % 2
//! ```
//!
//! For `wmma` nobody says, so the elements are dealt out in the order of rows, the same number to each lane.

use half::{bf16, f16};

use super::context::Context;
use super::small;
use crate::passes::ir::Space;
use crate::passes::matrix::{FragmentCode, Kind, MultiplyCode, Part, STAYS, STORES, Shape, TRANSPOSED};

/// The words of each lane.
pub type Lanes = [*mut u64; 32];

/// Reads element `index` of registers that start at word `first`.
///
/// # Safety
/// The lane's words reach that far.
unsafe fn element(words: *const u64, first: u32, kind: Kind, index: u32) -> u64 {
    let per = (32 / kind.bits()).max(1);
    // SAFETY: as promised.
    let word = unsafe { *words.add((first + index / per) as usize) };
    if kind.bits() >= 32 {
        return word;
    }
    word >> (index % per * kind.bits()) & ((1 << kind.bits()) - 1)
}

/// Writes element `index` of registers that start at word 0.
///
/// # Safety
/// As for `element`.
unsafe fn set_element(words: *mut u64, kind: Kind, index: u32, value: u64) {
    let per = (32 / kind.bits()).max(1);
    // SAFETY: as promised.
    let word = unsafe { &mut *words.add((index / per) as usize) };
    if kind.bits() >= 32 {
        *word = value;
    } else {
        let (shift, mask) = (index % per * kind.bits(), (1u64 << kind.bits()) - 1);
        *word = *word & !(mask << shift) | (value & mask) << shift;
    }
}

fn real(kind: Kind, bits: u64) -> f64 {
    match kind {
        Kind::F16 => f16::from_bits(bits as u16).to_f64(),
        Kind::BF16 => bf16::from_bits(bits as u16).to_f64(),
        // The lower bits are not part of the number.
        Kind::TF32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        Kind::F32 => f64::from(f32::from_bits(bits as u32)),
        Kind::E4M3 => small::widen(1, bits as u8),
        Kind::E5M2 => small::widen(2, bits as u8),
        _ => f64::from_bits(bits),
    }
}

fn whole(kind: Kind, bits: u64) -> i64 {
    match kind {
        Kind::S8 => i64::from(bits as i8),
        Kind::S4 => (bits as i64) << 60 >> 60,
        Kind::S32 => i64::from(bits as i32),
        _ => bits as i64,
    }
}

fn bits_of(kind: Kind, value: f64) -> u64 {
    match kind {
        Kind::F16 => super::half_math::from_f64(0, value) as u64 & 0xffff,
        Kind::F64 => value.to_bits(),
        _ => u64::from((value as f32).to_bits()),
    }
}

/// Lane and element that hold row `i` and column `j` of a part.
fn holder(code: &MultiplyCode, part: Part, kind: Kind, i: u32, j: u32) -> (usize, u32) {
    let (rows, columns) = part.size(code.shape);
    if code.opaque {
        let (index, each) = (i * columns + j, rows * columns / 32);
        return ((index / each) as usize, index % each);
    }
    let per = (32 / kind.bits()).max(1);
    match part {
        Part::A => {
            let (block, within) = (j / (4 * per), j % (4 * per));
            let lane = i % 8 * 4 + within / per;
            let register = if rows > 8 { block * 2 + i / 8 } else { block };
            (lane as usize, register * per + within % per)
        }
        Part::B => {
            let (block, within) = (i / (4 * per), i % (4 * per));
            ((j * 4 + within / per) as usize, block * per + within % per)
        }
        Part::C => ((i % 8 * 4 + j / 2) as usize, i / 8 * 2 + j % 2),
    }
}

/// Computes a product for all lanes.
///
/// # Safety
/// All lanes' words are as many as the code says, and nobody else uses them now.
pub unsafe fn multiply(code: u64, lanes: &Lanes) {
    let code = MultiplyCode::unpack(code);
    let [a_kind, b_kind, c_kind, d_kind] = code.kinds;
    let [a_count, b_count, _] = code.counts;
    let Shape { m, n, k } = code.shape;
    let read = |part: Part, kind: Kind, first: u32, i: u32, j: u32| {
        let (lane, index) = holder(&code, part, kind, i, j);
        // SAFETY: the decoder has checked that fragments are of the size that the shape needs.
        unsafe { element(lanes[lane], first, kind, index) }
    };
    let a = |i, j| read(Part::A, a_kind, 0, i, j);
    let b = |i, j| read(Part::B, b_kind, a_count, i, j);
    let c = |i, j| read(Part::C, c_kind, a_count + b_count, i, j);
    // Results go where operands are, so all of them are computed first. At most 32 × 32.
    let mut results = [0u64; 1024];
    for i in 0..m {
        for j in 0..n {
            let terms = (0..k).map(|l| (a(i, l), b(l, j)));
            results[(i * n + j) as usize] = match c_kind {
                Kind::S32 => {
                    let start = whole(Kind::S32, c(i, j));
                    let sum = start + terms.map(|(x, y)| product(&code, x, y)).sum::<i64>();
                    let limited = sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                    u64::from(if code.saturate { limited } else { sum } as u32)
                }
                Kind::F64 => {
                    let start = f64::from_bits(c(i, j));
                    terms.fold(start, |sum, (x, y)| f64::from_bits(x).mul_add(f64::from_bits(y), sum)).to_bits()
                }
                _ => {
                    let sum = terms.fold(0.0, |sum, (x, y)| sum + real(a_kind, x) * real(b_kind, y));
                    bits_of(d_kind, real(c_kind, c(i, j)) + sum)
                }
            };
        }
    }
    for i in 0..m {
        for j in 0..n {
            let (lane, index) = holder(&code, Part::C, d_kind, i, j);
            // SAFETY: as above.
            unsafe { set_element(lanes[lane], d_kind, index, results[(i * n + j) as usize]) };
        }
    }
}

fn product(code: &MultiplyCode, x: u64, y: u64) -> i64 {
    match code.kinds[0] {
        Kind::B1 if code.and => (x & y) as i64,
        Kind::B1 => (x ^ y) as i64,
        _ => whole(code.kinds[0], x) * whole(code.kinds[1], y),
    }
}

/// `wmma.load` and `wmma.store`: each lane moves its own elements. Words: base, offset, stride, values.
///
/// # Safety
/// On the fiber of `context`, with nothing alive that needs dropping; the words are as many as the code says.
pub unsafe fn fragment(context: *mut Context, code: u64, words: *mut u64) {
    let code = FragmentCode::unpack(code);
    let (rows, columns) = code.part.size(code.shape);
    let each = rows * columns / 32;
    let bits = code.kind.bits();
    // SAFETY: as promised.
    unsafe {
        let (base, stride) = ((*words).wrapping_add(*words.add(1)), *words.add(2) & 0xffff_ffff);
        let lane = (*context).linear % 32;
        let mut loaded = [0u64; 8];
        let held = code.count * (32 / bits).max(1);
        for index in 0..if code.store { each } else { held } {
            let element_number = lane * each + index % each;
            let (i, j) = (u64::from(element_number / columns), u64::from(element_number % columns));
            let place = if code.by_columns { j * stride + i } else { i * stride + j };
            let bit = place * u64::from(bits);
            let bytes = u64::from(bits.div_ceil(8));
            let pointer = place_of(context, code.space, base.wrapping_add(bit / 8), bytes, code.store);
            let shift = bit % 8;
            if code.store {
                let value = element(words.add(3), 0, code.kind, index);
                write_bits(pointer, bits, shift, value);
            } else {
                let value = read_bits(pointer, bits, shift);
                set_element(loaded.as_mut_ptr(), code.kind, index, value);
            }
        }
        if !code.store {
            std::ptr::copy_nonoverlapping(loaded.as_ptr(), words, code.count as usize);
        }
    }
}

unsafe fn read_bits(pointer: *const u8, bits: u32, shift: u64) -> u64 {
    // SAFETY: checked by `place_of`.
    unsafe {
        match bits {
            64 => pointer.cast::<u64>().read_unaligned(),
            32 => u64::from(pointer.cast::<u32>().read_unaligned()),
            16 => u64::from(pointer.cast::<u16>().read_unaligned()),
            _ => u64::from(*pointer) >> shift & ((1 << bits) - 1),
        }
    }
}

unsafe fn write_bits(pointer: *mut u8, bits: u32, shift: u64, value: u64) {
    // SAFETY: checked by `place_of`.
    unsafe {
        match bits {
            64 => pointer.cast::<u64>().write_unaligned(value),
            32 => pointer.cast::<u32>().write_unaligned(value as u32),
            16 => pointer.cast::<u16>().write_unaligned(value as u16),
            _ => {
                let mask = ((1u64 << bits) - 1) << shift;
                *pointer = (u64::from(*pointer) & !mask | value << shift & mask) as u8;
            }
        }
    }
}

use super::helpers::place_of;

/// The rows of `ldmatrix` and `stmatrix`: where the lane's row is. Word 0 becomes the native address.
///
/// # Safety
/// As for `fragment`.
pub unsafe fn prepare_move(context: *mut Context, code: u64, space: Space, words: *mut u64) {
    if code & STAYS != 0 {
        return;
    }
    let count = code & 15;
    // SAFETY: as promised; lanes beyond the last row name no address.
    unsafe {
        let lane = u64::from((*context).linear % 32);
        if lane < count * 8 {
            let address = (*words).wrapping_add(*words.add(1));
            *words = place_of(context, space, address, 16, code & STORES != 0) as u64;
        }
    }
}

/// Moves matrices of 8 × 8 halves between memory and registers, for all lanes.
///
/// # Safety
/// All lanes have been through `prepare_move`, and nobody else uses their words now.
pub unsafe fn move_matrices(code: u64, lanes: &Lanes) {
    let count = (code & 15) as usize;
    let transposed = code & TRANSPOSED != 0;
    // SAFETY: every row that is used was checked to have 16 bytes, every lane has a word for each matrix.
    unsafe {
        let mut rows = [[[0u16; 8]; 8]; 4];
        if code & (STORES | STAYS) == 0 {
            for (index, row) in rows.iter_mut().take(count).flatten().enumerate() {
                *row = (*lanes[index] as *const [u16; 8]).read_unaligned();
            }
        } else {
            let first = if code & STORES != 0 { 2 } else { 0 };
            for (lane, words) in lanes.iter().enumerate() {
                for (matrix, rows) in rows.iter_mut().take(count).enumerate() {
                    let word = *words.add(first + matrix);
                    for half in 0..2 {
                        let (i, j) = (lane / 4, lane % 4 * 2 + half);
                        let (i, j) = if transposed { (j, i) } else { (i, j) };
                        rows[i][j] = (word >> (16 * half)) as u16;
                    }
                }
            }
        }
        if code & STORES != 0 {
            for (index, row) in rows.iter().take(count).flatten().enumerate() {
                (*lanes[index] as *mut [u16; 8]).write_unaligned(*row);
            }
            return;
        }
        let turned = transposed && code & STAYS == 0;
        for (lane, words) in lanes.iter().enumerate() {
            for (matrix, rows) in rows.iter().take(count).enumerate() {
                let at = |i: usize, j: usize| u64::from(if turned { rows[j][i] } else { rows[i][j] });
                let (i, j) = (lane / 4, lane % 4 * 2);
                *words.add(matrix) = at(i, j) | at(i, j + 1) << 16;
            }
        }
    }
}
