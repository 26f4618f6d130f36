//! The process that containerd talks to: its start, its end, and the answers to the task API (in [`task`]).

mod events;
mod pod;
mod process;
mod task;

use crate::machine::Machine;
use crate::policy::SANDBOX_ID;
use agent::oci::Spec;
use async_trait::async_trait;
use containerd_shim::api::DeleteResponse;
use containerd_shim::asynchronous::{ExitSignal, Shim, run, spawn};
use containerd_shim::protos::protobuf::MessageField;
use containerd_shim::publisher::RemotePublisher;
use containerd_shim::util::timestamp;
use containerd_shim::{Config, Error, Flags, StartOpts};
use pod::Pod;
use std::sync::Arc;

/// 128 and the number of SIGKILL: what ended the containers of a shim that is gone.
const KILLED: u32 = 137;

/// Runs the shim as its arguments say: `start`, `delete`, or serve.
pub fn serve<M: Machine>() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run::<Service<M>>(M::RUNTIME, None));
    Ok(())
}

struct Service<M> {
    exit: Arc<ExitSignal>,
    namespace: String,
    id: String,
    machine: std::marker::PhantomData<M>,
}

#[async_trait]
impl<M: Machine> Shim for Service<M> {
    type T = Task<M>;

    async fn new(_: &str, args: &Flags, config: &mut Config) -> Self {
        // The machine's process is waited for by whoever started it.
        config.no_reaper = true;
        Self {
            exit: Arc::default(),
            namespace: args.namespace.clone(),
            id: args.id.clone(),
            machine: std::marker::PhantomData,
        }
    }

    async fn start_shim(&mut self, opts: StartOpts) -> Result<String, Error> {
        // A container of a pod is led to the shim of its sandbox.
        let spec = std::fs::read("config.json").ok().and_then(|json| serde_json::from_slice::<Spec>(&json).ok());
        let group = spec.and_then(|mut spec| spec.annotations.remove(SANDBOX_ID)).unwrap_or_else(|| opts.id.clone());
        spawn(opts, &group, vec![]).await
    }

    async fn delete_shim(&mut self) -> Result<DeleteResponse, Error> {
        let (namespace, id) = (self.namespace.clone(), self.id.clone());
        let cleaned = tokio::task::spawn_blocking(move || M::clean_up(&namespace, &id)).await;
        cleaned.map_err(|error| Error::Other(error.to_string()))?;
        Ok(DeleteResponse { exit_status: KILLED, exited_at: MessageField::some(timestamp()?), ..Default::default() })
    }

    async fn wait(&mut self) {
        self.exit.wait().await;
    }

    async fn create_task_service(&self, publisher: RemotePublisher) -> Task<M> {
        Task {
            pod: Pod::new(&self.namespace, &self.id, events::publish(&publisher.address, &self.namespace)),
            exit: self.exit.clone(),
        }
    }
}

/// Answers containerd.
struct Task<M> {
    pod: Arc<Pod<M>>,
    exit: Arc<ExitSignal>,
}
