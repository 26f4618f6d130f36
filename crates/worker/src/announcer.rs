//! Tells the broker what the preemptor must know of this worker's driver: files and channels, as they come to be.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use backend::recorder;
use control::BrokerLink;
use preempt::rm::{Class, Object};

const TOGETHER: Duration = Duration::from_millis(2);

/// Starts the thread that tells. It ends with the process; a broker that is away asks when it is back.
pub(crate) fn start(link: &Arc<BrokerLink>) -> io::Result<()> {
    link.on_announce(recorder::tell_again);
    let link = link.clone();
    std::thread::Builder::new().name("announcer".into()).spawn(move || announce(&link)).map(drop)
}

fn announce(link: &BrokerLink) {
    let mut turn = recorder::Turn::default();
    loop {
        let (next, new) = recorder::wait(turn);
        // Whoever needs what could not be told asks for it.
        let _ = tell(link, &new, next.is_new_round(turn));
        turn = next;
        // A context makes two dozen objects: most of them are told together.
        std::thread::sleep(TOGETHER);
    }
}

fn tell(link: &BrokerLink, objects: &[Object], all: bool) -> io::Result<()> {
    if let Some(page) = backend::soft_page().filter(|_| all) {
        link.tell_driver_file(0, page)?;
    }
    let mut told = BTreeSet::new();
    for object in objects {
        if object.kind() == Some(Class::Client) && told.insert(object.client) {
            // SAFETY: the driver library keeps the file of a client open for as long as the client, and a number that is
            // closed or another's by now is one that the driver does not confirm.
            let file = unsafe { BorrowedFd::borrow_raw(object.descriptor) };
            link.tell_driver_file(object.client, file)?;
        } else {
            link.tell_driver_object([object.client, object.parent, object.handle, object.class, object.engine])?;
        }
    }
    if all { link.tell_announced() } else { Ok(()) }
}
