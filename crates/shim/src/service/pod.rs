//! A pod: its machine, the processes in it, and what becomes of them.

use super::events::Events;
use super::process::{End, Key, Process, State};
use crate::link::{Event, Link, LinkError};
use crate::machine::{self, Machine, MachineError};
use crate::volumes::{Copied, Volumes};
use agent::oci::Spec;
use agent::protocol::Request;
use containerd_shim::protos::events::task::{TaskExit, TaskOOM};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Above what Linux ever gives to a process.
const FIRST_PID: u32 = 1 << 23;
/// How often files of kubelet's are looked at: it takes a minute itself to notice that a ConfigMap has changed.
const REFRESH: Duration = Duration::from_secs(2);

pub(super) struct Pod<M> {
    namespace: String,
    pub id: String,
    pub machine: Arc<M>,
    pub events: Events,
    pub state: Mutex<PodState>,
    /// Held while the machine is started: containers may come together.
    booting: tokio::sync::Mutex<()>,
    pub volumes: tokio::sync::Mutex<Volumes>,
}

#[derive(Default)]
pub(super) struct PodState {
    pub link: Option<Link>,
    pub machine_pid: u32,
    pub processes: HashMap<Key, Process>,
    /// containerd wants no more of this shim.
    pub shutdown_asked: bool,
    next: u32,
}

impl PodState {
    /// A number that was never used, for the agent, and one that containerd is told.
    pub(super) fn number(&mut self) -> (u32, u32) {
        self.next += 1;
        // The sandbox is the machine: its number is that of a process that exists.
        (self.next, if self.next == 1 { self.machine_pid } else { FIRST_PID + self.next })
    }

    pub(super) fn is_done(&self) -> bool {
        self.shutdown_asked && self.processes.is_empty()
    }

