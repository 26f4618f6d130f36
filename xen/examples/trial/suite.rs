//! idm's conformance suite, from a guest.

use std::time::Duration;

use idm::Client;
use idm::bootstrap::Hello;
use idm::conformance::{Connection, SUITE, Transport};
use idm::region::Layout;
use xen::store::Store;

struct Guest;

impl Transport for Guest {
    fn name(&self) -> &str {
        "xen"
    }

    fn connect(&self, layout: Layout) -> Connection {
        // Granted pages are all really there: the sizes of a small guest.
        let layout = Layout { lanes: layout.lanes.min(16), bulk_bytes: layout.bulk_bytes.min(8 << 20), ..layout };
        let connection = xen::guest::connect(&Hello::new(0, 0), layout, Duration::from_secs(60)).unwrap();
        let client = Client::over(connection.region, connection.doorbell.clone());
        let (doorbell, gone) = (connection.doorbell, client.gone().clone());
        let stop = doorbell.stopper();
        std::thread::spawn(move || doorbell.serve(&gone));
        Connection { client, far_side: Box::new(stop) }
    }
}

pub fn run(filter: &str) {
    for behaviour in SUITE.iter().filter(|behaviour| behaviour.name.contains(filter)) {
        let before = xen::counts::read();
        println!("test xen::{} ...", behaviour.name);
        (behaviour.check)(&Guest);
        println!("test xen::{} ok, {:?}", behaviour.name, xen::counts::read().since(&before));
    }
    Store::open().unwrap().write("data/bulkhead/done", b"1").unwrap();
}
