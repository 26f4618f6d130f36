//! Messages that are right but for one word: lengths, handles, addresses, counts, offsets.

use cuda_abi::table::{self, Carry, Role};
use cuda_abi::wire::{Handle, Op};

use super::session::{Back, Session, name_of, op_of, string, words};
use super::{Dice, Tally};
use crate::calls::KERNELS;

const GRANULE: u64 = 2 << 20;
/// Operations in which a wrong number is no mistake that a program could make, so that it ends the client.
const ENDING: [Op; 5] = [Op::ModuleLoad, Op::LibraryLoad, Op::ImageLoad, Op::CopyFromStaging, Op::CopyToStaging];

/// Flags of an event between processes, which has no time.
const INTERPROCESS: u64 = 4 | 2;

/// What a session owns, to make right messages of, and to put in wrong places.
struct Belongings {
    stream: u64,
    event: u64,
    shared_event: u64,
    module: u64,
    function: u64,
    library: u64,
    kernel: u64,
    block: u64,
    reserved: u64,
    physical: u64,
    /// A handle that was closed.
    stale: u64,
}

impl Belongings {
    fn gather(session: &mut Session) -> Belongings {
        let made = |session: &mut Session, symbol: &str, payload: &[u64]| {
            session.ask(op_of(symbol), &words(payload)).first().copied().expect("a handle")
        };
        let event = |session: &mut Session, flags: u64| session.ask(Op::EventCreate as u16, &words(&[flags]))[0];
        let stale = event(session, 0);
        session.ask(op_of("cuEventDestroy_v2"), &words(&[stale]));
        let module = session.must_load(Op::ModuleLoad, KERNELS.as_bytes());
        let library = session.must_load(Op::LibraryLoad, KERNELS.as_bytes());
        let named = |owner: u64, name: &[u8]| [words(&[owner]), string(name)].concat();
        let function = session.ask(Op::GetFunction as u16, &named(module, b"double"))[0];
        let kernel = session.ask(Op::GetKernel as u16, &named(library, b"double"))[0];
        Belongings {
            stream: made(session, "cuStreamCreate", &[1]),
            event: event(session, 0),
            shared_event: event(session, INTERPROCESS),
            module,
            function,
            library,
            kernel,
            block: session.ask(Op::Alloc as u16, &words(&[64 << 10]))[0],
            reserved: session.ask(Op::Reserve as u16, &words(&[2 * GRANULE, 0, 0]))[0],
            physical: session.ask(Op::Create as u16, &words(&[GRANULE, 32, 1, 1, 0, 0, 0]))[0],
            stale,
        }
    }

    fn handle(&self, c_type: &str) -> u64 {
        match c_type {
            "CUstream" => self.stream,
            "CUevent" => self.event,
            "CUmodule" => self.module,
            "CUfunction" => self.function,
            "CUlibrary" => self.library,
            "CUkernel" => self.kernel,
            "CUmemGenericAllocationHandle" => self.physical,
            _ => 0,
        }
    }

    /// Something that does not belong where it is put.
    /// A gentle one stays within what the field can hold, so that the message is read to its end.
    fn intruder(&self, dice: &mut Dice, honest: u64, gentle: bool) -> u64 {
        if gentle && honest <= u64::from(u32::MAX) {
            let near = dice.pick(&[0, 1, 2, 3, 8, 32, 64, 1023, 1024, 1025, 4096, 65_535, 65_536, 1 << 20, 1 << 30]);
            return dice.pick(&[near, near, near, u64::from(u32::MAX) - near, u64::from(u32::MAX)]);
        }
        let forged = Handle::from_word(self.stream).map_or(0, |handle| {
            let generation = handle.generation.wrapping_add(dice.below(3) as u16);
            let index = handle.index.wrapping_add(dice.below(100_000) as u32);
            Handle { generation, index, ..handle }.to_word()
        });
        let own = [self.stream, self.event, self.module, self.function, self.library, self.kernel, self.physical];
        match dice.below(8) {
            0 => dice.pick(&own),
            1 => self.stale,
            2 => forged,
            3 => honest.wrapping_add(dice.pick(&[1, 8, 16, u64::MAX, 1 << 32])),
            4 => self.block + dice.pick(&[0, 1, 65_535, 65_536, 1 << 30]),
            5 => self.reserved + dice.pick(&[0, GRANULE, 2 * GRANULE]),
            _ => dice.boundary(),
        }
    }
}

