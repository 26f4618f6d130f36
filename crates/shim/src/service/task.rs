//! The task API, call by call.

use super::Task;
use super::pod::chain;
use super::process::{End, Key, Process, State};
use crate::link::LinkError;
use crate::machine::Machine;
use crate::policy;
use crate::stats;
use crate::stdio::{Paths, Streams};
use agent::oci::Spec;
use agent::protocol::{Answer, PidNamespace, Request, RootMount};
use async_trait::async_trait;
use containerd_shim::api::*;
use containerd_shim::protos::api::ProcessInfo;
use containerd_shim::protos::events::task::*;
use containerd_shim::protos::protobuf::{EnumOrUnknown, MessageField};
use containerd_shim::protos::ttrpc::{self, Code};
use containerd_shim::util::convert_to_any;
use containerd_shim::{Task as TaskApi, TtrpcContext, TtrpcResult};
use std::path::Path;
use std::time::Duration;

/// How long a process's last output may take to be read, once it is deleted.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const SIGKILL: u32 = 9;

fn status(code: Code, text: impl Into<String>) -> ttrpc::Error {
    ttrpc::Error::RpcStatus(ttrpc::get_status(code, text.into()))
}

fn not_found(key: &Key) -> ttrpc::Error {
    status(Code::NOT_FOUND, format!("{key} not found"))
}

/// An error of a request to the agent.
fn asked(error: LinkError) -> ttrpc::Error {
    match error.is_not_found() {
        true => status(Code::NOT_FOUND, "process already finished"),
        false => status(Code::UNKNOWN, chain(&error)),
    }
}

fn refused(error: &dyn std::error::Error) -> ttrpc::Error {
    status(Code::FAILED_PRECONDITION, chain(error))
}

fn read_spec(bundle: &str) -> TtrpcResult<Spec> {
    let path = Path::new(bundle).join("config.json");
    let json =
        std::fs::read(&path).map_err(|error| status(Code::NOT_FOUND, format!("{}: {error}", path.display())))?;
    serde_json::from_slice(&json).map_err(|error| status(Code::INVALID_ARGUMENT, format!("config.json: {error}")))
}

impl<M: Machine> Task<M> {
    fn number_of(&self, key: &Key) -> TtrpcResult<u32> {
        self.pod.state.lock().processes.get(key).map(|process| process.number).ok_or_else(|| not_found(key))
    }

    async fn ask(&self, request: Request) -> TtrpcResult<Answer> {
        self.pod.link().map_err(asked)?.ask(request).await.map_err(asked)
    }

    /// The process whose processes a container sees. containerd names it by its number in a path.
    fn pids_of(&self, spec: &Spec) -> TtrpcResult<PidNamespace> {
        let path = policy::has(spec, "pid").map(|namespace| namespace.path.as_str()).unwrap_or_default();
        if path.is_empty() {
            return Ok(PidNamespace::Own);
        }
        let pid = path.split('/').find_map(|part| part.parse().ok());
        let found = pid.and_then(|pid| self.pod.state.lock().by_pid(pid));
        let missing = || status(Code::INVALID_ARGUMENT, format!("process namespace {path} is not one of the pod's"));
        found.map(PidNamespace::Of).ok_or_else(missing)
    }

