//! Bulkhead in a directory of its own: started, used, killed, and shown to leave nothing behind.

mod binaries;
mod honest;
mod node;
mod place;
mod proxy;

pub use binaries::{Binaries, MissingBinary};
pub use honest::Honest;
pub use node::{Node, on_node, on_node_with};
pub use place::Place;
pub use proxy::{Proxy, ZONE_MEMORY};
pub use testkit::{TIMEOUT, is_alive, signal, until};
