//! The containerd shim of pods that run in Xen domains of their own: `io.containerd.bulkhead.v2`.
//!
//! `shim` does what containerd asks for; here is the [`machine`]: a domain for each pod, known by a [`identity`] that
//! follows from the pod's name, so that whoever cleans up finds it and nobody else's. The process runs itself again as a
//! watchdog (`remains`), which removes what a killed shim has left behind.
#![forbid(unsafe_code)]

mod config;
mod identity;
mod images;
mod machine;
mod network;
mod remains;
mod roots;
mod size;
mod zone;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().is_some_and(|first| first == remains::WATCHDOG) {
        let (Some(namespace), Some(id)) = (arguments.next(), arguments.next()) else { return ExitCode::FAILURE };
        return remains::watch(&namespace, &id);
    }
    match shim::serve::<machine::XenMachine>() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("containerd-shim-bulkhead-v2: {error}");
            ExitCode::FAILURE
        }
    }
}
