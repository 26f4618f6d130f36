//! Controls of objects.

/// What is looked at before a control is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRule {
    /// Nothing: its parameters hold neither addresses, descriptors nor clients.
    Plain,
    /// Parameters hold addresses of more memory.
    Pointers(&'static [Pointer]),
    /// Parameters hold an address that nobody needs followed, at this offset: it is made none.
    WithoutPointer(usize),
    /// Parameters hold the number of a descriptor, at this offset: an object is exported to it or imported from it. A worker
    /// has no file of the driver but those that it opened, and those that the broker gave it.
    Descriptor(usize),
    /// Sets a time slice: once for a group that was made under supervision, and not a long one.
    Timeslice,
    /// Says when the GPU may switch from the work of a channel to that of others: at any instruction, as driver libraries ask for, or
    /// kernels could not be taken off the GPU.
    PreemptionMode,
    /// Opens objects to others: to nobody but own clients. The policy is at this offset.
    Share(usize),
    /// Would change something that is the whole GPU's. Nothing is done, and the answer is that it is.
    Answer,
    /// Is refused like what is not listed, but driver libraries ask for it and do without: nobody is told.
    Decline,
}

/// An address in parameters, and how much memory it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Where it is.
    pub at: usize,
    /// How many bytes.
    pub length: Length,
}

/// A length, by a number in the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// The number at this offset, times so many bytes.
    Times(usize, usize),
    /// The square of the number at this offset, times so many bytes.
    Square(usize, usize),
}

/// A control that may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Its number.
    pub number: u32,
    /// What is looked at.
    pub rule: ControlRule,
}

const fn list(at: usize, each: usize) -> Pointer {
    Pointer { at, length: Length::Times(0, each) }
}

/// Pairs of an index and a value, as many as the first word says.
const PAIRS: ControlRule = ControlRule::Pointers(&[list(8, 8)]);

/// Those with a rule.
const RULED: &[(u32, &str, ControlRule)] = &[
    (0x0000_0101, "NV0000_SYSTEM_GET_BUILD_VERSION", ControlRule::Pointers(&[list(8, 1), list(16, 1), list(24, 1)])),
    (
        0x0000_0127,
        "NV0000_SYSTEM_GET_P2P_CAPS",
        ControlRule::Pointers(&[
            Pointer { at: 160, length: Length::Square(128, 4) },
            Pointer { at: 168, length: Length::Square(128, 4) },
        ]),
    ),
    // The GPU's name, which other controls tell.
    (0x0000_0202, "NV0000_GPU_GET_ID_INFO", ControlRule::WithoutPointer(16)),
    (0x0000_0d04, "NV0000_CLIENT_SET_INHERITED_SHARE_POLICY", ControlRule::Share(0)),
    (0x0000_3d05, "NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD", ControlRule::Descriptor(16)),
    (0x0000_3d06, "NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD", ControlRule::Descriptor(0)),
    (0x0000_3d08, "NV0000_OS_UNIX_GET_EXPORT_OBJECT_INFO", ControlRule::Descriptor(0)),
    (0x0000_3d0b, "NV0000_OS_UNIX_EXPORT_OBJECTS_TO_FD", ControlRule::Descriptor(0)),
    (0x0000_3d0c, "NV0000_OS_UNIX_IMPORT_OBJECTS_FROM_FD", ControlRule::Descriptor(0)),
    (0x0041_0110, "NV0041_GET_SURFACE_INFO", PAIRS),
    (0x0080_0201, "NV0080_GPU_GET_CLASSLIST", ControlRule::Pointers(&[list(8, 4)])),
    (0x0080_170d, "NV0080_FIFO_GET_CHANNELLIST", ControlRule::Pointers(&[list(8, 4), list(16, 4)])),
    (0x2080_0802, "NV2080_BIOS_GET_INFO", PAIRS),
    (0x2080_1201, "NV2080_GR_GET_INFO", PAIRS),
    (0x2080_1210, "NV2080_GR_SET_CTXSW_PREEMPTION_MODE", ControlRule::PreemptionMode),
    (0x2080_1802, "NV2080_BUS_GET_INFO", PAIRS),
    (0xa06c_0103, "NVA06C_SET_TIMESLICE", ControlRule::Timeslice),
    // Clocks, ticks, reservations and the watchdog of the whole GPU.
    (0x0080_1909, "NV0080_PERF_CUDA_LIMIT_SET_CONTROL", ControlRule::Answer),
    (0x2080_0145, "NV2080_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION", ControlRule::Answer),
    (0x2080_0146, "NV2080_GPU_RELEASE_COMPUTE_MODE_RESERVATION", ControlRule::Answer),
    (0x2080_0407, "NV2080_TIMER_SET_GR_TICK_FREQ", ControlRule::Answer),
    (0x2080_200a, "NV2080_PERF_BOOST", ControlRule::Answer),
    (0x2080_220c, "NV2080_RC_RELEASE_WATCHDOG_REQUESTS", ControlRule::Answer),
    (0x2080_2210, "NV2080_RC_SOFT_DISABLE_WATCHDOG", ControlRule::Answer),
    // The firmware's own: for each context, since 580.
    (0x2080_9038, "0x20809038", ControlRule::Decline),
];

