//! Compiled kernels on disk, so that a module that was seen before need not be compiled again.
//!
//! ```text
//! key  = SHA-256(build of this crate, processor, PTX text, kernel)      computed here, never taken from outside
//! file = records, one after the other: key, length, checksum, code      appended under a lock, never changed
//! ```
//!
//! What is in the file is executed. A process that can write to it can run code in the processes that use it, so a file is
//! shared only by processes that trust each other; see THREAT_MODEL.md. The checksum is there for accidents: a record that was cut off or
//! that another process is discarding.

mod image;
mod store;

use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::code::Image;
use store::Store;

static STORE: OnceLock<Store> = OnceLock::new();
static FOUND: AtomicU64 = AtomicU64::new(0);

/// 256 bits that name a text or a kernel.
pub type Key = [u8; 32];

/// Keeps compiled kernels in `file` from now on; the first file of a process stays.
pub fn keep_in(file: File) {
    if let Some(store) = Store::open(file) {
        let _ = STORE.set(store);
    }
}

/// How many kernels of this process came from the file.
pub fn found() -> u64 {
    FOUND.load(Ordering::Relaxed)
}

/// The name of a text, if kernels are kept at all.
pub fn text_key(text: &str) -> Option<Key> {
    STORE.get()?;
    Some(Sha256::digest(text.as_bytes()).into())
}

fn kernel_key(text: &Key, kernel: usize, processor: &str) -> Key {
    let mut hash = Sha256::new();
    hash.update(env!("PTX_EXEC_BUILD").as_bytes());
    hash.update((processor.len() as u64).to_le_bytes());
    hash.update(processor.as_bytes());
    hash.update(text);
    hash.update((kernel as u64).to_le_bytes());
    hash.finalize().into()
}

/// The code of a kernel: from the file, else made by `compile` and put there.
pub fn or_compile<E>(
    text: Option<&Key>,
    kernel: usize,
    processor: &str,
    compile: impl FnOnce() -> Result<Image, E>,
) -> Result<Image, E> {
    let (Some(store), Some(text)) = (STORE.get(), text) else { return compile() };
    let key = kernel_key(text, kernel, processor);
    if let Some(image) = store.find(&key).and_then(|bytes| image::decode(&bytes)) {
        FOUND.fetch_add(1, Ordering::Relaxed);
        return Ok(image);
    }
    let image = compile()?;
    store.add(&key, &image::encode(&image));
    Ok(image)
}
