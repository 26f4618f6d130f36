//! The opaque handles of one client: index, generation and kind, each checked on every use.
//!
//! A user of an object holds a count of it. Closing a handle takes it out of the table at once, so that nobody finds it
//! any more, and the driver's object goes when the last user has let go: the threads of a client may race, and the
//! driver must never see a pointer that it has freed. A function holds its module, and a module its library; a graph
//! holds what its nodes use.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::wire::{Handle, Kind, Typed};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Refusal;
use super::events::SharedEvent;
use super::memory::Charge;
use super::ops::graph::budget::Nodes;
use super::state::{MAX_DEVICES, current_context};
use super::turns::{may_submit, note_stream};

/// How many handles a client may hold. Natively memory is the limit; this keeps a flood within some hundred MiB.
const MOST_HANDLES: usize = 1 << 20;

/// Kinds from which others come: functions, nodes, levels and planes.
const HAVE_CHILDREN: [Kind; 6] =
    [Kind::Module, Kind::Library, Kind::Graph, Kind::GraphNode, Kind::Array, Kind::MipmappedArray];

/// Where the parameters of a function lie in the block that a launch brings.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub offsets: Vec<u32>,
    pub sizes: Vec<u32>,
    pub bytes: u32,
}

/// An object of the driver's.
pub(crate) struct Object {
    pub kind: Kind,
    /// The driver's pointer or number.
    pub raw: u64,
    /// Unlike the driver's pointers, never used again.
    pub serial: u64,
    /// Index of the context it lives in; 0 for what needs none.
    pub context: u32,
    /// That context, which the driver must not end while somebody may still name this.
    _home: Option<Arc<Object>>,
    /// The module or library it came from; the graph of a node; the node of a graph inside another.
    parent: OnceLock<Arc<Object>>,
    /// For functions and kernels, once the driver has told them.
    parameters: OnceLock<Parameters>,
    /// What it costs the zone beside the memory that the client asked for.
    pub charge: OnceLock<Arc<Charge>>,
    /// What an event shares with other processes.
    pub shared: OnceLock<SharedEvent>,
    /// A graph that something else of the driver's owns: a capture that goes on, or a node.
    pub borrowed: AtomicBool,
    /// How often it is [`Lent`].
    lent: AtomicU32,
    /// How many nodes a graph or an executable one has.
    pub nodes: Nodes,
    /// How many nodes one is, with those inside of it.
    pub weight: OnceLock<u64>,
    /// What a graph's nodes use, by serial number: functions and events must not go before it.
    held: Mutex<HashMap<u64, Arc<Object>>>,
    records: Records,
    driver: Arc<Driver>,
    /// Closed by the client: the last user destroys it.
    doomed: AtomicBool,
}

/// Of a stream: the event whose record was the last thing that the client had it do. Of an event: how often it was recorded.
#[derive(Default)]
struct Records {
    /// The event as the driver knows it, or 0, and its serial number.
    event: AtomicU64,
    serial: AtomicU64,
    /// Of the event, with that record. `BY_GRAPHS`: nobody knows.
    count: AtomicU64,
}

const BY_GRAPHS: u64 = u64::MAX;

/// An object that something of the driver's fills, such as a capture: it cannot be closed until this is gone.
pub(crate) struct Lent(Arc<Object>);

impl Lent {
    pub(crate) fn new(object: &Arc<Object>) -> Lent {
        object.lent.fetch_add(1, Ordering::AcqRel);
        Lent(object.clone())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.lent.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.doomed.load(Ordering::Acquire) {
            self.destroy();
        }
    }
}

impl Object {
    /// What it came from, and goes with.
    pub(crate) fn parent(&self) -> Option<&Arc<Object>> {
        self.parent.get()
    }

    /// Where the parameters of a function or kernel lie, if that is known.
    pub(crate) fn parameters(&self) -> Option<&Parameters> {
        self.parameters.get()
    }

