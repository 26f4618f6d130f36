//! Where our `libcuda.so.1` lies, and the environment that puts it in front.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use proxy::env_vars;

use crate::exit::{Exit, Failure};

const LIBRARY: &str = "libcuda.so.1";

/// The directory with our library: named, installed, or beside the program.
pub fn find() -> Result<PathBuf, Failure> {
    let missing = |line: String| Failure::new(Exit::NoLibrary, line);
    if let Some(dir) = std::env::var_os(env_vars::LIB_DIR).map(PathBuf::from) {
        return match dir.join(LIBRARY).is_file() {
            true => dir.canonicalize().map_err(|error| missing(format!("{}: {error}", dir.display()))),
            false => Err(missing(format!("no {LIBRARY} in {} ({})", dir.display(), env_vars::LIB_DIR))),
        };
    }
    let program = std::env::current_exe().map_err(|error| missing(format!("cannot find myself: {error}")))?;
    let beside = program.parent().map(PathBuf::from).unwrap_or_default();
    let places = [beside.join("../lib/bulkhead"), beside.clone()];
    let found = places.iter().find(|dir| dir.join(LIBRARY).is_file());
    found.and_then(|dir| dir.canonicalize().ok()).ok_or_else(|| {
        missing(format!(
            "Bulkhead's {LIBRARY} is neither in {} nor beside the program; set {} to its directory",
            places[0].display(),
            env_vars::LIB_DIR
        ))
    })
}

/// Makes a program find our library before any other, also through Triton, which looks for itself.
pub fn put_in_front(command: &mut Command, dir: &std::path::Path, socket: &std::path::Path) {
    let mut path = OsString::from(dir);
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    command.env("LD_LIBRARY_PATH", path).env("TRITON_LIBCUDA_PATH", dir).env(env_vars::SOCKET, socket);
}
