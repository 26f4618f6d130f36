//! What Prometheus is told is what programs did: the same load in numbers, from outside and over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use conformance::harness::{Honest, Place, Proxy, ZONE_MEMORY, until};

const MIB: u64 = 1 << 20;
/// What one `compute` copies each way.
const COPIED: u64 = 400_000;

/// Samples of one scrape.
struct Scrape(String);

impl Scrape {
    fn of(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).expect("the endpoint");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        Self(text)
    }

    /// The value of a zone's sample, with another label where there is one.
    fn zone(&self, metric: &str, zone: &str, label: &str) -> Option<u64> {
        let line = self.0.lines().find(|line| {
            line.starts_with(&format!("{metric}{{"))
                && line.contains(&format!("zone=\"{zone}\""))
                && line.contains(label)
        })?;
        Some(line.rsplit(' ').next()?.parse::<f64>().ok()? as u64)
    }
}

#[test]
fn a_scrape_tells_what_tenants_did() {
    let place = Place::new(env!("CARGO_BIN_EXE_conformance"));
    let proxy = Proxy::start_with(&place, &["a", "b"], &["--http", "127.0.0.1:0", "--log-format", "json"]);
    let mut address = None;
    until("the endpoint is named in the log", || {
        let log = proxy.log();
        let line = log.lines().find(|line| line.contains("metrics and status page")).map(str::to_owned);
        address = line.and_then(|line| line.split("\"address\":\"").nth(1)?.split('"').next()?.parse().ok());
        address.is_some()
    });
    let address: SocketAddr = address.expect("an address");
    let (mut busy, mut idle) = (Honest::start(&place, &proxy.socket("a")), Honest::start(&place, &proxy.socket("b")));
    let before = Scrape::of(address);
    let computed = 5;
    for _ in 0..computed {
        assert_eq!(busy.ask("compute"), "ok");
    }
    assert_eq!(busy.ask(&format!("alloc {}", 32 * MIB)), "ok");
    assert_eq!(busy.ask(&format!("alloc {}", 2 * ZONE_MEMORY)), "error 2");
    assert_eq!(busy.ask("sync"), "ok");
    // What is served may be a moment old.
    let mut after = Scrape::of(address);
    let launches = |scrape: &Scrape| scrape.zone("bulkhead_zone_launches_total", "a", "").unwrap_or(0);
    until("the launches are counted", || {
        after = Scrape::of(address);
        launches(&after) >= launches(&before) + computed
    });
    let grown = |metric: &str, zone: &str, label: &str| {
        let read = |scrape: &Scrape| scrape.zone(metric, zone, label).unwrap_or_else(|| panic!("{metric} of {zone}"));
        read(&after) - read(&before)
    };
    assert_eq!(grown("bulkhead_zone_launches_total", "a", ""), computed);
    assert_eq!(grown("bulkhead_zone_copied_bytes_total", "a", "to_device"), computed * COPIED);
    assert_eq!(grown("bulkhead_zone_copied_bytes_total", "a", "from_device"), computed * COPIED);
    assert!(grown("bulkhead_zone_copies_total", "a", "") >= 2 * computed);
    assert!(grown("bulkhead_zone_calls_total", "a", "") >= 3 * computed);
    assert_eq!(grown("bulkhead_zone_memory_bytes", "a", ""), 32 * MIB);
    assert!(grown("bulkhead_zone_denials_total", "a", "\"memory\"") >= 1);
    assert_eq!(after.zone("bulkhead_zone_memory_limit_bytes", "a", ""), Some(ZONE_MEMORY));
    assert_eq!(after.zone("bulkhead_zone_workers", "a", ""), Some(1));
    for metric in ["launches_total", "copies_total", "calls_total", "memory_bytes"] {
        assert_eq!(grown(&format!("bulkhead_zone_{metric}"), "b", ""), 0, "{metric}: the other zone did nothing");
    }
    assert_eq!(idle.ask("compute"), "ok");
    // Totals outlive who made them; what is in use does not.
    busy.kill();
    idle.quit();
    proxy.zone_is_empty("a");
    proxy.zone_is_empty("b");
    let launches = |scrape: &Scrape, zone| scrape.zone("bulkhead_zone_launches_total", zone, "");
    let mut last = Scrape::of(address);
    until("the last launch is counted", || {
        last = Scrape::of(address);
        launches(&last, "b") == launches(&after, "b").map(|count| count + 1)
    });
    assert_eq!(launches(&last, "a"), launches(&after, "a"));
    assert_eq!(last.zone("bulkhead_zone_memory_bytes", "a", ""), Some(0));
    assert_eq!(last.zone("bulkhead_zone_workers", "a", ""), Some(0));
    proxy.stop();
    place.nothing_is_left();
}
