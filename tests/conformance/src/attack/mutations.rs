//! Messages that are right but for one word: lengths, handles, addresses, counts, offsets.

use cuda_abi::constants::{event_flag, memory_type};
use cuda_abi::table::{self, Carry, Role};
use cuda_abi::types::*;
use cuda_abi::wire::ops::*;
use cuda_abi::wire::{Array, Handle, Op, Operation, Raw, Text, Typed, to_vec};

use super::session::{Back, Session, launch, name_of, words};
use super::{Dice, Tally};
use crate::calls::KERNELS;

const GRANULE: u64 = 2 << 20;
/// Operations in which a wrong number is no mistake that a program could make, so that it ends the client.
const ENDING: [Op; 5] = [Op::ModuleLoad, Op::LibraryLoad, Op::ImageLoad, Op::CopyFromStaging, Op::CopyToStaging];

/// Flags of an event between processes, which has no time.
const INTERPROCESS: u32 = event_flag::INTERPROCESS | event_flag::DISABLE_TIMING;

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
        let event = |session: &mut Session, flags| session.ask(&EventCreate { flags }, |reply| reply.event.0);
        let stale = event(session, 0);
        session.call_function("cuEventDestroy_v2", &[stale]);
        let image = KERNELS.as_bytes();
        let load = ModuleLoad { image: Upload::new(image.len() as u64) };
        let module = session.must_load(&load, image, |reply| reply.module.0);
        let load = LibraryLoad { image: Upload::new(image.len() as u64) };
        let library = session.must_load(&load, image, |reply| reply.library.0);
        let function = session.function(Typed(module), b"double");
        let get = GetKernel { library: Typed(library), name: Text(b"double") };
        let kernel = session.ask(&get, |reply| reply.handle.0);
        let create = Create { bytes: GRANULE, properties: pinned_on_device(), flags: 0 };
        Belongings {
            stream: session.call_function("cuStreamCreate", &[1])[0],
            event: event(session, 0),
            shared_event: event(session, INTERPROCESS),
            module,
            function,
            library,
            kernel,
            block: session.alloc(64 << 10),
            reserved: session.ask(&Reserve { bytes: 2 * GRANULE, alignment: 0, near: 0 }, |reply| reply.address),
            physical: session.ask(&create, |reply| reply.memory.0),
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

fn pinned_on_device() -> CUmemAllocationProp {
    let location = CUmemLocation { kind: 1, id: 0 };
    CUmemAllocationProp { kind: 1, location, ..Default::default() }
}

/// One right message of each operation, as words.
fn corpus(b: &Belongings) -> Vec<(u16, Vec<u64>)> {
    let mut all = Vec::new();
    ours(b, &mut all);
    graphs(b, &mut all);
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
            Role::Str => to_words(&to_vec(&Text::<8>(b"name"))),
            Role::Out { .. } | Role::OutArray { .. } | Role::Any { .. } | Role::Versioned => vec![],
        });
        all.push((op as u16, arguments.collect()));
    }
    all
}

/// A right message.
fn put<R: Operation>(all: &mut Vec<(u16, Vec<u64>)>, request: &R) {
    all.push((R::CODE, to_words(&to_vec(request))));
}

