//! The command lines of `bulkhead image` and `bulkhead xen`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use control::ZoneName;
use control::zone::MAX_SHARE;

/// The default directory of the guest image.
pub(crate) const IMAGE: &str = "/var/lib/bulkhead/image";

const IMAGE_EXAMPLES: &str = "\
Examples:
  Build a kernel and a root file system with the client libraries from Debian packages:
      bulkhead image build --output /var/lib/bulkhead/image
  Build a tenant's root file system from a container image:
      skopeo copy docker://pytorch/pytorch oci:pytorch
      bulkhead image root oci:pytorch --output pytorch.cpio.gz

Builds are reproducible: the same packages and libraries give the files that SHA256SUMS lists.";

#[derive(Debug, Args)]
#[command(after_help = IMAGE_EXAMPLES)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub action: ImageAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageAction {
    /// Build the kernel and the root file system that guests boot
    Build(ImageBuildArgs),
    /// Build an archive of a tenant's root file system, to boot with the image
    Root(ImageRootArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImageBuildArgs {
    /// Directory for vmlinuz, initrd.img and SHA256SUMS
    #[arg(long, value_name = "DIR", default_value = IMAGE)]
    pub output: PathBuf,
    /// Cache directory for Debian packages; missing ones are downloaded (default: ~/.cache/bulkhead/packages)
    #[arg(long, value_name = "DIR")]
    pub packages: Option<PathBuf>,
    /// Package list to use instead of the built-in one: lines of SHA-256 and path in the archive
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,
    /// Package mirror; may be given more than once (default: Debian's archive and its snapshots)
    #[arg(long = "mirror", value_name = "URL", conflicts_with = "offline")]
    pub mirrors: Vec<String>,
    /// Do not download packages
    #[arg(long)]
    pub offline: bool,
    /// Do not compress the output
    #[arg(long)]
    pub plain: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRootArgs {
    /// OCI image (oci:DIR, or a tar archive of one), or tar archive of a root file system
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Archive to write
    #[arg(long, value_name = "FILE", default_value = "tenant.cpio.gz")]
    pub output: PathBuf,
    /// Do not compress the output
    #[arg(long)]
    pub plain: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const XEN_EXAMPLES: &str = "\
Examples:
  Run a program from a container image in a domain with 2 GiB of GPU memory:
      bulkhead image root oci:pytorch --output pytorch.cpio.gz
      bulkhead xen run --root pytorch.cpio.gz --memory 8GiB --gpu-memory 2GiB -- python train.py

  Run it from a disk image, which is read into the domain's memory on demand:
      docker export $(docker create pytorch/pytorch) | sqfstar pytorch.squashfs
      bulkhead xen run --root-disk pytorch.squashfs --gpu-memory 2GiB -- python train.py

The exit status is the program's, or 128+n if signal n killed it. Signals are forwarded to it; the third SIGINT, \
SIGTERM, SIGHUP or SIGQUIT destroys the domain. The domain is destroyed when this command exits.";

#[derive(Debug, Args)]
pub(crate) struct XenArgs {
    #[command(subcommand)]
    pub action: XenAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum XenAction {
    /// Run a program in a domain of its own
    Run(Box<XenRunArgs>),
}

#[derive(Debug, Args)]
#[command(after_help = XEN_EXAMPLES)]
pub(crate) struct XenRunArgs {
    /// Memory of the domain
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = control::size::parse_amount)]
    pub memory: u64,
    /// Virtual CPUs of the domain
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub vcpus: u32,
    /// GPU memory limit of the zone, such as 2GiB (default: the GPU's memory)
    #[arg(long, value_name = "SIZE", value_parser = control::size::parse_amount)]
    pub gpu_memory: Option<u64>,
    /// Weight of the zone's GPU time relative to other zones (default: 100)
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
    /// Zone of the domain (default: a new one that exists while the domain runs)
    #[arg(long, value_name = "NAME")]
    pub zone: Option<ZoneName>,
    /// Change the limits of a zone that exists (without it, other limits than the zone has are refused)
    #[arg(long, requires = "zone")]
    pub update: bool,
    /// Image directory, as built by `bulkhead image build`
    #[arg(long, value_name = "DIR", default_value = IMAGE)]
    pub image: PathBuf,
    /// Archive of the tenant's root file system, as built by `bulkhead image root`
    #[arg(long, value_name = "FILE")]
    pub root: Option<PathBuf>,
    /// Disk with the tenant's root file system: an ext4 or squashfs image, or a block device. It is attached read-only;
    /// changes are kept in the domain's memory
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    pub root_disk: Option<PathBuf>,
    /// Virtualization mode of the domain
    #[arg(long = "type", value_enum, default_value_t = KindArg::Auto)]
    pub kind: KindArg,
    /// Maximum memory that the domain's clients may share with workers
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = parse_shared)]
    pub shared_memory: u64,
    /// Environment variable for the program; without a value, it is copied from this environment; may be given more than once
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub environment: Vec<String>,
    /// Working directory of the program (default: from the tenant's image, or /)
    #[arg(long, value_name = "PATH")]
    pub workdir: Option<PathBuf>,
    /// Allocate a terminal for the program
    #[arg(long, short)]
    pub terminal: bool,
    /// Time that the domain may take to boot, such as 2m
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = control::duration::parse)]
    pub boot_timeout: Duration,
    /// Admin socket of the proxy
    #[arg(
        long,
        value_name = "PATH",
        env = control::env_vars::ADMIN_SOCKET,
        hide_env_values = true,
        default_value = "/run/bulkhead/admin.sock"
    )]
    pub socket: PathBuf,
    /// Program and its arguments (default: from the tenant's image)
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// PVH if the CPU supports it, else PV
    Auto,
    /// With hardware virtualization
    Pvh,
    /// Without hardware virtualization
    Pv,
}

/// The kernel counts pages in a signed number, and a domain needs some for itself.
fn parse_shared(text: &str) -> Result<u64, String> {
    let size = control::size::parse_amount(text).map_err(|error| error.to_string())?;
    let good = (8 << 20..=1 << 40).contains(&size);
    good.then_some(size).ok_or_else(|| "must be between 8MiB and 1TiB".to_owned())
}
