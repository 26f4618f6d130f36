//! `cargo xtask programs`: compiles tests/programs/*.cu, once per runtime they are to be tried with.
//!
//! A program is compiled once and linked many times. nvcc 13 launches kernels through `__cudaLaunchKernel`, which came
//! with CUDA 12.0; for older runtimes there is a second object that launches through `cudaLaunchKernel`
//! (`--legacy-launch-seq`), since no older nvcc is on PyPI.

use crate::toolchain::{self, Runtime};
use crate::{paths, sh};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A source file, with what the comment lines at its head (`// key: value`) say about it.
pub struct Program {
    pub name: String,
    source: PathBuf,
    /// The memory limit of the zone it runs in.
    pub memory: Option<String>,
    /// Arguments that tell it what it should see in that zone.
    pub args: Vec<String>,
    /// To be tried with every runtime of the matrix.
    pub all_runtimes: bool,
    /// Why the software GPU cannot run it yet.
    pub not_on_soft: Option<String>,
    /// Not a test.
    pub by_hand: bool,
    nvcc: Vec<String>,
    /// A second source, whose device code is linked with that of the first.
    part: Option<PathBuf>,
    /// Its kernels call functions of CUDA's library for the device, which is linked with them.
    device_runtime: bool,
}

/// How a program gets its CUDA runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linkage {
    Static,
    Shared,
}

/// A program, linked.
pub struct Binary<'a> {
    pub program: &'a Program,
    pub runtime: &'static str,
    pub linkage: Linkage,
    pub path: PathBuf,
}

impl Binary<'_> {
    /// Such as `vecadd · 12.9 static`.
    pub fn label(&self) -> String {
        let linkage = if self.linkage == Linkage::Static { "static" } else { "shared" };
        format!("{} · {} {linkage}", self.program.name, self.runtime)
    }
}

/// All programs of the repository.
pub fn all() -> Result<Vec<Program>> {
    let dir = paths::root().join("tests/programs");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut sources = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    sources.into_iter().map(Program::read).collect()
}

impl Program {
    pub fn read(source: PathBuf) -> Result<Program> {
        let text = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        let head = text.lines().map_while(|line| line.strip_prefix("// "));
        let says = |key: &str| head.clone().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let words = |key: &str| says(key).unwrap_or("").split_whitespace().map(String::from).collect();
        Ok(Program {
            name: source.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            memory: says("memory").map(String::from),
            args: words("args"),
            all_runtimes: says("runtimes") == Some("all"),
            not_on_soft: says("not on the software GPU").map(String::from),
            by_hand: says("runs") == Some("by hand"),
            nvcc: words("nvcc"),
            part: says("with").map(|part| source.with_file_name(part)),
            device_runtime: says("kernels") == Some("call the device runtime"),
            source,
        })
    }

    /// Compiles, and gives the object file.
    fn object(&self, legacy: bool, sass: &[String]) -> Result<PathBuf> {
        let mut flags = vec!["-std=c++17".to_string(), "-O2".into(), "-Xcompiler=-Wall".into()];
        flags.extend(["-gencode".into(), "arch=compute_75,code=compute_75".into()]);
        for arch in sass {
            flags.push("-gencode".into());
            flags.push(format!("arch=compute_{arch},code=sm_{arch}"));
        }
        if legacy {
            flags.push("--legacy-launch-seq".into());
        }
        flags.extend(self.nvcc.iter().cloned());
        let separate = self.device_runtime || self.part.is_some();
        if separate {
            let library = if self.device_runtime { "static" } else { "none" };
            flags.extend(["-rdc=true".into(), format!("-cudadevrt={library}")]);
        }
        let header = paths::root().join("tests/programs/check.h");
        let part = self.part.as_ref().map(fs::read).transpose()?;
        let inputs = (fs::read(&self.source)?, part, fs::read(header)?, toolchain::identity(), &flags);
        let suffix = if legacy { "-legacy" } else { "" };
        let object = paths::programs().join("obj").join(format!("{}{suffix}.o", self.name));
        made(&object, &inputs, || {
            match separate {
                true => compile_separately(&flags, std::iter::once(&self.source).chain(&self.part), &object)?,
                false => compile(&flags, &self.source, &object)?,
            }
            make_driver_stub(&object)
        })?;
        Ok(object)
    }

