//! `bulkhead preemption-test`: whether the driver lets a running kernel be stopped and resumed.
//!
//! Two processes run kernels that never end; this one takes the driver's descriptor out of the first, as the preemptor does
//! with workers, and stops and resumes it.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, ExitCode, Stdio};

use backend::spin::{self, Page};
use control::backend::Backend;
use control::{packet, process};
use preempt::messages::{Reply, Request};
use preempt::nvidia::Nvidia;
use preempt::rm::{Class, KnownDriver, Object, Status};
use preempt::soft::Soft;
use preempt::{Preemptor, trial};

use crate::args::PreemptionTestArgs;
use crate::exit::{Exit, Failure};
use crate::helper;
use zerocopy::IntoBytes;

/// One line of a spinning process for each object of its driver library, then this.
const SPINNING: &str = "spinning";
const OBJECT: &str = "object";
const SOFT: &str = "soft";

pub(crate) fn run(args: &PreemptionTestArgs) -> Result<ExitCode, Failure> {
    let backend =
        Backend::choose(&args.backend.options()).map_err(|error| Failure::new(Exit::NoBackend, error.to_string()))?;
    if args.spin {
        return spin(&backend, args).map_err(|why| Failure::new(Exit::Failure, why));
    }
    let result = attempt(&backend, args);
    let stdin = std::io::stdin();
    if rustix::net::sockopt::socket_type(stdin.as_fd()).is_ok() {
        // The broker's: it decides by this.
        let stop = result.as_ref().ok().and_then(|measured| measured.first()).map_or(0, |once| once.stop.as_micros());
        let reply = Reply::new(&Request::new(0, 0, 0), stop as u64, result.map(drop));
        packet::send(&stdin, reply.as_bytes(), &[])
            .map_err(|error| Failure::system(Exit::Failure, "cannot tell the broker", &error))?;
        return Ok(ExitCode::SUCCESS);
    }
    match result {
        Ok(measured) => {
            for measured in measured {
                let _ = writeln!(std::io::stdout(), "preemption works: {measured}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => Err(Failure::new(Exit::Failure, format!("preemption does not work: {why}"))),
    }
}

/// The kernel, until its page says otherwise.
fn spin(backend: &Backend, args: &PreemptionTestArgs) -> Result<ExitCode, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let page = Page::map(std::io::stdin()).map_err(|error| text(&error))?;
    if let [first, ..] = args.devices[..] {
        backend::show(&first.to_string());
    }
    let driver = backend::load(backend).map_err(|error| text(&error))?;
    let spinning = spin::spin(&driver, &page, args.blocks, args.threads)?;
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| text(&error));
    for Object { client, parent, handle, class, engine, descriptor } in backend::recorder::recorded() {
        say(format!("{OBJECT} {client} {parent} {handle} {class} {engine} {descriptor}"))?;
    }
    if let Some(page) = backend::soft_page() {
        say(format!("{SOFT} {}", page.as_raw_fd()))?;
    }
    say(SPINNING.to_owned())?;
    spinning.wait()?;
    Ok(ExitCode::SUCCESS)
}

/// A process with a kernel that never ends; both go when it is dropped.
struct Subject {
    child: Child,
    process: OwnedFd,
    page: Page,
    objects: Vec<Object>,
    soft: Option<i32>,
}

impl Subject {
    fn start(backend: &Backend, args: &PreemptionTestArgs) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let (file, page) = Page::make().map_err(text)?;
        let mut command = helper::own();
        command.arg("preemption-test").arg("--spin").args(backend.to_arguments());
        command.args(args.devices.iter().flat_map(|device| ["--device".to_owned(), device.to_string()]));
        command.args(["--blocks", &args.blocks.to_string(), "--threads", &args.threads.to_string()]);
        command.stdin(Stdio::from(file)).stdout(Stdio::piped());
        let child = command.spawn().map_err(text)?;
        let process = process::open(child.id()).map_err(text)?;
        Ok(Self { child, process, page, objects: Vec::new(), soft: None })
    }

    /// Waits until its kernel runs.
    fn wait(&mut self) -> Result<(), String> {
        let output = self.child.stdout.take().ok_or("no output")?;
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|error| error.to_string())?;
            let mut words = line.split(' ');
            let first = words.next();
            let numbers: Vec<i64> = words.filter_map(|word| word.parse().ok()).collect();
            let number = |at: usize| numbers.get(at).and_then(|number| u32::try_from(*number).ok()).unwrap_or(0);
            match first {
                Some(SPINNING) => return Ok(()),
                Some(SOFT) => self.soft = Some(number(0) as i32),
                Some(OBJECT) => self.objects.push(Object {
                    client: number(0),
                    parent: number(1),
                    handle: number(2),
                    class: number(3),
                    engine: number(4),
                    descriptor: number(5) as i32,
                }),
                _ => {}
            }
        }
        Err("a process with a kernel ended before that ran".to_owned())
    }

    fn take(&self, number: i32) -> Result<OwnedFd, String> {
        process::take_descriptor(&self.process, number)
            .map_err(|error| format!("cannot take the driver's descriptor: {error}"))
    }

    fn nvidia(&self) -> Result<Nvidia, String> {
        let driver = KnownDriver::running().map_err(|error| error.to_string())?;
        let groups = |object: &&Object| object.kind() == Some(Class::ChannelGroup) && object.computes();
        let Some(group) = self.objects.iter().find(groups) else {
            return Err("the driver library's channels were not recorded".to_owned());
        };
        let mut nvidia = Nvidia::new(driver, self.take(group.descriptor)?);
        for object in self.objects.iter().filter(|object| object.client == group.client) {
            nvidia.add(*object).map_err(|error| error.to_string())?;
        }
        Ok(nvidia)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.page.end();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn attempt(backend: &Backend, args: &PreemptionTestArgs) -> Result<Vec<trial::Measured>, String> {
    let mut subjects = [Subject::start(backend, args)?, Subject::start(backend, args)?];
    for subject in &mut subjects {
        subject.wait()?;
    }
    let [first, neighbour] = &subjects;
    let mut preemptor: Box<dyn Preemptor> = match first.soft {
        Some(number) => Box::new(Soft::new(first.take(number)?.as_fd()).map_err(|error| error.to_string())?),
        None => {
            let mut nvidia = first.nvidia()?;
            refuses_others(&mut nvidia, neighbour)?;
            Box::new(nvidia)
        }
    };
    let mut measured = Vec::new();
    for _ in 0..args.repeat {
        let once = trial::run(&mut *preemptor, || first.page.rounds(), || neighbour.page.rounds());
        measured.push(once.map_err(|error| error.to_string())?);
    }
    for subject in &mut subjects {
        subject.page.end();
        let status = subject.child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("a kernel that was stopped and resumed ended with {status}"));
        }
    }
    Ok(measured)
}

/// One worker's descriptor must give no right over another's objects.
fn refuses_others(nvidia: &mut Nvidia, neighbour: &Subject) -> Result<(), String> {
    let Some(foreign) = neighbour.objects.iter().find(|object| object.kind() == Some(Class::Channel)) else {
        return Err("the driver library's channels were not recorded".to_owned());
    };
    match nvidia.add(*foreign) {
        Err(preempt::nvidia::NotTaken::Unknown(error)) if error.status() == Some(Status::INVALID_CLIENT) => Ok(()),
        Err(error) => Err(format!("a neighbour's channel is refused for another reason: {error}")),
        Ok(()) => Err("the driver lets a process name the channels of another".to_owned()),
    }
}