    /// Keeps an object for as long as this one lives.
    pub(crate) fn hold(&self, object: &Arc<Object>) {
        self.held.lock().insert(object.serial, object.clone());
    }

    /// Keeps an object in place of what this one kept before.
    pub(crate) fn hold_only(&self, object: &Arc<Object>) {
        let before = std::mem::replace(&mut *self.held.lock(), HashMap::from([(object.serial, object.clone())]));
        // Outside the lock: destroying may take its time.
        drop(before);
    }

    /// What this one keeps.
    pub(crate) fn held(&self) -> Vec<Arc<Object>> {
        self.held.lock().values().cloned().collect()
    }

    /// Does a graph, or the one that it is a part of, keep something that lives in a context?
    fn uses_context(&self, index: u32) -> bool {
        matches!(self.kind, Kind::Graph | Kind::GraphExec | Kind::GraphNode)
            && (self.held.lock().values().any(|held| held.context == index)
                || self.parent().is_some_and(|parent| parent.uses_context(index)))
    }

    /// Takes note that an event was recorded on this stream.
    pub(crate) fn note_record(&self, event: &Object) {
        if event.records.count.load(Ordering::Relaxed) == BY_GRAPHS {
            return;
        }
        let count = event.records.count.fetch_add(1, Ordering::AcqRel) + 1;
        // A default stream is one in each context.
        if self.raw > 1 {
            self.records.serial.store(event.serial, Ordering::Relaxed);
            self.records.count.store(count, Ordering::Relaxed);
            self.records.event.store(event.raw, Ordering::Release);
        }
    }

    /// From now on graphs record this event, and nobody can tell its records apart.
    pub(crate) fn is_recorded_by_graphs(&self) {
        self.records.count.store(BY_GRAPHS, Ordering::Relaxed);
    }

    /// Keeps whatever another one keeps.
    pub(crate) fn hold_all_of(&self, other: &Object) {
        other.held().iter().for_each(|object| self.hold(object));
    }

    /// Does the driver's own object go with something else?
    fn belongs_to_another(&self) -> bool {
        self.kind == Kind::GraphNode || self.borrowed.load(Ordering::Acquire)
    }

    /// Ends the driver's object.
    fn destroy(&self) -> CUresult {
        let raw = self.raw as *mut c_void;
        // SAFETY: the object is out of the table and this is its last user, so it is destroyed once.
        unsafe {
            match self.kind {
                Kind::Stream => (self.driver.cuStreamDestroy_v2)(raw),
                Kind::Event => (self.driver.cuEventDestroy_v2)(raw),
                Kind::Module if self.parent().is_none() => (self.driver.cuModuleUnload)(raw),
                Kind::Library => (self.driver.cuLibraryUnload)(raw),
                Kind::Array if self.parent().is_none() => (self.driver.cuArrayDestroy)(raw),
                Kind::MipmappedArray => (self.driver.cuMipmappedArrayDestroy)(raw),
                Kind::Context => (self.driver.cuCtxDestroy_v2)(raw),
                Kind::TexRef if self.parent().is_none() => (self.driver.cuTexRefDestroy)(raw),
                Kind::Graph if !self.belongs_to_another() => (self.driver.cuGraphDestroy)(raw),
                Kind::GraphExec => (self.driver.cuGraphExecDestroy)(raw),
                Kind::GraphNode => (self.driver.cuGraphDestroyNode)(raw),
                // The others go with what they belong to, or are counted elsewhere.
                _ => CUDA_SUCCESS,
            }
        }
    }
}

#[derive(Default)]
struct Entry {
    generation: u16,
    object: Option<Arc<Object>>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The driver answers some questions (a library's module, a kernel's function) with the same object each time.
    known: HashMap<(Kind, u64), u32>,
    /// Where streams and contexts are.
    with_work: BTreeSet<u32>,
    /// Where what came from an object is, by that object's serial number: what goes with it is looked up, however many
    /// others there are.
    children: HashMap<u64, BTreeSet<u32>>,
}

