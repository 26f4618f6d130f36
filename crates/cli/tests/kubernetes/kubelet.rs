//! A kubelet: what plugins see of one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bulkhead_kube::api::device_plugin as api;
use bulkhead_kube::api::device_plugin::device_plugin_client::DevicePluginClient;
use bulkhead_kube::api::device_plugin::registration_server::{Registration, RegistrationServer};
use bulkhead_kube::api::pod_resources as pods;
use bulkhead_kube::api::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use bulkhead_kube::sockets;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use testkit::until;

#[derive(Clone, Default)]
struct Inside {
    registered: Arc<Mutex<Vec<api::RegisterRequest>>>,
    pods: Arc<Mutex<Vec<pods::PodResources>>>,
    /// It speaks another version.
    refuses: Arc<Mutex<bool>>,
}

pub struct Kubelet {
    pub plugins: PathBuf,
    pub pod_resources: PathBuf,
    runtime: Handle,
    inside: Inside,
    serving: Vec<JoinHandle<()>>,
}

#[tonic::async_trait]
impl Registration for Inside {
    async fn register(&self, request: Request<api::RegisterRequest>) -> Result<Response<api::Empty>, Status> {
        if *self.refuses.lock().unwrap() {
            return Err(Status::unimplemented("unknown service v1beta1.Registration"));
        }
        self.registered.lock().unwrap().push(request.into_inner());
        Ok(Response::new(api::Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Inside {
    async fn list(
        &self,
        _: Request<pods::ListPodResourcesRequest>,
    ) -> Result<Response<pods::ListPodResourcesResponse>, Status> {
        let pod_resources = self.pods.lock().unwrap().clone();
        Ok(Response::new(pods::ListPodResourcesResponse { pod_resources }))
    }
}

impl Kubelet {
    pub fn start(dir: &Path) -> Self {
        let plugins = dir.join("device-plugins");
        std::fs::create_dir_all(&plugins).unwrap();
        let runtime = crate::node::runtime();
        let pod_resources = dir.join("pod-resources.sock");
        let mut kubelet = Self { plugins, pod_resources, runtime, inside: Inside::default(), serving: Vec::new() };
        kubelet.listen();
        kubelet
    }

    fn listen(&mut self) {
        let _inside = self.runtime.enter();
        let registration = sockets::listen(&self.plugins.join("kubelet.sock")).unwrap();
        let lister = sockets::listen(&self.pod_resources).unwrap();
        let (one, other) = (self.inside.clone(), self.inside.clone());
        self.serving.push(self.runtime.spawn(async move {
            let _ =
                Server::builder().add_service(RegistrationServer::new(one)).serve_with_incoming(registration).await;
        }));
        self.serving.push(self.runtime.spawn(async move {
            let _ =
                Server::builder().add_service(PodResourcesListerServer::new(other)).serve_with_incoming(lister).await;
        }));
    }

    pub fn stop(&mut self) {
        self.serving.drain(..).for_each(|task| task.abort());
        let _ = std::fs::remove_file(self.plugins.join("kubelet.sock"));
        let _ = std::fs::remove_file(&self.pod_resources);
    }

    /// As a real one does when it starts: all sockets of plugins are removed, and nobody is registered.
    pub fn restart(&mut self) {
        self.stop();
        for entry in std::fs::read_dir(&self.plugins).unwrap().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        self.inside.registered.lock().unwrap().clear();
        self.listen();
    }

    pub fn refuse(&self, refuses: bool) {
        *self.inside.refuses.lock().unwrap() = refuses;
    }

    /// Waits until a resource is registered, and dials back.
    pub fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        let find = || {
            let registered = self.inside.registered.lock().unwrap();
            registered.iter().rev().find(|request| request.resource_name == resource).cloned()
        };
        until(&format!("{resource} is registered"), || find().is_some());
        let request = find().unwrap();
        assert_eq!(request.version, "v1beta1");
        let _inside = self.runtime.enter();
        DevicePluginClient::new(sockets::channel(&self.plugins.join(request.endpoint)).unwrap())
    }

    pub fn registered(&self) -> Vec<String> {
        self.inside.registered.lock().unwrap().iter().map(|request| request.resource_name.clone()).collect()
    }

    /// The list as it is now.
    fn list(&self, resource: &str) -> Vec<api::Device> {
        let mut plugin = self.plugin(resource);
        let first = self.runtime.block_on(async {
            let mut lists = plugin.list_and_watch(api::Empty {}).await.unwrap().into_inner();
            lists.message().await.unwrap().unwrap()
        });
        first.devices
    }

    /// Names and health.
    pub fn devices(&self, resource: &str) -> Vec<(String, String)> {
        self.list(resource).into_iter().map(|device| (device.id, device.health)).collect()
    }

    /// The NUMA nodes that each device is near to.
    pub fn numa_nodes(&self, resource: &str) -> Vec<Vec<i64>> {
        let nodes = |device: api::Device| device.topology.into_iter().flat_map(|it| it.nodes).map(|node| node.id);
        self.list(resource).into_iter().map(|device| nodes(device).collect()).collect()
    }

    pub fn ids(&self, resource: &str) -> Vec<String> {
        self.devices(resource).into_iter().map(|(id, _)| id).collect()
    }

    pub fn allocate(&self, resource: &str, ids: &[&str]) -> Result<api::ContainerAllocateResponse, Status> {
        let mut plugin = self.plugin(resource);
        let wish = api::ContainerAllocateRequest { devices_ids: ids.iter().map(|id| (*id).to_owned()).collect() };
        let request = api::AllocateRequest { container_requests: vec![wish] };
        let answer = self.runtime.block_on(plugin.allocate(request))?.into_inner();
        Ok(answer.container_responses.into_iter().next().unwrap())
    }

    pub fn prefer(&self, resource: &str, available: &[&str], size: i32) -> Vec<String> {
        let mut plugin = self.plugin(resource);
        let wish = api::ContainerPreferredAllocationRequest {
            available_device_i_ds: available.iter().map(|id| (*id).to_owned()).collect(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: size,
        };
        let request = api::PreferredAllocationRequest { container_requests: vec![wish] };
        let answer = self.runtime.block_on(plugin.get_preferred_allocation(request)).unwrap().into_inner();
        answer.container_responses.into_iter().next().unwrap().device_i_ds
    }

    /// Says that a container has devices; in place of all that was said before about the pod.
    pub fn run_pod(&self, namespace: &str, name: &str, resource: &str, ids: &[&str]) {
        let devices = pods::ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let container =
            pods::ContainerResources { name: "main".into(), devices: vec![devices], ..Default::default() };
        self.end_pod(namespace, name);
        self.inside.pods.lock().unwrap().push(pods::PodResources {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![container],
        });
    }

    pub fn end_pod(&self, namespace: &str, name: &str) {
        self.inside.pods.lock().unwrap().retain(|pod| pod.namespace != namespace || pod.name != name);
    }
}
