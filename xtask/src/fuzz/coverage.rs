//! How much of what it is for each fuzz target has reached with the inputs that it has kept: a table in docs/adversary.md.
//! It needs `rustup component add llvm-tools`.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::{paths, sh};

use super::{all, build, corpus};

/// The files that each target is for, or directories of such.
const PARSERS: &[(&str, &[&str])] = &[
    ("admin_request", &["crates/control/src/admin.rs", "crates/control/src/zone.rs"]),
    ("agent_up", &["crates/agent/src/protocol"]),
    ("broker_strangers", &["crates/broker/src/sharing/exports.rs", "crates/broker/src/sharing/rendezvous"]),
    ("cdi_file", &["crates/kube/src/cdi/spec.rs", "crates/kube/src/cdi/validate.rs"]),
    ("deb_package", &["crates/guest/src/deb.rs"]),
    ("driver_call", &["crates/sandbox/src/driver/decide.rs", "crates/sandbox/src/driver/image.rs"]),
    ("http_request", &["crates/exporter/src/request.rs"]),
    ("idm_attach", &["crates/idm/src/bootstrap"]),
    ("idm_hello", &["crates/idm/src/bootstrap"]),
    ("idm_record", &["crates/idm/src/ring/record.rs"]),
    ("idm_region", &["crates/idm/src/ring", "crates/idm/src/lane"]),
    ("idm_welcome", &["crates/idm/src/bootstrap"]),
    ("image_text", &["crates/cuda-abi/src/image.rs", "crates/fatbin/src"]),
    ("oci_image", &["crates/guest/src/tenant", "crates/guest/src/tree.rs"]),
    ("ptx_module", &["crates/ptx/src", "crates/ptx-passes/src"]),
    ("rendezvous_message", &["crates/control/src/rendezvous.rs"]),
    ("spawner_request", &["crates/spawner/src/messages.rs"]),
    ("wire_payload", &["crates/cuda-abi/src/wire"]),
    ("worker_dispatch", &["crates/worker/src/ops", "crates/worker/src/memory", "crates/worker/src/handles.rs"]),
    ("xen_card", &["crates/xen/src/card.rs", "crates/xen/src/store/wire.rs"]),
];

const BEGIN: &str = "<!-- coverage: written by cargo xtask fuzz --coverage -->\n";
const END: &str = "<!-- end of coverage -->\n";
/// Inputs that one process is given: its arguments have only so much room.
const AT_ONCE: usize = 500;

/// Covered and all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    covered: u64,
    all: u64,
}

impl Share {
    fn add(&mut self, summary: &Value) {
        self.covered += summary["covered"].as_u64().unwrap_or(0);
        self.all += summary["count"].as_u64().unwrap_or(0);
    }

    fn text(self) -> String {
        format!("{} of {} ({} %)", self.covered, self.all, self.covered * 100 / self.all.max(1))
    }
}

/// Runs every target over the inputs that it has kept, and writes what they reach.
pub(crate) fn measure() -> Result<()> {
    let names = all()?;
    if let Some(unknown) = names.iter().find(|name| PARSERS.iter().all(|(known, _)| known != name)) {
        bail!("xtask/src/fuzz/coverage.rs does not say what {unknown} is for");
    }
    let target = paths::target().join("fuzz-coverage");
    let programs = build(&target, &[], "--cfg fuzzing -Cinstrument-coverage")?;
    let tools = tools()?;
    let mut table = "| target | inputs | lines | regions | of |\n|---|---:|---:|---:|---|\n".to_owned();
    for (name, files) in PARSERS {
        let mut inputs = inputs(&corpus(name))?;
        inputs.extend(self::inputs(&super::dir().join("seeds").join(name))?);
        if inputs.is_empty() {
            bail!("{name} has no inputs yet: cargo xtask fuzz {name}");
        }
        let profile = profile(&tools, &programs.join(name), &target.join("profiles").join(name), &inputs)?;
        let mut export = Command::new(tools.join("llvm-cov"));
        export.args(["export", "-summary-only", "-instr-profile"]).arg(profile).arg(programs.join(name));
        let report: Value = serde_json::from_str(&sh::output(&mut export)?)?;
        let (lines, regions) = shares(&report, files);
        let of = files.iter().map(|file| format!("`{file}`")).collect::<Vec<_>>().join(", ");
        table += &format!("| `{name}` | {} | {} | {} | {of} |\n", inputs.len(), lines.text(), regions.text());
    }
    print!("{table}");
    let page = paths::root().join("docs/adversary.md");
    let text = fs::read_to_string(&page).context("cannot read docs/adversary.md")?;
    fs::write(&page, replaced(&text, &table)?).context("cannot write docs/adversary.md")
}

