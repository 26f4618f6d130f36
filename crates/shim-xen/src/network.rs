//! A pod's network: the interface that CNI has made, joined to one of the domain's.
//!
//! The domain's end on the host moves into CNI's namespace, and the kernel redirects every packet that comes in at one of the two
//! to the other (`tc`, `mirred`). The guest's interface has the hardware address, the addresses, routes and MTU of CNI's, so that
//! nobody outside sees a difference: Services, DNS and NetworkPolicy are where they were. Both go with the domain and the namespace.

use agent::protocol::{Address, Network, Route};
use serde::Deserialize;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use xen::DomainId;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("cannot run {0}")]
    Run(&'static str, #[source] io::Error),
    #[error("{0}: {1}")]
    Failed(&'static str, String),
    #[error("unexpected output of ip")]
    Output(#[source] serde_json::Error),
}

/// What CNI has made in the pod's namespace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PodInterface {
    name: String,
    pub network: Network,
}

// As `ip -json` writes them.
#[derive(Deserialize)]
struct Link {
    ifname: String,
    link_type: String,
    #[serde(default)]
    address: String,
    mtu: u32,
    #[serde(default)]
    addr_info: Vec<AddressInfo>,
}

#[derive(Deserialize)]
struct AddressInfo {
    local: Option<IpAddr>,
    prefixlen: u8,
    scope: String,
}

#[derive(Deserialize)]
struct RouteInfo {
    dst: String,
    gateway: Option<IpAddr>,
    dev: Option<String>,
    #[serde(default)]
    protocol: String,
}

/// Looks into the pod's namespace; none where it has only the loopback device.
pub(crate) fn find(namespace: &Path) -> Result<Option<PodInterface>, NetworkError> {
    let links = ip(namespace, &["-json", "address", "show"])?;
    let routes =
        [ip(namespace, &["-json", "-4", "route", "show"])?, ip(namespace, &["-json", "-6", "route", "show"])?];
    parse(&links, &routes).map_err(NetworkError::Output)
}

fn parse(links: &str, routes: &[String]) -> Result<Option<PodInterface>, serde_json::Error> {
    let links: Vec<Link> = serde_json::from_str(links)?;
    let Some(link) = links.into_iter().find(|link| link.link_type == "ether") else { return Ok(None) };
    let of_link = |info: AddressInfo| {
        // One that is only good on the link the guest makes by itself.
        let address = info.local.filter(|_| info.scope == "global")?;
        Some(Address { address, prefix: info.prefixlen })
    };
    let mut found = Vec::new();
    for (text, any) in routes.iter().zip(["0.0.0.0/0", "::/0"]) {
        // Where there are none, older versions write nothing at all.
        let list: Vec<RouteInfo> = if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(text)? };
        // What follows from an address follows from it in the guest, too.
        let ours = list.into_iter().filter(|route| route.protocol != "kernel" && route.protocol != "ra");
        let ours = ours.filter(|route| route.dev.as_deref() == Some(&link.ifname));
        found.extend(ours.filter_map(|route| {
            let to = network(if route.dst == "default" { any } else { &route.dst })?;
            Some(Route { to, gateway: route.gateway })
        }));
    }
    // Those on the link first: a gateway may be reached through one of them.
    found.sort_by_key(|route| route.gateway.is_some());
    let addresses = link.addr_info.into_iter().filter_map(of_link).collect();
    let network = Network { mac: link.address, mtu: link.mtu, addresses, routes: found };
    Ok(Some(PodInterface { name: link.ifname, network }))
}

/// `10.1.0.0/16`, or an address for itself.
fn network(text: &str) -> Option<Address> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address.parse().ok()?, prefix.parse().ok()?),
        None => {
            let address: IpAddr = text.parse().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    Some(Address { address, prefix })
}

/// Joins the domain's interface to the pod's.
pub(crate) fn join(namespace: &Path, pod: &PodInterface, domain: DomainId) -> Result<(), NetworkError> {
    let vif = format!("vif{domain}.0");
    let to =
        [OsStr::new("link"), "set".as_ref(), "dev".as_ref(), vif.as_ref(), "netns".as_ref(), namespace.as_os_str()];
    run("ip", Command::new("ip").args(to))?;
    join_in(namespace, &pod.name, &vif, pod.network.mtu)
}

/// Of two interfaces in the namespace, each gets what comes in at the other.
fn join_in(namespace: &Path, one: &str, other: &str, mtu: u32) -> Result<(), NetworkError> {
    let mtu = mtu.to_string();
    ip(namespace, &["link", "set", "dev", other, "mtu", &mtu, "up"])?;
    for (from, to) in [(one, other), (other, one)] {
        inside(namespace, "tc", &["qdisc", "replace", "dev", from, "ingress"])?;
        let action = ["action", "mirred", "egress", "redirect", "dev", to];
        // Everything, by the classifier that every kernel has.
        let all = ["u32", "match", "u32", "0", "0"];
        let filter = ["filter", "add", "dev", from, "parent", "ffff:", "protocol", "all"];
        inside(namespace, "tc", &[&filter[..], &all[..], &action[..]].concat())?;
    }
    Ok(())
}

fn ip(namespace: &Path, arguments: &[&str]) -> Result<String, NetworkError> {
    inside(namespace, "ip", arguments)
}

