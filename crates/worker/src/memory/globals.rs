//! Variables of modules and libraries, which lie where the driver put them. They go with what they are in, however that
//! goes: unloaded, with its context, or with the library that a module belongs to.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::covers_with;
use crate::handles::Object;

#[derive(Default)]
pub(super) struct Globals {
    /// Start → length, and whose it is.
    ranges: BTreeMap<u64, (u64, Weak<Object>)>,
    /// When there are so many, those that are gone are looked for.
    tidy_at: usize,
}

impl Globals {
    const FEW: usize = 64;

    pub(super) fn add(&mut self, owner: &Arc<Object>, address: u64, len: u64) {
        if self.ranges.len() >= self.tidy_at.max(Self::FEW) {
            self.ranges.retain(|_, (_, owner)| owner.strong_count() > 0);
            self.tidy_at = 2 * self.ranges.len();
        }
        self.ranges.insert(address, (len, Arc::downgrade(owner)));
    }

    /// Do variables that are there cover `[address, address + len)`?
    pub(super) fn cover(&self, address: u64, len: u64) -> bool {
        let alive = |(len, owner): &(u64, Weak<Object>)| (owner.strong_count() > 0).then_some(*len);
        covers_with(&self.ranges, alive, address, len)
    }
}

#[cfg(test)]
mod tests {
    use cuda_abi::driver::Driver;
    use cuda_abi::wire::Kind;

    use super::*;
    use crate::handles::Handles;

    fn module(handles: &Handles, raw: u64) -> Arc<Object> {
        let word = handles.open(Kind::Module, raw, 1).unwrap();
        handles.pin(Kind::Module, word).unwrap()
    }

    #[test]
    fn a_variable_goes_with_its_module_when_the_context_takes_that_along() {
        let handles = Handles::new(Arc::new(Driver::missing()), 2);
        let mut globals = Globals::default();
        globals.add(&module(&handles, 1), 0x1000, 16);
        assert!(globals.cover(0x1000, 16) && globals.cover(0x1008, 8));
        assert!(!globals.cover(0x1000, 17) && !globals.cover(0xfff, 2));
        handles.close_context(1);
        assert!(!globals.cover(0x1000, 16));
        // Somebody else's may lie there next, and is not taken for gone with the first.
        globals.add(&module(&handles, 2), 0x1000, 8);
        assert!(globals.cover(0x1000, 8) && !globals.cover(0x1000, 16));
    }

    #[test]
    fn those_that_are_gone_take_no_room() {
        let handles = Handles::new(Arc::new(Driver::missing()), 2);
        let mut globals = Globals::default();
        for round in 0..100 {
            let owner = module(&handles, 1);
            (0..10).for_each(|at| globals.add(&owner, (round * 10 + at) * 64, 64));
            drop(owner);
            handles.close_context(1);
        }
        assert!(globals.ranges.len() <= 2 * Globals::FEW, "{}", globals.ranges.len());
    }
}
