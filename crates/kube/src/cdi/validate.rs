//! Validates CDI files and detects conflicts between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::spec::{Annotations, Edits, Spec, rank};

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{}: {why}", path.display())]
    Syntax { path: PathBuf, why: String },
}

/// Reads a file, which may be JSON or YAML.
pub fn read(path: &Path) -> Result<Spec, ReadError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| ReadError::Unreadable { path: path.to_owned(), error })?;
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    parse(&text, is_json).map_err(|why| ReadError::Syntax { path: path.to_owned(), why })
}

/// What a file's text says; an error is what is wrong with it, in a line.
pub fn parse(text: &str, is_json: bool) -> Result<Spec, String> {
    match is_json {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => serde_saphyr::from_str(text).map_err(|error| error.to_string()),
    }
}

/// The files in the CDI directories, those of the first directory first. A directory that does not exist is empty.
pub fn find(dirs: &[PathBuf]) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for dir in dirs {
        let entries = match std::fs::read_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        paths.retain(|path| {
            let hidden = path.file_name().and_then(|name| name.to_str()).is_none_or(|name| name.starts_with('.'));
            !hidden && path.extension().is_some_and(|ending| ending == "json" || ending == "yaml")
        });
        paths.sort();
        files.extend(paths);
    }
    Ok(files)
}

/// All problems of a file.
pub fn problems(spec: &Spec) -> Vec<String> {
    let mut wrong = Vec::new();
    match (rank(&spec.cdi_version), rank(spec.lowest_version())) {
        (None, _) => wrong.push(format!("unknown cdiVersion {:?}", spec.cdi_version)),
        (Some(says), Some(needs)) if says < needs => wrong.push(format!(
            "cdiVersion is {}, but the file uses fields of {}, which runtimes ignore or refuse",
            spec.cdi_version,
            spec.lowest_version()
        )),
        _ => {}
    }
    match spec.kind.split_once('/') {
        Some((vendor, class)) if is_word(vendor, ".-_") && is_word(class, ".-_") => {}
        _ => wrong.push(format!("kind {:?} is not vendor/class", spec.kind)),
    }
    if spec.devices.is_empty() {
        wrong.push("no devices".to_owned());
    }
    let mut seen = Vec::new();
    for device in &spec.devices {
        let name = &device.name;
        let fine = |c: char| c.is_ascii_alphanumeric() || "_.-:".contains(c);
        let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        if !name.chars().all(fine) || !ends(name.chars().next()) || !ends(name.chars().last()) {
            wrong.push(format!("{name:?} is not a valid device name"));
        }
        if seen.contains(&name) {
            wrong.push(format!("duplicate device {name}"));
        }
        seen.push(name);
        if device.container_edits.is_empty() {
            wrong.push(format!("device {name} has no container edits"));
        }
        wrong.extend(annotation_problems(&device.annotations).map(|what| format!("device {name}: {what}")));
        wrong.extend(edit_problems(&device.container_edits).into_iter().map(|what| format!("device {name}: {what}")));
    }
    wrong.extend(annotation_problems(&spec.annotations));
    wrong.extend(edit_problems(&spec.container_edits));
    wrong
}

fn annotation_problems(annotations: &Annotations) -> impl Iterator<Item = String> {
    annotations.keys().filter(|key| key.is_empty()).map(|_| "annotation without a name".to_owned())
}

fn edit_problems(edits: &Edits) -> Vec<String> {
    const HOOKS: [&str; 6] =
        ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
    let mut wrong = Vec::new();
    for variable in &edits.env {
        if variable.split_once('=').is_none_or(|(name, _)| name.is_empty()) {
            wrong.push(format!("env {variable:?} is not NAME=VALUE"));
        }
    }
    for node in &edits.device_nodes {
        if !node.path.starts_with('/') {
            wrong.push(format!("device node {:?} is not an absolute path", node.path));
        }
        if node.kind.as_deref().is_some_and(|kind| !["b", "c", "u", "p"].contains(&kind)) {
            wrong.push(format!("device node {}: type must be one of b, c, u, p", node.path));
        }
        if node.permissions.as_deref().is_some_and(|text| text.chars().any(|c| !"rwm".contains(c))) {
            wrong.push(format!("device node {}: permissions must consist of r, w and m", node.path));
        }
    }
    for hook in &edits.hooks {
        if !HOOKS.contains(&hook.hook_name.as_str()) {
            wrong.push(format!("unknown hook {:?}", hook.hook_name));
        }
        if !hook.path.starts_with('/') {
            wrong.push(format!("hook {:?} is not an absolute path", hook.path));
        }
    }
    for mount in &edits.mounts {
        if !mount.host_path.starts_with('/') || !mount.container_path.starts_with('/') {
            wrong.push(format!(
                "mount {:?} on {:?}: both paths must be absolute",
                mount.host_path, mount.container_path
            ));
        }
    }
    wrong
}

