//! What a release holds of others' work (CycloneDX 1.6): crates in our binaries, as cargo selects them for these; packages of
//! the distribution in images; what the compilers link in.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use xtask::archive::sha256;
use xtask::oci::Built;
use xtask::package::VERSION;
use xtask::{distribution, paths, sh, stage, toolchain};

use crate::portable;
use crate::source::Source;

pub(crate) const NAME: &str = "sbom.cdx.json";

/// A crate, and the crates that it has in it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Crate {
    licence: String,
    ours: bool,
    depends_on: BTreeSet<(String, String)>,
}

/// By name and version.
type Crates = BTreeMap<(String, String), Crate>;

pub(crate) fn text(source: &Source, images: &[Built]) -> Result<String> {
    let bom = bom(&crates()?, &checksums()?, source, images)?;
    Ok(format!("{}\n", serde_json::to_string_pretty(&bom)?))
}

/// Those that end up in what we ship: no build scripts, no macros, no tests.
fn crates() -> Result<Crates> {
    let mut cargo = sh::cargo();
    cargo.args(["tree", "--locked", "--target", "x86_64-unknown-linux-gnu", "--edges", "normal,no-proc-macro"]);
    cargo.args(["--prefix", "depth", "--format", "{p}|{l}"]);
    cargo.args(stage::packages().flat_map(|package| ["--package", package]));
    parse(&sh::output(&mut cargo)?)
}

/// Lines such as `2serde v1.0.0|MIT OR Apache-2.0`, each below the one with the smaller number before it.
fn parse(tree: &str) -> Result<Crates> {
    let mut crates = Crates::new();
    let mut above: Vec<(String, String)> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let depth: usize = line[..digits].parse().with_context(|| format!("cargo tree says {line:?}"))?;
        let (package, licence) =
            line[digits..].split_once('|').with_context(|| format!("cargo tree says {line:?}"))?;
        let mut words = package.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let version = words.next().unwrap_or_default().trim_start_matches('v').to_owned();
        let id = (name, version);
        let known = crates.entry(id.clone()).or_default();
        // Some were written before the SPDX had an OR. A star says that what is below stands further up.
        known.licence = licence.trim_end_matches(" (*)").replace(" / ", " OR ").replace('/', " OR ");
        known.ours = words.next().is_some_and(|word| word.starts_with("(/"));
        above.truncate(depth);
        if let Some(parent) = above.last() {
            crates.entry(parent.clone()).or_default().depends_on.insert(id.clone());
        }
        above.push(id);
    }
    Ok(crates)
}

/// Hashes of crates, as Cargo.lock has them.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let lock = std::fs::read_to_string(paths::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let field = |block: &str, key: &str| {
        let value = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    Ok(blocks
        .filter_map(|block| Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?)))
        .collect())
}

fn bom(
    crates: &Crates,
    checksums: &BTreeMap<(String, String), String>,
    source: &Source,
    images: &[Built],
) -> Result<Value> {
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for (id, one) in crates {
        let mut component = json!({
            "type": "library", "bom-ref": reference(id), "name": id.0, "version": id.1,
            "licenses": [{ "expression": one.licence }],
        });
        if !one.ours {
            component["purl"] = json!(reference(id));
        }
        if let Some(sum) = checksums.get(id) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        components.push(component);
        let below: Vec<String> = one.depends_on.iter().map(reference).collect();
        dependencies.push(json!({ "ref": reference(id), "dependsOn": below }));
    }
    let linked = linked()?;
    let root = format!("pkg:generic/bulkhead@{VERSION}");
    let mut below: Vec<String> = crates
        .iter()
        .filter(|((name, _), _)| stage::packages().any(|package| package == name))
        .map(|(id, _)| reference(id))
        .collect();
    below.extend(linked.iter().filter_map(|one| Some(one["bom-ref"].as_str()?.to_owned())));
    components.extend(linked);
    for image in images {
        let (component, packages, uses) = container(image);
        below.push(component["bom-ref"].as_str().unwrap_or_default().to_owned());
        dependencies.push(uses);
        for package in packages {
            if !components.iter().any(|known: &Value| known["bom-ref"] == package["bom-ref"]) {
                components.push(package);
            }
        }
        components.push(component);
    }
    dependencies.push(json!({ "ref": root, "dependsOn": below }));
    let hash = sha256(format!("{} {VERSION}", source.commit).as_bytes());
    let serial = [&hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..32]].join("-");
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": format!("urn:uuid:{serial}"), "version": 1,
        "metadata": {
            "timestamp": source.date,
            "component": {
                "type": "application", "bom-ref": root, "name": "bulkhead", "version": VERSION,
                "licenses": [{ "expression": "Apache-2.0 OR MIT" }],
                "properties": [{ "name": "bulkhead:commit", "value": source.commit }],
            },
        },
        "components": components, "dependencies": dependencies,
    }))
}

