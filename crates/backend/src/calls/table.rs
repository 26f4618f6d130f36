//! Many calls as a table: each kind of call once, with how often it was made and what the filter does to it.

use std::collections::BTreeMap;
use std::fmt::Write;

use sandbox::driver::Branch;
use sandbox::driver::requests::{self, Decider, number};
use sandbox::driver::rules;

use super::Line;

/// By device, request and what it asked for.
type Key = (String, u32, Option<u32>, u32);

struct Row {
    counts: [u64; 3],
    /// Where it stands in the record, from 1 on.
    first: usize,
    /// The answers, each once.
    answers: Vec<String>,
    head: Vec<u8>,
}

/// The calls of a record, sorted, as text for people.
pub fn table(lines: &[Line], branch: Branch) -> String {
    let mut rows: BTreeMap<Key, Row> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let key = (kind(&line.device), line.request, line.detail, line.parameters);
        let head = line.head.clone();
        let row = rows.entry(key).or_insert_with(|| Row { counts: [0; 3], first: at + 1, answers: Vec::new(), head });
        row.counts[line.phase as usize] += 1;
        let answer = answer(line);
        if !row.answers.contains(&answer) {
            row.answers.push(answer);
        }
    }
    let mut text = format!(
        "{:<10} {:<8} {:<30} {:<8} {:>6} {:>6} {:>6} {:>7} {:>8} {:>7}  {:<11} {}\n",
        "device",
        "request",
        "name",
        "detail",
        "params",
        "first",
        "spare",
        "attach",
        "started",
        "answers",
        "decides",
        "head"
    );
    for ((device, request, asked, parameters), row) in &rows {
        let detail = asked.map_or("-".to_owned(), |detail| format!("{detail:08x}"));
        let head = hex::encode(&row.head);
        let name = requests::name(*request).unwrap_or("?");
        let Row { counts: [spare, attached, started], first, answers, .. } = row;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{device:<10} {request:08x} {name:<30} {detail:<8} {parameters:>6} {first:>6} {spare:>6} {attached:>7} \
             {started:>8} {:>7}  {:<11} {head}",
            answers.join(","),
            decides(branch, *request, *asked),
        );
    }
    text
}

/// GPUs are alike.
fn kind(device: &str) -> String {
    match device.strip_prefix("nvidia") {
        Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            "nvidiaN".to_owned()
        }
        _ => device.to_owned(),
    }
}

fn answer(line: &Line) -> String {
    match (line.errno, line.status) {
        (0, None | Some(0)) => "ok".to_owned(),
        (0, Some(status)) => format!("{status:x}"),
        (errno, _) => format!("errno{errno}"),
    }
}

/// Who decides; and whether the supervisor would refuse it whatever its other arguments are.
fn decides(branch: Branch, request: u32, detail: Option<u32>) -> &'static str {
    let is_listed = match (requests::parts(request), detail) {
        (Some((number::CONTROL, _)), Some(control)) => rules::control(control).is_some(),
        (Some((number::ALLOC, _)), Some(class)) => rules::class(branch, class).is_some(),
        _ => true,
    };
    match requests::decider(branch, request) {
        None => "refused",
        Some(Decider::Driver) => "driver",
        Some(Decider::Supervisor) if is_listed => "supervisor",
        Some(Decider::Supervisor) => "unlisted",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Phase;
    use super::*;

    #[test]
    fn each_kind_of_call_has_one_row() {
        let line = |device: &str, request, detail, phase, status| Line {
            device: device.into(),
            request,
            detail,
            phase,
            status,
            ..Line::default()
        };
        let lines = [
            line("nvidiactl", 0xc020_462a, Some(0x102), Phase::Spare, Some(0)),
            line("nvidiactl", 0xc020_462a, Some(0x102), Phase::Started, Some(0x57)),
            line("nvidia3", 0xc038_4627, Some(0x71), Phase::Spare, Some(0)),
            line("nvidia0", 0xc038_4627, Some(0x71), Phase::Spare, Some(0)),
            line("nvidiactl", 0xc010_46d3, Some(0x2a), Phase::Spare, None),
            line("nvidiactl", 0xc030_462b, Some(0x41), Phase::Spare, None),
        ];
        let text = table(&lines, Branch::of("580.1").unwrap());
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 4, "{text}");
        assert_eq!(rows[0][..4], ["nvidiaN", "c0384627", "RM_ALLOC_MEMORY", "00000071"]);
        assert_eq!(rows[0][5..8], ["3", "2", "0"], "{text}");
        assert_eq!(rows[1][10], "refused", "{text}");
        assert_eq!(rows[2][5..11], ["1", "1", "0", "1", "ok,57", "supervisor"], "{text}");
        assert_eq!(rows[3][10], "unlisted", "a client is made by a worker that is ours: {text}");
    }
}
