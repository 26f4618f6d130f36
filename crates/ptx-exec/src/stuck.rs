//! Who waits where in a block that will never go on, in words.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Default)]
pub(crate) struct Stuck {
    pub total: u32,
    /// Threads that have left the kernel.
    pub ended: u32,
    /// The block's size.
    pub size: [u32; 3],
    /// By the barrier's number: how many it waits for (0: all that have not left), and who has come.
    pub barriers: BTreeMap<u32, (u32, Vec<u32>)>,
    /// Threads that wait for others of their warp.
    pub in_warps: u32,
}

impl Stuck {
    pub(crate) fn at_barrier(&mut self, id: u32, expected: u32, thread: u32) {
        let (counts, threads) = self.barriers.entry(id).or_default();
        *counts = expected;
        threads.push(thread);
    }
}

fn threads(count: u32) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.barriers.values().map(|(_, threads)| threads.len() as u32).sum::<u32>() + self.in_warps;
        write!(f, "{} wait for threads that never arrive", threads(waiting))?;
        let mut lead = ": ";
        for (id, (expected, come)) in &self.barriers {
            let first = come.iter().min().copied().unwrap_or(0);
            let [x, y, _] = self.size.map(|side| side.max(1));
            let (tx, ty, tz) = (first % x, first / x % y, first / x / y);
            write!(f, "{lead}{} at barrier {id} (the first is {tx},{ty},{tz})", threads(come.len() as u32))?;
            if *expected != 0 {
                write!(f, ", which waits for {expected}")?;
            }
            lead = "; ";
        }
        if self.in_warps > 0 {
            write!(f, "{lead}{} in warp functions, for lanes of their masks", threads(self.in_warps))?;
            lead = "; ";
        }
        if self.ended > 0 {
            write!(f, "{lead}{} of {} have exited", self.ended, self.total)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_who_waits_where() {
        let mut stuck = Stuck { total: 64, ended: 2, size: [8, 8, 1], in_warps: 1, ..Stuck::default() };
        for thread in [9, 10] {
            stuck.at_barrier(1, 0, thread);
        }
        stuck.at_barrier(3, 64, 40);
        assert_eq!(
            stuck.to_string(),
            "4 threads wait for threads that never arrive: 2 threads at barrier 1 (the first is 1,1,0); 1 thread at barrier 3 \
             (the first is 0,5,0), which waits for 64; 1 thread in warp functions, for lanes of their masks; 2 of 64 have \
             exited"
        );
    }
}
