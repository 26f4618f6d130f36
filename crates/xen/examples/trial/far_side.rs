//! The driver domain's end of the conformance suite: a process for each client, which maps what this one chose.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use idm::Server;
use idm::bootstrap::{self, Welcome, WelcomeStatus};
use xen::DomainId;
use xen::card;
use xen::host::{Caller, Offer};
use xen::link::Taken;
use xen::store::{Permission, Store};

/// Serves until the guest writes `done`.
pub(crate) fn run(domain: DomainId) {
    let mut store = Store::open().unwrap();
    let home = store.domain_path(domain).unwrap();
    let (clients, service) = (format!("{home}/{}", card::CLIENTS), format!("{home}/{}", card::SERVICE));
    store.write(&format!("{service}/backend"), b"0").unwrap();
    for path in [service.clone(), format!("{service}/backend")] {
        store.set_permissions(&path, &[Permission::None(0), Permission::Read(domain)]).unwrap();
    }
    store.watch(&clients, "clients").unwrap();
    let mut known = HashSet::new();
    let mut children: Vec<Child> = Vec::new();
    loop {
        let event = store.next_event(Some(Duration::from_secs(300))).unwrap().expect("the guest says nothing");
        if event.path == format!("{clients}/done") {
            break;
        }
        for name in store.list(&clients).unwrap() {
            let path = format!("{clients}/{name}");
            if !known.insert(name) {
                continue;
            }
            // Gone already: the client gave up.
            let Ok(node) = store.read(&path) else { continue };
            let before = xen::counts::read();
            match Caller::meet(domain, &node) {
                Ok(caller) => {
                    children.push(serve(caller));
                    let cost = xen::counts::read().since(&before);
                    assert_eq!(cost.map_batches, 3, "the card, its lists, the region");
                }
                Err(error) => println!("far side: {path}: {error}"),
            }
        }
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

fn serve(caller: Caller) -> Child {
    let (ours, theirs) = bootstrap::pair().unwrap();
    let exe = std::env::current_exe().unwrap();
    let child = Command::new(exe).arg("far-side-child").stdin(Stdio::from(theirs)).spawn().unwrap();
    let (offer, pages) = caller.offer().unwrap();
    bootstrap::send(&ours, &offer, &Offer::fds(&pages, caller.channel())).unwrap();
    bootstrap::recv::<Taken>(&ours).unwrap();
    caller.taken(&pages).unwrap();
    caller.answer(&Welcome::new(WelcomeStatus::Ok, "")).unwrap();
    child
}

pub(crate) fn child() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let (offer, fds): (Offer, Vec<OwnedFd>) = bootstrap::recv(&socket).unwrap();
    let xen::host::Accepted { region, doorbell, .. } = offer.accept(fds).unwrap();
    bootstrap::send(&socket, &Taken::default(), &[]).unwrap();
    let server = Server::over(region, doorbell.clone());
    let gone = server.gone().clone();
    let events = std::thread::spawn(move || doorbell.serve(&gone));
    let result = idm_conformance::serve(server, || std::process::exit(0));
    println!("far side: {result:?}, {:?}", xen::counts::read());
    drop(events);
    // Not as the end of a trial.
    std::process::exit(0);
}
