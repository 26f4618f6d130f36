//! The suite on the software GPU itself, and on the same through libcuda, proxy and worker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conformance::backend::Backend;
use conformance::harness::{Place, Proxy};
use conformance::kernels;
use conformance::kernels::compile::{self, Target};
use conformance::runner::{self, Options, Outcome, TestResult};

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");

/// What is known to be wrong, and why: (backend, test, reason). A test that passes in spite of it must leave the list.
const KNOWN: &[(&str, &str, &str)] = &[
    (
        "soft-direct",
        "hosts::kernels_reach_registered_memory",
        "copies reach memory outside the window, kernels do not",
    ),
    (
        "soft-direct",
        "faults::functions_are_found_by_name",
        "the software GPU is a table: names are libcuda's business",
    ),
    ("soft-direct", "graphs::memory_allocated_in_a_capture", "the software GPU has no nodes that allocate memory"),
    ("soft-direct", "graphs::memory_allocated_by_nodes", "the software GPU has no nodes that allocate memory"),
    ("soft-direct", "managed::prefetched_memory_is_where_it_was", OF_LIBCUDA),
    ("soft-direct", "managed::only_managed_memory_is_prefetched", OF_LIBCUDA),
    ("soft-direct", "managed::advice_is_remembered", OF_LIBCUDA),
    ("soft-direct", "managed::advice_is_for_a_range", OF_LIBCUDA),
    ("soft-direct", "managed::locations_are_checked", OF_LIBCUDA),
    ("soft-direct", "managed::memory_is_attached_to_streams", OF_LIBCUDA),
    ("soft-direct", "batches::words_in_a_batch", OF_LIBCUDA),
    ("soft-direct", "batches::a_wrong_word_spoils_the_batch", OF_LIBCUDA),
    ("soft-direct", "batches::copies_in_a_batch", OF_LIBCUDA),
    ("soft-direct", "batches::wrong_batches_of_copies", OF_LIBCUDA),
    ("soft-direct", "batches::shaped_copies_in_a_batch", OF_LIBCUDA),
    ("soft-direct", "batches::copies_between_contexts_have_shapes", OF_LIBCUDA),
    ("soft-direct", "batches::what_is_not_there_is_refused", OF_LIBCUDA),
    ("soft-direct", "batches::launches_of_before", OF_LIBCUDA),
    ("soft-direct", "batches::contexts_are_attached_to", OF_LIBCUDA),
    ("soft-direct", "batches::pools_by_location", OF_LIBCUDA),
    ("soft-direct", "batches::small_questions_have_answers", OF_LIBCUDA),
    ("soft-direct", "older::arrays_of_32_bits", OF_LIBCUDA),
    ("soft-direct", "older::copies_of_32_bits", OF_LIBCUDA),
    ("soft-direct", "older::addresses_that_do_not_fit", OF_LIBCUDA),
    ("soft-direct", "older::sizes_that_do_not_fit", OF_LIBCUDA),
    ("soft-direct", "older::no_dump_is_asked_for", OF_LIBCUDA),
];
const OF_LIBCUDA: &str = "libcuda makes it of other functions, so the software GPU has none";
const BOTH: &str = "";
const FIBERS: &str = "soft-fibers";

/// Older compilers and GPUs: what their results are called, how the kernels are compiled, and how many of these GPUs there
/// are kernels for at least.
const OLDER: [(&str, Target, usize); 2] = [
    ("soft-nvcc12-50", Target { dir: "nvcc-12.4", architecture: Some("-arch=compute_50") }, 200),
    ("soft-nvcc12-70", Target { dir: "nvcc-12.4", architecture: Some("-arch=compute_70") }, 230),
];

