//! Where things lie in the checkout.

use std::path::PathBuf;

/// The root of the checkout, wherever `cargo xtask` was called from.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the checkout").to_path_buf()
}

/// What was fetched, and survives `cargo clean`: `$BULKHEAD_CACHE`, or `.cache`.
pub fn cache() -> PathBuf {
    std::env::var_os("BULKHEAD_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from)
}

/// NVIDIA's compiler and runtimes.
pub fn cuda() -> PathBuf {
    cache().join("cuda")
}

pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A tree that runs as an installed Bulkhead does.
pub fn stage() -> PathBuf {
    target().join("stage")
}

/// The compiled test programs, with the runtimes that they load: complete in itself, to be carried to other machines.
pub fn programs() -> PathBuf {
    target().join("programs")
}
