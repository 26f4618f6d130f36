//! What a worker has done, in a page of memory that it writes and the broker reads.
//!
//! The broker makes the page and seals its size, so looking at it cannot fault, and the figures are there to the last
//! call also when the worker was killed. The worker is presumed fallen: it can write any number, which is then shown and
//! never acted on. Totals that go backwards are not believed (see [`WorkerStats::advance`]), and sums saturate.
//!
//! Every access is a relaxed atomic of 64 bits: figures are exact each by itself, and not a picture of one moment.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::{self, Histogram};
use cuda_abi::error::*;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};

/// Faults that end a context, each with a counter of its own: the codes of `cuda_abi::error::is_sticky`.
pub const FAULTS: [CUresult; 14] = [
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUDA_ERROR_CONTAINED,
    CUDA_ERROR_EXTERNAL_DEVICE,
    CUDA_ERROR_UNKNOWN,
];

/// Why a worker refuses a request; what the broker refuses, it counts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// A handle or context that is not, or no longer, the client's.
    Handle,
    /// An address, length or number that the client may not name.
    Argument,
    /// A function that is not offered.
    Unsupported,
    /// A message that no client library sends; the client was ended.
    Protocol,
}

impl Denial {
    /// In the order of the counters.
    pub const ALL: [Self; 4] = [Self::Handle, Self::Argument, Self::Unsupported, Self::Protocol];

    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handle => "handle",
            Self::Argument => "argument",
            Self::Unsupported => "unsupported",
            Self::Protocol => "protocol",
        }
    }
}

/// The page. Fields are added at the end only: a broker may read the page of an older worker.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Page {
    /// Messages of the client.
    pub calls: AtomicU64,
    /// Kernels that were launched.
    pub launches: AtomicU64,
    /// Copies of all kinds.
    pub copies: AtomicU64,
    /// Copied from host memory.
    pub bytes_to_device: AtomicU64,
    /// Copied to host memory.
    pub bytes_from_device: AtomicU64,
    /// Copied within device memory.
    pub bytes_on_device: AtomicU64,
    /// Calls that failed.
    pub errors: AtomicU64,
    /// Requests that are being executed now: a gauge.
    pub in_progress: AtomicU64,
    /// Not 0 once somebody measures GPU time; until then the time means nothing.
    pub gpu_time_measured: AtomicU64,
    /// Time that the GPU worked for this client.
    pub gpu_time_ns: AtomicU64,
    /// By [`Denial`].
    pub denials: [AtomicU64; Denial::ALL.len()],
    /// By place in [`FAULTS`].
    pub faults: [AtomicU64; FAULTS.len()],
    /// Nanoseconds that opening memory of others took.
    pub shared_opens: histogram::Words,
    /// Bytes per second of copies from and to it.
    pub shared_copies: histogram::Words,
}

const SIZE: usize = 4096;
const _: () = assert!(size_of::<Page>() <= crate::dispatch::OFFSET);

impl Page {
    /// Counts a denial.
    pub fn deny(&self, reason: Denial) {
        add(&self.denials[reason as usize], 1);
    }

    /// Counts a fault, if it is a known one.
    pub fn fault(&self, code: CUresult) {
        if let Some(counter) = FAULTS.iter().position(|known| *known == code) {
            add(&self.faults[counter], 1);
        }
    }

    /// All figures, each as it was at some moment.
    pub fn read(&self) -> WorkerStats {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        WorkerStats {
            calls: load(&self.calls),
            launches: load(&self.launches),
            copies: load(&self.copies),
            bytes_to_device: load(&self.bytes_to_device),
            bytes_from_device: load(&self.bytes_from_device),
            bytes_on_device: load(&self.bytes_on_device),
            errors: load(&self.errors),
            in_progress: load(&self.in_progress),
            gpu_time_ns: (load(&self.gpu_time_measured) != 0).then(|| load(&self.gpu_time_ns)),
            denials: std::array::from_fn(|reason| load(&self.denials[reason])),
            faults: std::array::from_fn(|code| load(&self.faults[code])),
            shared_opens: self.shared_opens.read(),
            shared_copies: self.shared_copies.read(),
        }
    }
}

