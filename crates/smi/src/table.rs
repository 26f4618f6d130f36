//! What people see: the table, and the list of GPUs.

use std::fmt::Write;

use crate::gpu::{self, Gpu, Zone, mib};
use crate::time::Moment;

/// `nvidia-smi -L`.
pub(crate) fn list(zone: &Zone) -> String {
    let mut out = String::new();
    for gpu in &zone.gpus {
        let _ = writeln!(out, "GPU {}: {} (UUID: {})", gpu.index, gpu.card.name, gpu.card.uuid_text());
    }
    out
}

/// `nvidia-smi`.
pub(crate) fn table(zone: &Zone, moment: Moment) -> String {
    let mut out = String::new();
    let version = &zone.driver_version;
    let mut line = |text: &str| out.extend([text, "\n"]);
    let outer = format!("+{}+", "-".repeat(89));
    let inner = |cross: char| format!("+{0}{cross}{1}{cross}{2}+", "-".repeat(41), "-".repeat(24), "-".repeat(22));
    line(&moment.words());
    line(&outer);
    line(&format!(
        "| NVIDIA-SMI {:<22} Driver Version: {:<14} CUDA Version: {:<9}|",
        cut(version, 22),
        cut(version, 14),
        zone.cuda()
    ));
    line(&inner('+'));
    line("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    line("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    line("|                                         |                        |               MIG M. |");
    line(&inner('+').replace('-', "=").replace('+', "|").replace("=|=", "=+="));
    for gpu in &zone.gpus {
        rows(gpu).iter().for_each(|row| line(row));
        line(&inner('+'));
    }
    line("");
    line(&outer);
    line("| Processes:                                                                              |");
    line("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |");
    line("|        ID   ID                                                               Usage      |");
    line(&format!("|{}|", "=".repeat(89)));
    let processes: Vec<String> = zone.gpus.iter().flat_map(process_rows).collect();
    processes.iter().for_each(|row| line(row));
    if processes.is_empty() {
        line(&format!("|{:<89}|", "  No running processes found"));
    }
    line(&outer);
    out
}

fn rows(gpu: &Gpu) -> [String; 3] {
    let busy = gpu.busy.map_or_else(|| "N/A".to_owned(), |busy| format!("{busy}%"));
    let memory = format!("{}MiB / {:>6}MiB", mib(gpu.memory.used), mib(gpu.memory.total));
    [
        format!(
            "| {:>3}  {:<28}   On  |   {:>16} Off |                  N/A |",
            gpu.index,
            cut(&gpu.card.name, 28),
            gpu.bus_id()
        ),
        format!("| N/A   N/A  N/A             N/A  /  N/A  | {memory:>22} |{busy:>8}      Default |"),
        format!("| {:39} | {:22} |                  N/A |", "", ""),
    ]
}

fn process_rows(gpu: &Gpu) -> Vec<String> {
    let row = |process| {
        let name = gpu::name(process);
        let used = format!("{}MiB", mib(process.used));
        format!("| {:>4}   N/A  N/A {:>15}      C   {:<32} {used:>13} |", gpu.index, process.pid, end(&name, 32))
    };
    gpu.processes.iter().map(row).collect()
}

/// Its beginning, where it is too long.
fn cut(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    text.chars().take(length - 3).chain("...".chars()).collect()
}

/// Its end, where it is too long: of a path, that tells more.
fn end(text: &str, length: usize) -> String {
    let count = text.chars().count();
    if count <= length {
        return text.to_owned();
    }
    "...".chars().chain(text.chars().skip(count - (length - 3))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::zone;
    use std::time::Duration;

    #[test]
    fn gpus_are_listed_with_their_uuids() {
        assert_eq!(list(&zone(&["0"])), "GPU 0: NVIDIA H200 (UUID: GPU-18181818-1818-1818-1818-181818181818)\n");
    }

    #[test]
    fn every_line_of_the_table_is_as_wide_as_its_frame() {
        let mut zone = zone(&[]);
        zone.gpus[1].card.name = "A product with a name of more than its column".into();
        zone.driver_version = "580.65.06-with-much-behind-it".into();
        let text = table(&zone, Moment(Duration::ZERO));
        for line in text.lines().skip(1).filter(|line| !line.is_empty()) {
            assert_eq!(line.chars().count(), 91, "{line}");
        }
    }

    #[test]
    fn the_table_shows_the_zone() {
        let text = table(&zone(&[]), Moment(Duration::ZERO));
        // As scripts look for them.
        for part in
            ["Driver Version: 580.65.06", "CUDA Version: 13.0", "1024MiB /   4096MiB", "37%", "00000000:18:00.0"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains(&format!(" {}      C   ", std::process::id())), "{text}");
        assert!(!text.contains("No running"));
        assert!(table(&zone(&["1"]), Moment(Duration::ZERO)).contains("|  No running processes found "));
    }

    #[test]
    fn long_names_lose_what_tells_least() {
        assert_eq!((cut("abcdefgh", 8), cut("abcdefghi", 8)), ("abcdefgh".into(), "abcde...".into()));
        assert_eq!(end("/usr/bin/python3", 10), "...python3");
    }
}
