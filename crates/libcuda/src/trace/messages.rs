//! `BULKHEAD_TRACE_MESSAGES`: every message that goes to the worker, as it is, in a file for each process in the directory
//! of that name. When it is off, a message pays one relaxed load.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use cuda_abi::env_vars;
use cuda_abi::wire::record::{self, Way};
use parking_lot::Mutex;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
/// Most that a process writes.
const MAX_BYTES: usize = 256 << 20;

static WANTED: AtomicU8 = AtomicU8::new(UNKNOWN);
static FILE: Mutex<Option<(u32, File, usize)>> = Mutex::new(None);

/// Has a message kept as well as written, if somebody wants that.
#[inline]
pub(crate) fn kept(way: Way, op: u16, tag: u32, fill: impl FnOnce(&mut [u8])) -> impl FnOnce(&mut [u8]) {
    move |slot| {
        fill(slot);
        if WANTED.load(Ordering::Relaxed) != OFF {
            keep(way, op, tag, slot);
        }
    }
}

#[cold]
fn keep(way: Way, op: u16, tag: u32, payload: &[u8]) {
    let dir = std::env::var_os(env_vars::TRACE_MESSAGES).filter(|dir| !dir.is_empty());
    WANTED.store(if dir.is_some() { ON } else { OFF }, Ordering::Relaxed);
    let Some(dir) = dir else { return };
    let mut file = FILE.lock();
    // A forked child has a file of its own.
    let own = std::process::id();
    if file.as_ref().is_none_or(|(process, ..)| *process != own) {
        *file = File::create(Path::new(&dir).join(format!("{own}.messages"))).ok().map(|file| (own, file, 0));
    }
    match file.as_mut() {
        Some((_, file, written)) if *written < MAX_BYTES => {
            let message = [&record::head(way, op, tag, payload.len())[..], payload].concat();
            *written += message.len();
            // Who looks at a file that is not whole sees that by its last message.
            let _ = file.write_all(&message);
        }
        Some(_) => {}
        None => {
            eprintln!("bulkhead: BULKHEAD_TRACE_MESSAGES: cannot create a file in {}", dir.display());
            WANTED.store(OFF, Ordering::Relaxed);
        }
    }
}
