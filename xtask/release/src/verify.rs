//! Checks a release with the tools of those who get it.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::archive::sha256;
use xtask::package::{GLIBC, VERSION};
use xtask::{deb, images, paths, sh};

use crate::{glibc, make, provenance, registry, rpm_package, sbom, sign, sums, tarball};

/// What validates SBOMs, from PyPI, with the schemas in it.
const CYCLONEDX: &str = "cyclonedx-python-lib[json-validation]==11.6.0";

/// Says what it checked, and what it could not for want of a tool, which fails if everything is required. `key` is the public
/// key that the release must be signed with.
pub(crate) fn release(dir: &Path, key: Option<&Path>, require_all: bool) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("release-verify-{}", std::process::id()));
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch)?;
    let checked = all(dir, key, &scratch, Lacking { fails: require_all });
    fs::remove_dir_all(&scratch)?;
    checked
}

/// What to do about a check that cannot be made.
#[derive(Clone, Copy)]
struct Lacking {
    fails: bool,
}

impl Lacking {
    fn say(self, what: &str) -> Result<()> {
        ensure!(!self.fails, "not checked: {what}");
        println!("not checked: {what}");
        Ok(())
    }

    fn has(self, tool: &str) -> Result<bool> {
        match sh::exists(tool) {
            true => Ok(true),
            false => self.say(&format!("there is no {tool}")).map(|()| false),
        }
    }
}

fn all(dir: &Path, key: Option<&Path>, scratch: &Path, lacking: Lacking) -> Result<()> {
    let files = checksums(dir)?;
    println!("{} files are as {} says", files.len(), sums::NAME);
    signature(dir, key, lacking)?;
    let statement = statement(dir, &files)?;
    println!("the provenance names all of them");
    let staged = statement["predicate"]["buildDefinition"]["internalParameters"]["staged"] == true;
    unpacked(dir, scratch, staged)?;
    packages(dir, scratch, lacking)?;
    archives(dir, scratch)?;
    chart(dir, scratch, lacking)?;
    bill_of_materials(dir)
}

fn checksums(dir: &Path) -> Result<BTreeMap<String, String>> {
    let said =
        fs::read_to_string(dir.join(sums::NAME)).with_context(|| format!("{} has no checksums", dir.display()))?;
    let found = sums::of(dir)?;
    if said != sums::text(&found) {
        for line in said.lines() {
            let (sum, name) = line.split_once("  ").with_context(|| format!("{} says {line:?}", sums::NAME))?;
            ensure!(found.get(name).is_some_and(|found| found == sum), "{name} is not what {} says", sums::NAME);
        }
        bail!("{} does not list all files", sums::NAME);
    }
    Ok(found)
}

fn signature(dir: &Path, key: Option<&Path>, lacking: Lacking) -> Result<()> {
    let (signed, own) = (dir.join(sign::SIGNATURE).exists(), dir.join(sign::PUBLIC_KEY));
    match key {
        None if !signed => lacking.say("the signature; it is not signed")?,
        None => lacking.say("the signature; --key names the public key that you trust")?,
        Some(key) => {
            ensure!(signed, "it is not signed");
            sign::verify(key, &dir.join(sums::NAME), &dir.join(sign::SIGNATURE))?;
            sign::verify_envelope(key, dir)?;
            ensure!(fs::read(key)? == fs::read(own)?, "{} is not the key that signed", sign::PUBLIC_KEY);
            println!("checksums and provenance are signed with {}", key.display());
        }
    }
    Ok(())
}

/// The provenance, if it is for these files.
fn statement(dir: &Path, files: &BTreeMap<String, String>) -> Result<Value> {
    let statement: Value = serde_json::from_slice(&fs::read(dir.join(provenance::NAME))?)?;
    let subjects = statement["subject"].as_array().context("the provenance has no subjects")?;
    let named = |subject: &Value| {
        Some((subject["name"].as_str()?.to_owned(), subject["digest"]["sha256"].as_str()?.to_owned()))
    };
    let mut named: BTreeMap<String, String> = subjects.iter().filter_map(named).collect();
    named.insert(provenance::NAME.to_owned(), files.get(provenance::NAME).cloned().unwrap_or_default());
    ensure!(named == *files, "the provenance is of other files");
    Ok(statement)
}

