use super::*;
use crate::sharing::Grants;
use control::grant::{Access, Grant};

/// What each worker of these tests pays.
const CHARGED: u64 = 1000;

fn zone(name: &str) -> ZoneName {
    name.parse().unwrap()
}

fn memory(size: u64) -> Shared {
    Shared { kind: shared::MEMORY, size, len: size, ..Shared::default() }
}

fn file() -> Option<Foreign> {
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    Some(Lane::default().take(file))
}

fn export(exports: &mut Exports, worker: u64, zone: &ZoneName, size: u64) -> Token {
    exports.add(Asker { worker, zone, charged: CHARGED }, 0, memory(size), [0; 16], file()).unwrap()
}

fn open(
    exports: &mut Exports,
    worker: u64,
    zone: &ZoneName,
    token: &Token,
    grants: &Grants,
) -> Result<u64, ShareError> {
    let asker = Asker { worker, zone, charged: CHARGED };
    let opened = exports.find(asker, token, shared::MEMORY, grants.at(100))?;
    exports.opened(asker, token, opened.pays);
    Ok(opened.pays)
}

#[test]
fn a_zone_shares_with_itself_and_pays_once_to_the_end() {
    let (mut exports, none, a) = (Exports::new(), Grants::default(), zone("a"));
    let token = export(&mut exports, 1, &a, 100);
    assert_eq!(open(&mut exports, 1, &a, &token, &none), Err(ShareError::Own));
    assert_eq!(open(&mut exports, 2, &a, &token, &none), Ok(0));
    assert_eq!(open(&mut exports, 3, &a, &token, &none), Ok(0));
    assert_eq!(exports.unpaid(2, |_, _| CHARGED).get(&0).copied().unwrap_or(0), 100);
    // Each that pays is followed by the next that has it open.
    assert_eq!(exports.end_worker(1), [Payment { worker: 2, token, gpu: 0, bytes: 100 }]);
    assert_eq!(open(&mut exports, 4, &a, &token, &none), Err(ShareError::Unknown));
    assert_eq!(exports.unpaid(2, |_, _| CHARGED).get(&0).copied().unwrap_or(0), 0);
    assert_eq!(
        exports.close(2, &token),
        Closed { gpu: 0, paid: 100, payment: Some(Payment { worker: 3, token, gpu: 0, bytes: 100 }) }
    );
    assert_eq!(exports.close(2, &token), Closed::default());
    assert_eq!(exports.end_worker(3), []);
    assert!(exports.by_token.is_empty() && exports.descriptors.is_empty());
}

#[test]
fn who_does_not_pay_leaves_without_a_word() {
    let (mut exports, none, a) = (Exports::new(), Grants::default(), zone("a"));
    let token = export(&mut exports, 1, &a, 100);
    for worker in [2, 3] {
        open(&mut exports, worker, &a, &token, &none).unwrap();
    }
    assert_eq!(exports.withdraw(2, &token), None, "it is not his");
    assert_eq!(exports.withdraw(1, &token), Some(Payment { worker: 2, token, gpu: 0, bytes: 100 }));
    assert_eq!(exports.end_worker(3), []);
    assert_eq!(exports.close(2, &token), Closed { gpu: 0, paid: 100, payment: None });
    assert!(exports.by_token.is_empty());
}

#[test]
fn another_zone_needs_a_grant_and_pays_for_itself() {
    let (mut exports, mut grants) = (Exports::new(), Grants::default());
    let (a, b) = (zone("a"), zone("b"));
    let token = export(&mut exports, 1, &a, 100);
    assert_eq!(open(&mut exports, 2, &b, &token, &grants), Err(ShareError::Denied));
    grants.add(Grant { from: b.clone(), to: a.clone(), access: Access::ReadWrite, expires: None, configured: false });
    assert_eq!(open(&mut exports, 2, &b, &token, &grants), Err(ShareError::Denied), "the other way round");
    grants.add(Grant {
        from: a.clone(),
        to: b.clone(),
        access: Access::ReadOnly,
        expires: Some(1),
        configured: false,
    });
    assert_eq!(open(&mut exports, 2, &b, &token, &grants), Err(ShareError::Denied), "expired");
    grants.add(Grant { from: a.clone(), to: b.clone(), access: Access::ReadOnly, expires: None, configured: false });
    let found = exports
        .find(Asker { worker: 2, zone: &b, charged: CHARGED }, &token, shared::MEMORY, grants.at(100))
        .unwrap();
    assert_eq!((found.pays, found.details.flags), (100, shared_flags::READ_ONLY | shared_flags::OTHER_ZONE));
    assert_eq!(open(&mut exports, 2, &b, &token, &grants), Ok(100));
    assert_eq!(open(&mut exports, 2, &b, &token, &grants), Ok(0), "it pays once");
    assert_eq!(exports.importers(&a, &b), BTreeSet::from([2]));
    assert_eq!(exports.end_worker(1), [], "it goes on paying for itself");
    assert_eq!(exports.close(2, &token), Closed { gpu: 0, paid: 100, payment: None });
}

