//! The command line, from which help, manual and completions are made.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use proxy::backend::{Choice, Options};
use proxy::control::ZoneName;
use proxy::control::zone::{DEFAULT_SHARE, MAX_HOST_CPU, MAX_PRIORITY, MAX_SHARE, ZoneLimits};

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
    Image(crate::xen_args::ImageArgs),
    /// Run programs in Xen domains of their own
    Xen(crate::xen_args::XenArgs),
    /// Let clients that are in Xen guests in (runs beside the proxy, in the driver domain)
    #[command(after_help = GATE_HELP)]
    Gate {
        /// The proxy's state directory
        #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
        state_dir: PathBuf,
    },
    /// Show the GPUs, and what lies between them
    Topology(TopologyArgs),
    /// Find out what is wrong, why, and what to do about it
    Doctor(DoctorArgs),
    /// Measure what messages cost on this machine
    Bench(BenchArgs),
    /// Write, check and list CDI files: how container runtimes learn of zones and GPUs
    Cdi(CdiArgs),
    /// Offer the node's GPUs, whole or in parts, to kubelet as resources
    DevicePlugin(DevicePluginArgs),
    /// Offer the node's GPUs to claims (dynamic resource allocation)
    Dra(DraArgs),
    /// Install Bulkhead as a service of a host without a package of it, or remove it
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

#[derive(Debug, clap::Args)]
pub struct MoverArgs {
    /// NVIDIA's libcuda.so.1; without it there is nothing to move
    #[arg(long)]
    pub library: Option<PathBuf>,
    #[arg(value_enum)]
    pub which: Direction,
    pub pid: i32,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Direction {
    Out,
    Back,
}

const GATE_HELP: &str = "\
Which domain is which zone stands in xenstore, where the toolstack writes it:
  xenstore-write /tool/bulkhead/domains/DOMID/vm \"$(xenstore-read /local/domain/DOMID/vm)\"
  xenstore-write /tool/bulkhead/domains/DOMID/zone NAME

Clients in guests lose their workers when the gate ends; those that start later find the next one.";

const RUN_EXAMPLES: &str = "\
Examples:
  A program with 2 GiB of GPU memory, on the GPU or, where there is none, on the CPU:
      bulkhead run --memory 2GiB -- ./saxpy

  Two programs that share the limits of one zone, on a proxy that runs already:
      bulkhead run --socket /run/bulkhead/admin.sock --zone team-a -- python train.py
      bulkhead run --socket /run/bulkhead/admin.sock --zone team-a -- python eval.py

The exit status is the program's; 128+n if signal n ended it. Signals are passed on to it.";

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// Zone to run in; made if it is not there and a limit is given
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub zone: ZoneName,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// A running proxy's admin socket (default: a proxy of its own for this run)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["backend", "driver_library", "soft_devices", "soft_memory", "jail"])]
    pub socket: Option<PathBuf>,
    /// What to do where the machine does not allow the whole jail
    #[arg(long, value_enum, default_value_t = JailArg::BestEffort)]
    pub jail: JailArg,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// GPU memory of the zone, like 2GiB (default: what the GPU has)
    #[arg(long, value_name = "SIZE", value_parser = proxy::size::parse)]
    pub memory: Option<u64>,
    /// Weight of the zone's GPU time against other zones
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
}

impl LimitArgs {
    pub fn given(&self) -> bool {
        self.memory.is_some() || self.share.is_some()
    }

    pub fn limits(&self) -> ZoneLimits {
        ZoneLimits { memory: self.memory, share: self.share.unwrap_or(DEFAULT_SHARE), ..ZoneLimits::default() }
    }
}

#[derive(Debug, Clone, Args)]
pub struct BackendArgs {
    /// The driver that workers call (default: auto)
    #[arg(long, value_enum)]
    pub backend: Option<BackendArg>,
    /// NVIDIA's libcuda.so.1, where it is not in a usual place
    #[arg(long, value_name = "PATH")]
    pub driver_library: Option<PathBuf>,
    /// How many GPUs the software backend shows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub soft_devices: Option<u32>,
    /// How much memory each of them has
    #[arg(long, value_name = "SIZE", value_parser = proxy::size::parse)]
    pub soft_memory: Option<u64>,
}