    /// Compiles and links as asked; gives None where the runtime's wheel has no static library.
    fn link(&self, runtime: &Runtime, linkage: Linkage, sass: &[String]) -> Result<Option<PathBuf>> {
        let statik = match (linkage, &runtime.statik) {
            (Linkage::Static, None) => return Ok(None),
            (Linkage::Static, Some(library)) => Some(library),
            (Linkage::Shared, _) => None,
        };
        let object = self.object(runtime.version.starts_with("11."), sass)?;
        let kind = if statik.is_some() { "static" } else { "shared" };
        let binary = paths::programs().join(format!("{}-{}-{kind}", self.name, runtime.version));
        let inputs = (fs::read(&object)?, toolchain::identity());
        made(&binary, &inputs, || {
            let mut link = Command::new("g++");
            link.arg("-o").arg(&binary).arg(&object);
            if let Some(library) = statik {
                link.arg(library);
                let culibos = library.with_file_name("libculibos.a");
                link.args(culibos.exists().then_some(culibos));
            } else {
                // Beside the programs and found from there, so that the directory can be carried to another machine.
                link.arg(carried(runtime)).arg(format!("-Wl,-rpath,$ORIGIN/lib/{}", runtime.version));
            }
            let stub = driver_stub(&object);
            link.args(stub.exists().then_some(stub)).args(["-ldl", "-lpthread", "-lrt"]);
            sh::output(&mut link).map(drop)
        })?;
        Ok(Some(binary))
    }
}

fn compile(flags: &[String], source: &Path, object: &Path) -> Result<()> {
    sh::output(Command::new(toolchain::nvcc()).args(flags).arg("-c").arg(source).arg("-o").arg(object)).map(drop)
}

/// Compiles several sources, links their device code, and makes one object of it all.
fn compile_separately<'a>(flags: &[String], sources: impl Iterator<Item = &'a PathBuf>, object: &Path) -> Result<()> {
    let mut objects = Vec::new();
    for (number, source) in sources.enumerate() {
        let part = object.with_extension(format!("{number}.o"));
        compile(flags, source, &part)?;
        objects.push(part);
    }
    let linked = object.with_extension("linked.o");
    let mut nvcc = Command::new(toolchain::nvcc());
    sh::output(nvcc.args(flags).arg("-dlink").args(&objects).arg("-o").arg(&linked))?;
    let nvcc = toolchain::nvcc();
    // The host's part of the device runtime, of which the linker takes what is asked for.
    let runtime = nvcc.parent().context("nvcc lies in a directory")?.with_file_name("lib").join("libcudadevrt.a");
    sh::output(Command::new("ld").arg("-r").args(&objects).arg(&linked).arg(runtime).arg("-o").arg(object)).map(drop)
}

/// A library to link with in place of libcuda.so.1, for objects that call the driver directly: it exports what the
/// object asks for, under the soname by which the loader then finds the real one.
fn make_driver_stub(object: &Path) -> Result<()> {
    let undefined = sh::output(Command::new("nm").arg("-u").arg(object))?;
    let is_driver =
        |symbol: &&str| symbol.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase));
    let calls = undefined.split_whitespace().filter(is_driver).collect::<BTreeSet<_>>();
    if calls.is_empty() {
        return Ok(());
    }
    let source = object.with_extension("libcuda.c");
    fs::write(&source, calls.iter().map(|call| format!("void {call}(void) {{}}\n")).collect::<String>())?;
    let soname = "-Wl,-soname,libcuda.so.1";
    let mut link = Command::new("gcc");
    link.args(["-shared", "-fPIC", soname, "-o"]).arg(driver_stub(object)).arg(&source);
    sh::output(&mut link).map(drop)
}

fn driver_stub(object: &Path) -> PathBuf {
    object.with_extension("libcuda.so")
}

/// Where the copy of a shared runtime lies that goes along with the programs.
fn carried(runtime: &Runtime) -> PathBuf {
    let name = runtime.shared.file_name().unwrap_or_default();
    paths::programs().join("lib").join(runtime.version).join(name)
}

