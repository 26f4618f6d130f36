//! `BULKHEAD_TRACE`: the table of a program's calls says what the program did.

use std::collections::BTreeMap;
use std::path::PathBuf;

use conformance::harness::{Honest, Place, Proxy};

/// Runs a client with a trace of this level, and returns what was written.
fn trace(level: Option<&str>) -> Option<String> {
    let place = Place::new(env!("CARGO_BIN_EXE_conformance"));
    let proxy = Proxy::start(&place, &["a"]);
    let file: PathBuf = place.path().join("trace");
    let mut command = place.player(&["client"], &proxy.socket("a"));
    command.env("BULKHEAD_TRACE_FILE", &file).envs(level.map(|level| ("BULKHEAD_TRACE", level)));
    // It talks with us over its standard output, so anything else that came there would be noticed.
    let mut client = Honest::from_command(command);
    assert_eq!(client.ask("alloc 1000000"), "ok");
    assert_eq!(client.ask("alloc 1000000000000"), "error 2");
    assert_eq!(client.ask("compute"), "ok");
    assert_eq!(client.ask("compute"), "ok");
    client.quit();
    proxy.stop();
    std::fs::read_to_string(file).ok()
}

/// Figures of each function: calls, failed, trips, posted, sent, received.
fn figures(text: &str) -> BTreeMap<&str, Vec<u64>> {
    let rows = text.lines().skip_while(|line| !line.ends_with("function")).skip(1);
    let row = |line| -> Option<(&str, Vec<u64>)> {
        let words: Vec<&str> = str::split_whitespace(line).collect();
        let name = words.get(8).filter(|name| name.starts_with("cu"))?;
        Some((name, words[2..8].iter().map(|word| word.parse().expect("a figure")).collect()))
    };
    rows.map_while(row).collect()
}

#[test]
fn the_table_counts_calls_messages_and_failures() {
    let text = trace(Some("1")).expect("a trace");
    let rows = figures(&text);
    // One for the data, one that fits, and one that does not.
    let allocations = &rows["cuMemAlloc_v2"];
    assert_eq!((allocations[0], allocations[1]), (3, 1), "{text}");
    // The image goes to the worker, and what became of it comes back.
    let loads = &rows["cuModuleLoadData"];
    assert!(loads[2] > 0 && loads[3] > 0 && loads[4] > 1000 && loads[5] > 0, "{text}");
    assert!(text.contains("cuMemAlloc_v2  CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
    // Launches are posted, and nobody waits for them.
    let launches = &rows["cuLaunchKernel"];
    assert_eq!((launches[0], launches[1], launches[2], launches[3]), (2, 0, 0, 2), "{text}");
    assert_eq!(rows["cuInit"][0], 1, "{text}");
    assert!(!text.contains("not supported"), "{text}");
    // Without lines.
    assert_eq!(text.matches("cuLaunchKernel").count(), 1, "{text}");
}

#[test]
fn level_two_also_has_a_line_for_each_call() {
    let text = trace(Some("2")).expect("a trace");
    assert_eq!(text.matches("] cuLaunchKernel: CUDA_SUCCESS").count(), 2, "{text}");
    assert_eq!(text.matches("] cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY").count(), 1, "{text}");
    assert_eq!(figures(&text)["cuLaunchKernel"][0], 2, "{text}");
}

#[test]
fn without_it_nothing_is_written() {
    assert_eq!(trace(None), None);
    assert_eq!(trace(Some("0")), None);
}