#[test]
fn what_has_neighbours_stays_in_its_zone() {
    let (mut exports, mut grants) = (Exports::new(), Grants::default());
    let (a, b) = (zone("a"), zone("b"));
    grants.add(Grant { from: a.clone(), to: b.clone(), access: Access::ReadWrite, expires: None, configured: false });
    let details = Shared { flags: shared_flags::HAS_NEIGHBOURS, ..memory(100) };
    let token = exports.add(Asker { worker: 1, zone: &a, charged: CHARGED }, 0, details, [0; 16], file()).unwrap();
    assert_eq!(open(&mut exports, 2, &b, &token, &grants), Err(ShareError::Denied));
    assert_eq!(open(&mut exports, 3, &a, &token, &grants), Ok(0));
}

#[test]
fn tokens_that_are_wrong_in_any_way_open_nothing() {
    let (mut exports, none, a) = (Exports::new(), Grants::default(), zone("a"));
    let token = export(&mut exports, 1, &a, 100);
    for bit in 0..128 {
        let mut altered = token;
        altered[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(open(&mut exports, 2, &a, &altered, &none), Err(ShareError::Unknown));
    }
    let asker = Asker { worker: 2, zone: &a, charged: CHARGED };
    for kind in [0, shared::PHYSICAL, shared::PAGE, shared::EVENT, shared::POOLED, u64::MAX] {
        assert_eq!(exports.find(asker, &token, kind, none.at(100)).unwrap_err(), ShareError::Unknown);
    }
    exports.withdraw(1, &token);
    assert_eq!(open(&mut exports, 2, &a, &token, &none), Err(ShareError::Unknown));
    assert_ne!(export(&mut exports, 1, &a, 100), token);
}

#[test]
fn absurd_offers_end_the_worker_and_many_are_refused() {
    let (mut exports, a) = (Exports::new(), zone("a"));
    let asker = Asker { worker: 1, zone: &a, charged: CHARGED };
    let wrong = [
        (memory(100), None),
        (Shared { offset: 1, ..memory(100) }, file()),
        (Shared { offset: u64::MAX, ..memory(100) }, file()),
        (Shared { kind: 99, ..memory(100) }, file()),
        // More than it has paid for.
        (memory(CHARGED + 1), file()),
        (memory(1 << 63), file()),
        (Shared { kind: shared::EVENT, ..memory(100) }, file()),
        // A page that could shrink.
        (Shared { kind: shared::PAGE, ..memory(PAGE as u64) }, file()),
    ];
    for (details, fd) in wrong {
        assert_eq!(exports.add(asker, 0, details, [0; 16], fd), Err(ShareError::Malformed), "{details:?}");
    }
    let event = Shared { kind: shared::EVENT, ..memory(100) };
    assert_eq!(exports.add(asker, 0, event, [7; 16], None), Err(ShareError::Unknown));
    // An eighth of them for each zone.
    exports.most_descriptors = 24;
    for _ in 0..3 {
        export(&mut exports, 1, &a, 1);
    }
    assert_eq!(exports.add(asker, 0, memory(1), [0; 16], file()), Err(ShareError::Refused));
    assert_eq!(exports.end_worker(1), []);
    export(&mut exports, 2, &a, 1);
}

#[test]
fn a_zone_is_remembered_only_so_far() {
    let (mut exports, a, b) = (Exports::new(), zone("a"), zone("b"));
    let event = Shared { kind: shared::EVENT, size: PAGE as u64, offset: 128, len: 128, flags: 0 };
    let page = Shared { kind: shared::PAGE, size: PAGE as u64, ..Shared::default() };
    let add = |exports: &mut Exports, worker, zone, details, token| {
        let fd = (details == page).then(|| Lane::default().take(event_page()));
        exports.add(Asker { worker, zone, charged: CHARGED }, 0, details, token, fd)
    };
    for worker in 1..=4 {
        let token = add(&mut exports, worker, &a, page, [0; 16]).unwrap();
        let added = (0..).take_while(|_| add(&mut exports, worker, &a, event, token).is_ok()).count();
        assert_eq!(added, EXPORTS_PER_WORKER - 1);
    }
    assert_eq!(add(&mut exports, 5, &a, page, [0; 16]), Err(ShareError::Refused), "of one zone");
    let token = export(&mut exports, 6, &b, 1);
    assert_eq!(open(&mut exports, 5, &a, &token, &Grants::default()), Err(ShareError::Denied));
    assert_eq!(open(&mut exports, 7, &b, &token, &Grants::default()), Ok(0), "others have their own");
    exports.end_worker(1);
    assert!(add(&mut exports, 5, &a, page, [0; 16]).is_ok());
}

fn event_page() -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let page = rustix::fs::memfd_create("page", flags).unwrap();
    rustix::fs::ftruncate(&page, PAGE as u64).unwrap();
    rustix::fs::fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    page
}

