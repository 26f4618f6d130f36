//! What processes read and print, how they begin and how they end.

use super::process::{Kind, OUTPUTS, Process, State};
use super::{Agent, Transport};
use crate::container::{REPORT_ERROR, REPORT_PID, REPORT_TERMINAL};
use crate::oci::VOLUME;
use crate::protocol::{Answer, CHUNK, Failure, FailureKind, StreamId, Up};
use rustix::fs::OFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Pieces of one stream in a round, so that a loud process does not keep others waiting.
const PIECES: usize = 4;

/// What a report socket said.
enum Report {
    Pid(u32),
    Terminal(OwnedFd),
    Error(String),
    /// It is closed: the program runs.
    End,
}

fn read_report(socket: &OwnedFd) -> Option<Report> {
    let mut bytes = [0; 2048];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?;
    let mut files = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let file = files.next();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match (bytes[..received.bytes].split_first(), file) {
        (Some((&REPORT_PID, rest)), _) => Report::Pid(text(rest).parse().ok()?),
        (Some((&REPORT_TERMINAL, _)), Some(file)) => Report::Terminal(file),
        (Some((&REPORT_ERROR, rest)), _) => Report::Error(text(rest)),
        (None, _) => Report::End,
        _ => Report::Error("the process said something odd".to_owned()),
    })
}

impl<T: Transport> Agent<T> {
    /// Learns how processes come along that are on their way to their program.
    pub(super) fn read_reports(&mut self) {
        let starting = |process: &Process| matches!(process.state, State::Starting { .. });
        let numbers: Vec<u32> =
            self.processes.iter().filter(|(_, process)| starting(process)).map(|(number, _)| *number).collect();
        for number in numbers {
            while let Some(request) = self.read_report(number) {
                self.link.send(&request);
            }
        }
    }

    /// Takes one report; the answer to the request if that was the last.
    fn read_report(&mut self, number: u32) -> Option<Up> {
        let process = self.processes.get_mut(&number)?;
        loop {
            let State::Starting { report, request, pid } = &mut process.state else { return None };
            let request = *request;
            let failed = |text: String| {
                let failure = Failure { kind: FailureKind::Failed, text };
                Up::Reply { number: request, result: Err(failure) }
            };
            match read_report(report)? {
                Report::Pid(told) => *pid = Some(told),
                Report::Terminal(file) => open_terminal(process, file),
                Report::Error(text) => {
                    process.close();
                    return Some(failed(text));
                }
                Report::End => {
                    let Some(pid) = *pid else {
                        process.close();
                        return Some(failed("the process ended before its program ran".to_owned()));
                    };
                    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
                    // A short program may have ended and been collected in this very round.
                    let pidfd = raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok());
                    process.state = State::Running { pid, pidfd };
                    return Some(Up::Reply { number: request, result: Ok(Answer::Done) });
                }
            }
        }
    }

    /// Says that a process has ended. What it printed is still to be sent.
    pub(super) fn finish(&mut self, number: u32, status: u8) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        process.state = State::Ended;
        process.input.file = None;
        let mut out_of_memory = false;
        let mut messages = Vec::new();
        if let Kind::Container(container) = &process.kind {
            out_of_memory = container.cgroup.out_of_memory_kills() > 0;
            let volumes = container.spec.mounts.iter().filter(|mount| mount.kind == VOLUME);
            messages.extend(
                volumes.filter_map(|mount| {
                    Some((mount.source.clone(), self.volumes.termination_message(&mount.source)?))
                }),
            );
        }
        for (volume, bytes) in messages {
            self.link.send(&Up::TerminationMessage { volume, bytes });
        }
        self.link.send(&Up::Exited { process: number, status, out_of_memory });
    }

    pub(super) fn feed(&mut self) {
        for (number, process) in &mut self.processes {
            let bytes = process.input.feed(process.terminal);
            if bytes > 0 {
                self.link.send(&Up::Credit { process: *number, bytes });
            }
        }
    }

    pub(super) fn print(&mut self) {
        for (number, process) in &mut self.processes {
            for (output, kind) in process.outputs.iter_mut().zip(OUTPUTS) {
                let stream = StreamId { process: *number, kind };
                for _ in 0..PIECES {
                    if !self.link.has_room() {
                        return;
                    }
                    let Some(bytes) = output.read(CHUNK) else { break };
                    self.link.send(&Up::Output { stream, bytes });
                }
                if output.file.is_none() && !output.end_said {
                    output.end_said = true;
                    self.link.send(&Up::OutputEnd { stream });
                }
            }
        }
    }
}

impl Process {
    /// It will not run, or not any more: its streams are over.
    fn close(&mut self) {
        self.state = State::Ended;
        self.input.file = None;
        self.console = None;
        for output in &mut self.outputs {
            output.file = None;
        }
    }
}

fn open_terminal(process: &mut Process, file: OwnedFd) {
    let _ = rustix::fs::fcntl_setfl(&file, OFlags::RDWR | OFlags::NONBLOCK);
    let file = File::from(file);
    process.input.file = file.try_clone().ok();
    if let Ok(output) = file.try_clone() {
        process.outputs[0].open(output);
    }
    process.console = Some(file);
}