impl BackendArgs {
    /// Has nobody said anything of it?
    pub fn is_left_open(&self) -> bool {
        let BackendArgs { backend, driver_library, soft_devices, soft_memory } = self;
        backend.is_none() && driver_library.is_none() && soft_devices.is_none() && soft_memory.is_none()
    }

    pub fn options(&self) -> Options {
        Options {
            choice: match self.backend {
                None | Some(BackendArg::Auto) => Choice::Auto,
                Some(BackendArg::Nvidia) => Choice::Nvidia,
                Some(BackendArg::Soft) => Choice::Soft,
            },
            driver_library: self.driver_library.clone(),
            devices: Vec::new(),
            soft_devices: self.soft_devices,
            soft_memory: self.soft_memory,
        }
    }

    /// As arguments again, for the proxy that `run` starts.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let name = self.backend.and_then(|backend| Some(backend.to_possible_value()?.get_name().to_owned()));
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: Option<OsString>| {
            arguments.extend(value.into_iter().flat_map(|value| [flag.into(), value]));
        };
        add("--backend", name.map(Into::into));
        add("--driver-library", self.driver_library.clone().map(Into::into));
        add("--soft-devices", self.soft_devices.map(|n| n.to_string().into()));
        add("--soft-memory", self.soft_memory.map(|n| n.to_string().into()));
        arguments
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// NVIDIA where there is a GPU, else software
    Auto,
    /// NVIDIA's driver
    Nvidia,
    /// A GPU computed on the CPU
    Soft,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JailArg {
    /// Do not start
    Require,
    /// Say what is missing and go on
    BestEffort,
    /// No jail at all, for looking for faults
    Off,
}

impl From<JailArg> for proxy::jail::Demand {
    fn from(arg: JailArg) -> Self {
        match arg {
            JailArg::Require => Self::Require,
            JailArg::BestEffort => Self::BestEffort,
            JailArg::Off => Self::Off,
        }
    }
}

const PROXY_EXAMPLES: &str = "\
Examples:
  bulkhead proxy
  bulkhead proxy --config ./bulkhead.toml --check
  bulkhead proxy --zone team-a:memory=20GiB,share=50 --zone team-b:memory=40GiB
  bulkhead proxy --state-dir /tmp/b --backend soft --soft-memory 1GiB --zone test

A zone's programs find it at <state-dir>/zones/<name>/sock (BULKHEAD_SOCKET). SIGTERM stops the proxy; workers with
clients go on, and the next proxy with the same state directory takes them over. SIGHUP has it read its configuration
again; a file that is wrong changes nothing. What is given here goes before what the file says.";

#[derive(Debug, Args)]
#[command(after_help = PROXY_EXAMPLES)]
pub struct ProxyArgs {
    /// Configuration file (default: /etc/bulkhead/bulkhead.toml, if it is there)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Say what is wrong with the configuration, and end
    #[arg(long)]
    pub check: bool,
    /// Folder for sockets and what the next proxy must know (default: /run/bulkhead)
    #[arg(long, value_name = "PATH")]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// A zone, with its limits
    #[arg(long = "zone", value_name = "NAME[:memory=SIZE][,share=WEIGHT]", value_parser = parse_zone)]
    pub zones: Vec<(ZoneName, ZoneLimits)>,
    /// Workers kept ready for the next clients (default: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
    pub spare_workers: Option<u16>,
    /// Processes that one zone may have at a time (default: 128)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_clients: Option<u16>,
    /// What each context is charged with on its zone's account, or 0 (default: 523MiB on NVIDIA, else 0)
    #[arg(long, value_name = "SIZE", value_parser = parse_size_or_none)]
    pub context_memory: Option<u64>,
    /// Seconds after which an idle program's GPU memory is moved to host memory, or 0: never (default: 0)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub suspend_idle: Option<u32>,
    /// Seconds that work may run on after its zone's turn while other zones wait, or 0: for ever (default: 60)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub watchdog: Option<u32>,
    /// Serve metrics and the status page at this address, or "off" (default: off)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_http)]
    pub http: Option<HttpArg>,
    /// How logs are written (default: text)
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// What to do where the machine does not allow the whole jail (default: require for root, else best-effort)
    #[arg(long, value_enum)]
    pub jail: Option<JailArg>,
    /// First of 1024 user ids that workers get, one each, when the proxy is root (default: 805306368)
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1000..=0x7000_0000))]
    pub worker_uids: Option<u32>,
    /// Standard input is a socket to the `run` that started us, and we end with it
    #[arg(long, hide = true)]
    pub private: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpArg {
    Off,
    At(SocketAddr),
}