    /// Makes a container in the machine, whose process will have this number.
    async fn make(&self, number: u32, r: &CreateTaskRequest, mut spec: Spec) -> TtrpcResult<()> {
        let link = self.pod.link().map_err(asked)?;
        {
            let mut volumes = self.pod.volumes.lock().await;
            let shows_host_paths = self.pod.machine.shows_host_paths();
            let planned = volumes.plan(&mut spec, &r.id, shows_host_paths);
            let mut plan = planned.map_err(|error| refused(&error))?;
            if let Some((zone, mounts)) = plan.zone.take() {
                let attached = self.pod.on_machine(move |machine| machine.attach_zone(&zone, mounts)).await;
                spec.mounts.extend(attached.map_err(|error| refused(&error))?);
            }
            for request in std::mem::take(&mut plan.requests) {
                link.ask(request).await.map_err(asked)?;
            }
            for copied in plan.copies.iter_mut().chain(&mut plan.copies_once) {
                copied.update(&link).await.map_err(|error| refused(&error))?;
            }
            for (name, _) in &plan.messages {
                link.expect_message(name);
            }
            volumes.commit(plan);
        }
        let mounts: Vec<RootMount> = r.rootfs.iter().map(root_mount).collect();
        let id = r.id.clone();
        let attached = self.pod.on_machine(move |machine| machine.attach_root(&id, &mounts)).await;
        let root = attached.map_err(|error| refused(&error))?;
        let pids = self.pids_of(&spec)?;
        let spec = serde_json::to_vec(&spec).map_err(|error| status(Code::INTERNAL, error.to_string()))?;
        let request = Request::Create { process: number, id: r.id.clone(), spec, root, terminal: r.terminal, pids };
        link.ask(request).await.map_err(asked)?;
        Ok(())
    }

    fn forget(&self, key: &Key) -> Option<Process> {
        let (process, link) = {
            let mut state = self.pod.state.lock();
            (state.processes.remove(key)?, state.link.clone())
        };
        if let Some(link) = link {
            link.forget(process.number);
        }
        Some(process)
    }
}

fn root_mount(mount: &containerd_shim::protos::types::mount::Mount) -> RootMount {
    RootMount {
        kind: mount.type_.clone(),
        source: mount.source.clone(),
        target: mount.target.clone(),
        options: mount.options.clone(),
    }
}

#[async_trait]
impl<M: Machine> TaskApi for Task<M> {
    async fn create(&self, _: &TtrpcContext, r: CreateTaskRequest) -> TtrpcResult<CreateTaskResponse> {
        let spec = read_spec(&r.bundle)?;
        policy::check(&spec).map_err(|error| refused(&error))?;
        let link = self.pod.boot(&spec).await.map_err(|error| refused(&error))?;
        let key = Key::new(&r.id, "");
        let paths = Paths { stdin: r.stdin.clone(), stdout: r.stdout.clone(), stderr: r.stderr.clone() };
        let (number, pid) = {
            let mut state = self.pod.state.lock();
            if state.processes.contains_key(&key) {
                return Err(status(Code::ALREADY_EXISTS, format!("{key} already exists")));
            }
            let (number, pid) = state.number();
            state.processes.insert(key.clone(), Process::new(number, pid, &r.bundle, r.terminal, paths.clone()));
            (number, pid)
        };
        let opened = Streams::open(&link, number, &paths, r.terminal).map_err(|error| refused(&error));
        let made = match opened {
            Ok(streams) => self.make(number, &r, spec).await.map(|()| streams),
            Err(error) => Err(error),
        };
        match made {
            Ok(streams) => {
                if let Some(process) = self.pod.state.lock().processes.get_mut(&key) {
                    process.streams = streams;
                }
            }
            Err(error) => {
                self.forget(&key);
                self.detach_root(&r.id).await;
                return Err(error);
            }
        }
        self.pod.events.send(TaskCreate {
            container_id: r.id,
            bundle: r.bundle,
            rootfs: r.rootfs,
            pid,
            ..Default::default()
        });
        Ok(CreateTaskResponse { pid, ..Default::default() })
    }

