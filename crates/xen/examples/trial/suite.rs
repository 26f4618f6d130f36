//! idm's conformance suite, from a guest.

use std::sync::Arc;
use std::time::Duration;

use idm::Client;
use idm::bootstrap::Hello;
use idm::region::Layout;
use idm_conformance::{Connection, SUITE, Transport};
use xen::doorbell::{EventDoorbell, StopEvents};
use xen::store::Store;

pub(crate) struct Guest;

/// Sees to it that the far side lets go of the pages first.
struct FarSide {
    leaving: Arc<EventDoorbell>,
    _stop: StopEvents,
}

impl Drop for FarSide {
    fn drop(&mut self) {
        assert!(self.leaving.leave(LONG), "the far side lives on");
    }
}

const LONG: Duration = Duration::from_secs(60);

impl Transport for Guest {
    fn name(&self) -> &str {
        "xen"
    }

    fn connect(&self, layout: Layout) -> Connection {
        // Granted pages are all really there: the sizes of a small guest. And each time that a ring is full, two emulated
        // kernels take turns: it is filled often enough like this.
        let layout = Layout {
            lanes: layout.lanes.min(16),
            ring_bytes: layout.ring_bytes.max(256 << 10),
            bulk_bytes: layout.bulk_bytes.min(8 << 20),
            ..layout
        };
        let connection = xen::guest::connect(&Hello::new(0, 0), layout, LONG, LONG).unwrap();
        let client = Client::over(connection.region, connection.doorbell.clone());
        let (doorbell, gone) = (connection.doorbell, client.gone().clone());
        let (stop, leaving) = (doorbell.stopper(), doorbell.clone());
        std::thread::spawn(move || doorbell.serve(&gone));
        Connection { client, far_side: Box::new(FarSide { leaving, _stop: stop }) }
    }
}

pub(crate) fn run(filter: &str) {
    // Emulated guests are slow: say that something goes on.
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(5));
            println!("so far {:?}", xen::counts::read());
        }
    });
    for behaviour in SUITE.iter().filter(|behaviour| behaviour.name.contains(filter)) {
        let before = xen::counts::read();
        println!("test xen::{} ...", behaviour.name);
        (behaviour.check)(&Guest);
        println!("test xen::{} ok, {:?}", behaviour.name, xen::counts::read().since(&before));
    }
}

/// Tells the far side that there is nothing more to come.
pub(crate) fn done() {
    Store::open().unwrap().write("data/bulkhead/done", b"1").unwrap();
}
