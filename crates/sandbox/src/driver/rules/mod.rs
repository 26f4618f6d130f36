//! What a worker that may have fallen may still ask of the resource manager. Data: classes of objects and controls, each
//! with the reason for what happens to it. Offsets and numbers are those of the open kernel modules' headers.
//!
//! The driver checks the client of a call against the file that the call comes through, and the size of its parameters.
//! Rules are for what it does not check: clients inside of parameters, descriptors, rights that are everybody's, and settings
//! that are the whole GPU's.

mod classes;
mod controls;

pub(crate) use classes::at;
pub use classes::{Class, ClassRule, class};
pub use controls::{Control, ControlRule, Length, Pointer, control, name};