    async fn start(&self, _: &TtrpcContext, r: StartRequest) -> TtrpcResult<StartResponse> {
        let key = Key::new(&r.id, &r.exec_id);
        let link = self.pod.link().map_err(asked)?;
        let number = {
            let mut state = self.pod.state.lock();
            let process = state.processes.get_mut(&key).ok_or_else(|| not_found(&key))?;
            if process.state != State::Created {
                return Err(status(Code::FAILED_PRECONDITION, format!("{key} was started already")));
            }
            process.state = State::Starting;
            process.number
        };
        link.expect_exit(number);
        let started = link.ask(Request::Start { process: number }).await;
        let mut state = self.pod.state.lock();
        let process = state.processes.get_mut(&key).ok_or_else(|| not_found(&key))?;
        if let Err(error) = started {
            // It never ran: for containerd it has ended.
            process.state = State::Created;
            self.pod.tell_end(&key, process, End { status: 128, out_of_memory: false });
            return Err(asked(error));
        }
        let pid = process.pid;
        if key.is_exec() {
            let (container_id, exec_id) = (r.id, r.exec_id);
            self.pod.events.send(TaskExecStarted { container_id, exec_id, pid, ..Default::default() });
        } else {
            self.pod.events.send(TaskStart { container_id: r.id, pid, ..Default::default() });
        }
        process.state = State::Running;
        match process.early_end.take() {
            Some(end) => self.pod.tell_end(&key, process, end),
            None => {
                let paths = process.paths.clone();
                if let Err(error) = process.streams.feed(&link, number, &paths) {
                    log::warn!("{key}: cannot read its input: {error}");
                    link.end_input(number);
                }
            }
        }
        Ok(StartResponse { pid, ..Default::default() })
    }

    async fn exec(&self, _: &TtrpcContext, r: ExecProcessRequest) -> TtrpcResult<Empty> {
        let key = Key::new(&r.id, &r.exec_id);
        let link = self.pod.link().map_err(asked)?;
        let paths = Paths { stdin: r.stdin.clone(), stdout: r.stdout.clone(), stderr: r.stderr.clone() };
        let (container, number) = {
            let mut state = self.pod.state.lock();
            let of = Key::new(&r.id, "");
            let process = state.processes.get(&of).ok_or_else(|| not_found(&of))?;
            if process.state == State::Stopped {
                return Err(not_found(&of));
            }
            let container = process.number;
            if state.processes.contains_key(&key) {
                return Err(status(Code::ALREADY_EXISTS, format!("{key} already exists")));
            }
            let (number, pid) = state.number();
            state.processes.insert(key.clone(), Process::new(number, pid, "", r.terminal, paths.clone()));
            (container, number)
        };
        let made = async {
            let streams = Streams::open(&link, number, &paths, r.terminal).map_err(|error| refused(&error))?;
            let spec = r.spec.value.clone();
            let request = Request::Exec { process: number, container, spec, terminal: r.terminal };
            link.ask(request).await.map_err(asked)?;
            Ok(streams)
        };
        match made.await {
            Ok(streams) => {
                if let Some(process) = self.pod.state.lock().processes.get_mut(&key) {
                    process.streams = streams;
                }
            }
            Err(error) => {
                self.forget(&key);
                return Err(error);
            }
        }
        self.pod.events.send(TaskExecAdded { container_id: r.id, exec_id: r.exec_id, ..Default::default() });
        Ok(Empty::new())
    }

    async fn state(&self, _: &TtrpcContext, r: StateRequest) -> TtrpcResult<StateResponse> {
        let key = Key::new(&r.id, &r.exec_id);
        let state = self.pod.state.lock();
        let process = state.processes.get(&key).ok_or_else(|| not_found(&key))?;
        let told = match process.state {
            State::Created | State::Starting => Status::CREATED,
            State::Running => Status::RUNNING,
            State::Paused => Status::PAUSED,
            State::Stopped => Status::STOPPED,
        };
        Ok(StateResponse {
            id: r.id,
            exec_id: r.exec_id,
            bundle: process.bundle.clone(),
            pid: process.pid,
            status: EnumOrUnknown::new(told),
            stdin: process.paths.stdin.clone(),
            stdout: process.paths.stdout.clone(),
            stderr: process.paths.stderr.clone(),
            terminal: process.terminal,
            exit_status: process.exit().status,
            exited_at: process.exit().at,
            ..Default::default()
        })
    }

