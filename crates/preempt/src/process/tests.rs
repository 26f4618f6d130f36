use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use super::*;
use crate::soft;

struct Preemptor {
    socket: OwnedFd,
    thread: JoinHandle<io::Result<()>>,
}

impl Preemptor {
    fn start() -> Self {
        let (socket, theirs) = packet::pair().unwrap();
        Self { socket, thread: std::thread::spawn(move || serve(theirs, None)) }
    }

    fn send(&self, request: Request, fds: &[BorrowedFd<'_>]) {
        packet::send(&self.socket, request.as_bytes(), fds).unwrap();
    }

    fn receive(&self) -> Reply {
        let mut buffer = [0; size_of::<Reply>()];
        let len = packet::receive(&self.socket, &mut buffer).unwrap().len;
        Reply::read_from_bytes(&buffer[..len]).unwrap()
    }

    fn ask(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        self.send(request, fds);
        let reply = self.receive();
        assert_eq!((reply.kind, reply.seq), (request.kind, request.seq));
        reply.result()
    }

    fn tell(&self, kind: u32) -> Result<(), String> {
        self.ask(Request::new(kind, 1, 0).numbered(77), &[])
    }

    fn watch(&self, worker: &Child, page: &OwnedFd) {
        let process = control::process::open(worker.id()).unwrap();
        self.ask(Request::new(kind::WATCH, 1, 0), &[process.as_fd()]).unwrap();
        self.ask(Request::new(kind::SOFT, 1, 0), &[page.as_fd()]).unwrap();
    }
}

fn worker() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

fn end(mut worker: Child) {
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn a_worker_is_stopped_resumed_and_forgotten_with_its_end() {
    let (preemptor, worker, (page, words)) = (Preemptor::start(), worker(), soft::make_page().unwrap());
    assert!(preemptor.tell(kind::STOP).is_err(), "nobody is watched");
    preemptor.watch(&worker, &page);
    preemptor.tell(kind::STOP).unwrap();
    assert_eq!(words.stopped.load(Ordering::SeqCst), 1);
    preemptor.tell(kind::RESUME).unwrap();
    assert_eq!(words.stopped.load(Ordering::SeqCst), 0);
    assert!(preemptor.tell(kind::WATCH).is_err(), "it is watched already");
    end(worker);
    // One that ends with a request under way does not answer it: pings are answered by another thread.
    testkit::until("the worker to be forgotten", || {
        preemptor.send(Request::new(kind::SLICE, 1, 0), &[]);
        preemptor.send(Request::new(kind::PING, 1, 0), &[]);
        let mut replies = std::iter::from_fn(|| Some(preemptor.receive()));
        let before: Vec<Reply> = replies.by_ref().take_while(|reply| reply.kind != kind::PING).collect();
        before.iter().any(|reply| reply.result() == Err("unknown worker or request".to_owned()))
    });
    drop(preemptor.socket);
    preemptor.thread.join().unwrap().unwrap();
}

#[test]
fn a_broker_that_is_gone_leaves_nothing_stopped() {
    let (preemptor, worker, (page, words)) = (Preemptor::start(), worker(), soft::make_page().unwrap());
    preemptor.watch(&worker, &page);
    preemptor.tell(kind::STOP).unwrap();
    let Preemptor { socket, thread } = preemptor;
    drop(socket);
    thread.join().unwrap().unwrap();
    assert_eq!(words.stopped.load(Ordering::SeqCst), 0);
    end(worker);
}

#[test]
fn who_is_forgotten_is_resumed() {
    let (preemptor, worker, (page, words)) = (Preemptor::start(), worker(), soft::make_page().unwrap());
    preemptor.watch(&worker, &page);
    preemptor.tell(kind::STOP).unwrap();
    preemptor.tell(kind::FORGET).unwrap();
    testkit::until("it to run again", || words.stopped.load(Ordering::SeqCst) == 0);
    end(worker);
}

#[test]
fn what_is_no_descriptor_of_the_driver_is_refused() {
    let (preemptor, worker, (page, _)) = (Preemptor::start(), worker(), soft::make_page().unwrap());
    preemptor.watch(&worker, &page);
    let null = std::fs::File::open("/dev/null").unwrap();
    for kind in [kind::NVIDIA, kind::SOFT] {
        assert!(preemptor.ask(Request::new(kind, 1, 5), &[null.as_fd()]).is_err());
        assert!(preemptor.ask(Request::new(kind, 1, 5), &[]).is_err());
    }
    assert!(preemptor.tell(kind::OBJECT).is_err(), "of no client");
    assert!(preemptor.tell(99).is_err());
    end(worker);
}

/// A worker that has fallen tells of objects without end, each of which is refused; the broker waits for the answer about another.
#[test]
fn answers_that_are_waited_for_are_not_lost_in_a_flood() {
    let (ours, brokers) = packet::pair().unwrap();
    let receive = |kinds: &mut Vec<u32>| {
        rustix::io::ioctl_fionbio(&brokers, true).unwrap();
        let mut buffer = [0; size_of::<Reply>()];
        while let Ok(received) = packet::receive(&brokers, &mut buffer) {
            kinds.push(Reply::read_from_bytes(&buffer[..received.len]).unwrap().kind);
        }
    };
    let reply = |kind, result| Reply::new(&Request::new(kind, 1, 0), 0, result);
    let flood = || {
        let refused = reply(kind::OBJECT, Err("too many objects".to_owned()));
        while packet::send_now(&ours, refused.as_bytes(), &[]).is_ok() {}
    };
    for kind in [kind::STOP, kind::RESUME, kind::PING] {
        flood();
        let mut taken = Vec::new();
        send_after(&ours, &reply(kind, Ok(())), || receive(&mut taken));
        assert!(
            taken.len() > 1 && taken.iter().all(|taken| *taken == kind::OBJECT),
            "the broker takes what is there"
        );
        taken.clear();
        receive(&mut taken);
        assert_eq!(taken, [kind]);
    }
    // Nobody waits for others, and of objects that were taken nobody wants to hear.
    send(&ours, &reply(kind::OBJECT, Ok(())));
    let mut taken = Vec::new();
    receive(&mut taken);
    assert!(taken.is_empty(), "{taken:?}");
    flood();
    let mut pauses = 0;
    send_after(&ours, &reply(kind::SLICE, Ok(())), || pauses += 1);
    assert!(pauses <= 1);
    // Nor is anybody waited for who takes nothing at all.
    send_after(&ours, &reply(kind::STOP, Ok(())), || pauses += 1);
    receive(&mut taken);
    assert!(taken.iter().all(|taken| *taken == kind::OBJECT));
}
