//! A staging area of which only a part is there at first, as between two kernels.

use std::ptr::NonNull;
use std::sync::Arc;

use idm::doorbell::Futex;
use idm::region::{Layout, Placement, Region};
use idm::{Client, Server};

const PAGE: u64 = 4096;

#[test]
fn a_region_that_is_mapped_as_a_whole_may_begin_with_a_part_of_its_staging_area() {
    let layout = Layout { lanes: 1, bulk_bytes: 4 * PAGE, ..Layout::default() };
    let server = Server::attach_in_part(Region::memory(&layout).unwrap(), layout, Placement::Anywhere, PAGE).unwrap();
    assert_eq!((server.bulk().len(), server.bulk().capacity()), (PAGE, 4 * PAGE));
}

#[test]
fn what_is_added_to_the_staging_area_can_be_used_and_nothing_before_it_is_there() {
    let layout = Layout { lanes: 1, bulk_bytes: 4 * PAGE, ..Layout::default() };
    let whole = Region::create(layout, Placement::Anywhere).unwrap();
    let start = NonNull::new(whole.address() as *mut u8).unwrap();
    let over = |ready| {
        // SAFETY: the same memory once more; all of it is there.
        unsafe { Region::over(start, layout, ready, Arc::new(whole.clone())) }
    };
    assert!(over(5 * PAGE).is_err(), "more than there can be");
    let region = over(PAGE).unwrap();
    let server = Server::over(region.clone(), Arc::new(Futex));
    let client = Client::over(region, Arc::new(Futex));
    let (view, pool) = (server.bulk(), client.bulk());
    assert_eq!((view.len(), view.capacity(), pool.len(), pool.capacity()), (PAGE, 4 * PAGE, 4096, 4 * 4096));

    let first = pool.try_alloc(4096).unwrap();
    assert!(pool.try_alloc(1).is_none());
    assert!(pool.alloc(2 * 4096).unwrap().is_none(), "longer than what is there");
    assert!(view.slice(0, PAGE).is_ok() && view.slice(PAGE, 1).is_err() && view.slice(0, PAGE + 1).is_err());

    // SAFETY: all of it is there.
    unsafe {
        server.bulk().extend(2 * PAGE);
        pool.extend(2 * PAGE);
    }
    assert_eq!((view.len(), pool.len()), (3 * PAGE, 3 * 4096));
    assert!(view.slice(PAGE, 2 * PAGE).is_ok() && view.slice(3 * PAGE, 1).is_err(), "views that were there know it");
    let mut second = pool.try_alloc(2 * 4096).unwrap();
    second.with(|bytes| bytes.fill(7));
    let mut seen = [0; 16];
    view.copy_out(second.offset() + 2 * PAGE - 16, &mut seen).unwrap();
    assert_eq!(seen, [7; 16]);
    drop((first, second));
    assert!(pool.try_alloc(3 * 4096).is_none(), "devices know old and new each by itself");
    assert!(pool.alloc(3 * 4096).unwrap().is_none(), "and nobody waits for what cannot be");
    assert!(pool.try_alloc(2 * 4096).is_some() && pool.try_alloc(4096).is_some());
}
