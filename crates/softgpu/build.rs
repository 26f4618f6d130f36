//! Generates the driver's entry points from the table of the API.

use std::fmt::Write;
use std::path::PathBuf;

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
             $crate::abi::call(|| {call})\n        }}\n        entry\n    }}}};",
            function.symbol,
            params.join(", ")
        );
    }
    format!("macro_rules! entry {{\n{arms}}}\n")
}

fn main() {
    let entries_to = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("entries.rs");
    std::fs::write(entries_to, entries()).expect("cannot write the entry points");
    println!("cargo:rerun-if-changed=build.rs");
}
