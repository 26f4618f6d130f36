//! What workers share with each other: who offers what, who has opened it, and who pays.
//!
//! A token is 128 random bits that the broker made; who shows it still gets only what its zone may have. An export
//! goes when its worker takes it back or ends: nobody opens it from then on, and who has it open keeps it. Memory counts
//! once for a zone: the exporter pays, and after it one of those of the same zone that still have it open. A worker of
//! another zone pays for itself, and before it gets anything.
//!
//! Nothing here is written down: a new broker knows no exports. Workers then export again under new tokens, and go on
//! paying for what they have open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;
use zerocopy::IntoBytes;

use super::grants::Policy;
use crate::workers::Violation;
use control::ZoneName;
use control::admin::SharingStatus;
use control::closing::{Foreign, Lane};
use control::messages::event_page::{self, PAGE};
use control::messages::{Shared, Token, code, shared, shared_flags};

/// Descriptors held for one zone. Events have none of their own.
const DESCRIPTORS_PER_ZONE: usize = 1024;
const EXPORTS_PER_WORKER: usize = 16 << 10;
const IMPORTS_PER_WORKER: usize = 16 << 10;
/// Exports and imports of all workers of a zone: the broker remembers each.
const ENTRIES_PER_ZONE: usize = 64 << 10;
/// No wait of any stream is for more than this: what the words of a worker that is gone are set to.
const LONG_REACHED: u64 = u64::MAX >> 2;

pub(crate) struct Exports {
    by_token: HashMap<Token, Export>,
    /// By worker.
    workers: BTreeMap<u64, Held>,
    /// Descriptors held, of each zone.
    descriptors: BTreeMap<ZoneName, usize>,
    /// Where pages of each zone are closed: these were looked at, and take no time. Others must not wait for what does.
    pages: BTreeMap<ZoneName, Lane>,
    most_descriptors: usize,
    counts: SharingStatus,
}

#[derive(Default)]
struct Held {
    zone: Option<ZoneName>,
    exports: BTreeSet<Token>,
    imports: BTreeSet<Token>,
    /// Other zones that it has events of.
    events_of: BTreeSet<ZoneName>,
}

struct Export {
    details: Shared,
    /// Whose memory it is, by number.
    gpu: u32,
    zone: ZoneName,
    /// None once the worker has taken it back, or is gone: then only those are left who have it open.
    exporter: Option<u64>,
    fd: Option<Foreign>,
    /// The page that an event is in.
    page: Token,
    importers: BTreeMap<u64, Import>,
}

struct Import {
    zone: ZoneName,
    paid: u64,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub worker: u64,
    pub zone: &'a ZoneName,
    /// What it pays for.
    pub charged: u64,
}

/// An answer to an import.
#[derive(Debug)]
pub(crate) struct Opened {
    pub details: Shared,
    pub page: Token,
    pub fd: OwnedFd,
    /// Whose memory it is, by number.
    pub gpu: u32,
    /// What the importer must pay, beyond what it pays already.
    pub pays: u64,
}

/// Why a worker cannot export or open something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShareError {
    /// No honest worker says this: it is ended.
    #[error("malformed")]
    Malformed,
    #[error("unknown token")]
    Unknown,
    #[error("it is the worker's own")]
    Own,
    #[error("there is no grant for this zone, or not for such a part of an allocation")]
    Denied,
    #[error("over the zone's memory limit")]
    OverLimit,
    #[error("too many, or out of descriptors")]
    Refused,
}

impl ShareError {
    /// What a worker is told, unless it is ended for it.
    pub(crate) fn code(self) -> Result<u32, Violation> {
        match self {
            Self::Malformed => Err(Violation::Export),
            Self::Unknown => Ok(code::UNKNOWN),
            Self::Own => Ok(code::OWN),
            Self::Denied => Ok(code::DENIED),
            Self::OverLimit => Ok(code::OVER_LIMIT),
            Self::Refused => Ok(code::REFUSED),
        }
    }
}

/// A change of accounts: these bytes are the worker's to pay, or no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Payment {
    pub worker: u64,
    pub token: Token,
    /// Whose memory it is, by number.
    pub gpu: u32,
    pub bytes: u64,
}

/// An import that was closed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Whose memory it was, by number.
    pub gpu: u32,
    /// What its worker need not pay any more.
    pub paid: u64,
    /// Who must pay instead.
    pub payment: Option<Payment>,
}

