//! Generates the driver's entry points from the table of the API, and the number of this build.
//!
//! Compiled kernels that are kept on disk fit one build of this crate only: the code knows the layout of structures and
//! the order of helpers. So all that goes into the build is made into one number, which is part of every key.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// A macro with an arm for each function of the API: `entry!(cuInit path)` is the entry point that calls the function at
/// `path` with what the border makes of the caller's arguments.
fn entries() -> String {
    let mut arms = String::new();
    for function in cuda_abi::table::functions() {
        let params: Vec<String> = function.args.iter().map(|arg| format!("{}: {}", arg.name, arg.c_type())).collect();
        let passed: Vec<String> = function.args.iter().map(|arg| arg.at_border()).collect();
        let mut call = format!("$function({})", passed.join(", "));
        if function.args.iter().any(|arg| arg.is_raw()) {
            call = format!("unsafe {{ {call} }}");
        }
        let _ = writeln!(
            arms,
            "    ({} $function:path) => {{{{\n        \
             #[allow(unused_imports)]\n        use cuda_abi::{{border, error::CUresult, types::*}};\n        \
             #[allow(unused_unsafe)]\n        \
             unsafe extern \"C\" fn entry({}) -> CUresult {{\n            \
             // SAFETY: by the API's contract, pointers are NULL or good for what their roles in the table say.\n            \
             $crate::driver::abi::call(|| {call})\n        }}\n        entry\n    }}}};",
            function.symbol,
            params.join(", ")
        );
    }
    format!("macro_rules! entry {{\n{arms}}}\n")
}

fn main() {
    let entries_to = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("entries.rs");
    std::fs::write(entries_to, entries()).expect("cannot write the entry points");
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = vec![here.join("Cargo.toml"), here.join("../../Cargo.lock"), here.join("build.rs")];
    for folder in ["src", "../cuda-abi/src"] {
        println!("cargo:rerun-if-changed={}", here.join(folder).display());
        sources(&here.join(folder), &mut files);
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
    println!("cargo:rustc-env=SOFTGPU_BUILD={:016x}", hasher.finish());
}
