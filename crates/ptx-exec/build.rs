//! Gives this build a number.
//!
//! Compiled kernels that are kept on disk fit one build of this crate only: the code knows the layout of structures and
//! the order of helpers. So all that goes into the build is made into one number, which is part of every key.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, into);
        } else {
            into.push(path);
        }
    }
}

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let files = ["Cargo.toml", "build.rs", "../ptx-passes/Cargo.toml", "../ptx/Cargo.toml", "../../Cargo.lock"];
    let mut files = files.map(|file| here.join(file)).to_vec();
    for directory in ["src", "../ptx-passes/src", "../ptx/src"] {
        println!("cargo:rerun-if-changed={}", here.join(directory).display());
        sources(&here.join(directory), &mut files);
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        println!("cargo:rerun-if-changed={}", file.display());
        std::fs::read(&file).unwrap_or_default().hash(&mut hasher);
    }
    for variable in ["TARGET", "PROFILE", "OPT_LEVEL", "CARGO_CFG_TARGET_FEATURE", "DEBUG"] {
        std::env::var_os(variable).hash(&mut hasher);
    }
    // The compiler lays the structures out.
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Command::new(rustc).arg("-vV").output().map(|output| output.stdout).unwrap_or_default().hash(&mut hasher);
    println!("cargo:rustc-env=PTX_EXEC_BUILD={:016x}", hasher.finish());
}
