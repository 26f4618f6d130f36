//! Where device `printf` goes: standard output, unless the process says otherwise.

use std::io::Write;

use parking_lot::RwLock;

/// Takes one whole message at a time, from any thread.
pub type Sink = Box<dyn Fn(&[u8]) + Send + Sync>;

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sends what kernels print to `sink`.
pub fn set_output(sink: Sink) {
    *SINK.write() = Some(sink);
}

pub(crate) struct Printer;

impl ptx_exec::Output for Printer {
    fn write(&self, bytes: &[u8]) {
        match &*SINK.read() {
            Some(sink) => sink(bytes),
            None => {
                let mut stdout = std::io::stdout().lock();
                // A closed standard output must not end the grid.
                let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
            }
        }
    }
}
