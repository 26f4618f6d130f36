//! Where device `printf` goes: standard output, unless the process says otherwise.
//!
//! As with NVIDIA's driver, what kernels print comes out when the host waits for them, not while they run: so it stands
//! behind all that the host printed until then.

use std::io::Write;

use parking_lot::{Mutex, RwLock};

/// Takes whole messages, from any thread.
pub type Sink = Box<dyn Fn(&[u8]) + Send + Sync>;

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sends what kernels print to `sink`.
pub fn set_output(sink: Sink) {
    *SINK.write() = Some(sink);
}

/// What kernels have printed and nobody has waited for. The driver's own buffer has the same size.
static PENDING: Mutex<Vec<u8>> = Mutex::new(Vec::new());
const MOST_PENDING: usize = 1 << 20;

pub(crate) struct Printer;

impl ptx_exec::Output for Printer {
    fn write(&self, bytes: &[u8]) {
        let mut pending = PENDING.lock();
        pending.extend_from_slice(bytes);
        if pending.len() >= MOST_PENDING {
            put(&mut pending);
        }
    }

    fn finding(&self, finding: ptx_exec::Finding) {
        super::sanitizer::finding(&finding);
    }
}

/// Prints what there is: the host has waited, or is told something that comes after it.
pub(crate) fn flush() {
    let mut pending = PENDING.lock();
    if !pending.is_empty() {
        put(&mut pending);
    }
}

fn put(pending: &mut Vec<u8>) {
    match &*SINK.read() {
        Some(sink) => sink(pending),
        None => {
            let mut stdout = std::io::stdout().lock();
            // A closed standard output must not end the grid.
            let _ = stdout.write_all(pending).and_then(|()| stdout.flush());
        }
    }
    pending.clear();
    // One long text must not be kept for ever.
    pending.shrink_to(4096);
}
