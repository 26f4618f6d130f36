//! The messages, each with what it asks for or says.

use super::codec::{Decode, DecodeError, Reader, Writer};
use super::{CHUNK, FILE_CHUNK, MAX_DOWN, MAX_PIDS, MAX_TERMINATION_MESSAGE, MAX_TEXT};
use std::net::IpAddr;

/// Names of containers, volumes and files; a path may have 4,096 bytes.
const MAX_NAME: usize = 4 << 10;
/// Mounts that a root file system is made of.
const MAX_ROOT_MOUNTS: usize = 64;
/// Addresses of a pod, and routes.
const MAX_ADDRESSES: usize = 1 << 10;
/// Options of one of them: an overlay names all its layers in one.
const MAX_OPTIONS: usize = 1 << 10;

/// Which of a process's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    Stdin,
    Stdout,
    Stderr,
}

/// A stream of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    pub process: u32,
    pub kind: StreamKind,
}

/// To the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// Answered by an [`Up::Reply`] with the same number.
    Request { number: u32, request: Request },
    /// For a process to read.
    Input { process: u32, bytes: Vec<u8> },
    /// There is no more for it to read.
    InputEnd { process: u32 },
    /// The agent may send so many more bytes on this stream.
    Credit { stream: StreamId, bytes: u32 },
}

/// What the agent is asked to do. Processes have numbers that the shim chooses and never uses again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Prepare a container: its root file system, its cgroup. `spec` is JSON, an [`crate::oci::Spec`].
    Create { process: u32, id: String, spec: Vec<u8>, root: Root, terminal: bool, pids: PidNamespace },
    /// Prepare another process in a container. `spec` is JSON, an [`crate::oci::Process`].
    Exec { process: u32, container: u32, spec: Vec<u8>, terminal: bool },
    /// Run what was prepared.
    Start { process: u32 },
    /// Send a signal, to all processes of its container if so asked.
    Signal { process: u32, signal: u32, all: bool },
    /// Set the size of its terminal.
    Resize { process: u32, rows: u16, columns: u16 },
    /// What the container uses.
    Stats { process: u32 },
    /// The processes in the container, as they are numbered in the machine.
    Pids { process: u32 },
    /// Change the container's limits. `resources` is JSON, an [`crate::oci::Resources`].
    Update { process: u32, resources: Vec<u8> },
    /// Stop all processes of the container, or let them go on.
    Freeze { process: u32, frozen: bool },
    /// Forget a process that has ended, and all of a container's that is one.
    Delete { process: u32 },
    /// Make a volume that containers can mount.
    Volume { name: String, kind: VolumeKind, mode: u32, uid: u32, gid: u32 },
    /// Make a directory in a volume.
    PutDirectory { volume: String, path: String, mode: u32, uid: u32, gid: u32 },
    /// Write a file in a volume, or more of it.
    PutFile { volume: String, path: String, mode: u32, uid: u32, gid: u32, append: bool, bytes: Vec<u8> },
    /// Make a symbolic link in a volume; one that is there is replaced in one step.
    PutLink { volume: String, path: String, target: String },
    /// Remove a file, a link or a directory with all that is in it from a volume.
    Remove { volume: String, path: String },
    /// Set up the machine's interface on the pod's network.
    Network(Network),
}

/// What the pod's interface has on the host, and is to have in the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The hardware address, by which the interface is found.
    pub mac: String,
    /// 0: the interface's own.
    pub mtu: u32,
    pub addresses: Vec<Address>,
    /// In the order in which they can be made: a gateway's own before those through it.
    pub routes: Vec<Route>,
}

/// An address, or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub address: IpAddr,
    pub prefix: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub to: Address,
    /// None: on the link itself.
    pub gateway: Option<IpAddr>,
}

/// What a volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeKind {
    Directory,
    /// Memory of the machine, so many bytes of it at most; 0 for no limit of its own.
    Memory(u64),
    /// One file, which is read when the container that mounts it has ended.
    TerminationMessage,
    /// One file, written by the shim.
    File,
}

/// Whose processes a container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidNamespace {
    Own,
    /// Those of this container.
    Of(u32),
}

/// Where a container's root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Mounts to be made, one over the other.
    Mounts(Vec<RootMount>),
    /// A block device of the machine with a file system on it.
    Disk { device: String, kind: String, read_only: bool },
    /// A block device of the machine with the image's files, which nobody writes to; what the container changes is kept
    /// where the agent keeps everything else.
    Layered { device: String, kind: String },
}

/// As containerd hands it to shims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootMount {
    pub kind: String,
    pub source: String,
    pub target: String,
    pub options: Vec<String>,
}

