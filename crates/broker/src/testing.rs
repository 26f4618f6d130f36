//! A spawner that starts nothing, for tests of what is decided about processes.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use control::ZoneName;
use control::namespaces::Numbers;
use control::spawner::{Facts, HostLimits, Program, Spawner, Started};
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct FakeSpawner {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    started: u64,
    killed: Vec<u64>,
    limited: Vec<(ZoneName, HostLimits)>,
}

impl FakeSpawner {
    /// The processes that were killed, by the order of their start.
    pub(crate) fn killed(&self) -> Vec<u64> {
        self.state.lock().killed.clone()
    }

    /// The limits of the host that zones were given, in order.
    pub(crate) fn limited(&self) -> Vec<(ZoneName, HostLimits)> {
        self.state.lock().limited.clone()
    }
}

impl Spawner for FakeSpawner {
    fn facts(&self) -> Facts {
        Facts::default()
    }

    fn start(&self, _: &Program, _: Option<OwnedFd>, _: Option<OwnedFd>) -> io::Result<Started> {
        let mut state = self.state.lock();
        state.started += 1;
        // Never readable, as the descriptor of a process that runs.
        let process = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        Ok(Started { id: state.started, pid: 100_000 + state.started as u32, process })
    }

    fn adopt(&self, _: usize, _: u32, _: u64, _: Option<&ZoneName>) -> io::Result<Started> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn sweep(&self) {}

    fn kill(&self, id: u64) {
        self.state.lock().killed.push(id);
    }

    fn reap(&self, _: u64) -> Option<String> {
        None
    }

    fn is_free(&self, _: usize) -> bool {
        true
    }

    fn open_inside(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn take_descriptor(&self, _: u64, _: i32) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn set_client(&self, _: u64, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn kill_client(&self, _: u64) -> bool {
        false
    }

    fn set_zone(&self, zone: &ZoneName, limits: HostLimits) -> io::Result<bool> {
        self.state.lock().limited.push((zone.clone(), limits));
        Ok(false)
    }

    fn remove_zone(&self, _: &ZoneName) {}

    fn make_zone_directory(&self, _: &ZoneName, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn remove_zone_directory(&self, _: &ZoneName) {}

    fn clear_admin_socket(&self) -> io::Result<()> {
        Ok(())
    }

    fn open_admin_socket(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_access(&self, _: &ZoneName, _: u32, _: Option<u32>, _: Option<u32>) -> io::Result<()> {
        Ok(())
    }

    fn admit(&self, _: u64, _: &ZoneName, _: &[u32]) -> io::Result<()> {
        Ok(())
    }

    fn numbers(&self, _: u32) -> Numbers {
        Numbers::default()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tidy(&self, _: Instant) {}

    fn retire(&self, _: bool) {}
}

/// A broker with a GPU of 1 GiB and these zones that has started no worker.
pub(crate) fn broker(
    state_dir: &std::path::Path,
    zones: Vec<(ZoneName, control::ZoneSettings)>,
) -> (crate::Broker, std::sync::Arc<FakeSpawner>) {
    let config = crate::Config {
        state_dir: state_dir.to_owned(),
        private: true,
        backend: control::backend::Backend::Soft { devices: 1, memory: 1 << 30, instances: 0, only: Vec::new() },
        zones,
        grants: Vec::new(),
        spare_workers: 1,
        jail: control::jail::Demand::Off,
        driver_filter: control::driver_filter::DriverFilter::Off,
        worker_uids: 0,
        context_memory: 0,
        host_defaults: control::host_defaults::HostDefaults::default(),
        max_workers: 10,
        meter: None,
        suspend: crate::Suspend::default(),
        max_clients_per_zone: 10,
        watchdog: None,
    };
    // What a spawner makes.
    for (name, _) in &config.zones {
        std::fs::create_dir_all(state_dir.join("zones").join(name.as_str())).expect("a directory");
    }
    let spawner = std::sync::Arc::new(FakeSpawner::default());
    (crate::Broker::assemble(config, spawner.clone()).expect("a broker"), spawner)
}
