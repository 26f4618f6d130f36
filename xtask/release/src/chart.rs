//! The chart: as Helm's own archive, and as what a registry holds of it.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::PathBuf;
use xtask::archive::{Entry, Tree};
use xtask::oci::Layout;
use xtask::package::VERSION;
use xtask::{images, paths};
use yaml_rust2::{Yaml, YamlLoader};

const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

pub(crate) struct Chart {
    /// Helm's archive.
    pub tgz: Vec<u8>,
    /// An OCI layout, archived.
    pub oci: Vec<u8>,
    /// What a registry calls it.
    pub digest: String,
}

fn dir() -> PathBuf {
    paths::root().join("packaging/helm/bulkhead")
}

/// `date` is `time` for people.
pub(crate) fn build(registry: &str, time: u64, date: &str) -> Result<Chart> {
    let text = fs::read_to_string(dir().join("Chart.yaml")).context("cannot read Chart.yaml")?;
    let metadata = metadata(&text)?;
    for key in ["version", "appVersion"] {
        ensure!(metadata[key] == VERSION, "Chart.yaml has {key} {}, and this is version {VERSION}", metadata[key]);
    }
    let mut tree = files()?;
    let values = fs::read_to_string(dir().join("values.yaml")).context("cannot read the chart's values")?;
    tree.bytes("values.yaml", for_registry(&values, registry)?, 0o644);
    let tgz = tree.below("bulkhead").tar_gz(time)?;
    let mut layout = Layout::default();
    let config = layout.blob(CONFIG, metadata.to_string());
    let content = layout.blob(CONTENT, tgz.clone());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [content],
        "annotations": {
            "org.opencontainers.image.created": date,
            "org.opencontainers.image.description": metadata["description"],
            "org.opencontainers.image.title": metadata["name"],
            "org.opencontainers.image.version": VERSION,
        },
    });
    let digest = layout.manifest(&format!("{registry}/charts/bulkhead:{VERSION}"), &manifest);
    Ok(Chart { tgz, oci: layout.archive()?, digest })
}

/// The chart's files. A link, which would lead nowhere in an archive, is what it leads to, as with `helm package`.
fn files() -> Result<Tree> {
    let mut tree = Tree::of_dir(&dir())?;
    let is_link = |(path, entry): (&str, &Entry)| matches!(entry, Entry::Link(_)).then(|| path.to_owned());
    for path in tree.entries().filter_map(is_link).collect::<Vec<_>>() {
        let file = fs::canonicalize(dir().join(&path)).with_context(|| format!("{path} leads nowhere"))?;
        tree.file(&path, &file, 0o644);
    }
    Ok(tree)
}

/// The values with the release's own image.
fn for_registry(values: &str, registry: &str) -> Result<String> {
    let line = |registry: &str| format!("\n  repository: {registry}/bulkhead\n");
    let ours = line(images::REGISTRY);
    ensure!(
        values.matches(&ours).count() == 1,
        "values.yaml does not name the image {}/bulkhead once",
        images::REGISTRY
    );
    Ok(values.replace(&ours, &line(registry)))
}

/// Chart.yaml as JSON, which is what a registry holds of it beside the archive.
fn metadata(text: &str) -> Result<Value> {
    let documents = YamlLoader::load_from_str(text).context("Chart.yaml is not valid")?;
    json(documents.first().context("Chart.yaml is empty")?)
}

fn json(yaml: &Yaml) -> Result<Value> {
    Ok(match yaml {
        Yaml::String(text) | Yaml::Real(text) => json!(text),
        Yaml::Integer(number) => json!(number),
        Yaml::Boolean(value) => json!(value),
        Yaml::Array(items) => Value::Array(items.iter().map(json).collect::<Result<_>>()?),
        Yaml::Hash(pairs) => {
            let mut map = Map::new();
            for (key, value) in pairs {
                map.insert(key.as_str().context("Chart.yaml has a key that is no text")?.to_owned(), json(value)?);
            }
            Value::Object(map)
        }
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => anyhow::bail!("Chart.yaml has a value that is not understood"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_chart_links_to_is_in_it() {
        let tree = files().unwrap();
        assert!(tree.entries().all(|(_, entry)| !matches!(entry, Entry::Link(_))));
        let dashboard = tree.entries().find(|(path, _)| *path == "dashboards/bulkhead.json").map(|(_, entry)| entry);
        let Some(Entry::File { from, .. }) = dashboard else { panic!("{dashboard:?}") };
        let original = fs::read(paths::root().join("packaging/grafana/bulkhead.json")).unwrap();
        assert_eq!(fs::read(from).unwrap(), original);
    }

    #[test]
    fn a_registry_holds_the_chart_and_what_it_says_of_itself() {
        let chart = build("registry.example", 7, "1970-01-01T00:00:07Z").unwrap();
        let again = build("registry.example", 7, "1970-01-01T00:00:07Z").unwrap();
        assert_eq!((&chart.oci, &chart.tgz), (&again.oci, &again.tgz), "the same bytes each time");
        assert!(chart.digest.starts_with("sha256:"));
        let text = String::from_utf8_lossy(&chart.oci).into_owned();
        assert!(text.contains(CONFIG) && text.contains(CONTENT));
        assert!(text.contains("registry.example/charts/bulkhead:"));
        let values = for_registry("image:\n  repository: bulkhead.dev/bulkhead\n", "registry.example").unwrap();
        assert_eq!(values, "image:\n  repository: registry.example/bulkhead\n");
        assert!(for_registry("image: {}\n", "registry.example").is_err());
        let metadata = metadata("name: x\nversion: 1.2.3\nkeywords: [a, b]\nmaintainers:\n  - name: y\n").unwrap();
        assert_eq!(
            metadata,
            json!({"name": "x", "version": "1.2.3", "keywords": ["a", "b"], "maintainers": [{"name": "y"}]})
        );
    }
}