#[test]
fn what_is_mapped_of_others_counts_no_further_than_they_pay() {
    let (mut exports, none, a) = (Exports::new(), Grants::default(), zone("a"));
    // Its own memory, opened again, is nobody else's to pay.
    let physical = Shared { kind: shared::PHYSICAL, ..memory(500) };
    let asker = Asker { worker: 1, zone: &a, charged: CHARGED };
    let own = exports.add(asker, 0, physical, [0; 16], file()).unwrap();
    exports.opened(asker, &own, 0);
    assert_eq!(exports.unpaid(1, |_, _| CHARGED).get(&0).copied().unwrap_or(0), 0);
    // Many tokens for the same memory of a sibling do not make it more.
    for _ in 0..5 {
        let token = export(&mut exports, 2, &a, 400);
        open(&mut exports, 1, &a, &token, &none).unwrap();
    }
    assert_eq!(exports.unpaid(1, |_, _| CHARGED).get(&0).copied().unwrap_or(0), CHARGED);
    assert_eq!(exports.unpaid(1, |_, _| 300).get(&0).copied().unwrap_or(0), 300);
}

#[test]
fn the_end_of_a_grant_finds_who_has_events() {
    let (mut exports, mut grants) = (Exports::new(), Grants::default());
    let (a, b, c) = (zone("a"), zone("b"), zone("c"));
    for to in [&b, &c] {
        let (from, to) = (a.clone(), to.clone());
        grants.add(Grant { from, to, access: Access::ReadWrite, expires: None, configured: false });
    }
    let owner = Asker { worker: 1, zone: &a, charged: CHARGED };
    let details = Shared { kind: shared::PAGE, size: PAGE as u64, ..Shared::default() };
    let page = exports.add(owner, 0, details, [0; 16], Some(Lane::default().take(event_page()))).unwrap();
    let event = Shared { kind: shared::EVENT, size: PAGE as u64, offset: 128, len: 128, flags: 0 };
    let event = exports.add(owner, 0, event, page, None).unwrap();
    for (worker, zone) in [(2, &b), (3, &c)] {
        let other = Asker { worker, zone, charged: CHARGED };
        let opened = exports.find(other, &event, shared::EVENT, grants.at(100)).unwrap();
        exports.opened(other, &event, opened.pays);
    }
    assert_eq!(exports.importers(&a, &b), BTreeSet::from([2]), "the grant to another zone still stands");
    assert_eq!(exports.importers(&a, &c), BTreeSet::from([3]));
    assert_eq!(exports.importers(&b, &a), BTreeSet::new());
}

#[test]
fn nobody_waits_for_events_of_the_dead() {
    let page = event_page();
    let (mut exports, none, a) = (Exports::new(), Grants::default(), zone("a"));
    let asker = Asker { worker: 1, zone: &a, charged: CHARGED };
    let details = Shared { kind: shared::PAGE, size: PAGE as u64, ..Shared::default() };
    let token =
        exports.add(asker, 0, details, [0; 16], Some(Lane::default().take(page.try_clone().unwrap()))).unwrap();
    let lane = exports.pages[&a].clone();
    let event = Shared { kind: shared::EVENT, size: PAGE as u64, offset: 128, len: 128, flags: 0 };
    let event = exports.add(asker, 0, event, token, None).unwrap();
    let opened =
        exports.find(Asker { worker: 2, zone: &a, charged: CHARGED }, &event, shared::EVENT, none.at(100)).unwrap();
    assert_eq!((opened.page, opened.pays), (token, 0));
    exports.end_worker(1);
    assert!(
        exports.find(Asker { worker: 2, zone: &a, charged: CHARGED }, &event, shared::EVENT, none.at(100)).is_err()
    );
    // What its worker does to the page meanwhile holds up nobody but those who close its zone's pages.
    let begun = std::time::Instant::now();
    while lane.waiting() > 0 {
        assert!(begun.elapsed().as_secs() < 60, "it is never closed");
        std::thread::yield_now();
    }
    let mut word = [0u64; 2];
    for cell in (0..PAGE).step_by(event_page::CELL) {
        rustix::io::pread(&page, word.as_mut_bytes(), (cell + event_page::FIRST_SLOT - 8) as u64).unwrap();
        assert_eq!(word, [0, LONG_REACHED]);
    }
}

#[test]
fn a_page_of_events_has_its_size_for_good() {
    let (mut exports, a) = (Exports::new(), zone("a"));
    let details = Shared { kind: shared::PAGE, size: PAGE as u64, ..Shared::default() };
    let mut add = |size: usize, seals: SealFlags| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let page = rustix::fs::memfd_create("page", flags).unwrap();
        rustix::fs::ftruncate(&page, size as u64).unwrap();
        rustix::fs::fcntl_add_seals(&page, seals).unwrap();
        let asker = Asker { worker: 1, zone: &a, charged: CHARGED };
        exports.add(asker, 0, details, [0; 16], Some(Lane::default().take(page))).is_ok()
    };
    assert!(add(PAGE, SealFlags::SHRINK | SealFlags::GROW));
    assert!(!add(PAGE, SealFlags::SHRINK), "it could grow");
    assert!(!add(PAGE, SealFlags::GROW), "it could shrink");
    // Work on a large one takes long, and a writer waits for that.
    assert!(!add(PAGE << 10, SealFlags::SHRINK | SealFlags::GROW));
}
