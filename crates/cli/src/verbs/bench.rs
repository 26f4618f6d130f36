//! `bulkhead bench`: message latency on this machine.

use std::process::{Command, ExitCode};

use idm_bench::{Latency, Options, Report};

use crate::args::{BenchArgs, BenchKind};
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let failure = |error: idm_bench::BenchError| {
        let why = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Failure::new(Exit::Failure, format!("{error}{why}"))
    };
    match args.what {
        BenchKind::Rendezvous => super::bench_rendezvous::run(args.json),
        BenchKind::IdmPeer => idm_bench::peer().map(|()| ExitCode::SUCCESS).map_err(failure),
        BenchKind::Idm => {
            let mut far_side = Command::new("/proc/self/exe");
            far_side.args(["bench", "idm-peer"]);
            sandbox::jail::die_with_parent(&mut far_side);
            let progress = crate::progress::Progress::of("measuring messages");
            let report = idm_bench::run(Options::new(far_side)).map_err(failure)?;
            drop(progress);
            let text = if args.json { json(&report) } else { report.to_string() };
            super::man::print(format!("{text}\n").as_bytes())
        }
    }
}

fn json(report: &Report) -> String {
    let latency = |latency: &Latency| serde_json::json!({ "p50_ns": latency.p50.as_nanos() as u64, "p99_ns": latency.p99.as_nanos() as u64 });
    let value = serde_json::json!({
        "socket": latency(&report.socket),
        "call": latency(&report.call),
        "block": latency(&report.block),
        "call_to_socket_p50": report.ratio(),
        "posts_per_second": report.posts_per_second,
        "idle_client": report.idle_client,
        "idle_server": report.idle_server,
    });
    format!("{value:#}")
}
