//! `cargo xtask release`: everything that a release consists of, the same bytes each time it is made of one commit.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod chart;
mod differences;
mod glibc;
mod make;
mod out;
mod portable;
mod provenance;
mod registry;
mod rpm_package;
mod sbom;
mod sign;
mod skew;
mod source;
mod sums;
mod tarball;
mod trial;
mod twice;
mod verify;

use anyhow::{Result, bail};
use lexopt::prelude::*;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask release [OPTION]...      make a release of the commit that is checked out
cargo xtask release verify DIR [--key PUBLIC] [--require-all]
                                     check one with the tools of those who get it; what cannot be checked for want of a
                                     tool or a key is listed, or with --require-all fails
cargo xtask release trial            pack target/stage twice, compare, and verify
cargo xtask release cluster-files    only the chart and the images, of target/stage: what the quickstart takes
cargo xtask release twice [--fresh]  two clones, two builds: are they the same bytes? What an earlier comparison has built is
                                     used again, unless --fresh
cargo xtask release skew [--from COMMIT] [--staged]
                                     the previous version's client with this proxy and the other way round, and an
                                     upgrade and a way back under a running client

  --out DIR          where it goes [default: target/release-VERSION]; an earlier release there is replaced, a directory with
                     anything else in it is refused
  --sign KEY         sign with this private key (PEM: Ed25519, or ECDSA with P-256)
  --registry NAME    the registry that images and chart are pushed to, for images.json and the chart's values
                     [default: bulkhead.dev]
  --builder URI      who builds, for the provenance [default: https://bulkhead.dev/builders/local]
  --source URI       where the repository is, for provenance and images: https://…
  --tag TAG          fail unless this is the tag of the version: v0.1.0
  --staged           pack target/stage as it is: for tests, it runs only where the C library is as new as here
  --allow-dirty      of files that are not committed, too
";

fn main() -> ExitCode {
    match verb() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("release: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn verb() -> Result<()> {
    let mut args = lexopt::Parser::from_env();
    let mut options = make::Options::default();
    let mut words: Vec<String> = Vec::new();
    let (mut key, mut from, mut fresh, mut require_all) = (None, None, false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(());
            }
            Long("out") => options.out = PathBuf::from(args.value()?),
            Long("sign") => options.sign = Some(PathBuf::from(args.value()?)),
            Long("registry") => options.registry = args.value()?.string()?,
            Long("builder") => options.builder = args.value()?.string()?,
            Long("source") => options.source = Some(source::uri(&args.value()?.string()?)?),
            Long("tag") => options.tag = Some(args.value()?.string()?),
            Long("staged") => options.staged = true,
            Long("allow-dirty") => options.allow_dirty = true,
            Long("require-all") => require_all = true,
            Long("fresh") => fresh = true,
            Long("key") => key = Some(PathBuf::from(args.value()?)),
            Long("from") => from = Some(args.value()?.string()?),
            Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => make::release(&options).map(drop),
        ["verify", dir] => verify::release(dir.as_ref(), key.as_deref(), require_all),
        ["trial"] => trial::run(),
        ["cluster-files"] => make::for_cluster(&options),
        ["twice"] => twice::run(fresh),
        ["skew"] => skew::run(from.as_deref(), options.staged),
        _ => bail!("no such verb: {} (see cargo xtask release --help)", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use yaml_rust2::YamlLoader;

    /// The chart of a release names the registry to which its images are pushed, or nodes could not pull them.
    #[test]
    fn what_is_published_is_what_the_chart_names() {
        let text = std::fs::read_to_string(xtask::paths::root().join(".github/workflows/release.yml")).unwrap();
        let workflow = &YamlLoader::load_from_str(&text).unwrap()[0];
        let scripts = |job: &str| -> String {
            let steps = workflow["jobs"][job]["steps"].as_vec().unwrap();
            steps.iter().filter_map(|step| step["run"].as_str()).collect::<Vec<_>>().join("\n").replace("\\\n", "")
        };
        let build = scripts("build");
        let line = build.lines().find(|line| line.contains("cargo xtask release --")).unwrap();
        assert!(line.contains("--registry \"$registry\""), "{line}");
        for option in line.split_whitespace().filter(|word| word.starts_with("--")) {
            assert!(super::HELP.contains(&format!("  {option} ")), "{option} is not an option");
        }
        assert!(line.contains("--source \"$SOURCE\""), "{line}");
        let verified = build.lines().find(|line| line.contains("cargo xtask release verify")).unwrap();
        assert!(
            verified.contains("--require-all") && build.contains("get.helm.sh"),
            "the chart is checked: {verified}"
        );
        assert!(scripts("test").contains("cargo xtask test"));
        assert_eq!(workflow["jobs"]["build"]["needs"].as_str(), Some("test"));
        let lab = std::fs::read_to_string(xtask::paths::root().join("tests/labs/cluster/src/go.rs")).unwrap();
        let helm = workflow["env"]["HELM_VERSION"].as_str().unwrap();
        assert!(lab.contains(&format!("\"{helm}\"")), "the laboratory has another Helm than {helm}");
        let publish = scripts("publish");
        let push = publish.lines().find(|line| line.contains("skopeo copy")).unwrap();
        assert!(push.contains("docker://$(field repository):$(field tag)"), "{push}");
    }
}