fn parse_size_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { proxy::size::parse(text).map_err(|error| error.to_string()) }
}

fn parse_http(text: &str) -> Result<HttpArg, String> {
    match text {
        "off" => Ok(HttpArg::Off),
        _ => text.parse().map(HttpArg::At).map_err(|_| "write it like 127.0.0.1:9470, or off".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object in each line
    Json,
}

fn parse_zone(text: &str) -> Result<(ZoneName, ZoneLimits), String> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let name: ZoneName = name.parse().map_err(|error| format!("{error}"))?;
    let mut limits = ZoneLimits::default();
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        match setting.split_once('=') {
            Some(("memory", size)) => {
                limits.memory = Some(proxy::size::parse(size).map_err(|error| error.to_string())?)
            }
            Some(("share", weight)) => {
                let weight = weight.parse().ok().filter(|weight| (1..=MAX_SHARE).contains(weight));
                limits.share = weight.ok_or_else(|| format!("a share is a number from 1 to {MAX_SHARE}"))?;
            }
            _ => return Err(format!("{setting:?} is neither memory=SIZE nor share=WEIGHT")),
        }
    }
    Ok((name, limits))
}

/// Where things are on a Kubernetes node, as the host names them: paths in what container runtimes are told.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Configuration file (default: /etc/bulkhead/bulkhead.toml, if it is there)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The proxy's state directory
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
    pub state_dir: PathBuf,
    /// The host's folder with libcuda.so.1 and libnvidia-ml.so.1 of ours (default: beside the program)
    #[arg(long, value_name = "PATH")]
    pub library_dir: Option<PathBuf>,
    /// The folder that container runtimes read CDI files from
    #[arg(long, value_name = "PATH", default_value = bulkhead_kube::cdi::FOLDER)]
    pub cdi_dir: PathBuf,
    /// Kubelet's socket that tells which container has which device
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources: PathBuf,
    /// How logs are written (default: text)
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
}

const DEVICE_PLUGIN_EXAMPLES: &str = "\
Example of /etc/bulkhead/bulkhead.toml, for pods that ask for `bulkhead.dev/gpu-10gb: 1`:
  [profiles.gpu-10gb]
  memory = \"10GiB\"
  share = 10

GPUs without profiles are left to claims (`bulkhead dra`), or are offered whole under the name that [kubernetes]
whole_gpus gives. A change of the file counts at once; one that is wrong is named, and what was in force stays so. Runs as root, or as whoever may use the proxy's admin socket and kubelet's folder.";

#[derive(Debug, Args)]
#[command(after_help = DEVICE_PLUGIN_EXAMPLES)]
pub struct DevicePluginArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Folder of kubelet's and the plugins' sockets
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/device-plugins")]
    pub kubelet_dir: PathBuf,
    /// Folder for checkpoints, which must outlive a reboot
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead/device-plugin")]
    pub checkpoint_dir: PathBuf,
}

