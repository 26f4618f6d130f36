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

/// Runs a client that writes a timeline, and returns what stands in the file.
fn timeline() -> (u32, serde_json::Value) {
    let place = Place::new(env!("CARGO_BIN_EXE_conformance"));
    let proxy = Proxy::start(&place, &["a"]);
    let mut command = place.player(&["client"], &proxy.socket("a"));
    command.env("BULKHEAD_TRACE_FILE", place.path().join("line")).env("BULKHEAD_TRACE", "timeline");
    let mut client = Honest::from_command(command);
    assert_eq!(client.ask("alloc 1000000000000"), "error 2");
    assert_eq!(client.ask("compute"), "ok");
    assert_eq!(client.ask("compute"), "ok");
    client.quit();
    proxy.stop();
    let files = std::fs::read_dir(place.path()).expect("the place").filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let process = name.strip_prefix("line.")?.strip_suffix(".json")?.parse().ok()?;
        Some((process, std::fs::read_to_string(place.path().join(name)).ok()?))
    });
    let (process, text) = files.last().expect("a file");
    (process, serde_json::from_str(&text).expect("JSON"))
}

#[test]
fn a_timeline_has_each_call_at_its_time() {
    let (process, events) = timeline();
    let events = events.as_array().expect("an array of events");
    assert!(events.iter().all(|event| event["pid"] == process && event["tid"].is_u64()), "{events:?}");
    assert_eq!((&events[0]["ph"], &events[0]["name"]), (&"M".into(), &"process_name".into()));
    let calls = &events[1..];
    assert!(calls.iter().all(|call| call["ph"] == "X" && call["cat"] == "driver"), "{calls:?}");
    let named = |name: &str| calls.iter().filter(|call| call["name"] == name).collect::<Vec<_>>();
    let launches = named("cuLaunchKernel");
    assert_eq!(launches.len(), 2, "{calls:?}");
    assert_eq!((&launches[0]["args"]["posted"], &launches[0]["args"]["trips"]), (&1.into(), &0.into()));
    let refused = named("cuMemAlloc_v2").into_iter().filter(|call| call["args"]["result"] != "CUDA_SUCCESS");
    assert_eq!(refused.map(|call| &call["args"]["result"]).collect::<Vec<_>>(), ["CUDA_ERROR_OUT_OF_MEMORY"]);
    // One thread makes these calls, one after the other.
    let begin = |call: &serde_json::Value| call["ts"].as_f64().expect("a time");
    let end = |call: &serde_json::Value| begin(call) + call["dur"].as_f64().expect("a duration");
    let init = named("cuInit")[0];
    assert_eq!(init["tid"], launches[0]["tid"]);
    // A float holds microseconds since 1970 to a quarter of one.
    assert!(end(init) <= begin(launches[0]) + 1.0 && end(launches[0]) <= begin(launches[1]) + 1.0, "{calls:?}");
    assert!(begin(init) > 1e15, "microseconds since 1970");
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