/// Runs a command of the host in the pod's network.
fn inside(namespace: &Path, program: &'static str, arguments: &[&str]) -> Result<String, NetworkError> {
    let mut net = std::ffi::OsString::from("--net=");
    net.push(namespace);
    run(program, Command::new("nsenter").arg(net).arg("--").arg(program).args(arguments))
}

fn run(program: &'static str, command: &mut Command) -> Result<String, NetworkError> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| NetworkError::Run(program, error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(NetworkError::Failed(program, said.lines().next().unwrap_or("no output").trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, prefix: u8) -> Address {
        Address { address: text.parse().unwrap(), prefix }
    }

    #[test]
    fn what_cni_made_is_told_as_it_is() {
        let links = r#"[{"ifindex":1,"ifname":"lo","link_type":"loopback","address":"00:00:00:00:00:00","mtu":65536,"addr_info":[]},
            {"ifindex":2,"ifname":"eth0","link_type":"ether","address":"0a:58:0a:16:00:05","mtu":1450,"addr_info":[
                {"family":"inet","local":"10.22.0.5","prefixlen":32,"scope":"global"},
                {"family":"inet6","local":"fd00::5","prefixlen":64,"scope":"global"},
                {"family":"inet6","local":"fe80::1","prefixlen":64,"scope":"link"}]}]"#;
        let four = r#"[{"dst":"default","gateway":"169.254.1.1","dev":"eth0","flags":[]},
            {"dst":"169.254.1.1","dev":"eth0","scope":"link","flags":[]},
            {"dst":"10.22.0.0/24","dev":"eth0","protocol":"kernel","scope":"link","flags":[]}]"#;
        let six = r#"[{"dst":"default","gateway":"fd00::1","dev":"eth0","flags":[]}]"#;
        let found = parse(links, &[four.to_owned(), six.to_owned()]).unwrap().unwrap();
        let network = Network {
            mac: "0a:58:0a:16:00:05".into(),
            mtu: 1450,
            addresses: vec![address("10.22.0.5", 32), address("fd00::5", 64)],
            routes: vec![
                Route { to: address("169.254.1.1", 32), gateway: None },
                Route { to: address("0.0.0.0", 0), gateway: Some("169.254.1.1".parse().unwrap()) },
                Route { to: address("::", 0), gateway: Some("fd00::1".parse().unwrap()) },
            ],
        };
        assert_eq!(found, PodInterface { name: "eth0".into(), network });
        let only_loopback = r#"[{"ifname":"lo","link_type":"loopback","mtu":65536}]"#;
        assert_eq!(parse(only_loopback, &[String::new(), "[]".into()]).unwrap(), None);
        assert!(parse("not json", &[]).is_err());
    }

    const LISTEN: &str = "import socket; s = socket.create_server((\"10.22.0.5\", 7)); print(\"ready\", flush=True); \
        c, _ = s.accept(); c.sendall(c.recv(9))";
    const SPEAK: &str = "import socket; c = socket.create_connection((\"10.22.0.5\", 7), 30); c.sendall(b\"hello\"); \
        assert c.recv(9) == b\"hello\"";

    /// A namespace with what CNI makes, and an interface in the place of the domain's whose other end is the guest's.
    #[test]
    fn packets_reach_the_guest_and_come_back() {
        if !rustix::process::geteuid().is_root() {
            return testkit::not_tried("network namespaces need root");
        }
        let names = ["host", "pod", "guest"].map(|name| format!("shim-xen-{name}-{}", std::process::id()));
        let [host, pod, guest] = &names;
        let shell = |script: &str| {
            let output = Command::new("sh").args(["-ec", script]).output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let made = shell(&format!(
            "for n in {host} {pod} {guest}; do ip netns add $n; done
             ip -n {host} link add near type veth peer name eth0 netns {pod}
             ip -n {pod} link add vif9.0 type veth peer name eth0 netns {guest}
             ip -n {host} addr add 10.22.0.1/24 dev near; ip -n {host} link set near up
             ip -n {pod} addr add 10.22.0.5/24 dev eth0; ip -n {pod} link set eth0 up
             ip -n {pod} route add default via 10.22.0.1"
        ));
        let tried = if made.0 {
            let namespace = Path::new("/run/netns").join(pod);
            let found = find(&namespace).unwrap().unwrap();
            assert_eq!(found.network.addresses, [address("10.22.0.5", 24)]);
            let joined = join_in(&namespace, &found.name, "vif9.0", found.network.mtu);
            let mac = &found.network.mac;
            // The pod's own stack has the address, too, and nobody who listens.
            joined.map(|()| {
                shell(&format!(
                    "ip -n {guest} addr add 10.22.0.5/24 dev eth0; ip -n {guest} link set eth0 address {mac} up
                     nsenter --net=/run/netns/{guest} timeout 60 python3 -c '{LISTEN}' | {{
                         read ready; exec nsenter --net=/run/netns/{host} timeout 60 python3 -c '{SPEAK}'; }}"
                ))
            })
        } else {
            Ok(made.clone())
        };
        let counted = shell(&format!("ip -n {guest} -s -o link show eth0 >&2"));
        for name in &names {
            let _ = shell(&format!("ip netns del {name}"));
        }
        match tried {
            Ok((true, _)) => {}
            Ok((false, said)) => panic!("{said} {}", counted.1),
            Err(NetworkError::Failed("tc", said))
                if said.contains("not found") || said.contains("Failed to load") =>
            {
                testkit::not_tried(&format!("this kernel has no tc filters: {said}"));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
