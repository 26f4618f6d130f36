//! `cargo xtask xen`: Xen itself, emulated by QEMU, with Dom0 and guests of ours in it.
//!
//! Everything that Dom0 has is in the archive that it boots from: the base from Debian's packages (kept in the cache),
//! and what is tried (put together for each run). What happens is judged by what Dom0 says on the serial console,
//! because QEMU's own exit status says nothing.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod archives;
mod base;
mod disk;
mod image;
mod payload;
mod qemu;
mod scenarios;
mod verdict;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::{paths, sh, stage};

const HELP: &str = "\
cargo xtask xen [OPTION]... [SCENARIO]...

  Boots Xen under QEMU and runs these scenarios, or all. Serial logs are kept in target/xen.

  --list               say which scenarios there are
  --shell              a shell in Dom0 instead of scenarios
  --debug              stage a build that is quicker to make and slower to run
  --staged             take what is staged as it is
  --thorough           attack ten times as long
  --keep               keep the archives that were booted, beside the logs
  --dom0 'FILE [ARG]'  run this program in Dom0, with the number of the guest's domain as last argument
  --guest 'FILE [ARG]' run this program in the guest; both must end with 0
  --type pv|pvh        the kind of that guest (default: first the one, then the other)
  --with FILE          a further file for both, as /test/NAME; may be given more than once
";

#[derive(Debug, Default)]
struct Options {
    names: Vec<String>,
    shell: bool,
    keep: bool,
    /// Whether it is checked that the image is the same when it is made again.
    image: bool,
    debug: bool,
    staged: bool,
    /// More rounds of what is random.
    thorough: bool,
    dom0: Option<String>,
    guest: Option<String>,
    kind: Option<String>,
    with: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xen: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Result<()> {
    let mut args = lexopt::Parser::from_env();
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Value(name) => options.names.push(name.string()?),
            Long("list") => {
                print!("{}", scenarios::list());
                return Ok(());
            }
            Long("shell") => options.shell = true,
            Long("debug") => options.debug = true,
            Long("staged") => options.staged = true,
            Long("thorough") => options.thorough = true,
            Long("keep") => options.keep = true,
            Long("dom0") => options.dom0 = Some(args.value()?.string()?),
            Long("guest") => options.guest = Some(args.value()?.string()?),
            Long("type") => options.kind = Some(args.value()?.string()?),
            Long("with") => options.with.push(args.value()?.into()),
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if options.kind.as_deref().is_some_and(|kind| !["pv", "pvh"].contains(&kind)) {
        bail!("a guest's type is pv or pvh");
    }
    options.image = options.names.is_empty() && !options.shell && options.dom0.is_none();
    run(&options)
}

fn run(options: &Options) -> Result<()> {
    sh::install("qemu-system-x86_64", "qemu-system-x86")?;
    let chosen = scenarios::choose(options)?;
    if !options.staged {
        stage::build(&stage::Options { debug: options.debug, strip: false })?;
    }
    let base = base::ensure()?;
    if options.image {
        image::check()?;
    }
    let dir = paths::target().join("xen");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let archive = dir.join("dom0.cpio");
    let with: Vec<PathBuf> = options.with.iter().cloned().chain(payload::trial(&chosen, options)?).collect();
    let payload = payload::make(&chosen, options)?;
    let disk = match chosen.iter().any(|scenario| scenario.disk) {
        true => Some(disk::make(&base, &payload.programs, &dir)?),
        false => None,
    };
    archives::write(&archive, &base, options, &archives::Given { with, payload, disk })?;
    println!("booting Xen (serial log: {})", dir.join("serial.log").display());
    let booted = qemu::boot(&base, &archive, &dir, &chosen, options);
    if !options.keep {
        let _ = std::fs::remove_file(&archive);
    }
    let serial = booted?;
    if options.shell {
        return Ok(());
    }
    let verdict = verdict::read(&serial, &chosen);
    println!("\n{verdict}\nserial log: {}", dir.join("serial.log").display());
    verdict.counts().publish()?;
    if verdict.counts().failed == 0 { Ok(()) } else { bail!("the Xen test failed") }
}