/// Of everything but graphs.
fn ours(b: &Belongings, all: &mut Vec<(u16, Vec<u64>)>) {
    let (stream, event, block) = (Typed(b.stream), Typed(b.shared_event), b.block);
    let (function, memory) = (Typed(b.function), Typed(b.physical));
    let token = [1, 2];
    put(all, &ContextRetain { device: 0 });
    put(all, &EventCreate { flags: INTERPROCESS });
    put(all, &SharedRecord { event, stream });
    put(all, &SharedWait { event, stream });
    put(all, &SharedQuery { event, number: 0 });
    put(all, &EventExport { event });
    put(all, &EventImport { token });
    put(all, &Export { address: block, bytes: 64 << 10, is_pooled: false });
    put(all, &Import { token, is_pooled: false });
    put(all, &CloseImport { address: block });
    put(all, &PhysicalExport { memory });
    put(all, &PhysicalImport { token });
    put(all, &ContextRelease { device: 0 });
    put(all, &ContextReset { device: 0 });
    put(all, &ContextSetFlags { device: 0, flags: 0 });
    put(all, &ContextCreate { flags: 0, device: 0 });
    put(all, &ContextDestroy { context: Typed(b.stream) });
    put(all, &Synchronize { context: None });
    put(all, &Synchronize { context: Some(Typed(b.stream)) });
    put(all, &SynchronizeStream { stream });
    put(all, &ContextId {});
    put(all, &TpcMap {});
    put(all, &ImagePart { lane: 0, part: Raw(&[1; 16]) });
    put(all, &ModuleLoad { image: Upload::new(0) });
    put(all, &LibraryLoad { image: Upload::new(0) });
    put(all, &ImageLoad { order: Upload::new(0) });
    put(all, &GetFunction { module: Typed(b.module), name: Text(b"sum") });
    put(all, &GetKernel { library: Typed(b.library), name: Text(b"sum") });
    put(all, &KernelFunction { kernel: Typed(b.kernel) });
    put(all, &LibraryModule { library: Typed(b.library) });
    put(all, &ModuleFunctions { module: Typed(b.module), skip: 0 });
    put(all, &LibraryKernels { library: Typed(b.library), skip: 0 });
    put(all, &GetGlobal { owner: Typed(b.module), name: Text(b"answer") });
    put(all, &SetFunctionAttribute { function, attribute: 8, value: 1024, device: 0 });
    put(all, &launch(b.function, b.stream, 1, 32, &words(&[block, 32])));
    let (grid, block_shape) = ([1; 3], [32, 1, 1]);
    let attributes = Array::new(&[]);
    let clusters =
        ClusterOccupancy { function, grid, block: block_shape, shared_bytes: 0, attributes, largest: false };
    put(all, &clusters);
    put(all, &Alloc { bytes: 4096, ahead: 0 });
    put(all, &Free { address: block });
    put(all, &MemInfo {});
    put(all, &HostUnmap { address: cuda_abi::plan::HOST_BASE, bytes: 4096 });
    put(all, &HostDrop { address: cuda_abi::plan::HOST_BASE, bytes: 4096 });
    put(all, &FreeAsync { address: block, stream });
    put(all, &CopyInline { destination: block, stream, bytes: Raw(&[1; 24]) });
    let done = Completion { word: 0, value: 1 };
    put(all, &CopyFromStaging { destination: block, offset: 0, bytes: 4096, stream, done });
    put(all, &CopyToStaging { source: block, offset: 4096, bytes: 4096, stream, done: Some(done) });
    put(all, &CopyAsync { destination: block, source: block + 8192, bytes: 4096, stream });
    put(all, &CopySync { destination: block, source: block + 8192, bytes: 4096, stream });
    put(all, &Copy3dAsync { copy: shaped(b), stream });
    put(all, &Copy3dSync { copy: shaped(b), stream });
    put(all, &TakeError {});
    put(all, &Describe { function });
    put(all, &Reserve { bytes: GRANULE, alignment: 0, near: 0 });
    put(all, &Unreserve { address: b.reserved, bytes: 2 * GRANULE });
    put(all, &Create { bytes: GRANULE, properties: pinned_on_device(), flags: 0 });
    put(all, &Release { memory });
    put(all, &Map { address: b.reserved, bytes: GRANULE, offset: 0, memory, flags: 0 });
    put(all, &Unmap { address: b.reserved, bytes: GRANULE });
    let access = [CUmemAccessDesc { location: CUmemLocation { kind: 1, id: 0 }, flags: 3 }];
    put(all, &SetAccess { address: b.reserved, bytes: GRANULE, access: Array::new(&access) });
    put(all, &GetAccess { address: block, location: CUmemLocation { kind: 1, id: 0 } });
    put(all, &Granularity { properties: pinned_on_device(), option: 0 });
    put(all, &Properties { memory });
    put(all, &Retain { address: b.reserved });
}

