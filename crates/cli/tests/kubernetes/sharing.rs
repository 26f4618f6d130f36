//! What namespaces share: GpuShareGrants, `sharing = "namespace"` and quotas, from the API server and the file to the broker,
//! and from there to clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::harness::{Binaries, Honest};
use serde_json::{Value, json};
use testkit::until;

use crate::dra::Lab;
use crate::load::memory;
use crate::node::Node;

const NOT_PERMITTED: &str = "error 800";
const OUT_OF_MEMORY: &str = "error 2";
const MIB: usize = 1 << 20;

fn uid(number: usize) -> String {
    format!("00000000-0000-0000-0000-{number:012}")
}

fn zone(number: usize) -> String {
    format!("claim-{}", uid(number))
}

/// Prepares the claim of this number in a namespace: 1 GiB of the first GPU.
fn claim(lab: &Lab, namespace: &str, number: usize) {
    let (name, uid) = (format!("c{number}"), uid(number));
    lab.cluster.allocate_claim(namespace, &name, &uid, "1Gi", "10");
    assert_eq!(lab.prepare_in(namespace, &name, &uid).error, "");
}

/// What the broker allows: exporter, opener, access.
fn grants(lab: &Lab) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = lab.node.json(&["grants", "list"]);
    list.as_array().unwrap().iter().map(|one| (text(&one["from"]), text(&one["to"]), text(&one["access"]))).collect()
}

fn allows(lab: &Lab, from: usize, to: usize) -> bool {
    grants(lab).iter().any(|(exporter, opener, _)| (exporter, opener) == (&zone(from), &zone(to)))
}

/// Clients with our `libcuda.so.1`, which other packages build.
struct Clients {
    player: PathBuf,
    libraries: testkit::Directory,
}

impl Clients {
    fn find() -> Option<Self> {
        let player = Path::new(env!("CARGO_BIN_EXE_bulkhead")).with_file_name("conformance");
        let found = Binaries::find().map_err(|error| error.to_string());
        let found = found.and_then(|found| match player.is_file() {
            true => Ok(found),
            false => Err("conformance was not built".to_owned()),
        });
        match found {
            Ok(found) => {
                let libraries = testkit::directory();
                std::os::unix::fs::symlink(&found.library, libraries.join("libcuda.so.1")).unwrap();
                Some(Self { player, libraries })
            }
            Err(why) => {
                testkit::not_tried(&format!("no clients: {why}"));
                None
            }
        }
    }

    /// One that shares with others, in the zone of a claim.
    fn sharer(&self, lab: &Lab, number: usize) -> Honest {
        let mut command = Command::new(&self.player);
        command.arg("sharer").env("LD_LIBRARY_PATH", &*self.libraries);
        command.env("BULKHEAD_SOCKET", lab.node.socket(&zone(number)));
        Honest::from_command(command)
    }
}

/// Memory that a client of a zone offers; it stays with the client.
fn exported(client: &mut Honest) -> String {
    client.expect(&[(&format!("alloc {}", 4 * MIB), "ok"), ("fill 7", "ok")]);
    client.ask("handle")
}

#[test]
fn a_grant_lets_pods_in_until_it_is_deleted() {
    let lab = Lab::start();
    let driver = lab.driver();
    claim(&lab, "research", 1);
    claim(&lab, "viewers", 2);
    let clients = Clients::find();
    let mut exporter = clients.as_ref().map(|clients| clients.sharer(&lab, 1));
    let handle = exporter.as_mut().map(exported).unwrap_or_default();
    let open = format!("open {handle}");
    if let Some(clients) = &clients {
        clients.sharer(&lab, 2).expect(&[(&open, NOT_PERMITTED)]);
    }
    lab.cluster.grant("research", "to-viewers", json!({ "to": { "namespace": "viewers", "claim": "c2" } }));
    until("the broker allows it", || allows(&lab, 1, 2));
    assert_eq!(grants(&lab), [(zone(1), zone(2), "read-only".to_owned())], "and nothing else");
    let mut opener = clients.as_ref().map(|clients| clients.sharer(&lab, 2));
    if let Some(opener) = &mut opener {
        opener.opens(&handle);
        opener.expect(&[("read", "7")]);
    }
    // Another version of the object counts at once; of a namespace that has nothing here it means nothing.
    lab.cluster.grant(
        "research",
        "to-viewers",
        json!({ "to": { "namespace": "viewers", "claim": "c2" }, "access": "ReadWrite" }),
    );
    until("it may be written", || grants(&lab) == [(zone(1), zone(2), "read-write".to_owned())]);
    lab.cluster.grant("elsewhere", "thief", json!({ "to": { "namespace": "viewers" } }));
    lab.cluster.grant("research", "misspelt", json!({ "too": { "namespace": "viewers" } }));
    driver.logged("ignoring invalid GpuShareGrant");

    lab.cluster.revoke("research", "to-viewers");
    until("the broker allows nothing", || grants(&lab).is_empty());
    if let (Some(clients), Some(opener)) = (&clients, &mut opener) {
        until("who had it open is ended", || opener.try_ask("read").as_deref() != Some("7"));
        clients.sharer(&lab, 2).expect(&[(&open, NOT_PERMITTED)]);
        exporter.as_mut().unwrap().expect(&[("read", "7")]);
    }
}

