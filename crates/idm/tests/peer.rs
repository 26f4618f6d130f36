//! Death of the peer, seen through the socket and through the pidfd.
#![cfg(not(loom))]

use std::process::{Command, Stdio};
use std::sync::mpsc;

use idm::peer::PeerWatch;
use idm::region::{Layout, Placement};
use idm::{Gone, PeerGone, Server, bootstrap};
use rustix::process::{Pid, PidfdFlags};

#[test]
fn a_hang_up_wakes_sleepers_and_runs_the_closure() {
    let (ours, theirs) = bootstrap::pair().unwrap();
    let mut server = Server::create(Layout::default(), Placement::Anywhere).unwrap();
    let mut dispatcher = server.take_dispatcher().unwrap();
    let sleeper = std::thread::spawn(move || dispatcher.next().map(|_| ()));
    let (told, heard) = mpsc::channel();
    let (watch, _stop) = PeerWatch::new(ours, None, server.gone().clone(), move || told.send(()).unwrap()).unwrap();
    let watcher = watch.spawn().unwrap();
    // An unread message does not hide the hang-up.
    bootstrap::send(&theirs, &bootstrap::Hello::new(0, 0), &[]).unwrap();
    drop(theirs);
    heard.recv().unwrap();
    assert_eq!(sleeper.join().unwrap(), Err(Gone));
    assert!(watcher.join().unwrap());
}

#[test]
fn a_dead_process_is_seen_although_its_socket_lives_on() {
    let (ours, theirs) = bootstrap::pair().unwrap();
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let gone = PeerGone::default();
    let (watch, _stop) = PeerWatch::new(ours, Some(pidfd), gone.clone(), || {}).unwrap();
    let watcher = watch.spawn().unwrap();
    assert!(!gone.is_set());
    child.kill().unwrap();
    assert!(watcher.join().unwrap());
    assert!(gone.is_set());
    child.wait().unwrap();
    drop(theirs);
}

#[test]
fn a_watch_can_be_stopped() {
    let (ours, _theirs) = bootstrap::pair().unwrap();
    let gone = PeerGone::default();
    let (watch, stop) = PeerWatch::new(ours, None, gone.clone(), || panic!("nobody died")).unwrap();
    let watcher = watch.spawn().unwrap();
    drop(stop);
    assert!(!watcher.join().unwrap());
    assert!(!gone.is_set());
}
