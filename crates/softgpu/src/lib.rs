//! A CUDA driver that runs PTX on the CPU: the `cu*` functions, one file for each family.
//!
//! ```text
//! entry point (generated) ─→ state / context checks ─→ queue of a stream ─→ executor thread ─→ ptx-exec, memory
//! ```
//!
//! * `abi`, `handles`, `state`: the border to C, handles that are looked up, what exists once in a process.
//! * `context`: who is current, primary contexts, the error that poisons a context.
//! * `queue`, `executor`: streams as ordered queues, run by threads that exist only while there is work.
//! * `memory`: all memory that kernels reach, inside the window of `cuda_abi::plan`.
//! * `graph`: work that is described once, by hand or by capturing a stream, and launched often.
//! * `module`, `library`, `function`, `launch`: from images to grids.
//!
//! Kernels come from `fatbin` (images to text), `ptx` (text to tree) and `ptx-passes` (tree to checked instructions), and
//! run in `ptx-exec`. None of these knows of the driver.
//!
//! Locks are taken in this order: a context's `order`, a stream's queue, an event; memory's locks are leaves.

// Names and arguments of the functions are the API's.
#![allow(non_snake_case, clippy::too_many_arguments)]
#![warn(unreachable_pub)]

// `entry!`: the entry point of each function of the API, generated from its table.
include!(concat!(env!("OUT_DIR"), "/entries.rs"));

/// Puts functions into a driver's table, each under its own name or, as `name = function`, under another.
macro_rules! entries {
    ($table:expr, $($name:ident $(= $function:path)?),* $(,)?) => {
        cuda_abi::driver::Driver { $($name: entries!(@ $name $($function)?),)* ..$table }
    };
    (@ $name:ident) => { entry!($name $name) };
    (@ $name:ident $function:path) => { entry!($name $function) };
}

mod abi;
mod array;
mod attributes;
mod context;
mod context_api;
mod copy;
mod device;
mod event;
mod executor;
mod function;
mod graph;
mod handles;
mod heap;
mod jit_log;
mod launch;
mod library;
mod link;
mod memory;
mod module;
mod notice;
mod occupancy;
mod output;
mod queue;
mod references;
pub mod sanitizer;
mod set;
mod shapes;
mod state;
mod stream;
mod texture;
mod tools;
mod values;
mod visible;

use cuda_abi::driver::Driver;

pub use device::bus_id;
pub use memory::blocks;
pub use output::{Sink, set_output};
pub use ptx_exec::{Check, Checks, cache, gate};
pub use state::{Config, show_only};

/// The driver's functions. The first configuration given in a process stays.
pub fn driver(config: Config) -> Driver {
    blocks::begin();
    state::configure(config);
    let families: [fn(Driver) -> Driver; 22] = [
        device::fill,
        context_api::fill,
        memory::alloc::fill,
        memory::host::fill,
        memory::vmm::fill,
        memory::pointer::fill,
        memory::pool::fill,
        copy::fill,
        shapes::fill,
        set::fill,
        values::fill,
        stream::fill,
        event::fill,
        module::fill,
        library::fill,
        link::fill,
        function::fill,
        tools::fill,
        array::fill,
        texture::fill,
        references::fill,
        graph::fill,
    ];
    let table = families.into_iter().fold(Driver::missing(), |table, fill| fill(table));
    occupancy::fill(launch::fill(table))
}
