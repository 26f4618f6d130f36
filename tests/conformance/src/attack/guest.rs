//! A guest of Xen that lies: about what it offers, in what it offers, and by ending in the middle of it. Each lie must end
//! with the liar refused or its worker gone; that nobody else noticed is for the driver domain to say.

use std::time::Duration;

use cuda_abi::wire;
use idm::bootstrap::{Hello, Rendezvous};
use idm::region::Layout;
use xen::card::{self, Node};
use xen::guest;
use xen::store::Store;
use xen::sys::Place;
use xen::sys::evtchn::Channel;
use xen::sys::gntalloc::GrantAllocator;
use xen::talk;
use xen::{DomainId, PAGE};

use super::{Dice, Tally};

const PATIENCE: Duration = Duration::from_secs(60);
/// Some lies are not worth an answer.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) fn attack(dice: &mut Dice, rounds: u64) -> Tally {
    let mut store = Store::open().expect("a guest has a xenstore");
    let backend = guest::backend(&mut store, PATIENCE).expect("there is a driver domain");
    let allocator = GrantAllocator::open().expect("a guest can grant pages");
    let mut tally = Tally::default();
    not_ours(&mut store);
    for round in 0..rounds {
        // As clients call theirs: other names are not even read.
        let path = format!("{}/{:016x}", card::CLIENTS, dice.roll());
        tally.messages += 1;
        match round % 8 {
            0 => {
                let length = dice.below(2000);
                let text: Vec<u8> = (0..length).map(|_| dice.below(255) as u8 + 1).collect();
                let _ = store.write(&path, &text);
            }
            1 => {
                // Numbers that nobody gave out.
                let node = Node { card: dice.boundary() as u32, port: dice.boundary() as u32 };
                let _ = store.write(&path, node.text().as_bytes());
            }
            2 => {
                // Pages upon pages of nodes below nodes.
                for deep in 0..20 {
                    let _ = store.write(&format!("{path}/{deep}/{}", dice.roll()), b"1 2 3");
                }
            }
            3 => {
                // A real page and a real bell, and nonsense on the page, which changes while it is read.
                let (Ok(pages), Ok(bell)) = (allocator.grant(backend, 1), Channel::offer(backend)) else { continue };
                let Ok(page) = pages.map(Place::Anywhere) else { continue };
                page.copy_in(0, &dice.bytes(4096));
                let node = Node { card: pages.refs()[0], port: bell.port() };
                let _ = store.write(&path, node.text().as_bytes());
                for _ in 0..50 {
                    page.copy_in(dice.below(4000), &dice.bytes(64));
                    let _ = bell.notify();
                }
                // And gone, while somebody may look at it.
            }
            4 | 5 => lying_card(dice, &mut store, backend, &allocator, &path),
            6 => lying_talk(dice, &mut store, backend, &allocator, &path),
            _ => tally.sessions += u64::from(session(dice, &mut tally.ended)),
        }
        // Some stay: cleaning up is the other side's task.
        if dice.below(4) > 0 {
            let _ = store.remove(&path);
        }
    }
    tally
}

/// What the driver domain wrote, and what others have, can be neither written nor read by us, nor seen at all.
fn not_ours(store: &mut Store) {
    for path in ["bulkhead/backend", "bulkhead", "/tool/bulkhead/domains/1/zone", "/local/domain/0/x", "/vm/x"] {
        assert!(store.write(path, b"0").is_err(), "{path} can be written");
    }
    let own = store.read_text("domid").ok().flatten().and_then(|text| text.parse::<DomainId>().ok());
    let own = own.expect("a domain knows its number");
    assert!(store.read("/tool/bulkhead/domains/1/zone").is_err(), "the zones of others can be read");
    for other in (0..own + 8).filter(|other| *other != own) {
        for node in [card::CLIENTS, card::SERVICE, "bulkhead/backend"] {
            let path = format!("/local/domain/{other}/{node}");
            assert!(store.read(&path).is_err(), "{path} of another domain can be read");
            assert!(store.write(&path, b"0").is_err(), "{path} of another domain can be written");
        }
    }
}

