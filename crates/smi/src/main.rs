//! `nvidia-smi` for programs in a zone. It shows the zone: its GPUs, its memory limit and use, its own processes, as the broker
//! tells them; what belongs to the node (sensors, clocks, other tenants) is `N/A`. No part of it is NVIDIA's.
//!
//! It is linked statically where it is staged (`xtask/src/stage.rs`), so that it runs in images without a C library, or with
//! another one. It uses nothing of a C library that cannot be linked so: no names of users or hosts, no `dlopen`.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod args;
mod csv;
mod details;
mod fields;
mod gpu;
mod help;
mod table;
mod time;

use std::io::Write;
use std::process::ExitCode;

use args::{Action, Args};
use gpu::Zone;
use time::Moment;

/// As NVIDIA's program ends with.
const INVALID_ARGUMENT: u8 = 2;
const NOT_SUPPORTED: u8 = 3;
const NO_PERMISSION: u8 = 4;
const NOT_FOUND: u8 = 6;
const NO_DRIVER: u8 = 9;
const OTHER: u8 = 255;

/// Why there is nothing to show, or not what was asked for.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}\nRun 'nvidia-smi -h' for help.")]
    Usage(String),
    #[error("{0} is not available in a zone.")]
    NotInZone(String),
    #[error("{0} would change the GPU, which programs in a zone may not.")]
    Change(String),
    #[error("No devices were found")]
    NoDevices,
    #[error("No device with the id {0:?} is in this zone.")]
    NoSuchGpu(String),
    #[error("NVIDIA-SMI has failed because it couldn't communicate with Bulkhead's proxy: {0}.")]
    Inquiry(#[from] inquiry::InquiryError),
    #[error("cannot write {0}")]
    Output(String),
}

impl Problem {
    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => INVALID_ARGUMENT,
            Self::NotInZone(_) => NOT_SUPPORTED,
            Self::Change(_) => NO_PERMISSION,
            Self::NoDevices | Self::NoSuchGpu(_) => NOT_FOUND,
            Self::Inquiry(_) => NO_DRIVER,
            Self::Output(_) => OTHER,
        }
    }
}

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Scripts read the message where NVIDIA's program has it.
            let _ = writeln!(std::io::stdout(), "{problem}");
            ExitCode::from(problem.code())
        }
    }
}

fn run(args: &Args) -> Result<(), Problem> {
    if let Some(text) = help::of(&args.action) {
        return write(args, text.as_bytes(), true);
    }
    let mut first = true;
    loop {
        let zone = Zone::ask(&args.gpus)?;
        write(args, show(args, &zone, Moment::now(), first).as_bytes(), first)?;
        first = false;
        match args.pause {
            Some(pause) => std::thread::sleep(pause),
            None => return Ok(()),
        }
    }
}

/// `first`: of a list that is shown again and again, it has the heading.
fn show(args: &Args, zone: &Zone, moment: Moment, first: bool) -> String {
    match &args.action {
        Action::Table => table::table(zone, moment),
        Action::List => table::list(zone),
        Action::Details(sections) => details::details(zone, moment, sections),
        Action::Gpus(fields) => csv::gpus(zone, moment, fields, args.format, first),
        Action::Processes(fields) => csv::processes(zone, moment, fields, args.format, first),
        Action::Help | Action::GpuFields | Action::ProcessFields | Action::Version => String::new(),
    }
}

fn write(args: &Args, bytes: &[u8], first: bool) -> Result<(), Problem> {
    let Some(path) = &args.output else {
        // Who reads no further has what was wanted.
        let mut out = std::io::stdout().lock();
        return match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Problem::Output(format!("to stdout: {error}")))
            }
            Err(_) if args.pause.is_some() => Err(Problem::Output("to stdout: nobody reads".to_owned())),
            _ => Ok(()),
        };
    };
    let mut options = std::fs::File::options();
    options.create(true).write(true).append(!first).truncate(first);
    let written = options.open(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| Problem::Output(format!("{}: {error}", path.display())))
}
