//! What a guest may grant, and what happens beyond.

use xen::sys::Place;
use xen::sys::gntalloc::GrantAllocator;

pub(crate) fn limits() {
    let allocator = GrantAllocator::open().unwrap();
    let limit = limit();
    assert!(limit > 32_000, "the limit is that of the grant table, nearly");
    // More than once: what is given up can be had again, and what was refused costs nothing.
    for round in 0..3 {
        assert!(allocator.grant(0, limit + 1).is_err(), "the kernel's limit holds");
        let grants = allocator.grant(0, limit).unwrap_or_else(|error| panic!("round {round}: {:?}", error.source));
        let pages = grants.map(Place::Anywhere).unwrap();
        pages.copy_in(pages.len() - 4, b"last");
        assert!(allocator.grant(0, 1).is_err(), "nothing is left");
    }
    println!("limits: {limit} pages can be granted");
}

const LIMIT: &str = "/sys/module/xen_gntalloc/parameters/limit";

fn limit() -> usize {
    std::fs::read_to_string(LIMIT).unwrap().trim().parse().unwrap()
}
