//! `bulkhead-spawner`: starts, confines and ends workers for the broker. It is the only part that has privilege.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use proxy::Programs;
use proxy::args::ProxyArgs;
use proxy::exit::{Exit, Failure};

/// Bulkhead's spawner: starts, confines and ends workers for the broker.
#[derive(Parser)]
#[command(name = "bulkhead-spawner", version)]
struct Spawner {
    #[command(flatten)]
    args: ProxyArgs,
}

fn main() -> ExitCode {
    let args = Spawner::parse().args;
    let cannot = |error| Failure::system(Exit::Failure, "cannot find our other programs", &error);
    proxy::finish(Programs::beside_us().map_err(cannot).and_then(|programs| proxy::spawner::run(&args, &programs)))
}
