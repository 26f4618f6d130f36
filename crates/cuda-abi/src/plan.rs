//! The address plan: the ranges that client and worker both reserve at start, so that a pointer means the same on both
//! sides and can be classified by looking at it.
//!
//! Both ranges lie far from where Linux puts programs, heaps and libraries (the bottom and top of the address space) and
//! from the shadow memory of sanitizers. A client that cannot reserve them is told so at `cuInit`.

/// Everything a kernel may touch lies in this window.
pub const WINDOW_BASE: u64 = 0x2000_0000_0000;
/// In bytes.
pub const WINDOW_SIZE: u64 = 0x2000_0000_0000;

/// Device memory: VMM mappings made by the worker.
pub const DEVICE_BASE: u64 = WINDOW_BASE;
/// In bytes.
pub const DEVICE_SIZE: u64 = 0x0800_0000_0000;

/// Host memory that the GPU reaches: shared memory mapped at the same address in client and worker.
pub const HOST_BASE: u64 = WINDOW_BASE + WINDOW_SIZE / 2;
/// In bytes.
pub const HOST_SIZE: u64 = 0x0800_0000_0000;

/// What VMM memory is mapped in units of.
pub const DEVICE_GRANULE: u64 = 2 << 20;

/// Is `[address, address + len)` inside the device range?
pub fn in_device(address: u64, len: u64) -> bool {
    inside(DEVICE_BASE, DEVICE_SIZE, address, len)
}

/// Is `[address, address + len)` inside the host range?
pub fn in_host(address: u64, len: u64) -> bool {
    inside(HOST_BASE, HOST_SIZE, address, len)
}

fn inside(base: u64, size: u64, address: u64, len: u64) -> bool {
    address >= base && len <= size && address - base <= size - len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_closed_against_overflow() {
        assert!(in_device(DEVICE_BASE, DEVICE_SIZE));
        assert!(in_device(DEVICE_BASE + DEVICE_SIZE, 0));
        assert!(!in_device(DEVICE_BASE, DEVICE_SIZE + 1));
        assert!(!in_device(DEVICE_BASE + 1, u64::MAX));
        assert!(!in_device(u64::MAX, 2));
        assert!(!in_device(DEVICE_BASE - 1, 1));
        assert!(in_host(HOST_BASE, 1) && !in_device(HOST_BASE, 1));
    }

    #[test]
    fn a_range_is_inside_exactly_if_every_byte_of_it_is() {
        const SIZE: u64 = 5;
        for base in [0, 3, u64::MAX - SIZE] {
            for address in (base.saturating_sub(3)..base + SIZE).chain([0, 1, u64::MAX - 1, u64::MAX]) {
                for len in (0..=SIZE + 3).chain([u64::MAX - address, u64::MAX, 1 << 63]) {
                    let (start, end) = (u128::from(address), u128::from(address) + u128::from(len));
                    let meant = start >= u128::from(base) && end <= u128::from(base) + u128::from(SIZE);
                    assert_eq!(inside(base, SIZE, address, len), meant, "{base} {address} {len}");
                }
            }
        }
    }
}