/// One right message of each operation, as words.
fn corpus(b: &Belongings) -> Vec<(u16, Vec<u64>)> {
    let text = |owner: u64, name: &[u8]| [vec![owner], to_words(&string(name))].concat();
    let launch = vec![b.function, b.stream, 1, 1, 1, 32, 1, 1, 0, 0, 0, 16, b.block, 32];
    let mut shaped = vec![200, 0, 0, 0, 0, 2, 0, b.block, 0, 0, 64, 4];
    shaped.extend([0, 0, 0, 0, 2, 0, b.block + 4096, 0, 0, 64, 4, 32, 4, 2, b.stream]);
    let ours: Vec<(Op, Vec<u64>)> = vec![
        (Op::ContextRetain, vec![0]),
        (Op::EventCreate, vec![INTERPROCESS]),
        (Op::SharedRecord, vec![b.shared_event, b.stream]),
        (Op::SharedWait, vec![b.shared_event, b.stream]),
        (Op::SharedQuery, vec![b.shared_event, 0]),
        (Op::EventExport, vec![b.shared_event]),
        (Op::EventImport, vec![1, 2]),
        (Op::Export, vec![b.block, 64 << 10, 0]),
        (Op::Import, vec![1, 2, 0]),
        (Op::CloseImport, vec![b.block]),
        (Op::PhysicalExport, vec![b.physical]),
        (Op::PhysicalImport, vec![1, 2]),
        (Op::ContextRelease, vec![0]),
        (Op::ContextReset, vec![0]),
        (Op::ContextSetFlags, vec![0, 0]),
        (Op::ContextCreate, vec![0, 0]),
        (Op::ContextDestroy, vec![b.stream]),
        (Op::Synchronize, vec![0]),
        (Op::ContextId, vec![]),
        (Op::TpcMap, vec![]),
        (Op::ImagePart, vec![0, 1, 2]),
        (Op::ModuleLoad, vec![0]),
        (Op::LibraryLoad, vec![0]),
        (Op::ImageLoad, vec![0]),
        (Op::GetFunction, text(b.module, b"sum")),
        (Op::GetKernel, text(b.library, b"sum")),
        (Op::KernelFunction, vec![b.kernel]),
        (Op::LibraryModule, vec![b.library]),
        (Op::ModuleFunctions, vec![b.module]),
        (Op::LibraryKernels, vec![b.library]),
        (Op::GetGlobal, text(b.module, b"answer")),
        (Op::SetFunctionAttribute, vec![b.function, 8, 1024, 0]),
        (Op::Launch, launch),
        (Op::ClusterOccupancy, vec![b.function, 1, 1, 1, 32, 1, 1, 0, 0, 0]),
        (Op::Alloc, vec![4096]),
        (Op::Free, vec![b.block]),
        (Op::MemInfo, vec![]),
        (Op::HostUnmap, vec![cuda_abi::plan::HOST_BASE, 4096]),
        (Op::FreeAsync, vec![b.block, b.stream]),
        (Op::CopyInline, vec![b.block, b.stream, 1, 2, 3]),
        (Op::CopyFromStaging, vec![b.block, 0, 4096, b.stream, 0, 1]),
        (Op::CopyToStaging, vec![b.block, 4096, 4096, b.stream, 1, 1]),
        (Op::CopyAsync, vec![b.block, b.block + 8192, 4096, b.stream]),
        (Op::CopySync, vec![b.block, b.block + 8192, 4096, b.stream]),
        (Op::Copy3dAsync, shaped.clone()),
        (Op::Copy3dSync, shaped),
        (Op::TakeError, vec![]),
        (Op::Describe, vec![b.function]),
        (Op::Reserve, vec![GRANULE, 0, 0]),
        (Op::Unreserve, vec![b.reserved, 2 * GRANULE]),
        (Op::Create, vec![GRANULE, 32, 1, 1, 0, 0, 0]),
        (Op::Release, vec![b.physical]),
        (Op::Map, vec![b.reserved, GRANULE, 0, b.physical, 0]),
        (Op::Unmap, vec![b.reserved, GRANULE]),
        (Op::SetAccess, vec![b.reserved, GRANULE, 1, 12, 1, 3]),
        (Op::GetAccess, vec![b.block, 8, 1]),
        (Op::Granularity, vec![32, 1, 1, 0, 0, 0]),
        (Op::Properties, vec![b.physical]),
        (Op::Retain, vec![b.reserved]),
    ];
    let mut all: Vec<(u16, Vec<u64>)> = ours.into_iter().map(|(op, words)| (op as u16, words)).collect();
    for (op, function) in table::functions().iter().enumerate() {
        // Waiting for a value that never comes stops the stream, as it should.
        let waits = function.symbol.starts_with("cuStreamWaitValue");
        if waits || !matches!(function.carry, Carry::Post | Carry::Call | Carry::Block) {
            continue;
        }
        let arguments = function.args.iter().flat_map(|arg| match &arg.role {
            Role::Handle | Role::Close => vec![b.handle(&arg.inner)],
            Role::Span { .. } => vec![b.block],
            Role::Value | Role::Out { optional: true } => vec![1],
            Role::In | Role::InOut => {
                let bytes = struct_bytes(&arg.inner);
                [vec![bytes], vec![0; bytes as usize / 8]].concat()
            }
            Role::InArray { .. } => vec![0],
            Role::Str => to_words(&string(b"name")),
            Role::Out { .. } | Role::OutArray { .. } | Role::Any { .. } | Role::Versioned => vec![],
        });
        all.push((op as u16, arguments.collect()));
    }
    all
}

