//! `bulkhead image`: builds images for Xen guests.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use guest::image::{self, Parts};
use guest::packages::{self, Store};
use guest::tenant;

use crate::exit::{Exit, Failure, is_full};
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
    let files = [(image::KERNEL, image.kernel.len()), (image::ROOT, image.root.len())]
        .map(|(name, len)| Written::new(args.output.join(name), len));
    report(&files, args.json)
}

fn root(args: &ImageRootArgs) -> Result<ExitCode, Failure> {
    let progress = Progress::of("packing the root file system");
    let archive = tenant::archive(&args.source, args.plain).map_err(|error| failure(&error))?;
    let what = || format!("cannot write {}", args.output.display());
    std::fs::write(&args.output, &archive).map_err(|error| Failure::system(Exit::Failure, &what(), &error))?;
    drop(progress);
    report(&[Written::new(args.output.clone(), archive.len())], args.json)
}

/// A file that was made.
#[derive(serde::Serialize)]
struct Written {
    path: PathBuf,
    bytes: u64,
}

impl Written {
    fn new(path: PathBuf, len: usize) -> Self {
        Self { path, bytes: len as u64 }
    }
}

fn report(files: &[Written], json: bool) -> Result<ExitCode, Failure> {
    if json {
        return super::status::print_json(&serde_json::json!({ "files": files }));
    }
    let line = |file: &Written| format!("{}: {}\n", file.path.display(), control::size::Size(file.bytes));
    super::man::print(files.iter().map(line).collect::<String>().as_bytes())
}

fn cache() -> Result<PathBuf, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let missing = || Failure::new(Exit::Usage, "no home directory; use --packages DIR");
    Ok(base.ok_or_else(missing)?.join("bulkhead/packages"))
}

/// An error with its sources, in one line. A full disk has a status of its own, however deep it is.
fn failure(error: &dyn Error) -> Failure {
    let mut line = error.to_string();
    let mut exit = Exit::Failure;
    let mut source = error.source();
    while let Some(error) = source {
        line += &format!(": {error}");
        if error.downcast_ref::<io::Error>().is_some_and(is_full) {
            exit = Exit::NoSpace;
        }
        source = error.source();
    }
    Failure::new(exit, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest::image::ImageError;
    use guest::packages::PackageError;

    #[test]
    fn a_full_disk_has_its_status_wherever_it_is_noticed() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let path = PathBuf::from("/image");
        for error in [
            ImageError::Write(path.clone(), full()),
            ImageError::Package(PackageError::Directory(path.clone(), full())),
        ] {
            let failure = failure(&error);
            assert_eq!(failure.exit, Exit::NoSpace, "{}", failure.line);
        }
        let denied = ImageError::Write(path, io::ErrorKind::PermissionDenied.into());
        assert_eq!(failure(&denied).exit, Exit::Failure);
    }
}
