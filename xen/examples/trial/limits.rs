//! What a guest may grant, and what happens beyond.

use xen::sys::Place;
use xen::sys::gntalloc::GrantAllocator;

pub fn limits() {
    let allocator = GrantAllocator::open().unwrap();
    let before = limit();
    set_limit(64);
    assert!(allocator.grant(0, 65).is_err(), "the kernel's limit holds");
    drop(allocator.grant(0, 64).unwrap());
    set_limit(before.max(100_000));
    for pages in [1000, 10_000, 20_000, 30_000, 40_000, 20_000, 1000, 1, 1] {
        println!("limits: {pages}: {:?}", allocator.grant(0, pages).map(|grants| grants.len()));
    }
    for second in 0..12 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        println!("limits: after {second} s: {:?}", allocator.grant(0, 1000).map(|grants| grants.len()));
    }
    set_limit(4_000_000_000);
    println!("limits: without limit: {:?}", allocator.grant(0, 1000).map(|grants| grants.len()));
    // At most what Xen gives a domain: 64 frames of 512 references, less those that are taken.
    let (mut fits, mut too_much) = (0, 1 << 17);
    while too_much - fits > 64 {
        let middle = (fits + too_much) / 2;
        match allocator.grant(0, middle) {
            Ok(_) => fits = middle,
            Err(_) => too_much = middle,
        }
    }
    println!("limits: {fits} pages can be granted, of a kernel's limit of {}", limit());
    let grants = allocator.grant(0, fits).unwrap();
    let pages = grants.map(Place::Anywhere).unwrap();
    pages.copy_in(pages.len() - 4, b"last");
    drop((pages, grants));
    // Nothing is lost: as much can be had again.
    drop(allocator.grant(0, fits).unwrap());
    set_limit(before.max(100_000));
}

const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

fn limit() -> usize {
    std::fs::read_to_string(LIMIT).unwrap().trim().parse().unwrap()
}

fn set_limit(pages: usize) {
    std::fs::write(LIMIT, pages.to_string()).unwrap();
}
