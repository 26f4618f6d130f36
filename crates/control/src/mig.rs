//! MIG: GPUs that their hardware cuts into instances. An instance is a GPU to everybody here; a GPU that is cut is none.
//!
//! An instance is named as the kernel's module names it: by the number of its GPU's device node, its GPU instance and
//! its compute instance. That is enough to give a worker its nodes, needs no driver, and stays the same from one broker
//! to the next. Its UUID and size only NVML knows (`backend::survey`), which the broker never loads.
//!
//! CUDA gives a process either whole GPUs or one instance, so that is what a worker gets.

use std::path::Path;

use crate::kernel_module;

/// Numbers below are those of whole GPUs' device nodes.
const FIRST: u32 = 64;
const GPU_INSTANCES: u32 = 16;
const COMPUTE_INSTANCES: u32 = 8;
/// No GPU or instance has this number or a higher one.
pub const END: u32 = FIRST + FIRST * GPU_INSTANCES * COMPUTE_INSTANCES;

/// Which instance it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// The number of the GPU's device node.
    pub gpu: u32,
    /// As the driver numbers it within the GPU.
    pub gpu_instance: u32,
    /// As the driver numbers it within the GPU instance.
    pub compute_instance: u32,
}

impl Instance {
    /// As zones name it; none for an instance that no driver makes.
    pub fn number(self) -> Option<u32> {
        let Self { gpu, gpu_instance, compute_instance } = self;
        let fits = gpu < FIRST && gpu_instance < GPU_INSTANCES && compute_instance < COMPUTE_INSTANCES;
        fits.then(|| FIRST + (gpu * GPU_INSTANCES + gpu_instance) * COMPUTE_INSTANCES + compute_instance)
    }

    /// The instance of a number; none for the number of a whole GPU.
    pub fn of(number: u32) -> Option<Self> {
        let at = number.checked_sub(FIRST).filter(|_| number < END)?;
        let (rest, compute_instance) = (at / COMPUTE_INSTANCES, at % COMPUTE_INSTANCES);
        Some(Self { gpu: rest / GPU_INSTANCES, gpu_instance: rest % GPU_INSTANCES, compute_instance })
    }
}

/// What a machine's GPUs are to zones, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// GPUs that are not cut.
    pub whole: Vec<u32>,
    /// Instances of those that are.
    pub instances: Vec<u32>,
}

impl Inventory {
    /// Of NVIDIA's GPUs, as the kernel tells.
    pub fn of_kernel(proc: &Path) -> Self {
        let found = kernel_module::instances(proc);
        let is_cut = |gpu: u32| found.iter().any(|instance| instance.gpu == gpu);
        let gpus = kernel_module::gpus(proc).into_iter().map(|gpu| gpu.minor);
        Self {
            whole: gpus.filter(|gpu| !is_cut(*gpu)).collect(),
            instances: found.iter().filter_map(|instance| instance.number()).collect(),
        }
    }

    /// Of GPUs that are computed on the CPU, cut into so many instances each so that this can be tried; 0: not cut.
    pub fn simulated(gpus: u32, instances: u32) -> Self {
        if instances == 0 {
            return Self { whole: (0..gpus).collect(), instances: Vec::new() };
        }
        let of = |gpu| (0..instances).map(move |gpu_instance| Instance { gpu, gpu_instance, compute_instance: 0 });
        Self { whole: Vec::new(), instances: (0..gpus).flat_map(of).filter_map(Instance::number).collect() }
    }

    /// Whether there is a GPU that is cut.
    pub fn is_cut(&self) -> bool {
        !self.instances.is_empty()
    }

    /// Those that are named, none of which means all. A GPU that is cut stands for its instances.
    #[must_use]
    pub fn only(mut self, named: &[u32]) -> Self {
        let is_named = |number: &u32| named.is_empty() || named.contains(number);
        self.whole.retain(is_named);
        self.instances.retain(|number| {
            is_named(number) || Instance::of(*number).is_some_and(|instance| named.contains(&instance.gpu))
        });
        self
    }

    /// What one process of CUDA's gets of it.
    pub fn for_process(self) -> Vec<u32> {
        if self.whole.is_empty() { self.instances.into_iter().take(1).collect() } else { self.whole }
    }

    /// Whole GPUs, then instances.
    pub fn all(self) -> Vec<u32> {
        self.whole.into_iter().chain(self.instances).collect()
    }
}

/// `CUDA_VISIBLE_DEVICES` of a program whose worker has one instance: what is left of the list, for the driver. As
/// natively, the first entry that means nothing ends the list.
pub fn visible(list: &str, uuid: &str) -> String {
    let first = list.split(',').next().unwrap_or_default().trim();
    let by_name = first.len() > "MIG-".len() && uuid.to_ascii_lowercase().starts_with(&first.to_ascii_lowercase());
    if first == "0" || by_name { uuid.to_owned() } else { "-1".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_have_numbers_that_no_gpu_has() {
        let mut seen = std::collections::BTreeSet::new();
        for (gpu, gpu_instance, compute_instance) in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (63, 15, 7)] {
            let instance = Instance { gpu, gpu_instance, compute_instance };
            let number = instance.number().unwrap();
            assert!((64..END).contains(&number) && seen.insert(number));
            assert_eq!(Instance::of(number), Some(instance));
        }
        assert_eq!((Instance::of(63), Instance::of(END), Instance::of(u32::MAX)), (None, None, None));
        assert_eq!(Instance { gpu: 0, gpu_instance: 16, compute_instance: 0 }.number(), None);
    }

    #[test]
    fn a_process_gets_whole_gpus_or_one_instance() {
        let Inventory { instances, .. } = Inventory::simulated(2, 2);
        assert_eq!(instances, [64, 72, 192, 200]);
        let mixed = Inventory { whole: vec![2, 3], instances };
        assert!(mixed.is_cut());
        let get = |named: &[u32]| mixed.clone().only(named).for_process();
        assert_eq!(get(&[]), [2, 3]);
        assert_eq!(get(&[3]), [3]);
        assert_eq!(get(&[72]), [72]);
        assert_eq!(get(&[1]), [192], "a GPU that is cut is not there as a whole");
        assert_eq!(get(&[200, 72]), [72]);
        assert_eq!(get(&[200, 2]), [2]);
        assert!(get(&[9]).is_empty());
        assert_eq!(mixed.clone().only(&[0, 3]).all(), [3, 64, 72]);
        assert!(!Inventory::simulated(2, 0).is_cut());
    }

    #[test]
    fn a_program_counts_from_its_one_instance() {
        let uuid = "MIG-0a1b2c3d-4455";
        for list in ["0", " 0 ", "0,1", "MIG-0a1B", uuid, "MIG-0a,MIG-ff"] {
            assert_eq!(visible(list, uuid), uuid, "{list}");
        }
        for list in ["", "-1", "1", "1,0", "MIG-", "MIG-ff", "GPU-0a1b2c3d-4455", "nonsense"] {
            assert_eq!(visible(list, uuid), "-1", "{list}");
        }
    }
}