const DRA_EXAMPLES: &str = "\
A claim for 10 GiB and a quarter of a GPU's time, for Kubernetes 1.34 and later:
  apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: quarter}
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.bulkhead.dev
          capacity: {requests: {memory: 10Gi, share: \"25\"}}

All pods of a claim draw on what it was given, and may open each other's memory by CUDA IPC.";

#[derive(Debug, Args)]
#[command(after_help = DRA_EXAMPLES)]
pub struct DraArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// This node's name in Kubernetes (default: $NODE_NAME)
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// How to reach the API server (default: as a pod does)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Folder in which kubelet looks for drivers
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/plugins_registry")]
    pub registry_dir: PathBuf,
    /// Folder with kubelet's links to containers' logs, whose names tell whose a container is
    #[arg(long, value_name = "PATH", default_value = "/var/log/containers")]
    pub container_logs: PathBuf,
    /// Folder for the driver's own socket
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/plugins/gpu.bulkhead.dev")]
    pub plugin_dir: PathBuf,
    /// Folder for checkpoints, which must outlive a reboot
    #[arg(long, value_name = "PATH", default_value = "/var/lib/bulkhead/dra")]
    pub checkpoint_dir: PathBuf,
}

const INSTALL_EXAMPLES: &str = "\
Examples:
  In a container that has the host's root at /host (the Helm chart does this):
      bulkhead install --host-root /host --config /etc/bulkhead/bulkhead.toml
      bulkhead install --host-root /host --remove

Puts the program and its libraries under /opt/bulkhead and a unit for systemd in its place, and has it started. GPU pods
that run go on. A host that has a package of Bulkhead is left alone.";

#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub struct InstallArgs {
    /// Where the host's root is
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub host_root: PathBuf,
    /// Configuration file for the host's proxy
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Take everything away again
    #[arg(long)]
    pub remove: bool,
}

const CDI_EXAMPLES: &str = "\
Examples:
  A zone for a container of Podman or Docker, without Kubernetes:
      bulkhead zones create team-a --memory 10GiB
      bulkhead cdi generate --zone team-a --output /etc/cdi/team-a.yaml
      podman run --device bulkhead.dev/zone=team-a IMAGE python train.py

  The GPUs themselves, for containers that need them whole and without Bulkhead:
      bulkhead cdi generate --mode nvidia --output /etc/cdi/nvidia.yaml";

#[derive(Debug, Args)]
#[command(after_help = CDI_EXAMPLES)]
pub struct CdiArgs {
    #[command(subcommand)]
    pub action: CdiAction,
}

#[derive(Debug, Subcommand)]
pub enum CdiAction {
    /// Write a CDI file for zones of the proxy, or for physical GPUs
    Generate(CdiGenerateArgs),
    /// Say what is wrong with CDI files, and which of them overlap
    Validate {
        /// The files (default: those of the folders)
        files: Vec<PathBuf>,
        #[command(flatten)]
        folders: CdiFolders,
    },
    /// List the devices that containers can ask for
    List {
        #[command(flatten)]
        folders: CdiFolders,
    },
}

