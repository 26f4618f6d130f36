//! Generates the worker's dispatch of plain functions from the one table.

use std::fmt::Write;

use cuda_abi::table::{self, Arg, Carry, Function, Role, length_code};
use cuda_abi::wire::Kind;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let functions = table::functions();
    let mut arms = String::new();
    let mut names = String::new();
    for (op, function) in functions.iter().enumerate() {
        let _ = writeln!(names, "    \"{}\",", function.symbol);
        if matches!(function.carry, Carry::Post | Carry::Call | Carry::Block) {
            let _ = writeln!(arms, "        {op} => {{ // {}\n{}        }}", function.symbol, arm(function));
        }
    }
    let text = format!(
        "/// Names of the functions by opcode, for messages.\n\
         pub(crate) const NAMES: [&str; {}] = [\n{names}];\n\n\
         /// Reads the arguments, checks them, calls the driver, writes the outputs.\n\
         pub(crate) fn plain(worker: &Worker, op: u16, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {{\n    \
         match op {{\n{arms}        _ => Err(Refusal::UnknownOperation),\n    }}\n}}\n",
        functions.len(),
    );
    let dir = std::env::var_os("OUT_DIR").unwrap();
    std::fs::write(std::path::Path::new(&dir).join("dispatch.rs"), text).unwrap();
}

fn arm(function: &Function) -> String {
    let mut text = String::new();
    if function.args.iter().any(|arg| matches!(arg.role, Role::Out { .. }) && arg.is_handle()) {
        text.push_str("            worker.handles.room()?;\n");
    }
    function.args.iter().for_each(|arg| match function.progress && arg.inner == "CUstream" {
        true => {
            let _ = writeln!(text, "            let {} = worker.handles.pin_to_ask(message.word()?)?;", arg.name);
        }
        false => read(&mut text, arg),
    });
    text.push_str("            message.end()?;\n");
    // Closing is the handle table's business: it knows who else uses the object.
    if let [Arg { name, role: Role::Close, inner }] = &function.args[..] {
        let kind = Kind::of_c_type(inner).unwrap();
        let _ = writeln!(text, "            worker.close(Kind::{kind:?}, {name}_word)");
        return text;
    }
    function.args.iter().for_each(|arg| check(&mut text, arg));
    check_rows(&mut text, function);
    let charged = charge(&mut text, function);
    let stream = function.args.iter().find(|arg| arg.role == Role::Handle && arg.inner == "CUstream");
    if let Some(stream) = stream.filter(|_| function.progress) {
        let _ = writeln!(
            text,
            "            // SAFETY: the handle was checked.\n            \
             let result = unsafe {{ (worker.driver.{})({}) }};\n            \
             let is_done = result == CUDA_ERROR_NOT_READY && worker.handles.has_done_the_clients(&{});\n            \
             Ok(if is_done {{ CUDA_SUCCESS }} else {{ result }})",
            function.symbol,
            pass(stream),
            stream.name
        );
        return text;
    }
    let passed: Vec<String> = function.args.iter().map(pass).collect();
    let _ = writeln!(
        text,
        "            // SAFETY: handles and device addresses were checked; pointers go to locals of the right type.\n            \
         let result = unsafe {{ (worker.driver.{})({}) }};\n            \
         if result != CUDA_SUCCESS {{\n                return Ok(result);\n            }}",
        function.symbol,
        passed.join(", ")
    );
    let parent = parent(function);
    keep(&mut text, function);
    note_record(&mut text, function, stream);
    function.args.iter().for_each(|arg| write(&mut text, arg, charged, parent));
    text.push_str("            Ok(result)\n");
    text
}