/// Where the compiler's own `llvm-cov` is: another version reads no profile of ours.
fn tools() -> Result<PathBuf> {
    let root = sh::output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let tools = Path::new(root.trim()).parent().map(|dir| dir.join("bin")).unwrap_or_default();
    if !tools.join("llvm-cov").exists() {
        bail!("no llvm-cov for this compiler: rustup component add llvm-tools");
    }
    Ok(tools)
}

fn inputs(corpus: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(corpus) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Has a target run its inputs; answers the merged profile.
fn profile(tools: &Path, program: &Path, dir: &Path, inputs: &[PathBuf]) -> Result<PathBuf> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    for (number, some) in inputs.chunks(AT_ONCE).enumerate() {
        let mut run = Command::new(program);
        run.args(some).env("LLVM_PROFILE_FILE", dir.join(format!("{number}.profraw")));
        let output = sh::capture(&mut run)?;
        if !output.status.success() {
            bail!("{}{}: {}", String::from_utf8_lossy(&output.stderr), program.display(), output.status);
        }
    }
    let merged = dir.join("all.profdata");
    let raw = self::inputs(dir)?;
    sh::run(Command::new(tools.join("llvm-profdata")).args(["merge", "-sparse", "-o"]).arg(&merged).args(raw))?;
    Ok(merged)
}

/// Lines and regions of these files, tests excluded: they are not in the program.
fn shares(report: &Value, wanted: &[&str]) -> (Share, Share) {
    let (mut lines, mut regions) = (Share::default(), Share::default());
    let root = paths::root();
    let mut seen = BTreeMap::new();
    for file in report["data"][0]["files"].as_array().into_iter().flatten() {
        let Some(name) = file["filename"].as_str().and_then(|name| Path::new(name).strip_prefix(&root).ok()) else {
            continue;
        };
        if wanted.iter().any(|wanted| name.starts_with(wanted)) && seen.insert(name.to_path_buf(), ()).is_none() {
            lines.add(&file["summary"]["lines"]);
            regions.add(&file["summary"]["regions"]);
        }
    }
    (lines, regions)
}

fn replaced(page: &str, table: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).context("the page has no line that begins the coverage")?;
    let (_, after) = rest.split_once(END).context("the page has no line that ends the coverage")?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_of_a_target_count() {
        let file = |name: &str, covered: u64| {
            let filename = paths::root().join(name).display().to_string();
            let summary = serde_json::json!({"covered": covered, "count": 10});
            serde_json::json!({"filename": filename, "summary": {"lines": summary, "regions": summary}})
        };
        let files = [file("crates/a/src/b.rs", 3), file("crates/a/src/c/d.rs", 4), file("crates/e/src/b.rs", 5)];
        let report = serde_json::json!({"data": [{"files": files}]});
        let (lines, regions) = shares(&report, &["crates/a/src/b.rs", "crates/a/src/c"]);
        assert_eq!((lines, regions), (Share { covered: 7, all: 20 }, Share { covered: 7, all: 20 }));
        assert_eq!(lines.text(), "7 of 20 (35 %)");
    }

    #[test]
    fn every_target_is_for_files_that_there_are_and_the_page_has_a_place() {
        for name in all().unwrap() {
            let (_, files) = PARSERS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}"));
            assert!(files.iter().all(|file| paths::root().join(file).exists()), "{files:?}");
        }
        let page = fs::read_to_string(paths::root().join("docs/adversary.md")).unwrap();
        assert!(replaced(&page, "").is_ok());
    }
}
