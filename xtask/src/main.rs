//! `cargo xtask <verb>`: everything one does with this repository, in one place.
#![forbid(unsafe_code)]

mod adversary;
mod browser;
mod cargo_test;
mod checks;
mod deb;
mod demo;
mod e2e;
mod frameworks;
mod fuzz;
mod images;
mod oci;
mod paths;
mod programs;
mod report;
mod sh;
mod stage;
mod suite;
mod toolchain;
mod truth_table;
mod xen;
mod zones;

use anyhow::{Result, bail};
use lexopt::prelude::*;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <verb>

  demo                         one CUDA program in two zones at once, on the software GPU
  test [--quick]               everything that must hold; fetches what it needs
  lint                         the part of it that runs no program
  e2e [--keep] [--debug] [--no-build] [SCENARIO]...
                               a Kubernetes cluster of real components with Bulkhead on it, and what must hold there;
                               --keep leaves it up to be tried; --no-build takes what was built last
  browser                      the status page in Chromium, which is installed where it is missing
  attack [--backend B] [--long] [--seed N] [NAME]...
                               hostile clients beside an honest one: what each tries, and what happens
  soak [--seconds N] [--seed N] [--backend B]
                               kill -9 at random for ten minutes, under load; then nothing may be left
  fuzz [--seconds N] [TARGET]...
                               the fuzz targets, each for so long (default 60)
  frameworks                   CuPy and Numba from PyPI (400 MB, into .cache) on the software GPU
  truth-table [--backend B] [--native] [--json]
                               sharing between processes in every combination of namespaces and privilege
  deb                          a package for Debian, in target
  images                       container images as archives, in target/images
  toolchain                    fetch NVIDIA's compiler and runtimes from PyPI into .cache/cuda
  xen [--list] [SCENARIO]...   Xen itself, emulated, with guests that use the GPU of Dom0 (xen --help)
  run [--matrix] [PROGRAM]...  build, and run these programs (or all) in zones on the software GPU
  build [--debug] [--strip]    build everything, and stage a tree that runs in target/stage
  programs [--sass ARCH]... [--matrix]
                               compile tests/programs/*.cu into target/programs (PTX, and machine code for ARCH, such as 90)
";

fn main() -> ExitCode {
    match verb() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn verb() -> Result<()> {
    let mut args = lexopt::Parser::from_env();
    let verb = match args.next()? {
        Some(Value(verb)) => verb.string()?,
        Some(Short('h') | Long("help")) | None => {
            print!("{HELP}");
            return Ok(());
        }
        Some(other) => return Err(other.unexpected().into()),
    };
    match verb.as_str() {
        "toolchain" => {
            no_more(args)?;
            toolchain::ensure()?;
            println!("{}", toolchain::nvcc().display());
            Ok(())
        }
        "fuzz" => {
            let (mut seconds, mut targets) = (60, Vec::new());
            while let Some(arg) = args.next()? {
                match arg {
                    Long("seconds") => seconds = args.value()?.parse()?,
                    Value(target) => targets.push(target.string()?),
                    other => return Err(other.unexpected().into()),
                }
            }
            fuzz::run(seconds, &targets).map(drop)
        }
        "deb" => {
            no_more(args)?;
            deb::build()
        }
        "images" => {
            let (mut debug, mut no_build) = (false, false);
            while let Some(arg) = args.next()? {
                match arg {
                    Long("debug") => debug = true,
                    Long("no-build") => no_build = true,
                    other => return Err(other.unexpected().into()),
                }
            }
            toolchain::ensure()?;
            if !no_build {
                stage::build(&stage::Options { debug, strip: true })?;
            }
            for archive in images::build()? {
                println!("{}", archive.display());
            }
            Ok(())
        }
        "browser" => {
            no_more(args)?;
            browser::install()?;
            stage::build(&stage::Options::default())?;
            browser::check()
        }
        "attack" | "soak" => adversary::run(&verb, &args.raw_args()?.collect::<Vec<_>>()),
        "frameworks" => no_more(args).and_then(|()| frameworks::run()),
        "truth-table" => truth_table::run(&args.raw_args()?.collect::<Vec<_>>()),
        "demo" => no_more(args).and_then(|()| demo::run()),
        "e2e" | e2e::INSIDE => end_to_end(&verb, args),
        "lint" => no_more(args).and_then(|()| suite::lint()),
        "test" => {
            let mut quick = false;
            while let Some(arg) = args.next()? {
                match arg {
                    Long("quick") => quick = true,
                    other => return Err(other.unexpected().into()),
                }
            }
            suite::test(quick)
        }
        "build" => {
            let mut options = stage::Options::default();
            while let Some(arg) = args.next()? {
                match arg {
                    Long("release") => options.debug = false,
                    Long("debug") => options.debug = true,
                    Long("strip") => options.strip = true,
                    other => return Err(other.unexpected().into()),
                }
            }
            stage::build(&options)?;
            println!("{}", paths::stage().display());
            Ok(())
        }
        "xen" => xen::verb(args),
        "programs" => compile_programs(args),
        "run" => {
            let (mut names, mut matrix) = (Vec::new(), false);
            while let Some(arg) = args.next()? {
                match arg {
                    Value(name) => names.push(name.string()?),
                    Long("matrix") => matrix = true,
                    other => return Err(other.unexpected().into()),
                }
            }
            suite::run(&names, matrix)
        }
        _ => bail!("no such verb: {verb} (see cargo xtask --help)"),
    }
}

fn end_to_end(verb: &str, mut args: lexopt::Parser) -> Result<()> {
    let mut options = e2e::Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Value(name) => options.names.push(name.string()?),
            Long("keep") => options.keep = true,
            Long("debug") => options.debug = true,
            Long("no-build") => options.no_build = true,
            other => return Err(other.unexpected().into()),
        }
    }
    if verb == e2e::INSIDE { e2e::inside(&options) } else { e2e::run(&options) }
}

fn compile_programs(mut args: lexopt::Parser) -> Result<()> {
    let (mut sass, mut matrix) = (Vec::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Long("sass") => sass.push(args.value()?.string()?),
            Long("matrix") => matrix = true,
            other => return Err(other.unexpected().into()),
        }
    }
    toolchain::ensure()?;
    let programs = programs::all()?;
    let mut wanted = programs::own(&programs, &[programs::Linkage::Static, programs::Linkage::Shared])?;
    if matrix {
        wanted.extend(programs::matrix(&programs)?);
    }
    let built = programs::build(&wanted, &sass)?;
    println!("{} programs in {}", built.len(), paths::programs().display());
    Ok(())
}

fn no_more(mut args: lexopt::Parser) -> Result<()> {
    match args.next()? {
        None => Ok(()),
        Some(other) => Err(other.unexpected().into()),
    }
}