/// Adds to a counter that other threads may add to.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// The figures of a worker, or of several together: totals, for the operator only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Messages of the client.
    pub calls: u64,
    /// Kernels that were launched.
    pub launches: u64,
    /// Copies of all kinds.
    pub copies: u64,
    /// Copied from host memory.
    pub bytes_to_device: u64,
    /// Copied to host memory.
    pub bytes_from_device: u64,
    /// Copied within device memory.
    pub bytes_on_device: u64,
    /// Calls that failed, for whatever reason.
    pub errors: u64,
    /// Requests being executed now.
    pub in_progress: u64,
    /// None where nobody measures it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_time_ns: Option<u64>,
    /// By [`Denial`].
    #[serde(with = "denials")]
    pub denials: [u64; Denial::ALL.len()],
    /// By place in [`FAULTS`].
    #[serde(with = "faults")]
    pub faults: [u64; FAULTS.len()],
    /// Nanoseconds that opening memory of other processes took.
    #[serde(default)]
    pub shared_opens: Histogram,
    /// Bytes per second of copies from and to it, as far as they were looked at.
    #[serde(default)]
    pub shared_copies: Histogram,
}

impl WorkerStats {
    /// Denials for whatever reason.
    pub fn denied(&self) -> u64 {
        self.denials.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Faults of whatever kind.
    pub fn faulted(&self) -> u64 {
        self.faults.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Takes what the worker says now, as far as it goes forward.
    pub fn advance(&mut self, now: &Self) {
        self.combine(now, u64::max);
        self.in_progress = now.in_progress;
    }

    /// Adds another's figures.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
        self.in_progress = self.in_progress.saturating_add(other.in_progress);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        let pairs = [
            (&mut self.calls, other.calls),
            (&mut self.launches, other.launches),
            (&mut self.copies, other.copies),
            (&mut self.bytes_to_device, other.bytes_to_device),
            (&mut self.bytes_from_device, other.bytes_from_device),
            (&mut self.bytes_on_device, other.bytes_on_device),
            (&mut self.errors, other.errors),
        ];
        let arrays = self.denials.iter_mut().zip(other.denials).chain(self.faults.iter_mut().zip(other.faults));
        let histograms =
            self.shared_opens.pairs(&other.shared_opens).chain(self.shared_copies.pairs(&other.shared_copies));
        for (mine, other) in pairs.into_iter().chain(arrays).chain(histograms) {
            *mine = with(*mine, other);
        }
        if let Some(time) = other.gpu_time_ns {
            self.gpu_time_ns = Some(with(self.gpu_time_ns.unwrap_or(0), time));
        }
    }
}

/// Arrays of counters as JSON objects, without those that are 0.
fn to_map<const N: usize, S: serde::Serializer>(
    counts: &[u64; N],
    name: impl Fn(usize) -> &'static str,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, count)| (name(at), count)))
}

fn from_map<'de, const N: usize, D: serde::Deserializer<'de>>(
    name: impl Fn(usize) -> &'static str,
    from: D,
) -> Result<[u64; N], D::Error> {
    let map = std::collections::HashMap::<String, u64>::deserialize(from)?;
    Ok(std::array::from_fn(|at| map.get(name(at)).copied().unwrap_or(0)))
}

mod denials {
    use super::Denial;

    const COUNT: usize = Denial::ALL.len();

