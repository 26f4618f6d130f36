//! What clients are told of their zone: the answer to an `Inquiry`, as NVML needs it.
//!
//! Everything here is the broker's own knowledge: the zone's ledger and workers, and what the cards look like. The
//! latter is the [inventory](super::inventory). An answer is one message of fixed size that is sent or forgotten, so nobody who
//! asks can make the broker wait.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use cuda_abi::wire::Reader;
use cuda_abi::wire::view::{self, Card, CardUse, Holding, MAX_PROCESSES, MAX_VIEW, Process, ZoneView};
use idm::bootstrap::{self, ANSWER_BYTES, Answer};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::inventory::Lookup;
use super::{Inventory, pci};
use crate::Broker;
use crate::reactor::Source;
use control::ZoneName;
use control::admin::{CardStatus, MigStatus};
use control::backend::Backend;
use control::namespaces;
use control::spawner::{Child, Program};
use control::{kernel_module, packet};

/// Inquiries of one zone that wait for the helper; further ones are dropped.
const MAX_WAITING: usize = 64;

const _: () = assert!(MAX_VIEW <= ANSWER_BYTES);

/// Numbers of clients in their namespaces, by worker; read once for each.
#[derive(Default)]
pub(crate) struct Views {
    numbers: BTreeMap<u64, namespaces::Numbers>,
}

/// The process that is asked for the cards.
pub(crate) struct Helper {
    slot: usize,
    child: Child,
    socket: OwnedFd,
}

impl Inventory<Helper> {
    pub(crate) fn helper_slot(&self) -> Option<usize> {
        self.helper().map(|helper| helper.slot)
    }

    pub(crate) fn kill_if_late(&mut self, now: Instant) {
        if let Some(helper) = self.expire(now) {
            helper.child.kill();
        }
    }

    /// Ends the helper, if there is one: the broker is about to go.
    pub(crate) fn stop(&mut self) {
        if let Some(helper) = self.take_helper() {
            helper.child.kill();
            let mut fds = [PollFd::new(helper.child.process(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 }));
            helper.child.reap();
        }
    }
}

impl Broker {
    /// A client has asked; it gets its answer, now or when the cards are known, and is gone.
    pub(crate) fn on_inquiry(&mut self, id: u64) {
        if self.monitor.inventory.cards().is_some() {
            return self.send_view(id);
        }
        let Some(client) = self.clients.queue.get(id) else { return };
        let zone = client.zone.clone();
        self.clients.queue.silence(id);
        let clients = &self.clients.queue;
        let of_zone = |id| clients.get(id).is_some_and(|client| client.zone == zone);
        if !self.monitor.inventory.wait(id, |id| clients.get(id).is_some(), of_zone, MAX_WAITING) {
            self.clients.queue.remove(id);
            return;
        }
        let answer = match self.monitor.inventory.lookup(Instant::now()) {
            Lookup::Wait => false,
            Lookup::Answer => true,
            Lookup::StartHelper => self.start_helper().is_err(),
        };
        if answer {
            self.send_views();
        }
    }

    /// The cards, for an operator; none while they are not known, in which case somebody looks.
    pub(crate) fn cards(&mut self) -> Option<Vec<CardStatus>> {
        if self.monitor.inventory.lookup(Instant::now()) == Lookup::StartHelper {
            // A failure has been logged, and the next one who asks tries again.
            let _ = self.start_helper();
        }
        let told = |(at, card): (usize, &Card)| CardStatus {
            name: card.name.clone(),
            uuid: card.uuid_text(),
            number: self.number_of(at, card),
            bus_id: card.bus_id.clone(),
            numa_node: pci::numa_node(&card.bus_id),
            pcie_root: pci::root(&card.bus_id),
            driver_version: self.monitor.inventory.driver_version().to_owned(),
            fault: self.monitor.faults.of(self.number_of(at, card)).cloned(),
            memory: card.memory,
            capability: card.capability,
            multiprocessors: card.multiprocessors,
            mig: card.mig.as_ref().map(|instance| MigStatus {
                profile: instance.profile.clone(),
                parent_uuid: instance.gpu_uuid_text(),
            }),
        };
        Some(self.monitor.inventory.cards()?.iter().enumerate().map(told).collect())
    }

