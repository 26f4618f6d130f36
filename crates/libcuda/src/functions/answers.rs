//! Attributes of functions and kernels that the driver has told already.
//!
//! What is set on a kernel shows in its functions, and on a function what its kernel says no longer counts. So all functions
//! and kernels of one name are a [`Family`], and whatever is set on one of them has the answers of all forgotten. An answer
//! carries the number of changes at the time when it was asked for: one that was asked before a change and comes after it
//! is never believed.

use std::array;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_abi::wire::ops::{FunctionAttributes, MAX_FUNCTION_ATTRIBUTES};
use parking_lot::Mutex;

use crate::remembered;

/// How many families are looked through at least before those are dropped of which nothing is left.
const FAMILIES: usize = 1024;

static KNOWN: Mutex<Option<HashMap<CString, Arc<Family>>>> = Mutex::new(None);

/// Functions and kernels of one name.
pub(crate) struct Family {
    pub name: CString,
    changes: AtomicU32,
    /// Held while something is set: what was set last is what the driver has.
    pub setting: Mutex<()>,
}

impl Family {
    /// The family of this name.
    pub(crate) fn named(name: &CStr) -> Arc<Family> {
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_default();
        if let Some(family) = known.get(name) {
            return family.clone();
        }
        if known.len() >= FAMILIES && known.len().is_power_of_two() {
            known.retain(|_, family| Arc::strong_count(family) > 1);
        }
        let family = Arc::new(Family { name: name.to_owned(), changes: AtomicU32::new(0), setting: Mutex::new(()) });
        known.insert(name.to_owned(), family.clone());
        family
    }

    /// To be taken before a question is asked whose answer is to be kept. Both counts only grow, so their sum is another
    /// one after either has changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire).wrapping_add(remembered::settings())
    }

    /// Something was set on a function or kernel of this name.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        remembered::function_changed();
    }
}

/// A value and, above it, the number of changes that it is from: both change at once. 0 where there is none.
struct Slot(AtomicU64);

impl Slot {
    const FULL: u64 = 1 << 63;

    /// Of the number of changes 31 bits do: nobody keeps an answer over two thousand million changes.
    fn pack(changes: u32, value: i32) -> u64 {
        Self::FULL | u64::from(changes) << 32 | u64::from(value as u32)
    }

    fn keep(&self, changes: u32, value: i32) {
        self.0.store(Self::pack(changes, value), Ordering::Release);
    }

    fn get(&self, changes: u32) -> Option<i32> {
        let word = self.0.load(Ordering::Acquire);
        let value = word as u32 as i32;
        (word == Self::pack(changes, value)).then_some(value)
    }
}

/// What is known of the attributes of a function, or of a kernel on one device.
pub(crate) struct Answers {
    /// As the driver told them.
    told: [Slot; MAX_FUNCTION_ATTRIBUTES],
    /// As they were set through this very handle, with nothing set since on others of the family.
    set: [Slot; MAX_FUNCTION_ATTRIBUTES],
}

impl Answers {
    pub(crate) fn new() -> Self {
        let slots = || array::from_fn(|_| Slot(AtomicU64::new(0)));
        Answers { told: slots(), set: slots() }
    }

    /// Keeps what the driver told; `asked` is the number of changes before it was asked.
    pub(crate) fn keep(&self, asked: u32, attributes: &FunctionAttributes<'_>) {
        for attribute in attributes.iter() {
            if let Some(slot) = self.told.get(attribute.which as usize) {
                slot.keep(asked, attribute.value);
            }
        }
    }

    pub(crate) fn get(&self, changes: u32, which: u32) -> Option<i32> {
        self.told.get(which as usize)?.get(changes)
    }

    /// Keeps what was set through this handle.
    pub(crate) fn keep_set(&self, changes: u32, which: u32, value: i32) {
        if let Some(slot) = self.set.get(which as usize) {
            slot.keep(changes, value);
        }
    }

    /// What was set through this handle, if nothing was since.
    pub(crate) fn was_set(&self, changes: u32, which: u32) -> Option<i32> {
        self.set.get(which as usize)?.get(changes)
    }
}

#[cfg(test)]
mod tests {
    use cuda_abi::wire::ops::FunctionAttribute;

    use super::*;

    #[test]
    fn an_answer_counts_until_something_is_set_on_its_family() {
        let _alone = remembered::ALONE.lock();
        let family = Family::named(c"an_answer_counts");
        let (answers, asked) = (Answers::new(), family.changes());
        assert_eq!(answers.get(asked, 4), None);
        let told = [FunctionAttribute { which: 4, value: 0 }, FunctionAttribute { which: 8, value: -1 }];
        answers.keep(asked, &FunctionAttributes::new(&told));
        assert_eq!((answers.get(asked, 4), answers.get(asked, 8), answers.get(asked, 5)), (Some(0), Some(-1), None));
        assert_eq!(answers.get(asked, u32::MAX), None);
        Family::named(c"an_answer_counts").changed();
        assert_eq!(answers.get(family.changes(), 4), None);
        // Asked before the change: too late.
        answers.keep(asked, &FunctionAttributes::new(&told));
        assert_eq!(answers.get(family.changes(), 4), None);
    }

    #[test]
    fn what_was_set_is_known_until_another_of_the_family_is_set() {
        let _alone = remembered::ALONE.lock();
        let family = Family::named(c"what_was_set");
        let answers = Answers::new();
        family.changed();
        answers.keep_set(family.changes(), 8, 1024);
        assert_eq!(answers.was_set(family.changes(), 8), Some(1024));
        assert_eq!(answers.was_set(family.changes(), 9), None);
        family.changed();
        assert_eq!(answers.was_set(family.changes(), 8), None);
    }

    #[test]
    fn families_of_which_nothing_is_left_are_dropped() {
        let kept = Family::named(c"kept");
        for number in 0..4 * FAMILIES {
            Family::named(&CString::new(format!("family {number}")).unwrap());
        }
        assert!(KNOWN.lock().as_ref().unwrap().len() < 3 * FAMILIES);
        assert!(Arc::ptr_eq(&kept, &Family::named(c"kept")));
    }
}
