//! The programs that users have us run: found as by a shell, with statuses as of a shell.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use crate::exit::{Exit, Failure};

/// Finds a program as a shell would.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    find_in(name, std::env::var_os("PATH").as_deref())
}

fn find_in(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let not_found = || Failure::new(Exit::NotFound, format!("program not found: {}", name.display()));
    let candidates: Vec<PathBuf> = if name.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else if name.is_empty() {
        Vec::new()
    } else {
        std::env::split_paths(path.unwrap_or(OsStr::new("/usr/bin:/bin"))).map(|dir| dir.join(name)).collect()
    };
    let mut seen = None;
    for candidate in candidates {
        match std::fs::metadata(&candidate) {
            Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => return Ok(candidate),
            Ok(_) => seen = Some(candidate),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => seen = Some(candidate),
            Err(_) => {}
        }
    }
    match seen {
        Some(path) => Err(Failure::new(Exit::NotExecutable, format!("not executable: {}", path.display()))),
        None => Err(not_found()),
    }
}

/// The failure of a program that was found and does not start.
pub(crate) fn not_started(program: &Path, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    Failure::new(exit, format!("cannot execute {}: {error}", program.display()))
}

/// The program's own status, or 128+n if signal n killed it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_by_a_shell() {
        assert!(find_in(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin"))).is_ok());
        let exit = |name: &str| find_in(OsStr::new(name), Some(OsStr::new("/bin"))).unwrap_err().exit;
        assert_eq!(exit("no-such-program"), Exit::NotFound);
        assert_eq!(exit("./no-such-program"), Exit::NotFound);
        assert_eq!(exit(""), Exit::NotFound);
        assert_eq!(exit("/etc/passwd"), Exit::NotExecutable);
        assert_eq!(exit("/"), Exit::NotExecutable);
    }
}