pub(crate) struct Handles {
    inner: RwLock<Inner>,
    driver: Arc<Driver>,
    /// The NULL stream and the legacy stream, which are numbers and not handles.
    default_streams: [Arc<Object>; 2],
}

impl Handles {
    /// The first slots are the devices' primary contexts, at index 1 + device: clients know them before they exist.
    pub(crate) fn new(driver: Arc<Driver>, devices: u32) -> Handles {
        let mut entries: Vec<Entry> = Vec::new();
        entries.resize_with(1 + devices as usize, || Entry { generation: 1, object: None });
        let default_streams = [0, 1].map(|number| object(&driver, Kind::Stream, number, (0, None), None, None));
        Handles { inner: RwLock::new(Inner { entries, ..Inner::default() }), driver, default_streams }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }

    /// Is there room for one more? Asked before the driver makes something that would need a handle.
    pub(crate) fn room(&self) -> Result<(), Refusal> {
        let inner = self.read();
        if inner.entries.len() - inner.free.len() < MOST_HANDLES {
            Ok(())
        } else {
            Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))
        }
    }

    /// The object behind a handle, of whatever kind the handle says.
    pub(crate) fn get(&self, word: u64) -> Result<Arc<Object>, Refusal> {
        self.read().find(word).cloned().ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))
    }

    /// The object behind a handle of this kind. Where the driver takes a function it takes a kernel as well.
    pub(crate) fn pin(&self, kind: Kind, word: u64) -> Result<Arc<Object>, Refusal> {
        if kind == Kind::Stream && word <= 1 {
            note_stream(word, current_context());
            return Ok(self.default_streams[word as usize].clone());
        }
        let graph = matches!(kind, Kind::Graph | Kind::GraphExec | Kind::GraphNode | Kind::UserObject);
        // Natively a wrong graph is a wrong value.
        let wrong = Refusal::Code(if graph { CUDA_ERROR_INVALID_VALUE } else { CUDA_ERROR_INVALID_HANDLE });
        let object = self.get(word).map_err(|_| wrong)?;
        if kind == Kind::Stream {
            note_stream(word, object.context);
            object.records.event.store(0, Ordering::Relaxed);
            let device = || self.device_of(object.context);
            if object.context != current_context() && !may_submit(device()) {
                return Err(Refusal::OtherDevice(device()));
            }
        }
        if object.kind == kind || (kind == Kind::Function && object.kind == Kind::Kernel) {
            Ok(object)
        } else {
            Err(wrong)
        }
    }

    /// A stream that is only asked how far it is.
    pub(crate) fn pin_to_ask(&self, word: u64) -> Result<Arc<Object>, Refusal> {
        let last = self.stream(word).map_or(0, |stream| stream.records.event.load(Ordering::Acquire));
        let stream = self.pin(Kind::Stream, word)?;
        stream.records.event.store(last, Ordering::Release);
        Ok(stream)
    }

    /// Has a stream done all that the client had it do? The driver says that it has not while a word is to be written there
    /// that the worker wants to see. Where the client's last was to record an event, the event tells.
    pub(crate) fn has_done_the_clients(&self, stream: &Object) -> bool {
        let last = &stream.records;
        let (raw, serial) = (last.event.load(Ordering::Acquire), last.serial.load(Ordering::Relaxed));
        let event = self.known(Kind::Event, raw).filter(|_| raw != 0).and_then(|word| self.get(word).ok());
        event.is_some_and(|event| {
            event.serial == serial
                && event.records.count.load(Ordering::Acquire) == last.count.load(Ordering::Relaxed)
                // SAFETY: the event is held.
                && unsafe { (self.driver.cuEventQuery)(raw as *mut c_void) } == CUDA_SUCCESS
        })
    }

    /// A stream, for the worker's own purposes: nothing is noted.
    pub(crate) fn stream(&self, word: u64) -> Option<Arc<Object>> {
        match self.default_streams.get(usize::try_from(word).unwrap_or(usize::MAX)) {
            Some(stream) => Some(stream.clone()),
            None => self.get(word).ok().filter(|object| object.kind == Kind::Stream),
        }
    }

    /// All streams, each with its context: those of the client's and the default stream of each context.
    pub(crate) fn streams(&self) -> Vec<(u32, Arc<Object>)> {
        let inner = self.read();
        let of = |index: &u32| {
            let object = inner.entries.get(*index as usize)?.object.as_ref()?;
            Some(match object.kind {
                Kind::Context => (*index, self.default_streams[0].clone()),
                _ => (object.context, object.clone()),
            })
        };
        inner.with_work.iter().filter_map(of).collect()
    }

    /// The object that a message names, of a kind that its field admits.
    #[inline]
    pub(crate) fn find<const KINDS: u32>(&self, handle: Typed<KINDS>) -> Result<Arc<Object>, Refusal> {
        match Typed::<KINDS>::only_kind() {
            Some(kind) => self.pin(kind, handle.0),
            None => self
                .get(handle.0)
                .ok()
                .filter(|object| Typed::<KINDS>::admits(object.kind))
                .ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE)),
        }
    }

    /// The handle that an object of the driver's has.
    pub(crate) fn known(&self, kind: Kind, raw: u64) -> Option<u64> {
        let inner = self.read();
        let index = *inner.known.get(&(kind, raw))?;
        let generation = inner.entries.get(index as usize)?.generation;
        Some(Handle { kind, generation, index }.to_word())
    }

    /// Everything of a kind that lives in a context.
    pub(crate) fn all(&self, kind: Kind, context: u32) -> Vec<Arc<Object>> {
        let wanted = |object: &&Arc<Object>| object.kind == kind && object.context == context;
        self.read().entries.iter().filter_map(|entry| entry.object.as_ref()).filter(wanted).cloned().collect()
    }

    /// A handle for an object of the driver's: the one it has, or a new one.
    pub(crate) fn open(&self, kind: Kind, raw: u64, context: u32) -> Result<u64, Refusal> {
        self.open_child(kind, raw, context, None, None)
    }

    pub(crate) fn open_child(
        &self,
        kind: Kind,
        raw: u64,
        context: u32,
        parent: Option<Arc<Object>>,
        parameters: Option<Parameters>,
    ) -> Result<u64, Refusal> {
        let mut inner = self.write();
        if let Some((index, known)) = inner.known(kind, raw) {
            // The driver names an object that it has named before. It stays the one that others came from, that graphs
            // hold and that pays; what was not known of it may be by now.
            let adopted = parent.map(|parent| (parent.serial, known.parent.set(parent)));
            parameters.map(|parameters| known.parameters.set(parameters));
            if let Some((parent, Ok(()))) = adopted {
                inner.children.entry(parent).or_default().insert(index);
            }
            let generation = inner.entries[index as usize].generation;
            return Ok(Handle { kind, generation, index }.to_word());
        }
        let index = match inner.free.pop() {
            Some(index) => index,
            None if inner.entries.len() >= MOST_HANDLES => return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)),
            None => {
                inner.entries.push(Entry { generation: 1, object: None });
                inner.entries.len() as u32 - 1
            }
        };
        inner.known.insert((kind, raw), index);
        // It goes with what it came from: the context that is current now may be another one, and stay longer.
        let context = parent.as_ref().map(|parent| parent.context).filter(|own| *own != 0).unwrap_or(context);
        let home = inner.entries.get(context as usize).and_then(|entry| entry.object.clone());
        let home = home.filter(|home| home.kind == Kind::Context);
        if matches!(kind, Kind::Stream | Kind::Context) {
            inner.with_work.insert(index);
        }
        if let Some(parent) = &parent {
            inner.children.entry(parent.serial).or_default().insert(index);
        }
        let entry = &mut inner.entries[index as usize];
        entry.object = Some(object(&self.driver, kind, raw, (context, home), parent, parameters));
        Ok(Handle { kind, generation: entry.generation, index }.to_word())
    }

    /// Has an object pay for itself until it goes.
    pub(crate) fn pays(&self, word: u64, charge: Charge) {
        if let Ok(object) = self.get(word) {
            // One that pays already is the same object under the same handle: it costs no more than before.
            let _ = object.charge.set(Arc::new(charge));
        }
    }

    /// Closes a handle: nobody finds it any more, nor what came from it. Answers the objects that left the table; the
    /// driver's own go with their last users.
    pub(crate) fn close(&self, kind: Kind, word: u64) -> Result<CUresult, Refusal> {
        let mut gone = Vec::new();
        let closed = {
            let mut inner = self.write();
            let invalid = Refusal::Code(CUDA_ERROR_INVALID_HANDLE);
            let found = inner.find(word).filter(|object| object.kind == kind).ok_or(invalid)?;
            if found.borrowed.load(Ordering::Acquire) || found.lent.load(Ordering::Acquire) > 0 {
                return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
            }
            let index = Handle::from_word(word).map_or(0, |handle| handle.index);
            let closed = inner.remove(index).ok_or(invalid)?;
            if HAVE_CHILDREN.contains(&kind) {
                gone = inner.remove_what_came_from(&closed);
            }
            closed
        };
        // Outside the lock: destroying may take its time.
        drop(gone);
        Ok(doom(closed))
    }

    /// Takes a handle out, with what came from it, after the driver has ended the object by itself.
    pub(crate) fn forget(&self, word: u64) {
        let mut inner = self.write();
        let index = Handle::from_word(word).map_or(0, |handle| handle.index);
        if inner.find(word).is_some()
            && let Some(closed) = inner.remove(index)
        {
            let gone = inner.remove_what_came_from(&closed);
            drop(inner);
            drop((gone, closed));
        }
    }

    /// Fills or empties the slot of a device's primary context.
    pub(crate) fn set_primary(&self, device: u32, raw: Option<u64>) {
        let context = raw.map(|raw| object(&self.driver, Kind::Context, raw, (0, None), None, None));
        let mut inner = self.write();
        let is_there = context.is_some();
        if let Some(entry) = inner.entries.get_mut(1 + device as usize) {
            entry.object = context;
            match is_there {
                true => inner.with_work.insert(1 + device),
                false => inner.with_work.remove(&(1 + device)),
            };
        }
    }

    /// The context at an index, as messages name it.
    pub(crate) fn context(&self, index: u32) -> Option<Arc<Object>> {
        let inner = self.read();
        let object = inner.entries.get(index as usize)?.object.as_ref()?;
        (object.kind == Kind::Context).then(|| object.clone())
    }

    /// The indices of all contexts that there are.
    pub(crate) fn contexts(&self) -> Vec<u32> {
        let inner = self.read();
        let is_context = |object: &Arc<Object>| object.kind == Kind::Context;
        let found = (0..).zip(&inner.entries).filter(|(_, entry)| entry.object.as_ref().is_some_and(is_context));
        found.map(|(index, _)| index).collect()
    }

    /// The device of a context, by the index that messages name it with; the first one where there is none.
    #[inline]
    pub(crate) fn device_of(&self, context: u32) -> u32 {
        match context {
            0 => 0,
            1..=MAX_DEVICES => context - 1,
            // One that the client made is kept with its device's primary context.
            _ => self.context(context).map_or(0, |context| context.context.saturating_sub(1)),
        }
    }

    /// Closes everything that lives in a context, and graphs of others that use something of it.
    pub(crate) fn close_context(&self, index: u32) {
        let gone = self.write().remove_where(|object| {
            (object.context == index && object.kind != Kind::Context) || object.uses_context(index)
        });
        // Nodes first, and without ceremony: they go with their graphs.
        let (mut own, others): (Vec<_>, Vec<_>) = gone.into_iter().partition(|object| !object.belongs_to_another());
        drop(others);
        // Graphs before the functions and events that they hold.
        own.sort_by_key(|object| !matches!(object.kind, Kind::Graph | Kind::GraphExec));
        for object in own {
            doom(object);
        }
    }
}

