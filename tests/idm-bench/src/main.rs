//! `cargo run --release -p idm-bench`: what a message costs on this machine.
#![forbid(unsafe_code)]

use std::process::Command;

use idm_bench::{BenchError, Options};

fn main() -> Result<(), BenchError> {
    const FAR_SIDE: &str = "--far-side";
    if std::env::args().nth(1).as_deref() == Some(FAR_SIDE) {
        return idm_bench::peer();
    }
    let mut far_side = Command::new(std::env::current_exe().map_err(BenchError::Start)?);
    far_side.arg(FAR_SIDE);
    println!("{}", idm_bench::run(Options::new(far_side))?);
    Ok(())
}
