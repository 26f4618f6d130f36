//! How large a pod's domain is, and whether the hypervisor has room for it.

use crate::config::Config;
use control::size::Size;
use shim::Pod;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DomainSize {
    pub memory: u64,
    pub vcpus: u32,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pod needs {} of memory with its overhead, and Xen has {} free", Size(*.needed), Size(*.free))]
pub(crate) struct NoRoom {
    needed: u64,
    free: u64,
}

impl DomainSize {
    pub(crate) fn of(pod: &Pod, config: &Config) -> Self {
        let limit = if pod.memory == 0 { config.memory } else { pod.memory };
        let vcpus = u32::try_from(pod.cpu_millis.div_ceil(1000)).unwrap_or(u32::MAX).min(512);
        Self {
            memory: limit.saturating_add(config.overhead).next_multiple_of(1 << 20),
            vcpus: if vcpus == 0 { config.vcpus } else { vcpus },
        }
    }

    /// What the hypervisor takes for it: the memory, page tables for it, and a little for the domain itself.
    fn cost(&self) -> u64 {
        self.memory.saturating_add(self.memory / 128).saturating_add(4 << 20)
    }

    /// Memory is never promised twice: a domain that does not fit now is refused.
    pub(crate) fn check(&self, free: u64) -> Result<(), NoRoom> {
        let needed = self.cost();
        if needed <= free { Ok(()) } else { Err(NoRoom { needed, free }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(memory: u64, cpu_millis: u64) -> Pod {
        Pod { namespace: "n".into(), id: "s".into(), network: None, memory, cpu_millis }
    }

    #[test]
    fn a_domain_is_the_pods_limit_and_the_overhead() {
        let config = Config { overhead: 96 << 20, memory: 512 << 20, vcpus: 2, ..Config::default() };
        let size = DomainSize::of(&pod((256 << 20) + 1, 1500), &config);
        assert_eq!(size, DomainSize { memory: 353 << 20, vcpus: 2 });
        assert_eq!(DomainSize::of(&pod(0, 0), &config), DomainSize { memory: 608 << 20, vcpus: 2 });
        assert_eq!(DomainSize::of(&pod(1 << 30, u64::MAX), &config).vcpus, 512);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let size = DomainSize { memory: 128 << 20, vcpus: 1 };
        assert_eq!(size.check(133 << 20), Ok(()));
        // Xen takes a little more than the domain has.
        let refused = size.check(128 << 20).unwrap_err().to_string();
        assert_eq!(refused, "the pod needs 133 MiB of memory with its overhead, and Xen has 128 MiB free");
    }
}
