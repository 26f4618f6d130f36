//! The requests that a CUDA driver library makes, and why the driver may see each. Data: names and sizes are those of the
//! open kernel modules' headers.
//!
//! What is not here is refused. Among it are a wrapper around any other request (211), exports to other subsystems (217), everything
//! that concerns displays, and of unified memory the tools, the tests and what works on whole GPUs.

use super::Branch;

/// Whose word it takes for a request to reach the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// Nobody's: the driver's own checks hold whatever the arguments are, or become while it reads them.
    Driver,
    /// The supervisor's, which looks at the arguments, and makes the call itself.
    Supervisor,
}

/// What the size in a request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Bytes of the structure.
    Is(u16),
    /// There are two forms of the structure.
    Either(u16, u16),
    /// An array as long as the caller likes; the driver checks it.
    Any,
}

/// A request to the resource manager, on `/dev/nvidiactl` or `/dev/nvidiaN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape {
    /// Its number.
    pub number: u8,
    /// Bytes of its arguments.
    pub size: Size,
    /// Who decides.
    pub decider: Decider,
    /// The first branch that has it.
    since: u16,
    /// As the headers call it, without the prefix.
    pub name: &'static str,
}

const fn escape(number: u8, size: Size, decider: Decider, name: &'static str) -> Escape {
    Escape { number, size, decider, since: 0, name }
}

/// A request to unified memory, on `/dev/nvidia-uvm`. Its number is all of it: neither kind, direction nor size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uvm {
    /// The whole request.
    pub request: u32,
    /// As the headers call it, without the prefix.
    pub name: &'static str,
}

const fn uvm(request: u32, name: &'static str) -> Uvm {
    Uvm { request, name }
}

/// Has no arguments.
pub const UVM_DEINITIALIZE: u32 = 0x3000_0002;
/// The kind of escapes.
const KIND: u32 = b'F' as u32;
const SIZE_BITS: u32 = 0x3fff_0000;

/// Numbers that the supervisor's rules speak of.
pub mod number {
    pub const ALLOC_MEMORY: u8 = 0x27;
    pub const FREE: u8 = 0x29;
    pub const CONTROL: u8 = 0x2a;
    pub const ALLOC: u8 = 0x2b;
    pub const DUP_OBJECT: u8 = 0x34;
    pub const SHARE: u8 = 0x35;
    pub const VID_HEAP_CONTROL: u8 = 0x4a;
    pub const ALLOC_OS_EVENT: u8 = 206;
    pub const FREE_OS_EVENT: u8 = 207;
    pub const XFER: u8 = 211;
}

const ESCAPES: &[Escape] = &[
    // Objects: everything that the resource manager has is made, changed and freed by these.
    escape(number::FREE, Size::Is(16), Decider::Supervisor, "RM_FREE"),
    escape(number::CONTROL, Size::Is(32), Decider::Supervisor, "RM_CONTROL"),
    escape(number::ALLOC, Size::Either(32, 48), Decider::Supervisor, "RM_ALLOC"),
    // Host memory that the GPU is to reach. It pins pages of the caller, so that nobody can make it in the worker's place; what
    // else it can be made to allocate is metered, but not looked at.
    escape(number::ALLOC_MEMORY, Size::Is(56), Decider::Driver, "RM_ALLOC_MEMORY"),
    // Device memory, the old way.
    escape(number::VID_HEAP_CONTROL, Size::Is(184), Decider::Supervisor, "RM_VID_HEAP_CONTROL"),
    // An object of one client in another.
    escape(number::DUP_OBJECT, Size::Is(28), Decider::Supervisor, "RM_DUP_OBJECT"),
    escape(number::SHARE, Size::Is(24), Decider::Supervisor, "RM_SHARE"),
    // Mappings. The driver compares the client with the file and the calling process, and looks descriptors up in its table, so
    // that changed arguments can only name what is the caller's own.
    escape(0x4e, Size::Is(56), Decider::Driver, "RM_MAP_MEMORY"),
    escape(0x4f, Size::Is(32), Decider::Driver, "RM_UNMAP_MEMORY"),
    escape(0x5e, Size::Is(40), Decider::Driver, "RM_UPDATE_DEVICE_MAPPING_INFO"),
    // The GPUs of the machine, and versions.
    escape(200, Size::Any, Decider::Driver, "CARD_INFO"),
    escape(210, Size::Is(72), Decider::Driver, "CHECK_VERSION_STR"),
    // Has GPUs be awake as long as the file is open.
    escape(212, Size::Any, Decider::Driver, "ATTACH_GPUS_TO_FD"),
    Escape { since: 550, ..escape(218, Size::Is(8), Decider::Driver, "WAIT_OPEN_COMPLETE") },
    // Where the GPU's memory is among the machine's nodes. Library 580.159 finds no GPU if it is refused.
    escape(215, Size::Is(560), Decider::Driver, "NUMA_INFO"),
    // Ties a GPU's file to a control file, both of the caller.
    escape(201, Size::Is(4), Decider::Driver, "REGISTER_FD"),
    // Events, found by client and number in a list that all processes share.
    escape(number::ALLOC_OS_EVENT, Size::Is(16), Decider::Supervisor, "ALLOC_OS_EVENT"),
    escape(number::FREE_OS_EVENT, Size::Is(16), Decider::Supervisor, "FREE_OS_EVENT"),
    // The first value stays until the driver is loaded again, so that it is for a worker that is ours to set.
    escape(214, Size::Is(8), Decider::Supervisor, "SYS_PARAMS"),
];

