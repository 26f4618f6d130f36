//! What a CUDA driver does, one test body per behaviour, one file per family.
//!
//! The bodies say what NVIDIA documents or what its driver was seen to do, not what ours happens to do. Each runs in a
//! process of its own, so it cleans up nothing. A body fails by panicking.

mod batches;
mod capture;
mod contexts;
mod copies;
mod faults;
mod forks;
mod graphs;
mod hosts;
mod launches;
mod managed;
mod memory;
mod modules;
mod older;
mod pools;
mod references;
mod remembered;
mod streams;

use cuda_abi::driver::Driver;

#[derive(Clone, Copy)]
pub struct Test {
    pub family: &'static str,
    pub name: &'static str,
    pub body: fn(&Driver),
    /// Set where a native driver promises nothing (it may crash): why.
    pub only_ours: Option<&'static str>,
    /// It needs the kernels that nvcc compiles.
    pub kernels: bool,
}

impl Test {
    pub fn full_name(&self) -> String {
        format!("{}::{}", self.family, self.name)
    }
}

/// The tests of a family, from the names of their bodies.
macro_rules! tests {
    ($family:literal: $($(#[only_ours = $why:literal])? $body:ident,)*) => {
        pub(super) const TESTS: &[super::Test] = &[$({
            #[allow(unused_mut, unused_assignments)]
            let mut only_ours: Option<&'static str> = None;
            $(only_ours = Some($why);)?
            super::Test { family: $family, name: stringify!($body), body: $body, only_ours, kernels: false }
        }),*];
    };
}
use tests;

const FAMILIES: &[&[Test]] = &[
    contexts::TESTS,
    memory::TESTS,
    copies::TESTS,
    hosts::TESTS,
    managed::TESTS,
    batches::TESTS,
    pools::TESTS,
    older::TESTS,
    references::TESTS,
    streams::TESTS,
    modules::TESTS,
    remembered::TESTS,
    launches::TESTS,
    capture::TESTS,
    graphs::TESTS[0],
    graphs::TESTS[1],
    graphs::TESTS[2],
    faults::TESTS,
    forks::TESTS,
];

pub fn all() -> impl Iterator<Item = Test> {
    FAMILIES.iter().chain(crate::kernels::FAMILIES).flat_map(|family| family.iter().copied())
}
