//! How a zone stands with all that limits it on a GPU: its own limit, that of the zone it is a part of, and its budgets.

use std::collections::BTreeSet;

use super::{Zone, ZoneStore};
use crate::ledger::{Accounts, Memory};
use control::ZoneName;

/// What counts for a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    /// What counts against the limit, others' part included.
    pub used: u64,
    pub limit: Option<u64>,
    /// How much more it may have.
    pub room: u64,
}

/// A limit that is exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exceeded<'a> {
    /// On which GPU.
    pub gpu: u32,
    /// All that it holds for.
    pub zones: Vec<&'a ZoneName>,
    /// By how much.
    pub over: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChargeError {
    #[error("over the limit")]
    OverLimit,
    #[error("the zone is gone")]
    NoZone,
}

impl ZoneStore {
    /// What a zone may still have of a GPU's memory.
    pub(crate) fn standing(&self, name: &ZoneName, gpu: u32) -> Standing {
        let Some(zone) = self.zones.get(name) else { return Standing { used: 0, limit: Some(0), room: 0 } };
        let own = zone.used_on(gpu);
        let sum = |counts: &dyn Fn(&ZoneName, &Zone) -> bool| {
            let counted = self.zones.iter().filter(|(name, zone)| counts(name, zone));
            counted.fold(0u64, |sum, (_, zone)| sum.saturating_add(zone.used_on(gpu)))
        };
        let mut held: Vec<(u64, u64)> = zone.on_gpu(gpu).memory.map(|limit| (limit, own)).into_iter().collect();
        let family = zone.parent.as_ref().unwrap_or(name);
        if let Some(limit) = self.zones.get(family).and_then(|parent| parent.on_gpu(gpu).memory) {
            held.push((limit, sum(&|name, zone| name == family || zone.parent.as_ref() == Some(family))));
        }
        for budget in &zone.bindings().budgets {
            if let Some(limit) = self.budgets.limit(budget) {
                held.push((limit, sum(&|_, zone| zone.bindings().budgets.contains(budget))));
            }
        }
        let room = held.iter().map(|(limit, used)| limit.saturating_sub(*used)).min();
        let limit = held.iter().map(|(limit, _)| *limit).min();
        let used = match (limit, room) {
            (Some(limit), Some(room)) => limit.saturating_sub(room).max(own),
            _ => own,
        };
        Standing { used, limit, room: room.unwrap_or(u64::MAX) }
    }

    /// Limits that are exceeded on a GPU, of zones and of those that have one together. Budgets of which nobody knows what
    /// they have are none.
    pub(crate) fn exceeded(&self) -> Vec<Exceeded<'_>> {
        let gpus: BTreeSet<u32> = self.zones.values().flat_map(|zone| zone.ledgers().map(|(gpu, _)| gpu)).collect();
        gpus.into_iter().flat_map(|gpu| self.exceeded_on(gpu)).collect()
    }

    fn exceeded_on(&self, gpu: u32) -> Vec<Exceeded<'_>> {
        let over = |limit: u64, holds: &dyn Fn(&ZoneName, &Zone) -> bool| {
            let held = || self.zones.iter().filter(|(name, zone)| holds(name, zone));
            let used = held().fold(0u64, |sum, (_, zone)| sum.saturating_add(zone.used_on(gpu)));
            (used > limit).then(|| Exceeded {
                gpu,
                zones: held().map(|(name, _)| name).collect(),
                over: used - limit,
            })
        };
        let own = |(name, zone): (&ZoneName, &Zone)| {
            over(zone.on_gpu(gpu).memory?, &|other, zone| other == name || zone.parent.as_ref() == Some(name))
        };
        let shared =
            |(budget, limit): (&String, &u64)| over(*limit, &|_, zone| zone.bindings().budgets.contains(budget));
        self.zones.iter().filter_map(own).chain(self.budgets.limits.iter().filter_map(shared)).collect()
    }

    /// How much more host memory a zone may have pinned, it and its kin together.
    pub(crate) fn pinned_room(&self, name: &ZoneName) -> u64 {
        let Some(zone) = self.zones.get(name) else { return 0 };
        let family = zone.parent.as_ref().unwrap_or(name);
        let Some(limit) = self.zones.get(family).and_then(|parent| parent.pinned.limit) else { return u64::MAX };
        let kin = self.zones.iter().filter(|(name, zone)| *name == family || zone.parent.as_ref() == Some(family));
        limit.saturating_sub(kin.fold(0, |sum: u64, (_, zone)| sum.saturating_add(zone.pinned.used)))
    }

    /// Puts memory on a worker's account, if everything that limits its zone allows it.
    pub(crate) fn charge(
        &mut self,
        name: &ZoneName,
        memory: Memory,
        accounts: &mut Accounts,
        bytes: u64,
    ) -> Result<(), ChargeError> {
        let room = match memory {
            Memory::Gpu(gpu) => self.standing(name, gpu).room,
            Memory::Pinned => self.pinned_room(name),
        };
        let zone = self.zones.get_mut(name).ok_or(ChargeError::NoZone)?;
        let (ledger, account) = zone.ledger_for(memory, accounts);
        // Others may have taken what the zone's own limit would allow.
        if bytes > room {
            ledger.refused = ledger.refused.saturating_add(1);
            return Err(ChargeError::OverLimit);
        }
        ledger.charge(account, bytes).map_err(|_| ChargeError::OverLimit)
    }

    /// Takes memory off a worker's account.
    pub(crate) fn release(&mut self, name: &ZoneName, memory: Memory, accounts: &mut Accounts, bytes: u64) {
        if let Some(zone) = self.zones.get_mut(name) {
            let (ledger, account) = zone.ledger_for(memory, accounts);
            ledger.release(account, bytes);
        }
    }
}
