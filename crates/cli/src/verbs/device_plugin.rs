//! `bulkhead device-plugin`: the Kubernetes device plugin.

use std::process::ExitCode;

use bulkhead_kube::device_plugin::{self, Options, PluginError};

use crate::args::DevicePluginArgs;
use crate::exit::{Exit, Failure};
use crate::node;

pub(crate) fn run(args: DevicePluginArgs) -> Result<ExitCode, Failure> {
    if let Some(probe) = args.node.probe {
        return node::probe(device_plugin::HEALTH, probe);
    }
    let options = Options {
        config: args.node.config(),
        admin_socket: args.node.admin_socket(),
        places: args.node.places()?,
        kubelet: args.kubelet_dir,
        pod_resources: args.node.pod_resources.clone(),
        cdi: args.node.cdi_dir.clone(),
        checkpoints: args.checkpoint_dir,
        pod: args.pod,
    };
    let ended = node::serve(&args.node, async move |stop| device_plugin::run(options, stop).await)?;
    ended.map(|()| ExitCode::SUCCESS).map_err(|error| match &error {
        PluginError::Source(_) => Failure::new(Exit::Config, error.to_string().replace('\n', "\nbulkhead: ")),
        PluginError::Directory { path, source } => {
            Failure::system(Exit::StateDir, &format!("cannot use {}", path.display()), source)
        }
    })
}
