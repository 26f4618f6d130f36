//! Generates the witness: a driver whose every function checks what the worker passes to it, as the table describes it.

use std::collections::BTreeSet;
use std::fmt::Write;

use cuda_abi::table::{self, Arg, Function, Role, length_code};
use cuda_abi::wire::Kind;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let functions = table::functions();
    let mut text = String::new();
    let mut fields = String::new();
    let mut structs = BTreeSet::new();
    for function in &functions {
        let (symbol, body) = (&function.symbol, body(function));
        let args: Vec<String> = function.args.iter().map(|arg| format!("{}: {}", arg.name, arg.c_type())).collect();
        let _ = writeln!(
            text,
            "/// Checks what the table says of its arguments.\n\
             pub unsafe extern \"C\" fn {symbol}({}) -> CUresult {{\n    unsafe {{\n{body}    }}\n}}\n",
            args.join(", ")
        );
        let _ = writeln!(fields, "    driver.{symbol} = {symbol};");
        let carried = |arg: &&Arg| matches!(arg.role, Role::In | Role::InOut | Role::InArray { .. });
        structs.extend(function.args.iter().filter(carried).map(|arg| arg.inner.clone()));
    }
    let _ = writeln!(
        text,
        "/// All of these.\npub fn driver() -> Driver {{\n    let mut driver = Driver::missing();\n{fields}    driver\n}}\n"
    );
    let sizes: String = structs.iter().map(|name| format!("        \"{name}\" => size_of::<{name}>(),\n")).collect();
    let _ = writeln!(
        text,
        "/// How many bytes a plain type of the table's has.\npub fn size_of_type(name: &str) -> usize {{\n    match name {{\n{sizes}        _ => 8,\n    }}\n}}"
    );
    let out = std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("witness.rs");
    std::fs::write(out, text).unwrap();
}

fn body(function: &Function) -> String {
    let symbol = &function.symbol;
    let mut text = format!("        let mut witness = State::lock(\"{symbol}\");\n");
    function.args.iter().for_each(|arg| check(&mut text, arg));
    text.push_str("        if let Some(code) = witness.fails() {\n            return code;\n        }\n");
    function.args.iter().for_each(|arg| answer(&mut text, arg));
    text.push_str("        CUDA_SUCCESS\n");
    text
}

fn check(text: &mut String, arg: &Arg) {
    let (name, inner) = (&arg.name, &arg.inner);
    let kind = Kind::of_c_type(inner);
    let _ = match (&arg.role, kind) {
        (Role::Handle | Role::Close, Some(kind)) => {
            writeln!(text, "        witness.uses(Kind::{kind:?}, {name} as u64);")
        }
        (Role::InArray { count }, kind) => {
            let count = length_code(count.trim_start_matches('*'));
            let each = match kind {
                Some(kind) => format!(
                    " for at in 0..({count}) as usize {{ witness.uses(Kind::{kind:?}, *{name}.add(at) as u64); }}"
                ),
                None => String::new(),
            };
            writeln!(text, "        if !{name}.is_null() {{ witness.reads({name}, {count});{each} }}")
        }
        (Role::In, _) => writeln!(text, "        if !{name}.is_null() {{ witness.reads({name}, 1); }}"),
        (Role::InOut, _) => writeln!(text, "        witness.reads({name}, 1);"),
        (Role::Out { optional: false }, _) => {
            writeln!(text, "        assert!(!{name}.is_null(), \"no place for {name}\");")
        }
        (Role::Str, _) => writeln!(text, "        witness.reads_text({name});"),
        (Role::Span { bytes, any_in_capture, .. }, _) => {
            let unless = if *any_in_capture { "if !witness.is_capturing() " } else { "" };
            writeln!(text, "        {unless}{{ witness.span({name}, {}); }}", length_code(bytes))
        }
        _ => Ok(()),
    };
}

fn answer(text: &mut String, arg: &Arg) {
    let name = &arg.name;
    let kind = Kind::of_c_type(&arg.inner);
    let _ = match (&arg.role, kind) {
        (Role::Out { .. }, Some(kind)) => writeln!(
            text,
            "        if !{name}.is_null() {{ let Some(made) = witness.make(Kind::{kind:?}) else {{ return CUDA_ERROR_INVALID_CONTEXT }}; *{name} = made as {}; }}",
            arg.inner
        ),
        (Role::Close, Some(kind)) => writeln!(text, "        witness.ends(Kind::{kind:?}, {name} as u64);"),
        _ => Ok(()),
    };
}