fn object(
    driver: &Arc<Driver>,
    kind: Kind,
    raw: u64,
    (context, home): (u32, Option<Arc<Object>>),
    parent: Option<Arc<Object>>,
    parameters: Option<Parameters>,
) -> Arc<Object> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let (serial, doomed) = (NEXT.fetch_add(1, Ordering::Relaxed), AtomicBool::new(false));
    let (charge, shared, borrowed) = (OnceLock::new(), OnceLock::new(), AtomicBool::new(false));
    let (held, driver) = (Mutex::default(), driver.clone());
    Arc::new(Object {
        kind,
        raw,
        serial,
        context,
        _home: home,
        parent: parent.map_or_else(OnceLock::new, OnceLock::from),
        parameters: parameters.map_or_else(OnceLock::new, OnceLock::from),
        charge,
        shared,
        borrowed,
        lent: AtomicU32::new(0),
        nodes: Nodes::default(),
        weight: OnceLock::new(),
        held,
        records: Records::default(),
        driver,
        doomed,
    })
}

/// Destroys an object now, if nobody else uses it, and otherwise leaves that to its last user.
fn doom(object: Arc<Object>) -> CUresult {
    object.doomed.store(true, Ordering::Release);
    match Arc::into_inner(object) {
        Some(object) => {
            object.doomed.store(false, Ordering::Release);
            object.destroy()
        }
        None => CUDA_SUCCESS,
    }
}

