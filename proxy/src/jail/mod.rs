//! The walls around a worker.

mod parts;
mod tether;

pub use parts::{Demand, Missing, Part};
pub use tether::die_with_parent;
