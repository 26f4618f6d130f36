//! `bulkhead`: shares GPUs between tenants that do not trust each other.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod admin;
mod args;
mod check;
mod doctor;
mod helper;
mod library;
#[cfg(feature = "kubernetes")]
mod node;
mod private_proxy;
mod program;
mod progress;
mod signals;
mod soft_cache;
mod terminal;
mod text;
mod verbs;
#[cfg(feature = "xen")]
mod xen_args;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Bulkhead, Verb};
use exit::Exit;
use proxy::{Programs, exit, logging};

fn main() -> ExitCode {
    let bulkhead = match Bulkhead::try_parse() {
        Ok(bulkhead) => bulkhead,
        Err(error)
            if error.use_stderr()
                && error.kind() != clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            eprintln!("bulkhead: {}", one_line(&error.to_string()));
            return Exit::Usage.into();
        }
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let result = match bulkhead.verb {
        Verb::Run(args) => verbs::run::run(args),
        Verb::Proxy(args) => proxy::broker::run(args, &Programs::in_one(after("proxy"))),
        Verb::Spawner(args) => proxy::spawner::run(&args, &Programs::in_one(Vec::new())),
        Verb::Exporter(args) => proxy::exporter::run(&args),
        Verb::Worker(args) => verbs::worker::run(args),
        Verb::Status(args) => verbs::status::run(&args),
        Verb::Top(args) => verbs::top::run(&args),
        Verb::Zones(args) => verbs::zones::run(args),
        Verb::Grants(args) => verbs::grants::run(args),
        Verb::Ipc(args) => verbs::ipc::run(args),
        #[cfg(feature = "xen")]
        Verb::Image(args) => verbs::image::run(args),
        #[cfg(feature = "xen")]
        Verb::Xen(args) => verbs::xen::run(args),
        Verb::XenBackend { state_dir, guest_memory } => verbs::xen_backend::run(state_dir, guest_memory),
        Verb::Topology(args) => verbs::topology::run(&args),
        Verb::Doctor(args) => verbs::doctor::run(args),
        Verb::Preemptor => verbs::preemptor::run(),
        Verb::PreemptionTest(args) => verbs::preemption_test::run(&args),
        Verb::DriverCalls(args) => verbs::driver_calls::run(&args),
        Verb::Survey { backend, zone } => verbs::topology::look(&backend, zone),
        Verb::Selftest { open } => verbs::selftest::run(open.as_deref()),
        Verb::Bench(args) => verbs::bench::run(&args),
        #[cfg(feature = "kubernetes")]
        Verb::Cdi(args) => verbs::cdi::run(args),
        #[cfg(feature = "kubernetes")]
        Verb::DevicePlugin(args) => verbs::device_plugin::run(args),
        Verb::Meter { library } => verbs::meter::run(&library),
        #[cfg(feature = "kubernetes")]
        Verb::Dra(args) => verbs::dra::run(args),
        #[cfg(feature = "kubernetes")]
        Verb::Install(args) => verbs::install::run(args),
        Verb::Mover(args) => verbs::mover::run(&args),
        Verb::Completions { shell } => verbs::completions::run(shell),
        Verb::Man(args) => verbs::man::run(&args),
    };
    proxy::finish(result)
}

/// The arguments behind a verb.
fn after(verb: &str) -> Vec<OsString> {
    std::env::args_os().skip_while(|argument| argument != verb).skip(1).collect()
}

/// The error without the usage that follows it, which `--help` prints; hints behind semicolons.
fn one_line(text: &str) -> String {
    let lines =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let mut joined = String::new();
    // Who misspelt an option does not want to know how to pass it to a program.
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("tip: to pass ")) {
        let (separator, line) = match line.strip_prefix("tip: ") {
            Some(tip) => ("; ", tip),
            None => (" ", line),
        };
        joined = if joined.is_empty() { line.to_owned() } else { joined + separator + line };
    }
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

/// The definition from which help, man page and completions are generated.
fn command() -> clap::Command {
    Bulkhead::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_arguments_is_one_line() {
        let said = |words: &[&str]| one_line(&Bulkhead::try_parse_from(words).unwrap_err().to_string());
        assert_eq!(
            said(&["bulkhead", "run", "--mem", "2GiB", "--", "true"]),
            "unexpected argument '--mem' found; a similar argument exists: '--memory'"
        );
        assert_eq!(
            said(&["bulkhead", "statuss"]),
            "unrecognized subcommand 'statuss'; a similar subcommand exists: 'status'"
        );
        assert_eq!(said(&["bulkhead", "run"]), "the following required arguments were not provided: <CMD>...");
    }
}
