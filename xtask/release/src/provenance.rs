//! Where a release comes from: an in-toto statement with SLSA's predicate. Without times of its own, it is the same each time.

use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use xtask::toolchain;

use crate::make::Options;
use crate::portable;
use crate::source::Source;

pub(crate) const NAME: &str = "provenance.json";

pub(crate) fn text(source: &Source, options: &Options, files: &BTreeMap<String, String>) -> Result<String> {
    let statement = statement(source, options, files, &portable::compiler()?);
    Ok(format!("{}\n", serde_json::to_string_pretty(&statement)?))
}

fn statement(source: &Source, options: &Options, files: &BTreeMap<String, String>, compiler: &str) -> Value {
    let subject: Vec<Value> =
        files.iter().map(|(name, sum)| json!({ "name": name, "digest": { "sha256": sum } })).collect();
    let mut repository = json!({ "name": "source", "digest": { "gitCommit": source.commit } });
    let mut external = json!({ "commit": source.commit, "registry": options.registry });
    // Without an address there is none: a made-up one would lead nowhere.
    if let Some(uri) = &options.source {
        repository["uri"] = json!(format!("git+{uri}@{}", source.commit));
        external["source"] = json!(uri);
    }
    let mut materials = vec![repository];
    let wheels = portable::TOOLS.into_iter().chain(toolchain::compilers());
    materials.extend(wheels.map(|(name, version, sha256)| {
        json!({ "uri": format!("pkg:pypi/{name}@{version}"), "digest": { "sha256": sha256 } })
    }));
    let fact = |key: &str| compiler.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("unknown").to_owned();
    materials.push(json!({
        "uri": format!("pkg:generic/rustc@{}", fact("release: ")), "digest": { "gitCommit": fact("commit-hash: ") },
    }));
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://bulkhead.dev/release/v1",
                "externalParameters": external,
                "internalParameters": { "command": "cargo xtask release", "staged": options.staged },
                "resolvedDependencies": materials,
            },
            "runDetails": { "builder": { "id": options.builder } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_commit_the_compiler_and_every_file() {
        let source = Source { commit: "c0ffee".into(), time: 0, date: String::new() };
        let files = BTreeMap::from([("a.deb".to_owned(), "12".to_owned()), ("b.rpm".to_owned(), "34".to_owned())]);
        let compiler = "rustc 1.0\nrelease: 1.0\ncommit-hash: abc\n";
        let options = Options { source: Some("https://git.example/bulkhead".into()), ..Options::default() };
        let statement_of = |options: &Options| statement(&source, options, &files, compiler);
        let statement = statement_of(&options);
        assert_eq!(statement["subject"][1], json!({ "name": "b.rpm", "digest": { "sha256": "34" } }));
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(definition["resolvedDependencies"][0]["digest"]["gitCommit"], "c0ffee");
        assert_eq!(definition["resolvedDependencies"][0]["uri"], "git+https://git.example/bulkhead@c0ffee");
        let nowhere = statement_of(&Options::default());
        assert!(nowhere["predicate"]["buildDefinition"]["resolvedDependencies"][0].get("uri").is_none());
        let last = definition["resolvedDependencies"].as_array().unwrap().last().unwrap();
        assert_eq!(*last, json!({ "uri": "pkg:generic/rustc@1.0", "digest": { "gitCommit": "abc" } }));
    }
}
