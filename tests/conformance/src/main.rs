//! `conformance`: runs the suite on a driver. See `conformance --help`.
#![warn(unreachable_pub)]

use std::process::ExitCode;

use conformance::runner::{self, Options};
use conformance::{attack, client, kernels, sharer, soak, suite, truth_table};

const HELP: &str = "\
Checks what a CUDA driver does, one behaviour at a time, each in a process of its own.

Usage: conformance [--backend soft-direct|libcuda[=PATH]] [--kernels DIR] [--json] [--list] [NAME…]
       conformance compile DIR
       conformance attack [--backend soft|nvidia] [--long] [--seed N] [--list] [NAME…]
       conformance soak [--seconds N] [--seed N] [--backend soft|nvidia]
       conformance truth-table [--backend soft|nvidia] [--native] [--json]

  --backend   the driver: the software GPU in this process, or a libcuda.so.1 (default: soft-direct)
  --kernels   where the compiled kernels are; `conformance compile` makes such a directory, with nvcc
  --json      print one JSON object for each test
  --list      print the names of the tests
  NAME        run only the tests whose names contain one of these

Examples:
  conformance memory::
  bulkhead run -- conformance --backend libcuda
  CONFORMANCE_NATIVE=1 conformance --backend libcuda=/usr/lib/x86_64-linux-gnu/libcuda.so.1 --json

attack has hostile clients do their worst beside an honest one, and prints what each tried and what happened. soak kills
programs, workers and the proxy at random, and looks for what is left. Both start a proxy of their own, from BULKHEAD_BIN and
BULKHEAD_LIB_DIR where bulkhead and libcuda.so.1 do not lie beside this program.

truth-table shares memory between processes in every combination of hostIPC, hostPID and privilege, through Bulkhead on
a backend, and with --native also with the libcuda.so.1 that the loader finds. BULKHEAD_BIN and BULKHEAD_LIB_DIR say
where Bulkhead is, if not beside this program.

CONFORMANCE_NATIVE says that the library is NVIDIA's: what it leaves undefined is not tried, and tests run one by one.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["client"] => {
            client::run();
            ExitCode::SUCCESS
        }
        ["sharer", ref rest @ ..] => {
            sharer::run(rest.first().and_then(|number| number.parse().ok()).unwrap_or(0));
            ExitCode::SUCCESS
        }
        ["truth-table", ref rest @ ..] => run_truth_table(rest),
        ["attack", ref rest @ ..] => attack::run(rest),
        ["soak", ref rest @ ..] => soak::run(rest),
        ["compile", dir] => match kernels::compile::compile(kernels::compile::NEWEST, dir.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("conformance: {error}");
                ExitCode::FAILURE
            }
        },
        ["one", backend, name] => runner::run_one(backend, name),
        ["--help" | "-h"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => run(&words),
    }
}

fn run_truth_table(words: &[&str]) -> ExitCode {
    match (truth_table::Options::parse(words), std::env::current_exe()) {
        (Ok(options), Ok(own)) => truth_table::run(&options, &own),
        (Err(error), _) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
        (_, Err(error)) => {
            eprintln!("conformance: cannot find myself: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[&str]) -> ExitCode {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("conformance: {error}");
            return ExitCode::from(2);
        }
    };
    if options.list {
        suite::all().for_each(|test| println!("{}", test.full_name()));
        return ExitCode::SUCCESS;
    }
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("conformance: cannot find myself: {error}");
            return ExitCode::from(2);
        }
    };
    let results = runner::run(&options, |_| std::process::Command::new(&own), |result| result.print(options.json));
    if !options.json {
        runner::print_table(&results);
    }
    if results.iter().any(|result| result.failed()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
