//! The region as the kernel sees it.
#![cfg(not(loom))]

use idm::region::{Layout, Placement, Region, RegionError};
use idm::{Client, Server};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

fn small() -> Layout {
    Layout { lanes: 2, ring_bytes: 4096, bulk_bytes: 1 << 20, ..Layout::default() }
}

#[test]
fn a_client_cannot_change_its_size() {
    let region = Region::create(small(), Placement::Anywhere).unwrap();
    assert!(rustix::fs::ftruncate(region.fd().unwrap(), 0).is_err());
    assert!(rustix::fs::ftruncate(region.fd().unwrap(), 1 << 40).is_err());
    assert!(rustix::fs::fcntl_add_seals(region.fd().unwrap(), rustix::fs::SealFlags::WRITE).is_err());
}

#[test]
fn a_descriptor_that_is_no_region_is_refused() {
    let layout = small();
    let size = layout.region_bytes().unwrap();
    let unsealed = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(matches!(Region::attach(unsealed, layout, Placement::Anywhere), Err(RegionError::Size { .. })));
    let unsealed = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, size).unwrap();
    assert!(matches!(Region::attach(unsealed, layout, Placement::Anywhere), Err(RegionError::NotSealed)));
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(Region::attach(null.into(), layout, Placement::Anywhere).is_err());
}

#[test]
fn placement_is_exact_and_takes_nothing_from_others() {
    let layout = small();
    let len = layout.region_bytes().unwrap() as usize;
    // SAFETY: a fresh reservation, used by nobody but this test.
    let window = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE).unwrap()
    } as usize;
    assert!(matches!(Region::create(layout, Placement::At(window)), Err(RegionError::System { what: "map", .. })));
    assert!(matches!(Region::create(layout, Placement::At(1)), Err(RegionError::Placement)));
    // SAFETY: the reservation above.
    let over = unsafe { Placement::over_reservation(window) };
    let region = Region::create(layout, over).unwrap();
    assert_eq!(region.address(), window);
    drop(region);
    // The reservation is back: the place is still taken.
    assert!(Region::create(layout, Placement::At(window)).is_err());
    // SAFETY: nothing refers to the window any more.
    unsafe { rustix::mm::munmap(window as *mut _, len).unwrap() };
    // Far away from where the kernel puts things by itself.
    let free = 0x1000_0000_0000;
    assert_eq!(Region::create(layout, Placement::At(free)).unwrap().address(), free);
}

#[test]
fn flags_and_status_cross_over() {
    let server = Server::create(small(), Placement::Anywhere).unwrap();
    let client =
        Client::attach(server.fd().unwrap().try_clone_to_owned().unwrap(), small(), Placement::Anywhere).unwrap();
    use idm::flags::Watched;
    let soon = Some(std::time::Duration::from_millis(1));
    assert_eq!(client.flags().count(), 4096);
    assert_eq!(client.flags().watch(4095, 5, soon), Ok(Watched::TimeIsUp));
    server.flags().store(4095, 5);
    assert_eq!(client.flags().watch(4095, 5, None), Ok(Watched::Reached));
    server.set_status(700);
    assert_eq!(client.flags().watch(4095, 6, None), Ok(Watched::Fault(700)));
    assert!(server.flags().as_ptr().addr().is_multiple_of(4096));
}
