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
//! For `wmma` it is unspecified, so the elements are dealt out in the order of rows, the same number to each lane.

use ptx_passes::ir::Space;
use ptx_passes::matrix::{FragmentCode, Kind, MultiplyCode, Part, STAYS, STORES, Shape, TRANSPOSED};

use super::context::Context;
use super::small;

/// The words of each lane.
pub(crate) type Lanes = [*mut u64; 32];

/// Reads element `index` of registers that start at word `first`.
///
/// # Safety
/// The lane's words reach that far.
#[inline(always)]
unsafe fn element(words: *const u64, first: u32, kind: Kind, index: u32) -> u64 {
    let per = (32 / kind.bits()).max(1);
    // SAFETY: as promised.
    let word = unsafe { *words.add((first + (index >> per.trailing_zeros())) as usize) };
    if kind.bits() >= 32 {
        return word;
    }
    word >> ((index & (per - 1)) * kind.bits()) & ((1 << kind.bits()) - 1)
}

/// Writes element `index` of registers that start at word 0.
///
/// # Safety
/// As for `element`.
#[inline(always)]
unsafe fn set_element(words: *mut u64, kind: Kind, index: u32, value: u64) {
    let per = (32 / kind.bits()).max(1);
    // SAFETY: as promised.
    let word = unsafe { &mut *words.add((index >> per.trailing_zeros()) as usize) };
    if kind.bits() >= 32 {
        *word = value;
    } else {
        let (shift, mask) = ((index & (per - 1)) * kind.bits(), (1u64 << kind.bits()) - 1);
        *word = *word & !(mask << shift) | (value & mask) << shift;
    }
}

#[inline(always)]
fn real(kind: Kind, bits: u64) -> f64 {
    match kind {
        Kind::F16 => small::widen_half(bits as u16),
        Kind::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
        // The lower bits are not part of the number.
        Kind::TF32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        Kind::F32 => f64::from(f32::from_bits(bits as u32)),
        Kind::E4M3 => small::widen(1, bits as u8),
        Kind::E5M2 => small::widen(2, bits as u8),
        _ => f64::from_bits(bits),
    }
}

#[inline(always)]
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

/// The elements of a matrix, row by row. Those of most fit on the stack.
struct Matrix<T> {
    few: [T; FEW],
    many: Vec<T>,
    count: usize,
}

const FEW: usize = 256;

impl<T: Copy + Default> Matrix<T> {
    fn new(part: Part, shape: Shape) -> Matrix<T> {
        let (rows, columns) = part.size(shape);
        let count = (rows * columns) as usize;
        let many = if count > FEW { vec![T::default(); count] } else { Vec::new() };
        Matrix { few: [T::default(); FEW], many, count }
    }

    fn all(&mut self) -> &mut [T] {
        if self.count > FEW { &mut self.many } else { &mut self.few[..self.count] }
    }
}

/// The operands of a product, in the registers of all lanes.
struct Fragments<'a> {
    code: MultiplyCode,
    lanes: &'a Lanes,
}

impl Fragments<'_> {
    /// Calls `visit` for each element of a part: with the lane that holds it, its number there, and where it is in the
    /// matrix.
    #[inline(always)]
    fn each(&self, part: Part, kind: Kind, mut visit: impl FnMut(usize, u32, usize)) {
        let (rows, columns) = part.size(self.code.shape);
        let each = rows * columns / 32;
        let per = (32 / kind.bits()).max(1);
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for index in 0..each {
                // Shifts, for there are powers of two in a register.
                let (register, within) = (index >> per.trailing_zeros(), index & (per - 1));
                let (i, j) = match part {
                    _ if self.code.opaque => (0, lane * each + index),
                    Part::A if rows > 8 => (g + 8 * (register % 2), 4 * per * (register / 2) + t * per + within),
                    Part::A => (g, 4 * per * register + t * per + within),
                    Part::B => (4 * per * register + t * per + within, g),
                    Part::C => (g + 8 * (index / 2), 2 * t + index % 2),
                };
                visit(lane as usize, index, (i * columns + j) as usize);
            }
        }
    }

    /// Reads a part.
    #[inline(always)]
    fn read<T: Copy + Default>(&self, part: Part, kind: Kind, number: impl Fn(u64) -> T) -> Matrix<T> {
        let [a_count, b_count, _] = self.code.counts;
        let first = match part {
            Part::A => 0,
            Part::B => a_count,
            Part::C => a_count + b_count,
        };
        let mut matrix = Matrix::new(part, self.code.shape);
        let all = matrix.all();
        self.each(part, kind, |lane, index, place| {
            // SAFETY: the decoder has checked that fragments are of the size that the shape needs.
            all[place] = number(unsafe { element(self.lanes[lane], first, kind, index) });
        });
        matrix
    }

    fn kind(&self, part: Part) -> Kind {
        self.code.kinds[part as usize]
    }

    /// A part of real numbers. The loop is monomorphised for each of the usual kinds.
    fn reals(&self, part: Part) -> Matrix<f64> {
        match self.kind(part) {
            Kind::F16 => self.read(part, Kind::F16, |bits| real(Kind::F16, bits)),
            Kind::BF16 => self.read(part, Kind::BF16, |bits| real(Kind::BF16, bits)),
            Kind::TF32 => self.read(part, Kind::TF32, |bits| real(Kind::TF32, bits)),
            Kind::F32 => self.read(part, Kind::F32, |bits| real(Kind::F32, bits)),
            kind => self.read(part, kind, |bits| real(kind, bits)),
        }
    }

    /// A part of whole numbers.
    fn wholes(&self, part: Part) -> Matrix<i64> {
        match self.kind(part) {
            Kind::S8 => self.read(part, Kind::S8, |bits| whole(Kind::S8, bits)),
            Kind::S32 => self.read(part, Kind::S32, |bits| whole(Kind::S32, bits)),
            kind => self.read(part, kind, |bits| whole(kind, bits)),
        }
    }

    fn write(&self, results: &Matrix<u64>) {
        let kind = self.code.kinds[3];
        let all = if results.count > FEW { &results.many } else { &results.few[..] };
        self.each(Part::C, kind, |lane, index, place| {
            // SAFETY: as for reading.
            unsafe { set_element(self.lanes[lane], kind, index, all[place]) };
        });
    }
}

