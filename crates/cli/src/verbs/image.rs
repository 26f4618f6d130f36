//! `bulkhead image`: builds images for Xen guests.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use guest::image::{self, Image, Parts};
use guest::packages::{self, Store};
use guest::tenant;

use crate::exit::{Exit, Failure};
use crate::library;
use crate::progress::Progress;
use crate::xen_args::{ImageAction, ImageArgs, ImageBuildArgs, ImageRootArgs};

const INIT: &str = "bulkhead-init";

pub(crate) fn run(args: ImageArgs) -> Result<ExitCode, Failure> {
    match args.action {
        ImageAction::Build(args) => build(args),
        ImageAction::Root(args) => root(&args),
    }
}

fn build(args: ImageBuildArgs) -> Result<ExitCode, Failure> {
    let libraries = library::find()?;
    let init = libraries.join(INIT);
    if !init.is_file() {
        return Err(Failure::new(Exit::NoLibrary, format!("{INIT} not found in {}", libraries.display())));
    }
    let lock = match &args.lock {
        None => packages::LOCK.to_owned(),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::system(Exit::Usage, &format!("cannot read {}", path.display()), &error))?,
    };
    let mut store = Store::new(args.packages.map_or_else(cache, Ok)?);
    if args.offline || !args.mirrors.is_empty() {
        store.mirrors = args.mirrors;
    }
    let parts = Parts {
        store,
        lock: &lock,
        init,
        libraries: ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| libraries.join(name)).into(),
        plain: args.plain,
    };
    let progress = Progress::of("building the image; packages that are not in the cache are fetched");
    let image = image::build(&parts).map_err(|error| failure(&error))?;
    image.write(&args.output).map_err(|error| failure(&error))?;
    drop(progress);
    super::man::print(summary(&image, &args.output).as_bytes())
}

fn root(args: &ImageRootArgs) -> Result<ExitCode, Failure> {
    let progress = Progress::of("packing the root file system");
    let archive = tenant::archive(&args.source, args.plain).map_err(|error| failure(&error))?;
    let what = || format!("cannot write {}", args.output.display());
    std::fs::write(&args.output, &archive).map_err(|error| Failure::system(Exit::Failure, &what(), &error))?;
    drop(progress);
    super::man::print(
        format!("{}: {}\n", args.output.display(), control::size::Size(archive.len() as u64)).as_bytes(),
    )
}

fn summary(image: &Image, dir: &std::path::Path) -> String {
    let size = |bytes: usize| control::size::Size(bytes as u64);
    let (kernel, root) = (dir.join(image::KERNEL), dir.join(image::ROOT));
    format!("{}: {}\n{}: {}\n", kernel.display(), size(image.kernel.len()), root.display(), size(image.root.len()))
}

fn cache() -> Result<PathBuf, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let missing = || Failure::new(Exit::Usage, "no home directory; use --packages DIR");
    Ok(base.ok_or_else(missing)?.join("bulkhead/packages"))
}

/// An error with its sources, in one line.
fn failure(error: &dyn Error) -> Failure {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line += &format!(": {error}");
        source = error.source();
    }
    Failure::new(Exit::Failure, line)
}
