//! Makes a release: builds, packs, lists, sums up and signs.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::deb::{self, Compression};
use xtask::images::{self, Set};
use xtask::oci::{Built, Recipe};
use xtask::package::{GLIBC, VERSION};
use xtask::progress::Progress;
use xtask::{paths, stage, toolchain};

use crate::source::Source;
use crate::{chart, glibc, out, portable, provenance, rpm_package, sbom, sign, sums, tarball};

pub(crate) const IMAGES: &str = "images.json";

#[derive(Clone)]
pub(crate) struct Options {
    pub out: PathBuf,
    pub sign: Option<PathBuf>,
    pub registry: String,
    pub builder: String,
    /// Where the repository is, without `git+`.
    pub source: Option<String>,
    pub tag: Option<String>,
    pub staged: bool,
    pub allow_dirty: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            out: paths::target().join(format!("release-{VERSION}")),
            sign: None,
            registry: images::REGISTRY.to_owned(),
            builder: "https://bulkhead.dev/builders/local".to_owned(),
            source: None,
            tag: None,
            staged: false,
            allow_dirty: false,
        }
    }
}

/// Gives the files with their hashes.
pub(crate) fn release(options: &Options) -> Result<BTreeMap<String, String>> {
    if let Some(tag) = &options.tag {
        ensure!(*tag == format!("v{VERSION}"), "the tag is {tag}, and Cargo.toml has version {VERSION}");
    }
    let source = Source::checked_out(options.allow_dirty)?;
    // Before the long build.
    out::check(&options.out)?;
    toolchain::ensure_compiler()?;
    let tree = if options.staged { paths::stage() } else { portable::build()? };
    for file in binaries(&tree) {
        // What is staged for a trial is built for this machine.
        if !options.staged {
            let (major, minor) = glibc::check(&file, GLIBC)?.glibc;
            println!("{} needs glibc {major}.{minor}", file.strip_prefix(&tree).unwrap_or(&file).display());
        }
    }
    let out = &options.out;
    out::clear(out)?;
    pack(options, &source, &tree)?;
    let files = sums::of(out)?;
    write(out, provenance::NAME, provenance::text(&source, options, &files)?)?;
    let files = sums::of(out)?;
    write(out, sums::NAME, sums::text(&files))?;
    if let Some(key) = &options.sign {
        sign::release(out, key)?;
    }
    println!("{}", out.display());
    Ok(files)
}

/// What a cluster needs of a release, made of what is staged: the chart and the images.
pub(crate) fn for_cluster(options: &Options) -> Result<()> {
    out::check(&options.out)?;
    let source = Source::checked_out(true)?;
    toolchain::ensure_compiler()?;
    out::clear(&options.out)?;
    pack_for_cluster(options, &source, &paths::stage(), &Progress::of_parts("packing", 3)).map(drop)
}

/// Programs and libraries of a staged tree.
pub(crate) fn binaries(tree: &Path) -> Vec<PathBuf> {
    let names = ["libcuda.so.1", "libnvidia-ml.so.1", "bulkhead-init", stage::SMI];
    let lib = names.iter().chain(&stage::DAEMONS).map(|name| tree.join("lib/bulkhead").join(name));
    std::iter::once(tree.join("bin/bulkhead")).chain(lib).collect()
}

fn pack(options: &Options, source: &Source, tree: &Path) -> Result<()> {
    let (out, time) = (&options.out, source.time);
    // Tarball, deb, rpm, chart, two images, SBOM.
    let progress = Progress::of_parts("packing", 7);
    let glibc = if options.staged { "2.34" } else { GLIBC };
    write(out, &tarball::name(), tarball::bytes(tree, time)?)?;
    progress.part_done();
    write(out, &deb::name(), deb::bytes(tree, &deb::Options { compression: Compression::Gzip, glibc, time })?)?;
    progress.part_done();
    write(out, &rpm_package::name(), rpm_package::bytes(tree, time)?)?;
    progress.part_done();
    let images = pack_for_cluster(options, source, tree, &progress)?;
    write(out, sbom::NAME, sbom::text(source, &images)?)?;
    progress.part_done();
    Ok(())
}

/// Chart, images and their list: three parts of the progress. Archives have the name by which the examples and the quickstart
/// call the image, wherever it is pushed: who imports one pulls nothing.
fn pack_for_cluster(options: &Options, source: &Source, tree: &Path, progress: &Progress) -> Result<Vec<Built>> {
    let (out, time) = (&options.out, source.time);
    let chart = chart::build(&options.registry, time, &source.date)?;
    write(out, &format!("bulkhead-{VERSION}.tgz"), &chart.tgz)?;
    write(out, &format!("bulkhead-chart-{VERSION}.oci.tar"), &chart.oci)?;
    progress.part_done();
    let set = Set {
        stage: tree.to_path_buf(),
        dir: out.join(out::SCRATCH),
        registry: images::REGISTRY.to_owned(),
        recipe: recipe(options, source),
        revision: None,
    };
    fs::create_dir_all(&set.dir)?;
    let mut built = Vec::new();
    for (name, make) in [("bulkhead", Set::bulkhead as fn(&Set) -> Result<Built>), ("examples", Set::examples)] {
        let image = make(&set)?;
        let archive = out.join(format!("{name}-image-{VERSION}.oci.tar"));
        fs::rename(&image.archive, &archive)?;
        built.push(Built { archive, name: format!("{}/{name}:{VERSION}", options.registry), ..image });
        progress.part_done();
    }
    fs::remove_dir_all(&set.dir)?;
    write(out, IMAGES, list(&options.registry, &built, &chart.digest)?)?;
    Ok(built)
}

fn recipe(options: &Options, source: &Source) -> Recipe {
    let facts = [
        ("org.opencontainers.image.created", source.date.as_str()),
        ("org.opencontainers.image.licenses", "Apache-2.0 OR MIT"),
        ("org.opencontainers.image.revision", source.commit.as_str()),
        ("org.opencontainers.image.version", VERSION),
    ];
    let from = options.source.as_deref().map(|uri| ("org.opencontainers.image.source", uri));
    let annotations = facts.into_iter().chain(from).map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Recipe { time: source.time, created: Some(source.date.clone()), gzip: true, annotations }
}

/// Names and digests, for those who deploy by digest.
fn list(registry: &str, images: &[Built], chart: &str) -> Result<String> {
    let mut all = BTreeMap::new();
    for image in images {
        let name =
            image.name.rsplit('/').next().and_then(|name| name.split(':').next()).context("an image has a name")?;
        let archive = image.archive.file_name().unwrap_or_default().to_string_lossy();
        let entry = json!({
            "repository": format!("{registry}/{name}"), "tag": VERSION, "digest": image.digest, "archive": archive,
        });
        all.insert(name.to_owned(), entry);
    }
    let entry = json!({
        "repository": format!("{registry}/charts/bulkhead"), "tag": VERSION, "digest": chart,
        "archive": format!("bulkhead-chart-{VERSION}.oci.tar"),
    });
    all.insert("chart".to_owned(), entry);
    Ok(format!("{}\n", serde_json::to_string_pretty(&all)?))
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    fs::write(dir.join(name), bytes).with_context(|| format!("cannot write {name}"))
}
