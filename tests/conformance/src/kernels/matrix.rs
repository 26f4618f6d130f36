//! `matrix.cu`. All numbers are small and whole, so that sums are exact in any order.

use cuda_abi::driver::Driver;
use testkit::exact::{BFLOAT, DOUBLE, Exact, HALF, Round, SINGLE};

use super::device::{Kernels, args};
use super::values::scattered;

super::tests! {
    wmma_f16_f32,
    wmma_f16_f16,
    wmma_f16_32x8,
    wmma_f16_8x32,
    wmma_bf16,
    wmma_s8,
    wmma_u8_32x8,
    wmma_f64,
    wmma_tf32,
    mma_f16_k16,
    mma_f16_k8,
    mma_f16_f16,
    mma_bf16_k16,
    mma_tf32_k8,
    mma_s8_k32,
    mma_s8_k16,
    mma_f64,
    matrix_load,
    matrix_store,
    matrix_tiled,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "matrix")
}

/// How elements are stored.
#[derive(Clone, Copy, PartialEq)]
enum Element {
    Half,
    Bfloat,
    Single,
    Double,
    Byte,
    Word,
}

use Element::{Bfloat, Byte, Double, Half, Single, Word};

impl Element {
    fn bytes(self) -> usize {
        match self {
            Byte => 1,
            Half | Bfloat => 2,
            Single | Word => 4,
            Double => 8,
        }
    }

    fn write(self, value: i64) -> Vec<u8> {
        let exact = Exact::from_int(value.into());
        let bits = match self {
            Half => HALF.write(&exact, Round::Nearest),
            Bfloat => BFLOAT.write(&exact, Round::Nearest),
            Single => SINGLE.write(&exact, Round::Nearest),
            Double => DOUBLE.write(&exact, Round::Nearest),
            Byte | Word => value as u64,
        };
        bits.to_le_bytes()[..self.bytes()].to_vec()
    }
}

/// A matrix in memory, with room between its rows or columns.
struct Stored {
    rows: usize,
    columns: usize,
    by_columns: bool,
    element: Element,
}

impl Stored {
    fn leading(&self) -> usize {
        // In units of 16 bytes, as the hardware wants it.
        (if self.by_columns { self.rows } else { self.columns }) + 16
    }

    fn place(&self, row: usize, column: usize) -> usize {
        if self.by_columns { column * self.leading() + row } else { row * self.leading() + column }
    }

    fn bytes(&self, values: &dyn Fn(usize, usize) -> i64) -> Vec<u8> {
        let count = (if self.by_columns { self.columns } else { self.rows }) * self.leading();
        let width = self.element.bytes();
        let mut bytes = vec![0; count * width];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let at = self.place(row, column) * width;
                bytes[at..at + width].copy_from_slice(&self.element.write(values(row, column)));
            }
        }
        bytes
    }
}

/// Checks that a kernel computes 2 c + a b.
fn check_wmma(gpu: &Driver, name: &str, [m, n, k]: [usize; 3], [input, output]: [Element; 2], layouts: [bool; 3]) {
    let kernels = load(gpu);
    let numbers: Vec<i64> = scattered(3 * 32 * 32, 41).iter().map(|value| (value % 9) as i64).collect();
    // Bytes without a sign are tried too.
    let shift = if name.contains("u8") { 0 } else { 4 };
    let a = |i: usize, j: usize| numbers[i * 32 + j] - shift;
    let b = |i: usize, j: usize| numbers[1024 + i * 32 + j] - shift;
    let c = |i: usize, j: usize| numbers[2048 + i * 32 + j] - 4;
    let stored = |rows, columns, by_columns, element| Stored { rows, columns, by_columns, element };
    let [sa, sb, sc] =
        [stored(m, k, layouts[0], input), stored(k, n, layouts[1], input), stored(m, n, layouts[2], output)];
    let before = sc.bytes(&c);
    let (da, db, dc) = (kernels.upload(&sa.bytes(&a)), kernels.upload(&sb.bytes(&b)), kernels.upload(&before));
    let leading = [&sa, &sb, &sc].map(|stored| stored.leading() as i32);
    kernels.run(name, 1, 32, args![da, db, dc, leading[0], leading[1], leading[2]]);
    let expected = sc.bytes(&|i, j| 2 * c(i, j) + (0..k).map(|l| a(i, l) * b(l, j)).sum::<i64>());
    let got = kernels.download::<u8>(dc, expected.len());
    let width = output.bytes();
    for i in 0..m {
        for j in 0..n {
            let at = sc.place(i, j) * width;
            assert_eq!(got[at..at + width], expected[at..at + width], "row {i} column {j}");
        }
    }
    assert_eq!(got, expected, "what lies between is left alone");
}