/// The tarball's programs start, and need no newer C library than is promised.
fn unpacked(dir: &Path, scratch: &Path, staged: bool) -> Result<()> {
    sh::output(Command::new("tar").arg("-xzf").arg(dir.join(tarball::name())).arg("-C").arg(scratch))?;
    let tree = scratch.join(format!("bulkhead-{VERSION}"));
    let said = sh::output(Command::new(tree.join("bin/bulkhead")).arg("--version"))?;
    ensure!(said.trim() == format!("bulkhead {VERSION}"), "the tarball's program says that it is {said:?}");
    if staged {
        println!("the tarball's program is {}", said.trim());
        return Ok(());
    }
    let root = paths::root().display().to_string();
    for file in make::binaries(&tree)? {
        glibc::check(&file, GLIBC)?;
        let bytes = fs::read(&file)?;
        let leaks = bytes.windows(root.len()).any(|window| window == root.as_bytes());
        ensure!(!leaks, "{} has {root} in it", file.display());
    }
    println!("the tarball's program is {}, and all binaries run with glibc {GLIBC}", said.trim());
    Ok(())
}

fn packages(dir: &Path, scratch: &Path, lacking: Lacking) -> Result<()> {
    let (deb, rpm) = (dir.join(deb::name()), dir.join(rpm_package::name()));
    if lacking.has("dpkg-deb")? {
        let info = sh::output(Command::new("dpkg-deb").arg("--info").arg(&deb))?;
        ensure!(info.contains(&format!(" Version: {VERSION}\n")), "the deb says {info}");
        let list = sh::output(Command::new("dpkg-deb").arg("--contents").arg(&deb))?;
        ensure!(list.contains("usr/bin/bulkhead\n"), "the deb holds {list}");
        println!("dpkg-deb reads the deb");
    }
    if lacking.has("rpm")? {
        // With a database of its own: this machine's may not be there.
        let database = format!("_dbpath {}", std::env::temp_dir().join("release-no-rpmdb").display());
        let ask =
            |words: &[&str]| sh::output(Command::new("rpm").args(["--define", &database]).args(words).arg(&rpm));
        let info = ask(&["-qip"])?;
        ensure!(info.contains(&format!("Version     : {VERSION}\n")), "the rpm says {info}");
        let digests = ask(&["-Kv", "--nosignature"])?;
        ensure!(digests.contains("OK") && !digests.contains("BAD"), "the rpm's digests: {digests}");
        let config = ask(&["-qcp"])?;
        ensure!(config.trim() == "/etc/bulkhead/bulkhead.toml", "the rpm's configuration files: {config}");
        let scripts = ask(&["-qp", "--scripts"])?;
        ensure!(scripts.contains("systemctl restart bulkhead-broker.service"), "the rpm's scripts: {scripts}");
        let pipe = "rpm2cpio \"$0\" | cpio --quiet -it";
        let list = sh::output(Command::new("sh").args(["-c", pipe]).arg(&rpm))?;
        ensure!(list.contains("./usr/bin/bulkhead\n"), "rpm2cpio finds {list}");
        println!("rpm and rpm2cpio read the rpm");
        installs(&rpm, &scratch.join("rpm-root"), lacking)?;
    }
    Ok(())
}