    /// Has somebody look at the cards, unless they are known or need no looking at.
    pub(crate) fn learn_cards(&mut self) {
        // One program alone that is started for every command has no use for it.
        let is_known = matches!(self.config.backend, Backend::Soft { .. }) || self.config.private;
        if !is_known && self.monitor.inventory.lookup(Instant::now()) == Lookup::StartHelper {
            // A failure has been logged, and the next one who asks tries again.
            let _ = self.start_helper();
        }
    }

    /// How zones name a card: an instance by its own number, a GPU as its device node is numbered, where the kernel
    /// tells, and else by its place.
    fn number_of(&self, at: usize, card: &Card) -> u32 {
        let place = u32::try_from(at).unwrap_or(0);
        match (&card.mig, &self.config.backend) {
            (Some(instance), _) => instance.number,
            (None, Backend::Soft { .. }) => place,
            (None, Backend::Nvidia { devices, .. }) => {
                let told = kernel_module::gpu_in(Path::new(kernel_module::PROC), &card.bus_id);
                told.map(|gpu| gpu.minor).or_else(|| devices.get(at).copied()).unwrap_or(place)
            }
        }
    }

    /// The memory of a GPU, where it is known.
    pub(crate) fn memory_of(&self, gpu: u32) -> Option<u64> {
        if let Backend::Soft { memory, instances, .. } = &self.config.backend {
            return Some(memory / u64::from((*instances).max(1)));
        }
        let mut cards = self.monitor.inventory.cards().into_iter().flatten().enumerate();
        cards.find(|(at, card)| self.number_of(*at, card) == gpu).map(|(_, card)| card.memory)
    }

    /// The cards that a zone's clients see, with their numbers.
    fn cards_of(&self, name: &ZoneName) -> Vec<(u32, Card)> {
        let gpus = self.zones.get(name).map_or(&[][..], |zone| &zone.bindings().gpus);
        let backend = self.config.backend.with_devices(gpus);
        let (seen, all) = (backend.devices(), self.monitor.inventory.cards().into_iter().flatten().enumerate());
        let numbered = all.map(|(at, card)| (self.number_of(at, card), card.clone()));
        numbered.filter(|(number, _)| seen.is_empty() || seen.contains(number)).collect()
    }