    /// The process of this container's that containerd knows by this number.
    pub(super) fn by_pid(&self, pid: u32) -> Option<u32> {
        self.processes
            .iter()
            .find(|(key, process)| !key.is_exec() && process.pid == pid)
            .map(|(_, found)| found.number)
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum BootError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl<M: Machine> Pod<M> {
    pub(super) fn new(namespace: &str, id: &str, events: Events) -> Arc<Self> {
        Arc::new(Self {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
            machine: Arc::new(M::new()),
            events,
            state: Mutex::default(),
            booting: tokio::sync::Mutex::default(),
            volumes: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn link(&self) -> Result<Link, LinkError> {
        self.state.lock().link.clone().ok_or(LinkError::Gone)
    }

    /// Calls the machine where it may take its time.
    pub(super) async fn on_machine<T: Send + 'static>(
        &self,
        call: impl FnOnce(&M) -> Result<T, MachineError> + Send + 'static,
    ) -> Result<T, MachineError> {
        let machine = self.machine.clone();
        let called = tokio::task::spawn_blocking(move || call(&machine)).await;
        called.unwrap_or_else(|error| Err(MachineError::Start(std::io::Error::other(error))))
    }

    /// Ends the machine, and returns when it has ended.
    pub(super) async fn kill(&self) {
        let killed = self.on_machine(|machine| {
            machine.kill();
            Ok(())
        });
        if let Err(error) = killed.await {
            log::warn!("pod {}: {}", self.id, chain(&error));
        }
    }

    /// Starts the machine if this is the pod's first container.
    pub(super) async fn boot(self: &Arc<Self>, spec: &Spec) -> Result<Link, BootError> {
        let _booting = self.booting.lock().await;
        if let Ok(link) = self.link() {
            return Ok(link);
        }
        let wanted = machine::Pod::of(&self.namespace, &self.id, spec);
        let booted = self.on_machine(move |machine| machine.boot(&wanted)).await?;
        let machine = self.machine.clone();
        let (link, ready, mut events) = Link::new(booted.from, booted.to, move || machine.kill());
        ready.wait().await?;
        if let Some(network) = booted.network
            && let Err(error) = link.ask(Request::Network(network)).await
        {
            link.close("its network could not be set up");
            return Err(error.into());
        }
        {
            let mut state = self.state.lock();
            state.machine_pid = booted.pid;
            state.link = Some(link.clone());
        }
        let pod = self.clone();
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                pod.happened(event).await;
            }
        });
        let pod = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(REFRESH).await;
                let Some(pod) = pod.upgrade() else { return };
                pod.refresh().await;
            }
        });
        Ok(link)
    }

    async fn happened(&self, event: Event) {
        match event {
            Event::Exited { process, status, out_of_memory } => {
                self.ended(process, End { status: status.into(), out_of_memory });
            }
            Event::TerminationMessage { volume, bytes } => {
                let path = self.volumes.lock().await.messages.get(&volume).cloned();
                if let Some(path) = path
                    && let Err(error) = write_message(&path, &bytes)
                {
                    log::warn!("cannot write the termination message {}: {error}", path.display());
                }
            }
            Event::Gone { reason } => {
                log::info!("pod {}: {reason}", self.id);
                let left: Vec<u32> = self.state.lock().processes.values().map(|process| process.number).collect();
                for number in left {
                    self.ended(number, End { status: super::KILLED, out_of_memory: false });
                }
            }
        }
    }

    /// A process has ended: containerd is told, unless it is still to be told that it began.
    pub(super) fn ended(&self, number: u32, end: End) {
        let mut state = self.state.lock();
        let Some((key, process)) = state.processes.iter_mut().find(|(_, process)| process.number == number) else {
            return;
        };
        if process.state == State::Starting {
            process.early_end = Some(end);
            return;
        }
        self.tell_end(&key.clone(), process, end);
    }

    pub(super) fn tell_end(&self, key: &Key, process: &mut Process, end: End) {
        if !process.end(end.status) {
            return;
        }
        if end.out_of_memory {
            self.events.send(TaskOOM { container_id: key.container.clone(), ..Default::default() });
        }
        let id = if key.is_exec() { key.exec.clone() } else { key.container.clone() };
        self.events.send(TaskExit {
            container_id: key.container.clone(),
            id,
            pid: process.pid,
            exit_status: end.status,
            exited_at: process.exit().at,
            ..Default::default()
        });
    }

    /// Copies in what kubelet has changed.
    async fn refresh(&self) {
        let Ok(link) = self.link() else { return };
        let mut volumes = self.volumes.lock().await;
        for copied in &mut volumes.copied {
            let updated = Copied::update(copied, &link).await;
            // Once: a pod that ends loses its files before its machine.
            if let (Err(error), false) = (&updated, copied.failing) {
                log::warn!("pod {}: {}", self.id, chain(error));
            }
            copied.failing = updated.is_err();
        }
    }
}

/// An error with all its causes, in a line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Into the file that kubelet made, and no other.
fn write_message(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut file = std::fs::File::options().write(true).truncate(true).custom_flags(nofollow).open(path)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stdio::Paths;

    #[test]
    fn a_shim_ends_with_its_last_container_in_whatever_order_they_go() {
        let mut state = PodState { machine_pid: 77, ..PodState::default() };
        let keys = [Key::new("sandbox", ""), Key::new("container", "")];
        for key in &keys {
            let (number, pid) = state.number();
            state.processes.insert(key.clone(), Process::new(number, pid, "", false, Paths::default()));
        }
        // The sandbox goes first, and containerd asks once.
        state.processes.remove(&keys[0]);
        state.shutdown_asked = true;
        assert!(!state.is_done());
        state.processes.remove(&keys[1]);
        assert!(state.is_done());
    }

    #[test]
    fn the_sandbox_is_the_machine_and_others_have_numbers_that_no_process_has() {
        let mut state = PodState { machine_pid: 77, ..PodState::default() };
        assert_eq!(state.number(), (1, 77));
        let (number, pid) = state.number();
        assert!(pid > 1 << 22, "{pid}");
        let key = Key::new("container", "");
        state.processes.insert(key, Process::new(number, pid, "", false, Paths::default()));
        assert_eq!((state.by_pid(pid), state.by_pid(78)), (Some(2), None));
    }
}