fn reference((name, version): &(String, String)) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// What compilers put into programs of their own.
fn linked() -> Result<Vec<Value>> {
    let compiler = portable::compiler()?;
    let rust = compiler.lines().find_map(|line| line.strip_prefix("release: ")).unwrap_or("unknown");
    let (zig, version, _) = portable::TOOLS[0];
    let mut all = vec![
        component("library", &format!("pkg:generic/rust-std@{rust}"), "rust-std", rust, "MIT OR Apache-2.0"),
        // Of it: compiler-rt and libunwind.
        component(
            "library",
            &format!("pkg:pypi/{zig}@{version}"),
            zig,
            version,
            "MIT AND Apache-2.0 WITH LLVM-exception",
        ),
    ];
    // In nvidia-smi, which is linked statically.
    let archive = sh::output(Command::new("cc").arg("-print-file-name=libc.a"))?;
    for package in distribution::packages(&[PathBuf::from(archive.trim())].into())? {
        let purl = format!("pkg:deb/debian/{}@{}?arch={}", package.name, package.version, package.architecture);
        all.push(component("library", &purl, &package.name, &package.version, "LGPL-2.1-or-later"));
    }
    // In the programs of the image with examples.
    for (name, version) in toolchain::linked() {
        all.push(json!({
            "type": "library", "bom-ref": format!("pkg:pypi/{name}@{version}"), "name": name, "version": version,
            "purl": format!("pkg:pypi/{name}@{version}"),
            "licenses": [{ "license": { "name": "NVIDIA CUDA Toolkit End User License Agreement" } }],
        }));
    }
    Ok(all)
}

fn component(kind: &str, purl: &str, name: &str, version: &str, licence: &str) -> Value {
    json!({
        "type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "licenses": [{ "expression": licence }],
    })
}

/// An image, the distribution's packages in it, and which they are.
fn container(image: &Built) -> (Value, Vec<Value>, Value) {
    let reference = format!("{}@{}", image.name, image.digest);
    let packages: Vec<Value> = image.packages.iter().map(|package| {
        let purl = format!("pkg:deb/debian/{}@{}?arch={}", package.name, package.version, package.architecture);
        json!({ "type": "library", "bom-ref": purl, "name": package.name, "version": package.version, "purl": purl })
    }).collect();
    let component = json!({
        "type": "container", "bom-ref": reference, "name": image.name, "version": VERSION,
        "hashes": [{ "alg": "SHA-256", "content": image.digest.trim_start_matches("sha256:") }],
    });
    let below: Vec<Value> = packages.iter().map(|package| package["bom-ref"].clone()).collect();
    let uses = json!({ "ref": reference, "dependsOn": below });
    (component, packages, uses)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0bulkhead v0.1.0 (/x/crates/cli)|Apache-2.0 OR MIT\n1serde v1.0.1|MIT/Apache-2.0\n2itoa v2.0.0|MIT\n\
                        1itoa v2.0.0|MIT (*)\n\n0libcuda v0.1.0 (/x/crates/libcuda)|MIT\n1serde v1.0.1|MIT/Apache-2.0 (*)\n";

    #[test]
    fn cargos_tree_is_understood() {
        let crates = parse(TREE).unwrap();
        let id = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(crates.len(), 4);
        let serde = &crates[&id("serde", "1.0.1")];
        assert_eq!((serde.licence.as_str(), serde.ours), ("MIT OR Apache-2.0", false));
        assert_eq!(serde.depends_on, [id("itoa", "2.0.0")].into());
        assert_eq!(crates[&id("bulkhead", "0.1.0")].depends_on.len(), 2);
        assert!(crates[&id("libcuda", "0.1.0")].ours);
        assert!(parse("nonsense").is_err());
    }

    #[test]
    fn what_is_in_our_binaries_is_listed_and_nothing_else() {
        let (crates, sums) = (crates().unwrap(), checksums().unwrap());
        let names: BTreeSet<&str> = crates.keys().map(|(name, _)| name.as_str()).collect();
        for name in ["libcuda", "smi", "idm", "rustix", "tonic", "cranelift-codegen", "ring"] {
            assert!(names.contains(name), "{name}");
        }
        // A test's, a macro's, a build script's.
        for name in ["testkit", "proptest", "serde_derive", "protox", "rpm", "xtask"] {
            assert!(!names.contains(name), "{name}");
        }
        for (id, one) in crates.iter().filter(|(_, one)| !one.ours) {
            assert!(sums.contains_key(id), "{id:?} has no hash");
            assert!(!one.licence.is_empty(), "{id:?} has no licence");
        }
    }
}
