//! What the sanitizer says: to the file that `bulkhead run --check` reads, else on standard error.
//!
//! In the file each finding is a line of JSON. A worker that has a client begins with `{"begin":PID}` and ends with
//! `{"end":PID}`, by which the reader knows that all has been said.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::OnceLock;

use parking_lot::Mutex;
use ptx_exec::sanitize::{Site, Where, init};
use ptx_exec::{Check, Checks, Fault, Finding, demangled};

use super::memory::{blocks, map};
use super::{notice, output};

static REPORT: OnceLock<File> = OnceLock::new();

/// The most findings of a process; a program must not be able to fill memory or a disk with them.
const MOST: usize = 1000;
/// The most leaks that are named one by one.
const MOST_LEAKS: usize = 20;

/// Findings go to this file from now on, not to standard error.
pub fn report_to(file: File) {
    let _ = REPORT.set(file);
}

/// Whether a check is on.
pub fn looks_for(check: Check) -> bool {
    Checks::of_process().has(check)
}

/// Whether anything is looked for.
pub fn is_on() -> bool {
    Checks::of_process() != Checks::NONE
}

/// A client has come.
pub fn begin() {
    if is_on() {
        put(&format!("{{\"begin\":{}}}", std::process::id()));
    }
}

/// The client has gone, and all its messages were executed.
pub fn end() {
    if looks_for(Check::Memory) {
        leaks();
    }
    if is_on() {
        put(&format!("{{\"end\":{}}}", std::process::id()));
    }
}

