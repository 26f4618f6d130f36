//! Generates libvgpu's exports, opcodes and lookup rows from the one table.

use std::fmt::Write;

use cuda_abi::table::{self, Arg, Carry, Function, Lasting, Role, length_code};
use cuda_abi::wire::Kind;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The soname is how libcudart and every other program ask for the driver. Binding our own calls to our own symbols
    // keeps another libcuda in the process from answering half of them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let functions = table::functions();
    write_file("exports.rs", &functions.iter().enumerate().map(|(op, f)| exports(op, f)).collect::<String>());
    write_file("procaddr.rs", &lookup_rows(&functions));
    write_file("stubs.rs", &stubs());
}

/// A function for each slot of a hidden table (src/hidden), which differ in nothing but their numbers.
fn stubs() -> String {
    const MOST_SLOTS: usize = 99;
    let list: String = (0..MOST_SLOTS).map(|slot| format!("unsupported::<ID, {slot}> as *const c_void, ")).collect();
    format!("const fn stubs<const ID: u128>() -> [*const c_void; {MOST_SLOTS}] {{ [{list}] }}\n")
}

fn write_file(name: &str, text: &str) {
    let dir = std::env::var_os("OUT_DIR").unwrap();
    std::fs::write(std::path::Path::new(&dir).join(name), text).unwrap();
}

/// The exported symbol and, where there is one, its per-thread-stream variant.
fn exports(op: usize, function: &Function) -> String {
    let symbol = &function.symbol;
    let params: Vec<String> = function.args.iter().map(|arg| format!("{}: {}", arg.name, arg.c_type())).collect();
    let params = params.join(", ");
    let head = |name: &str| format!("#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}({params}) -> CUresult");
    let mut text = format!("{} {{\n{}}}\n\n", head(symbol), body(op, function));
    if let Some(variant) = function.per_thread {
        let name = format!("{symbol}_{}", variant.suffix);
        let args: Vec<&str> = function.args.iter().map(|arg| arg.name.as_str()).collect();
        let _ = write!(
            text,
            "{} {{\n    // SAFETY: the caller's promises are passed on unchanged.\n    \
             crate::stream::per_thread(|| unsafe {{ {symbol}({}) }})\n}}\n\n",
            head(&name),
            args.join(", ")
        );
    }
    text
}

fn body(op: usize, function: &Function) -> String {
    let symbol = &function.symbol;
    let run = if function.early { "run_early" } else { "run" };
    let args: Vec<&str> = function.args.iter().map(|arg| arg.name.as_str()).collect();
    match function.carry {
        Carry::Local | Carry::Custom => format!(
            "    // SAFETY: by the API's contract, pointers are NULL or good for what their roles in the table say.\n    \
             crate::entry::{run}(\"{symbol}\", || {})\n",
            call(function)
        ),
        Carry::Deny => {
            let unused: String = args.iter().map(|arg| format!("    let _ = {arg};\n")).collect();
            format!("{unused}    crate::entry::denied(\"{symbol}\")\n")
        }
        Carry::Post | Carry::Call | Carry::Block => carried(op, function),
    }
}

/// The call of a hand-written function, which is unsafe where a pointer reaches it that has no type.
fn call(function: &Function) -> String {
    let args: Vec<String> = function.args.iter().map(Arg::at_border).collect();
    let call = format!("crate::api::{}({})", function.symbol, args.join(", "));
    if function.args.iter().any(Arg::is_raw) { format!("unsafe {{ {call} }}") } else { call }
}

fn carried(op: usize, function: &Function) -> String {
    let symbol = &function.symbol;
    let mut checks = String::new();
    // Events between processes go another way; there is a function for each of these, or this does not compile.
    if function.args.iter().any(|arg| arg.inner == "CUevent" && matches!(arg.role, Role::Handle | Role::Close)) {
        let args: Vec<&str> = function.args.iter().map(|arg| arg.name.as_str()).collect();
        let _ = writeln!(
            checks,
            "        if let Some(answer) = crate::ipc::events::{symbol}({}) {{ return answer; }}",
            args.join(", ")
        );
    }
    let mut writes = String::new();
    let mut reads = String::new();
    for arg in &function.args {
        check(&mut checks, arg);
        write_arg(&mut writes, arg);
        read_arg(&mut reads, arg, function);
    }
    let reader = match function.carry {
        Carry::Post => String::new(),
        _ => format!(", |_reader| {{\n{reads}            Ok(())\n        }}"),
    };
    let stream = function.args.iter().find(|arg| arg.inner == "CUstream");
    let progress = format!("completion::query({}, ", stream.map_or("", |arg| &arg.name));
    let how = match (function.carry, function.lasting) {
        (Carry::Call, _) if function.progress => progress,
        (Carry::Post, _) => "carry::post(".to_owned(),
        (Carry::Call, Some(lasting)) => format!("carry::remembered(crate::remembered::Lasting::{lasting:?}, "),
        (Carry::Call, None) => "carry::call(".to_owned(),
        _ => "carry::block(".to_owned(),
    };
    // When the call has returned, whatever it answered.
    let ends = match function.ends {
        Some(Lasting::Settled) => "let _ends = crate::remembered::Unsettle;\n        ",
        Some(Lasting::SettledUntilLaunch) => "let _ends = crate::remembered::Launched;\n        ",
        _ => "",
    };
    let kept = binding(function).map_or(String::new(), |(reference, image)| {
        format!(".inspect(|()| crate::texture::bind({reference} as u64, {image}))")
    });
    format!(
        "    crate::entry::run(\"{symbol}\", || {{\n{checks}        {ends}\
         // SAFETY: pointers were checked for NULL; that they point to what their types say is the caller's promise.\n        \
         crate::{how}{op}, |_writer| {{\n{writes}        }}{reader}){kept}\n    }})\n"
    )
}

