//! What the witness remembers.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{LazyLock, Mutex, MutexGuard};

use cuda_abi::error::*;
use cuda_abi::wire::Kind;

/// How many GPUs there seem to be.
pub const DEVICES: i32 = 2;
/// Where variables of modules seem to lie, far from everything else.
pub const GLOBALS: u64 = 0x5800_0000_0000;
/// The driver's handles, which look like its pointers.
const FIRST: u64 = 0x5100_0000_0000;
const STEP: u64 = 64;

/// Handles are numbers that nobody chooses to collide.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// Something that a node of a graph needs: kind and value.
#[derive(Clone, Copy)]
pub(super) struct Used(pub Kind, pub u64);

/// Something of the driver's that is alive.
pub(super) struct Object {
    pub kind: Kind,
    pub parent: u64,
    pub children: Vec<u64>,
    /// References, of what is counted.
    pub count: u64,
    /// The kind of a node, the variable of a module, the device of a context, or bytes of memory.
    pub detail: u64,
    /// A graph that a capture or a node owns.
    pub borrowed: bool,
    /// What a graph keeps, and how often.
    pub keeps: Vec<(u64, u64)>,
    /// What a node, or an executable graph, uses whenever it runs.
    pub uses: Vec<Used>,
}

/// Everything there is. One for the process.
#[derive(Default)]
pub struct State {
    /// The function that is being called.
    pub(super) call: &'static str,
    /// How often any was.
    pub calls: u64,
    pub(super) objects: Map<u64, Object>,
    next: u64,
    /// What lies below is of a worker that is gone.
    first: u64,
    /// Values that were given up, if they are used again at once, as an allocator does.
    free: Option<Vec<u64>>,
    pub(super) mapped: BTreeMap<u64, (u64, u64)>,
    pub(super) registered: BTreeMap<u64, u64>,
    pub(super) globals: BTreeMap<u64, u64>,
    pub(super) named: Map<(u64, u64), u64>,
    /// By stream: the graph.
    pub(super) captures: Map<u64, u64>,
    pub(super) primaries: [u64; DEVICES as usize],
    pub(super) current: u64,
    /// Nodes as a question about a capture was answered, and graphs as a conditional node was.
    pub(super) answered: Vec<u64>,
    random: u64,
    /// One call of so many fails; none: all succeed.
    failing: Option<u64>,
    /// Functions of the client's that it has not been told of.
    pub(super) due: u64,
    /// Bytes of device memory that this worker had made.
    pub(super) bytes: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State { next: FIRST, ..State::default() }));