    fn start_helper(&mut self) -> io::Result<()> {
        let slot = self.free_slot()?;
        let (socket, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let program = Program::Inventory(self.launcher.confined(slot));
        let child = self.launcher.start_confined(&program, theirs);
        let child = child.inspect_err(|error| tracing::error!(%error, "cannot query the GPUs"))?;
        self.reactor.watch(child.process(), Source::Inventory)?;
        self.monitor.inventory.helper_started(Helper { slot, child, socket }, Instant::now());
        Ok(())
    }

    /// The helper has ended; what it said is in the socket.
    pub(crate) fn on_inventory(&mut self) {
        let Some(helper) = self.monitor.inventory.take_helper() else { return };
        let status = helper.child.reap().unwrap_or_default();
        let mut buffer = vec![0; MAX_VIEW];
        let received = packet::receive(&helper.socket, &mut buffer).map_or(0, |received| received.len);
        match view::read_cards(&mut Reader::new(&buffer[..received])) {
            Ok(mut cards) if !cards.is_empty() => {
                // NVML counts cards in the order of their slots; CUDA has another.
                let instance = |card: &Card| card.mig.as_ref().map(|instance| instance.number);
                cards.sort_by(|a, b| (&a.bus_id, instance(a)).cmp(&(&b.bus_id, instance(b))));
                let nvidia = matches!(self.config.backend, Backend::Nvidia { .. });
                let complete = |card: Card| if nvidia { with_pci_identity(card) } else { card };
                let version = if nvidia { nvidia_version() } else { env!("CARGO_PKG_VERSION").into() };
                self.monitor.inventory.found(cards.into_iter().map(complete).collect(), version);
                self.warn_of_misfits();
            }
            _ => {
                tracing::warn!(status, "cannot query the GPUs: the helper reported none");
                self.monitor.inventory.failed(Instant::now());
            }
        }
        self.send_views();
    }

    fn send_views(&mut self) {
        for id in self.monitor.inventory.take_waiting() {
            self.send_view(id);
        }
    }

    fn send_view(&mut self, id: u64) {
        let Some(client) = self.clients.queue.remove(id) else { return };
        let asking = self.launcher.spawner().numbers(client.connection.peer.pid);
        let view = self.view(&client.zone, &asking);
        let answer = Answer::new(|bytes| view.write(bytes).unwrap_or(0));
        // One that does not take its answer does without.
        let _ = bootstrap::send(&client.connection.socket, &*answer, &[]);
    }

    fn view(&mut self, name: &ZoneName, asking: &namespaces::Numbers) -> ZoneView {
        let workers = &self.workers;
        self.monitor.views.numbers.retain(|id, _| workers.get(*id).is_some());
        let (numbers_of_cards, cards): (Vec<u32>, Vec<Card>) = self.cards_of(name).into_iter().unzip();
        let (mut processes, mut holdings) = (Vec::new(), Vec::new());
        for (id, worker) in self.workers.of_zone(name).take(MAX_PROCESSES) {
            let numbers = self.monitor.views.numbers.entry(id);
            let numbers = numbers.or_insert_with(|| self.launcher.spawner().numbers(worker.client_pid()));
            // A process of the zone that the asking one cannot see has no number there.
            if let Some(pid) = numbers.seen_by(asking) {
                processes.push(Process { pid, used: worker.charged() });
                let held = (0..).zip(&numbers_of_cards).map(|(card, gpu)| (card, worker.charged_on(*gpu)));
                let held = held.filter(|(_, used)| *used > 0).map(|(card, used)| Holding { pid, card, used });
                holdings.extend(held);
            }
        }
        let busy = self.utilization(Some(name));
        let on_card = |gpu: &u32| {
            let standing = self.zones.standing(name, *gpu);
            CardUse { limit: standing.limit, used: standing.used, busy: busy.get(&(name.clone(), *gpu)).copied() }
        };
        let card_use: Vec<CardUse> = numbers_of_cards.iter().map(on_card).collect();
        let CardUse { limit, used, busy } = card_use.first().copied().unwrap_or_default();
        ZoneView {
            limit,
            used,
            cuda_version: self.launcher.driver_version(),
            driver_version: self.monitor.inventory.driver_version().to_owned(),
            busy,
            cards,
            processes,
            card_use,
            holdings,
        }
    }
}

/// The version of NVIDIA's kernel module, where this machine shows it.
fn nvidia_version() -> String {
    let module = std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned());
    let told = || version_in(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?);
    module.filter(|text| !text.is_empty()).or_else(told).unwrap_or_else(|| "unknown".to_owned())
}

/// The first word that looks like a version: numbers with points between.
fn version_in(text: &str) -> Option<String> {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(number);
    text.split_whitespace().find(is_version).map(str::to_owned)
}

/// Adds what the driver does not tell: who made the card.
fn with_pci_identity(mut card: Card) -> Card {
    if let Some(dir) = pci::dir(&card.bus_id) {
        let read = |name: &str| {
            let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
            u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0) & 0xffff
        };
        card.pci_device = read("device") << 16 | read("vendor");
        card.pci_subsystem = read("subsystem_device") << 16 | read("subsystem_vendor");
    }
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_what_the_module_says_of_itself() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (x@y)  Thu\n\
                    GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)";
        assert_eq!(version_in(text).as_deref(), Some("580.159.03"));
        assert_eq!(version_in("no version. at 1. all"), None);
    }
}
