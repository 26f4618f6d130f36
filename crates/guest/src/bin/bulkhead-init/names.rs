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
