//! The numbers a device shows: those of a GPU of compute capability 9.0 whose multiprocessors are this machine's cores.

pub const MAJOR: i32 = 9;
pub const MINOR: i32 = 0;
pub const MAX_THREADS: u32 = 1024;
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
pub const SHARED_OPT_IN: u32 = 227 << 10;
pub const SHARED_PER_SM: u32 = 228 << 10;
pub const SHARED_RESERVED: u32 = 1 << 10;
pub const REGISTERS: u32 = 65536;
pub const THREADS_PER_SM: u32 = 2048;
pub const BLOCKS_PER_SM: u32 = 32;
pub const CONSTANT_MEMORY: i32 = 64 << 10;
pub const CLOCK_KHZ: i32 = 1_000_000;
pub const TEXTURE_ALIGNMENT: i32 = 512;
/// Hints about what should stay in the cache are taken, and change nothing.
const PERSISTING_L2: i32 = 16 << 20;
const PERSISTING_WINDOW: i32 = 128 << 20;

/// Multiprocessors: what a grid really runs on.
pub fn multiprocessors() -> i32 {
    crate::exec::pool::width() as i32
}

/// The value of an attribute of the device in a slot; `None` for one that CUDA 13.0 does not know.
pub fn value(attribute: u32, slot: usize) -> Option<i32> {
    Some(match attribute {
        1 => MAX_THREADS as i32,
        2..=4 => MAX_BLOCK[attribute as usize - 2] as i32,
        5..=7 => MAX_GRID[attribute as usize - 5] as i32,
        8 => SHARED_PER_BLOCK as i32,
        9 => CONSTANT_MEMORY,
        10 => 32,       // warp size
        11 => i32::MAX, // pitch
        12 | 82 => REGISTERS as i32,
        13 | 36 => CLOCK_KHZ,
        14 | 30 => TEXTURE_ALIGNMENT,
        15 => 1, // copies overlap kernels
        16 => multiprocessors(),
        17 | 18 | 20 => 0, // run time limit, integrated, compute mode
        19 => 1,           // kernels reach mapped host memory
        21 => 131072,      // textures
        22 | 23 => 131072,
        24..=26 => 16384,
        27 | 28 => 32768,
        29 => 2048,
        31 => 1,               // concurrent kernels
        32 => 0,               // ECC
        33 => slot as i32 + 1, // PCI bus
        34 | 35 | 50 => 0,     // PCI device, TCC, PCI domain
        37 => 64,              // bus width
        38 => 32 << 20,        // L2 cache
        39 => THREADS_PER_SM as i32,
        40 => 3, // copy engines
        41 => 1, // unified addressing
        42 => 32768,
        43 => 2048,
        44 => 1,
        45 | 46 => 32768,
        47..=49 => 0,
        51 => 32, // texture pitch alignment
        52 | 53 => 32768,
        54 => 2046,
        55 => 32768,
        56 | 57 => 131072,
        58..=60 => 16384,
        61 => 32768,
        62 => 2048,
        63 | 64 => 32768,
        65 => 2048,
        66 | 67 => 32768,
        68 => 2046,
        69 => 268435456,
        70 => 131072,
        71 => 65000,
        72 => 2097120,
        73 | 74 | 77 => 32768,
        75 => MAJOR,
        76 => MINOR,
        78..=80 => 1, // stream priorities, caches
        81 => SHARED_PER_SM as i32,
        83 => 1, // managed memory
        84 => 0, // multi-GPU board
        85 => slot as i32,
        86 => 1,      // atomics on host memory are the CPU's own
        87 => 2,      // single to double performance
        88 => 0,      // pageable access
        89 => 1,      // concurrent managed access
        90 => 1,      // preemption
        91 => 1,      // a registered host pointer is its own device pointer
        92..=94 => 1, // stream memory operations
        95 => 1,      // cooperative launches
        96 => 0,      // on several devices at once
        97 => SHARED_OPT_IN as i32,
        98 => 0,
        99 => 1, // host registration
        100 | 101 => 0,
        102 | 103 => 1, // virtual memory management, exported as file descriptors
        104 | 105 => 0,
        106 => BLOCKS_PER_SM as i32,
        107 => 0, // compression
        108 => PERSISTING_L2,
        109 => PERSISTING_WINDOW,
        110 => 0, // GPUDirect
        111 => SHARED_RESERVED as i32,
        112 => 0,
        113 => 1, // read-only registration
        114 => 0,
        115 => 1,       // memory pools
        116..=121 => 0, // RDMA, pool handle types, clusters, deferred arrays
        122 | 123 => 1, // 64-bit stream memory operations, NOR
        124..=128 => 0, // DMA-BUF, IPC events, sync domains, tensor maps, fabric
        129 => 0,       // unified function pointers
        130 => 0,       // NUMA configuration: none
        131 => -1,
        132 | 133 => 0, // multicast, MPS
        134 => -1,
        135..=138 => 0,
        139 | 140 => 0, // PCI ids of a board that does not exist
        141..=147 => 0, // host NUMA and host pools
        _ => return None,
    })
}
