//! Findings as SARIF 2.1.0, which code hosts show beside the lines.

use std::path::Path;

use serde_json::{Value, json};

use super::finding::{Finding, Place};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// Rules by their names: what each finds.
const RULES: [(&str, &str); 4] = [
    ("memory", "Access beyond an allocation, memory that is never freed, or freed twice"),
    ("races", "Conflicting accesses of threads that nothing orders"),
    ("init", "Read of memory that nobody has written"),
    ("sync", "Barrier or mask that not all threads keep to"),
];

/// A log of one run. Files below `root` are named from there.
pub(super) fn log(found: &[Finding], root: &Path) -> Value {
    let rules: Vec<Value> =
        RULES.iter().map(|(id, text)| json!({ "id": id, "shortDescription": { "text": text } })).collect();
    let results: Vec<Value> = found.iter().map(|finding| result(finding, root)).collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "bulkhead", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "results": results,
        }],
    })
}

fn result(finding: &Finding, root: &Path) -> Value {
    let mut places = finding.places.iter().map(|place| location(place, root));
    let locations: Vec<Value> = places.next().into_iter().collect();
    let related: Vec<Value> = places.collect();
    let level = if finding.what.starts_with("allocations") { "warning" } else { "error" };
    json!({
        "ruleId": finding.check,
        "level": level,
        "message": { "text": finding.text },
        "locations": locations,
        "relatedLocations": related,
    })
}

fn location(place: &Place, root: &Path) -> Value {
    let path = Path::new(&place.file);
    let uri = match path.strip_prefix(root) {
        Ok(below) => below.display().to_string(),
        Err(_) if path.is_absolute() => format!("file://{}", place.file),
        Err(_) => place.file.clone(),
    };
    json!({
        "physicalLocation": {
            "artifactLocation": { "uri": uri },
            "region": { "startLine": place.line.max(1) },
        },
    })
}
