//! Finds the client library `libcuda.so.1`, and sets the environment that loads it first, and that finds our `nvidia-smi`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use control::env_vars;

use crate::exit::{Exit, Failure};

const LIBRARY: &str = "libcuda.so.1";
const SMI: &str = "nvidia-smi";

/// The directory of the client library: as configured, as installed, or beside this program.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let missing = |line: String| Failure::new(Exit::NoLibrary, line);
    if let Some(dir) = std::env::var_os(env_vars::LIB_DIR).map(PathBuf::from) {
        return match dir.join(LIBRARY).is_file() {
            true => dir.canonicalize().map_err(|error| missing(format!("{}: {error}", dir.display()))),
            false => Err(missing(format!("no {LIBRARY} in {} ({})", dir.display(), env_vars::LIB_DIR))),
        };
    }
    let program =
        std::env::current_exe().map_err(|error| missing(format!("cannot find this program's own path: {error}")))?;
    let beside = program.parent().map(PathBuf::from).unwrap_or_default();
    let places = [beside.join("../lib/bulkhead"), beside.clone()];
    let found = places.iter().find(|dir| dir.join(LIBRARY).is_file());
    found.and_then(|dir| dir.canonicalize().ok()).ok_or_else(|| {
        missing(format!(
            "client library {LIBRARY} not found in {} or beside this program; set {} to its directory",
            places[0].display(),
            env_vars::LIB_DIR
        ))
    })
}

/// Makes a program load the client library before any other, also through Triton, which has a search of its own; and call our
/// `nvidia-smi`, where it is beside the library.
pub(crate) fn put_in_front(command: &mut Command, dir: &Path, socket: &Path) {
    if dir.join(SMI).is_file() {
        command.env("PATH", before("PATH", dir));
    }
    let path = before("LD_LIBRARY_PATH", dir);
    command.env("LD_LIBRARY_PATH", path).env("TRITON_LIBCUDA_PATH", dir).env(env_vars::SOCKET, socket);
}

/// A list of directories that begins with `dir`, and goes on as the variable does now.
fn before(variable: &str, dir: &Path) -> OsString {
    let mut path = OsString::from(dir);
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}
