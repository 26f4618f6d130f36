//! Makes messages: samples of every operation and function that there is, with what the client has learnt in the places
//! where it belongs, then spoilt.

use cuda_abi::table::{Arg, Function, Role};
use cuda_abi::types::{CUDA_MEMCPY3D, CUarray, c_void};
use cuda_abi::wire::ops::*;
use cuda_abi::wire::{self, Block, Field, Kind, Op, Operation, Raw, Source, TAG_FORBIDDEN, Text};

use super::Message;
use super::pools::{Pools, edge, length};
use super::random::Random;
use super::shapes::{Shape, Word, plain_functions};
use crate::witness::size_of_type;

/// An image that is whole.
const PTX: &[u8] = b".version 8.0\n.target sm_80\n.address_size 64\n";

/// Operations that end what their first word names.
const CLOSES: [Op; 9] = [
    Op::ContextDestroy,
    Op::Free,
    Op::FreeAsync,
    Op::Unreserve,
    Op::Release,
    Op::Unmap,
    Op::GraphDestroy,
    Op::NodeDestroy,
    Op::CloseImport,
];
/// After which nearly nothing is left: they come seldom.
const ENDS: [Op; 2] = [Op::ContextReset, Op::ContextRelease];

pub(super) struct Generator {
    pools: Pools,
    shapes: Vec<Shape>,
    functions: Vec<(u16, Function)>,
    /// What ends the object that its first word names.
    closes: Vec<u16>,
    /// What comes next, whatever chance says.
    planned: Vec<Message>,
    random: Vec<u8>,
}

fn message<R: Operation>(request: &R) -> Message {
    Message { op: R::CODE, tag: 1, posted: false, payload: wire::to_vec(request) }
}

impl Generator {
    pub(super) fn new() -> Self {
        let shapes = Op::ALL.iter().map(|op| Shape::of(*op)).collect();
        let (pools, planned, random) = (Pools::default(), Vec::new(), Vec::new());
        let functions = plain_functions();
        let closing = |function: &Function| matches!(function.args[..], [Arg { role: Role::Close, .. }]);
        let plain = functions.iter().filter(|(_, function)| closing(function)).map(|(op, _)| *op);
        let closes = CLOSES.iter().map(|op| *op as u16).chain(plain).collect();
        Self { pools, shapes, functions, closes, planned, random }
    }

    /// What an honest client begins with.
    pub(super) fn prologue(&mut self) -> Vec<Message> {
        let start = Message { tag: 0, ..message(&Start { variables: wire::List::new(&[]) }) };
        let mut messages = vec![start];
        messages.extend((0..2).map(|device| Message { tag: 0, ..message(&ContextRetain { device }) }));
        messages.push(message(&ContextCreate { flags: 0, device: 0 }));
        messages.extend([64, 4096, 3 << 20].map(|bytes| message(&Alloc { bytes, ahead: 0 })));
        messages.push(message(&Reserve { bytes: 8 << 20, alignment: 0, near: 0 }));
        for name in ["cuStreamCreate", "cuStreamCreate", "cuGraphCreate", "cuEventCreate"] {
            let function = self.functions.iter().find(|(_, function)| function.symbol == name);
            let flags = |op: &u16| Message { op: *op, tag: 1, posted: false, payload: vec![0; 8] };
            messages.extend(function.map(|(op, _)| flags(op)));
        }
        messages.push(message(&EventCreate { flags: 2 }));
        messages.push(message(&EventCreate { flags: 6 }));
        messages.extend(Self::image(false));
        messages.extend(Self::image(true));
        messages
    }

    /// An image, uploaded and loaded.
    fn image(library: bool) -> [Message; 2] {
        let part = message(&ImagePart { lane: 0, part: Raw(PTX) });
        let bytes = Upload::new(PTX.len() as u64);
        [part, if library { message(&LibraryLoad { image: bytes }) } else { message(&ModuleLoad { image: bytes }) }]
    }

    /// What a reply teaches.
    pub(super) fn learn(&mut self, message: &Message, succeeded: bool, reply: &[u8], random: &mut dyn Random) {
        self.pools.learn(reply);
        if succeeded && self.closes.contains(&message.op) && !random.once_in(8) {
            let first = message.payload.first_chunk().map(|word| u64::from_le_bytes(*word));
            first.into_iter().for_each(|word| self.pools.forget(word));
        }
    }

    pub(super) fn next(&mut self, random: &mut dyn Random) -> Message {
        if let Some(planned) = self.planned.pop() {
            return planned;
        }
        let mut message = match random.below(64) {
            0 => self.plan(random),
            1 => self.noise(random),
            2..8 => self.well_formed(random),
            8..24 => self.function(random),
            _ => self.operation(random),
        };
        message.tag = match random.below(16) {
            0 => 0,
            1 => 2,
            2..5 => self.pools.context(random),
            5 => edge(random) as u32,
            _ => 1,
        };
        if random.once_in(16) {
            message.tag |= TAG_FORBIDDEN;
        }
        message.posted = random.once_in(4);
        if random.once_in(6) {
            spoil(&mut message.payload, random);
        }
        message
    }

