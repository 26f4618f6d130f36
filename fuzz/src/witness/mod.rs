//! A CUDA driver that runs nothing and believes nothing: it remembers what it has given out, and ends the process when the
//! worker passes it a handle that is not alive, an address that is not mapped, an array that is not there, or gives back
//! what it does not hold. So whatever a hostile message makes the worker say to its driver is looked at.
//!
//! What the table says of a function is checked by generated code; where that is not all, by the functions in
//! `contexts.rs`, `modules.rs`, `memory.rs`, `copies.rs` and `graphs.rs`. Calls fail now and then, as a driver's do.
//!
//! There is one witness for a process: drivers are tables of functions without state.
#![allow(non_snake_case, reason = "the names of the driver's functions")]
#![allow(clippy::missing_safety_doc, reason = "they are called as the driver's functions are")]

mod contexts;
mod copies;
#[allow(clippy::all, clippy::pedantic, unused_variables, unused_mut, unused_parens, unused_unsafe)]
mod generated {
    use cuda_abi::driver::Driver;
    use cuda_abi::error::*;
    use cuda_abi::types::*;
    use cuda_abi::wire::Kind;

    use super::State;

    include!(concat!(env!("OUT_DIR"), "/witness.rs"));
}
mod graphs;
mod memory;
mod modules;
mod state;

use cuda_abi::driver::Driver;

pub use generated::size_of_type;
pub use memory::{FOREIGN, some_file};
pub use state::{DEVICES, GLOBALS, State};

/// The driver.
pub fn driver() -> Driver {
    let mut driver = generated::driver();
    contexts::fill(&mut driver);
    modules::fill(&mut driver);
    memory::fill(&mut driver);
    copies::fill(&mut driver);
    graphs::fill(&mut driver);
    driver
}
