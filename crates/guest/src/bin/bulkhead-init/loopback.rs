//! The loopback device, which programs that speak to themselves need, is down after boot.

use rustix::net::{AddressFamily, SendFlags, SocketType, netlink, sendto, socket};

const NEW_LINK: u16 = 16;
const REQUEST: u16 = 1;
const UP: u32 = 1;
/// The first device of every system.
const LOOPBACK: i32 = 1;

/// One message to the kernel: the device with this number goes up. If it does not, few will miss it.
pub(crate) fn up() {
    let mut message = Vec::with_capacity(32);
    // The head: length, type, flags, sequence number, sender.
    message.extend(32u32.to_ne_bytes());
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    // The device: family and kind do not matter, then its number, its flags, and which of them are meant.
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    if let Ok(socket) = socket(AddressFamily::NETLINK, SocketType::RAW, None) {
        let _ = sendto(&socket, &message, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0));
    }
}