/// Those without: questions, and what concerns objects of the call's own client. What is missing here is refused: stopping
/// channels by lists of clients, processes of others and their use of the GPU, registers, profilers, debuggers, resets, whatever has
/// bit 15 set, which goes to the firmware before anybody has compared client and file.
const PLAIN: &[(u32, &str)] = &[
    (0x0000_0102, "NV0000_SYSTEM_GET_CPU_INFO"),
    (0x0000_012b, "NV0000_SYSTEM_GET_P2P_CAPS_V2"),
    (0x0000_0136, "NV0000_SYSTEM_GET_FABRIC_STATUS"),
    (0x0000_013a, "NV0000_SYSTEM_GET_P2P_CAPS_MATRIX"),
    (0x0000_01f0, "NV0000_SYSTEM_GET_FEATURES"),
    (0x0000_0201, "NV0000_GPU_GET_ATTACHED_IDS"),
    (0x0000_0204, "NV0000_GPU_GET_DEVICE_IDS"),
    (0x0000_0205, "NV0000_GPU_GET_ID_INFO_V2"),
    (0x0000_0214, "NV0000_GPU_GET_PROBED_IDS"),
    (0x0000_0215, "NV0000_GPU_ATTACH_IDS"),
    (0x0000_0216, "NV0000_GPU_DETACH_IDS"),
    (0x0000_021b, "NV0000_GPU_GET_PCI_INFO"),
    (0x0000_0275, "NV0000_GPU_GET_UUID_FROM_GPU_ID"),
    (0x0000_0279, "NV0000_GPU_QUERY_DRAIN_STATE"),
    (0x0000_027b, "NV0000_GPU_GET_MEMOP_ENABLE"),
    (0x0000_0288, "NV0000_GPU_GET_ACTIVE_DEVICE_IDS"),
    (0x0000_0289, "NV0000_GPU_ASYNC_ATTACH_ID"),
    (0x0000_0290, "NV0000_GPU_WAIT_ATTACH_ID"),
    (0x0000_0a04, "NV0000_SYNC_GPU_BOOST_GROUP_INFO"),
    (0x0000_0d01, "NV0000_CLIENT_GET_ADDR_SPACE_TYPE"),
    (0x0080_0280, "NV0080_GPU_GET_NUM_SUBDEVICES"),
    (0x0080_0288, "NV0080_GPU_QUERY_SW_STATE_PERSISTENCE"),
    (0x0080_0289, "NV0080_GPU_GET_VIRTUALIZATION_MODE"),
    (0x0080_028b, "UNKNOWN_CONTROL_COMMAND_80028B"),
    (0x0080_0292, "NV0080_GPU_GET_CLASSLIST_V2"),
    (0x0080_1108, "NV0080_GR_SET_TPC_PARTITION_MODE"),
    (0x0080_1307, "NV0080_FB_GET_CAPS_V2"),
    (0x0080_1402, "NV0080_HOST_GET_CAPS_V2"),
    (0x0080_1806, "NV0080_DMA_ADV_SCHED_GET_VA_CAPS"),
    (0x0080_180d, "NV0080_DMA_GET_CAPS"),
    (0x00de_0001, "NV00DE_REQUEST_DATA_POLL"),
    (0x2080_0102, "NV2080_GPU_GET_INFO_V2"),
    (0x2080_0110, "NV2080_GPU_GET_NAME_STRING"),
    (0x2080_0111, "NV2080_GPU_GET_SHORT_NAME_STRING"),
    (0x2080_0119, "NV2080_GPU_GET_SIMULATION_INFO"),
    (0x2080_012f, "NV2080_GPU_QUERY_ECC_STATUS"),
    (0x2080_0131, "NV2080_GPU_QUERY_COMPUTE_MODE_RULES"),
    (0x2080_0133, "NV2080_GPU_QUERY_ECC_CONFIGURATION"),
    (0x2080_013f, "NV2080_GPU_GET_OEM_BOARD_INFO"),
    (0x2080_0142, "NV2080_GPU_GET_ID"),
    (0x2080_014a, "NV2080_GPU_GET_GID_INFO"),
    (0x2080_014b, "NV2080_GPU_GET_INFOROM_OBJECT_VERSION"),
    (0x2080_0156, "NV2080_GPU_GET_INFOROM_IMAGE_VERSION"),
    (0x2080_0157, "NV2080_GPU_QUERY_INFOROM_ECC_SUPPORT"),
    (0x2080_0170, "NV2080_GPU_GET_ENGINES_V2"),
    (0x2080_018b, "NV2080_GPU_GET_ACTIVE_PARTITION_IDS"),
    (0x2080_0195, "NV2080_GPU_GET_COMPUTE_POLICY_CONFIG"),
    (0x2080_019f, "NV2080_GPU_GET_SKYLINE_INFO"),
    (0x2080_01a3, "NV2080_GET_GPU_FABRIC_PROBE_INFO"),
    (0x2080_0301, "NV2080_EVENT_SET_NOTIFICATION"),
    (0x2080_0403, "NV2080_TIMER_GET_TIME"),
    (0x2080_0406, "NV2080_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO"),
    (0x2080_1218, "NV2080_GR_GET_CTX_BUFFER_SIZE"),
    (0x2080_121b, "NV2080_GR_GET_GLOBAL_SM_ORDER"),
    (0x2080_1227, "NV2080_GR_GET_CAPS_V2"),
    (0x2080_122a, "NV2080_GR_GET_GPC_MASK"),
    (0x2080_122b, "NV2080_GR_GET_TPC_MASK"),
    (0x2080_1230, "NV2080_GR_GET_SM_ISSUE_RATE_MODIFIER"),
    (0x2080_123c, "NV2080_GR_GET_SM_ISSUE_RATE_MODIFIER_V2"),
    (0x2080_1303, "NV2080_FB_GET_INFO_V2"),
    (0x2080_1357, "NV2080_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT_V575"),
    (0x2080_1358, "NV2080_FB_QUERY_DRAM_ENCRYPTION_STATUS_V575"),
    (0x2080_1701, "NV2080_MC_GET_ARCH_INFO"),
    (0x2080_1702, "NV2080_MC_SERVICE_INTERRUPTS"),
    (0x2080_1801, "NV2080_BUS_GET_PCI_INFO"),
    (0x2080_1803, "NV2080_BUS_GET_PCI_BAR_INFO"),
    (0x2080_1823, "NV2080_BUS_GET_INFO_V2"),
    (0x2080_182a, "NV2080_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS"),
    (0x2080_182b, "NV2080_BUS_GET_C2C_INFO"),
    (0x2080_2068, "NV2080_PERF_GET_CURRENT_PSTATE"),
    (0x2080_2209, "NV2080_RC_GET_WATCHDOG_INFO"),
    (0x2080_2a03, "NV2080_CE_GET_CAPS_V2"),
    (0x2080_2a0a, "NV2080_CE_GET_ALL_CAPS"),
    (0x2080_3001, "NV2080_NVLINK_GET_NVLINK_CAPS"),
    (0x2080_3002, "NV2080_NVLINK_GET_NVLINK_STATUS"),
    (0x2080_3125, "NV2080_FLCN_GET_CTX_BUFFER_SIZE"),
    (0x2080_3601, "NV2080_GSP_GET_FEATURES"),
    (0x2080_3801, "NV2080_GRMGR_GET_GR_FS_INFO"),
    // Which faults of own kernels are told of.
    (0x83de_0309, "NV83DE_DEBUG_SET_EXCEPTION_MASK"),
    (0x906f_0101, "NV906F_GET_CLASS_ENGINEID"),
    (0x906f_0102, "NV906F_RESET_CHANNEL"),
    (0x90e6_0102, "NV90E6_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK"),
    (0xa06c_0101, "NVA06C_GPFIFO_SCHEDULE"),
    (0xa06c_0105, "NVA06C_PREEMPT"),
    (0xa06f_0103, "NVA06F_GPFIFO_SCHEDULE"),
    (0xc36f_0108, "NVC36F_GPFIFO_GET_WORK_SUBMIT_TOKEN"),
    (0xc56f_010b, "NVC56F_GET_KMB"),
    (0xcb33_0101, "CONF_COMPUTE_SYSTEM_GET_CAPABILITIES"),
    (0xcb33_0104, "CONF_COMPUTE_SYSTEM_GET_GPUS_STATE"),
    (0xcb33_010b, "CONF_COMPUTE_GPU_GET_NUM_SECURE_CHANNELS"),
    (0xcb33_010c, "CONF_COMPUTE_GPU_GET_KEY_ROTATION_STATE"),
];