    /// Several messages that only lead somewhere together.
    fn plan(&mut self, random: &mut dyn Random) -> Message {
        match random.below(8) {
            0..3 => {
                let [part, load] = Self::image(random.once_in(2));
                self.planned.push(load);
                part
            }
            3 => {
                let module = wire::Typed(self.pools.handle(Kind::Module as u32, random));
                message(&GetFunction { module, name: name(random) })
            }
            4 => {
                let library = wire::Typed(self.pools.handle(Kind::Library as u32, random));
                message(&GetKernel { library, name: name(random) })
            }
            5 => {
                let owner = wire::Typed(self.pools.handle(Kind::Module as u32, random));
                message(&GetGlobal { owner, name: name(random) })
            }
            6 => {
                // Pinned memory is mapped in pages of a file, which costs system calls.
                if !random.once_in(64) {
                    return message(&MemInfo {});
                }
                let address = cuda_abi::plan::HOST_BASE + random.below(16) * 4096;
                self.pools.add_address(address);
                message(&HostMap { address, bytes: 4096 * (1 + random.below(2)) })
            }
            _ => message(&MemInfo {}),
        }
    }

    /// What only makes sense as a whole, and a sample hardly ever is: copies with a shape, launches with parameters.
    fn well_formed(&mut self, random: &mut dyn Random) -> Message {
        let stream = wire::Typed(self.pools.handle(Kind::Stream as u32, random));
        let kind = if random.once_in(2) { Kind::Function } else { Kind::Kernel };
        let function = wire::Typed(self.pools.handle(kind as u32, random));
        let bytes = [0; 24];
        let parameters = Block::Bytes(&bytes[..8 * random.below(4) as usize]);
        let (grid, block, shared_bytes) = ([1; 3], [1; 3], 0);
        let graph = wire::Typed(self.pools.handle(Kind::Graph as u32, random));
        let copy = self.copy(random);
        let node = |params| {
            let (dependencies, edges) = (wire::Array::new(&[]), wire::Array::new(&[]));
            message(&NodeAdd { graph, dependencies, edges, params })
        };
        match random.below(8) {
            0 => message(&Copy3dAsync { copy, stream }),
            1 => message(&Copy3dSync { copy, stream }),
            2 => node(NodeParams::Memcpy { copy }),
            3 | 4 => node(NodeParams::Kernel { function, grid, block, shared_bytes, parameters }),
            5 => {
                let event = wire::Typed(self.pools.handle(Kind::Event as u32, random));
                node(if random.once_in(2) {
                    NodeParams::EventRecord { event }
                } else {
                    NodeParams::EventWait { event }
                })
            }
            _ => {
                let (attributes, is_cooperative) = (wire::Array::new(&[]), random.once_in(8));
                message(&Launch {
                    function,
                    stream,
                    grid,
                    block,
                    shared_bytes,
                    is_cooperative,
                    attributes,
                    parameters,
                })
            }
        }
    }

    fn copy(&mut self, random: &mut dyn Random) -> CUDA_MEMCPY3D {
        let mut extent = |most: u64| if random.once_in(12) { length(random) } else { random.below(most) } as usize;
        let mut copy = CUDA_MEMCPY3D {
            width_in_bytes: extent(64),
            height: extent(4),
            depth: extent(3),
            src_x_in_bytes: extent(8),
            src_y: extent(2),
            src_z: extent(2),
            dst_x_in_bytes: extent(8),
            dst_y: extent(2),
            dst_z: extent(2),
            src_pitch: extent(64).wrapping_add(64),
            dst_pitch: extent(64).wrapping_add(64),
            src_height: extent(4).wrapping_add(4),
            dst_height: extent(4).wrapping_add(4),
            ..Default::default()
        };
        (copy.src_memory_type, copy.dst_memory_type) = (1 + random.below(3) as u32, 1 + random.below(3) as u32);
        (copy.src_device, copy.dst_device) = (self.pools.address(random), self.pools.address(random));
        copy.src_host = self.pools.address(random) as *const c_void;
        copy.dst_host = self.pools.address(random) as *mut c_void;
        copy.src_array = self.pools.handle(Kind::Array as u32, random) as CUarray;
        copy.dst_array = self.pools.handle(Kind::Array as u32, random) as CUarray;
        copy
    }

    fn noise(&mut self, random: &mut dyn Random) -> Message {
        let words = random.below(12) as usize;
        let payload = (0..words).flat_map(|_| self.guess(u32::MAX, random).to_le_bytes()).collect();
        let op = if random.once_in(2) { random.word() as u16 } else { 0xf000 | random.word() as u16 & 0xff };
        Message { op, tag: 1, posted: false, payload }
    }

    /// A word of whatever it may be; a handle is of one of these kinds.
    fn guess(&mut self, kinds: u32, random: &mut dyn Random) -> u64 {
        match random.below(16) {
            0..9 => self.handle(kinds, random),
            9..12 => self.pools.address(random),
            12 => self.pools.number(random),
            13 => edge(random),
            _ => length(random),
        }
    }

