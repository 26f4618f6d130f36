//! `bulkhead-exporter`: metrics and the status page over HTTP. It can ask the broker for its status, and for nothing else.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use proxy::exporter::ExporterArgs;

/// Bulkhead's exporter: metrics and the status page over HTTP.
#[derive(Parser)]
#[command(name = "bulkhead-exporter", version)]
struct Exporter {
    #[command(flatten)]
    args: ExporterArgs,
}

fn main() -> ExitCode {
    proxy::finish(proxy::exporter::run(&Exporter::parse().args))
}
