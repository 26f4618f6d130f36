//! From TOML to checked values. Problems are collected, so that a person sees them all at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Problem;
use super::keys::{Key, Kind, Table};
use control::ZoneName;
use control::zone::MAX_LABEL;

enum Value {
    Text(String),
    Number(u64),
    Numbers(Vec<u32>),
    Zones(Vec<ZoneName>),
    Hosts(Vec<String>),
    Flag(bool),
    Address(SocketAddr),
    /// `"unlimited"`, `"off"`.
    Nothing,
}

/// What a table holds.
#[derive(Default)]
pub(crate) struct Values(BTreeMap<&'static str, Value>);

impl Values {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        match self.0.get(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn numbers(&self, name: &str) -> Option<Vec<u32>> {
        match self.0.get(name) {
            Some(Value::Numbers(numbers)) => Some(numbers.clone()),
            _ => None,
        }
    }

    pub(crate) fn zones(&self, name: &str) -> &[ZoneName] {
        match self.0.get(name) {
            Some(Value::Zones(zones)) => zones,
            _ => &[],
        }
    }

    pub(crate) fn hosts(&self, name: &str) -> &[String] {
        match self.0.get(name) {
            Some(Value::Hosts(hosts)) => hosts,
            _ => &[],
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.0.get(name) {
            Some(Value::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    pub(crate) fn address(&self, name: &str) -> Option<SocketAddr> {
        match self.0.get(name) {
            Some(Value::Address(address)) => Some(*address),
            _ => None,
        }
    }

    pub(crate) fn unlimited(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Value::Nothing))
    }
}

/// `[zones.NAME]`, and `[zones.NAME.gpu.N]` by N.
pub(crate) struct ZoneTable {
    pub name: ZoneName,
    pub values: Values,
    pub gpus: BTreeMap<u32, Values>,
    /// Where the zone's name stands.
    pub place: Range<usize>,
}

#[derive(Default)]
pub(crate) struct Tables {
    pub proxy: Values,
    pub http: Values,
    pub log: Values,
    pub defaults: Values,
    pub zones: Vec<ZoneTable>,
    pub kubernetes: Values,
    pub profiles: Vec<(String, Values)>,
    pub quotas: Vec<(String, Values)>,
}

/// Where a zone's table has those of its GPUs.
const GPU: &str = "gpu";

pub(crate) struct Reader<'a> {
    text: &'a str,
    problems: Vec<(usize, String)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, problems: Vec::new() }
    }

    pub(crate) fn tables(&mut self) -> Tables {
        let (root, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            self.complain(&error.span().unwrap_or(0..0), error.message().to_owned());
        }
        let mut tables = Tables::default();
        // What is left of a file that is not TOML would only be misread.
        if !self.problems.is_empty() {
            return tables;
        }
        for (name, value) in root.get_ref() {
            match name.get_ref().as_ref() {
                "proxy" => tables.proxy = self.table(Table::Proxy, value),
                "http" => tables.http = self.table(Table::Http, value),
                "log" => tables.log = self.table(Table::Log, value),
                "defaults" => tables.defaults = self.table(Table::Defaults, value),
                "zones" => tables.zones = self.zones(value),
                "kubernetes" => tables.kubernetes = self.table(Table::Kubernetes, value),
                "profiles" => tables.profiles = self.named(Table::Profile, value),
                "quotas" => tables.quotas = self.named(Table::Quota, value),
                other => {
                    let known = ["proxy", "http", "log", "defaults", "zones", "kubernetes", "profiles", "quotas"];
                    let hint = suggestion(other, known.into_iter());
                    self.complain(&name.span(), format!("unknown table \"{other}\"{hint}"));
                }
            }
        }
        tables
    }

    /// All of them, in the order of the file.
    pub(crate) fn problems(mut self) -> Vec<Problem> {
        self.problems.sort();
        let place = |offset: usize| {
            let before = self.text.get(..offset).unwrap_or(self.text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            (line, column)
        };
        self.problems
            .iter()
            .map(|(offset, what)| {
                let (line, column) = place(*offset);
                Problem { line, column, what: what.clone() }
            })
            .collect()
    }

    fn complain(&mut self, span: &Range<usize>, what: String) {
        self.problems.push((span.start, what.replace('\n', " ")));
    }

    fn zones(&mut self, value: &Spanned<DeValue<'_>>) -> Vec<ZoneTable> {
        let DeValue::Table(zones) = value.get_ref() else {
            self.complain(&value.span(), "zones are tables: write [zones.NAME]".to_owned());
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, value) in zones {
            let (values, gpus) = (self.table(Table::Zone, value), self.gpus(value));
            match name.get_ref().parse::<ZoneName>() {
                Ok(zone) => found.push(ZoneTable { name: zone, values, gpus, place: name.span() }),
                Err(error) => self.complain(&name.span(), error.to_string()),
            }
        }
        found
    }

    /// The tables of a zone's GPUs.
    fn gpus(&mut self, zone: &Spanned<DeValue<'_>>) -> BTreeMap<u32, Values> {
        let DeValue::Table(entries) = zone.get_ref() else { return BTreeMap::new() };
        let Some((_, value)) = entries.iter().find(|(name, _)| name.get_ref().as_ref() == GPU) else {
            return BTreeMap::new();
        };
        let DeValue::Table(gpus) = value.get_ref() else {
            self.complain(&value.span(), format!("GPUs are tables: write {}", Table::ZoneGpu.heading()));
            return BTreeMap::new();
        };
        let mut found = BTreeMap::new();
        for (name, value) in gpus {
            let values = self.table(Table::ZoneGpu, value);
            match name.get_ref().parse::<u32>().ok().filter(|gpu| *gpu < control::mig::END) {
                Some(gpu) => {
                    found.insert(gpu, values);
                }
                None => self.complain(&name.span(), format!("\"{}\" is not the number of a GPU", name.get_ref())),
            }
        }
        found
    }

    /// What holds for a whole zone, and is wrong.
    pub(crate) fn complain_of_zone(&mut self, zone: &ZoneTable, what: String) {
        self.complain(&zone.place.clone(), format!("zone {}: {what}", zone.name));
    }

    /// Tables whose names become names of Kubernetes.
    fn named(&mut self, table: Table, value: &Spanned<DeValue<'_>>) -> Vec<(String, Values)> {
        let DeValue::Table(entries) = value.get_ref() else {
            self.complain(&value.span(), format!("this is a table of tables: write {}", table.heading()));
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, value) in entries {
            let values = self.table(table, value);
            match name.get_ref().as_ref() {
                text if is_label(text) => found.push((text.to_owned(), values)),
                text => {
                    let rule =
                        "lower-case letters, digits and '-', at most 63, beginning and ending with a letter or digit";
                    self.complain(&name.span(), format!("\"{text}\" is not a valid Kubernetes name ({rule})"));
                }
            }
        }
        found
    }

    fn table(&mut self, table: Table, value: &Spanned<DeValue<'_>>) -> Values {
        let DeValue::Table(entries) = value.get_ref() else {
            self.complain(&value.span(), format!("this is a table: write {}", table.heading()));
            return Values::default();
        };
        let mut values = BTreeMap::new();
        for (name, value) in entries {
            let text = name.get_ref().as_ref();
            if table == Table::Zone && text == GPU {
                continue;
            }
            let Some(key) = table.keys().find(|key| key.name == text) else {
                let hint = suggestion(text, table.keys().map(|key| key.name));
                self.complain(&name.span(), format!("unknown key \"{text}\" in {}{hint}", table.heading()));
                continue;
            };
            match read(key, value.get_ref()) {
                Ok(read) => {
                    values.insert(key.name, read);
                }
                Err(what) => self.complain(&value.span(), what),
            }
        }
        Values(values)
    }
}

fn read(key: &Key, value: &DeValue<'_>) -> Result<Value, String> {
    let wrong = || format!("\"{}\" must be {}", key.name, key.kind.describe());
    let whole = |least: u64, most: u64| -> Result<u64, String> {
        let number = value.as_integer().and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        number.filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
    };
    let text = value.as_str();
    match (key.kind, text) {
        (Kind::Limit | Kind::CountLimit(_), Some("unlimited")) | (Kind::Address, Some("off")) => Ok(Value::Nothing),
        (Kind::Path, Some(path)) if path.starts_with('/') => Ok(Value::Text(path.to_owned())),
        (Kind::Path, Some(_)) => Err(format!("\"{}\" must be a path that begins with /", key.name)),
        (Kind::Label, Some(text)) if text.len() <= MAX_LABEL && !text.chars().any(char::is_control) => {
            Ok(Value::Text(text.to_owned()))
        }
        (Kind::Label, _) => Err(format!("\"{}\" must be a text of at most {MAX_LABEL} characters", key.name)),
        (Kind::SizeOrNone, Some("0")) => Ok(Value::Number(0)),
        (Kind::Size | Kind::SizeOrNone | Kind::Limit, Some(text)) => {
            control::size::parse_amount(text).map(Value::Number).map_err(|error| format!("\"{}\": {error}", key.name))
        }
        (Kind::SizeOrNone, None) if whole(0, 0).is_ok() => Ok(Value::Number(0)),
        (Kind::Size | Kind::SizeOrNone | Kind::Limit, None) => {
            let bytes = whole(1, i64::MAX as u64)?.to_string();
            control::size::parse_amount(&bytes)
                .map(Value::Number)
                .map_err(|error| format!("\"{}\": {error}", key.name))
        }
        (Kind::Seconds(most), Some(text)) => control::duration::parse_seconds(text, 0, most)
            .map(Value::Number)
            .map_err(|error| format!("\"{}\": {error}", key.name)),
        (Kind::Seconds(most), None) => whole(0, most).map(Value::Number),
        (Kind::Number(least, most), _) => whole(least, most).map(Value::Number),
        (Kind::CountLimit(most), _) => whole(1, most).map(Value::Number),
        (Kind::Mode, Some(text)) => {
            let mode = u64::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok();
            mode.filter(|mode| *mode <= 0o777).map(Value::Number).ok_or_else(wrong)
        }
        (Kind::Address, Some(text)) => text.parse().map(Value::Address).map_err(|_| wrong()),
        (Kind::Flag, _) => value.as_bool().map(Value::Flag).ok_or_else(wrong),
        (Kind::OneOf(names), Some(text)) if names.contains(&text) => Ok(Value::Text(text.to_owned())),
        (Kind::OneOf(names), Some(text)) => Err(format!(
            "\"{}\" is one of {}{}",
            key.name,
            key.kind.describe(),
            suggestion(text, names.iter().copied())
        )),
        (Kind::OneOf(_), None) => Err(format!("\"{}\" is one of {}", key.name, key.kind.describe())),
        (Kind::Gpus, _) => {
            let number = |value: &Spanned<DeValue<'_>>| {
                let number = value.get_ref().as_integer()?;
                u32::from_str_radix(number.as_str(), number.radix()).ok().filter(|number| *number < 64)
            };
            let numbers: Option<Vec<u32>> = value.as_array().and_then(|list| list.iter().map(number).collect());
            let distinct = |numbers: &Vec<u32>| {
                !numbers.is_empty() && numbers.iter().enumerate().all(|(at, n)| !numbers[..at].contains(n))
            };
            numbers.filter(distinct).map(Value::Numbers).ok_or_else(wrong)
        }
        (Kind::Zones, _) => {
            let list = value.as_array().ok_or_else(wrong)?;
            let name = |value: &Spanned<DeValue<'_>>| match value.get_ref().as_str() {
                Some(name) => name.parse::<ZoneName>().map_err(|error| format!("\"{}\": {error}", key.name)),
                None => Err(wrong()),
            };
            list.iter().map(name).collect::<Result<_, _>>().map(Value::Zones)
        }
        (Kind::Hosts, _) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            let name = |value: &Spanned<DeValue<'_>>| {
                let name = value.get_ref().as_str()?;
                let fine = !name.is_empty() && name.len() <= MAX_LABEL && name.chars().all(plain);
                fine.then(|| name.to_owned())
            };
            let names: Option<Vec<String>> = value.as_array().and_then(|list| list.iter().map(name).collect());
            names.map(Value::Hosts).ok_or_else(wrong)
        }
        (Kind::ResourceOrNone, Some("off")) => Ok(Value::Nothing),
        (Kind::Resource | Kind::ResourceOrNone, Some(text)) if is_resource(text) => Ok(Value::Text(text.to_owned())),
        (Kind::Resource | Kind::ResourceOrNone, _) => Err(wrong()),
        (Kind::Path | Kind::Mode | Kind::Address, None) => Err(wrong()),
    }
}

