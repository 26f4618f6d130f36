//! The command lines of `bulkhead image` and `bulkhead xen`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use proxy::control::ZoneName;
use proxy::control::zone::MAX_SHARE;

/// Where an image is looked for.
pub const IMAGE: &str = "/var/lib/bulkhead/image";

const IMAGE_EXAMPLES: &str = "\
Examples:
  A kernel and a root file system with Bulkhead's libraries, from Debian's packages:
      bulkhead image build --output /var/lib/bulkhead/image
  A tenant's own root file system, from a container image:
      skopeo copy docker://pytorch/pytorch oci:pytorch
      bulkhead image root oci:pytorch --output pytorch.cpio.gz

The same packages and libraries make the same bytes; SHA256SUMS beside them says which they were.";

#[derive(Debug, Args)]
#[command(after_help = IMAGE_EXAMPLES)]
pub struct ImageArgs {
    #[command(subcommand)]
    pub action: ImageAction,
}

#[derive(Debug, Subcommand)]
pub enum ImageAction {
    /// Make the kernel and the root file system that guests boot
    Build(ImageBuildArgs),
    /// Make an archive of a tenant's root file system, to boot along with the image
    Root(ImageRootArgs),
}

#[derive(Debug, Args)]
pub struct ImageBuildArgs {
    /// Directory for vmlinuz, initrd.img and SHA256SUMS
    #[arg(long, value_name = "DIR", default_value = IMAGE)]
    pub output: PathBuf,
    /// Directory with Debian's packages; those that are missing are fetched into it (default: ~/.cache/bulkhead/packages)
    #[arg(long, value_name = "DIR")]
    pub packages: Option<PathBuf>,
    /// Another list of packages than our own: lines of sha256 and path in the archive
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,
    /// Where to fetch packages from; may be given more than once (default: Debian's archive and its snapshots)
    #[arg(long = "mirror", value_name = "URL", conflicts_with = "offline")]
    pub mirrors: Vec<String>,
    /// Fetch nothing
    #[arg(long)]
    pub offline: bool,
    /// Compress nothing, for machines that are slow at it
    #[arg(long)]
    pub plain: bool,
}

#[derive(Debug, Args)]
pub struct ImageRootArgs {
    /// An OCI image (oci:DIR, or a tar of one), or a tar of a root file system
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// The archive to write
    #[arg(long, value_name = "FILE", default_value = "tenant.cpio.gz")]
    pub output: PathBuf,
    /// Do not compress it
    #[arg(long)]
    pub plain: bool,
}

const XEN_EXAMPLES: &str = "\
Examples:
  A program of a container image, in a domain of its own with 2 GiB of GPU memory:
      bulkhead image root oci:pytorch --output pytorch.cpio.gz
      bulkhead xen run --root pytorch.cpio.gz --memory 8GiB --gpu-memory 2GiB -- python train.py

  The same from a disk, of which only what is used gets into the domain's memory:
      docker export $(docker create pytorch/pytorch) | sqfstar pytorch.squashfs
      bulkhead xen run --root-disk pytorch.squashfs --memory 8GiB --gpu-memory 2GiB -- python train.py

The exit status is the program's; 128+n if signal n ended it. Signals are passed on to it; the third SIGINT,
SIGTERM, SIGHUP or SIGQUIT ends the domain. However this command ends, the domain ends with it.";

#[derive(Debug, Args)]
pub struct XenArgs {
    #[command(subcommand)]
    pub action: XenAction,
}

#[derive(Debug, Subcommand)]
pub enum XenAction {
    /// Run a program in a domain of its own
    Run(Box<XenRunArgs>),
}

#[derive(Debug, Args)]
#[command(after_help = XEN_EXAMPLES)]
pub struct XenRunArgs {
    /// Memory of the domain
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = proxy::size::parse)]
    pub memory: u64,
    /// Processors of the domain
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub vcpus: u32,
    /// GPU memory of the zone, like 2GiB (default: what the GPU has)
    #[arg(long, value_name = "SIZE", value_parser = proxy::size::parse)]
    pub gpu_memory: Option<u64>,
    /// Weight of the zone's GPU time against other zones
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
    /// Zone that the domain belongs to (default: one of its own, for as long as it runs)
    #[arg(long, value_name = "NAME")]
    pub zone: Option<ZoneName>,
    /// What guests boot, as made by `bulkhead image build`
    #[arg(long, value_name = "DIR", default_value = IMAGE)]
    pub image: PathBuf,
    /// The tenant's root file system, as made by `bulkhead image root`
    #[arg(long, value_name = "FILE")]
    pub root: Option<PathBuf>,
    /// The tenant's root file system as a disk: an image with ext4 or squashfs, or a block device. It is not written to;
    /// what the program changes is kept in the domain's memory
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    pub root_disk: Option<PathBuf>,
    /// How the domain sees its machine
    #[arg(long = "type", value_enum, default_value_t = KindArg::Auto)]
    pub kind: KindArg,
    /// Memory that the domain's programs may share with the GPU's driver at a time
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = parse_shared)]
    pub shared_memory: u64,
    /// A variable of the program's environment, with this value or the one that it has here; may be given more than once
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub environment: Vec<String>,
    /// The directory in which the program runs (default: what the tenant's image says, or /)
    #[arg(long, value_name = "PATH")]
    pub workdir: Option<PathBuf>,
    /// Run it on a terminal of its own
    #[arg(long, short)]
    pub terminal: bool,
    /// Seconds that the domain may take to start
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub boot_timeout: u64,
    /// The proxy's admin socket
    #[arg(long, value_name = "PATH", default_value = "/run/bulkhead/admin.sock")]
    pub socket: PathBuf,
    /// The program and its arguments (default: what the tenant's image says)
    #[arg(trailing_var_arg = true, value_name = "CMD", allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    /// PVH where the processor can, else PV
    Auto,
    /// With the processor's virtualisation
    Pvh,
    /// Without it
    Pv,
}

/// The kernel counts pages in a signed number, and a domain needs some for itself.
fn parse_shared(text: &str) -> Result<u64, String> {
    let size = proxy::size::parse(text).map_err(|error| error.to_string())?;
    let good = (8 << 20..=1 << 40).contains(&size);
    good.then_some(size).ok_or_else(|| "it is between 8MiB and 1TiB".to_owned())
}
