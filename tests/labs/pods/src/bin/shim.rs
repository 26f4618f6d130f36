//! The shim with the machine of tests. Called with `machine`, it becomes such a machine.

use pods_lab::machine::{Namespaces, become_machine};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let served = match arguments.next() {
        Some(word) if word == "machine" => become_machine(arguments.next()),
        _ => shim::serve::<Namespaces>(),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("containerd-shim-bulkhead-namespaces-v2: {error}");
            ExitCode::FAILURE
        }
    }
}
