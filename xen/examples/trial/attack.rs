//! What a guest can do that no client would. Each attack must end with the attacker refused or its worker gone; that
//! nobody else noticed is for the driver domain to say.

use std::time::Duration;

use idm::bootstrap::Hello;
use idm::region::Layout;
use xen::card::{self, Node};
use xen::store::Store;
use xen::sys::evtchn::Channel;
use xen::sys::gntalloc::GrantAllocator;
use xen::sys::{Mapping, Place};

const SHORT: Duration = Duration::from_secs(20);

/// Not random, so that a failure can be had again.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]));
    }
}

pub fn run(which: &str) {
    match which {
        "nodes" => nodes(),
        "cards" => cards(),
        _ => panic!("unknown attack {which}"),
    }
}

fn leave(store: &mut Store, number: u64, value: &[u8]) -> String {
    let path = format!("{}/{number:016x}", card::CLIENTS);
    store.write(&path, value).unwrap();
    path
}

/// Nodes that make no sense, many of them.
fn nodes() {
    let mut store = Store::open().unwrap();
    xen::guest::backend(&mut store, SHORT).unwrap();
    let values: [&[u8]; 9] =
        [b"", b"1", b"1 2", b"2 1 1", b"1 4294967295 1", b"1 0 0", b"1 8 99999", b"\xff\xff\xff", &[b'1'; 3000]];
    for round in 0..200 {
        leave(&mut store, round, values[round as usize % values.len()]);
    }
    // Names and folders that no client makes.
    for path in ["data/bulkhead/..", "data/bulkhead/x/y/z", "data/bulkhead/0000000000000000/0000000000000001"] {
        let _ = store.write(path, b"1 8 8");
    }
    // The driver domain's own nodes are not ours to write.
    for path in ["bulkhead/backend", "bulkhead", "/tool/bulkhead/domains/1/zone", "/local/domain/0/x"] {
        assert!(store.write(path, b"0").is_err(), "{path} can be written");
    }
    assert!(store.read("/tool/bulkhead/domains/1/zone").is_err(), "the zones of others can be read");
    let _ = store.remove(card::CLIENTS);
}

/// Cards that say one thing and grant another.
fn cards() {
    let mut store = Store::open().unwrap();
    let backend = xen::guest::backend(&mut store, SHORT).unwrap();
    let allocator = GrantAllocator::open().unwrap();
    let layout = Layout { lanes: 1, ring_bytes: 4096, bulk_bytes: 0, ..Layout::default() };
    let pages = layout.region_bytes().unwrap() as usize / xen::PAGE;
    let hello = Hello::new(0, 0);
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    for round in 0..40u64 {
        let own = allocator.grant(backend, card::pages_for(pages)).unwrap();
        let region = allocator.grant(backend, pages).unwrap();
        let card = own.map(Place::Anywhere).unwrap();
        let mut refs = region.refs().to_vec();
        match round % 5 {
            // References that were never granted, and the same one again and again.
            0 => refs.iter_mut().for_each(|number| *number = noise.next() as u32 % 100_000),
            1 => refs.fill(region.refs()[0]),
            // Fewer pages than the layout says.
            2 => refs.truncate(pages / 2),
            _ => {}
        }
        card::fill(&card, own.refs(), &hello, &layout, &refs);
        match round % 5 {
            3 => scribble_on(&card, &mut noise, xen::PAGE),
            4 => card.copy_in(256, &(noise.next() as u32).to_le_bytes()),
            _ => {}
        }
        let channel = Channel::offer(backend).unwrap();
        let node = Node { card: own.refs()[0], port: channel.port() };
        let path = leave(&mut store, 0x1000 + round, node.text().as_bytes());
        // While it is being read, it changes.
        for _ in 0..50 {
            scribble_on(&card, &mut noise, 64);
        }
        std::thread::sleep(Duration::from_millis(20));
        if round % 2 == 0 {
            let _ = store.remove(&path);
        }
    }
    let _ = store.remove(card::CLIENTS);
}

fn scribble_on(card: &Mapping, noise: &mut Noise, len: usize) {
    let mut bytes = vec![0; len];
    noise.fill(&mut bytes);
    card.copy_in(0, &bytes);
}