#[derive(Debug, Args)]
pub struct CdiFolders {
    /// A folder that runtimes read; later ones go before earlier ones
    #[arg(long = "spec-dir", value_name = "PATH", default_values = ["/etc/cdi", "/var/run/cdi"])]
    pub folders: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CdiGenerateArgs {
    /// What containers shall get
    #[arg(long, value_enum, default_value_t = CdiMode::Zones)]
    pub mode: CdiMode,
    /// File to write (default: standard output)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Format of the file (default: as its name ends, else yaml)
    #[arg(long, value_enum)]
    pub format: Option<CdiFormat>,
    /// Vendor of the devices (default: bulkhead.dev for zones, nvidia.com for GPUs)
    #[arg(long)]
    pub vendor: Option<String>,
    /// Class of the devices (default: zone, or gpu)
    #[arg(long)]
    pub class: Option<String>,
    /// Zones: only these (default: all that the proxy has)
    #[arg(long = "zone", value_name = "NAME")]
    pub zones: Vec<ZoneName>,
    /// Zones: the proxy's state directory
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead")]
    pub state_dir: PathBuf,
    /// Zones: the folder with libcuda.so.1 and libnvidia-ml.so.1 of ours (default: beside the program)
    #[arg(long, value_name = "PATH")]
    pub library_dir: Option<PathBuf>,
    /// GPUs: how they are named; may be given several times (default: index and uuid)
    #[arg(long, value_enum)]
    pub device_name_strategy: Vec<NameStrategyArg>,
    /// GPUs: where the driver's files are
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub driver_root: PathBuf,
    /// GPUs: where /dev is (default: the driver's root)
    #[arg(long, value_name = "PATH")]
    pub dev_root: Option<PathBuf>,
    /// GPUs: no device \"all\"
    #[arg(long)]
    pub no_all_device: bool,
    /// GPUs: only these, by index or UUID; may be given several times
    #[arg(long = "device-id", value_name = "ID")]
    pub device_ids: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CdiMode {
    /// Our libraries and a zone of the proxy
    Zones,
    /// The GPUs and NVIDIA's driver, as `nvidia-ctk cdi generate` does, without hooks
    Nvidia,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CdiFormat {
    Yaml,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NameStrategyArg {
    /// 0
    Index,
    /// GPU-4f6c...
    Uuid,
    /// gpu0
    TypeIndex,
}

#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The proxy's admin socket
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead/admin.sock", global = true)]
    pub socket: PathBuf,
    /// Print it as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
}

const TOP_EXAMPLES: &str = "\
Examples:
  bulkhead top
  bulkhead top --once --json | jq '.zones[] | {name, used}'

Keys: q ends. Rates are of the last interval; with --once, of the interval that it waits for.";

#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES)]
pub struct TopArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Print it once and end (always, where the output is no terminal)
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    pub interval: f64,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "it is a number of seconds from 0.1 to 3600".to_owned())
}

const ZONES_EXAMPLES: &str = "\
Examples:
  bulkhead zones create team-a --memory 20GiB --share 50 --namespace research
  bulkhead zones set team-a --memory 10GiB
  bulkhead zones kill team-a

Programs that use more than a new limit keep what they have and get nothing more. A zone that stands in the
configuration file is set to what the file says when that is read again.";

#[derive(Debug, Args)]
#[command(after_help = ZONES_EXAMPLES)]
pub struct ZonesArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    pub action: ZonesAction,
}

#[derive(Debug, Subcommand)]
pub enum ZonesAction {
    /// Show all zones with their limits
    List,
    /// Make a zone; it stays until it is removed
    Create {
        name: ZoneName,
        #[command(flatten)]
        settings: SettingArgs,
        /// Owner of the zone's socket
        #[arg(long)]
        uid: Option<u32>,
        /// Group of the zone's socket
        #[arg(long)]
        gid: Option<u32>,
        /// Mode of the zone's socket (default: 0666)
        #[arg(long, value_parser = parse_mode)]
        mode: Option<u32>,
    },
    /// Change limits and labels, while programs run
    Set {
        name: ZoneName,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// End the workers of a zone: its programs' CUDA calls fail from then on
    Kill {
        name: ZoneName,
        /// End the programs, too
        #[arg(long)]
        programs: bool,
    },
    /// Remove a zone
    Remove {
        name: ZoneName,
        /// Also if it has programs, whose workers end with it
        #[arg(long)]
        force: bool,
    },
}

const GRANTS_EXAMPLES: &str = "\
Examples:
  What programs of zone `producer` export, those of zone `consumer` may open and read, for an hour:
      bulkhead grants allow producer consumer --expires 3600
  And no longer; the workers of those that have something open end:
      bulkhead grants revoke producer consumer

Programs of one zone share with each other without a grant. Memory that was allocated before the exporting zone had its
first grant, and shares its pages with other memory, stays in its zone.";

#[derive(Debug, Args)]
#[command(after_help = GRANTS_EXAMPLES)]
pub struct GrantsArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(subcommand)]
    pub action: GrantsAction,
}

#[derive(Debug, Subcommand)]
pub enum GrantsAction {
    /// Show all grants
    List,
    /// Let a zone open what another exports
    Allow {
        /// The zone that exports
        from: ZoneName,
        /// The zone that may open it
        to: ZoneName,
        /// It may also write
        #[arg(long)]
        read_write: bool,
        /// The grant ends by itself after so many seconds
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        expires: Option<u64>,
    },
    /// End a grant, and the workers that have something open by it
    Revoke { from: ZoneName, to: ZoneName },
}

const TOPOLOGY_EXAMPLES: &str = "\
Examples:
  bulkhead topology
  bulkhead topology --json | jq '.gpus[] | {index, name, uuid}'
  bulkhead topology --backend soft --soft-devices 4

