//! `cargo xtask <verb>`: everything one does with this repository, in one place.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod adversary;
mod browser;
mod cargo_test;
mod checks;
mod deb_trial;
mod demo;
mod frameworks;
mod fuzz;
mod lab;
mod qualify;
mod readme;
mod sanitizer;
mod suite;
mod traffic;
mod truth_table;
mod zones;

use anyhow::{Result, bail};
use lexopt::prelude::*;
use std::process::ExitCode;
use xtask::{deb, images, paths, programs, progress, stage, toolchain};

const HELP: &str = "\
cargo xtask <verb>

  demo                         one CUDA program in two zones at once, on the software GPU
  test [--quick] [--list] [PART]...
                               everything that must hold, or these parts of it; fetches what it needs. What is not tried
                               has failed, unless .ci/may-lack.toml lists it. --quick leaves out what takes long
  lint                         the parts of it that run no program
  qualify [--list] [--staged] [--only ROW]...
                               what takes too long for every change; results go to docs/qualification.md
  e2e [OPTION]... [SCENARIO]...
                               a Kubernetes cluster of real components with Bulkhead on it, and what must hold there
                               (e2e --help)
  readme                       what README has developers type, as it stands there
  browser                      the status page in Chromium, which is installed where it is missing
  attack [--backend B] [--long] [--seed N] [NAME]...
                               hostile clients beside an honest one: what each tries, and what happens
  soak [--seconds N] [--seed N] [--backend B]
                               kill -9 at random for ten minutes, under load; then nothing may be left
  fuzz [--seconds N] [TARGET]...
                               the fuzz targets, each for so long (default 60)
  fuzz --coverage              what the inputs that they have kept reach, into docs/adversary.md
  fuzz dispatch --executions N [--seed N]
                               so many hostile messages to a worker's dispatch, in one process
  frameworks [--staged]        CuPy and Numba from PyPI (400 MB, into .cache) on the software GPU
  truth-table [--backend B] [--native] [--json]
                               sharing between processes in every combination of namespaces and privilege
  deb [--staged] [--try]       a package for Debian, in target; --try installs, runs and purges it in a copy of this system (root)
  release [OPTION]...          everything that a release consists of, in target/release-VERSION (release --help)
  images                       container images as archives, in target/images
  toolchain                    fetch NVIDIA's compiler and runtimes from PyPI into .cache/cuda
  xen [OPTION]... [SCENARIO]...
                               Xen itself, emulated, with guests that use the GPU of Dom0 (xen --help)
  run [--matrix] [PROGRAM]...  build, and run these programs (or all) in zones on the software GPU
  build [--debug] [--strip]    build everything, and stage a tree that runs in target/stage
  programs [--sass ARCH]... [--matrix]
                               compile tests/programs/*.cu into target/programs (PTX, and machine code for ARCH, such as 90)
";

fn main() -> ExitCode {
    match verb() {
        Ok(true) => ExitCode::SUCCESS,
        // It has said what.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// False when something does not hold.
fn verb() -> Result<bool> {
    let mut args = lexopt::Parser::from_env();
    let verb = match args.next()? {
        Some(Value(verb)) => verb.string()?,
        Some(Short('h') | Long("help")) | None => {
            print!("{HELP}");
            return Ok(true);
        }
        Some(other) => return Err(other.unexpected().into()),
    };
    let rest = |mut args: lexopt::Parser| args.raw_args().map(Iterator::collect::<Vec<_>>);
    match verb.as_str() {
        "demo" => no_more(args).and_then(|()| demo::run()),
        "test" => return test(args),
        suite::PART => return suite::part(&args.value()?.string()?),
        "lint" => return no_more(args).and_then(|()| suite::lint()),
        "qualify" => return qualify(args),
        "run" => return run_programs(args),
        "e2e" => return lab::enter(lab::cluster(), rest(args)?),
        "release" => return lab::enter(lab::release(), rest(args)?),
        "xen" => return lab::enter(lab::xen(), rest(args)?),
        "attack" | "soak" => adversary::run(&verb, &rest(args)?),
        "truth-table" => truth_table::run(&rest(args)?),
        "readme" => no_more(args).and_then(|()| readme::run()),
        "frameworks" => try_frameworks(args),
        "fuzz" => fuzz_targets(args),
        "browser" => {
            no_more(args)?;
            browser::install()?;
            stage::build(&stage::Options::default())?;
            browser::check()
        }
        "toolchain" => {
            no_more(args)?;
            toolchain::ensure()?;
            println!("{}", toolchain::nvcc().display());
            Ok(())
        }
        "build" => build(args),
        "deb" => make_deb(args),
        "images" => build_images(args),
        "programs" => compile_programs(args),
        _ => bail!("no such verb: {verb} (see cargo xtask --help)"),
    }
    .map(|()| true)
}

fn try_frameworks(mut args: lexopt::Parser) -> Result<()> {
    let mut staged = false;
    while let Some(arg) = args.next()? {
        match arg {
            Long("staged") => staged = true,
            other => return Err(other.unexpected().into()),
        }
    }
    frameworks::run(staged)
}

fn test(mut args: lexopt::Parser) -> Result<bool> {
    let mut options = suite::Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Value(name) => options.names.push(name.string()?),
            Long("quick") => options.quick = true,
            Long("list") => {
                print!("{}", suite::list());
                return Ok(true);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    suite::test(&options)
}

fn qualify(mut args: lexopt::Parser) -> Result<bool> {
    let (mut names, mut staged) = (Vec::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Long("only") => names.push(args.value()?.string()?),
            Long("staged") => staged = true,
            Long("list") => {
                print!("{}", qualify::list());
                return Ok(true);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    qualify::run(&names, staged)
}

fn run_programs(mut args: lexopt::Parser) -> Result<bool> {
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

fn fuzz_targets(mut args: lexopt::Parser) -> Result<()> {
    let (mut seconds, mut targets, mut executions, mut seed) = (60, Vec::new(), None, 1);
    while let Some(arg) = args.next()? {
        match arg {
            Long("seconds") => seconds = args.value()?.parse()?,
            Long("coverage") => return no_more(args).and_then(|()| fuzz::measure()),
            Long("executions") => executions = Some(args.value()?.parse()?),
            Long("seed") => seed = args.value()?.parse()?,
            Value(target) => targets.push(target.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    match (executions, &targets[..]) {
        (Some(executions), [name]) if name == "dispatch" => return fuzz::dispatch(executions, seed),
        (Some(_), _) => bail!("--executions is for: cargo xtask fuzz dispatch"),
        (None, _) => {}
    }
    match fuzz::run(seconds, &targets)?.failed {
        0 => Ok(()),
        failed => bail!("{failed} of the fuzz targets found something"),
    }
}

fn build(mut args: lexopt::Parser) -> Result<()> {
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

fn make_deb(mut args: lexopt::Parser) -> Result<()> {
    let (mut staged, mut trial) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Long("staged") => staged = true,
            Long("try") => trial = true,
            other => return Err(other.unexpected().into()),
        }
    }
    deb::build(staged)?;
    if trial { deb_trial::run() } else { Ok(()) }
}

fn build_images(mut args: lexopt::Parser) -> Result<()> {
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
    let progress = progress::Progress::start("making images");
    let archives = images::build()?;
    drop(progress);
    for archive in archives {
        println!("{}", archive.display());
    }
    Ok(())
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