/// All of them concern the file's own address space; what they name of the resource manager must be the calling process's.
const UVM: &[Uvm] = &[
    uvm(0x3000_0001, "INITIALIZE"),
    uvm(UVM_DEINITIALIZE, "DEINITIALIZE"),
    uvm(75, "MM_INITIALIZE"),
    // GPUs, and their address spaces and channels.
    uvm(37, "REGISTER_GPU"),
    uvm(38, "UNREGISTER_GPU"),
    uvm(25, "REGISTER_GPU_VASPACE"),
    uvm(26, "UNREGISTER_GPU_VASPACE"),
    uvm(27, "REGISTER_CHANNEL"),
    uvm(28, "UNREGISTER_CHANNEL"),
    uvm(29, "ENABLE_PEER_ACCESS"),
    uvm(30, "DISABLE_PEER_ACCESS"),
    // Memory of the resource manager, mapped.
    uvm(33, "MAP_EXTERNAL_ALLOCATION"),
    uvm(66, "UNMAP_EXTERNAL"),
    uvm(73, "CREATE_EXTERNAL_RANGE"),
    uvm(34, "FREE"),
    uvm(65, "MAP_DYNAMIC_PARALLELISM_REGION"),
    uvm(68, "ALLOC_SEMAPHORE_POOL"),
    uvm(72, "VALIDATE_VA_RANGE"),
    uvm(39, "PAGEABLE_MEM_ACCESS"),
    // Managed memory: where it lies. These may evict a neighbour's managed memory, as any use of such memory may.
    uvm(42, "SET_PREFERRED_LOCATION"),
    uvm(43, "UNSET_PREFERRED_LOCATION"),
    uvm(44, "ENABLE_READ_DUPLICATION"),
    uvm(45, "DISABLE_READ_DUPLICATION"),
    uvm(46, "SET_ACCESSED_BY"),
    uvm(47, "UNSET_ACCESSED_BY"),
    uvm(51, "MIGRATE"),
    uvm(23, "CREATE_RANGE_GROUP"),
    uvm(24, "DESTROY_RANGE_GROUP"),
    uvm(31, "SET_RANGE_GROUP"),
    uvm(53, "MIGRATE_RANGE_GROUP"),
];

/// Requests to any descriptor, or whether it is a terminal; and the bell of a client that is in a guest.
const OTHERS: &[(u32, &str)] = &[
    (0x5421, "FIONBIO"),
    (0x541b, "FIONREAD"),
    (0x5451, "FIOCLEX"),
    (0x5450, "FIONCLEX"),
    (0x5401, "TCGETS"),
    (XEN_NOTIFY, "IOCTL_EVTCHN_NOTIFY"),
];

#[expect(clippy::cast_possible_truncation, reason = "of a request the kernel looks at 32 bits")]
const XEN_NOTIFY: u32 = xen::sys::evtchn::NOTIFY as u32;

/// Requests that are alike: those that equal `value` in the bits of `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) mask: u32,
    pub(super) value: u32,
    pub(super) decider: Decider,
}