/// To the shim. All of it is the machine's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Up {
    /// The agent takes requests.
    Ready { version: u32 },
    /// The answer to the request of this number.
    Reply { number: u32, result: Result<Answer, Failure> },
    /// What a process has printed.
    Output { stream: StreamId, bytes: Vec<u8> },
    /// It will print no more on this stream.
    OutputEnd { stream: StreamId },
    /// The shim may send so many more bytes of input.
    Credit { process: u32, bytes: u32 },
    /// A process has ended: its status, or 128 and the signal's number.
    Exited { process: u32, status: u8, out_of_memory: bool },
    /// What a container left in a [`VolumeKind::TerminationMessage`]; comes before its end.
    TerminationMessage { volume: String, bytes: Vec<u8> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Stats(Stats),
    Pids(Vec<u32>),
}

/// What a container uses, as its cgroup counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub memory_bytes: u64,
    pub memory_limit: u64,
    pub inactive_file_bytes: u64,
    pub cpu_nanoseconds: u64,
    pub cpu_user_nanoseconds: u64,
    pub cpu_kernel_nanoseconds: u64,
    pub processes: u64,
    pub processes_limit: u64,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// There is no such process, or it has ended.
    NotFound,
    /// The request cannot be met as it is.
    Invalid,
    /// The machine could not do it.
    Failed,
}

impl Decode for StreamId {
    fn write(&self, w: &mut Writer) {
        w.u32(self.process).u8(match self.kind {
            StreamKind::Stdin => 0,
            StreamKind::Stdout => 1,
            StreamKind::Stderr => 2,
        });
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let process = r.u32()?;
        let kind = match r.u8()? {
            0 => StreamKind::Stdin,
            1 => StreamKind::Stdout,
            2 => StreamKind::Stderr,
            other => return Err(DecodeError::Kind(other)),
        };
        Ok(Self { process, kind })
    }
}

