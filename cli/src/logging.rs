//! Logs go to stderr, one line each.

use tracing_subscriber::filter::LevelFilter;

/// `$BULKHEAD_LOG` decides, or what the verb wants.
pub fn start(default: LevelFilter) {
    let level = std::env::var(proxy::env_vars::LOG).ok().and_then(|level| level.parse().ok()).unwrap_or(default);
    // A second subscriber in one process is refused; the first serves.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .with_writer(std::io::stderr)
        .try_init();
}
