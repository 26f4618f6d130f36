//! In a process of its own: there is one software GPU in each.

use std::time::Instant;

use backend::spin::{Page, spin};
use control::backend::Backend;
use preempt::soft::Soft;
use preempt::trial;

/// The software GPU stops in a kernel that never ends, and goes on.
#[test]
fn a_software_kernel_is_stopped_and_resumed() {
    let backend = Backend::Soft { devices: 1, memory: 1 << 30, instances: 0, only: Vec::new() };
    let driver = backend::load(&backend).unwrap();
    let (file, _) = Page::make().unwrap();
    let page = Page::map(file).unwrap();
    let spinning = spin(&driver, &page, 4, 64).unwrap();
    let mut soft = Soft::new(backend::soft_page().unwrap()).unwrap();
    let clock = Instant::now();
    let measured = trial::run(&mut soft, || page.rounds(), || clock.elapsed().as_nanos() as u64);
    page.end();
    spinning.wait().unwrap();
    measured.unwrap();
}
