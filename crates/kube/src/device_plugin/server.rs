//! One resource, served to kubelet.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use super::allocator::{Allocator, Refusal};
use crate::api::device_plugin as api;
use api::device_plugin_server::DevicePlugin;

pub(super) struct Plugin {
    pub resource: String,
    pub allocator: Arc<Allocator>,
    /// The whole list, whenever it changes.
    pub devices: watch::Receiver<Vec<api::Device>>,
}

pub(super) fn options() -> api::DevicePluginOptions {
    api::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownResource(_) | Refusal::UnknownDevice(_) => Self::not_found(refusal.to_string()),
            Refusal::OnlyOne(_) | Refusal::SeveralInstances(_) => Self::invalid_argument(refusal.to_string()),
            Refusal::Store(_) => Self::unavailable(refusal.to_string()),
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream = Pin<Box<dyn futures::Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<api::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.devices.clone());
        Ok(Response::new(Box::pin(lists.map(|devices| Ok(api::ListAndWatchResponse { devices })))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for wish in request.into_inner().container_requests {
            let size = usize::try_from(wish.allocation_size).unwrap_or(0);
            let device_i_ds = self
                .allocator
                .prefer(&self.resource, &wish.available_device_i_ds, &wish.must_include_device_i_ds, size)
                .await?;
            container_responses.push(api::ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(api::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let wishes = request.into_inner().container_requests.into_iter().map(|wish| wish.devices_ids).collect();
        let container_responses = self.allocator.allocate(&self.resource, wishes).await.inspect_err(|error| {
            tracing::error!(resource = self.resource, %error, "cannot allocate");
        })?;
        Ok(Response::new(api::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