In a container that is in a zone it shows what programs there see.";

#[derive(Debug, Args)]
#[command(after_help = TOPOLOGY_EXAMPLES)]
pub struct TopologyArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  On a node, or in a container that has no GPU where it should have one:
      bulkhead doctor
  Which libcuda.so.1 does this program load?
      bulkhead doctor --no-self-test --program ./train

It changes nothing. The self-test runs a small CUDA program in the zone that this process is in, else in a zone of the
running proxy, else in one of a proxy of its own. The exit status is 1 if there are errors.";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// The program that fails: its own search path for libraries counts
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Only look, and start no CUDA program
    #[arg(long)]
    pub no_self_test: bool,
}

const IPC_EXAMPLES: &str = "\
Examples:
  A program prints the handle of its buffer; it is published until a consumer is done with it:
      ./producer | bulkhead ipc publish weights --handle - --bytes 4194304
  Elsewhere, in the same zone or in one that has a grant; the producer learns when ./consumer ends:
      bulkhead ipc wait weights --timeout 30 -- ./consumer
  By hand:
      handle=$(bulkhead ipc wait team-a/weights); ...; bulkhead ipc done team-a/weights

Programs do this themselves with include/bulkhead_ipc.h or the Python module `bulkhead`. A command that `wait` starts finds
BULKHEAD_IPC_HANDLE, _EVENT, _BYTES, _OFFSET, _ZONE and _NOTE in its environment.";

#[derive(Debug, Args)]
#[command(after_help = IPC_EXAMPLES)]
pub struct IpcArgs {
    /// The zone's socket (default: $BULKHEAD_SOCKET, else /run/bulkhead/zone/sock)
    #[arg(long, value_name = "PATH", global = true)]
    pub zone_socket: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub action: IpcAction,
}

#[derive(Debug, Subcommand)]
pub enum IpcAction {
    /// Publish a buffer under a name, until consumers are done with it
    Publish(PublishArgs),
    /// Wait until a name is published
    Wait {
        /// NAME, or ZONE/NAME
        #[arg(value_parser = parse_qualified)]
        name: QualifiedName,
        /// Seconds to wait at most
        #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
        timeout: Option<f64>,
        /// A program to run with it; the publisher learns when it ends
        #[arg(trailing_var_arg = true, value_name = "CMD", allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show what is published and may be seen in this zone
    List,
    /// Say that what was waited for without a program is done with
    Done {
        /// NAME, or ZONE/NAME
        #[arg(value_parser = parse_qualified)]
        name: QualifiedName,
    },
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    /// The name: letters, digits, '-', '_' and '.'
    #[arg(value_parser = parse_public_name)]
    pub name: ZoneName,
    /// Of cuIpcGetMemHandle, as 128 hexadecimal digits, or - for standard input (default: no memory, only the name)
    #[arg(long, value_name = "HEX")]
    pub handle: Option<String>,
    /// Of cuIpcGetEventHandle, likewise
    #[arg(long, value_name = "HEX")]
    pub event: Option<String>,
    /// Length of the buffer
    #[arg(long, value_name = "SIZE", value_parser = proxy::size::parse)]
    pub bytes: Option<u64>,
    /// Where in the memory it begins
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// Anything that consumers should know
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    /// How many consumers must be done with it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub consumers: u64,
    /// Seconds after which it is withdrawn
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: Option<f64>,
}

/// A name, and the zone that it must come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QualifiedName {
    pub zone: Option<ZoneName>,
    pub name: ZoneName,
}

fn parse_qualified(text: &str) -> Result<QualifiedName, String> {
    let (zone, name) = match text.split_once('/') {
        Some((zone, name)) => (Some(zone.parse().map_err(|error| format!("{error}"))?), name),
        None => (None, text),
    };
    Ok(QualifiedName { zone, name: parse_public_name(name)? })
}

fn parse_public_name(text: &str) -> Result<ZoneName, String> {
    let wrong = |_| "a name is 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit".to_owned();
    text.parse().map_err(wrong)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.ok_or_else(|| "it is a number of seconds".to_owned())
}

