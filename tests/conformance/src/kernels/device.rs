//! A module of kernels on a driver, and the launches that tests make of it.

use std::ffi::c_void;
use std::fmt::Debug;
use std::path::PathBuf;
use std::ptr::null_mut;

use cuda_abi::driver::Driver;
use cuda_abi::types::*;

use super::expected::Expected;
use crate::calls::{DEFAULT_STREAM, alloc, code, context, download, function, module, ok, upload};

/// A file of kernels, loaded.
pub(super) struct Kernels<'g> {
    pub gpu: &'g Driver,
    pub module: CUmodule,
}

/// The PTX of a file of kernels.
pub(super) fn ptx(file: &str) -> String {
    let dir = PathBuf::from(std::env::var_os(super::DIR_VARIABLE).expect("the directory of kernels is known"));
    let path = dir.join(file).with_extension("ptx");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Arguments of a kernel, one after another.
#[derive(Default)]
pub(super) struct Args(Vec<Vec<u128>>);

impl Args {
    pub(super) fn with<T: Copy>(mut self, value: T) -> Args {
        let mut words = vec![0u128; size_of::<T>().div_ceil(16).max(1)];
        // SAFETY: the words have room for the value, and the alignment of anything.
        unsafe { words.as_mut_ptr().cast::<T>().write(value) };
        self.0.push(words);
        self
    }

    pub(super) fn pointers(&mut self) -> Vec<*mut c_void> {
        self.0.iter_mut().map(|words| words.as_mut_ptr().cast()).collect()
    }
}

/// `args![a, b, c]`
macro_rules! args {
    ($($value:expr),* $(,)?) => { $crate::kernels::device::Args::default()$(.with($value))* };
}
pub(super) use args;

impl<'g> Kernels<'g> {
    /// Starts the driver, makes a context and loads a file of kernels.
    pub(super) fn load(gpu: &'g Driver, file: &str) -> Kernels<'g> {
        context(gpu);
        Kernels { gpu, module: module(gpu, &ptx(file)) }
    }

    pub(super) fn function(&self, name: &str) -> CUfunction {
        if std::env::var_os(super::OLDER).is_some() && !self.holds(name) {
            std::process::exit(super::NOT_FOR_THESE.into());
        }
        function(self.gpu, self.module, name)
    }

    fn holds(&self, name: &str) -> bool {
        let name = std::ffi::CString::new(name).expect("a name holds no NUL");
        let mut found = null_mut();
        code!(self.gpu, cuModuleGetFunction(&mut found, self.module, name.as_ptr())) == 0
    }

    /// Launches, waits, and answers the code of whichever failed.
    pub(super) fn attempt(&self, name: &str, grid: [u32; 3], block: [u32; 3], shared: u32, mut args: Args) -> u32 {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let (function, mut pointers) = (self.function(name), args.pointers());
        let launched = code!(
            self.gpu,
            cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                DEFAULT_STREAM,
                pointers.as_mut_ptr(),
                null_mut()
            )
        );
        if launched != 0 { launched } else { code!(self.gpu, cuCtxSynchronize()) }
    }

    /// A launch that must go well.
    pub(super) fn run(&self, name: &str, grid: u32, block: u32, args: Args) {
        self.run_shaped(name, [grid, 1, 1], [block, 1, 1], 0, args);
    }

    pub(super) fn run_shaped(&self, name: &str, grid: [u32; 3], block: [u32; 3], shared: u32, args: Args) {
        let code = self.attempt(name, grid, block, shared, args);
        assert!(code == 0, "{name} ended with {code} {}", cuda_abi::error::name(code));
    }

    pub(super) fn upload<T: Copy>(&self, values: &[T]) -> CUdeviceptr {
        upload(self.gpu, values)
    }

    /// Zeroed memory for `count` values.
    pub(super) fn zeros<T>(&self, count: usize) -> CUdeviceptr {
        let bytes = (count * size_of::<T>()).max(1);
        let pointer = alloc(self.gpu, bytes);
        ok!(self.gpu, cuMemsetD8_v2(pointer, 0, bytes));
        pointer
    }

    pub(super) fn download<T: Copy + Default>(&self, pointer: CUdeviceptr, count: usize) -> Vec<T> {
        download(self.gpu, pointer, count)
    }

    pub(super) fn global(&self, name: &str) -> (CUdeviceptr, usize) {
        let (mut pointer, mut size) = (0, 0);
        let name = std::ffi::CString::new(name).expect("a name holds no NUL");
        ok!(self.gpu, cuModuleGetGlobal_v2(&mut pointer, &mut size, self.module, name.as_ptr()));
        (pointer, size)
    }

    fn map<R: Copy + Default, const K: usize>(&self, name: &str, count: usize, inputs: Args) -> Vec<[R; K]> {
        let out = self.zeros::<[R; K]>(count);
        self.run(name, count.div_ceil(128) as u32, 128, inputs.with(out).with(count as i32));
        let flat: Vec<R> = self.download(out, count * K);
        flat.chunks_exact(K).map(|chunk| std::array::from_fn(|at| chunk[at])).collect()
    }

    pub(super) fn map1<A: Copy, R: Copy + Default, const K: usize>(&self, name: &str, a: &[A]) -> Vec<[R; K]> {
        self.map(name, a.len(), args![self.upload(a)])
    }

    /// Runs a kernel of `MAP1` and compares all of its results.
    pub(super) fn check1<A, E, const K: usize>(&self, name: &str, a: &[A], expected: impl Fn(A) -> [E; K])
    where
        A: Copy + Debug,
        E: Expected,
    {
        let results = self.map(name, a.len(), args![self.upload(a)]);
        compare(name, &results, |at| (expected(a[at]), format!("{:?}", a[at])));
    }

    /// The same over every pair of values.
    pub(super) fn check2<A, B, E, const K: usize>(
        &self,
        name: &str,
        a: &[A],
        b: &[B],
        expected: impl Fn(A, B) -> [E; K],
    ) where
        A: Copy + Debug,
        B: Copy + Debug,
        E: Expected,
    {
        let pairs: Vec<(A, B)> = a.iter().flat_map(|a| b.iter().map(move |b| (*a, *b))).collect();
        self.check_pairs(name, &pairs, expected);
    }

    pub(super) fn check_pairs<A, B, E, const K: usize>(
        &self,
        name: &str,
        pairs: &[(A, B)],
        expected: impl Fn(A, B) -> [E; K],
    ) where
        A: Copy + Debug,
        B: Copy + Debug,
        E: Expected,
    {
        let (a, b): (Vec<A>, Vec<B>) = pairs.iter().copied().unzip();
        let results = self.map(name, pairs.len(), args![self.upload(&a), self.upload(&b)]);
        compare(name, &results, |at| (expected(a[at], b[at]), format!("{:?}, {:?}", a[at], b[at])));
    }

    /// And over every three.
    pub(super) fn check3<A, B, C, E, const K: usize>(
        &self,
        name: &str,
        a: &[A],
        b: &[B],
        c: &[C],
        expected: impl Fn(A, B, C) -> [E; K],
    ) where
        A: Copy + Debug,
        B: Copy + Debug,
        C: Copy + Debug,
        E: Expected,
    {
        let (mut x, mut y, mut z) = (Vec::new(), Vec::new(), Vec::new());
        for a in a {
            for b in b {
                for c in c {
                    x.push(*a);
                    y.push(*b);
                    z.push(*c);
                }
            }
        }
        let results = self.map(name, x.len(), args![self.upload(&x), self.upload(&y), self.upload(&z)]);
        compare(name, &results, |at| {
            (expected(x[at], y[at], z[at]), format!("{:?}, {:?}, {:?}", x[at], y[at], z[at]))
        });
    }
}

/// Compares results with what they must be; says what was wrong with the first few.
fn compare<E: Expected, const K: usize>(
    name: &str,
    results: &[[E::Got; K]],
    expected: impl Fn(usize) -> ([E; K], String),
) {
    let mut wrong = Vec::new();
    for (at, result) in results.iter().enumerate() {
        let (expected, inputs) = expected(at);
        for (place, (got, wanted)) in result.iter().zip(expected).enumerate() {
            if !wanted.fits(*got) {
                wrong.push(format!("{name}({inputs})[{place}] is {got:x?}, not {wanted:x?}"));
            }
        }
    }
    let first = wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} results are wrong:\n{first}", wrong.len(), results.len() * K);
}