impl Inner {
    /// The place of an object that has one, and the object.
    fn known(&self, kind: Kind, raw: u64) -> Option<(u32, &Object)> {
        let index = *self.known.get(&(kind, raw))?;
        Some((index, self.entries.get(index as usize)?.object.as_deref()?))
    }

    fn find(&self, word: u64) -> Option<&Arc<Object>> {
        let handle = Handle::from_word(word)?;
        let entry = self.entries.get(handle.index as usize)?;
        let object = entry.object.as_ref()?;
        (object.kind == handle.kind && entry.generation == handle.generation).then_some(object)
    }

    fn remove(&mut self, index: u32) -> Option<Arc<Object>> {
        let entry = self.entries.get_mut(index as usize)?;
        let object = entry.object.take()?;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.known.remove(&(object.kind, object.raw));
        self.with_work.remove(&index);
        if let Some(parent) = object.parent()
            && let Some(siblings) = self.children.get_mut(&parent.serial)
        {
            siblings.remove(&index);
            if siblings.is_empty() {
                self.children.remove(&parent.serial);
            }
        }
        self.free.push(index);
        Some(object)
    }

    /// Takes out functions, modules and kernels of an object, nodes of a graph and so on, direct ones and others.
    fn remove_what_came_from(&mut self, owner: &Object) -> Vec<Arc<Object>> {
        let (mut gone, mut owners) = (Vec::new(), vec![owner.serial]);
        while let Some(owner) = owners.pop() {
            for index in self.children.remove(&owner).unwrap_or_default() {
                if let Some(object) = self.remove(index) {
                    owners.push(object.serial);
                    gone.push(object);
                }
            }
        }
        gone
    }

    fn remove_where(&mut self, gone: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        #[cfg(test)]
        tests::LOOKED_AT.set(tests::LOOKED_AT.get() + self.entries.len());
        let indices: Vec<u32> = (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.object.as_ref().is_some_and(|object| gone(object)))
            .map(|(index, _)| index)
            .collect();
        indices.into_iter().filter_map(|index| self.remove(index)).collect()
    }
}

#[cfg(test)]
mod tests;