impl Escape {
    /// The requests by which it is made: for reading and writing, as driver libraries write it.
    fn patterns(&self) -> impl Iterator<Item = Pattern> {
        let Self { number, decider, .. } = *self;
        let request = move |size: u16| 0xc000_0000 | u32::from(size) << 16 | KIND << 8 | u32::from(number);
        let exact = move |size: u16| Pattern { mask: !0, value: request(size), decider };
        let any = Pattern { mask: !SIZE_BITS, value: request(0), decider };
        let (first, second) = match self.size {
            Size::Is(size) => (exact(size), None),
            Size::Either(one, other) => (exact(one), Some(exact(other))),
            Size::Any => (any, None),
        };
        [Some(first), second].into_iter().flatten()
    }
}

/// The escapes of a branch.
pub fn escapes(branch: Branch) -> impl Iterator<Item = &'static Escape> {
    ESCAPES.iter().filter(move |escape| escape.since <= branch.number())
}

/// All requests that a branch's driver library may make.
pub(super) fn patterns(branch: Branch) -> Vec<Pattern> {
    let exact = |value| Pattern { mask: !0, value, decider: Decider::Driver };
    let escapes = escapes(branch).flat_map(Escape::patterns);
    let unified = UVM.iter().map(|uvm| exact(uvm.request));
    escapes.chain(unified).chain(OTHERS.iter().map(|(request, _)| exact(*request))).collect()
}

/// The requests of a branch that a supervisor makes in a worker's place.
pub(crate) fn supervised(branch: Branch) -> Vec<u32> {
    let own = |pattern: &Pattern| pattern.decider == Decider::Supervisor && pattern.mask == u32::MAX;
    patterns(branch).into_iter().filter(own).map(|pattern| pattern.value).collect()
}

/// Who decides about a request; nobody if it is refused.
pub fn decider(branch: Branch, request: u32) -> Option<Decider> {
    let matches = |pattern: &Pattern| request & pattern.mask == pattern.value;
    patterns(branch).into_iter().find(matches).map(|pattern| pattern.decider)
}

/// What a request is called, by its number; for people.
pub fn name(request: u32) -> Option<&'static str> {
    let unified = UVM.iter().find(|uvm| uvm.request == request).map(|uvm| uvm.name);
    let other = OTHERS.iter().find(|(known, _)| *known == request).map(|(_, name)| *name);
    let escape = ESCAPES.iter().find(|escape| parts(request).is_some_and(|(number, _)| number == escape.number));
    unified.or(other).or(escape.map(|escape| escape.name))
}

/// Number and size of an escape.
#[expect(clippy::cast_possible_truncation, reason = "each is masked to its bits")]
pub fn parts(request: u32) -> Option<(u8, usize)> {
    if request >> 8 & 0xff != KIND {
        return None;
    }
    Some((request as u8, (request >> 16 & 0x3fff) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_allowed_as_driver_libraries_write_them_and_in_no_other_form() {
        let branch = Branch::of("580.1").unwrap();
        assert_eq!(decider(branch, 0xc020_462a), Some(Decider::Supervisor), "RM_CONTROL");
        assert_eq!(decider(branch, 0xc038_464e), Some(Decider::Driver), "RM_MAP_MEMORY");
        // The driver would take each of these for RM_CONTROL.
        for request in [0xc020_472a, 0x0020_462a, 0x4020_002a, 0xc021_462a] {
            assert_eq!(decider(branch, request), None, "{request:x}");
        }
        let escape = |number: u32, size: u32| 0xc000_4600 | size << 16 | number;
        for (number, size) in [(211, 16), (217, 2608), (0x41, 32), (0x57, 64), (209, 16)] {
            assert_eq!(decider(branch, escape(number, size)), None, "{number}");
        }
        for size in [72, 2304, 16_383] {
            assert!(decider(branch, escape(200, size)).is_some(), "as many cards as there may be: {size}");
        }
        for tools in (54..=64).chain([67, 69, 70, 71, 74]).chain(76..=80).chain([0, 200, 0x3000_0003]) {
            assert_eq!(decider(branch, tools), None, "{tools}");
        }
        assert_eq!(decider(Branch::of("535.1").unwrap(), escape(218, 8)), None);
    }

    #[test]
    fn no_request_is_listed_twice() {
        let all = patterns(Branch::of("580.1").unwrap());
        for (at, pattern) in all.iter().enumerate() {
            assert!(pattern.value & !pattern.mask == 0, "{pattern:x?} can never match");
            let same = |other: &&Pattern| other.value & pattern.mask == pattern.value & other.mask;
            assert_eq!(all.iter().filter(same).count(), 1, "{at}: {pattern:x?}");
        }
        assert!(all.iter().all(|pattern| name(pattern.value).is_some()));
    }
}
