//! One zone: its settings, its accounts, and why it is there. No socket and no process, so it can be tried by itself.

use std::time::{Duration, Instant};

use super::totals::Totals;
use crate::ledger::{Account, Accounts, Ledger, Memory};
use crate::throttle::Throttle;
use control::ZoneName;
use control::host_defaults::HostDefaults;
use control::zone::{ZoneBindings, ZoneLimits, ZoneSettings};

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
    pub ledger: Ledger,
    /// Host memory pinned for the GPU.
    pub pinned: Ledger,
    pub lifetime: Lifetime,
    /// All but refused charges, which the ledgers count.
    pub totals: Totals,
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
            ledger: Ledger::new(limits.memory),
            pinned: Ledger::new(limits.pinned),
            settings,
            defaults,
            lifetime: Lifetime { leased, ..Lifetime::default() },
            totals: Totals::default(),
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
        let limits = self.limits_in_force();
        self.ledger.limit = limits.memory;
        self.pinned.limit = limits.pinned;
    }

    pub(crate) fn set_settings(&mut self, settings: ZoneSettings) {
        self.set_limits(settings.limits);
        self.settings = settings;
    }

    /// A part has the limits and bindings of the whole, and is not split again.
    pub(crate) fn part_settings(&self) -> ZoneSettings {
        let mut settings = self.settings.clone();
        settings.bindings.split = false;
        settings
    }

    /// Takes over limits and bindings of the zone that it is a part of.
    pub(crate) fn follow(&mut self, whole: &ZoneSettings) {
        self.set_limits(whole.limits);
        self.settings.bindings = whole.bindings.clone();
    }

    /// The zone's ledger of some memory, and a worker's account in it.
    pub(crate) fn ledger_for<'a>(
        &'a mut self,
        memory: Memory,
        accounts: &'a mut Accounts,
    ) -> (&'a mut Ledger, &'a mut Account) {
        match memory {
            Memory::Device => (&mut self.ledger, &mut accounts.device),
            Memory::Pinned => (&mut self.pinned, &mut accounts.pinned),
        }
    }

    /// Whether one more line may be written about a client that was refused. If so: how many were not since the last, if
    /// any.
    pub(crate) fn complain(&mut self, now: Instant) -> Option<Option<u64>> {
        self.complaints.pass(now).map(|unsaid| (unsaid > 0).then_some(unsaid))
    }
}