fn wmma_f16_f32(gpu: &Driver) {
    check_wmma(gpu, "wmma_f16_f32", [16, 16, 16], [Half, Single], [false, true, false]);
}

fn wmma_f16_f16(gpu: &Driver) {
    check_wmma(gpu, "wmma_f16_f16", [16, 16, 16], [Half, Half], [true, false, true]);
}

fn wmma_f16_32x8(gpu: &Driver) {
    check_wmma(gpu, "wmma_f16_32x8", [32, 8, 16], [Half, Single], [false, false, false]);
}

fn wmma_f16_8x32(gpu: &Driver) {
    check_wmma(gpu, "wmma_f16_8x32", [8, 32, 16], [Half, Single], [true, true, true]);
}

fn wmma_bf16(gpu: &Driver) {
    check_wmma(gpu, "wmma_bf16", [16, 16, 16], [Bfloat, Single], [false, false, false]);
}

fn wmma_s8(gpu: &Driver) {
    check_wmma(gpu, "wmma_s8", [16, 16, 16], [Byte, Word], [false, true, false]);
}

fn wmma_u8_32x8(gpu: &Driver) {
    check_wmma(gpu, "wmma_u8_32x8", [32, 8, 16], [Byte, Word], [true, false, true]);
}

fn wmma_f64(gpu: &Driver) {
    check_wmma(gpu, "wmma_f64", [8, 8, 4], [Double, Double], [false, true, false]);
}

fn wmma_tf32(gpu: &Driver) {
    check_wmma(gpu, "wmma_tf32", [16, 16, 8], [Single, Single], [false, false, false]);
}

/// What lies in the registers of a lane, from the figures of the PTX manual: lane l is in row (or column) l / 4.
struct Fragments {
    m: usize,
    k: usize,
    /// Elements in 32 bits.
    per: usize,
    input: Element,
    output: Element,
}

impl Fragments {
    /// Rows and columns of a lane's elements of a, in order.
    fn a(&self, lane: usize) -> Vec<(usize, usize)> {
        let registers = self.m * self.k / 32 / self.per;
        let high = |register: usize| if self.m == 16 { register % 2 * 8 } else { 0 };
        let block = |register: usize| if self.m == 16 { register / 2 } else { register };
        let register = |r: usize| {
            let first = block(r) * 4 * self.per + lane % 4 * self.per;
            (0..self.per).map(move |e| (first, e))
        };
        (0..registers).flat_map(|r| register(r).map(move |(first, e)| (lane / 4 + high(r), first + e))).collect()
    }

    fn b(&self, lane: usize) -> Vec<(usize, usize)> {
        let registers = self.k * 8 / 32 / self.per;
        let row = |r: usize, e: usize| r * 4 * self.per + lane % 4 * self.per + e;
        (0..registers).flat_map(|r| (0..self.per).map(move |e| (r, e))).map(|(r, e)| (row(r, e), lane / 4)).collect()
    }

    fn c(&self, lane: usize) -> Vec<(usize, usize)> {
        (0..self.m * 8 / 32).map(|i| (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)).collect()
    }

    fn check(&self, gpu: &Driver, name: &str) {
        let kernels = load(gpu);
        let numbers: Vec<i64> = scattered(3 * 1024, 42).iter().map(|value| (value % 9) as i64 - 4).collect();
        let unsigned = if name == "mma_s8_k32" { 4 } else { 0 };
        let a = |i: usize, j: usize| numbers[i * 32 + j];
        let b = |i: usize, j: usize| numbers[1024 + i * 8 + j] + unsigned;
        let c = |i: usize, j: usize| numbers[2048 + i * 8 + j];
        let spread = |of: &dyn Fn(usize) -> Vec<(usize, usize)>, value: &dyn Fn(usize, usize) -> i64, e: Element| {
            let places = (0..32).flat_map(of);
            places.flat_map(|(i, j)| e.write(value(i, j))).collect::<Vec<u8>>()
        };
        let product = |i: usize, j: usize| c(i, j) + (0..self.k).map(|l| a(i, l) * b(l, j)).sum::<i64>();
        let da = kernels.upload(&spread(&|lane| self.a(lane), &a, self.input));
        let db = kernels.upload(&spread(&|lane| self.b(lane), &b, self.input));
        let dc = kernels.upload(&spread(&|lane| self.c(lane), &c, self.output));
        let expected = spread(&|lane| self.c(lane), &product, self.output);
        let dd = kernels.zeros::<u8>(expected.len());
        kernels.run(name, 1, 32, args![da, db, dc, dd]);
        assert_eq!(kernels.download::<u8>(dd, expected.len()), expected);
    }
}