/// A label of DNS, as Kubernetes demands of most names.
fn is_label(text: &str) -> bool {
    let fine = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends = |c: Option<u8>| c.is_some_and(fine);
    (1..=63).contains(&text.len())
        && text.bytes().all(|c| fine(c) || c == b'-')
        && ends(text.bytes().next())
        && ends(text.bytes().last())
}

/// The name of an extended resource: a domain, and a name in it.
pub fn is_resource(text: &str) -> bool {
    let Some((domain, name)) = text.split_once('/') else { return false };
    let fine = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let ends = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    // Kubernetes keeps its own domain to itself.
    domain.len() <= 253
        && domain.contains('.')
        && domain.split('.').all(is_label)
        && domain != "kubernetes.io"
        && !domain.ends_with(".kubernetes.io")
        && (1..=63).contains(&name.len())
        && name.bytes().all(fine)
        && ends(name.bytes().next())
        && ends(name.bytes().last())
}

/// The name that was probably meant.
fn suggestion(text: &str, known: impl Iterator<Item = &'static str>) -> String {
    let near = known.map(|name| (distance(text, name), name)).min();
    match near {
        Some((distance, name)) if distance <= 1 + name.len() / 4 => format!(" (did you mean \"{name}\"?)"),
        _ => String::new(),
    }
}

/// How many letters must change (Levenshtein), bounded by the length of a word.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
