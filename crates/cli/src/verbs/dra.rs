//! `bulkhead dra`: the Kubernetes DRA driver.

use std::process::ExitCode;

use bulkhead_kube::dra::{self, DraError, Options};
use control::env_vars;

use crate::args::DraArgs;
use crate::exit::{Exit, Failure};
use crate::node;

pub(crate) fn run(args: DraArgs) -> Result<ExitCode, Failure> {
    if let Some(probe) = args.node.probe {
        return node::probe(dra::HEALTH, probe);
    }
    let from_environment = || std::env::var(env_vars::NODE_NAME).ok().filter(|name| !name.is_empty());
    let Some(node_name) = args.node_name.or_else(from_environment) else {
        let line = format!("the node's name is unknown: use --node-name, or set {}", env_vars::NODE_NAME);
        return Err(Failure::new(Exit::Usage, line));
    };
    let options = Options {
        config: args.node.config(),
        admin_socket: args.node.admin_socket(),
        places: args.node.places()?,
        node: node_name,
        events: args.events,
        kubeconfig: args.kubeconfig,
        registry: args.registry_dir,
        plugin: args.plugin_dir,
        pod_resources: args.node.pod_resources.clone(),
        container_logs: args.container_logs,
        cdi: args.node.cdi_dir.clone(),
        checkpoints: args.checkpoint_dir,
    };
    let ended = node::serve(&args.node, async move |stop| dra::run(options, stop).await)?;
    ended.map(|()| ExitCode::SUCCESS).map_err(|error| match &error {
        DraError::Source(_) => Failure::new(Exit::Config, error.to_string().replace('\n', "\nbulkhead: ")),
        DraError::Directory { path, source } => {
            Failure::system(Exit::StateDir, &format!("cannot use {}", path.display()), source)
        }
        DraError::Cluster(_) | DraError::Replaced(_) => Failure::new(Exit::Failure, error.to_string()),
    })
}
