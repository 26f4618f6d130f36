//! The command line, from which help, man page and completions are generated.

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
pub(crate) use cdi::*;
pub(crate) use hidden::*;
pub(crate) use ipc::*;
#[cfg(feature = "kubernetes")]
pub(crate) use kube::*;
pub(crate) use look::*;
pub(crate) use proxy::args::*;
pub(crate) use run::*;
pub(crate) use zones::*;

const HELP: &str = "\
Examples:
  bulkhead run --memory 2GiB -- ./saxpy
  bulkhead doctor
  bulkhead help zones set

`bulkhead man` is the manual, with the environment variables and exit statuses. A failure is one line on standard error.";

/// Share GPUs between tenants that do not trust each other
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, about, max_term_width = 100, after_help = HELP)]
pub(crate) struct Bulkhead {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a CUDA program in a zone
    Run(RunArgs),
    /// Run the node's proxy: create zones and start a jailed worker for each client
    Proxy(ProxyArgs),
    /// Start, confine and end workers for the broker
    #[command(hide = true)]
    Spawner(ProxyArgs),
    /// Serve metrics and the status page
    #[command(hide = true)]
    Exporter(proxy::exporter::ExporterArgs),
    /// Show the proxy's zones and their usage
    Status(StatusArgs),
    /// Monitor zones and their clients
    Top(TopArgs),
    /// List, create, change, freeze and remove zones, or end their clients
    Zones(ZonesArgs),
    /// List, create and revoke grants to open another zone's memory
    Grants(GrantsArgs),
    /// Publish buffers by name, and wait for them
    Ipc(IpcArgs),
    /// Build images for Xen guests
    #[cfg(feature = "xen")]
    Image(crate::xen_args::ImageArgs),
    /// Run a program in a Xen domain of its own
    #[cfg(feature = "xen")]
    Xen(crate::xen_args::XenArgs),
    /// Connect clients in Xen guests to the proxy (runs beside it in the driver domain)
    #[command(alias = "gate", after_help = XEN_BACKEND_HELP)]
    XenBackend {
        /// State directory of the proxy
        #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
        state_dir: PathBuf,
        /// Maximum memory of one guest that may be mapped at a time
        #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = control::size::parse_amount)]
        guest_memory: u64,
    },
    /// Show the GPUs and the links between them
    Topology(TopologyArgs),
    /// Diagnose problems and suggest fixes
    Doctor(DoctorArgs),
    /// Measure message latency on this machine
    Bench(BenchArgs),
    /// Generate, validate and list CDI specifications for zones and GPUs
    #[cfg(feature = "kubernetes")]
    Cdi(CdiArgs),
    /// Run the Kubernetes device plugin
    #[cfg(feature = "kubernetes")]
    DevicePlugin(DevicePluginArgs),
    /// Run the Kubernetes DRA driver (dynamic resource allocation)
    #[cfg(feature = "kubernetes")]
    Dra(DraArgs),
    /// Install Bulkhead as a host service where there is no package, or remove it
    #[cfg(feature = "kubernetes")]
    Install(InstallArgs),
    /// Serve one client (started by the proxy)
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Report the GPU memory that workers use (started by the proxy)
    #[command(hide = true)]
    Meter {
        #[arg(long)]
        library: PathBuf,
    },
    /// Move a worker's GPU memory to the host or back (started by the proxy)
    #[command(hide = true)]
    Mover(MoverArgs),
    /// Stop and resume work on the GPUs (started by the proxy)
    #[command(hide = true)]
    Preemptor,
    /// Test whether running kernels can be stopped and resumed (started by the proxy)
    #[command(hide = true)]
    PreemptionTest(PreemptionTestArgs),
    /// Print a table of recorded driver calls (BULKHEAD_DRIVER_CALLS)
    #[command(hide = true)]
    DriverCalls(DriverCallsArgs),
    /// Probe the GPUs (started by `topology` and `doctor`)
    #[command(hide = true)]
    Survey {
        #[command(flatten)]
        backend: BackendArgs,
        /// As the clients of this zone see them
        #[arg(long)]
        zone: bool,
    },
    /// Run the CUDA self-test (started by `doctor` in a zone)
    #[command(hide = true)]
    Selftest {
        #[arg(long)]
        open: Option<String>,
    },
    /// Print shell completions
    #[command(after_help = "Example:\n  bulkhead completions bash > /etc/bash_completion.d/bulkhead")]
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Print a man page
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManArgs),
}

const XEN_BACKEND_HELP: &str = "\
The toolstack assigns domains to zones in xenstore:
  xenstore-write /tool/bulkhead/domains/DOMID/vm \"$(xenstore-read /local/domain/DOMID/vm)\"
  xenstore-write /tool/bulkhead/domains/DOMID/zone NAME

When the backend stops, clients in guests lose their workers; clients that start later use the next backend.";

