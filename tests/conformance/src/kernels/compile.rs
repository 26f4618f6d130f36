//! From `conformance/kernels/*.cu` to PTX, with a nvcc that `cargo xtask toolchain` fetches.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{fs, io};

/// A compiler, and what all sources are compiled for with it.
#[derive(Clone, Copy)]
pub struct Target {
    /// The directory of the toolchain that holds the compiler.
    pub dir: &'static str,
    /// Such as `-arch=compute_50`; else what the source says.
    pub architecture: Option<&'static str>,
}

/// The compiler of everything else.
pub const NEWEST: Target = Target { dir: "nvcc", architecture: None };

/// What a source is compiled for unless its first line (`// nvcc: …`) says otherwise: the oldest that nvcc 13 knows.
const ARCHITECTURE: &str = "-arch=compute_75";
/// As many as there are cores on a small machine.
const AT_ONCE: usize = 2;

#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("there is no nvcc at {0} (cargo xtask toolchain)")]
    NoCompiler(PathBuf),
    #[error("cannot read or write {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path} does not compile:\n{output}")]
    Source { path: PathBuf, output: String },
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> CompileError {
    let path = path.to_path_buf();
    move |source| CompileError::File { path, source }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn nvcc(dir: &str) -> Result<PathBuf, CompileError> {
    let cache = std::env::var_os("BULKHEAD_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from);
    let nvcc = cache.join("cuda").join(dir).join("bin/nvcc");
    if nvcc.exists() { Ok(nvcc) } else { Err(CompileError::NoCompiler(nvcc)) }
}

/// Fills `dir` with the PTX of all kernels. What has not changed since the last time is left alone.
pub fn compile(target: Target, dir: &Path) -> Result<(), CompileError> {
    let nvcc = nvcc(target.dir)?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    fs::create_dir_all(dir).map_err(file_error(dir))?;
    let entries = fs::read_dir(&sources).map_err(file_error(&sources))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    files.sort();
    let header = sources.join("common.h");
    let header = fs::read(&header).map_err(file_error(&header))?;
    let (queue, failure) = (Mutex::new(files.into_iter()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(source) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                    if let (Err(error), Ok(mut failure)) =
                        (compile_one(&nvcc, target, &source, &header, dir), failure.lock())
                    {
                        failure.get_or_insert(error);
                    }
                }
            });
        }
    });
    failure.into_inner().ok().flatten().map_or(Ok(()), Err)
}

fn compile_one(nvcc: &Path, target: Target, source: &Path, header: &[u8], dir: &Path) -> Result<(), CompileError> {
    let text = fs::read_to_string(source).map_err(file_error(source))?;
    let said = text.lines().next().and_then(|line| line.strip_prefix("// nvcc: "));
    let said = target.architecture.or(said).unwrap_or(ARCHITECTURE);
    let flags: Vec<&str> = said.split_whitespace().collect();
    let mut hasher = DefaultHasher::new();
    (&text, header, &flags, nvcc).hash(&mut hasher);
    let hash = format!("{:016x}", hasher.finish());
    let output = dir.join(source.file_name().unwrap_or_default()).with_extension("ptx");
    let note = output.with_extension("hash");
    if output.exists() && fs::read_to_string(&note).is_ok_and(|noted| noted == hash) {
        return Ok(());
    }
    // Under another name until it is whole: several processes may fill the same directory at once.
    let unfinished = output.with_extension(format!("ptx-{}", std::process::id()));
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-lineinfo", "-ptx"]).args(flags).arg(source).arg("-o").arg(&unfinished);
    let done = command.output().map_err(file_error(nvcc))?;
    if !done.status.success() {
        let output = String::from_utf8_lossy(&done.stderr).into_owned();
        return Err(CompileError::Source { path: source.to_path_buf(), output });
    }
    fs::rename(&unfinished, &output).map_err(file_error(&output))?;
    fs::write(&note, hash).map_err(file_error(&note))
}