impl Decode for Down {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Request { number, request } => {
                w.u8(1).u32(*number);
                request.write(w);
            }
            Self::Input { process, bytes } => drop(w.u8(2).u32(*process).bytes(bytes)),
            Self::InputEnd { process } => drop(w.u8(3).u32(*process)),
            Self::Credit { stream, bytes } => {
                w.u8(4);
                stream.write(w);
                w.u32(*bytes);
            }
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            1 => Self::Request { number: r.u32()?, request: Request::read(r)? },
            2 => Self::Input { process: r.u32()?, bytes: r.bytes(CHUNK)? },
            3 => Self::InputEnd { process: r.u32()? },
            4 => Self::Credit { stream: StreamId::read(r)?, bytes: r.u32()? },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Decode for Request {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Create { process, id, spec, root, terminal, pids } => {
                w.u8(1).u32(*process).text(id).bytes(spec);
                root.write(w);
                w.bool(*terminal);
                pids.write(w);
            }
            Self::Exec { process, container, spec, terminal } => {
                w.u8(2).u32(*process).u32(*container).bytes(spec).bool(*terminal);
            }
            Self::Start { process } => drop(w.u8(3).u32(*process)),
            Self::Signal { process, signal, all } => drop(w.u8(4).u32(*process).u32(*signal).bool(*all)),
            Self::Resize { process, rows, columns } => drop(w.u8(5).u32(*process).u16(*rows).u16(*columns)),
            Self::Stats { process } => drop(w.u8(6).u32(*process)),
            Self::Pids { process } => drop(w.u8(7).u32(*process)),
            Self::Update { process, resources } => drop(w.u8(8).u32(*process).bytes(resources)),
            Self::Freeze { process, frozen } => drop(w.u8(9).u32(*process).bool(*frozen)),
            Self::Delete { process } => drop(w.u8(10).u32(*process)),
            Self::Volume { name, kind, mode, uid, gid } => {
                w.u8(11).text(name);
                kind.write(w);
                w.u32(*mode).u32(*uid).u32(*gid);
            }
            Self::PutDirectory { volume, path, mode, uid, gid } => {
                w.u8(12).text(volume).text(path).u32(*mode).u32(*uid).u32(*gid);
            }
            Self::PutFile { volume, path, mode, uid, gid, append, bytes } => {
                w.u8(13).text(volume).text(path).u32(*mode).u32(*uid).u32(*gid).bool(*append).bytes(bytes);
            }
            Self::PutLink { volume, path, target } => drop(w.u8(14).text(volume).text(path).text(target)),
            Self::Remove { volume, path } => drop(w.u8(15).text(volume).text(path)),
            Self::Network(network) => network.write(w.u8(16)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            1 => Self::Create {
                process: r.u32()?,
                id: r.text(MAX_NAME)?,
                spec: r.bytes(MAX_DOWN)?,
                root: Root::read(r)?,
                terminal: r.bool()?,
                pids: PidNamespace::read(r)?,
            },
            2 => Self::Exec { process: r.u32()?, container: r.u32()?, spec: r.bytes(MAX_DOWN)?, terminal: r.bool()? },
            3 => Self::Start { process: r.u32()? },
            4 => Self::Signal { process: r.u32()?, signal: r.u32()?, all: r.bool()? },
            5 => Self::Resize { process: r.u32()?, rows: r.u16()?, columns: r.u16()? },
            6 => Self::Stats { process: r.u32()? },
            7 => Self::Pids { process: r.u32()? },
            8 => Self::Update { process: r.u32()?, resources: r.bytes(MAX_DOWN)? },
            9 => Self::Freeze { process: r.u32()?, frozen: r.bool()? },
            10 => Self::Delete { process: r.u32()? },
            11 => Self::Volume {
                name: r.text(MAX_NAME)?,
                kind: VolumeKind::read(r)?,
                mode: r.u32()?,
                uid: r.u32()?,
                gid: r.u32()?,
            },
            12 => Self::PutDirectory {
                volume: r.text(MAX_NAME)?,
                path: r.text(MAX_NAME)?,
                mode: r.u32()?,
                uid: r.u32()?,
                gid: r.u32()?,
            },
            13 => Self::PutFile {
                volume: r.text(MAX_NAME)?,
                path: r.text(MAX_NAME)?,
                mode: r.u32()?,
                uid: r.u32()?,
                gid: r.u32()?,
                append: r.bool()?,
                bytes: r.bytes(FILE_CHUNK)?,
            },
            14 => Self::PutLink { volume: r.text(MAX_NAME)?, path: r.text(MAX_NAME)?, target: r.text(MAX_NAME)? },
            15 => Self::Remove { volume: r.text(MAX_NAME)?, path: r.text(MAX_NAME)? },
            16 => Self::Network(Network::read(r)?),
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Decode for Network {
    fn write(&self, w: &mut Writer) {
        w.text(&self.mac).u32(self.mtu).list(&self.addresses, |w, address| address.write(w));
        w.list(&self.routes, |w, route| {
            route.to.write(w);
            match route.gateway {
                None => drop(w.bool(false)),
                Some(gateway) => write_ip(w.bool(true), gateway),
            }
        });
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            mac: r.text(MAX_NAME)?,
            mtu: r.u32()?,
            addresses: r.list(MAX_ADDRESSES, Address::read)?,
            routes: r.list(MAX_ADDRESSES, |r| {
                let to = Address::read(r)?;
                let gateway = if r.bool()? { Some(read_ip(r)?) } else { None };
                Ok(Route { to, gateway })
            })?,
        })
    }
}

impl Decode for Address {
    fn write(&self, w: &mut Writer) {
        write_ip(w, self.address);
        w.u8(self.prefix);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { address: read_ip(r)?, prefix: r.u8()? })
    }
}

/// The length says of which kind it is.
fn write_ip(w: &mut Writer, address: IpAddr) {
    match address {
        IpAddr::V4(address) => w.bytes(&address.octets()),
        IpAddr::V6(address) => w.bytes(&address.octets()),
    };
}

fn read_ip(r: &mut Reader<'_>) -> Result<IpAddr, DecodeError> {
    let bytes = r.bytes(16)?;
    let four = <[u8; 4]>::try_from(&bytes[..]).map(IpAddr::from);
    let sixteen = || <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from);
    four.or_else(|_| sixteen()).map_err(|_| DecodeError::Short)
}

