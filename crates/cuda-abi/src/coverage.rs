//! The coverage page of the documentation, made from the table. It cannot differ from what the library does, because the
//! exports are made from the same entries.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::table::{Carry, Function, functions};

/// What each family is about; the order is the table's.
const FAMILIES: &[(&str, &str)] = &[
    ("device", "Devices, versions, errors and lookups"),
    ("context", "Contexts"),
    ("module", "Modules and the linker"),
    ("library", "Libraries and kernels"),
    ("function", "Functions and occupancy"),
    ("launch", "Launches"),
    ("stream", "Streams and capture"),
    ("event", "Events"),
    ("memory", "Device, pinned and managed memory"),
    ("copy", "Copies and sets"),
    ("pool", "Stream-ordered memory"),
    ("vmm", "Virtual memory management"),
    ("ipc", "Sharing between processes"),
    ("graph", "Graphs"),
    ("texture", "Arrays, textures, surfaces and tensor maps"),
    ("interop", "Graphics and external objects"),
    ("tools", "Profiler, logs, checkpoints and debugger"),
];

/// Why functions are denied, by how their names begin. The first that fits is the reason.
const REASONS: &[(&str, &str)] = &[
    ("cuGraphics", "graphics interoperation: a worker has no display"),
    ("cuGL", "graphics interoperation: a worker has no display"),
    ("cuEGL", "graphics interoperation: a worker has no display"),
    ("cuVDPAU", "graphics interoperation: a worker has no display"),
    (
        "cuGraphAddBatchMemOp",
        "nodes of several words: not yet; what `cuStreamBatchMemOp` does is captured word by word",
    ),
    ("cuGraphBatchMemOp", "nodes of several words: not yet; what `cuStreamBatchMemOp` does is captured word by word"),
    (
        "cuGraphExecBatchMemOp",
        "nodes of several words: not yet; what `cuStreamBatchMemOp` does is captured word by word",
    ),
    ("cuGraphAddExternal", "external objects: they are descriptors of another driver"),
    ("cuGraphExternal", "external objects: they are descriptors of another driver"),
    ("cuGraphExecExternal", "external objects: they are descriptors of another driver"),
    (
        "cuGreenCtx",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuCtxFromGreenCtx",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuStreamGetGreenCtx",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuCtxGetDevResource",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuDeviceGetDevResource",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuDevResource",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuDevSmResource",
        "green contexts: not yet; they are contexts that have their memory in common with the primary one",
    ),
    (
        "cuMemGetHandleForAddressRange",
        "a descriptor of device memory for other drivers of the node, which a zone must not have",
    ),
    ("cuMulticast", "memory of several GPUs: not yet; the attribute `MULTICAST_SUPPORTED` is 0"),
    ("cuImportExternal", "external objects: they are descriptors of another driver"),
    ("cuExternalMemory", "external objects: they are descriptors of another driver"),
    ("cuDestroyExternal", "external objects: they are descriptors of another driver"),
    ("cuSignalExternal", "external objects: they are descriptors of another driver"),
    ("cuWaitExternal", "external objects: they are descriptors of another driver"),
    ("cuDeviceGetNvSciSync", "external objects: they are descriptors of another driver"),
    ("cuDeviceGetLuid", "Windows only"),
    ("cuMemMapArray", "sparse arrays: not yet"),
    ("cuMemBatchDecompress", "decompression by hardware, which GPUs have from Blackwell on: not yet"),
    (
        "cuLibraryGetManaged",
        "`__managed__` variables are in memory of the worker that the program does not have; `cuMemAllocManaged` works",
    ),
    ("cuCheckpoint", "checkpoints act on a process of the node"),
    ("cudbg", "the debugger would see the worker, not the program"),
    ("cuMemGetAttribute", "undocumented"),
];

/// CUDA 3.2 widened sizes and addresses to 64 bits.
const WIDE_SINCE: u32 = 3020;

/// The page, as it must stand in `docs/coverage.md`.
pub fn page() -> String {
    let table = functions();
    let mut text = String::from(
        "# Coverage of the CUDA driver API\n\n\
         Made from `crates/cuda-abi/table/*.abi` by a test of `cuda-abi`; `BULKHEAD_BLESS=1 cargo test -p cuda-abi` rewrites it.\n\n\
         Every symbol of CUDA 13.0's `libcuda.so.1` is exported. *works* means that the call\n\
         is answered by the library or reaches the node's driver; the word in brackets is how it is carried\n\
         ([ARCHITECTURE.md](../ARCHITECTURE.md#order)). What the driver of the node does not have (the software GPU has no\n\
         tensor maps) it refuses itself, with `CUDA_ERROR_NOT_SUPPORTED`. The other functions are refused by\n\
         name: they answer `CUDA_ERROR_NOT_SUPPORTED`, and the first such call of each prints a line on stderr.\n\n\
         *since* is the lowest version that a program must ask of `cuGetProcAddress` to get the symbol; – means that only the\n\
         loader finds it. A function with a per-thread variant is exported twice, for example as `cuMemcpyAsync` and as\n\
         `cuMemcpyAsync_ptsz`.\n\n",
    );
    summary(&mut text, &table);
    for (family, title) in FAMILIES {
        let members: Vec<&Function> = table.iter().filter(|function| function.family == *family).collect();
        section(&mut text, title, &members, &table);
    }
    text
}