impl State {
    /// For a call of a function.
    pub(super) fn lock(call: &'static str) -> MutexGuard<'static, State> {
        let mut state = Self::look();
        state.call = call;
        state.calls += 1;
        state
    }

    /// For somebody who looks.
    pub fn look() -> MutexGuard<'static, State> {
        STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Forgets everything: the worker is gone. `seed` decides what fails, and whether handles are used again.
    pub fn begin(seed: u64) {
        let mut state = Self::look();
        let (next, calls) = (state.next, state.calls);
        let due = state.due;
        *state = State { next, calls, due, first: next, random: seed | 1, ..State::default() };
        state.free = (seed & 2 != 0).then(Vec::new);
        state.failing = (seed & 4 != 0).then_some(24);
    }

    /// Every call succeeds from now on, or as it was.
    pub fn set_failing(&mut self, one_of: Option<u64>) {
        self.failing = one_of;
    }

    /// What chance decides from here on.
    pub fn set_random(&mut self, word: u64) {
        self.random = word | 1;
    }

    /// Bytes of device memory that the worker had this driver make and that are not gone.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many functions of the client's wait to be told; one less from now on.
    pub fn take_due(&mut self) -> bool {
        let any = self.due > 0;
        self.due = self.due.saturating_sub(1);
        any
    }

    pub(super) fn chance(&mut self, one_of: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(one_of)
    }

    /// Why this call fails, if it does.
    pub(super) fn fails(&mut self) -> Option<CUresult> {
        const WAYS: [CUresult; 4] =
            [CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_ERROR_ILLEGAL_ADDRESS];
        let one_of = self.failing?;
        let way = self.chance(one_of).then(|| WAYS[(self.random >> 40) as usize % WAYS.len()]);
        // Nobody but who asks is told to ask again.
        way.filter(|way| *way != CUDA_ERROR_NOT_READY || self.call.contains("Query"))
    }

    /// Is it alive? None stands for objects of a worker that is gone: its threads may still tidy up.
    pub(super) fn object(&mut self, kind: Kind, value: u64) -> Option<&mut Object> {
        if (FIRST..self.first).contains(&value) {
            return None;
        }
        let call = self.call;
        match self.objects.get_mut(&value) {
            Some(object) if object.kind == kind => Some(object),
            Some(object) => panic!("{call}: {value:#x} is no {kind:?} but a {:?}", object.kind),
            None => panic!("{call}: {value:#x} is no {kind:?} that is alive"),
        }
    }

    /// An argument that must be alive.
    pub(super) fn uses(&mut self, kind: Kind, value: u64) {
        match kind {
            // The default streams are numbers; the driver answers for a context that is NULL.
            Kind::Stream if value <= 2 => {}
            Kind::Context if value == 0 => {}
            Kind::Function => {
                let found = self.objects.get(&value).map(|object| object.kind);
                self.object(if found == Some(Kind::Kernel) { Kind::Kernel } else { kind }, value);
            }
            _ => _ = self.object(kind, value),
        }
    }

    /// As many elements as are said must be there to be read.
    pub(super) fn reads<T>(&self, at: *const T, count: u64) {
        assert!(!at.is_null(), "{}: nothing to read", self.call);
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<T>()));
        let bytes = bytes.unwrap_or_else(|| panic!("{}: {count} elements", self.call));
        touch(at.cast(), bytes);
    }

    pub(super) fn reads_text(&self, text: *const c_char) {
        assert!(!text.is_null(), "{}: no text", self.call);
        // SAFETY: what the worker says is text that ends.
        let _ = unsafe { CStr::from_ptr(text) }.count_bytes();
    }

    /// A new object of the current context; none if there must be one and is not.
    pub(super) fn make(&mut self, kind: Kind) -> Option<u64> {
        let free = matches!(kind, Kind::Context | Kind::Library | Kind::Graph | Kind::UserObject | Kind::MemHandle);
        if !free && self.current == 0 {
            return None;
        }
        let parent = if free { 0 } else { self.current };
        Some(self.make_of(kind, parent, 0))
    }

    pub(super) fn make_of(&mut self, kind: Kind, parent: u64, detail: u64) -> u64 {
        let value = match self.free.as_mut().and_then(Vec::pop) {
            Some(value) => value,
            None => {
                self.next += STEP;
                self.next - STEP
            }
        };
        if let Some(parent) = self.objects.get_mut(&parent) {
            parent.children.push(value);
        }
        let (children, keeps, uses) = (Vec::new(), Vec::new(), Vec::new());
        let object = Object { kind, parent, children, count: 1, detail, borrowed: false, keeps, uses };
        assert!(self.objects.insert(value, object).is_none());
        value
    }

    /// An object that the worker gives back, and everything that goes with it.
    pub(super) fn ends(&mut self, kind: Kind, value: u64) {
        if self.object(kind, value).is_some() {
            self.remove(value);
        }
    }

    pub(super) fn remove(&mut self, value: u64) {
        let Some(object) = self.objects.remove(&value) else { return };
        if let Some(parent) = self.objects.get_mut(&object.parent) {
            parent.children.retain(|child| *child != value);
        }
        object.children.iter().for_each(|child| self.remove(*child));
        if object.kind == Kind::Stream {
            self.captures.remove(&value);
        }
        let captured = object.kind == Kind::Graph && self.captures.values().any(|graph| *graph == value);
        assert!(!captured, "{}: a graph that a stream is being captured into goes", self.call);
        if matches!(object.kind, Kind::Module | Kind::Library | Kind::Kernel) {
            self.named.retain(|(owner, _), _| *owner != value);
            if object.kind != Kind::Kernel && object.detail != 0 {
                self.globals.remove(&object.detail);
            }
        }
        let kept = object.keeps.iter().filter(|(_, count)| *count > 0);
        kept.for_each(|(kept, count)| self.release_user_object(*kept, *count));
        if let Some(free) = &mut self.free {
            free.push(value);
        }
    }
}

/// Reads the first and the last of so many bytes.
pub(super) fn touch(at: *const u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: what the worker says is readable; if it is not, that is what is looked for.
        unsafe {
            std::hint::black_box(at.read_volatile());
            std::hint::black_box(at.add(bytes - 1).read_volatile());
        }
    }
}
