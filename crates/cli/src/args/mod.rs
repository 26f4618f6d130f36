//! The command line, from which help, manual and completions are made.

#[cfg(feature = "kubernetes")]
mod cdi;
mod hidden;
mod ipc;
#[cfg(feature = "kubernetes")]
mod kube;
mod look;
mod run;
mod zones;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

#[cfg(feature = "kubernetes")]
pub use cdi::*;
pub use hidden::*;
pub use ipc::*;
#[cfg(feature = "kubernetes")]
pub use kube::*;
pub use look::*;
pub use proxy::args::*;
pub use run::*;
pub use zones::*;

/// GPUs shared between tenants that do not trust each other
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, about, max_term_width = 100)]
pub struct Bulkhead {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a CUDA program in a zone
    Run(RunArgs),
    /// Be the node's proxy: make zones, start a jailed worker for each client
    Proxy(ProxyArgs),
    /// Start, confine and end workers for the broker
    #[command(hide = true)]
    Spawner(ProxyArgs),
    /// Serve metrics and the status page
    #[command(hide = true)]
    Exporter(proxy::exporter::ExporterArgs),
    /// Show a proxy's zones and what they use
    Status(StatusArgs),
    /// Watch zones and their programs, live
    Top(TopArgs),
    /// List zones, make them, change them, end their programs
    Zones(ZonesArgs),
    /// List, give and revoke rights to open another zone's memory
    Grants(GrantsArgs),
    /// Hand buffers over by name: publish them, wait for them
    Ipc(IpcArgs),
    /// Make what Xen guests boot
    #[cfg(feature = "xen")]
    Image(crate::xen_args::ImageArgs),
    /// Run programs in Xen domains of their own
    #[cfg(feature = "xen")]
    Xen(crate::xen_args::XenArgs),
    /// Let clients that are in Xen guests in (runs beside the proxy, in the driver domain)
    #[command(after_help = GATE_HELP)]
    Gate {
        /// The proxy's state directory
        #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
        state_dir: PathBuf,
        /// How much memory of one guest may be mapped here at a time
        #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = control::size::parse)]
        guest_memory: u64,
    },
    /// Show the GPUs, and what lies between them
    Topology(TopologyArgs),
    /// Find out what is wrong, why, and what to do about it
    Doctor(DoctorArgs),
    /// Measure what messages cost on this machine
    Bench(BenchArgs),
    /// Write, check and list CDI files: how container runtimes learn of zones and GPUs
    #[cfg(feature = "kubernetes")]
    Cdi(CdiArgs),
    /// Offer the node's GPUs, whole or in parts, to kubelet as resources
    #[cfg(feature = "kubernetes")]
    DevicePlugin(DevicePluginArgs),
    /// Offer the node's GPUs to claims (dynamic resource allocation)
    #[cfg(feature = "kubernetes")]
    Dra(DraArgs),
    /// Install Bulkhead as a service of a host without a package of it, or remove it
    #[cfg(feature = "kubernetes")]
    Install(InstallArgs),
    /// Serve one client (started by the proxy)
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Look at what workers really use (started by the proxy)
    #[command(hide = true)]
    Meter {
        #[arg(long)]
        library: PathBuf,
    },
    /// Move a worker's GPU memory to the host or back (started by the proxy)
    #[command(hide = true)]
    Mover(MoverArgs),
    /// Look at the GPUs (started by `topology` and `doctor`)
    #[command(hide = true)]
    Survey {
        #[command(flatten)]
        backend: BackendArgs,
        /// As programs of this zone see them
        #[arg(long)]
        zone: bool,
    },
    /// Try what a CUDA program needs (started by `doctor` in a zone)
    #[command(hide = true)]
    Selftest {
        #[arg(long)]
        open: Option<String>,
    },
    /// Print completions for a shell
    #[command(after_help = "Example:\n  bulkhead completions bash > /etc/bash_completion.d/bulkhead")]
    Completions { shell: clap_complete::Shell },
    /// Print the manual page
    #[command(after_help = "Example:\n  bulkhead man | man -l -")]
    Man,
}

const GATE_HELP: &str = "\
Which domain is which zone stands in xenstore, where the toolstack writes it:
  xenstore-write /tool/bulkhead/domains/DOMID/vm \"$(xenstore-read /local/domain/DOMID/vm)\"
  xenstore-write /tool/bulkhead/domains/DOMID/zone NAME

Clients in guests lose their workers when the gate ends; those that start later find the next one.";

#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The proxy's admin socket
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead/admin.sock", global = true)]
    pub socket: PathBuf,
    /// Print it as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        crate::command().debug_assert();
    }

    #[test]
    fn the_program_keeps_its_own_flags() {
        let parsed = Bulkhead::try_parse_from(["bulkhead", "run", "--memory", "1GiB", "--", "ls", "--zone", "x"]);
        let Verb::Run(run) = parsed.unwrap().verb else { panic!() };
        assert_eq!(run.command, ["ls", "--zone", "x"]);
        assert_eq!(run.zone.as_str(), "default");
    }
}