    pub(super) fn serialize<S: serde::Serializer>(counts: &[u64; COUNT], to: S) -> Result<S::Ok, S::Error> {
        super::to_map(counts, |at| Denial::ALL[at].name(), to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[u64; COUNT], D::Error> {
        super::from_map(|at| Denial::ALL[at].name(), from)
    }
}

mod faults {
    use super::FAULTS;

    const COUNT: usize = FAULTS.len();

    pub(super) fn serialize<S: serde::Serializer>(counts: &[u64; COUNT], to: S) -> Result<S::Ok, S::Error> {
        super::to_map(counts, |at| cuda_abi::error::name(FAULTS[at]), to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[u64; COUNT], D::Error> {
        super::from_map(|at| cuda_abi::error::name(FAULTS[at]), from)
    }
}

/// A page in memory, until dropped.
struct Mapping(NonNull<Page>);

// SAFETY: the page consists of atomics and is mapped as long as this lives.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), SIZE, prot, MapFlags::SHARED, file, 0)? };
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, page-aligned and large enough; any bytes are valid atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// The broker's side, which cannot write.
pub struct Reader(Mapping);

impl Reader {
    /// Makes a page for a new worker.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create("bulkhead-statistics", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, crate::dispatch::SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self(Mapping::new(&file, ProtFlags::READ)?), file))
    }

    /// Takes the page that a predecessor made, out of the hands of the worker: only if it cannot shrink, and has
    /// ordinary pages.
    pub fn adopt(file: impl AsFd) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let stat = rustix::fs::fstat(&file)?;
        let (size, block) = (u64::try_from(stat.st_size), usize::try_from(stat.st_blksize));
        if !seals.contains(SealFlags::SHRINK) || !size.is_ok_and(|size| size >= SIZE as u64) || block != Ok(SIZE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self(Mapping::new(file.as_fd(), ProtFlags::READ)?))
    }

    /// What the worker says now.
    pub fn read(&self) -> WorkerStats {
        self.0.page().read()
    }
}

/// The worker's side.
pub struct Writer(Target);

enum Target {
    Shared(Mapping),
    /// Nobody reads it.
    Private(Box<Page>),
}

impl Writer {
    /// A worker that has no page counts for itself.
    pub fn new(file: Option<&OwnedFd>) -> Self {
        let mapped = file.and_then(|file| Mapping::new(file, ProtFlags::READ | ProtFlags::WRITE).ok());
        Self(mapped.map_or_else(|| Target::Private(Box::default()), Target::Shared))
    }
}

impl Deref for Writer {
    type Target = Page;

    fn deref(&self) -> &Page {
        match &self.0 {
            Target::Shared(mapping) => mapping.page(),
            Target::Private(page) => page,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sticky_error_has_a_counter_and_nothing_else_has() {
        let sticky: Vec<CUresult> = (0..2000).filter(|code| is_sticky(*code)).collect();
        let mut counted = FAULTS.to_vec();
        counted.sort_unstable();
        assert_eq!(counted, sticky);
    }

    #[test]
    fn the_broker_reads_what_the_worker_counts_also_after_its_end() {
        let (reader, file) = Reader::create().unwrap();
        let writer = Writer::new(Some(&file));
        add(&writer.calls, 7);
        writer.deny(Denial::Unsupported);
        writer.fault(CUDA_ERROR_ASSERT);
        drop((writer, file));
        let stats = reader.read();
        assert_eq!((stats.calls, stats.denied(), stats.faulted(), stats.gpu_time_ns), (7, 1, 1, None));
        let json = serde_json::to_value(stats).unwrap();
        assert_eq!(json["denials"], serde_json::json!({ "unsupported": 1 }));
        assert_eq!(json["faults"], serde_json::json!({ "CUDA_ERROR_ASSERT": 1 }));
        assert_eq!(serde_json::from_value::<WorkerStats>(json).unwrap(), stats);
    }

    #[test]
    fn figures_never_go_backwards_nor_overflow() {
        let mut known = WorkerStats { calls: 10, ..WorkerStats::default() };
        known.advance(&WorkerStats { calls: 3, launches: 2, in_progress: 1, ..WorkerStats::default() });
        assert_eq!((known.calls, known.launches, known.in_progress), (10, 2, 1));
        known.advance(&WorkerStats::default());
        assert_eq!(known.in_progress, 0);
        known.add(&WorkerStats { calls: u64::MAX, gpu_time_ns: Some(5), ..WorkerStats::default() });
        assert_eq!((known.calls, known.gpu_time_ns), (u64::MAX, Some(5)));
    }

    #[test]
    fn a_page_that_could_shrink_is_refused() {
        let file = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, SIZE as u64).unwrap();
        assert!(Reader::adopt(&file).is_err());
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(Reader::adopt(&file).is_ok());
        let (_reader, file) = Reader::create().unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(Reader::adopt(&file).is_ok());
        let (socket, _other) = crate::packet::pair().unwrap();
        assert!(Reader::adopt(&socket).is_err());
    }
}
