//! Requests of the shim, each answered once.

use super::process::{Container, Input, Kind, Output, Process, State, pipe};
use super::root::{mount_root, unmount_root};
use super::{Agent, Transport};
use crate::container::{Cgroup, Place, Plan, Stdio, compile, flags, spawn};
use crate::network;
use crate::oci::{Process as ProcessSpec, Resources, Spec};
use crate::protocol::{Answer, Down, Failure, FailureKind, MAX_PIDS, PidNamespace, Request, Root, StreamKind, Up};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::Winsize;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;

type Answered = Result<Answer, Failure>;

/// How often a container's processes are asked to go, at its end.
const KILL_ROUNDS: u32 = 20;

fn failed(what: &str, error: &dyn Error) -> Failure {
    let mut text = format!("{what}: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    Failure { kind: FailureKind::Failed, text }
}

fn not_found() -> Failure {
    Failure { kind: FailureKind::NotFound, text: "process does not exist or has ended".to_owned() }
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Invalid, text: text.into() }
}

fn parse<S: serde::de::DeserializeOwned>(json: &[u8]) -> Result<S, Failure> {
    serde_json::from_slice(json).map_err(|error| invalid(format!("invalid specification: {error}")))
}

impl<T: Transport> Agent<T> {
    pub(super) fn take(&mut self, message: Down) {
        match message {
            Down::Request { number, request } => {
                // A start is answered when it is known how it went.
                if let Some(result) = self.handle(number, request).transpose() {
                    self.link.send(&Up::Reply { number, result });
                }
            }
            Down::Input { process, bytes } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.input.push(&bytes);
                }
            }
            Down::InputEnd { process } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.input.end();
                }
            }
            Down::Credit { stream, bytes } => {
                let index = match stream.kind {
                    StreamKind::Stdin => return,
                    StreamKind::Stdout => 0,
                    StreamKind::Stderr => 1,
                };
                if let Some(process) = self.processes.get_mut(&stream.process) {
                    process.outputs[index].grant(bytes);
                }
            }
        }
    }

    fn handle(&mut self, number: u32, request: Request) -> Result<Option<Answer>, Failure> {
        match request {
            Request::Start { process } => self.start(number, process).map(|()| None),
            other => self.answer(other).map(Some),
        }
    }

    fn answer(&mut self, request: Request) -> Answered {
        match request {
            Request::Create { process, id, spec, root, terminal, pids } => {
                self.create(process, &id, parse(&spec)?, &root, terminal, pids)
            }
            Request::Exec { process, container, spec, terminal } => {
                self.exec(process, container, parse(&spec)?, terminal)
            }
            Request::Signal { process, signal, all } => self.signal(process, signal, all),
            Request::Resize { process, rows, columns } => self.resize(process, rows, columns),
            Request::Stats { process } => Ok(Answer::Stats(self.container(process)?.cgroup.stats())),
            Request::Pids { process } => {
                let mut pids = self.container(process)?.cgroup.processes();
                pids.truncate(MAX_PIDS);
                Ok(Answer::Pids(pids))
            }
            Request::Update { process, resources } => {
                let resources: Resources = parse(&resources)?;
                let limited = self.container(process)?.cgroup.limit(&resources);
                limited.map_err(|error| failed("cannot set limits", &error))?;
                Ok(Answer::Done)
            }
            Request::Freeze { process, frozen } => {
                let container = self.container(process)?;
                container.cgroup.freeze(frozen).map_err(|error| failed("cannot freeze", &error))?;
                container.frozen = frozen;
                Ok(Answer::Done)
            }
            Request::Delete { process } => self.delete(process),
            Request::Network(network) => {
                network::set_up(&network).map_err(|error| failed("cannot set up the network", &error))?;
                Ok(Answer::Done)
            }
            Request::Start { .. } => Err(invalid("answered elsewhere")),
            other => {
                self.volumes.handle(other).map_err(|error| failed("volume", &error))?;
                Ok(Answer::Done)
            }
        }
    }

    fn container(&mut self, process: u32) -> Result<&mut Container, Failure> {
        match self.processes.get_mut(&process).map(|process| &mut process.kind) {
            Some(Kind::Container(container)) => Ok(container),
            _ => Err(not_found()),
        }
    }

    fn create(
        &mut self,
        process: u32,
        id: &str,
        spec: Spec,
        root: &Root,
        terminal: bool,
        pids: PidNamespace,
    ) -> Answered {
        if self.processes.contains_key(&process) {
            return Err(invalid("this process exists already"));
        }
        let place = self.home.join(format!("root-{process}"));
        fs::create_dir_all(&place).map_err(|error| failed("cannot make the root directory", &error))?;
        let mounted = mount_root(root, &place);
        if let Err(error) = mounted {
            unmount_root(&place);
            return Err(failed("cannot mount the root file system", &error));
        }
        let path = if spec.linux.cgroups_path.is_empty() { id } else { &spec.linux.cgroups_path };
        let made = Cgroup::create(&self.trees, path).and_then(|cgroup| {
            cgroup.limit(&spec.linux.resources)?;
            cgroup.allow_devices(&spec.linux.resources)?;
            Ok(cgroup)
        });
        let cgroup = match made {
            Ok(cgroup) => cgroup,
            Err(error) => {
                unmount_root(&place);
                return Err(failed("cannot make the cgroup", &error));
            }
        };
        let container = Container { spec, root: place, cgroup, pids, frozen: false };
        self.processes.insert(process, Process::new(Kind::Container(Box::new(container)), terminal));
        Ok(Answer::Done)
    }

    fn exec(&mut self, process: u32, container: u32, spec: ProcessSpec, terminal: bool) -> Answered {
        if self.processes.contains_key(&process) {
            return Err(invalid("this process exists already"));
        }
        self.container(container)?;
        let kind = Kind::Exec { container, spec: Box::new(spec) };
        self.processes.insert(process, Process::new(kind, terminal));
        Ok(Answer::Done)
    }

    fn start(&mut self, request: u32, number: u32) -> Result<(), Failure> {
        let process = self.processes.get(&number).ok_or_else(not_found)?;
        if !matches!(process.state, State::Created) {
            return Err(invalid("the process was started already"));
        }
        let terminal = process.terminal;
        let (container, spec, place) = match &process.kind {
            Kind::Container(container) => {
                let pids_of = match container.pids {
                    PidNamespace::Own => None,
                    PidNamespace::Of(other) => Some(running(&self.processes, other)?),
                };
                let place =
                    Place::New { spec: &container.spec, root: &container.root, volumes: self.volumes.dir(), pids_of };
                (container, &container.spec.process, place)
            }
            Kind::Exec { container: other, spec } => {
                let pid = running(&self.processes, *other)?;
                let Some(Kind::Container(container)) = self.processes.get(other).map(|process| &process.kind) else {
                    return Err(not_found());
                };
                (container, &**spec, Place::In(pid))
            }
        };
        let seccomp = match &container.spec.linux.seccomp {
            Some(profile) => {
                let wrong = |error| failed("invalid seccomp profile", &error);
                Some((compile(profile).map_err(wrong)?, flags(profile).map_err(wrong)?))
            }
            None => None,
        };
        let size = spec.console_size.map(|size| window(size.height, size.width));
        let cannot = |error: io::Error| failed("cannot start the process", &error);
        let (stdio, input, outputs) = if terminal {
            (Stdio::Terminal(size), None, [Output::default(), Output::default()])
        } else {
            let (input_read, input_write) = pipe(false).map_err(cannot)?;
            let (output_read, output_write) = pipe(true).map_err(cannot)?;
            let (errors_read, errors_write) = pipe(true).map_err(cannot)?;
            let mut outputs = [Output::default(), Output::default()];
            outputs[0].open(output_read.into());
            outputs[1].open(errors_read.into());
            (Stdio::Pipes([input_read, output_write, errors_write]), Some(input_write.into()), outputs)
        };
        let plan = Plan { process: spec, cgroup: &container.cgroup, place, seccomp, stdio };
        let report = spawn(&plan).map_err(cannot)?;
        drop(plan);
        let process = self.processes.get_mut(&number).ok_or_else(not_found)?;
        process.state = State::Starting { report, request, pid: None };
        process.input.open(input);
        process.outputs = outputs;
        Ok(())
    }

    fn signal(&mut self, number: u32, signal: u32, all: bool) -> Answered {
        let wanted = i32::try_from(signal).ok().and_then(signal_of).ok_or_else(|| invalid("unknown signal"))?;
        if all && let Ok(container) = self.container(number) {
            for pid in container.cgroup.processes() {
                send(pid, wanted);
            }
            return Ok(Answer::Done);
        }
        let pid = running(&self.processes, number)?;
        if !send(pid, wanted) {
            return Err(not_found());
        }
        // What is frozen does not take its signal before it goes on.
        if wanted == Signal::KILL
            && let Ok(container) = self.container(number)
            && container.frozen
        {
            let _ = container.cgroup.freeze(false);
            container.frozen = false;
        }
        Ok(Answer::Done)
    }

    fn resize(&mut self, process: u32, rows: u16, columns: u16) -> Answered {
        let process = self.processes.get(&process).ok_or_else(not_found)?;
        if let Some(console) = &process.console {
            let resized = rustix::termios::tcsetwinsize(console, window(rows.into(), columns.into()));
            resized.map_err(|error| failed("cannot resize the terminal", &io::Error::from(error)))?;
        }
        Ok(Answer::Done)
    }

    fn delete(&mut self, number: u32) -> Answered {
        let process = self.processes.get(&number).ok_or_else(not_found)?;
        if matches!(process.state, State::Running { .. } | State::Starting { .. }) {
            return Err(invalid("the process is running"));
        }
        let process = self.processes.remove(&number);
        if let Some(Process { kind: Kind::Container(container), .. }) = process {
            // Others may be left that share the processes of the pod.
            for _ in 0..KILL_ROUNDS {
                let left = container.cgroup.processes();
                if left.is_empty() {
                    break;
                }
                for pid in left {
                    send(pid, Signal::KILL);
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            container.cgroup.remove();
            unmount_root(&container.root);
        }
        Ok(Answer::Done)
    }
}

impl Process {
    fn new(kind: Kind, terminal: bool) -> Self {
        Self {
            kind,
            state: State::Created,
            terminal,
            input: Input::default(),
            outputs: Default::default(),
            console: None,
        }
    }
}

/// The number of a process that runs.
fn running(processes: &BTreeMap<u32, Process>, number: u32) -> Result<u32, Failure> {
    match processes.get(&number).map(|process| &process.state) {
        Some(State::Running { pid, .. }) => Ok(*pid),
        _ => Err(not_found()),
    }
}

/// Sends a signal to a process of ours: one that has not been collected, so that its number is still its own.
fn send(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

fn signal_of(number: i32) -> Option<Signal> {
    if (1..=31).contains(&number) { Signal::from_named_raw(number) } else { real_time(number) }
}

fn real_time(number: i32) -> Option<Signal> {
    // SAFETY: signals from 34 to 64 are the real-time ones that the C library leaves to programs; none of them has a
    // meaning in this process, which only sends them.
    (34..=64).contains(&number).then(|| unsafe { Signal::from_raw_unchecked(number) })
}

fn window(rows: u32, columns: u32) -> Winsize {
    let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    Winsize { ws_row: short(rows), ws_col: short(columns), ws_xpixel: 0, ws_ypixel: 0 }
}
