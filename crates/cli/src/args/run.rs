//! `bulkhead run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use control::ZoneName;
use control::zone::{Change, DEFAULT_SHARE, MAX_SHARE, ZoneChange, ZoneLimits};

use proxy::args::{BackendArgs, JailArg};

const RUN_EXAMPLES: &str = "\
Examples:
  Run a program with 2 GiB of GPU memory (on the CPU if there is no GPU):
      bulkhead run --memory 2GiB -- ./saxpy

  Run two programs that share the limits of one zone of a running proxy:
      bulkhead run --socket /run/bulkhead/admin.sock --zone team-a -- python train.py
      bulkhead run --socket /run/bulkhead/admin.sock --zone team-a -- python eval.py

The exit status is the program's, or 128+n if signal n killed it. Signals are forwarded to it.";

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArgs {
    /// Zone to run in; created if it does not exist and a limit is given
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub zone: ZoneName,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Change the limits of a zone that exists (without it, other limits than the zone has are refused)
    #[arg(long, requires = "socket")]
    pub update: bool,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Admin socket of a running proxy (default: start a private proxy for this run)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["backend", "driver_library", "soft_devices", "soft_memory", "soft_mig", "jail"])]
    pub socket: Option<PathBuf>,
    /// What to do if part of the jail is unavailable on this machine
    #[arg(long, value_enum, default_value_t = JailArg::BestEffort)]
    pub jail: JailArg,
    #[command(flatten)]
    pub check: CheckArgs,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// What the software GPU looks for.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Find mistakes that a GPU hides: memory, races, init, sync, or all of them (software GPU only)
    #[arg(long, value_name = "CHECKS", value_parser = parse_checks, conflicts_with = "socket")]
    pub check: Option<String>,
    /// File for the findings: SARIF if its name ends in .sarif, else a line of JSON for each
    #[arg(long, value_name = "FILE", requires = "check")]
    pub check_output: Option<PathBuf>,
    /// File with findings to leave out, a line for each: CHECK kernel:PATTERN or CHECK source:PATTERN
    #[arg(long, value_name = "FILE", requires = "check")]
    pub check_suppress: Option<PathBuf>,
    /// Run the lanes of a warp in lockstep, as GPUs before Volta did (software GPU only)
    #[arg(long, conflicts_with = "socket")]
    pub lockstep: bool,
}

fn parse_checks(text: &str) -> Result<String, String> {
    let checks = softgpu::Checks::parse(text).map_err(|error| error.to_string())?;
    if checks == softgpu::Checks::NONE { Err("no check".into()) } else { Ok(text.to_owned()) }
}

#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// GPU memory limit of the zone, such as 2GiB (default: the GPU's memory)
    #[arg(long, value_name = "SIZE", value_parser = control::size::parse_amount)]
    pub memory: Option<u64>,
    /// Weight of the zone's GPU time relative to other zones (default: 100)
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=MAX_SHARE as i64))]
    pub share: Option<u32>,
}

impl LimitArgs {
    pub(crate) fn given(&self) -> bool {
        self.memory.is_some() || self.share.is_some()
    }

    /// Whether a zone with these limits has what was asked for.
    pub(crate) fn agree_with(&self, limits: &ZoneLimits) -> bool {
        self.memory.is_none_or(|memory| limits.memory == Some(memory))
            && self.share.is_none_or(|share| limits.share == share)
    }

    /// What was asked for, of a zone that exists.
    pub(crate) fn change(&self) -> ZoneChange {
        let memory = self.memory.map_or(Change::Keep, Change::Set);
        ZoneChange { memory, share: self.share, ..ZoneChange::default() }
    }

    pub(crate) fn limits(&self) -> ZoneLimits {
        ZoneLimits { memory: self.memory, share: self.share.unwrap_or(DEFAULT_SHARE), ..ZoneLimits::default() }
    }
}