    async fn wait(&self, _: &TtrpcContext, r: WaitRequest) -> TtrpcResult<WaitResponse> {
        let key = Key::new(&r.id, &r.exec_id);
        let mut ended = {
            let state = self.pod.state.lock();
            state.processes.get(&key).ok_or_else(|| not_found(&key))?.watch_end()
        };
        let exit = ended.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        let exit = exit.ok_or_else(|| not_found(&key))?;
        Ok(WaitResponse { exit_status: exit.status, exited_at: exit.at, ..Default::default() })
    }

    async fn kill(&self, _: &TtrpcContext, r: KillRequest) -> TtrpcResult<Empty> {
        let key = Key::new(&r.id, &r.exec_id);
        let number = {
            let mut state = self.pod.state.lock();
            let process = state.processes.get_mut(&key).ok_or_else(|| not_found(&key))?;
            match process.state {
                State::Stopped => return Err(status(Code::NOT_FOUND, "process already finished")),
                // Never started: there is nobody to tell, and it is over.
                State::Created => {
                    self.pod.tell_end(&key, process, End { status: 128 + r.signal, out_of_memory: false });
                    return Ok(Empty::new());
                }
                State::Starting | State::Running | State::Paused => process.number,
            }
        };
        self.ask(Request::Signal { process: number, signal: r.signal, all: r.all }).await?;
        if r.signal == SIGKILL
            && let Some(process) = self.pod.state.lock().processes.get_mut(&key)
            && process.state == State::Paused
        {
            process.state = State::Running;
        }
        Ok(Empty::new())
    }

    async fn delete(&self, _: &TtrpcContext, r: DeleteRequest) -> TtrpcResult<DeleteResponse> {
        let key = Key::new(&r.id, &r.exec_id);
        let (number, outputs) = {
            let mut state = self.pod.state.lock();
            let process = state.processes.get_mut(&key).ok_or_else(|| not_found(&key))?;
            if matches!(process.state, State::Starting | State::Running | State::Paused) {
                return Err(status(Code::FAILED_PRECONDITION, format!("{key} is running")));
            }
            (process.number, process.streams.take_outputs())
        };
        // Never started: no stream will end by itself.
        let deadline = tokio::time::Instant::now() + DRAIN_TIMEOUT;
        for mut output in outputs {
            if tokio::time::timeout_at(deadline, &mut output).await.is_err() {
                output.abort();
            }
        }
        match self.ask(Request::Delete { process: number }).await {
            Err(ttrpc::Error::RpcStatus(error)) if error.code() != Code::NOT_FOUND => {
                return Err(ttrpc::Error::RpcStatus(error));
            }
            _ => {}
        }
        let process = self.forget(&key).ok_or_else(|| not_found(&key))?;
        let exit = process.exit();
        if !key.is_exec() {
            self.detach_root(&r.id).await;
            self.pod.events.send(TaskDelete {
                container_id: r.id.clone(),
                id: r.id,
                pid: process.pid,
                exit_status: exit.status,
                exited_at: exit.at.clone(),
                ..Default::default()
            });
        }
        self.end_if_done().await;
        Ok(DeleteResponse { pid: process.pid, exit_status: exit.status, exited_at: exit.at, ..Default::default() })
    }

    async fn pids(&self, _: &TtrpcContext, r: PidsRequest) -> TtrpcResult<PidsResponse> {
        let number = self.number_of(&Key::new(&r.id, ""))?;
        let Answer::Pids(pids) = self.ask(Request::Pids { process: number }).await? else {
            return Err(status(Code::INTERNAL, "the agent answered something else"));
        };
        let processes = pids.into_iter().map(|pid| ProcessInfo { pid, ..Default::default() }).collect();
        Ok(PidsResponse { processes, ..Default::default() })
    }

    async fn close_io(&self, _: &TtrpcContext, r: CloseIORequest) -> TtrpcResult<Empty> {
        let key = Key::new(&r.id, &r.exec_id);
        if r.stdin
            && let Some(process) = self.pod.state.lock().processes.get_mut(&key)
        {
            process.streams.close_input();
        }
        Ok(Empty::new())
    }

