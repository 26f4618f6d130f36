//! Figures, and how they are printed.

use std::fmt;
use std::time::{Duration, Instant};

use crate::BenchError;

/// Of one kind of round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    pub p50: Duration,
    pub p99: Duration,
}

impl Latency {
    pub(crate) fn measure(
        rounds: usize,
        mut round: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        // A tenth more, first, to warm up caches and the choice between spinning and sleeping.
        for _ in 0..rounds / 10 {
            round()?;
        }
        let mut times = Vec::with_capacity(rounds.max(1));
        for _ in 0..rounds.max(1) {
            let start = Instant::now();
            round()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        Ok(Self { p50: at(50), p99: at(99) })
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Over a Unix seqpacket socket, for comparison.
    pub socket: Latency,
    /// Through the ring, answered by the executor.
    pub call: Latency,
    /// Through the lane, answered by the lane's thread.
    pub block: Latency,
    pub posts_per_second: f64,
    /// Parts of a core while both sides wait.
    pub idle_client: f64,
    pub idle_server: f64,
}

impl Report {
    /// Of the median round trip through the ring, in terms of the socket's.
    pub fn ratio(&self) -> f64 {
        self.call.p50.as_secs_f64() / self.socket.p50.as_secs_f64()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        writeln!(f, "round trip, {} bytes      p50        p99", crate::PAYLOAD)?;
        for (name, latency) in [("unix socket", self.socket), ("idm call", self.call), ("idm block", self.block)] {
            writeln!(f, "  {name:<18} {:>8.2} us {:>8.2} us", micros(latency.p50), micros(latency.p99))?;
        }
        writeln!(f, "  idm call / socket  {:>8.3}", self.ratio())?;
        writeln!(f, "posted messages      {:>8.2} million/s", self.posts_per_second / 1e6)?;
        write!(
            f,
            "idle                 {:>8.2} % of a core (client), {:.2} % (server)",
            self.idle_client * 100.0,
            self.idle_server * 100.0
        )
    }
}
