//! One zone: its settings, its accounts, and why it is there. No socket and no process, so it can be tried by itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::totals::Totals;
use crate::ledger::{Account, Accounts, Ledger, Memory};
use crate::throttle::Throttle;
use control::ZoneName;
use control::host_defaults::HostDefaults;
use control::zone::{GpuLimits, ZoneBindings, ZoneLimits, ZoneSettings};

/// Log lines about what a zone's clients were refused: so many at once, and then one each few seconds.
const COMPLAINTS: u32 = 20;
const COMPLAIN_EVERY: Duration = Duration::from_secs(3);

pub(crate) struct Zone {
    pub id: u64,
    settings: ZoneSettings,
    /// What holds where the settings say nothing.
    defaults: HostDefaults,
    /// The zone that it is a part of.
    pub parent: Option<ZoneName>,
    /// By the GPU's number, each there once it is used.
    ledgers: BTreeMap<u32, Ledger>,
    /// Charges that the last broker refused.
    refused_before: u64,
    /// Host memory pinned for GPUs.
    pub pinned: Ledger,
    pub lifetime: Lifetime,
    /// All but refused charges, which the ledgers count.
    pub totals: Totals,
    /// Nanoseconds in which workers that have ended kept GPUs busy, under this broker.
    pub past_busy: BTreeMap<u32, u64>,
    complaints: Throttle,
}

/// Why a zone is there, and when it goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// It stands in the configuration, and goes when it no longer does.
    pub configured: bool,
    /// Created for a connection of the operator, and gone with the last one.
    pub leased: bool,
    /// Connections that hold it.
    pub leases: usize,
    /// It goes then, unless somebody comes: the operator of a leased zone, or a client of a container.
    pub ends_at: Option<Instant>,
}

impl Zone {
    pub(crate) fn new(id: u64, settings: ZoneSettings, defaults: HostDefaults, leased: bool) -> Self {
        let limits = defaults.in_force(&settings.limits);
        Self {
            id,
            parent: None,
            ledgers: BTreeMap::new(),
            refused_before: 0,
            pinned: Ledger::new(limits.pinned),
            settings,
            defaults,
            lifetime: Lifetime { leased, ..Lifetime::default() },
            totals: Totals::default(),
            past_busy: BTreeMap::new(),
            complaints: Throttle::new(COMPLAINTS, COMPLAIN_EVERY),
        }
    }

    pub(crate) fn settings(&self) -> &ZoneSettings {
        &self.settings
    }

    /// What was said of it.
    pub(crate) fn limits(&self) -> &ZoneLimits {
        &self.settings.limits
    }

    /// What holds, defaults included.
    pub(crate) fn limits_in_force(&self) -> ZoneLimits {
        self.defaults.in_force(&self.settings.limits)
    }

    pub(crate) fn bindings(&self) -> &ZoneBindings {
        &self.settings.bindings
    }

    /// New limits count at once. What is in use beyond them stays in use, and nothing is added to it.
    pub(crate) fn set_limits(&mut self, limits: ZoneLimits) {
        self.settings.limits = limits;
        self.apply_limits();
    }

    pub(crate) fn set_settings(&mut self, settings: ZoneSettings) {
        self.settings = settings;
        self.apply_limits();
    }

    fn apply_limits(&mut self) {
        self.pinned.limit = self.limits_in_force().pinned;
        for (gpu, ledger) in &mut self.ledgers {
            ledger.limit = self.settings.on_gpu(*gpu).memory;
        }
    }

    /// A part has the limits and bindings of the whole, and is not split again.
    pub(crate) fn part_settings(&self) -> ZoneSettings {
        let mut settings = self.settings.clone();
        settings.bindings.split = false;
        settings
    }

    /// Takes over limits and bindings of the zone that it is a part of.
    pub(crate) fn follow(&mut self, whole: &ZoneSettings) {
        self.settings.gpu_limits = whole.gpu_limits.clone();
        self.settings.bindings = whole.bindings.clone();
        self.set_limits(whole.limits);
    }

    /// What it may have of a GPU.
    pub(crate) fn on_gpu(&self, gpu: u32) -> GpuLimits {
        self.settings.on_gpu(gpu)
    }

    /// Its accounts of the GPUs that it has used.
    pub(crate) fn ledgers(&self) -> impl Iterator<Item = (u32, &Ledger)> {
        self.ledgers.iter().map(|(gpu, ledger)| (*gpu, ledger))
    }

    pub(crate) fn ledger(&mut self, gpu: u32) -> &mut Ledger {
        let limit = self.settings.on_gpu(gpu).memory;
        self.ledgers.entry(gpu).or_insert_with(|| Ledger::new(limit))
    }

    /// Bytes that it uses of a GPU.
    pub(crate) fn used_on(&self, gpu: u32) -> u64 {
        self.ledgers.get(&gpu).map_or(0, |ledger| ledger.used)
    }

    /// Bytes that it uses of all GPUs.
    pub(crate) fn used(&self) -> u64 {
        self.ledgers.values().fold(0, |sum: u64, ledger| sum.saturating_add(ledger.used))
    }

    /// Charges refused so far.
    pub(crate) fn charges_refused(&self) -> u64 {
        self.ledgers.values().fold(self.refused_before, |sum, ledger| sum.saturating_add(ledger.refused))
    }

    /// Goes on counting where the last broker was.
    pub(crate) fn resume_refused(&mut self, charges: u64) {
        self.refused_before = charges;
    }

    /// A worker is gone.
    pub(crate) fn close(&mut self, accounts: Accounts) {
        for (gpu, account) in accounts.gpus {
            self.ledger(gpu).close(account);
        }
        self.pinned.close(accounts.pinned);
    }

    /// The zone's ledger of some memory, and a worker's account in it.
    pub(crate) fn ledger_for<'a>(
        &'a mut self,
        memory: Memory,
        accounts: &'a mut Accounts,
    ) -> (&'a mut Ledger, &'a mut Account) {
        match memory {
            Memory::Gpu(gpu) => (self.ledger(gpu), accounts.gpus.entry(gpu).or_default()),
            Memory::Pinned => (&mut self.pinned, &mut accounts.pinned),
        }
    }

    /// Whether one more line may be written about a client that was refused. If so: how many were not since the last, if
    /// any.
    pub(crate) fn complain(&mut self, now: Instant) -> Option<Option<u64>> {
        self.complaints.pass(now).map(|unsaid| (unsaid > 0).then_some(unsaid))
    }
}