/// Makes `file` unless it was made from the same inputs before.
fn made(file: &Path, inputs: &impl Hash, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    let hash = format!("{:016x}", hasher.finish());
    let note = note_of(file);
    if file.exists() && fs::read_to_string(&note).is_ok_and(|noted| noted == hash) {
        return Ok(());
    }
    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    make()?;
    fs::write(&note, hash).with_context(|| format!("cannot write {}", note.display()))
}

/// Where the hash of what a file was made from is kept.
fn note_of(file: &Path) -> PathBuf {
    let mut note = file.as_os_str().to_owned();
    note.push(".hash");
    PathBuf::from(note)
}

/// Which links of which programs are wanted.
pub type Wanted<'a> = (&'a Program, Runtime, Linkage);

/// Every program with the compiler's own runtime, both ways.
pub fn own<'a>(programs: &'a [Program], linkages: &[Linkage]) -> Result<Vec<Wanted<'a>>> {
    let mut wanted = Vec::new();
    for program in programs {
        for linkage in linkages {
            wanted.push((program, toolchain::own_runtime()?, *linkage));
        }
    }
    Ok(wanted)
}

/// The programs that are for all runtimes, with all runtimes but the compiler's own.
pub fn matrix(programs: &[Program]) -> Result<Vec<Wanted<'_>>> {
    let mut wanted = Vec::new();
    let own = toolchain::own_runtime()?;
    for program in programs.iter().filter(|program| program.all_runtimes) {
        for linkage in [Linkage::Shared, Linkage::Static] {
            let others = toolchain::runtimes()?.into_iter().filter(|runtime| runtime.version != own.version);
            wanted.extend(others.map(|runtime| (program, runtime, linkage)));
        }
    }
    Ok(wanted)
}

/// Compiles and links; the wanted ones that cannot exist (no static library in the wheel) are left out.
pub fn build<'a>(wanted: &[Wanted<'a>], sass: &[String]) -> Result<Vec<Binary<'a>>> {
    fs::create_dir_all(paths::programs())?;
    // Parts of a test that run beside each other want the same programs.
    let lock = fs::File::create(paths::programs().join(".lock"))?;
    lock.lock().context("cannot lock target/programs")?;
    // Objects first, each once: several links share one.
    let mut objects = Vec::<(&Program, bool)>::new();
    for (program, runtime, _) in wanted {
        let legacy = runtime.version.starts_with("11.");
        if !objects.iter().any(|(other, old)| other.name == program.name && *old == legacy) {
            objects.push((program, legacy));
        }
    }
    let compiled = sh::parallel(&objects, |(program, legacy)| program.object(*legacy, sass));
    compiled.into_iter().collect::<Result<Vec<_>>>()?;
    for (_, runtime, _) in wanted {
        let copy = carried(runtime);
        made(&copy, &(toolchain::identity(), runtime.version), || {
            fs::copy(&runtime.shared, &copy).map(drop).context("cannot copy the runtime")
        })?;
    }
    let linked = sh::parallel(wanted, |(program, runtime, linkage)| {
        let path = program.link(runtime, *linkage, sass)?;
        Ok(path.map(|path| Binary { program, runtime: runtime.version, linkage: *linkage, path }))
    });
    Ok(linked.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_program_says_how_to_run_it() {
        let source = std::env::temp_dir().join(format!("xtask-head-{}.cu", std::process::id()));
        fs::write(&source, "// A test.\n// memory: 5MiB\n// args: 1 2\n#include <x>\n// runtimes: all\n").unwrap();
        let program = Program::read(source.clone()).unwrap();
        fs::remove_file(source).unwrap();
        assert_eq!(program.memory.as_deref(), Some("5MiB"));
        assert_eq!(program.args, ["1", "2"]);
        assert!(!program.all_runtimes, "only the head counts");
    }

    #[test]
    fn a_file_is_made_again_only_when_its_inputs_change() {
        let file = std::env::temp_dir().join(format!("xtask-made-{}", std::process::id()));
        let times = std::cell::Cell::new(0);
        let make = || {
            times.set(times.get() + 1);
            fs::write(&file, "").context("cannot write")
        };
        for inputs in ["a", "a", "b", "b"] {
            made(&file, &inputs, make).unwrap();
        }
        fs::remove_file(&file).unwrap();
        fs::remove_file(note_of(&file)).unwrap();
        assert_eq!(times.get(), 2);
    }
}