fn main() -> ExitCode {
    // The standard harness's flags mean nothing here; anything else chooses tests.
    let names: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if std::env::args().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    let kernels = match compiled("kernels", compile::NEWEST) {
        Ok(kernels) => kernels,
        Err(failure) => return failure,
    };
    let options =
        |backend| Options { backend, json: false, list: false, kernels: kernels.clone(), names: names.clone() };
    let start = std::time::Instant::now();
    let mut results = runner::run(&options(Backend::SoftDirect), |_| std::process::Command::new(PLAYER), print);

    // Kernels whose threads run in turns must give the same where each thread has a fiber.
    let fibers = Options {
        names: if names.is_empty() { vec!["kernels::".to_owned()] } else { names.clone() },
        ..options(Backend::SoftDirect)
    };
    let player = |_| {
        let mut player = std::process::Command::new(PLAYER);
        player.env("SOFTGPU_FIBERS", "1");
        player
    };
    let by_fibers = runner::run(&fibers, player, |result| {
        print(&TestResult { backend: FIBERS, ..result.clone() });
    });
    results.extend(by_fibers.into_iter().map(|result| TestResult { backend: FIBERS, ..result }));

    for (backend, target, least) in OLDER {
        let kernels = match compiled(backend, target) {
            Ok(Some(kernels)) => Some(kernels),
            Ok(None) => continue,
            Err(failure) => return failure,
        };
        let player = |_| {
            let mut player = std::process::Command::new(PLAYER);
            player.env(kernels::OLDER, "1");
            player
        };
        let named = |result: &TestResult| TestResult { backend, ..result.clone() };
        let older = runner::run(&Options { kernels, ..fibers.clone() }, player, |result| print(&named(result)));
        let passed = older.iter().filter(|result| result.outcome == Outcome::Pass).count();
        if names.is_empty() && passed < least {
            println!("{backend}: only {passed} kernels are there and pass");
            return ExitCode::FAILURE;
        }
        results.extend(older.iter().map(named));
    }

    let place = Place::new(PLAYER);
    // A zone for each that run at once: they look at how much memory is free.
    let zones: Vec<String> = (0..runner::AT_ONCE).map(|slot| format!("zone-{slot}")).collect();
    let proxy = Proxy::start(&place, &zones.iter().map(String::as_str).collect::<Vec<_>>());
    let library = options(Backend::Library("libcuda.so.1".to_owned()));
    let player = |slot: usize| {
        // What the test before had must be back in the ledger.
        proxy.zone_is_empty(&zones[slot]);
        place.player(&[], &proxy.socket(&zones[slot]))
    };
    results.extend(runner::run(&library, player, print));
    zones.iter().for_each(|zone| proxy.zone_is_empty(zone));
    let log = proxy.log();
    // Signal 9 is the broker's: on a busy machine a worker may not follow its client in time.
    let crashed = |line: &&str| line.contains("status=\"signal") && !line.contains("status=\"signal 9\"");
    let ill: Vec<&str> = log.lines().filter(|line| line.contains("panicked") || crashed(line)).collect();
    proxy.stop();
    place.nothing_is_left();

    let count = |wanted: &str| results.iter().filter(|result| line(result).ends_with(wanted)).count();
    let ignored = results.iter().filter(|result| line(result).contains("ignored")).count();
    let (passed, failed) = (count(" ok"), count(" FAILED") + usize::from(!ill.is_empty()));
    if !ill.is_empty() {
        println!("workers crashed:\n{}", ill.join("\n"));
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        if failed == 0 { "ok" } else { "FAILED" },
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The directory with the compiled kernels, unless there is no such compiler.
fn compiled(name: &str, target: Target) -> Result<Option<PathBuf>, ExitCode> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match compile::compile(target, &dir) {
        Ok(()) => Ok(Some(dir)),
        Err(error @ compile::CompileError::NoCompiler(_)) => {
            println!("kernels are left out: {error}");
            Ok(None)
        }
        Err(error) => {
            println!("{error}");
            Err(ExitCode::FAILURE)
        }
    }
}

fn known(result: &TestResult) -> Option<&'static str> {
    let backend = if result.backend == FIBERS { "soft-direct" } else { result.backend };
    let found = KNOWN.iter().find(|(of, name, _)| [BOTH, backend].contains(of) && *name == result.name);
    found.map(|(_, _, reason)| *reason)
}

fn line(result: &TestResult) -> String {
    let name = format!("{}::{}", result.backend, result.name);
    match (&result.outcome, known(result)) {
        (Outcome::Pass, None) => format!("test {name} ... ok"),
        (Outcome::Pass, Some(_)) => format!("test {name} ... FAILED"),
        (Outcome::Fail { .. }, Some(why)) => format!("test {name} ... ignored, {why}"),
        (Outcome::Fail { .. }, None) => format!("test {name} ... FAILED"),
        (Outcome::Skip { why }, _) => format!("test {name} ... ignored, {why}"),
    }
}

fn print(result: &TestResult) {
    println!("{}", line(result));
    match (&result.outcome, known(result)) {
        (Outcome::Fail { why }, None) => println!("    {}", why.replace('\n', "\n    ")),
        (Outcome::Pass, Some(why)) => println!("    passes, though it is listed as known: {why}"),
        _ => {}
    }
}
