//! Where the parts of Bulkhead are that the tests run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

const PROGRAM: &str = "BULKHEAD_BIN";
const LIBRARY_DIR: &str = "BULKHEAD_LIB_DIR";

#[derive(Debug, Clone)]
pub struct Binaries {
    pub bulkhead: PathBuf,
    /// Our `libcuda.so.1`, under whatever name it was built.
    pub library: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("no {what} beside {}: cargo build -p bulkhead -p libcuda -p libnvml, or set {PROGRAM} and {LIBRARY_DIR}", dir.display())]
pub struct MissingBinary {
    what: &'static str,
    dir: PathBuf,
}

impl Binaries {
    /// Those that the environment names, else the freshest of the target directory that the caller was built into:
    /// cargo builds the programs and libraries of other packages for nobody's tests.
    pub fn find() -> Result<Self, MissingBinary> {
        let own = std::env::current_exe().unwrap_or_default();
        // <target>/<profile>/deps/test-1234, or <target>/<profile>/conformance
        let dir = own.parent().unwrap_or(Path::new("/"));
        let profile = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir };
        let places = |name: &str| {
            let siblings = ["debug", "release"].map(|kind| profile.with_file_name(kind));
            let dirs = siblings.into_iter().chain([profile.to_owned()]);
            dirs.flat_map(|dir| [dir.join(name), dir.join("deps").join(name)]).collect::<Vec<_>>()
        };
        let missing = |what| MissingBinary { what, dir: profile.to_owned() };
        let bulkhead = match std::env::var_os(PROGRAM) {
            Some(path) => Some(PathBuf::from(path)).filter(|path| path.is_file()),
            None => freshest(places("bulkhead")),
        };
        let library = match std::env::var_os(LIBRARY_DIR) {
            Some(dir) => Some(Path::new(&dir).join("libcuda.so.1")).filter(|path| path.is_file()),
            None => freshest(places("libcuda.so")),
        };
        Ok(Self {
            bulkhead: bulkhead.ok_or_else(|| missing("bulkhead"))?,
            library: library.ok_or_else(|| missing("libcuda.so"))?,
        })
    }
}

impl Binaries {
    /// Our NVML: beside our libcuda, under the name of cargo or of the stage.
    ///
    /// # Panics
    /// With one clear line when it has not been built.
    pub fn nvml(&self) -> PathBuf {
        let names = ["libnvidia-ml.so.1", "libnvidia_ml.so"].map(|name| self.library.with_file_name(name));
        names.into_iter().find(|path| path.is_file()).expect("libnvidia_ml.so: cargo build -p libnvml")
    }
}

impl Binaries {
    /// Our `nvidia-smi`, where cargo or the stage leaves it: beside the program, or beside the library.
    ///
    /// # Panics
    /// With one clear line when it has not been built.
    pub fn smi(&self) -> PathBuf {
        let places = [&self.library, &self.bulkhead].map(|beside| beside.with_file_name("nvidia-smi"));
        freshest(places.into()).expect("nvidia-smi: cargo build -p smi")
    }
}

fn freshest(paths: Vec<PathBuf>) -> Option<PathBuf> {
    let age = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    paths.into_iter().filter(|path| path.is_file()).max_by_key(age)
}
