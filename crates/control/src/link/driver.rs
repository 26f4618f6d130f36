//! What the preemptor must know of a worker's driver library.

use std::io;
use std::os::fd::BorrowedFd;

use zerocopy::IntoBytes;

use super::{BrokerLink, Shared};
use crate::messages::{ToBroker, to_broker, to_worker};
use crate::packet;

/// Tells of everything again.
pub(super) type Announce = Box<dyn Fn() + Send + Sync>;

impl BrokerLink {
    /// Says who tells of everything when a broker asks for it.
    pub fn on_announce(&self, announce: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.announce.set(Box::new(announce));
    }

    /// Tells of the file through which the driver library speaks as `client`, or (0) of the page of a software GPU.
    pub fn tell_driver_file(&self, client: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        let mut message = ToBroker::new(to_broker::DRIVER_FILE);
        message.value = client.into();
        let file = message.bring(Some(file), self.shared.names_descriptors);
        self.tell_driver(&message, file.as_slice())
    }

    /// Tells of an object of the driver library: client, parent, handle, class and engine.
    pub fn tell_driver_object(&self, words: [u32; 5]) -> io::Result<()> {
        self.tell_driver(&ToBroker::driver_object(words), &[])
    }

    /// That was all there is, which a broker has asked for.
    pub fn tell_announced(&self) -> io::Result<()> {
        self.tell_driver(&ToBroker::new(to_broker::ANNOUNCED), &[])
    }

    fn tell_driver(&self, message: &ToBroker, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = self.shared.lock().socket.clone().ok_or(io::ErrorKind::NotConnected)?;
        // It may wait here for a broker that is slow: nobody else does.
        packet::send(&socket, message.as_bytes(), fds)
    }
}

impl Shared {
    pub(super) fn asked(&self, kind: u32) {
        if let Some(announce) = self.announce.get().filter(|_| kind == to_worker::ANNOUNCE) {
            announce();
        }
    }
}
