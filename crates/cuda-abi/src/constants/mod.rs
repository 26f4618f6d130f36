//! CUDA's numbers: attributes, flags, kinds and options that calls take and answer with.
//!
//! One module for each of CUDA's enumerations, named after what it enumerates, so that a use reads
//! `device_attribute::WARP_SIZE`. The names inside are CUDA's own without the prefix that the module says already.

/// Declares modules of numbers. The names are the documentation; what a module is about stands above it.
macro_rules! numbers {
    ($($(#[$doc:meta])* $module:ident: $type:ty { $($(#[$note:meta])* $name:ident = $value:expr,)* })*) => { $(
        $(#[$doc])*
        #[allow(missing_docs)]
        pub mod $module {
            $($(#[$note])* pub const $name: $type = $value;)*
        }
    )* };
}

mod code;
mod context;
mod device;
mod graph;
mod launch;
mod memory;
mod stream;
mod texture;

pub use code::*;
pub use context::*;
pub use device::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use stream::*;
pub use texture::*;