const MAN_EXAMPLES: &str = "\
Examples:
  bulkhead man | man -l -
  bulkhead man zones set | man -l -
  bulkhead man --dir /usr/local/share/man/man1";

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Command to print the page of (default: all commands on one page)
    #[arg(value_name = "COMMAND")]
    pub verb: Vec<String>,
    /// Write the pages of all commands to this directory
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    pub dir: Option<PathBuf>,
}

/// Options that many commands have come behind a command's own.
const GENERAL: usize = 500;

#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Admin socket of the proxy
    #[arg(
        long,
        value_name = "PATH",
        env = control::env_vars::ADMIN_SOCKET,
        hide_env_values = true,
        default_value = "/run/bulkhead/admin.sock",
        global = true,
        display_order = GENERAL
    )]
    pub socket: PathBuf,
    /// Print JSON
    #[arg(long, global = true, display_order = GENERAL)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        crate::command().debug_assert();
    }

    /// The terminal's width decides where lines of prose end: one that ends in the text would be broken twice.
    #[test]
    fn help_is_wrapped_once() {
        fn check(command: &clap::Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = |line: &&str| line.starts_with("      ");
            assert!(text.lines().filter(example).all(|line| line.len() <= 100), "{}", command.get_name());
            let prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                assert!(!(prose(pair[0]) && prose(pair[1])), "{}: {pair:?}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&crate::command());
    }

    /// Every command that is not internal, as it is typed, with its actions.
    fn commands() -> Vec<(String, clap::Command)> {
        let mut all = vec![("bulkhead".to_owned(), crate::command())];
        let mut seen = 0;
        while let Some((typed, command)) = all.get(seen).cloned() {
            seen += 1;
            let below = command.get_subcommands().filter(|below| !below.is_hide_set());
            all.extend(below.map(|below| (format!("{typed} {}", below.get_name()), below.clone())));
        }
        all
    }

    #[test]
    fn help_reads_alike_everywhere() {
        for (of, command) in commands() {
            let args: Vec<_> = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned().collect();
            let texts = args.iter().map(|arg| (arg.get_id().to_string(), arg.get_help().map(ToString::to_string)));
            let about = (String::new(), command.get_about().map(ToString::to_string));
            for (name, text) in texts.chain([about]) {
                let text = text.unwrap_or_else(|| panic!("{of} {name} has no help"));
                assert!(!text.starts_with(|c: char| c.is_lowercase()), "{of} {name}: {text}");
                assert!(!text.ends_with('.'), "{of} {name}: {text}");
                assert!(!text.contains("seconds"), "durations have units: {of} {name}: {text}");
                assert!(!text.contains('\\'), "{of} {name}: {text}");
                assert!(!text.contains("several times") && !text.contains("repeated"), "{of} {name}: {text}");
            }
        }
    }

    /// `run` asks nobody unless it is told to: for it the variable would change what it does.
    #[test]
    fn the_admin_socket_comes_from_the_variable() {
        let mut found = Vec::new();
        for (typed, command) in commands().into_iter().filter(|(typed, _)| typed != "bulkhead run") {
            for socket in command.get_arguments().filter(|arg| arg.get_id() == "socket") {
                let variable = socket.get_env().map(|name| name.to_string_lossy().into_owned());
                assert_eq!(variable.as_deref(), Some(control::env_vars::ADMIN_SOCKET), "{typed}");
                found.push(typed.clone());
            }
        }
        for verb in ["status", "top", "zones", "grants", "doctor", "cdi generate", "xen run"] {
            assert!(found.contains(&format!("bulkhead {verb}")), "{verb} takes no --socket");
        }
    }

    #[test]
    fn the_program_keeps_its_own_flags() {
        let parsed = Bulkhead::try_parse_from(["bulkhead", "run", "--memory", "1GiB", "--", "ls", "--zone", "x"]);
        let Verb::Run(run) = parsed.unwrap().verb else { panic!() };
        assert_eq!(run.command, ["ls", "--zone", "x"]);
        assert_eq!(run.zone.as_str(), "default");
    }

    #[test]
    fn deprecated_names_are_still_read() {
        let parsed = Bulkhead::try_parse_from(["bulkhead", "gate", "--guest-memory", "2GiB"]);
        assert!(matches!(parsed.unwrap().verb, Verb::XenBackend { guest_memory, .. } if guest_memory == 2 << 30));
        let parsed = Bulkhead::try_parse_from(["bulkhead", "bench", "meet"]);
        assert!(matches!(parsed.unwrap().verb, Verb::Bench(BenchArgs { what: BenchKind::Rendezvous, .. })));
        let parsed = Bulkhead::try_parse_from(["bulkhead", "zones", "kill", "a", "--programs"]);
        let Verb::Zones(zones) = parsed.unwrap().verb else { panic!() };
        assert!(matches!(zones.action, ZonesAction::Kill { clients: true, .. }));
    }
}