/// The reference to which a function binds an image, and the image: an array, or plain memory, which is nobody's handle.
fn binding(function: &Function) -> Option<(&str, String)> {
    let handle = |kinds: &[&str]| {
        let found = |arg: &&Arg| arg.role == Role::Handle && kinds.contains(&arg.inner.as_str());
        function.args.iter().find(found).map(|arg| arg.name.as_str())
    };
    let reference = handle(&["CUtexref", "CUsurfref"])?;
    let is_memory = function.symbol.starts_with("cuTexRefSetAddress") && !function.symbol.ends_with("Mode");
    match handle(&["CUarray", "CUmipmappedArray"]) {
        Some(array) => Some((reference, format!("{array} as u64"))),
        None => is_memory.then(|| (reference, "0".to_owned())),
    }
}

/// What can be refused before anything is sent.
fn check(text: &mut String, arg: &Arg) {
    let name = &arg.name;
    match &arg.role {
        Role::Out { optional: false } | Role::In | Role::InOut | Role::Str => {
            let _ = writeln!(text, "        crate::entry::not_null({name})?;");
        }
        Role::Span { bytes, align, any_in_capture } => {
            let bytes = length_code(bytes);
            if *align > 1 {
                let _ = writeln!(text, "        crate::entry::aligned({name}, {align})?;");
            }
            let check = if *any_in_capture { "check_unless_captured" } else { "check" };
            let stream = if *any_in_capture { ", stream" } else { "" };
            let _ = writeln!(text, "        crate::allocations::{check}({name}, {bytes}{stream})?;");
        }
        Role::Handle if arg.inner == "CUstream" => {
            let _ = writeln!(text, "        let {name} = crate::stream::resolve({name})?;");
        }
        Role::Handle | Role::Close if arg.is_handle() => {
            let kind = Kind::of_c_type(&arg.inner).unwrap();
            let _ = writeln!(text, "        let {name} = crate::handles::check(Kind::{kind:?}, {name} as u64)?;");
        }
        _ => {}
    }
}

fn write_arg(text: &mut String, arg: &Arg) {
    let name = &arg.name;
    let _ = match &arg.role {
        Role::Value if arg.inner == "f32" => writeln!(text, "            _writer.word(u64::from({name}.to_bits()));"),
        Role::Value if matches!(arg.inner.as_str(), "i32" | "CUdevice") => {
            writeln!(text, "            _writer.word(u64::from({name} as u32));")
        }
        Role::Value | Role::Span { .. } | Role::Handle | Role::Close => {
            writeln!(text, "            _writer.word({name} as u64);")
        }
        Role::Out { optional: true } => writeln!(text, "            _writer.word(u64::from(!{name}.is_null()));"),
        Role::Out { .. } => Ok(()),
        Role::In | Role::InOut => writeln!(text, "            unsafe {{ _writer.plain({name}) }};"),
        Role::InArray { count } => {
            let count = length_code(count);
            writeln!(text, "            unsafe {{ _writer.array({name}, ({count}) as usize) }};")
        }
        Role::Str => {
            writeln!(text, "            _writer.bytes(unsafe {{ std::ffi::CStr::from_ptr({name}) }}.to_bytes());")
        }
        Role::OutArray { .. } | Role::Any { .. } | Role::Versioned => {
            panic!("{name}: only hand-written functions have such arguments")
        }
    };
}

fn read_arg(text: &mut String, arg: &Arg, function: &Function) {
    let name = &arg.name;
    let kind = &arg.inner;
    let _ = match &arg.role {
        // A new stream's flags are what it was asked for with.
        Role::Out { .. } if arg.inner == "CUstream" && function.args.iter().any(|arg| arg.name == "flags") => {
            writeln!(
                text,
                "            unsafe {{ {name}.write(crate::handles::opened_stream(_reader.word()?, flags) as {kind}) }};"
            )
        }
        Role::Out { .. } if arg.is_handle() => writeln!(
            text,
            "            unsafe {{ {name}.write(crate::handles::opened(_reader.word()?) as {kind}) }};"
        ),
        Role::Out { optional: true } => {
            writeln!(text, "            if !{name}.is_null() {{ unsafe {{ {name}.write(_reader.plain()?) }}; }}")
        }
        Role::Out { .. } | Role::InOut => writeln!(text, "            unsafe {{ {name}.write(_reader.plain()?) }};"),
        Role::Close => writeln!(text, "            crate::handles::closed({name});"),
        _ => Ok(()),
    };
}

/// Rows for `cuGetProcAddress`, sorted by name and falling version, so that the first fitting row of a name is the answer.
fn lookup_rows(functions: &[Function]) -> String {
    let mut rows: Vec<(String, u32, bool, String)> = Vec::new();
    for function in functions {
        let Some(since) = function.since else { continue };
        rows.push((function.base().to_owned(), since, false, function.symbol.clone()));
        if let Some(variant) = function.per_thread {
            let symbol = format!("{}_{}", function.symbol, variant.suffix);
            rows.push((function.base().to_owned(), variant.since, true, symbol));
        }
    }
    rows.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
    let mut text = format!("pub(crate) static ROWS: [Row; {}] = [\n", rows.len());
    for (name, since, per_thread, symbol) in rows {
        let _ = writeln!(
            text,
            "    Row {{ name: \"{name}\", since: {since}, per_thread: {per_thread}, symbol: \"{symbol}\", \
             function: Pointer(crate::exports::{symbol} as *const c_void) }},"
        );
    }
    text.push_str("];\n");
    text
}
