//! A proxy with zones for the length of a test, and the proof that nothing is left of it.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use super::{Honest, Place, Proxy};

pub struct Node<'a> {
    pub place: &'a Place,
    proxy: Proxy<'a>,
}

/// Does something on a node with these zones. `player` is the path of the `conformance` program.
pub fn on_node(player: &str, zones: &[&str], body: impl FnOnce(&mut Node<'_>)) {
    on_node_with(player, zones, &[], body);
}

/// The same, with more options of `bulkhead proxy`.
pub fn on_node_with(player: &str, zones: &[&str], options: &[&str], body: impl FnOnce(&mut Node<'_>)) {
    let place = Place::new(PathBuf::from(player));
    let mut node = Node { place: &place, proxy: Proxy::start_with(&place, zones, options) };
    body(&mut node);
    node.proxy.stop();
    place.nothing_is_left();
}

impl Node<'_> {
    /// A client of a zone, with a context and some memory.
    pub fn client(&self, zone: &str) -> Honest {
        Honest::start(self.place, &self.proxy.socket(zone))
    }

    /// A process of a zone that shares with others: see [`crate::sharer`].
    pub fn sharer(&self, zone: &str) -> Honest {
        Honest::from_command(self.place.player(&["sharer"], &self.proxy.socket(zone)))
    }

    /// One that works on another than the first GPU.
    pub fn sharer_on(&self, zone: &str, device: u32) -> Honest {
        Honest::from_command(self.place.player(&["sharer", &device.to_string()], &self.proxy.socket(zone)))
    }

    pub fn sharers<const N: usize>(&self, zone: &str) -> [Honest; N] {
        std::array::from_fn(|_| self.sharer(zone))
    }

    /// `bulkhead grants …`: what it says, on whichever output.
    pub fn grants(&self, arguments: &[&str]) -> String {
        self.operate("grants", arguments).unwrap_or_else(|error| error)
    }

    /// `bulkhead zones …`: what it says, or of what it complains.
    pub fn zones(&self, arguments: &[&str]) -> Result<String, String> {
        self.operate("zones", arguments)
    }

    fn operate(&self, verb: &str, arguments: &[&str]) -> Result<String, String> {
        let socket = self.place.state().join("admin.sock");
        let socket = socket.to_str().expect("a plain path");
        let arguments = [&[verb, "--socket", socket], arguments].concat();
        let output = self.place.bulkhead(&arguments).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

impl<'a> Deref for Node<'a> {
    type Target = Proxy<'a>;

    fn deref(&self) -> &Proxy<'a> {
        &self.proxy
    }
}

impl<'a> DerefMut for Node<'a> {
    fn deref_mut(&mut self) -> &mut Proxy<'a> {
        &mut self.proxy
    }
}