/// rpm installs the package in an empty root, finds all of it, keeps what was changed in the configuration, and removes the
/// rest. Scripts need systemd and are left out.
fn installs(package: &Path, root: &Path, lacking: Lacking) -> Result<()> {
    if sh::output(Command::new("id").arg("-u"))?.trim() != "0" {
        return lacking.say("the rpm's installation; only root can change roots");
    }
    fs::create_dir_all(root)?;
    // With a database in that root: Debian's rpm has one for each user. It also wants to be told that this is meant.
    let rpm = |words: &[&str]| {
        let common = ["--define", "_dbpath /database"];
        sh::output(Command::new("rpm").arg("--root").arg(root).args(common).args(words))
    };
    let meant = Path::new("/etc/debian_version").exists().then_some("--force-debian");
    let file = package.display().to_string();
    let place = |words: &[&str]| rpm(&[words, meant.as_slice(), &["--nodeps", "--noscripts", &file]].concat());
    place(&["-i"]).context("rpm does not install the package")?;
    let said = sh::output(Command::new(root.join("usr/bin/bulkhead")).arg("--version"))?;
    ensure!(said.trim() == format!("bulkhead {VERSION}"), "the rpm's program says that it is {said:?}");
    let changed = rpm(&["-V", "--nodeps", "bulkhead"])?;
    ensure!(changed.trim().is_empty(), "rpm finds other files than it installed: {changed}");
    let config = root.join("etc/bulkhead/bulkhead.toml");
    fs::write(&config, "# mine\n")?;
    place(&["-U", "--replacepkgs"]).context("rpm does not upgrade the package")?;
    ensure!(fs::read_to_string(&config)? == "# mine\n", "an upgrade replaces the configuration");
    rpm(&["-e", "--nodeps", "--noscripts", "bulkhead"]).context("rpm does not remove the package")?;
    let left = sh::output(Command::new("find").arg(root).args([
        "-path",
        "*/database",
        "-prune",
        "-o",
        "-type",
        "f",
        "-print",
    ]))?;
    let left: Vec<&str> = left.lines().filter(|file| !file.ends_with("/bulkhead.toml.rpmsave")).collect();
    ensure!(left.is_empty(), "removed, the rpm leaves {left:?}");
    println!("rpm installs, upgrades and removes the package");
    Ok(())
}

/// Every blob is what its name says, everything that is named is there, and the digests are those in the list.
fn archives(dir: &Path, scratch: &Path) -> Result<()> {
    let list: BTreeMap<String, Value> = serde_json::from_slice(&fs::read(dir.join(make::IMAGES))?)?;
    for (name, image) in &list {
        let archive = image["archive"].as_str().context("an image has no archive")?;
        let layout = layout(&dir.join(archive), &scratch.join(name))?;
        let digest = image["digest"].as_str().unwrap_or_default();
        if name != "chart" {
            imported(&layout, name)?;
        }
        let manifest = blob(&layout, digest)?;
        let manifest: Value = serde_json::from_slice(&manifest)?;
        let parts = manifest["layers"].as_array().context("a manifest has no layers")?;
        for part in parts.iter().chain([&manifest["config"]]) {
            let bytes = blob(&layout, part["digest"].as_str().unwrap_or_default())?;
            ensure!(part["size"] == bytes.len(), "a blob of {archive} has another size");
        }
        println!(
            "{archive} is {}:{}@{digest}",
            image["repository"].as_str().unwrap_or_default(),
            image["tag"].as_str().unwrap_or_default()
        );
    }
    Ok(())
}

/// An imported image has the name that the examples and the quickstart use, whatever the registry.
fn imported(layout: &Path, image: &str) -> Result<()> {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let named = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
    ensure!(
        *named == images::name(image),
        "the archive of {image} is imported as {named}, not as {}",
        images::name(image)
    );
    Ok(())
}

fn layout(archive: &Path, into: &Path) -> Result<PathBuf> {
    fs::create_dir_all(into)?;
    sh::output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(into))?;
    Ok(into.to_path_buf())
}

