//! Connections of workers that have not shown a token yet. `S` is the connection itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::throttle::Throttle;

const REJOIN_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_REJOINING: usize = 256;
/// Connections of one worker that have not shown a token yet.
const MAX_PER_WORKER: usize = 2;

pub(crate) struct RejoinQueue<S> {
    pending: BTreeMap<u64, Pending<S>>,
    /// Of log lines about those who may not join.
    refusals: Throttle,
}

struct Pending<S> {
    socket: S,
    /// The worker's user id, where each has its own.
    uid: Option<u32>,
    deadline: Instant,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this worker has too many connections without a token")]
pub(crate) struct TooMany;

impl<S> RejoinQueue<S> {
    pub(crate) fn new() -> Self {
        Self { pending: BTreeMap::new(), refusals: Throttle::new(10, Duration::from_secs(10)) }
    }

    /// Whether a worker with this user id may have one more.
    pub(crate) fn check(&self, uid: Option<u32>) -> Result<(), TooMany> {
        let of_worker = self.pending.values().filter(|pending| uid.is_some() && pending.uid == uid).count();
        if of_worker >= MAX_PER_WORKER { Err(TooMany) } else { Ok(()) }
    }

    /// Adds a connection. Numbers must grow: where there are too many, the one that has been silent for longest goes.
    pub(crate) fn insert(&mut self, id: u64, socket: S, uid: Option<u32>, now: Instant) {
        if self.pending.len() >= MAX_REJOINING {
            self.pending.pop_first();
        }
        self.pending.insert(id, Pending { socket, uid, deadline: now + REJOIN_TIMEOUT });
    }

    pub(crate) fn get(&self, id: u64) -> Option<&S> {
        self.pending.get(&id).map(|pending| &pending.socket)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<S> {
        self.pending.remove(&id).map(|pending| pending.socket)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.deadline).min()
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.pending.retain(|_, pending| pending.deadline > now);
    }

    /// Whether a refusal is to be logged; if so, how many were not since the last that was.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<u64> {
        self.refusals.pass(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_keeps_no_other_from_joining() {
        let (mut queue, now) = (RejoinQueue::new(), Instant::now());
        for id in 1..=MAX_PER_WORKER as u64 {
            assert_eq!(queue.check(Some(7)), Ok(()));
            queue.insert(id, (), Some(7), now);
        }
        assert_eq!((queue.check(Some(7)), queue.check(Some(8))), (Err(TooMany), Ok(())));
        // Where all have one user id, the oldest makes room.
        for id in 10..10 + MAX_REJOINING as u64 {
            assert_eq!(queue.check(None), Ok(()));
            queue.insert(id, (), None, now);
        }
        assert_eq!((queue.get(1), queue.get(2), queue.get(10)), (None, None, Some(&())));
        assert_eq!(queue.next_deadline(), Some(now + REJOIN_TIMEOUT));
        queue.expire(now + REJOIN_TIMEOUT);
        assert_eq!((queue.next_deadline(), queue.remove(10)), (None, None));
    }

    #[test]
    fn strangers_do_not_fill_the_log() {
        let (mut queue, now) = (RejoinQueue::<()>::new(), Instant::now());
        assert_eq!((0..100).filter(|_| queue.refused(now).is_some()).count(), 10);
        assert_eq!(queue.refused(now + Duration::from_secs(100)), Some(90));
    }
}