impl Exports {
    pub(crate) fn new() -> Self {
        // Half of them are for clients and workers, whatever tenants share.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
        Self {
            by_token: HashMap::new(),
            workers: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            pages: BTreeMap::new(),
            most_descriptors: usize::try_from(limit / 2).unwrap_or(usize::MAX),
            counts: SharingStatus::default(),
        }
    }

    /// What is remembered of a zone.
    fn entries(&self, zone: &ZoneName) -> usize {
        let of_zone = self.workers.values().filter(|held| held.zone.as_ref() == Some(zone));
        of_zone.map(|held| held.exports.len() + held.imports.len()).sum()
    }

    /// A worker offers something.
    pub(crate) fn add(
        &mut self,
        asker: Asker<'_>,
        gpu: u32,
        details: Shared,
        page: Token,
        fd: Option<Foreign>,
    ) -> Result<Token, ShareError> {
        let inside = details.offset.checked_add(details.len).is_some_and(|end| end <= details.size);
        let well_formed = match details.kind {
            // Nobody offers more than it has paid for: others would be made to.
            kind if shared::is_memory(kind) => {
                inside && details.len > 0 && details.size <= asker.charged && fd.is_some()
            }
            shared::PAGE => details.size == PAGE as u64 && fd.as_ref().is_some_and(is_safe_page),
            shared::EVENT => inside && fd.is_none(),
            _ => false,
        };
        if !well_formed {
            return Err(ShareError::Malformed);
        }
        if details.kind == shared::EVENT {
            let known = self.by_token.get(&page);
            let own = known.filter(|page| page.exporter == Some(asker.worker) && page.details.kind == shared::PAGE);
            own.ok_or(ShareError::Unknown)?;
        }
        let entries = self.entries(asker.zone);
        let held = self.workers.entry(asker.worker).or_default();
        let used = self.descriptors.get(asker.zone).copied().unwrap_or(0);
        let all: usize = self.descriptors.values().sum();
        let room = fd.is_none()
            || (used < DESCRIPTORS_PER_ZONE.min(self.most_descriptors / 8) && all < self.most_descriptors);
        if held.exports.len() >= EXPORTS_PER_WORKER || entries >= ENTRIES_PER_ZONE || !room {
            return Err(ShareError::Refused);
        }
        let mut token = Token::default();
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| ShareError::Refused)?;
        held.exports.insert(token);
        held.zone = Some(asker.zone.clone());
        let mut fd = fd;
        if let Some(page) = fd.as_mut().filter(|_| details.kind == shared::PAGE) {
            page.move_to(self.pages.entry(asker.zone.clone()).or_default());
        }
        if fd.is_some() {
            *self.descriptors.entry(asker.zone.clone()).or_default() += 1;
        }
        self.counts.exports += 1;
        let export = Export {
            details,
            gpu,
            zone: asker.zone.clone(),
            exporter: Some(asker.worker),
            fd,
            page,
            importers: BTreeMap::new(),
        };
        self.by_token.insert(token, export);
        Ok(token)
    }

    /// A worker asks for what a token stands for. Nothing is changed before [`Self::opened`].
    pub(crate) fn find(
        &mut self,
        asker: Asker<'_>,
        token: &Token,
        kind: u64,
        policy: Policy<'_>,
    ) -> Result<Opened, ShareError> {
        let found = self.look_up(asker, token, kind, policy);
        match &found {
            Ok(_) => self.counts.opens += 1,
            Err(_) => self.counts.denials += 1,
        }
        found
    }

    fn look_up(&self, asker: Asker<'_>, token: &Token, kind: u64, policy: Policy<'_>) -> Result<Opened, ShareError> {
        let export = self.by_token.get(token).filter(|export| export.details.kind == kind && kind != shared::PAGE);
        let export = export.filter(|export| export.exporter.is_some()).ok_or(ShareError::Unknown)?;
        if export.exporter == Some(asker.worker) && kind != shared::PHYSICAL {
            return Err(ShareError::Own);
        }
        let mut details = export.details;
        let other_zone = export.zone != *asker.zone;
        if other_zone {
            // What lies beside it is nobody's in another zone to see.
            let alone = details.flags & shared_flags::HAS_NEIGHBOURS == 0;
            let access = policy.access(&export.zone, asker.zone).filter(|_| alone).ok_or(ShareError::Denied)?;
            details.flags = shared_flags::OTHER_ZONE;
            if !access.may_write() {
                details.flags |= shared_flags::READ_ONLY;
            }
        } else {
            details.flags = 0;
        }
        let fd = match kind {
            shared::EVENT => self.by_token.get(&export.page).and_then(|page| page.fd.as_ref()),
            _ => export.fd.as_ref(),
        };
        let held = self.workers.get(&asker.worker).map_or(0, |held| held.imports.len());
        if held >= IMPORTS_PER_WORKER || self.entries(asker.zone) >= ENTRIES_PER_ZONE {
            return Err(ShareError::Refused);
        }
        let fd = fd.ok_or(ShareError::Unknown)?.as_fd().try_clone_to_owned().map_err(|_| ShareError::Refused)?;
        let known = export.importers.contains_key(&asker.worker);
        let pays = if other_zone && shared::is_memory(kind) && !known { details.size } else { 0 };
        Ok(Opened { details, page: export.page, fd, gpu: export.gpu, pays })
    }

    /// The importer has paid, and is being given it.
    pub(crate) fn opened(&mut self, asker: Asker<'_>, token: &Token, paid: u64) {
        let Some(export) = self.by_token.get_mut(token) else { return };
        if !shared::is_memory(export.details.kind) {
            // Pages of events are neither paid for nor closed; a worker that has one has it until its end.
            if export.zone != *asker.zone {
                let held = self.workers.entry(asker.worker).or_default();
                held.zone = Some(asker.zone.clone());
                held.events_of.insert(export.zone.clone());
            }
            return;
        }
        let zone = asker.zone.clone();
        export.importers.entry(asker.worker).or_insert(Import { zone, paid });
        let held = self.workers.entry(asker.worker).or_default();
        held.zone = Some(asker.zone.clone());
        held.imports.insert(*token);
    }

    /// A worker takes an export back. Answers who must pay from now on.
    pub(crate) fn withdraw(&mut self, worker: u64, token: &Token) -> Option<Payment> {
        let own = self.workers.get_mut(&worker).is_some_and(|held| held.exports.remove(token));
        if !own {
            return None;
        }
        self.end_export(token)
    }

    fn end_export(&mut self, token: &Token) -> Option<Payment> {
        let export = self.by_token.get_mut(token)?;
        export.exporter = None;
        if let Some(fd) = export.fd.take() {
            if export.details.kind == shared::PAGE {
                fd.close_after(end_waits);
            }
            if let Some(count) = self.descriptors.get_mut(&export.zone) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.descriptors.remove(&export.zone);
                    self.pages.remove(&export.zone);
                }
            }
        }
        if export.importers.is_empty() {
            self.by_token.remove(token);
            return None;
        }
        next_payer(*token, export)
    }

    /// A worker has unmapped an import.
    pub(crate) fn close(&mut self, worker: u64, token: &Token) -> Closed {
        let held = self.workers.get_mut(&worker).is_some_and(|held| held.imports.remove(token));
        let Some(export) = self.by_token.get_mut(token).filter(|_| held) else { return Closed::default() };
        let (gpu, paid) = (export.gpu, export.importers.remove(&worker).map_or(0, |import| import.paid));
        if export.exporter.is_some() {
            return Closed { gpu, paid, payment: None };
        }
        if export.importers.is_empty() {
            self.by_token.remove(token);
            return Closed { gpu, paid, payment: None };
        }
        Closed { gpu, paid, payment: next_payer(*token, export) }
    }

    /// A worker is gone: what it offered is offered no more, and what it paid for others may have to pay.
    pub(crate) fn end_worker(&mut self, worker: u64) -> Vec<Payment> {
        let Some(held) = self.workers.remove(&worker) else { return Vec::new() };
        let mut payments = Vec::new();
        for token in held.imports {
            let Some(export) = self.by_token.get_mut(&token) else { continue };
            export.importers.remove(&worker);
            if export.exporter.is_none() {
                if export.importers.is_empty() {
                    self.by_token.remove(&token);
                } else {
                    payments.extend(next_payer(token, export));
                }
            }
        }
        for token in held.exports {
            payments.extend(self.end_export(&token));
        }
        payments
    }

    /// Workers of a zone that have something of another's open.
    pub(crate) fn importers(&self, from: &ZoneName, to: &ZoneName) -> BTreeSet<u64> {
        let exports = self.by_token.values().filter(|export| export.zone == *from);
        let memory = exports.flat_map(|export| &export.importers).filter(|(_, import)| import.zone == *to);
        let has_events = |held: &Held| held.zone.as_ref() == Some(to) && held.events_of.contains(from);
        let events = self.workers.iter().filter(|(_, held)| has_events(held));
        let of_events = events.map(|(worker, _)| *worker);
        memory.map(|(worker, _)| *worker).chain(of_events).collect()
    }

    /// Does a zone still offer what this token stands for?
    pub(crate) fn is_offered(&self, zone: &ZoneName, token: &Token) -> bool {
        self.by_token.get(token).is_some_and(|export| export.exporter.is_some() && export.zone == *zone)
    }

    /// What an operator is told.
    pub(crate) fn status(&self) -> SharingStatus {
        let mapped = |export: &Export| export.details.size.saturating_mul(export.importers.len() as u64);
        let mapped_bytes = self.by_token.values().fold(0, |sum: u64, export| sum.saturating_add(mapped(export)));
        SharingStatus { mapped_bytes, ..self.counts }
    }

    /// Has a worker something of others' open, or others something of its own, or could they?
    pub(crate) fn is_sharing(&self, worker: u64) -> bool {
        self.workers.get(&worker).is_some_and(|held| !held.exports.is_empty() || !held.imports.is_empty())
    }

    /// Bytes of each GPU that a worker has mapped and others pay for, as far as they do: `charged` says what each pays.
    pub(crate) fn unpaid(&self, worker: u64, charged: impl Fn(u64, u32) -> u64) -> BTreeMap<u32, u64> {
        let imports = self.workers.get(&worker).map(|held| &held.imports);
        let exports = imports.into_iter().flatten().filter_map(|token| self.by_token.get(token));
        let mut by_payer: BTreeMap<(u64, u32), u64> = BTreeMap::new();
        for export in exports {
            let paid = export.importers.get(&worker).map_or(0, |import| import.paid);
            let after = || export.importers.iter().find(|(_, import)| import.paid > 0).map(|(payer, _)| *payer);
            if let Some(payer) = export.exporter.or_else(after).filter(|payer| *payer != worker) {
                let sum = by_payer.entry((payer, export.gpu)).or_default();
                *sum = sum.saturating_add(export.details.size.saturating_sub(paid));
            }
        }
        let mut unpaid: BTreeMap<u32, u64> = BTreeMap::new();
        for ((payer, gpu), bytes) in by_payer {
            let sum = unpaid.entry(gpu).or_default();
            *sum = sum.saturating_add(bytes.min(charged(payer, gpu)));
        }
        unpaid
    }
}