fn struct_bytes(c_type: &str) -> u64 {
    match c_type {
        "CUDA_ARRAY_DESCRIPTOR" => 24,
        "CUDA_ARRAY3D_DESCRIPTOR" => 40,
        "CUtensorMap" => 128,
        _ => 64,
    }
}

/// Functions whose fields are narrower than a word of 32 bits, or whose lengths depend on each other: a wrong value is
/// seldom read as a value at all.
fn is_fragile(op: u16) -> bool {
    let narrow = |arg: &table::Arg| {
        matches!(arg.inner.as_str(), "u8" | "u16")
            || matches!(arg.role, Role::In | Role::InOut | Role::InArray { .. })
    };
    ENDING.iter().any(|ending| *ending as u16 == op)
        || table::functions().get(usize::from(op)).is_some_and(|function| function.args.iter().any(narrow))
}

fn to_words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// Does this word say how long something in the message is? Then any other value breaks the message.
fn is_length(op: u16, at: usize) -> bool {
    let lengths: &[usize] = match Op::from_code(op) {
        Some(Op::GetFunction | Op::GetKernel | Op::GetGlobal) => &[1, 2],
        Some(Op::Launch) => &[10, 11],
        Some(Op::ClusterOccupancy) => &[8],
        Some(Op::Copy3dAsync | Op::Copy3dSync | Op::Granularity) => &[0],
        Some(Op::Create | Op::GetAccess) => &[1],
        Some(Op::SetAccess) => &[2, 3],
        _ => &[],
    };
    lengths.contains(&at)
}

/// Mutates until so many sessions are used up.
pub fn attack(dice: &mut Dice, sessions: u64) -> Tally {
    let mut tally = Tally::default();
    let mut worst: Option<String> = None;
    while tally.sessions < sessions {
        let mut session = Session::start();
        let belongings = Belongings::gather(&mut session);
        let mut corpus = corpus(&belongings);
        // Only every fourth session sends what ends it at once.
        let gentle = !tally.sessions.is_multiple_of(4);
        if gentle {
            corpus.retain(|(op, _)| !is_fragile(*op));
        }
        tally.sessions += 1;
        for _ in 0..400 {
            let (op, mut message) = corpus[dice.below(corpus.len())].clone();
            for _ in 0..1 + dice.below(2) {
                if !message.is_empty() {
                    let at = dice.below(message.len());
                    if gentle && is_length(op, at) {
                        continue;
                    }
                    message[at] = belongings.intruder(dice, message[at], gentle);
                }
            }
            let mut payload = words(&message);
            match dice.below(40) {
                _ if gentle => {}
                0 => payload.extend([0; 8]),
                1 => payload.truncate(dice.below(payload.len() + 1)),
                _ => {}
            }
            tally.messages += 1;
            let back = match dice.below(4) {
                0 => {
                    session.post(op, 1, &payload);
                    continue;
                }
                1 => session.block(op, 1, &payload),
                _ => session.call(op, dice.pick(&[1, 1, 1, 1, 1, 1, 0, 2, 70]), &payload),
            };
            match back {
                Back::Answer { .. } => tally.answered += 1,
                Back::Nothing => {
                    tally.stuck += 1;
                    worst = Some(format!("{} {message:x?}", name_of(op)));
                    break;
                }
                Back::Ended => {
                    tally.ended += 1;
                    break;
                }
            }
        }
    }
    if let Some(worst) = worst {
        println!("mutations: the last message without an answer was {worst}");
    }
    tally
}