fn read(text: &mut String, arg: &Arg) {
    let (name, kind) = (&arg.name, &arg.inner);
    let _ = match &arg.role {
        Role::Value if kind == "f32" => writeln!(text, "            let {name} = f32::from_bits(message.narrow()?);"),
        Role::Value if matches!(kind.as_str(), "i32" | "CUdevice") => {
            writeln!(text, "            let {name} = message.narrow::<u32>()? as i32;")
        }
        Role::Value if matches!(kind.as_str(), "u64" | "CUdeviceptr") => {
            writeln!(text, "            let {name} = message.word()?;")
        }
        Role::Value => writeln!(text, "            let {name} = message.narrow::<{kind}>()?;"),
        Role::Span { .. } => writeln!(text, "            let {name} = message.word()?;"),
        Role::Handle => {
            let kind = Kind::of_c_type(kind).unwrap();
            writeln!(text, "            let {name} = worker.handles.pin(Kind::{kind:?}, message.word()?)?;")
        }
        Role::Close => writeln!(text, "            let {name}_word = message.word()?;"),
        Role::Out { optional } => {
            let wanted = if *optional {
                format!("            let {name}_wanted = message.word()? != 0;\n")
            } else {
                String::new()
            };
            writeln!(text, "{wanted}            let mut {name} = std::mem::MaybeUninit::<{kind}>::zeroed();")
        }
        Role::In | Role::InOut => writeln!(
            text,
            "            // SAFETY: a plain C struct, of which every bit pattern is a value.\n            \
             let mut {name}: {kind} = unsafe {{ message.plain() }}?;"
        ),
        Role::InArray { count } => writeln!(
            text,
            "            // SAFETY: plain C values, of which every bit pattern is a value.\n            \
             let {name}: Option<Vec<{kind}>> = unsafe {{ message.array({}) }}?;",
            length_code(count)
        ),
        Role::Str => writeln!(text, "            let {name} = name(message)?;"),
        Role::OutArray { .. } | Role::Any { .. } | Role::Versioned => {
            panic!("{name}: only hand-written functions have such arguments")
        }
    };
}

fn check(text: &mut String, arg: &Arg) {
    if let Role::Span { bytes, any_in_capture, .. } = &arg.role {
        let unless = if *any_in_capture { "if !capture::is_captured(worker, stream.raw as CUstream) " } else { "" };
        let _ =
            writeln!(text, "            {unless}{{ worker.memory.check({}, {})?; }}", arg.name, length_code(bytes));
    }
}

/// What a stream was asked to do last may be to record an event.
fn note_record(text: &mut String, function: &Function, stream: Option<&Arg>) {
    let event = function.args.iter().find(|arg| arg.role == Role::Handle && arg.inner == "CUevent");
    if let (Some(stream), Some(event), true) = (stream, event, function.symbol.starts_with("cuEventRecord")) {
        // With a flag it becomes a node of a graph.
        let flagged = if function.args.iter().any(|arg| arg.name == "flags") { "flags != 0" } else { "false" };
        let _ = writeln!(
            text,
            "            if {flagged} {{ {event}.is_recorded_by_graphs() }} else {{ {stream}.note_record(&{event}) }}",
            event = event.name,
            stream = stream.name
        );
    }
}

/// Plain memory that is described as rows.
fn check_rows(text: &mut String, function: &Function) {
    let named = |role: Role, kind: &str| function.args.iter().find(|arg| arg.role == role && arg.inner == kind);
    if let (Some(shape), Some(address), Some(pitch)) = (
        named(Role::In, "CUDA_ARRAY_DESCRIPTOR"),
        named(Role::Value, "CUdeviceptr"),
        function.args.iter().find(|arg| arg.name == "pitch"),
    ) {
        let _ = writeln!(
            text,
            "            worker.memory.check({}, ({} as u64).saturating_mul({}.height as u64))?;",
            address.name, pitch.name, shape.name
        );
    }
}