/// One write for a line: several processes append to the file.
fn put(line: &str) {
    if let Some(mut file) = REPORT.get() {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// A line of JSON, field by field.
struct Line(String);

impl Line {
    fn new(check: Check, what: &str) -> Line {
        Line("{".into()).text("check", check.name()).text("what", what)
    }

    fn key(&mut self, key: &str) {
        if !self.0.ends_with(['{', '[']) {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{key}\":");
    }

    fn text(mut self, key: &str, value: &str) -> Line {
        self.key(key);
        self.0.push_str(&quoted(value));
        self
    }

    fn raw(mut self, key: &str, value: &str) -> Line {
        self.key(key);
        self.0.push_str(value);
        self
    }

    fn end(self) -> String {
        self.0 + "}"
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            character if character.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            character => out.push(character),
        }
    }
    out + "\""
}

fn triple([x, y, z]: [u32; 3]) -> String {
    format!("[{x},{y},{z}]")
}

fn site(site: &Site) -> String {
    let mut line = Line("{".into()).text("does", &site.does);
    line = line.raw("block", &triple(site.block)).raw("thread", &triple(site.thread));
    if let Some(source) = &site.source {
        line = line.text("file", &source.file).raw("line", &source.line.to_string());
        if let Some((file, number)) = &source.caller {
            line = line.text("caller_file", file).raw("caller_line", &number.to_string());
        }
    }
    if let Some(number) = site.line {
        line = line.raw("ptx_line", &number.to_string());
    }
    line.end()
}

/// What is said already, by what it is and where: later launches add nothing.
fn is_new(key: String) -> bool {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock();
    let said = said.get_or_insert_default();
    said.len() < MOST && said.insert(key)
}

fn say(line: Line, text: &str) {
    if REPORT.get().is_some() {
        return put(&line.text("text", text).end());
    }
    output::flush();
    notice::say(text);
}

/// Takes what a grid has found.
pub(crate) fn finding(found: &Finding) {
    let places = |site: &Site| match &site.source {
        Some(source) => format!("{}:{}", source.file, source.line),
        None => site.line.map_or_else(String::new, |line| format!("{line}")),
    };
    let mut lines = [places(&found.here), found.there.as_ref().map_or_else(String::new, places)];
    lines.sort_unstable();
    if !is_new(format!("{} {} {} {lines:?}", found.check.name(), found.what, found.kernel)) {
        return;
    }
    let mut text = found.to_string();
    let mut line = Line::new(found.check, &found.what)
        .text("kernel", &demangled(&found.kernel))
        .text("mangled", &found.kernel)
        .raw("count", &found.count.to_string());
    let threads: Vec<String> = [Some(&found.here), found.there.as_ref()].into_iter().flatten().map(site).collect();
    line = line.raw("threads", &format!("[{}]", threads.join(",")));
    match found.place {
        Some(Where::Global(address)) => {
            line = line.text("space", "global").text("address", &format!("{address:#x}"));
            if let Some(nearest) = map::nearest(address) {
                let _ = write!(text, "; {nearest}");
                line = line.text("allocation", &nearest);
            }
        }
        Some(Where::Shared(offset)) => line = line.text("space", "shared").text("address", &format!("{offset:#x}")),
        None => {}
    }
    if let Some(hint) = found.hint {
        let _ = write!(text, " ({hint})");
        line = line.text("hint", hint);
    }
    say(line, &text);
}

/// A kernel has ended with a fault, which has a line on standard error.
pub(crate) fn fault(fault: &Fault, nearest: &str) {
    if !looks_for(Check::Memory) || fault.address.is_none() || !is_new(format!("{fault}")) {
        return;
    }
    let here = Site {
        does: fault.message.clone(),
        block: fault.block,
        thread: fault.thread,
        line: fault.line,
        source: fault.source.as_deref().cloned(),
    };
    let mut line = Line::new(Check::Memory, &fault.kind.to_string())
        .text("kernel", &demangled(&fault.kernel))
        .text("mangled", &fault.kernel)
        .raw("threads", &format!("[{}]", site(&here)));
    if let Some(address) = fault.address {
        line = line.text("address", &format!("{address:#x}"));
    }
    let line = line.text("allocation", nearest.trim_start_matches("; ")).raw("printed", "true");
    put(&line.text("text", &format!("memory: {fault}{nearest}")).end());
}

/// The program frees what is not allocated.
pub fn bad_free(address: u64) {
    if !looks_for(Check::Memory) {
        return;
    }
    let [.., freed] = blocks::around(address);
    let what = match freed.filter(|freed| freed.base == address) {
        Some(_) => "memory is freed twice",
        None => "an address is freed that no allocation begins at",
    };
    if !is_new(format!("{what} {address:#x}")) {
        return;
    }
    let near = map::nearest(address).map_or_else(String::new, |text| format!("; {text}"));
    let line = Line::new(Check::Memory, what).text("address", &format!("{address:#x}"));
    say(line.text("allocation", near.trim_start_matches("; ")), &format!("memory: {what}: {address:#x}{near}"));
}

/// Other processes may write to this memory, unseen.
pub fn shared(address: u64, len: u64) {
    init::wrote(address, len);
}

/// A copy to the host of memory that nobody has written.
pub(crate) fn unwritten_copy(address: u64, len: u64) {
    let what = "copy of device memory that nobody wrote";
    let near = map::nearest(address).map_or_else(String::new, |text| format!("; {text}"));
    if is_new(format!("{what} {near}")) {
        let line = Line::new(Check::Init, what).text("address", &format!("{address:#x}"));
        let text = format!("init: {what}: {len} bytes at {address:#x}{near}");
        say(line.text("allocation", near.trim_start_matches("; ")), &text);
    }
}

/// Allocations that the program has not freed, by their size.
fn leaks() {
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    blocks::asked_for().into_iter().for_each(|size| *sizes.entry(size).or_default() += 1);
    let mut sizes: Vec<(u64, u64)> = sizes.into_iter().collect();
    sizes.sort_unstable_by_key(|(size, count)| std::cmp::Reverse(size * count));
    for (size, count) in sizes.iter().take(MOST_LEAKS) {
        let what = "allocations that are never freed";
        let line = Line::new(Check::Memory, what).raw("bytes", &size.to_string()).raw("count", &count.to_string());
        say(line, &format!("memory: {what}: {count} of {size} bytes"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json() {
        let here =
            Site { does: "read of 4 bytes".into(), block: [1, 0, 0], thread: [2, 3, 0], line: Some(7), source: None };
        let line = Line::new(Check::Races, "a \"b\"\n").raw("threads", &format!("[{}]", site(&here))).end();
        assert_eq!(
            line,
            "{\"check\":\"races\",\"what\":\"a \\\"b\\\"\\u000a\",\"threads\":[{\"does\":\"read of 4 bytes\",\
             \"block\":[1,0,0],\"thread\":[2,3,0],\"ptx_line\":7}]}"
        );
    }
}