fn blob(layout: &Path, digest: &str) -> Result<Vec<u8>> {
    let hash = digest.strip_prefix("sha256:").with_context(|| format!("{digest:?} is not a digest"))?;
    let bytes =
        fs::read(layout.join("blobs/sha256").join(hash)).with_context(|| format!("there is no blob {digest}"))?;
    ensure!(sha256(&bytes) == hash, "the blob {digest} has another hash");
    Ok(bytes)
}

/// Helm pulls it from a registry that holds what the archive does, and gets what the other archive is.
fn chart(dir: &Path, scratch: &Path, lacking: Lacking) -> Result<()> {
    let Some(helm) = helm() else {
        return lacking.say("the chart; there is no helm");
    };
    let address = registry::serve(&scratch.join("chart"))?;
    let pulled = scratch.join("pulled");
    fs::create_dir_all(&pulled)?;
    let from = format!("oci://{address}/charts/bulkhead");
    let mut pull = Command::new(&helm);
    pull.args(["pull", &from, "--version", VERSION, "--plain-http", "--destination"]).arg(&pulled);
    // Whatever this machine's user has configured for Helm does not count.
    sh::output(pull.env("HOME", scratch).env_remove("HTTP_PROXY").env_remove("http_proxy"))?;
    let (name, shown) = (format!("bulkhead-{VERSION}.tgz"), Command::new(&helm));
    ensure!(fs::read(pulled.join(&name))? == fs::read(dir.join(&name))?, "helm pulls another chart than {name}");
    let mut show = shown;
    let said = sh::output(show.args(["show", "chart"]).arg(dir.join(&name)))?;
    ensure!(said.contains(&format!("\nversion: {VERSION}\n")), "helm shows {said}");
    // With everything that can be switched on: what is missing in the archive would be empty here.
    let mut template = Command::new(&helm);
    template.args(["template", "bulkhead"]).arg(dir.join(&name)).args(["--kube-version", "1.36.0"]);
    let made = sh::output(template.args(["--set", "metrics.dashboard=true", "--set", "metrics.podMonitor=true"]))?;
    ensure!(made.contains("\"panels\""), "the chart's dashboard is empty");
    println!("helm pulls, shows and renders the chart");
    Ok(())
}

/// The laboratory's, or this machine's.
fn helm() -> Option<PathBuf> {
    let built = paths::cache().join("kubernetes/current/helm");
    let in_path = sh::output(Command::new("sh").args(["-c", "command -v helm"])).ok();
    Some(built).filter(|helm| helm.exists()).or_else(|| in_path.map(|path| PathBuf::from(path.trim())))
}

/// Against the schema of those who define the format.
fn bill_of_materials(dir: &Path) -> Result<()> {
    let site = paths::cache().join("tools").join(CYCLONEDX.replace(['[', ']', '='], "-"));
    if !site.exists() {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"];
        let new = site.with_extension("new");
        let _ = fs::remove_dir_all(&new);
        sh::output(Command::new("python3").args(pip).arg(&new).arg(CYCLONEDX))
            .context("cannot fetch what validates SBOMs")?;
        fs::rename(new, &site)?;
    }
    let script = "import sys\nfrom cyclonedx.schema import SchemaVersion\nfrom cyclonedx.validation.json import JsonStrictValidator\n\
                  error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())\n\
                  sys.exit(f'{error!r}'[:2000] if error else 0)\n";
    sh::output(Command::new("python3").env("PYTHONPATH", &site).args(["-c", script]).arg(dir.join(sbom::NAME)))
        .context("the SBOM is not valid")?;
    let bom: Value = serde_json::from_slice(&fs::read(dir.join(sbom::NAME))?)?;
    println!("the SBOM is valid and lists {} components", bom["components"].as_array().map_or(0, Vec::len));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_fails_only_where_everything_is_required() {
        assert!(!Lacking { fails: false }.has("no-such-tool").unwrap());
        let said = Lacking { fails: true }.has("no-such-tool").unwrap_err().to_string();
        assert_eq!(said, "not checked: there is no no-such-tool");
    }
}
