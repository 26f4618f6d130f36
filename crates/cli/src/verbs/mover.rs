//! `bulkhead mover`: moves the GPU memory of a worker to host memory or back. The broker starts one for each move.

use std::process::ExitCode;

use backend::checkpoint::{self, MoveError};
use control::checkpoint::{Move, NO_ROOM_STATUS, Target};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Direction, MoverArgs};
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &MoverArgs) -> Result<ExitCode, Failure> {
    let _ = rustix::thread::set_name(c"bulkhead-mover");
    crate::logging::start(LevelFilter::WARN, None);
    let which = match args.which {
        Direction::Out => Move::Out,
        Direction::Back => Move::Back,
    };
    // The software GPU's memory is host memory already.
    let Some(library) = &args.library else { return Ok(ExitCode::SUCCESS) };
    let target = Target { pid: args.pid, start_time: args.start_time, uid: args.uid };
    match checkpoint::run(library, &target, which) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The broker logs it.
        Err(MoveError::NoRoom) => Ok(ExitCode::from(NO_ROOM_STATUS)),
        Err(error) => {
            Err(Failure::new(Exit::Failure, format!("cannot move the GPU memory of process {}: {error}", args.pid)))
        }
    }
}
