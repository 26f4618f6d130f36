//! `nvidia-smi -q`: the essentials, in the usual form.

use std::fmt::Write;

use crate::Problem;
use crate::gpu::{self, Gpu, Zone, mib};
use crate::time::Moment;

/// What can be asked for alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Memory,
    Utilization,
    Compute,
    Processes,
}

/// Sections of NVIDIA's program that are about what zones do not show.
const NOT_SHOWN: [&str; 14] = [
    "ECC",
    "TEMPERATURE",
    "POWER",
    "CLOCK",
    "PERFORMANCE",
    "SUPPORTED_CLOCKS",
    "PAGE_RETIREMENT",
    "ACCOUNTING",
    "ENCODER_STATS",
    "SUPPORTED_GPU_TARGET_TEMP",
    "VOLTAGE",
    "FBC_STATS",
    "ROW_REMAPPER",
    "RESET_STATUS",
];

impl Section {
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        match text.trim().to_ascii_uppercase().as_str() {
            "MEMORY" => Ok(Self::Memory),
            "UTILIZATION" => Ok(Self::Utilization),
            "COMPUTE" => Ok(Self::Compute),
            "PIDS" => Ok(Self::Processes),
            name if NOT_SHOWN.contains(&name) => Err(Problem::NotInZone(format!("-d {name}"))),
            _ => Err(Problem::Usage(format!("{text:?} is not a valid display type."))),
        }
    }
}

/// Where values stand.
const COLUMN: usize = 55;

struct Page(String);

impl Page {
    fn entry(&mut self, depth: usize, name: &str, value: &str) {
        let indent = depth * 4;
        let _ = writeln!(self.0, "{:indent$}{name:<width$}: {value}", "", width = COLUMN - indent);
    }

    fn title(&mut self, depth: usize, name: &str) {
        let _ = writeln!(self.0, "{:indent$}{name}", "", indent = depth * 4);
    }
}

/// `sections`: none: all.
pub(crate) fn details(zone: &Zone, moment: Moment, sections: &[Section]) -> String {
    let mut page = Page("\n==============NVSMI LOG==============\n\n".to_owned());
    page.entry(0, "Timestamp", &moment.words());
    page.entry(0, "Driver Version", &zone.driver_version);
    page.entry(0, "CUDA Version", &zone.cuda());
    page.0.push('\n');
    page.entry(0, "Attached GPUs", &zone.count.to_string());
    for gpu in &zone.gpus {
        page.title(0, &format!("GPU {}", gpu.bus_id()));
        one(&mut page, gpu, sections);
        page.0.push('\n');
    }
    page.0
}

fn one(page: &mut Page, gpu: &Gpu, sections: &[Section]) {
    let all = sections.is_empty();
    let shown = |section| all || sections.contains(&section);
    if all {
        identity(page, gpu);
    }
    if shown(Section::Memory) {
        let of = |bytes| format!("{} MiB", mib(bytes));
        page.title(1, "FB Memory Usage");
        page.entry(2, "Total", &of(gpu.memory.total));
        page.entry(2, "Reserved", &of(0));
        page.entry(2, "Used", &of(gpu.memory.used));
        page.entry(2, "Free", &of(gpu.memory.free));
    }
    if shown(Section::Compute) {
        page.entry(1, "Compute Mode", "Default");
    }
    if shown(Section::Utilization) {
        page.title(1, "Utilization");
        page.entry(2, "GPU", &gpu.busy.map_or_else(|| "N/A".to_owned(), |busy| format!("{busy} %")));
        page.entry(2, "Memory", "N/A");
    }
    if shown(Section::Processes) {
        processes(page, gpu);
    }
}

fn identity(page: &mut Page, gpu: &Gpu) {
    let card = &gpu.card;
    page.entry(1, "Product Name", &card.name);
    page.entry(1, "Persistence Mode", "Enabled");
    page.entry(1, "GPU UUID", &card.uuid_text());
    page.entry(1, "Minor Number", "N/A");
    page.title(1, "PCI");
    if let Some(address) = gpu.address() {
        page.entry(2, "Bus", &format!("0x{:02X}", address.bus));
        page.entry(2, "Device", &format!("0x{:02X}", address.device));
        page.entry(2, "Domain", &format!("0x{:04X}", address.domain));
    }
    page.entry(2, "Device Id", &format!("0x{:08X}", card.pci_device));
    page.entry(2, "Bus Id", &gpu.bus_id());
    page.entry(2, "Sub System Id", &format!("0x{:08X}", card.pci_subsystem));
    for name in ["Fan Speed", "Performance State"] {
        page.entry(1, name, "N/A");
    }
}

fn processes(page: &mut Page, gpu: &Gpu) {
    if gpu.processes.is_empty() {
        return page.entry(1, "Processes", "None");
    }
    page.title(1, "Processes");
    for process in &gpu.processes {
        page.entry(2, "GPU instance ID", "N/A");
        page.entry(2, "Compute instance ID", "N/A");
        page.entry(2, "Process ID", &process.pid.to_string());
        page.entry(3, "Type", "C");
        page.entry(3, "Name", &gpu::name(process));
        page.entry(3, "Used GPU Memory", &format!("{} MiB", mib(process.used)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::zone;
    use std::time::Duration;

    fn value(text: &str, name: &str) -> Option<String> {
        let lines = text.lines().filter_map(|line| line.split_once(" : ").or_else(|| line.split_once(": ")));
        lines.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.to_owned())
    }

    #[test]
    fn all_is_told_of_each_gpu_or_one_section() {
        let all = details(&zone(&[]), Moment(Duration::ZERO), &[]);
        let is = |name: &str, expected: &str| assert_eq!(value(&all, name).as_deref(), Some(expected), "{all}");
        is("Attached GPUs", "2");
        is("Product Name", "NVIDIA H200");
        is("Total", "4096 MiB");
        is("Used", "1024 MiB");
        is("GPU", "37 %");
        is("Process ID", &std::process::id().to_string());
        assert_eq!(all.matches("\nGPU 00000000:").count(), 2);
        let memory = details(&zone(&["1"]), Moment(Duration::ZERO), &[Section::Memory]);
        assert_eq!(value(&memory, "Free").as_deref(), Some("4096 MiB"));
        assert!(!memory.contains("Product Name") && !memory.contains("Utilization"), "{memory}");
    }
}