impl Decode for VolumeKind {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Directory => drop(w.u8(1)),
            Self::Memory(bytes) => drop(w.u8(2).u64(*bytes)),
            Self::TerminationMessage => drop(w.u8(3)),
            Self::File => drop(w.u8(4)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            1 => Self::Directory,
            2 => Self::Memory(r.u64()?),
            3 => Self::TerminationMessage,
            4 => Self::File,
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Decode for PidNamespace {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Own => drop(w.u8(0)),
            Self::Of(process) => drop(w.u8(1).u32(*process)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.u8()? {
            0 => Ok(Self::Own),
            1 => Ok(Self::Of(r.u32()?)),
            other => Err(DecodeError::Kind(other)),
        }
    }
}

impl Decode for Root {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Mounts(mounts) => {
                w.u8(1).list(mounts, |w, mount| {
                    w.text(&mount.kind).text(&mount.source).text(&mount.target);
                    w.list(&mount.options, |w, option| {
                        w.text(option);
                    });
                });
            }
            Self::Disk { device, kind, read_only } => drop(w.u8(2).text(device).text(kind).bool(*read_only)),
            Self::Layered { device, kind } => drop(w.u8(3).text(device).text(kind)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            1 => Self::Mounts(r.list(MAX_ROOT_MOUNTS, |r| {
                Ok(RootMount {
                    kind: r.text(MAX_NAME)?,
                    source: r.text(MAX_NAME)?,
                    target: r.text(MAX_NAME)?,
                    options: r.list(MAX_OPTIONS, |r| r.text(MAX_DOWN))?,
                })
            })?),
            2 => Self::Disk { device: r.text(MAX_NAME)?, kind: r.text(MAX_NAME)?, read_only: r.bool()? },
            3 => Self::Layered { device: r.text(MAX_NAME)?, kind: r.text(MAX_NAME)? },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Decode for Up {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Ready { version } => drop(w.u8(1).u32(*version)),
            Self::Reply { number, result } => {
                w.u8(2).u32(*number);
                match result {
                    Ok(answer) => answer.write(w.u8(1)),
                    Err(failure) => failure.write(w.u8(0)),
                }
            }
            Self::Output { stream, bytes } => {
                stream.write(w.u8(3));
                w.bytes(bytes);
            }
            Self::OutputEnd { stream } => stream.write(w.u8(4)),
            Self::Credit { process, bytes } => drop(w.u8(5).u32(*process).u32(*bytes)),
            Self::Exited { process, status, out_of_memory } => {
                w.u8(6).u32(*process).u8(*status).bool(*out_of_memory);
            }
            Self::TerminationMessage { volume, bytes } => drop(w.u8(7).text(volume).bytes(bytes)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            1 => Self::Ready { version: r.u32()? },
            2 => {
                let number = r.u32()?;
                let result = if r.bool()? { Ok(Answer::read(r)?) } else { Err(Failure::read(r)?) };
                Self::Reply { number, result }
            }
            3 => Self::Output { stream: StreamId::read(r)?, bytes: r.bytes(CHUNK)? },
            4 => Self::OutputEnd { stream: StreamId::read(r)? },
            5 => Self::Credit { process: r.u32()?, bytes: r.u32()? },
            6 => Self::Exited { process: r.u32()?, status: r.u8()?, out_of_memory: r.bool()? },
            7 => Self::TerminationMessage { volume: r.text(MAX_NAME)?, bytes: r.bytes(MAX_TERMINATION_MESSAGE)? },
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Decode for Answer {
    fn write(&self, w: &mut Writer) {
        match self {
            Self::Done => drop(w.u8(1)),
            Self::Stats(stats) => {
                w.u8(2).u64(stats.memory_bytes).u64(stats.memory_limit).u64(stats.inactive_file_bytes);
                w.u64(stats.cpu_nanoseconds).u64(stats.cpu_user_nanoseconds).u64(stats.cpu_kernel_nanoseconds);
                w.u64(stats.processes).u64(stats.processes_limit);
            }
            Self::Pids(pids) => {
                w.u8(3).list(pids, |w, pid| {
                    w.u32(*pid);
                });
            }
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            1 => Self::Done,
            2 => Self::Stats(Stats {
                memory_bytes: r.u64()?,
                memory_limit: r.u64()?,
                inactive_file_bytes: r.u64()?,
                cpu_nanoseconds: r.u64()?,
                cpu_user_nanoseconds: r.u64()?,
                cpu_kernel_nanoseconds: r.u64()?,
                processes: r.u64()?,
                processes_limit: r.u64()?,
            }),
            3 => Self::Pids(r.list(MAX_PIDS, Reader::u32)?),
            other => return Err(DecodeError::Kind(other)),
        })
    }
}

impl Decode for Failure {
    fn write(&self, w: &mut Writer) {
        w.u8(match self.kind {
            FailureKind::NotFound => 1,
            FailureKind::Invalid => 2,
            FailureKind::Failed => 3,
        });
        let mut end = self.text.len().min(MAX_TEXT);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        w.text(&self.text[..end]);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = match r.u8()? {
            1 => FailureKind::NotFound,
            2 => FailureKind::Invalid,
            3 => FailureKind::Failed,
            other => return Err(DecodeError::Kind(other)),
        };
        Ok(Self { kind, text: r.text(MAX_TEXT)? })
    }
}
