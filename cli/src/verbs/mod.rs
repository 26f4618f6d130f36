//! One file for each verb.

pub mod bench;
pub mod completions;
pub mod grants;
pub mod man;
pub mod meter;
pub mod mover;
pub mod proxy;
pub mod run;
pub mod status;
pub mod top;
pub mod worker;
pub mod zones;
