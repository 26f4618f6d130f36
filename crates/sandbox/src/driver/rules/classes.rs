//! Classes of objects.

use crate::driver::Branch;

/// What is looked at before an object is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassRule {
    /// Nothing: it can only refer to objects of its own client.
    Plain,
    /// Parameters name clients at these offsets; each must be none, or the worker's own.
    OwnClients(&'static [usize]),
    /// A device: the client whose address space it shares must be own, and it names no other target.
    Device,
    /// A group of channels: counted, and its time slice may be set once.
    ChannelGroup,
    /// A channel: not a privileged one.
    Channel,
    /// An event, with the number of a descriptor as its key; of one kind.
    Event,
}

/// A class that may be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Its number.
    pub number: u32,
    /// Bytes of its parameters. The driver takes so many, whatever the call says.
    pub size: usize,
    /// What is looked at.
    pub rule: ClassRule,
}

/// Where parameters hold what rules look at.
pub(crate) mod at {
    /// Of a device: whose address space it shares, and whose device it is.
    pub(crate) const DEVICE_SHARE: usize = 4;
    pub(crate) const DEVICE_TARGET: usize = 8;
    /// Of a channel: bit 5 asks for a privileged one.
    pub(crate) const CHANNEL_FLAGS: usize = 20;
    pub(crate) const CHANNEL_PRIVILEGED: u32 = 1 << 5;
    /// Of an event: the client that it is about, and its kind.
    pub(crate) const EVENT_CLIENT: usize = 0;
    pub(crate) const EVENT_CLASS: usize = 8;
    pub(crate) const OS_EVENT: u32 = 0x79;
    /// Of a preemption mode: what is set, and the mode of kernels.
    pub(crate) const PREEMPTION_FLAGS: usize = 0;
    pub(crate) const SETS_COMPUTE: u32 = 1;
    pub(crate) const PREEMPTION_COMPUTE: usize = 12;
    pub(crate) const BY_INSTRUCTION: u32 = 2;
}

const fn plain(number: u32, size: usize) -> Class {
    Class { number, size, rule: ClassRule::Plain }
}

/// Not here, and so refused: clients (roots), which a worker makes while it is still ours; profilers; memory
/// between GPUs and nodes; exports of memory by address; MIG's own objects; displays.
const CLASSES: &[Class] = &[
    Class { number: 0x80, size: 56, rule: ClassRule::Device },
    // A GPU below a device.
    plain(0x2080, 4),
    // An address space, and a part of one for a group of channels.
    plain(0x90f1, 56),
    plain(0x9067, 12),
    Class { number: 0xa06c, size: 20, rule: ClassRule::ChannelGroup },
    // Queues of work, by generation: Volta, Turing, Ampere, Hopper, Blackwell.
    Class { number: 0xc36f, size: 368, rule: ClassRule::Channel },
    Class { number: 0xc46f, size: 368, rule: ClassRule::Channel },
    Class { number: 0xc56f, size: 368, rule: ClassRule::Channel },
    Class { number: 0xc86f, size: 368, rule: ClassRule::Channel },
    Class { number: 0xc96f, size: 368, rule: ClassRule::Channel },
    Class { number: 0xca6f, size: 368, rule: ClassRule::Channel },
    // What runs in them: kernels, on the same generations and Ada,
    plain(0xc3c0, 16),
    plain(0xc5c0, 16),
    plain(0xc6c0, 16),
    plain(0xc7c0, 16),
    plain(0xc9c0, 16),
    plain(0xcbc0, 16),
    plain(0xcdc0, 16),
    plain(0xcec0, 16),
    // and copies.
    plain(0xc3b5, 8),
    plain(0xc5b5, 8),
    plain(0xc6b5, 8),
    plain(0xc7b5, 8),
    plain(0xc8b5, 8),
    plain(0xc9b5, 8),
    plain(0xcab5, 8),
    // Memory of the host and of the device, and addresses. What is held of the device is metered for the process.
    plain(0x3e, 128),
    plain(0x40, 128),
    plain(0x50a0, 128),
    Class { number: 0x05, size: 24, rule: ClassRule::Event },
    Class { number: 0x79, size: 24, rule: ClassRule::Event },
    // The page on which work is announced; a privileged one needs the kernel.
    plain(0xc361, 2),
    plain(0xc461, 2),
    plain(0xc561, 2),
    plain(0xc661, 2),
    plain(0xc761, 2),
    // A page of figures about the GPU, without those of other processes.
    plain(0xde, 8),
    // Whether memory is encrypted; names a client.
    Class { number: 0xcb33, size: 4, rule: ClassRule::OwnClients(&[0]) },
    // What contexts ask about faults of their own kernels; names the client whose kernels those are.
    Class { number: 0x83de, size: 12, rule: ClassRule::OwnClients(&[0, 4]) },
    // Has no parameters.
    plain(0x90e6, 0),
];

/// The class with this number, as a branch has it; none if it is refused.
pub fn class(branch: Branch, number: u32) -> Option<Class> {
    let mut class = *CLASSES.iter().find(|class| class.number == number)?;
    class.size = match (class.rule, number) {
        (ClassRule::Channel, _) if branch.number() < 570 => 360,
        (_, 0x90f1) if branch.number() < 580 => 48,
        (_, 0x3e | 0x40 | 0x50a0) if branch.number() < 550 => 120,
        _ => class.size,
    };
    Some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_branch_and_no_class_is_listed_twice() {
        let size = |version, number| class(Branch::of(version).unwrap(), number).unwrap().size;
        assert_eq!((size("550.1", 0xc86f), size("580.1", 0xc86f)), (360, 368));
        assert_eq!((size("570.1", 0x90f1), size("580.1", 0x90f1)), (48, 56));
        assert_eq!((size("535.1", 0x40), size("550.1", 0x40)), (120, 128));
        let count = |class: &Class| CLASSES.iter().filter(|other| other.number == class.number).count();
        assert!(CLASSES.iter().all(|class| count(class) == 1));
        let branch = Branch::of("580.1").unwrap();
        for refused in [0, 1, 0x41, 0x71, 0xf3, 0xe0, 0x90cc, 0xb2cc, 0x503b, 0xc637, 0x2081, 0x208f] {
            assert_eq!(class(branch, refused), None, "{refused:x}");
        }
    }
}
