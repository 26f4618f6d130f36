//! Kernels, compiled by nvcc when the suite runs, each compared with what a processor computes, or with a property that
//! must hold. The sources are in `conformance/kernels`, one file per theme, and so are the tests here.
//!
//! A test that starts with a kernel's name is about that kernel. The PTX is found in the directory that
//! `CONFORMANCE_KERNELS` names (`--kernels`); `compile` fills such a directory.

mod approx;
mod asynchronous;
mod atomics;
mod bits;
mod block;
pub mod compile;
mod control;
mod convert;
mod device;
mod expected;
mod float;
mod grid;
mod half;
mod integer;
mod matrix;
mod memory;
mod system;
mod texture;
mod values;
mod warp;

use crate::suite::Test;

/// The directory with the compiled kernels.
pub const DIR_VARIABLE: &str = "CONFORMANCE_KERNELS";

/// Set where kernels are compiled for older GPUs: some are not there then.
pub const OLDER: &str = "CONFORMANCE_OLDER";
/// What a test ends with whose kernel is not there.
pub const NOT_FOR_THESE: u8 = 77;

/// The tests of a file of kernels, from the names of their bodies.
macro_rules! tests {
    ($($(#[only_ours = $why:literal])? $body:ident,)*) => {
        pub(super) const TESTS: &[crate::suite::Test] = &[$({
            #[allow(unused_mut, unused_assignments)]
            let mut only_ours: Option<&'static str> = None;
            $(only_ours = Some($why);)?
            crate::suite::Test {
                family: "kernels",
                name: stringify!($body),
                body: $body,
                only_ours,
                kernels: true,
            }
        }),*];
    };
}
use tests;

pub const FAMILIES: &[&[Test]] = &[
    integer::TESTS,
    bits::TESTS,
    float::TESTS,
    approx::TESTS,
    half::TESTS,
    convert::TESTS,
    control::TESTS,
    memory::TESTS,
    atomics::TESTS,
    warp::TESTS,
    block::TESTS,
    system::TESTS,
    matrix::TESTS,
    asynchronous::TESTS,
    grid::TESTS,
    texture::TESTS,
];
