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

        $(#[doc = $what] pub fn $name(by: usize) {
            NOW.$name.fetch_add(by as u64, Relaxed);
        })*
    };
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pages_granted, grant_batches, notifications, suppressed, events, bytes_copied, .. } = self;
        write!(f, "grant_requests={grant_batches} pages_granted={pages_granted} events_sent={notifications} ")?;
        write!(f, "events_saved={suppressed} events_received={events} bytes_copied={bytes_copied}")
    }
}

counters! {
    pages_granted: "Pages that were granted to another domain.",
    grant_batches: "Requests that granted pages.",
    pages_mapped: "Pages of another domain that were asked to be mapped.",
    map_batches: "Requests that mapped pages.",
    notifications: "Events that were sent: a hypercall each.",
    suppressed: "Events that were not sent, because one was under way.",
    events: "Events that arrived.",
    bytes_copied: "Bytes that this process copied into shared memory or out of it, on their way to the GPU or from it.",
}
