//! The socket over which programs meet others by name, as containers have it.

use std::path::Path;
use xen::names::{Listener, SOCKET};

/// Serves on threads, as long as the guest runs. What goes wrong here does not concern programs that use no names.
pub(crate) fn serve() {
    let listener = Listener::at(Path::new(SOCKET)).map_err(|error| error.to_string());
    let served = listener.and_then(|listener| {
        let serve = move || listener.serve(|problem| eprintln!("bulkhead-init: names: {problem}"));
        std::thread::Builder::new().name("names".into()).spawn(serve).map_err(|error| error.to_string())
    });
    if let Err(error) = served {
        eprintln!("bulkhead-init: names: {error}");
    }
}

/// The first argument of the process that [`serve_apart`] starts.
pub(crate) const SERVE: &str = "--serve-names";

/// Serves in a process of its own: the agent must have one thread.
pub(crate) fn serve_apart() {
    if let Err(error) = std::process::Command::new("/proc/self/exe").arg(SERVE).spawn() {
        eprintln!("bulkhead-init: names: {error}");
    }
}

/// Becomes that process.
pub(crate) fn serve_here() -> ! {
    match Listener::at(Path::new(SOCKET)) {
        Ok(listener) => listener.serve(|problem| eprintln!("bulkhead-init: names: {problem}")),
        Err(error) => {
            eprintln!("bulkhead-init: names: {error}");
            std::process::exit(1);
        }
    }
}
