//! One client of a guest: from its card to the end of its worker.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idm::bootstrap::{
    self, Answer, BootstrapError, First, HELLO_BRINGS_REGION, Hello, Inquiry, Rendezvous, Welcome, WelcomeStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use xen::card::MAX_PAGES;
use xen::host::{Caller, HostError, Offer};
use xen::link::{Chosen, Taken, Wanted};
use xen::store::Store;
use xen::sys::XenError;
use xen::talk::TalkError;
use zerocopy::IntoBytes;

use super::domains::Visit;
use super::lending::{LendError, Lending};

/// As long as a client in a container waits for its worker.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);

const TOO_MUCH_MAPPED: &str = "the guest has reached its limit of memory mapped by the proxy";

#[derive(Debug, thiserror::Error)]
enum VisitError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("invalid answer from the broker or the worker")]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Xen(#[from] XenError),
    #[error(transparent)]
    Lend(#[from] LendError),
    #[error(transparent)]
    Talk(#[from] TalkError),
    #[error("the worker asked for too many pages at once")]
    TooMany,
}

/// Attends a client, on a thread of its own, and removes its node.
pub(crate) fn attend(visit: Visit, node: Vec<u8>, path: String) {
    let spawned = std::thread::Builder::new().name("guest-client".into()).spawn(move || {
        let (id, zone) = (visit.domain.id, visit.domain.zone.clone());
        let result = Caller::meet(id, &node).map_err(VisitError::from).and_then(|caller| serve(&visit, caller));
        if let Err(error) = result {
            tracing::info!(domain = id, zone, error = with_sources(&error), "cannot serve a client in a guest");
        }
        // The client removes it, too, unless it is dead or means ill.
        if let Ok(mut store) = Store::open() {
            let _ = store.remove(&path);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot start a thread for a client in a guest");
    }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn serve(visit: &Visit, caller: Caller) -> Result<(), VisitError> {
    match caller.opening().first() {
        Some(First::Hello(hello)) => bring_to_worker(visit, caller, hello),
        Some(First::Inquiry) => inquire(visit, &caller),
        Some(First::Rendezvous) => carry_rendezvous(visit, caller),
        // `Caller::meet` takes no other.
        None => Ok(()),
    }
}

fn bring_to_worker(visit: &Visit, caller: Caller, hello: Hello) -> Result<(), VisitError> {
    let refuse = |text: &str| caller.answer(&Welcome::new(WelcomeStatus::NoWorker, text));
    let Some(_charge) = visit.domain.charge(caller.pages()) else {
        refuse(TOO_MUCH_MAPPED)?;
        return Err(LendError::NoneLeft.into());
    };
    let Ok(broker) = reach(visit.domain.socket()) else {
        return Ok(refuse("no proxy serves this zone")?);
    };
    let hello = Hello { flags: hello.flags | HELLO_BRINGS_REGION, ..hello };
    bootstrap::send(&broker, &hello, &[])?;
    let (welcome, fds) = bootstrap::recv_within::<Welcome>(&broker, WELCOME_TIMEOUT)?;
    let Some(socket) = fds.into_iter().next().map(Arc::new) else {
        return Ok(caller.answer(&welcome)?);
    };
    let mut lending = Lending::open(visit)?;
    if !visit.set_worker(socket.clone()) {
        return Ok(());
    }
    let offered = caller.offer().map_err(VisitError::from).and_then(|(offer, pages)| {
        bootstrap::send(&*socket, &offer, &Offer::fds(&pages, caller.channel()))?;
        // A worker that cannot map what was granted ends.
        bootstrap::recv_within::<Taken>(&*socket, WELCOME_TIMEOUT)?;
        caller.taken(&pages)?;
        // If a side ends from here on, the client itself notices.
        if has_hung_up(&socket) { Err(BootstrapError::Closed.into()) } else { Ok(()) }
    });
    if let Err(error) = offered {
        refuse("the granted pages cannot be mapped")?;
        return Err(error);
    }
    caller.answer(&Welcome::new(WelcomeStatus::Ok, ""))?;
    tracing::info!(
        domain = visit.domain.id,
        zone = visit.domain.zone,
        pid = hello.pid,
        "serving a client in a guest"
    );
    // What is left of it here would keep the channel open when the worker ends.
    drop((caller, broker));
    let result = choose_pages(visit, &mut lending, &socket);
    // Whichever way it ended: an honest worker ends with its socket, and a fallen one has what it has until it does.
    let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
    lending.wait_for_all()?;
    result
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec::default();
    rustix::event::poll(&mut polled, Some(&now)).is_err() || polled[0].revents().contains(PollFlags::HUP)
}

/// Chooses further pages for the worker, until it ends.
fn choose_pages(visit: &Visit, lending: &mut Lending<'_>, socket: &OwnedFd) -> Result<(), VisitError> {
    let mut refs = Vec::new();
    loop {
        lending.wait(socket)?;
        let wanted = match bootstrap::recv::<Wanted>(socket) {
            Ok((wanted, _)) => wanted,
            Err(BootstrapError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        refs.extend_from_slice(wanted.refs());
        if refs.len() > MAX_PAGES {
            return Err(VisitError::TooMany);
        }
        if wanted.has_more() {
            continue;
        }
        let chosen = lending.choose(&std::mem::take(&mut refs));
        if let Err(error) = &chosen {
            tracing::info!(domain = visit.domain.id, error = with_sources(error), "cannot map further pages");
        }
        let chosen = chosen.ok();
        bootstrap::send(
            socket,
            &Chosen::new(chosen.as_ref()),
            chosen.as_ref().map(|pages| pages.as_fd()).as_slice(),
        )?;
    }
}

/// A question about the zone. The answer goes into the pages that the client brought.
fn inquire(visit: &Visit, caller: &Caller) -> Result<(), VisitError> {
    let broker = reach(visit.domain.socket())?;
    bootstrap::send(&broker, &Inquiry::default(), &[])?;
    let (answer, _) = bootstrap::recv_within::<Answer>(&broker, WELCOME_TIMEOUT)?;
    caller.map_answer(answer.as_bytes().len())?.copy_in(0, answer.as_bytes());
    Ok(caller.answer(&Welcome::new(WelcomeStatus::Ok, ""))?)
}

/// A program that meets others by name: what it and the broker say to each other is theirs alone.
fn carry_rendezvous(visit: &Visit, caller: Caller) -> Result<(), VisitError> {
    let refuse = |text: &str| caller.answer(&Welcome::new(WelcomeStatus::Refused, text));
    let Ok(broker) = reach(visit.domain.socket()) else {
        return Ok(refuse("no proxy serves this zone")?);
    };
    let Some(_charge) = visit.domain.charge(caller.pages()) else {
        refuse(TOO_MUCH_MAPPED)?;
        return Err(LendError::NoneLeft.into());
    };
    bootstrap::send(&broker, &Rendezvous::default(), &[])?;
    let broker = Arc::new(broker);
    // As a worker's: it is hung up when the domain ends.
    if !visit.set_worker(broker.clone()) {
        return Ok(());
    }
    Ok(caller.talk()?.carry(&*broker)?)
}

/// Connects to the broker. While a new one takes over, its sockets are away for a moment.
fn reach(path: &Path) -> Result<OwnedFd, BootstrapError> {
    const TAKEOVER: Duration = Duration::from_secs(2);
    let start = Instant::now();
    loop {
        match bootstrap::connect(path) {
            Err(_) if start.elapsed() < TAKEOVER => std::thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}