/// A card as it should be, but for the pages that it lists: they are too few, not granted, or the same again and again.
fn lying_card(dice: &mut Dice, store: &mut Store, backend: DomainId, allocator: &GrantAllocator, path: &str) {
    let layout = guest::layout();
    let pages = layout.region_bytes().expect("our own layout") as usize / PAGE;
    let listed = dice.pick(&[1, pages - 1, pages]);
    let Ok(own) = allocator.grant(backend, card::pages_for(listed)) else { return };
    let (Ok(mapped), Ok(bell)) = (own.map(Place::Anywhere), Channel::offer(backend)) else { return };
    let same = own.refs()[0];
    let refs: Vec<u32> = match dice.below(3) {
        0 => vec![same; listed],
        1 => (0..listed).map(|_| dice.boundary() as u32).collect(),
        _ => (0..listed as u32).collect(),
    };
    card::fill(&mapped, own.refs(), &Hello::new(wire::fingerprint(), 0), &layout, &refs);
    if dice.below(3) == 0 {
        // Where the lists are is a lie as well.
        mapped.copy_in(256, &dice.bytes(64));
    }
    let node = Node { card: same, port: bell.port() };
    let _ = store.write(path, node.text().as_bytes());
    // While it is being read, it changes.
    for _ in 0..dice.below(50) {
        mapped.copy_in(dice.below(1024), &dice.bytes(16));
    }
    // Until it is answered, or for a while: some lies are told to somebody who listens.
    for _ in 0..dice.below(20) {
        let _ = bell.wait(Some(Duration::from_millis(20)));
    }
}

/// A conversation with the broker, of as many pages as there should be or of others, whose words and rings are written all
/// over while somebody carries what is in them.
fn lying_talk(dice: &mut Dice, store: &mut Store, backend: DomainId, allocator: &GrantAllocator, path: &str) {
    let count = dice.pick(&[talk::PAGES, talk::PAGES, talk::PAGES, 1, 700]);
    let Ok(grants) = allocator.grant(backend, count) else { return };
    let Ok(own) = allocator.grant(backend, card::pages_for(count)) else { return };
    let (Ok(pages), Ok(card), Ok(bell)) =
        (grants.map(Place::Anywhere), own.map(Place::Anywhere), Channel::offer(backend))
    else {
        return;
    };
    // Both sides talk, and both hold the pages.
    for word in [0, 64] {
        pages.word(word).store(0x0101, std::sync::atomic::Ordering::Release);
    }
    card::fill(&card, own.refs(), &Rendezvous::default(), &Layout::default(), grants.refs());
    let node = Node { card: own.refs()[0], port: bell.port() };
    let _ = store.write(path, node.text().as_bytes());
    for _ in 0..50 {
        // A message that the broker must judge.
        let at = PAGE + dice.below(8) * talk::MESSAGE;
        if at + talk::MESSAGE <= pages.len() {
            pages.copy_in(at, &dice.bytes(talk::MESSAGE));
        }
        // Positions: mostly such as there can be, so that it goes on.
        let position = match dice.below(10) {
            0 => dice.roll() as u32,
            _ => (dice.below(16) * talk::MESSAGE) as u32,
        };
        let word = dice.pick(&[128, 192, 256, 320]);
        pages.word(word).store(position, std::sync::atomic::Ordering::Release);
        let _ = bell.notify();
        let _ = bell.wait(Some(Duration::from_millis(dice.below(5) as u64)));
    }
    // And gone, with a message under way.
}

/// A worker of our own, whose region is written all over; then its pages go away under it.
fn session(dice: &mut Dice, ended: &mut u64) -> bool {
    let fingerprint = if dice.below(4) == 0 { dice.roll() } else { wire::fingerprint() };
    let hello = Hello::new(fingerprint, if dice.below(4) == 0 { dice.roll() as u32 } else { 0 });
    let Ok(connection) = guest::connect(&hello, guest::layout(), PATIENCE, ANSWER) else {
        *ended += 1;
        return false;
    };
    let (start, len) = (connection.region.address(), connection.granted.bytes());
    for _ in 0..dice.below(400) {
        // The words at the front, with heads, bells and lanes, are hit as often as all the rest.
        let within = if dice.below(2) == 0 { 256 << 10 } else { len };
        let at = dice.below(within.min(len) - 8);
        // SAFETY: in what is there of the region, which lives as long as the connection; nobody here reads it.
        unsafe { ((start + at) as *mut u8).cast::<u64>().write_unaligned(dice.boundary()) };
        let _ = connection.doorbell.channel().notify();
    }
    true
}
