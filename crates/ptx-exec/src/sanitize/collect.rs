//! Findings of a grid, each once.

use std::collections::HashMap;

use super::shadow::Access;
use super::{Check, Where};

/// The most findings of a launch.
const MOST: usize = 64;

/// A finding before its threads and lines have names.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub check: Check,
    pub what: &'static str,
    pub here: (Access, &'static str),
    pub there: Option<(Access, &'static str)>,
    pub place: Option<Where>,
    pub count: u64,
    pub hint: Option<&'static str>,
}

#[derive(Default)]
pub(super) struct Collector {
    found: Vec<Raw>,
    /// By what is wrong, and the lines.
    known: HashMap<(&'static str, u32, u32), usize>,
}

impl Collector {
    pub(super) fn add(&mut self, raw: Raw) {
        let there = raw.there.as_ref().map_or(0, |(access, _)| access.line);
        // The same two lines are one finding, whichever thread came first.
        let (low, high) = (raw.here.0.line.min(there), raw.here.0.line.max(there));
        let next = self.found.len();
        let at = *self.known.entry((raw.what, low, high)).or_insert(next);
        match self.found.get_mut(at) {
            Some(known) => known.count += 1,
            None if next < MOST => self.found.push(raw),
            None => drop(self.known.remove(&(raw.what, low, high))),
        }
    }

    pub(super) fn take(&mut self) -> Vec<Raw> {
        self.known.clear();
        std::mem::take(&mut self.found)
    }
}
