//! The socket over which programs meet others by name, as containers have it.

use std::path::Path;
use xen::names::Listener;

const FOLDER: &str = "/run/bulkhead/zone";
const SOCKET: &str = "/run/bulkhead/zone/names";

/// Serves on threads, as long as the guest runs. Whoever needs no names is not to suffer from what goes wrong here.
pub fn serve() {
    let listener = std::fs::create_dir_all(FOLDER).map_err(|error| error.to_string());
    let listener = listener.and_then(|()| Listener::at(Path::new(SOCKET)).map_err(|error| error.to_string()));
    let served = listener.and_then(|listener| {
        let serve = move || listener.serve(|problem| eprintln!("bulkhead-init: names: {problem}"));
        std::thread::Builder::new().name("names".into()).spawn(serve).map_err(|error| error.to_string())
    });
    if let Err(error) = served {
        eprintln!("bulkhead-init: names: {error}");
    }
}