/// A reference keeps the array that it is bound to, in place of the one before.
fn keep(text: &mut String, function: &Function) {
    let handle = |kinds: &[&str]| {
        let found = |arg: &&Arg| arg.role == Role::Handle && kinds.contains(&arg.inner.as_str());
        function.args.iter().find(found).map(|arg| arg.name.as_str())
    };
    if let (Some(reference), Some(array)) =
        (handle(&["CUtexref", "CUsurfref"]), handle(&["CUarray", "CUmipmappedArray"]))
    {
        let _ = writeln!(text, "            {reference}.hold_only(&{array});");
    }
}

/// Memory that the driver takes for an array is the zone's to pay, for as long as the array lives.
fn charge(text: &mut String, function: &Function) -> bool {
    let shape = |arg: &&Arg| matches!(arg.inner.as_str(), "CUDA_ARRAY_DESCRIPTOR" | "CUDA_ARRAY3D_DESCRIPTOR");
    let makes = function.args.iter().any(|arg| matches!(arg.role, Role::Out { .. }) && arg.is_handle());
    let Some(shape) = function.args.iter().filter(|arg| arg.role == Role::In).find(shape).filter(|_| makes) else {
        return false;
    };
    let levels = function.args.iter().find(|arg| arg.name == "num_mipmap_levels").map_or("1", |arg| &arg.name);
    let _ = writeln!(
        text,
        "            let charge = worker.memory.charge(worker.gpu(), crate::memory::array_bytes(&{}, {levels}))?;",
        shape.name
    );
    true
}

fn pass(arg: &Arg) -> String {
    let name = &arg.name;
    match &arg.role {
        Role::Value | Role::Span { .. } => name.clone(),
        Role::Handle => format!("{name}.raw as {}", arg.inner),
        Role::Close => panic!("{name}: a function that closes a handle has no other arguments"),
        Role::Out { optional: true } => {
            format!("if {name}_wanted {{ {name}.as_mut_ptr() }} else {{ std::ptr::null_mut() }}")
        }
        Role::Out { .. } => format!("{name}.as_mut_ptr()"),
        Role::In | Role::InOut => format!("&mut {name}"),
        Role::InArray { .. } => format!("{name}.as_ref().map_or(std::ptr::null(), |values| values.as_ptr())"),
        Role::Str => format!("{name}.as_ptr()"),
        Role::OutArray { .. } | Role::Any { .. } | Role::Versioned => {
            panic!("{name}: only hand-written functions have such arguments")
        }
    }
}

/// The argument that a level or a plane of an array, or a reference of a module, comes from and goes with.
fn parent(function: &Function) -> Option<&Arg> {
    let kinds = ["CUarray", "CUmipmappedArray", "CUmodule"];
    let whole = |arg: &&Arg| arg.role == Role::Handle && kinds.contains(&arg.inner.as_str());
    function.args.iter().find(whole)
}

fn write(text: &mut String, arg: &Arg, charged: bool, parent: Option<&Arg>) {
    let (name, kind) = (&arg.name, &arg.inner);
    let _ = match &arg.role {
        Role::Out { .. } if arg.is_handle() => writeln!(
            text,
            "            // SAFETY: the driver has written it, or it is zero.\n            \
             let raw = unsafe {{ {name}.assume_init() }} as u64;\n            \
             let word = worker.handles.open_child(Kind::{:?}, raw, worker.context_tag(), {}, None)?;\n            \
             {}reply.word(word);",
            Kind::of_c_type(kind).unwrap(),
            parent.map_or("None".to_owned(), |parent| format!("Some({}.clone())", parent.name)),
            if charged { "worker.handles.pays(word, charge);\n            " } else { "" }
        ),
        Role::Out { optional } => {
            let guard = if *optional { format!("if {name}_wanted ") } else { String::new() };
            writeln!(
                text,
                "            // SAFETY: plain data, zeroed before the driver wrote it.\n            \
                 {guard}{{ unsafe {{ reply.plain({name}.as_ptr()) }} }};"
            )
        }
        Role::InOut => {
            writeln!(text, "            // SAFETY: a plain C struct.\n            unsafe {{ reply.plain(&{name}) }};")
        }
        _ => Ok(()),
    };
}
