//! Closing what others have given us.
//!
//! The process that closes the last reference to a file may have to wait for it: a TCP socket lingers as long as its maker has said,
//! a file of a hostile file system for as long as its server likes, and a Unix socket takes along whatever files lie unread
//! in it. So the loop that serves everybody closes nothing that a tenant or its worker had a hand in. It leaves that to a
//! thread of the tenant's zone, which may wait as long as it wants; others do not notice.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Descriptors that are yet to be closed, of all lanes: those of zones that are gone, too.
static IN_ALL: AtomicUsize = AtomicUsize::new(0);

/// How many are yet to be closed, whosever they are.
pub fn waiting_in_all() -> usize {
    IN_ALL.load(Ordering::Relaxed)
}

/// Where descriptors of one origin go to be closed, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Lane(Arc<Mutex<Queue>>);

/// What is done to a descriptor before it is closed, where that may take long, too.
type LastAct = fn(BorrowedFd<'_>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(OwnedFd, Option<LastAct>)>,
    /// A thread is at it; it ends when there is nothing left.
    at_work: bool,
    /// When it began with the one that it is closing.
    since: Option<Instant>,
}

/// A descriptor that is not closed here, but in its lane.
#[derive(Debug)]
pub struct Foreign {
    fd: ManuallyDrop<OwnedFd>,
    lane: Lane,
    last: Option<LastAct>,
    /// The epoll set that it is in: until it is closed, which may be long after, it would go on
    /// to wake the thread that waits there.
    watched_by: Option<Arc<OwnedFd>>,
}

impl Lane {
    /// Takes over a descriptor, which is closed by this lane.
    pub fn take(&self, fd: OwnedFd) -> Foreign {
        Foreign { fd: ManuallyDrop::new(fd), lane: self.clone(), last: None, watched_by: None }
    }

    /// How many are yet to be closed.
    pub fn waiting(&self) -> usize {
        let queue = self.lock();
        queue.waiting.len() + usize::from(queue.at_work)
    }

    /// How long the one that is being closed takes already.
    pub fn busy_for(&self) -> Duration {
        self.lock().since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock()
    }

    fn close(&self, fd: OwnedFd, last: Option<LastAct>) {
        let mut queue = self.lock();
        queue.waiting.push_back((fd, last));
        IN_ALL.fetch_add(1, Ordering::Relaxed);
        if !queue.at_work {
            let lane = self.clone();
            // Where no thread can be had, the next one that is closed tries again.
            queue.at_work = std::thread::Builder::new().name("closing".into()).spawn(move || lane.work()).is_ok();
        }
    }

    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let Some((fd, last)) = queue.waiting.pop_front() else {
                (queue.at_work, queue.since) = (false, None);
                return;
            };
            queue.since = Some(Instant::now());
            drop(queue);
            if let Some(last) = last {
                last(fd.as_fd());
            }
            drop(fd);
            IN_ALL.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Foreign {
    /// By which it is closed.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// It was added to this epoll set.
    pub fn watched_by(&mut self, epoll: Arc<OwnedFd>) {
        self.watched_by = Some(epoll);
    }

    /// Has it closed, but something done to it before.
    pub fn close_after(mut self, last: LastAct) {
        self.last = Some(last);
    }

    /// From now on it is somebody else's.
    pub fn move_to(&mut self, lane: &Lane) {
        self.lane = lane.clone();
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(epoll) = &self.watched_by {
            // One that was taken out already is fine, too.
            let _ = rustix::event::epoll::delete(epoll, &*self.fd);
        }
        // SAFETY: nobody uses the field after this.
        self.lane.close(unsafe { ManuallyDrop::take(&mut self.fd) }, self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// One end of a connection whose close takes an hour, and the other, which ends that.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
        (near.into(), far)
    }

    fn until_empty(lane: &Lane) {
        let begun = Instant::now();
        while lane.waiting() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} are left", lane.waiting());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn who_closes_does_not_wait_and_others_are_closed_meanwhile() {
        let (slow, honest) = (Lane::default(), Lane::default());
        let (near, far) = lingering();
        drop(slow.take(near));
        drop(slow.take(std::fs::File::open("/dev/null").unwrap().into()));
        drop(honest.take(std::fs::File::open("/dev/null").unwrap().into()));
        until_empty(&honest);
        assert_eq!(slow.waiting(), 2, "it lingers, and what comes after it waits");
        drop(far);
        until_empty(&slow);
    }

    #[test]
    fn all_are_closed() {
        let lane = Lane::default();
        let (near, far) = crate::packet::pair().unwrap();
        let many: Vec<Foreign> = (0..100).map(|_| lane.take(near.try_clone().unwrap())).collect();
        drop(near);
        drop(many);
        until_empty(&lane);
        assert_eq!(crate::packet::receive(&far, &mut [0; 8]).unwrap().len, 0);
    }
}
