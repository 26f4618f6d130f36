//! The zone as it is shown: each of its GPUs with what holds for it now.

use cuda_abi::wire::view::{Card, Process, ZoneView};
use inquiry::{Memory, PciAddress};

use crate::Problem;

pub(crate) struct Zone {
    pub driver_version: String,
    /// As CUDA writes it: 13000 is 13.0.
    pub cuda_version: u32,
    /// How many GPUs the zone has; those that are shown may be fewer.
    pub count: usize,
    pub gpus: Vec<Gpu>,
}

pub(crate) struct Gpu {
    /// By which the zone's programs know it.
    pub index: usize,
    pub card: Card,
    pub memory: Memory,
    /// In percent, where it is measured.
    pub busy: Option<u32>,
    pub processes: Vec<Process>,
}

impl Zone {
    /// Asks the broker. `wanted`: indices, UUIDs or bus IDs; none: all GPUs.
    pub(crate) fn ask(wanted: &[String]) -> Result<Self, Problem> {
        Self::of(&inquiry::ask()?, wanted)
    }

    pub(crate) fn of(view: &ZoneView, wanted: &[String]) -> Result<Self, Problem> {
        let gpu = |(index, card): (usize, &Card)| Gpu {
            index,
            card: card.clone(),
            memory: inquiry::memory(view, index).unwrap_or(Memory { total: 0, free: 0, used: 0 }),
            busy: view.on_card(index).busy,
            processes: inquiry::processes(view, index),
        };
        let mut gpus: Vec<Gpu> = view.cards.iter().enumerate().map(gpu).collect();
        if gpus.is_empty() {
            return Err(Problem::NoDevices);
        }
        if let Some(unknown) = wanted.iter().find(|id| !gpus.iter().any(|gpu| gpu.is(id))) {
            return Err(Problem::NoSuchGpu(unknown.clone()));
        }
        let count = gpus.len();
        gpus.retain(|gpu| wanted.is_empty() || wanted.iter().any(|id| gpu.is(id)));
        Ok(Self { driver_version: view.driver_version.clone(), cuda_version: view.cuda_version, count, gpus })
    }

    /// Such as `13.0`.
    pub(crate) fn cuda(&self) -> String {
        format!("{}.{}", self.cuda_version / 1000, self.cuda_version % 1000 / 10)
    }
}

impl Gpu {
    fn is(&self, id: &str) -> bool {
        let address = || Some(PciAddress::parse(id)? == self.address()?);
        id.parse() == Ok(self.index) || id.eq_ignore_ascii_case(&self.card.uuid_text()) || address().unwrap_or(false)
    }

    pub(crate) fn address(&self) -> Option<PciAddress> {
        PciAddress::parse(&self.card.bus_id)
    }

    /// As NVML writes it.
    pub(crate) fn bus_id(&self) -> String {
        self.address().map_or_else(|| self.card.bus_id.clone(), |address| address.to_string())
    }
}

/// Whole MiB, as NVIDIA's program shows bytes.
pub(crate) fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// The name of a process's program, where this process may know it.
pub(crate) fn name(process: &Process) -> String {
    inquiry::process_name(process.pid).map_or_else(|| "[Not Found]".to_owned(), |name| printable(&name))
}

/// Users of a container choose the names of their processes, and another one's terminal shows them.
fn printable(name: &str) -> String {
    name.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn names_of_processes_cannot_control_the_terminal() {
        assert_eq!(printable("a\x1b[2J\n| 0 \u{9b}b"), "a?[2J?| 0 ?b");
    }

    use cuda_abi::wire::view::{CardUse, Holding};

    /// A zone with two GPUs and this very process on the first.
    pub(crate) fn view() -> ZoneView {
        let card = |bus: u8| Card {
            name: "NVIDIA H200".into(),
            uuid: [bus; 16],
            bus_id: format!("0000:{bus:02x}:00.0"),
            memory: 140 << 30,
            capability: (9, 0),
            multiprocessors: 132,
            pci_device: 0x2335_10de,
            pci_subsystem: 0x18be_10de,
            mig: None,
        };
        let of = |used: u64, busy| CardUse { limit: Some(4 << 30), used, busy };
        let pid = std::process::id();
        ZoneView {
            limit: Some(4 << 30),
            used: 1 << 30,
            cuda_version: 13000,
            driver_version: "580.65.06".into(),
            busy: Some(37),
            cards: vec![card(0x18), card(0x2a)],
            processes: vec![Process { pid, used: 1 << 30 }],
            card_use: vec![of(1 << 30, Some(37)), of(0, None)],
            holdings: vec![Holding { pid, card: 0, used: 1 << 30 }],
        }
    }

    pub(crate) fn zone(wanted: &[&str]) -> Zone {
        let wanted: Vec<String> = wanted.iter().map(|id| (*id).to_owned()).collect();
        Zone::of(&view(), &wanted).unwrap()
    }

    #[test]
    fn gpus_are_found_by_index_uuid_and_bus() {
        for id in ["1", "GPU-2A2A2A2A-2a2a-2a2a-2a2a-2a2a2a2a2a2a", "00000000:2A:00.0", "2a:00.0"] {
            let found = zone(&[id]);
            assert_eq!((found.gpus.len(), found.gpus[0].index, found.count), (1, 1, 2), "{id}");
        }
        assert_eq!(zone(&[]).gpus.len(), 2);
        assert!(matches!(Zone::of(&view(), &["7".to_owned()]), Err(Problem::NoSuchGpu(_))));
        assert!(matches!(Zone::of(&ZoneView::default(), &[]), Err(Problem::NoDevices)));
    }
}