#[test]
fn a_grant_that_was_deleted_while_the_driver_was_away_is_revoked() {
    let lab = Lab::start();
    let mut driver = lab.driver();
    claim(&lab, "a", 1);
    claim(&lab, "b", 2);
    lab.cluster.grant("a", "g", json!({ "to": { "namespace": "b" } }));
    lab.cluster.grant("b", "kept", json!({ "to": { "namespace": "a" } }));
    until("the broker allows both", || allows(&lab, 1, 2) && allows(&lab, 2, 1));
    driver.kill(testkit::Signal::KILL);
    lab.cluster.revoke("a", "g");
    let _driver = lab.driver();
    until("one of them is revoked", || !allows(&lab, 1, 2));
    assert!(allows(&lab, 2, 1));
}

#[test]
fn a_watch_that_expired_is_begun_anew() {
    let lab = Lab::start();
    let driver = lab.driver();
    claim(&lab, "a", 1);
    claim(&lab, "b", 2);
    lab.cluster.grant("a", "g", json!({ "to": { "namespace": "b" } }));
    until("the broker allows it", || allows(&lab, 1, 2));
    let (lists, _) = lab.cluster.lists();
    // What happens meanwhile is known from no event.
    lab.cluster.revoke("a", "g");
    lab.cluster.compact();
    until("it is listed again", || lab.cluster.lists().0 > lists);
    until("the broker allows nothing", || grants(&lab).is_empty());
    assert_eq!(driver.count("cannot follow GpuShareGrants; those known stay in force"), 0);
}

/// The pod of the chart has 64 MiB; this is what grants may add to what the driver has anyway.
const MOST_KIB: u64 = 32 << 10;

#[test]
fn thousands_of_grants_with_large_annotations_do_not_end_the_driver() {
    const GREEDY: usize = 2000;
    let lab = Lab::start();
    let mut driver = lab.driver();
    claim(&lab, "a", 1);
    claim(&lab, "b", 2);
    lab.cluster.grant("a", "first", json!({ "to": { "namespace": "b" } }));
    until("the broker allows it", || allows(&lab, 1, 2));
    let before = memory(&driver).peak;

    // As a list, from its first page on: 63 MiB of them.
    for number in 0..GREEDY {
        lab.cluster.grant("greedy", &format!("{number:06}"), json!({ "to": { "namespace": "b" } }));
    }
    lab.cluster.grant("z", "last", json!({ "to": { "namespace": "a" } }));
    lab.cluster.grant("b", "back", json!({ "to": { "namespace": "a" } }));
    lab.cluster.pad(32 << 10);
    lab.cluster.compact();
    let said = driver.logged("too many GpuShareGrants; some of this namespace are not in force");
    assert_eq!(said["namespace"], "greedy");
    until("grants of others are in force", || allows(&lab, 1, 2) && allows(&lab, 2, 1));
    claim(&lab, "z", 3);
    until("of later pods, too", || allows(&lab, 3, 1));
    // And one by one.
    for number in 0..50 {
        lab.cluster.grant("greedy", &format!("more-{number:06}"), json!({ "to": { "namespace": "b" } }));
    }
    lab.cluster.revoke("a", "first");
    until("what is deleted is revoked", || !allows(&lab, 1, 2));

    let (_, largest) = lab.cluster.lists();
    assert!(largest <= 500, "{largest} objects in one page");
    let after = memory(&driver).peak;
    assert!(after < before + MOST_KIB, "{before} KiB have become {after} KiB");
    assert!(driver.child.try_wait().unwrap().is_none(), "it has ended");
}

#[test]
fn pods_of_a_namespace_share_where_the_file_says_so() {
    let lab = Lab::on(Node::start("[kubernetes]\nsharing = \"namespace\"\n"));
    let _driver = lab.driver();
    claim(&lab, "team", 1);
    claim(&lab, "team", 2);
    claim(&lab, "others", 3);
    let Some(clients) = Clients::find() else { return };
    let mut exporter = clients.sharer(&lab, 1);
    let handle = exported(&mut exporter);
    let mut opener = clients.sharer(&lab, 2);
    opener.opens(&handle);
    opener.expect(&[("read", "7")]);
    clients.sharer(&lab, 3).expect(&[(&format!("open {handle}"), NOT_PERMITTED)]);
}

#[test]
fn pods_of_a_namespace_do_not_share_by_themselves() {
    let lab = Lab::start();
    let _driver = lab.driver();
    claim(&lab, "team", 1);
    claim(&lab, "team", 2);
    let Some(clients) = Clients::find() else { return };
    let mut exporter = clients.sharer(&lab, 1);
    let handle = exported(&mut exporter);
    clients.sharer(&lab, 2).expect(&[(&format!("open {handle}"), NOT_PERMITTED)]);
}

#[test]
fn pods_of_a_namespace_have_one_quota() {
    let lab = Lab::on(Node::start("[quotas.team]\nmemory = \"1GiB\"\n"));
    let _driver = lab.driver();
    claim(&lab, "team", 1);
    claim(&lab, "team", 2);
    claim(&lab, "others", 3);
    let Some(clients) = Clients::find() else { return };
    let much = format!("alloc {}", 700 * MIB);
    let mut first = clients.sharer(&lab, 1);
    first.expect(&[(&much, "ok")]);
    let mut second = clients.sharer(&lab, 2);
    second.expect(&[(&much, OUT_OF_MEMORY)]);
    clients.sharer(&lab, 3).expect(&[(&much, "ok")]);
    first.expect(&[("free", "ok")]);
    second.expect(&[(&much, "ok")]);
    // A quota that is taken out of the file no longer counts.
    lab.node.configure("");
    until("there is no quota", || first.ask(&much) == "ok");
}
