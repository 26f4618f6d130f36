//! Generates the driver table: one function pointer for each function of the table.

#[path = "src/table.rs"]
#[allow(dead_code)]
mod table;

use std::fmt::Write;

fn main() {
    println!("cargo:rerun-if-changed=table");
    println!("cargo:rerun-if-changed=src/table.rs");
    let mut fields = String::new();
    let mut missing = String::new();
    let mut loads = String::new();
    for function in table::functions() {
        let symbol = &function.symbol;
        let types: Vec<String> = function.args.iter().map(|arg| arg.c_type()).collect();
        let unnamed: String = types.iter().map(|kind| format!("_: {kind}, ")).collect();
        let types = types.join(", ");
        let names: Vec<&str> = function.args.iter().map(|arg| arg.name.as_str()).collect();
        let _ = writeln!(fields, "    /// `{symbol}({})`: {}.", names.join(", "), function.carry.about());
        let _ = writeln!(fields, "    pub {symbol}: unsafe extern \"C\" fn({types}) -> CUresult,");
        let _ = writeln!(
            missing,
            "        {symbol}: {{ unsafe extern \"C\" fn absent({unnamed}) -> CUresult {{ CUDA_ERROR_NOT_SUPPORTED }} absent }},"
        );
        let _ = writeln!(
            loads,
            "        if let Some(found) = find(c\"{symbol}\") {{\n            \
             // SAFETY: the caller vouches that `find` answers with the driver's function of that name.\n            \
             driver.{symbol} = unsafe {{ std::mem::transmute::<*const c_void, unsafe extern \"C\" fn({types}) -> CUresult>(found) }};\n        }}"
        );
    }
    let source = format!(
        "/// The functions of a driver, by exported symbol.\n#[derive(Clone, Copy)]\npub struct Driver {{\n{fields}}}\n\n\
         const MISSING: Driver = Driver {{\n{missing}}};\n\n\
         fn fill(driver: &mut Driver, find: &mut dyn FnMut(&std::ffi::CStr) -> Option<*const c_void>) {{\n{loads}}}\n"
    );
    let out = std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("driver.rs");
    std::fs::write(out, source).unwrap();
}