/// The control with this number; none if it is refused.
pub fn control(number: u32) -> Option<Control> {
    let ruled = RULED.iter().find(|(known, ..)| *known == number).map(|(.., rule)| *rule);
    let plain = || PLAIN.iter().any(|(known, _)| *known == number).then_some(ControlRule::Plain);
    ruled.or_else(plain).map(|rule| Control { number, rule })
}

/// What a control is called, if it is listed.
pub fn name(number: u32) -> Option<&'static str> {
    let ruled = RULED.iter().find(|(known, ..)| *known == number).map(|(_, name, _)| *name);
    ruled.or_else(|| PLAIN.iter().find(|(known, _)| *known == number).map(|(_, name)| *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_others_is_not_listed() {
        // Stopping channels, lists of processes, registers, the firmware's own, privileged scheduling, profilers, resets.
        let refused = [
            0x2080_110b,
            0x2080_018d,
            0x2080_018e,
            0x2080_2096,
            0x2080_0122,
            0x2080_01a6,
            0xa06c_0107,
            0xa06f_0109,
            0xa06f_0111,
            0x2080_1115,
            0x83de_0315,
            0xb0cc_0101,
            0x2080_01a9,
            0x2080_111a,
            0x2080_1123,
            0x2080_1103,
        ];
        for number in refused {
            assert_eq!(control(number), None, "{number:x}");
        }
        let numbers: Vec<u32> =
            RULED.iter().map(|(number, ..)| *number).chain(PLAIN.iter().map(|(n, _)| *n)).collect();
        let declined = |number: &u32| control(*number).is_some_and(|control| control.rule == ControlRule::Decline);
        assert!(numbers.iter().all(|number| number & 0x8000 == 0 || declined(number)), "the firmware's own");
        let count = |number: &u32| numbers.iter().filter(|other| *other == number).count();
        assert!(numbers.iter().all(|number| count(number) == 1 && name(*number).is_some()));
    }
}
