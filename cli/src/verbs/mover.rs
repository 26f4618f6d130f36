//! `bulkhead mover`: moves the GPU memory of a worker to host memory, or back. The broker starts it, once for each move.

use std::process::ExitCode;

use proxy::checkpoint::{self, Move};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Direction, MoverArgs};
use crate::exit::{Exit, Failure};

pub fn run(args: &MoverArgs) -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-mover");
    crate::logging::start(LevelFilter::WARN, None);
    let which = match args.which {
        Direction::Out => Move::Out,
        Direction::Back => Move::Back,
    };
    // The software GPU's memory is host memory already.
    let Some(library) = &args.library else { return Ok(ExitCode::SUCCESS) };
    checkpoint::run(library, args.pid, which)
        .map_err(|error| Failure::new(Exit::Failure, format!("memory of process {} not moved: {error}", args.pid)))?;
    Ok(ExitCode::SUCCESS)
}
