//! Lines of a worker's report.

use serde_json::Value;

/// What a line says.
pub(super) enum Line {
    /// A worker has a client.
    Begin(u64),
    /// It has said all.
    End(u64),
    Finding(Finding),
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub file: String,
    pub line: u64,
}

#[derive(Debug)]
pub(super) struct Finding {
    pub check: String,
    pub what: String,
    /// Both names of the kernel, where there is one.
    pub kernels: Vec<String>,
    /// Of the threads, in their order; with those of callers behind each.
    pub places: Vec<Place>,
    pub text: String,
    /// The worker has printed it.
    pub printed: bool,
    pub json: Value,
}

impl Finding {
    /// Whether it is the same for whoever has to mend it.
    pub(super) fn is_alike(&self, other: &Finding) -> bool {
        let sorted = |finding: &Finding| {
            let mut places = finding.places.clone();
            places.sort_unstable();
            places
        };
        let same = (&self.check, &self.what, &self.kernels) == (&other.check, &other.what, &other.kernels);
        let text = !self.places.is_empty() || self.text == other.text;
        same && text && sorted(self) == sorted(other)
    }
}

/// What a line says; none for what is none of ours.
pub(super) fn parse(line: &str) -> Option<Line> {
    let json: Value = serde_json::from_str(line).ok()?;
    if let Some(pid) = json["begin"].as_u64() {
        return Some(Line::Begin(pid));
    }
    if let Some(pid) = json["end"].as_u64() {
        return Some(Line::End(pid));
    }
    let text = |key: &str| json[key].as_str().map(str::to_owned);
    let threads = json["threads"].as_array().map_or(&[][..], Vec::as_slice);
    let place = |thread: &Value, file: &str, line: &str| {
        Some(Place { file: thread[file].as_str()?.to_owned(), line: thread[line].as_u64()? })
    };
    let places = threads
        .iter()
        .flat_map(|thread| [place(thread, "file", "line"), place(thread, "caller_file", "caller_line")])
        .flatten()
        .collect();
    Some(Line::Finding(Finding {
        check: text("check")?,
        what: text("what")?,
        kernels: [text("kernel"), text("mangled")].into_iter().flatten().collect(),
        places,
        text: text("text")?,
        printed: json["printed"].as_bool().unwrap_or(false),
        json,
    }))
}