    fn handle(&mut self, kinds: u32, random: &mut dyn Random) -> u64 {
        let count = kinds.count_ones();
        if count == 0 {
            return self.pools.number(random);
        }
        let skip = random.below(count.into());
        let mut left = kinds;
        (0..skip).for_each(|_| left &= left - 1);
        self.pools.handle(left.trailing_zeros(), random)
    }

    fn operation(&mut self, random: &mut dyn Random) -> Message {
        let mut at = random.below(self.shapes.len() as u64) as usize;
        if ENDS.contains(&self.shapes[at].op) && !random.once_in(16) {
            at = random.below(self.shapes.len() as u64) as usize;
        }
        let op = self.shapes[at].op;
        self.random.clear();
        (0..24).for_each(|_| self.random.extend(random.word().to_le_bytes()));
        let mut payload = Vec::with_capacity(256);
        (op.definition().request.sample)(&mut Source::new(&self.random), &mut payload);
        let (kinds, fixed) = (self.shapes[at].kinds, self.shapes[at].words.len());
        for word_at in 0..(payload.len() / 8).min(64) {
            let place = word_at * 8..word_at * 8 + 8;
            let word = payload[place.clone()].try_into().map_or(0, u64::from_le_bytes);
            let what = self.shapes[at].words.get(word_at).copied().unwrap_or(Word::Other);
            let new = match what {
                _ if random.once_in(16) => continue,
                Word::Handle(kinds) => self.handle(kinds, random),
                Word::Address => self.pools.address(random),
                Word::Length => length(random),
                // Small numbers count something, or are choices, flags, devices.
                Word::Other if word_at < fixed && random.once_in(2) => random.below(4),
                Word::Other if word > u64::from(u32::MAX) => self.guess(kinds, random),
                Word::Other => continue,
            };
            payload[place].copy_from_slice(&new.to_le_bytes());
        }
        Message { op: op as u16, tag: 1, posted: false, payload }
    }

    fn function(&mut self, random: &mut dyn Random) -> Message {
        let at = random.below(self.functions.len() as u64) as usize;
        let (op, count) = (self.functions[at].0, random.below(4));
        let mut payload = Vec::with_capacity(256);
        for argument in 0..self.functions[at].1.args.len() {
            self.argument(at, argument, count, random, &mut payload);
        }
        Message { op, tag: 1, posted: false, payload }
    }

    fn argument(&mut self, function: usize, at: usize, count: u64, random: &mut dyn Random, payload: &mut Vec<u8>) {
        let Arg { role, inner, name } = &self.functions[function].1.args[at];
        let mut word = |word: u64| payload.extend(word.to_le_bytes());
        match role {
            Role::Handle | Role::Close => {
                word(Kind::of_c_type(inner).map_or(0, |kind| self.pools.handle(kind as u32, random)));
            }
            Role::Span { .. } => word(self.pools.address(random)),
            Role::Out { optional: true } => word(random.below(2)),
            Role::Out { .. } => {}
            Role::Value if name.starts_with("num_") || matches!(name.as_str(), "n" | "width" | "height") => {
                word(if random.once_in(8) { length(random) } else { count });
            }
            Role::Value if random.once_in(2) => word(random.below(4)),
            Role::Value if inner == "CUdeviceptr" => word(self.pools.address(random)),
            Role::Value => word(if random.once_in(2) { length(random) } else { random.word() & 0xffff_ffff }),
            Role::In | Role::InOut | Role::InArray { .. } => {
                let of_one = size_of_type(inner);
                let bytes = if matches!(role, Role::InArray { .. }) { of_one * count as usize } else { of_one };
                word(bytes as u64);
                let small = random.once_in(2);
                for _ in 0..bytes.div_ceil(8) {
                    word(if small { random.below(8) } else { random.word() });
                }
                // What pads it is zero.
                let pad = bytes.next_multiple_of(8) - bytes;
                let end = payload.len();
                payload[end - pad..].fill(0);
            }
            Role::Str => {
                let mut text = Vec::new();
                <Name as Field>::sample(&mut Source::new(&random.word().to_le_bytes()), &mut text);
                payload.extend(text);
            }
            Role::OutArray { .. } | Role::Any { .. } | Role::Versioned => {}
        }
    }
}

fn name(random: &mut dyn Random) -> Name<'static> {
    Text(["a", "b", "kernel", "x\u{1}"][random.below(4) as usize].as_bytes())
}

/// Changes a message as somebody would who looks for a hole.
fn spoil(payload: &mut Vec<u8>, random: &mut dyn Random) {
    let words = payload.len() / 8;
    match random.below(6) {
        0 => payload.truncate(random.below(payload.len() as u64 + 1) as usize),
        1 => payload.extend(random.word().to_le_bytes()),
        2 if !payload.is_empty() => {
            let at = random.below(payload.len() as u64) as usize;
            payload[at] ^= 1 << random.below(8);
        }
        _ if words > 0 => {
            let at = random.below(words as u64) as usize * 8;
            payload[at..at + 8].copy_from_slice(&edge(random).to_le_bytes());
        }
        _ => {}
    }
}
