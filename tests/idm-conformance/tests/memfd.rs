//! The conformance suite, over memory shared between threads and between processes.
//!
//! Its own harness, because it starts itself again as the far side.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use idm::bootstrap::{self, Attach};
use idm::peer::{PeerWatch, StopWatch};
use idm::region::{Layout, Placement};
use idm::{Client, Server};
use idm_conformance::{Connection, SUITE, Transport};
use libtest_mimic::{Arguments, Trial};
use zerocopy::FromBytes;

const FAR_SIDE: &str = "--far-side";

/// The far side is a thread.
struct Threads;
/// The far side is another program, which shares nothing but the socket.
struct Processes;

struct Far<T> {
    /// Hanging up is what ends the far side.
    socket: Option<OwnedFd>,
    _stop: StopWatch,
    end: Option<T>,
    join: fn(T),
}

impl<T> Drop for Far<T> {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        if let Some(end) = self.end.take() {
            (self.join)(end);
        }
    }
}

impl Transport for Threads {
    fn name(&self) -> &str {
        "threads"
    }

    fn connect(&self, layout: Layout) -> Connection {
        let (ours, theirs) = bootstrap::pair().unwrap();
        let far = std::thread::spawn(move || far_side(theirs, layout, None));
        attach(ours, far, |thread| thread.join().unwrap())
    }
}

impl Transport for Processes {
    fn name(&self) -> &str {
        "processes"
    }

    fn connect(&self, layout: Layout) -> Connection {
        let (ours, theirs) = bootstrap::pair().unwrap();
        let words = hex::encode(zerocopy::IntoBytes::as_bytes(&layout));
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command.args([FAR_SIDE, &words]).stdin(Stdio::from(theirs)).spawn().unwrap();
        drop(command);
        attach(ours, child, |mut child: Child| assert!(child.wait().unwrap().success()))
    }
}

fn attach<T: 'static>(socket: OwnedFd, end: T, join: fn(T)) -> Connection {
    let (attach, mut fds) = bootstrap::recv::<Attach>(&socket).unwrap();
    let client = Client::attach(fds.pop().unwrap(), attach.layout, Placement::Anywhere).unwrap();
    let (watch, stop) = PeerWatch::new(socket.try_clone().unwrap(), None, client.gone().clone(), || {}).unwrap();
    watch.spawn().unwrap();
    let far = Far { socket: Some(socket), _stop: stop, end: Some(end), join };
    Connection { client, far_side: Box::new(far) as Box<dyn Any> }
}

/// `die` is how this far side dies: `None` hangs up, which is all that a thread can do.
fn far_side(socket: OwnedFd, layout: Layout, die: Option<fn()>) {
    let server = Server::create(layout, Placement::Anywhere).unwrap();
    bootstrap::send(&socket, &Attach::new(layout, [0; 16]), server.fd().as_slice()).unwrap();
    let (watch, stop) = PeerWatch::new(socket.try_clone().unwrap(), None, server.gone().clone(), || {}).unwrap();
    let watcher = watch.spawn().unwrap();
    let die = move || match die {
        Some(die) => die(),
        None => rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap(),
    };
    let _ = idm_conformance::serve(server, die);
    drop(stop);
    watcher.join().unwrap();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some(FAR_SIDE) {
        let words = arguments.next().unwrap();
        let bytes = hex::decode(words).unwrap();
        let layout = Layout::read_from_bytes(&bytes).unwrap();
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        // Only the duplicate must hold the socket open.
        let null = std::fs::File::open("/dev/null").unwrap();
        rustix::stdio::dup2_stdin(&null).unwrap();
        return far_side(socket, layout, Some(|| std::process::exit(0)));
    }
    let trial = |name: String, test: Box<dyn FnOnce() + Send>| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut trials = Vec::new();
    for transport in [&Threads as &(dyn Transport + Sync), &Processes] {
        for behaviour in SUITE {
            let name = format!("{}::{}", transport.name(), behaviour.name);
            trials.push(trial(name, Box::new(|| (behaviour.check)(transport))));
        }
    }
    let mut arguments = Arguments::from_args();
    // One by one: some look at the time that this process takes.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit()
}