fn summary(text: &mut String, table: &[Function]) {
    const CARRIES: [(Carry, &str); 6] = [
        (Carry::Local, "answered in the program's own process"),
        (Carry::Post, "posted; nobody waits"),
        (Carry::Call, "asked in order, with an answer"),
        (Carry::Block, "asked in a lane, because it may block"),
        (Carry::Custom, "written by hand on both sides"),
        (Carry::Deny, "`CUDA_ERROR_NOT_SUPPORTED`"),
    ];
    text.push_str("| carried | functions | symbols | |\n|---|---:|---:|---|\n");
    for (carry, meaning) in CARRIES {
        let all = || table.iter().filter(|function| function.carry == carry);
        let _ = writeln!(text, "| `{carry}` | {} | {} | {meaning} |", all().count(), symbols(all()));
    }
    let works = || table.iter().filter(|function| function.carry != Carry::Deny);
    let _ = writeln!(text, "| **works** | **{}** | **{}** | |", works().count(), symbols(works()));
    let _ = writeln!(text, "| **all** | **{}** | **{}** | |\n", table.len(), symbols(table.iter()));
    text.push_str("| family | works | denied |\n|---|---:|---:|\n");
    for (family, title) in FAMILIES {
        let members = || table.iter().filter(|function| function.family == *family);
        let denied = members().filter(|function| function.carry == Carry::Deny).count();
        let _ = writeln!(text, "| [{title}](#{}) | {} | {denied} |", anchor(title), members().count() - denied);
    }
}

fn symbols<'a>(functions: impl Iterator<Item = &'a Function>) -> usize {
    functions.map(|function| function.symbols().count()).sum()
}

/// The name that a heading has in links.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn section(text: &mut String, title: &str, members: &[&Function], table: &[Function]) {
    let _ = writeln!(text, "\n## {title}\n");
    let (denied, works): (Vec<&Function>, Vec<&Function>) =
        members.iter().partition(|function| function.carry == Carry::Deny);
    if !works.is_empty() {
        text.push_str("| function | per thread | since | |\n|---|---|---:|---|\n");
        for function in works {
            let _ = writeln!(text, "{} works ({}) |", row(function), function.carry);
        }
    }
    if denied.is_empty() {
        return;
    }
    let mut by_reason: BTreeMap<&str, Vec<&Function>> = BTreeMap::new();
    for function in denied {
        by_reason.entry(reason(function, table)).or_default().push(function);
    }
    text.push_str("\n| function | per thread | since | `CUDA_ERROR_NOT_SUPPORTED`, because |\n|---|---|---:|---|\n");
    for (reason, functions) in by_reason {
        for function in functions {
            let _ = writeln!(text, "{} {reason} |", row(function));
        }
    }
}

fn row(function: &Function) -> String {
    let variant = function.per_thread.map_or(String::new(), |variant| format!("`_{}`", variant.suffix));
    format!("| `{}` | {variant} | {} |", function.symbol, function.since.map_or("–".to_owned(), version))
}

/// 12040 is 12.4.
fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn reason(function: &Function, table: &[Function]) -> &'static str {
    let newer = |other: &&Function| other.base() == function.base() && other.since > function.since;
    let newest = table.iter().filter(newer).max_by_key(|other| other.since);
    match (function.since, newest) {
        (Some(since), Some(newest)) if since < WIDE_SINCE && newest.since >= Some(WIDE_SINCE) => {
            return "the 32-bit ABI of before CUDA 3.2";
        }
        (_, Some(newest)) if newest.carry != Carry::Deny => return "an older form; the newer one works",
        _ => {}
    }
    let found = REASONS.iter().find(|(start, _)| function.symbol.starts_with(start));
    found.map_or("not yet", |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_in_the_documentation_is_this_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coverage.md");
        let page = page();
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let stands = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = page.lines().zip(stands.lines()).find(|(made, stands)| made != stands);
        assert!(
            page == stands,
            "docs/coverage.md is stale; rewrite it with BULKHEAD_BLESS=1 cargo test -p cuda-abi\n\
             the first line that differs: {differs:?}"
        );
    }

    #[test]
    fn every_function_is_on_the_page_with_its_answer() {
        let table = functions();
        assert!(table.iter().all(|function| FAMILIES.iter().any(|(family, _)| *family == function.family)));
        let page = page();
        for function in &table {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", function.symbol)));
            let works = row.unwrap_or_else(|| panic!("{} is missing", function.symbol)).contains("| works (");
            assert_eq!(works, function.carry != Carry::Deny, "{}", function.symbol);
        }
    }

    #[test]
    fn every_reason_is_somebodys() {
        let table = functions();
        let denied = || table.iter().filter(|function| function.carry == Carry::Deny);
        for (start, reason_of_it) in REASONS {
            let used = denied()
                .any(|function| function.symbol.starts_with(start) && reason(function, &table) == *reason_of_it);
            assert!(used, "nothing that begins with {start} is denied any more");
        }
        let nameless = denied().find(|function| {
            reason(function, &table) == "not yet"
                && REASONS.iter().all(|(start, _)| !function.symbol.starts_with(start))
        });
        assert!(
            nameless.is_none(),
            "{} is denied without a reason",
            nameless.map_or("", |function| &function.symbol)
        );
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!([2000, 3020, 11010, 12090, 13000].map(version), ["2.0", "3.2", "11.1", "12.9", "13.0"]);
    }
}