    async fn resize_pty(&self, _: &TtrpcContext, r: ResizePtyRequest) -> TtrpcResult<Empty> {
        let process = self.number_of(&Key::new(&r.id, &r.exec_id))?;
        let size = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        self.ask(Request::Resize { process, rows: size(r.height), columns: size(r.width) }).await?;
        Ok(Empty::new())
    }

    async fn pause(&self, _: &TtrpcContext, r: PauseRequest) -> TtrpcResult<Empty> {
        self.freeze(&r.id, true).await?;
        self.pod.events.send(TaskPaused { container_id: r.id, ..Default::default() });
        Ok(Empty::new())
    }

    async fn resume(&self, _: &TtrpcContext, r: ResumeRequest) -> TtrpcResult<Empty> {
        self.freeze(&r.id, false).await?;
        self.pod.events.send(TaskResumed { container_id: r.id, ..Default::default() });
        Ok(Empty::new())
    }

    async fn update(&self, _: &TtrpcContext, r: UpdateTaskRequest) -> TtrpcResult<Empty> {
        let process = self.number_of(&Key::new(&r.id, ""))?;
        let resources = r.resources.value.clone();
        self.ask(Request::Update { process, resources }).await?;
        Ok(Empty::new())
    }

    async fn stats(&self, _: &TtrpcContext, r: StatsRequest) -> TtrpcResult<StatsResponse> {
        let process = self.number_of(&Key::new(&r.id, ""))?;
        let Answer::Stats(stats) = self.ask(Request::Stats { process }).await? else {
            return Err(status(Code::INTERNAL, "the agent answered something else"));
        };
        let any = convert_to_any(Box::new(stats::metrics(&stats)));
        let any = any.map_err(|error| status(Code::INTERNAL, error.to_string()))?;
        Ok(StatsResponse { stats: MessageField::some(any), ..Default::default() })
    }

    async fn connect(&self, _: &TtrpcContext, r: ConnectRequest) -> TtrpcResult<ConnectResponse> {
        let state = self.pod.state.lock();
        let task_pid = state.processes.get(&Key::new(&r.id, "")).map_or(state.machine_pid, |process| process.pid);
        Ok(ConnectResponse { shim_pid: std::process::id(), task_pid, ..Default::default() })
    }

    async fn shutdown(&self, _: &TtrpcContext, _: ShutdownRequest) -> TtrpcResult<Empty> {
        self.pod.state.lock().shutdown_asked = true;
        self.end_if_done().await;
        Ok(Empty::new())
    }
}

impl<M: Machine> Task<M> {
    /// Ends machine and shim once containerd wants that and no container is left. It asks once, with the sandbox's end, and
    /// where the machine was killed the pod's other containers may be deleted after that.
    async fn end_if_done(&self) {
        let link = {
            let mut state = self.pod.state.lock();
            if !state.is_done() {
                return;
            }
            state.link.take()
        };
        if let Some(link) = link {
            link.close("the pod is gone");
        }
        // Whoever began to end it: this process must not go before the machine has.
        self.pod.kill().await;
        self.exit.signal();
    }

    async fn detach_root(&self, id: &str) {
        let id = id.to_owned();
        let detached = self.pod.on_machine(move |machine| {
            machine.detach_root(&id);
            Ok(())
        });
        if let Err(error) = detached.await {
            log::warn!("pod {}: {}", self.pod.id, chain(&error));
        }
    }

    async fn freeze(&self, id: &str, frozen: bool) -> TtrpcResult<()> {
        let key = Key::new(id, "");
        let number = self.number_of(&key)?;
        self.ask(Request::Freeze { process: number, frozen }).await?;
        if let Some(process) = self.pod.state.lock().processes.get_mut(&key)
            && matches!(process.state, State::Running | State::Paused)
        {
            process.state = if frozen { State::Paused } else { State::Running };
        }
        Ok(())
    }
}