/// Computes a product for all lanes.
///
/// # Safety
/// All lanes' words are as many as the code says, and nothing else uses them now.
pub(crate) unsafe fn multiply(code: u64, lanes: &Lanes) {
    let code = MultiplyCode::unpack(code);
    let fragments = Fragments { code, lanes };
    // Results go where operands are, so all of them are computed first.
    let mut results = Matrix::new(Part::C, code.shape);
    match code.kinds[2] {
        Kind::S32 => {
            let (mut a, mut b, mut c) =
                (fragments.wholes(Part::A), fragments.wholes(Part::B), fragments.wholes(Part::C));
            match code.kinds[0] {
                Kind::B1 if code.and => accumulate(&mut a, &mut b, &mut c, code.shape, |sum, x, y| sum + (x & y)),
                Kind::B1 => accumulate(&mut a, &mut b, &mut c, code.shape, |sum, x, y| sum + (x ^ y)),
                _ => accumulate(&mut a, &mut b, &mut c, code.shape, |sum, x, y| sum + x * y),
            }
            for (result, sum) in results.all().iter_mut().zip(c.all()) {
                let limited = (*sum).clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                *result = u64::from(if code.saturate { limited } else { *sum } as u32);
            }
        }
        Kind::F64 => {
            let (mut a, mut b, mut c) =
                (fragments.reals(Part::A), fragments.reals(Part::B), fragments.reals(Part::C));
            fused(&mut a, &mut b, &mut c, code.shape);
            for (result, sum) in results.all().iter_mut().zip(c.all()) {
                *result = sum.to_bits();
            }
        }
        _ => {
            let (mut a, mut b, mut c) =
                (fragments.reals(Part::A), fragments.reals(Part::B), fragments.reals(Part::C));
            let mut sums = Matrix::new(Part::C, code.shape);
            accumulate(&mut a, &mut b, &mut sums, code.shape, |sum, x, y| sum + x * y);
            for ((result, start), sum) in results.all().iter_mut().zip(c.all()).zip(sums.all()) {
                *result = bits_of(code.kinds[3], *start + *sum);
            }
        }
    }
    fragments.write(&results);
}

/// Adds the products of rows and columns to sums: each in the order of its terms, and a row of them at once.
#[inline(always)]
fn accumulate<T: Copy + Default>(
    a: &mut Matrix<T>,
    b: &mut Matrix<T>,
    sums: &mut Matrix<T>,
    Shape { n, k, .. }: Shape,
    add: impl Fn(T, T, T) -> T,
) {
    let (n, k, b) = (n as usize, k as usize, b.all());
    for (a, sums) in a.all().chunks_exact(k).zip(sums.all().chunks_exact_mut(n)) {
        for (x, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, y) in sums.iter_mut().zip(b) {
                *sum = add(*sum, *x, *y);
            }
        }
    }
}

/// The same with one rounding for each term.
fn fused(a: &mut Matrix<f64>, b: &mut Matrix<f64>, sums: &mut Matrix<f64>, shape: Shape) {
    #[target_feature(enable = "fma")]
    fn by_processor(a: &mut Matrix<f64>, b: &mut Matrix<f64>, sums: &mut Matrix<f64>, shape: Shape) {
        accumulate(a, b, sums, shape, |sum, x, y| x.mul_add(y, sum));
    }
    if std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has it.
        unsafe { by_processor(a, b, sums, shape) }
    } else {
        accumulate(a, b, sums, shape, |sum, x, y| x.mul_add(y, sum));
    }
}

/// `wmma.load` and `wmma.store`: each lane moves its own elements. Words: base, offset, stride, values.
///
/// # Safety
/// On the fiber of `context`, with nothing alive that needs dropping; the words are as many as the code says.
pub(crate) unsafe fn fragment(context: *mut Context, code: u64, words: *mut u64) {
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
pub(crate) unsafe fn prepare_move(context: *mut Context, code: u64, space: Space, words: *mut u64) {
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
/// All lanes have been through `prepare_move`, and nothing else uses their words now.
pub(crate) unsafe fn move_matrices(code: u64, lanes: &Lanes) {
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
