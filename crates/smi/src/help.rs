//! What the program says of itself.

use std::fmt::Write;

use cuda_abi::wire::view::Process;

use crate::args::Action;
use crate::fields::{Field, HasFields};

const HELP: &str = "\
nvidia-smi of Bulkhead: the GPUs of the zone that this program runs in

    nvidia-smi [OPTION]...

  -h,   --help                    Print usage information and exit.
        --version                 Print the versions and exit.

  LIST OPTIONS:
  -L,   --list-gpus               Display a list of the zone's GPUs.

  SUMMARY OPTIONS:
  <no arguments>                  Show a summary of the zone's GPUs.
  -i,   --id=                     Target specific GPUs: indices, UUIDs or bus IDs, separated by commas.
  -f,   --filename=               Log to a file, rather than to stdout.
  -l,   --loop=                   Probe until Ctrl+C at this interval, in seconds.
  -lms, --loop-ms=                The same, in milliseconds.

  QUERY OPTIONS:
  -q,   --query                   Display information about the GPUs.
  -d,   --display=                Display only MEMORY, UTILIZATION, COMPUTE or PIDS, separated by commas.

  SELECTIVE QUERY OPTIONS:
        --query-gpu=              Fields of GPUs; see --help-query-gpu.
        --query-compute-apps=     Fields of processes; see --help-query-compute-apps.
        --format=                 csv, with or without ,noheader and ,nounits.

Memory is the zone's limit and use, utilization the zone's own, and processes are the zone's. Sensors, clocks and whatever
else belongs to the node are N/A. Times are in UTC. Nothing can be changed.

Exit status: 0 success, 2 invalid argument, 3 not available in a zone, 4 would change the GPU, 6 no such GPU, 9 no proxy.
";

/// None for what needs the zone.
pub(crate) fn of(action: &Action) -> Option<String> {
    match action {
        Action::Help => Some(HELP.to_owned()),
        Action::Version => Some(format!(
            "nvidia-smi of Bulkhead {}\nCUDA Version        : {}.{} at most\n",
            env!("CARGO_PKG_VERSION"),
            cuda_abi::CUDA_VERSION / 1000,
            cuda_abi::CUDA_VERSION % 1000 / 10
        )),
        Action::GpuFields => Some(list::<()>("--query-gpu")),
        Action::ProcessFields => Some(list::<Process>("--query-compute-apps")),
        _ => None,
    }
}

fn list<T: HasFields>(flag: &str) -> String {
    let mut out = format!("Fields for {flag}=, separated by commas:\n\n");
    for Field { names, about, .. } in T::FIELDS {
        let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        let _ = writeln!(out, "{}\n{about}\n", names.join(" or "));
    }
    out
}
