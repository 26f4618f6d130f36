//! The machine as the checks see it: files below a root and environment variables, so that a test can fake it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use control::env_vars;

pub(crate) struct Scene {
    root: PathBuf,
    variables: BTreeMap<OsString, OsString>,
    /// The admin socket.
    pub admin_socket: PathBuf,
    /// The program whose libraries are checked.
    pub program: Option<PathBuf>,
}

impl Scene {
    pub(crate) fn of_this_machine(admin_socket: PathBuf, program: Option<PathBuf>) -> Self {
        Self { root: PathBuf::from("/"), variables: std::env::vars_os().collect(), admin_socket, program }
    }

    #[cfg(test)]
    pub(crate) fn fake(root: &Path, variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let admin_socket = root.join("run/bulkhead/admin.sock");
        Self { root: root.to_owned(), variables, admin_socket, program: None }
    }

    /// Whether it is no fake, so that programs of the machine tell of it.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Resolves a path of the machine.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The trimmed contents of a small file.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The sorted names in a directory.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(&OsString::from(name)).map(|value| value.to_string_lossy().into_owned())
    }

    pub(crate) fn zone_socket(&self) -> PathBuf {
        match self.variable(env_vars::SOCKET) {
            Some(path) => PathBuf::from(path),
            None => self.path(env_vars::ZONE_SOCKET),
        }
    }

    /// Whether a zone was configured here, so that programs should use it.
    pub(crate) fn is_tenant(&self) -> bool {
        self.variable(env_vars::SOCKET).is_some() || self.exists(env_vars::ZONE_DIR)
    }

    pub(crate) fn is_pod(&self) -> bool {
        self.variable("KUBERNETES_SERVICE_HOST").is_some()
    }

    pub(crate) fn is_container(&self) -> bool {
        self.exists("/.dockerenv")
            || self.exists("/run/.containerenv")
            || self.is_pod()
            || self.variable("container").is_some()
    }
}
