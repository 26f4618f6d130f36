//! Generates the exports of `libnvidia-ml.so.1` from the one table of its functions.

use std::fmt::Write;
use std::path::Path;

use cuda_abi::table::{self, Arg};

const TABLE: &str = "table/nvml.abi";
/// Of the hidden table (src/hidden.rs), its size among them.
const SLOTS: usize = 320;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={TABLE}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let text = std::fs::read_to_string(TABLE).unwrap();
    let functions = parse(&text);
    let dir = std::env::var_os("OUT_DIR").unwrap();
    let write = |name: &str, text: String| std::fs::write(Path::new(&dir).join(name), text).unwrap();
    write("exports.rs", functions.iter().map(export).collect());
    let slots: String = (1..SLOTS).map(|slot| format!("slot::<{slot}>, ")).collect();
    write("slots.rs", format!("[{slots}]"));
    write("slot_names.rs", format!("{:?}", (0..SLOTS).map(|slot| format!("slot {slot}")).collect::<Vec<_>>()));
    write("names.rs", format!("{:?}", functions.iter().map(|f| (&f.name, &f.kind)).collect::<Vec<_>>()));
}

struct Function {
    name: String,
    kind: String,
    args: Vec<Arg>,
}

fn parse(text: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let fail = || -> ! { panic!("{TABLE}:{}: cannot read: {line}", number + 1) };
        if line.starts_with(' ') {
            let Function { name, args, .. } = functions.last_mut().unwrap_or_else(|| fail());
            *args = line.split(", ").map(|text| table::argument(name, text)).collect();
            continue;
        }
        match line.split_once(' ') {
            Some((name, kind)) if ["local", "early", "hand", "none", "deny"].contains(&kind) => {
                functions.push(Function { name: name.to_owned(), kind: kind.to_owned(), args: Vec::new() })
            }
            _ => fail(),
        }
    }
    functions
}

fn export(function: &Function) -> String {
    let Function { name, kind, args } = function;
    let run = match kind.as_str() {
        "hand" => return String::new(),
        "local" => "run",
        "early" => "run_early",
        // The caller's arguments are not looked at, so they need not be named.
        answer => {
            return format!(
                "#[unsafe(no_mangle)]\npub extern \"C\" fn {name}() -> u32 {{\n    \
                 crate::entry::{answer}(\"{name}\")\n}}\n\n"
            );
        }
    };
    let params: Vec<String> = args.iter().map(|arg| format!("{}: {}", arg.name, arg.c_type())).collect();
    let passed: Vec<String> = args.iter().map(Arg::at_border).collect();
    let mut call = format!("crate::api::{name}({})", passed.join(", "));
    if args.iter().any(Arg::is_raw) {
        call = format!("unsafe {{ {call} }}");
    }
    let mut text = String::new();
    let _ = write!(
        text,
        "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}({}) -> u32 {{\n    \
         // SAFETY: by the API's contract, pointers are NULL or good for what their roles in the table say.\n    \
         crate::entry::{run}(\"{name}\", || {call})\n}}\n\n",
        params.join(", ")
    );
    text
}
