//! The kernel's modules.

use crate::{InitError, step};
use guest::image::{DISK_MODULES, MODULES, MODULES_DIR, NETWORK_MODULES};
use std::ffi::CString;
use std::fs::File;

/// Loads those of Xen's devices. `grants` is how many pages programs may grant; without it, it is half of the memory.
pub(crate) fn load(grants: Option<u32>) -> Result<(), InitError> {
    MODULES.iter().try_for_each(|name| match *name {
        "xen-gntalloc" => load_one(name, &format!("limit={}", grants.unwrap_or_else(half_of_memory))),
        name => load_one(name, ""),
    })
}

/// Loads these, in this order.
pub(crate) fn load_all(names: &[&str]) -> Result<(), InitError> {
    names.iter().try_for_each(|name| load_one(name, ""))
}

/// Those for a pod's disks and network. Whatever has queues has one, also with many processors: the domain's definition
/// counts their pages, which programs cannot grant.
pub(crate) fn load_for_pod() -> Result<(), InitError> {
    DISK_MODULES.iter().chain(&NETWORK_MODULES).try_for_each(|name| match *name {
        "xen-blkfront" | "xen-netfront" => load_one(name, "max_queues=1"),
        name => load_one(name, ""),
    })
}

fn load_one(name: &str, parameters: &str) -> Result<(), InitError> {
    let path = format!("/{MODULES_DIR}/{name}.ko");
    let file = File::open(&path).map_err(|error| InitError::Step(format!("open {path}"), error))?;
    let parameters = CString::new(parameters).unwrap_or_default();
    match rustix::system::finit_module(&file, &parameters, 0) {
        // Built in, or loaded by the kernel itself.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(step(format!("load {name}"))(error)),
    }
}

/// Pages of a program that was killed stay taken until its worker has let go of them, which the kernel looks for once a
/// second; and then it takes back ten. As many as there can be, instead.
pub(crate) fn take_back_quickly() {
    // A kernel without this setting is slow, and nothing else.
    let _ = std::fs::write("/sys/module/grant_table/parameters/free_per_iteration", "1000000");
}

/// In pages.
fn half_of_memory() -> u32 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let kib: u64 = total.and_then(|number| number.parse().ok()).unwrap_or(0);
    // The kernel takes a signed number.
    u32::try_from(kib / 8).unwrap_or(u32::MAX).min(i32::MAX as u32).max(1024)
}
