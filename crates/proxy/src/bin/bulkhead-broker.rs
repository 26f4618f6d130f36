//! `bulkhead-broker`: what tenants, pods and operators talk to. It has no privilege where a spawner has it.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use proxy::Programs;
use proxy::args::ProxyArgs;
use proxy::exit::{Exit, Failure};

/// Bulkhead's broker: zones, ledgers, grants. Operators use `bulkhead proxy` and `bulkhead status`.
#[derive(Parser)]
#[command(name = "bulkhead-broker", version)]
struct Broker {
    #[command(flatten)]
    args: ProxyArgs,
}

fn main() -> ExitCode {
    let args = Broker::parse().args;
    let cannot = |error| Failure::system(Exit::Failure, "cannot find our other programs", &error);
    proxy::finish(Programs::beside_us().map_err(cannot).and_then(|programs| proxy::broker::run(args, &programs)))
}
