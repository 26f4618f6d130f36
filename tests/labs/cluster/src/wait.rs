//! Waiting for what must come about. The bound is there for what never does, far above what anything takes.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(150);

/// Asks until there is an answer. An error ends it at once.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if start.elapsed() > PATIENCE {
            bail!("{what}: not within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(PAUSE);
    }
}