fn is_word(text: &str, others: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && ends(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// Paths in a file that do not exist on this machine.
pub fn missing(spec: &Spec) -> Vec<String> {
    let edits = spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits]);
    let paths = edits.flat_map(|edits| {
        let nodes = edits.device_nodes.iter().map(|node| node.host_path.as_ref().unwrap_or(&node.path));
        nodes
            .chain(edits.mounts.iter().map(|mount| &mount.host_path))
            .chain(edits.hooks.iter().map(|hook| &hook.path))
    });
    let mut gone: Vec<String> =
        paths.filter(|path| !Path::new(path).exists()).map(|path| format!("{path} does not exist")).collect();
    gone.sort();
    gone.dedup();
    gone
}

/// All devices of some files, by name. A name in a later directory overrides earlier ones; a name that one directory has
/// twice is a conflict, because runtimes refuse it.
#[derive(Debug, Default)]
pub struct Devices {
    pub names: BTreeMap<String, PathBuf>,
    /// The name, and the files that have it.
    pub conflicts: Vec<(String, PathBuf, PathBuf)>,
}

pub fn devices<'a>(specs: impl Iterator<Item = (&'a Path, &'a Spec)>) -> Devices {
    let mut devices = Devices::default();
    for (path, spec) in specs {
        for device in &spec.devices {
            let name = format!("{}={}", spec.kind, device.name);
            if let Some(other) = devices.names.insert(name.clone(), path.to_owned())
                && other.parent() == path.parent()
            {
                devices.conflicts.push((name, other, path.to_owned()));
            }
        }
    }
    for (name, ..) in &devices.conflicts {
        devices.names.remove(name);
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"cdiVersion":"0.5.0","kind":"bulkhead.dev/zone","devices":[{"name":"a","containerEdits":
        {"env":["A=1"],"mounts":[{"hostPath":"/nowhere/x","containerPath":"/b"}]}}]}"#;

    fn spec(text: &str) -> Spec {
        serde_json::from_str(text).unwrap()
    }

    fn with(from: &str, to: &str) -> Vec<String> {
        assert!(GOOD.contains(from), "{from}");
        problems(&spec(&GOOD.replace(from, to)))
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(problems(&spec(GOOD)), Vec::<String>::new());
        assert_eq!(missing(&spec(GOOD)), ["/nowhere/x does not exist"]);
        assert!(with("0.5.0", "9.9.9")[0].contains("unknown cdiVersion"));
        assert!(with("\"name\":\"a\"", "\"name\":\"0a\"").is_empty());
        assert!(with("0.5.0", "0.3.0").is_empty());
        let annotated = GOOD.replace("\"name\":\"a\"", "\"name\":\"a\",\"annotations\":{\"x\":\"y\"}");
        assert!(problems(&spec(&annotated))[0].contains("fields of 0.6.0"));
        assert!(with("bulkhead.dev/zone", "zone")[0].contains("vendor/class"));
        assert!(with("\"name\":\"a\"", "\"name\":\"a/b\"")[0].contains("not a valid device name"));
        assert!(with("A=1", "=1")[0].contains("NAME=VALUE"));
        assert!(with("\"/b\"", "\"b\"")[0].contains("absolute"));
        assert!(serde_json::from_str::<Spec>(&GOOD.replace("env", "envs")).is_err());
    }

    #[test]
    fn overlapping_files_are_found() {
        let (one, other) = (spec(GOOD), spec(GOOD));
        let same =
            devices([(Path::new("/etc/cdi/1.json"), &one), (Path::new("/etc/cdi/2.json"), &other)].into_iter());
        assert_eq!((same.names.len(), same.conflicts.len()), (0, 1));
        let over =
            devices([(Path::new("/etc/cdi/1.json"), &one), (Path::new("/run/cdi/2.json"), &other)].into_iter());
        assert_eq!(over.names["bulkhead.dev/zone=a"], Path::new("/run/cdi/2.json"));
        assert!(over.conflicts.is_empty());
    }
}
