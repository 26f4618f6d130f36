//! Finds the client library `libcuda.so.1`, and sets the environment that loads it first.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use control::env_vars;

use crate::exit::{Exit, Failure};

const LIBRARY: &str = "libcuda.so.1";

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

/// Makes a program load the client library before any other, also through Triton, which has a search of its own.
pub(crate) fn put_in_front(command: &mut Command, dir: &std::path::Path, socket: &std::path::Path) {
    let mut path = OsString::from(dir);
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    command.env("LD_LIBRARY_PATH", path).env("TRITON_LIBCUDA_PATH", dir).env(env_vars::SOCKET, socket);
}
