//! The machine's interface on the pod's network, set up through the kernel's netlink: what `ip` does, without a program in the
//! machine.

use crate::protocol::{Address, Network, Route};
use rustix::net::{AddressFamily, SendFlags, SocketType, netlink, sendto, socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the interface may take to appear after the machine has started.
const TIMEOUT: Duration = Duration::from_secs(10);
const INTERFACES: &str = "/sys/class/net";

// Kinds of messages, flags and attributes, as in the kernel's rtnetlink.h.
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const REPLACE: u16 = 0x100;
const CREATE: u16 = 0x400;
const UP: u32 = 1;
const LINK_MTU: u16 = 4;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// An address of IPv6 is used at once: nobody else has it, as the host knows.
const NO_DUPLICATE_DETECTION: u8 = 2;
const ROUTE_TO: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const MAIN_TABLE: u8 = 254;
const STATIC: u8 = 4;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;
/// The gateway is on the link, whatever the addresses say.
const ON_LINK: u32 = 4;

/// Gives the interface with the network's hardware address what the host's has.
pub(crate) fn set_up(network: &Network) -> io::Result<()> {
    let start = Instant::now();
    let index = loop {
        match find(Path::new(INTERFACES), &network.mac) {
            Some(index) => break index,
            None if start.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            None => return Err(io::Error::new(io::ErrorKind::NotFound, "the pod's interface did not appear")),
        }
    };
    configure(index, network)
}

/// The number of the interface that has this hardware address.
fn find(interfaces: &Path, mac: &str) -> Option<u32> {
    let read = |path: &Path, file: &str| Some(std::fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
    std::fs::read_dir(interfaces).ok()?.filter_map(Result::ok).find_map(|entry| {
        let path = entry.path();
        let same = read(&path, "address")?.eq_ignore_ascii_case(mac);
        if same { read(&path, "ifindex")?.parse().ok() } else { None }
    })
}

fn configure(index: u32, network: &Network) -> io::Result<()> {
    let kernel = Kernel::open()?;
    kernel.ask(&link(index, network.mtu))?;
    for address in &network.addresses {
        kernel.ask(&new_address(index, address))?;
    }
    for route in &network.routes {
        kernel.ask(&new_route(index, route))?;
    }
    Ok(())
}

struct Kernel(OwnedFd);

impl Kernel {
    fn open() -> io::Result<Self> {
        Ok(Self(socket(AddressFamily::NETLINK, SocketType::RAW, None)?))
    }

    /// Sends a message, and waits for the kernel's word on it.
    fn ask(&self, message: &[u8]) -> io::Result<()> {
        sendto(&self.0, message, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
        let mut answer = [0; 4096];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut answer))?;
        let answer = &answer[..count];
        let kind = answer.get(4..6).map(|two| u16::from_ne_bytes([two[0], two[1]]));
        let code = answer.get(16..20).map(|four| i32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
        match (kind, code) {
            (Some(ERROR), Some(0)) => Ok(()),
            (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected answer from the kernel")),
        }
    }
}

/// A message: its head, the fixed part of its kind, and attributes.
fn message(kind: u16, flags: u16, fixed: &[u8], attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = fixed.to_vec();
    for (kind, data) in attributes {
        let length = u16::try_from(4 + data.len()).unwrap_or(u16::MAX);
        body.extend(length.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(data);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut all = Vec::new();
    all.extend(u32::try_from(16 + body.len()).unwrap_or(u32::MAX).to_ne_bytes());
    all.extend(kind.to_ne_bytes());
    all.extend((flags | REQUEST | ACKNOWLEDGE).to_ne_bytes());
    // Sequence number and sender: there is one question at a time.
    all.extend([0; 8]);
    all.extend(body);
    all
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw().to_le_bytes()[0]
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// The interface goes up.
fn link(index: u32, mtu: u32) -> Vec<u8> {
    let mut fixed = vec![0; 4];
    fixed.extend(index.to_ne_bytes());
    fixed.extend(UP.to_ne_bytes());
    fixed.extend(UP.to_ne_bytes());
    let mtu = (mtu > 0).then(|| (LINK_MTU, mtu.to_ne_bytes().into()));
    message(NEW_LINK, 0, &fixed, &Vec::from_iter(mtu))
}

fn new_address(index: u32, Address { address, prefix }: &Address) -> Vec<u8> {
    let flags = if address.is_ipv6() { NO_DUPLICATE_DETECTION } else { 0 };
    let mut fixed = vec![family(*address), *prefix, flags, 0];
    fixed.extend(index.to_ne_bytes());
    let bytes = octets(*address);
    message(NEW_ADDRESS, CREATE | REPLACE, &fixed, &[(LOCAL, bytes.clone()), (ADDRESS, bytes)])
}

fn new_route(index: u32, Route { to, gateway }: &Route) -> Vec<u8> {
    let (scope, flags) = match gateway {
        Some(_) => (0, ON_LINK),
        None => (SCOPE_LINK, 0),
    };
    let mut fixed = vec![family(to.address), to.prefix, 0, 0, MAIN_TABLE, STATIC, scope, UNICAST];
    fixed.extend(flags.to_ne_bytes());
    let mut attributes = vec![(ROUTE_INTERFACE, index.to_ne_bytes().to_vec())];
    if to.prefix > 0 {
        attributes.push((ROUTE_TO, octets(to.address)));
    }
    attributes.extend(gateway.map(|gateway| (ROUTE_GATEWAY, octets(gateway))));
    message(NEW_ROUTE, CREATE | REPLACE, &fixed, &attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::UnshareFlags;
    use std::process::Command;

    fn address(text: &str, prefix: u8) -> Address {
        Address { address: text.parse().unwrap(), prefix }
    }

    #[test]
    fn interfaces_are_found_by_their_hardware_address() {
        let dir = testkit::directory();
        dir.write("lo/address", "00:00:00:00:00:00\n");
        dir.write("lo/ifindex", "1\n");
        dir.write("eth0/address", "0a:58:0a:16:00:05\n");
        dir.write("eth0/ifindex", "7\n");
        assert_eq!(find(&dir, "0A:58:0a:16:00:05"), Some(7));
        assert_eq!(find(&dir, "0a:58:0a:16:00:06"), None);
    }

    /// Asks the real kernel, in a network of this thread's own.
    #[test]
    fn the_kernel_takes_what_it_is_told() {
        // SAFETY: only this thread's network changes, and no descriptor table is unshared.
        if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.is_err() {
            return testkit::not_tried("a network namespace needs root");
        }
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        ip("link add eth0 type veth peer name far");
        ip("link set far up");
        let index = ip("-o link show eth0").split(':').next().unwrap().trim().parse().unwrap();
        // As Calico has it: an address for itself, and a gateway that is in no network of it.
        let network = Network {
            mac: String::new(),
            mtu: 1400,
            addresses: vec![address("10.22.0.5", 32), address("fd00::5", 64)],
            routes: vec![
                Route { to: address("169.254.1.1", 32), gateway: None },
                Route { to: address("0.0.0.0", 0), gateway: Some("169.254.1.1".parse().unwrap()) },
                Route { to: address("::", 0), gateway: Some("fd00::1".parse().unwrap()) },
            ],
        };
        configure(index, &network).unwrap();
        // Said twice, it is the same.
        configure(index, &network).unwrap();
        let shown = ip("address show eth0");
        for part in ["mtu 1400", "inet 10.22.0.5/32", "inet6 fd00::5/64 scope global nodad", "UP"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        let routes = ip("route show");
        assert!(routes.contains("default via 169.254.1.1 dev eth0"), "{routes}");
        assert!(routes.contains("169.254.1.1 dev eth0"), "{routes}");
        assert!(ip("-6 route show").contains("default via fd00::1 dev eth0"));
        let nowhere = Network { addresses: vec![address("10.0.0.1", 99)], ..network };
        assert!(configure(index, &nowhere).is_err(), "the kernel's refusal is passed on");
    }
}
