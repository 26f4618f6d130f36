//! The program as scripts run it, without a zone.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-smi"));
    command.args(arguments).env("BULKHEAD_SOCKET", "/nowhere/sock").output().unwrap()
}

#[test]
fn without_a_proxy_it_fails_as_without_a_driver() {
    let output = run(&["--query-gpu=name", "--format=csv"]);
    assert_eq!(output.status.code(), Some(9));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("NVIDIA-SMI has failed because it couldn't communicate"), "{text}");
    assert!(text.contains("/nowhere/sock"), "{text}");
}

#[test]
fn help_needs_no_proxy_and_names_every_field() {
    for (arguments, part) in [
        (&["--help"][..], "--query-compute-apps="),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["--help-query-gpu"], "\"memory.used\""),
        (&["--help-query-compute-apps"], "\"used_gpu_memory\" or \"used_memory\""),
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(part), "{arguments:?}: {text}");
    }
}

/// A full disk, or a directory that is not there, is no silent success.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let output = run(&["--help", "-f", "/nowhere/out"]);
    assert_eq!(output.status.code(), Some(255));
}
