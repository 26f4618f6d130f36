//! Memory limits that several zones have together: the pods of a namespace on its quota. Each zone has its own ledger;
//! [`super::standing`] adds them up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use control::atomic_file;

/// Budgets of a node; more are refused.
const MAX_BUDGETS: usize = 4096;

/// Limits by name. A budget that zones name and that is not here has no limit, unless the file was lost: then it has
/// nothing to give until somebody has said again what it has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Budgets {
    pub(super) limits: BTreeMap<String, u64>,
    /// After a loss: those of which it was said that they have no limit.
    unlimited: Option<BTreeSet<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    #[error("too many budgets (at most {MAX_BUDGETS})")]
    TooMany,
    #[error("cannot save the budget: {0}")]
    Write(#[from] io::Error),
}

/// What is written after a file was lost, until all is known again; otherwise it is the limits alone.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Incomplete {
    limits: BTreeMap<String, u64>,
    #[serde(rename = "free")]
    unlimited: BTreeSet<String>,
}

impl Budgets {
    pub(crate) fn read(path: &Path) -> Self {
        let Ok(bytes) = std::fs::read(path) else { return Self::default() };
        if let Ok(Incomplete { limits, unlimited }) = serde_json::from_slice(&bytes) {
            return Self { limits, unlimited: Some(unlimited) };
        }
        match serde_json::from_slice(&bytes) {
            Ok(limits) => Self { limits, unlimited: None },
            Err(error) => {
                // Nobody may take more because a file is lost; who set the limits sets them again.
                tracing::error!(%error, path = %path.display(), "cannot read budgets; their zones get no memory until they are set again");
                Self { limits: BTreeMap::new(), unlimited: Some(BTreeSet::new()) }
            }
        }
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let bytes = match &self.unlimited {
            None => serde_json::to_vec_pretty(&self.limits)?,
            Some(unlimited) => {
                let (limits, unlimited) = (self.limits.clone(), unlimited.clone());
                serde_json::to_vec_pretty(&Incomplete { limits, unlimited })?
            }
        };
        atomic_file::write_volatile(path, &bytes)
    }

    /// What a budget has; none: as much as there is.
    pub(crate) fn limit(&self, name: &str) -> Option<u64> {
        match (self.limits.get(name), &self.unlimited) {
            (Some(limit), _) => Some(*limit),
            (None, Some(unlimited)) if !unlimited.contains(name) => Some(0),
            (None, _) => None,
        }
    }

    /// With another limit for one. `named`: the budgets that zones draw on; once the limit of each is known, nothing is
    /// missing any more.
    pub(crate) fn with<'a>(
        &self,
        name: &str,
        memory: Option<u64>,
        mut named: impl Iterator<Item = &'a String>,
    ) -> Result<Self, BudgetError> {
        let (mut limits, mut unlimited) = (self.limits.clone(), self.unlimited.clone());
        match memory {
            Some(memory) => limits.insert(name.to_owned(), memory),
            None => limits.remove(name),
        };
        if let Some(unlimited) = unlimited.as_mut().filter(|_| memory.is_none()) {
            unlimited.insert(name.to_owned());
        }
        let unlimited =
            unlimited.filter(|known| !named.all(|name| limits.contains_key(name) || known.contains(name)));
        if limits.len() + unlimited.as_ref().map_or(0, BTreeSet::len) > MAX_BUDGETS {
            return Err(BudgetError::TooMany);
        }
        Ok(Self { limits, unlimited })
    }

    /// All that have a limit, those included of which nobody knows it.
    pub(crate) fn list<'a>(&self, named: impl Iterator<Item = &'a String>) -> BTreeMap<String, u64> {
        let limited = named.filter_map(|name| Some((name.clone(), self.limit(name)?)));
        limited.chain(self.limits.clone()).collect()
    }
}
