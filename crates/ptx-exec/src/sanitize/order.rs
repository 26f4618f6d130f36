//! What each thread of a block knows of what others have done, as stamps.

/// Lanes of a warp; also the most warps of a block.
const LANES: usize = 32;

/// Who knows what in a block of threads.
#[derive(Default)]
pub(super) struct Order {
    /// Everybody knows what the block did up to here.
    block: u32,
    /// By thread: it knows what anybody did up to here, in this block or another one.
    until: Vec<u32>,
    /// By thread: what it knows of lanes of its own warp. Empty until lanes synchronise.
    lanes: Vec<[u32; LANES]>,
    /// By thread: what it knows of whole warps. Empty until a barrier counts threads.
    warps: Vec<[u32; LANES]>,
}

impl Order {
    pub(super) fn begin(&mut self, threads: usize) {
        self.block = 0;
        self.until.clear();
        self.until.resize(threads, 0);
        self.lanes.clear();
        self.warps.clear();
    }

    /// Whether a thread knows what anybody did at a stamp.
    pub(super) fn knows(&self, thread: usize, stamp: u32) -> bool {
        self.until.get(thread).is_some_and(|until| stamp <= *until)
    }

    /// Whether a thread knows what another one of its block did at a stamp.
    pub(super) fn knows_of(&self, thread: usize, other: usize, stamp: u32) -> bool {
        let of_lanes = || {
            let lanes = self.lanes.get(thread).filter(|_| thread / LANES == other / LANES);
            lanes.is_some_and(|lanes| stamp <= lanes[other % LANES])
        };
        let of_warps = || self.warps.get(thread).is_some_and(|warps| stamp <= warps[other / LANES % LANES]);
        stamp <= self.block || self.knows(thread, stamp) || of_lanes() || of_warps()
    }

    /// A thread read what was written at a stamp, in a way that synchronises.
    pub(super) fn acquire(&mut self, thread: usize, stamp: u32) {
        if let Some(until) = self.until.get_mut(thread) {
            *until = stamp.max(*until);
        }
    }

    /// All threads of the block have met.
    pub(super) fn met(&mut self, now: u32) {
        self.block = now;
        let most = self.until.iter().copied().max().unwrap_or(0);
        self.until.fill(most);
    }

    /// Some threads have met at a barrier that counts; with whether they waited for the others.
    pub(super) fn some_met(&mut self, now: u32, threads: &[(usize, bool)]) {
        if self.warps.is_empty() {
            self.warps.resize(self.until.len(), [0; LANES]);
        }
        let mut known = [0; LANES];
        let mut most = 0;
        for (thread, _) in threads {
            join(&mut known, &self.warps[*thread]);
            most = most.max(self.until[*thread]);
        }
        for (thread, _) in threads {
            known[*thread / LANES % LANES] = now;
        }
        for (thread, _) in threads.iter().filter(|(_, waited)| *waited) {
            self.warps[*thread] = known;
            self.acquire(*thread, most);
        }
    }

    /// Lanes have done something together.
    pub(super) fn lanes_met(&mut self, now: u32, threads: &[usize]) {
        if self.lanes.is_empty() {
            self.lanes.resize(self.until.len(), [0; LANES]);
        }
        // A list may be of lanes of several warps, where the end of a thread completed what they did.
        for chunk in threads.chunk_by(|one, other| one / LANES == other / LANES) {
            let (mut lanes, mut warps, mut most) = ([0; LANES], [0; LANES], 0);
            for thread in chunk {
                join(&mut lanes, &self.lanes[*thread]);
                self.warps.get(*thread).inspect(|known| join(&mut warps, known));
                most = most.max(self.until[*thread]);
            }
            chunk.iter().for_each(|thread| lanes[thread % LANES] = now);
            for thread in chunk {
                self.lanes[*thread] = lanes;
                self.warps.get_mut(*thread).into_iter().for_each(|known| *known = warps);
                self.acquire(*thread, most);
            }
        }
    }
}

fn join(into: &mut [u32; LANES], other: &[u32; LANES]) {
    into.iter_mut().zip(other).for_each(|(into, other)| *into = (*into).max(*other));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_goes_on_through_others() {
        let mut order = Order::default();
        order.begin(96);
        assert!(!order.knows_of(0, 1, 1));
        order.lanes_met(5, &[0, 1]);
        assert!(order.knows_of(0, 1, 5) && !order.knows_of(0, 1, 6) && !order.knows_of(0, 2, 5));
        order.lanes_met(7, &[1, 2]);
        assert!(order.knows_of(2, 0, 5) && !order.knows_of(2, 0, 6) && order.knows_of(2, 1, 7));
        order.some_met(9, &[(2, true), (40, true), (70, false)]);
        assert!(order.knows_of(2, 41, 9) && order.knows_of(40, 70, 9) && !order.knows_of(70, 40, 9));
        order.lanes_met(11, &[40, 41]);
        assert!(order.knows_of(41, 3, 9), "what 40 learned");
        order.acquire(3, 20);
        assert!(order.knows(3, 20) && !order.knows(4, 20));
        order.met(30);
        assert!(order.knows_of(95, 0, 30) && order.knows(4, 20) && !order.knows(4, 21));
    }
}
