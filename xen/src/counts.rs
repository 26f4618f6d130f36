//! How often this process asked the hypervisor, or its kernel on the way there, for something.
//!
//! Times measured under emulation say nothing, counts do: tests hold these to what a launch or a MiB may cost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($name:ident: $what:literal),* $(,)?) => {
        /// What was counted, up to a moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $(#[doc = $what] pub $name: u64),*
        }

        static NOW: Live = Live { $($name: AtomicU64::new(0)),* };

        struct Live {
            $($name: AtomicU64),*
        }

        /// What this process has done so far.
        pub fn read() -> Counts {
            Counts { $($name: NOW.$name.load(Relaxed)),* }
        }

        impl Counts {
            /// What was added since an earlier reading.
            pub fn since(&self, earlier: &Counts) -> Counts {
                Counts { $($name: self.$name - earlier.$name),* }
            }
        }

        $(pub(crate) fn $name(by: usize) {
            NOW.$name.fetch_add(by as u64, Relaxed);
        })*
    };
}

counters! {
    pages_granted: "Pages that were granted to another domain.",
    grant_batches: "Requests that granted pages.",
    pages_mapped: "Pages of another domain that were asked to be mapped.",
    map_batches: "Requests that mapped pages.",
    notifications: "Events that were sent: a hypercall each.",
    suppressed: "Events that were not sent, because one was under way.",
    events: "Events that arrived.",
}