fn mma_f16_k16(gpu: &Driver) {
    Fragments { m: 16, k: 16, per: 2, input: Half, output: Single }.check(gpu, "mma_f16_k16");
}

fn mma_f16_k8(gpu: &Driver) {
    Fragments { m: 16, k: 8, per: 2, input: Half, output: Single }.check(gpu, "mma_f16_k8");
}

fn mma_f16_f16(gpu: &Driver) {
    Fragments { m: 16, k: 16, per: 2, input: Half, output: Half }.check(gpu, "mma_f16_f16");
}

fn mma_bf16_k16(gpu: &Driver) {
    Fragments { m: 16, k: 16, per: 2, input: Bfloat, output: Single }.check(gpu, "mma_bf16_k16");
}

fn mma_tf32_k8(gpu: &Driver) {
    Fragments { m: 16, k: 8, per: 1, input: Single, output: Single }.check(gpu, "mma_tf32_k8");
}

fn mma_s8_k32(gpu: &Driver) {
    Fragments { m: 16, k: 32, per: 4, input: Byte, output: Word }.check(gpu, "mma_s8_k32");
}

fn mma_s8_k16(gpu: &Driver) {
    Fragments { m: 8, k: 16, per: 4, input: Byte, output: Word }.check(gpu, "mma_s8_k16");
}

fn mma_f64(gpu: &Driver) {
    Fragments { m: 8, k: 4, per: 1, input: Double, output: Double }.check(gpu, "mma_f64");
}

fn matrix_load(gpu: &Driver) {
    let kernels = load(gpu);
    let tile: Vec<u16> = scattered(256, 43).iter().map(|value| *value as u16).collect();
    let (input, out) = (kernels.upload(&tile), kernels.zeros::<[u32; 11]>(32));
    kernels.run("matrix_load", 1, 32, args![input, out]);
    for (lane, result) in kernels.download::<u32>(out, 352).chunks(11).enumerate() {
        let at = |matrix: usize, i: usize, j: usize| u32::from(tile[matrix * 64 + i * 8 + j]);
        let (i, j) = (lane / 4, lane % 4 * 2);
        let straight = |matrix| at(matrix, i, j) | at(matrix, i, j + 1) << 16;
        let turned = |matrix| at(matrix, j, i) | at(matrix, j + 1, i) << 16;
        let mut expected: Vec<u32> = (0..4).map(straight).collect();
        expected.extend((0..4).map(turned));
        expected.extend([straight(0), straight(1), turned(0)]);
        assert_eq!(result, expected, "lane {lane}");
    }
}

fn matrix_store(gpu: &Driver) {
    let kernels = load(gpu);
    let registers: Vec<u32> = scattered(128, 44).iter().map(|value| *value as u32).collect();
    let (input, out, moved) = (kernels.upload(&registers), kernels.zeros::<u16>(256), kernels.zeros::<u32>(32));
    kernels.run("matrix_store", 1, 32, args![input, out, moved]);
    let half = |matrix: usize, i: usize, j: usize| (registers[(i * 4 + j / 2) * 4 + matrix] >> (j % 2 * 16)) as u16;
    let expected: Vec<u16> = (0..256).map(|at| half(at / 64, at / 8 % 8, at % 8)).collect();
    assert_eq!(kernels.download::<u16>(out, 256), expected);
    for (lane, result) in kernels.download::<u32>(moved, 32).into_iter().enumerate() {
        let (i, j) = (lane / 4, lane % 4 * 2);
        assert_eq!(result, u32::from(half(0, j, i)) | u32::from(half(0, j + 1, i)) << 16, "lane {lane}");
    }
}

fn matrix_tiled(gpu: &Driver) {
    let kernels = load(gpu);
    let numbers: Vec<i64> = scattered(8192, 45).iter().map(|value| (value % 7) as i64 - 3).collect();
    let bytes = |values: &[i64]| values.iter().flat_map(|value| Half.write(*value)).collect::<Vec<u8>>();
    let (a, b) = numbers.split_at(4096);
    let (da, db, dc) = (kernels.upload(&bytes(a)), kernels.upload(&bytes(b)), kernels.zeros::<f32>(4096));
    kernels.run("matrix_tiled", 1, 128, args![da, db, dc]);
    let c = kernels.download::<f32>(dc, 4096);
    for at in 0..4096 {
        let sum: i64 = (0..64).map(|k| a[at / 64 * 64 + k] * b[k * 64 + at % 64]).sum();
        assert_eq!(c[at], sum as f32, "{at}");
    }
}