/// Someone of the exporter's zone, if nobody of it pays already. Those of other zones pay for themselves.
fn next_payer(token: Token, export: &mut Export) -> Option<Payment> {
    let zone = &export.zone;
    let mut kin = export.importers.iter_mut().filter(|(_, import)| import.zone == *zone);
    if kin.by_ref().any(|(_, import)| import.paid > 0) {
        return None;
    }
    let (worker, import) = export.importers.iter_mut().find(|(_, import)| import.zone == *zone)?;
    import.paid = export.details.size;
    Some(Payment { worker: *worker, token, gpu: export.gpu, bytes: import.paid })
}

/// A page that can be mapped without harm: its size is what it is, and it has ordinary pages.
fn is_safe_page(file: &Foreign) -> bool {
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|has| has.contains(seals));
    let ordinary = |stat: rustix::fs::Stat| stat.st_size as usize == PAGE && stat.st_blksize == 4096;
    sealed && rustix::fs::fstat(file).is_ok_and(ordinary)
}

/// Lets everybody go on who waits for an event of a worker that is gone: it will never come. The worker may be busy with
/// the same file, and then this takes as long as that.
fn end_waits(page: BorrowedFd<'_>) {
    let words = [LONG_REACHED; event_page::SLOTS];
    for cell in (0..PAGE).step_by(event_page::CELL) {
        let at = (cell + event_page::FIRST_SLOT) as u64;
        if rustix::io::pwrite(page, words.as_bytes(), at).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
