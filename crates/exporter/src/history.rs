//! What the status page shows of the time before it was opened: a look at the zones every few seconds, kept for some minutes.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use control::admin::Status;
use serde_json::{Value, json};

/// Between two looks: a broker with hundreds of workers has little to do for one.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// Until the next look where the broker did not answer.
pub(crate) const AGAIN: Duration = Duration::from_millis(500);
const KEEP: usize = 60;
/// Of more zones those are kept that hold most memory.
const MAX_ZONES: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Look>);

#[derive(Debug)]
struct Look {
    at: Instant,
    zones: BTreeMap<String, Figures>,
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    memory: u64,
    calls: u64,
    gpu_time: Option<u64>,
}

impl History {
    pub(crate) fn look(&mut self, status: &Status, at: Instant) {
        let mut zones: Vec<_> = status.zones.iter().collect();
        zones.sort_by_key(|zone| std::cmp::Reverse(zone.used));
        let figures = zones.into_iter().take(MAX_ZONES).map(|zone| {
            let (calls, gpu_time) = (zone.stats.calls, zone.stats.gpu_time_ns);
            (zone.name.to_string(), Figures { memory: zone.used, calls, gpu_time })
        });
        self.0.push_back(Look { at, zones: figures.collect() });
        if self.0.len() > KEEP {
            self.0.pop_front();
        }
    }

    /// Looks from the oldest on, each with its age: the page's clock is another one.
    pub(crate) fn json(&self, host: &str, now: Instant) -> Value {
        let zone = |figures: &Figures| {
            let Figures { memory, calls, gpu_time } = figures;
            json!({ "memory": memory, "calls": calls, "gpu_time_ns": gpu_time })
        };
        let look = |look: &Look| {
            let age = u64::try_from(now.saturating_duration_since(look.at).as_millis()).unwrap_or(u64::MAX);
            let zones: BTreeMap<&String, Value> = look.zones.iter().map(|(name, it)| (name, zone(it))).collect();
            json!({ "age_ms": age, "zones": zones })
        };
        json!({ "host": host, "looks": self.0.iter().map(look).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::status;

    #[test]
    fn the_oldest_look_goes_first_and_goes_first_away() {
        let (mut history, start) = (History::default(), Instant::now());
        for count in 0..KEEP as u32 + 2 {
            history.look(&status(), start + EVERY * count);
        }
        let now = start + EVERY * (KEEP as u32 + 1);
        let told = history.json("node-1", now);
        let looks = told["looks"].as_array().unwrap();
        assert_eq!((told["host"].as_str(), looks.len()), (Some("node-1"), KEEP));
        assert_eq!((looks[KEEP - 1]["age_ms"].as_u64(), looks[KEEP - 2]["age_ms"].as_u64()), (Some(0), Some(5000)));
        assert_eq!(looks[0]["zones"]["a"]["memory"], status().zones[0].used);
        assert!(looks[0]["zones"]["b"]["gpu_time_ns"].is_null(), "what is not measured is not 0");
    }

    #[test]
    fn many_zones_do_not_fill_the_memory() {
        let mut many = status();
        let zone = many.zones[0].clone();
        let named = |at: usize| control::admin::ZoneStatus {
            name: format!("z{at}").parse().unwrap(),
            used: at as u64,
            ..zone.clone()
        };
        many.zones = (0..MAX_ZONES + 10).map(named).collect();
        let mut history = History::default();
        history.look(&many, Instant::now());
        let told = history.json("", Instant::now());
        let zones = told["looks"][0]["zones"].as_object().unwrap();
        assert!(zones.len() == MAX_ZONES && !zones.contains_key("z9") && zones.contains_key("z10"));
    }
}