/// A copy between two places of the block.
fn shaped(b: &Belongings) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_memory_type: memory_type::DEVICE,
        src_device: b.block,
        src_pitch: 64,
        src_height: 4,
        dst_memory_type: memory_type::DEVICE,
        dst_device: b.block + 4096,
        dst_pitch: 64,
        dst_height: 4,
        width_in_bytes: 32,
        height: 4,
        depth: 2,
        ..Default::default()
    }
}

/// Of graphs, captures and objects.
fn graphs(b: &Belongings, all: &mut Vec<(u16, Vec<u64>)>) {
    // Nobody has a graph yet: what the first messages make may be guessed.
    let (graph, node, exec) = (Typed(b.stale), Typed(b.stale), Typed(b.stale));
    let (nodes, edges) = (Array::new(&[]), Array::new(&[]));
    put(all, &CaptureStatus { stream: Typed(b.stream) });
    put(all, &CaptureInfo { stream: Typed(b.stream) });
    put(all, &CaptureUpdate { stream: Typed(b.stream), flags: 0, nodes, edges });
    put(all, &GraphDestroy { graph });
    put(all, &GraphClone { graph });
    put(all, &GraphList { what: 0, of: Typed(b.stale), skip: 0 });
    put(all, &GraphDependencies { graph, add: true, from: nodes, to: nodes, edges });
    put(all, &GraphFindInClone { node, clone: graph });
    put(all, &GraphChild { node });
    put(all, &GraphKeep { holder: Typed(b.stream), id: 1 });
    let memset =
        NodeParams::Memset { destination: b.block, pitch: 0, value: 7, element_size: 4, width: 16, height: 1 };
    for params in [memset, NodeParams::Memcpy { copy: shaped(b) }, NodeParams::Empty {}] {
        put(all, &NodeAdd { graph, dependencies: nodes, edges, params });
        put(all, &NodeSet { node, params });
        put(all, &ExecNodeSet { exec, node, params });
    }
    put(all, &NodeGet { node });
    put(all, &NodeType { node });
    put(all, &NodeDestroy { node });
    put(all, &NodeAttribute { node, attribute: 2, value: CUkernelNodeAttrValue::default(), set: false });
    put(all, &ExecCreate { graph, flags: 0, upload: Some(Typed(b.stream)) });
    put(all, &ExecUpdate { exec, graph });
    put(all, &UserObjectCreate { destructor: 1, references: 1 });
    put(all, &UserObjectCount { object: Typed(b.stale), references: 1, graph: None, flags: 0, release: true });
    put(all, &ConditionalHandle { graph, value: 1, flags: 1 });
    let (texture, view) = (CUDA_TEXTURE_DESC::default(), Some(CUDA_RESOURCE_VIEW_DESC::default()));
    put(all, &ImageObjectCreate { is_surface: false, resource: CUDA_RESOURCE_DESC::default(), texture, view });
    put(all, &ImageObjectDestroy { is_surface: false, object: 1 });
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

/// Is it read to its end? What is not, ends the client; the definitions know.
fn is_read(op: u16, message: &[u64]) -> bool {
    Op::from_code(op).is_none_or(|op| (op.definition().request.again)(&words(message)).is_ok())
}

fn to_words(bytes: &[u8]) -> Vec<u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "a message of words");
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Mutates until so many sessions are used up.
pub(super) fn attack(dice: &mut Dice, sessions: u64) -> Tally {
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
                    let honest = message[at];
                    message[at] = belongings.intruder(dice, honest, gentle);
                    if gentle && !is_read(op, &message) {
                        message[at] = honest;
                    }
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