/// What can be said of a zone at any time.
#[derive(Debug, Default, Args)]
pub struct SettingArgs {
    /// GPU memory of all its processes, like 2GiB, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub memory: Option<Limit>,
    /// Host memory that they may pin for the GPU, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub pinned_memory: Option<Limit>,
    /// Weight of its GPU time against other zones
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
    /// Most of the GPU's time that it gets, in percent, or "unlimited"
    #[arg(long, value_name = "PERCENT", value_parser = parse_cap)]
    pub cap: Option<Limit>,
    /// Zones of a higher priority come first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_PRIORITY as i64))]
    pub priority: Option<u32>,
    /// Host memory of all its workers, or "unlimited"
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub host_memory: Option<Limit>,
    /// Processor time of all its workers, in percent of one processor, or "unlimited"
    #[arg(long, value_name = "PERCENT", value_parser = parse_host_cpu)]
    pub host_cpu: Option<Limit>,
    /// Label of its metrics
    #[arg(long)]
    pub pod: Option<String>,
    /// Label of its metrics
    #[arg(long)]
    pub namespace: Option<String>,
    /// Label of its metrics
    #[arg(long)]
    pub container: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Unlimited,
    At(u64),
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "unlimited" => Ok(Limit::Unlimited),
        _ => proxy::size::parse(text).map(Limit::At).map_err(|error| error.to_string()),
    }
}

fn parse_cap(text: &str) -> Result<Limit, String> {
    parse_percent(text, 100)
}

fn parse_host_cpu(text: &str) -> Result<Limit, String> {
    parse_percent(text, MAX_HOST_CPU)
}

fn parse_percent(text: &str, most: u32) -> Result<Limit, String> {
    let percent = text.parse().ok().filter(|percent| (1..=u64::from(most)).contains(percent));
    match (text, percent) {
        ("unlimited", _) => Ok(Limit::Unlimited),
        (_, Some(percent)) => Ok(Limit::At(percent)),
        _ => Err(format!("a percentage from 1 to {most}, or unlimited")),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "a mode is written like 0660".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  bulkhead bench idm --json")]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub what: BenchKind,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchKind {
    /// Messages over shared memory, beside the same over a Unix socket
    Idm,
    /// From `ipc publish` to the wake of who waits
    Meet,
    #[value(hide = true)]
    IdmPeer,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    #[arg(long = "device")]
    pub devices: Vec<u32>,
    #[arg(long)]
    pub rejoin: Option<PathBuf>,
    #[arg(long, value_enum)]
    pub jail: JailArg,
    #[arg(long)]
    pub jail_root: PathBuf,
    #[arg(long)]
    pub jail_uid: Option<u32>,
    #[arg(long)]
    pub without_pid_namespace: bool,
    #[arg(long)]
    pub fresh: bool,
    /// Do not start where kernels reach their process's memory
    #[arg(long)]
    pub refuse_hmm: bool,
    /// File in which compiled kernels are kept
    #[arg(long)]
    pub soft_cache: Option<PathBuf>,
    /// Tell what the cards look like, and end
    #[arg(long)]
    pub inventory: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        crate::command().debug_assert();
    }

    #[test]
    fn zones_on_the_command_line() {
        let (name, limits) = parse_zone("a:memory=2GiB,share=50").unwrap();
        assert_eq!((name.as_str(), limits.memory, limits.share), ("a", Some(2 << 30), 50));
        assert_eq!(parse_zone("b").unwrap().1, ZoneLimits::default());
        for bad in ["", "a/b", "a:memory=much", "a:share=0", "a:colour=red", "a:memory", ":memory=1G"] {
            assert!(parse_zone(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_program_keeps_its_own_flags() {
        let parsed = Bulkhead::try_parse_from(["bulkhead", "run", "--memory", "1GiB", "--", "ls", "--zone", "x"]);
        let Verb::Run(run) = parsed.unwrap().verb else { panic!() };
        assert_eq!(run.command, ["ls", "--zone", "x"]);
        assert_eq!(run.zone.as_str(), "default");
    }
}
