//! The opaque handles of one client: index, generation and kind, each checked on every use.
//!
//! A user of an object holds a count of it. Closing a handle takes it out of the table at once, so that nobody finds it
//! any more, and the driver's object goes when the last user has let go: the threads of a client may race, and the
//! driver must never see a pointer that it has freed. A function holds its module, and a module its library; a graph
//! holds what its nodes use.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::wire::{Handle, Kind, Typed};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Refusal;
use super::events::SharedEvent;
use super::memory::Charge;
use super::ops::graph::budget::Nodes;
use super::state::current_context;
use super::turns::note_stream;

/// How many handles a client may hold. Natively memory is the limit; this keeps a flood within some hundred MiB.
const MOST_HANDLES: usize = 1 << 20;

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
    /// The module or library it came from; the graph of a node; the node of a graph inside another.
    pub parent: Option<Arc<Object>>,
    /// For functions and kernels.
    pub parameters: Option<Parameters>,
    /// What it costs the zone beside the memory that the client asked for.
    pub charge: OnceLock<Arc<Charge>>,
    /// What an event shares with other processes.
    pub shared: OnceLock<SharedEvent>,
    /// A graph that something else of the driver's owns: a capture that goes on, or a node.
    pub borrowed: AtomicBool,
    /// How many nodes a graph or an executable one has.
    pub nodes: Nodes,
    /// How many nodes one is, with those inside of it.
    pub weight: OnceLock<u64>,
    /// What a graph's nodes use, by serial number: functions and events must not go before it.
    held: Mutex<HashMap<u64, Arc<Object>>>,
    driver: Arc<Driver>,
    /// Closed by the client: the last user destroys it.
    doomed: AtomicBool,
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.doomed.load(Ordering::Acquire) {
            self.destroy();
        }
    }
}

impl Object {
    /// Keeps an object for as long as this one lives.
    pub(crate) fn hold(&self, object: &Arc<Object>) {
        self.held.lock().insert(object.serial, object.clone());
    }

    /// What this one keeps.
    pub(crate) fn held(&self) -> Vec<Arc<Object>> {
        self.held.lock().values().cloned().collect()
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
                Kind::Module if self.parent.is_none() => (self.driver.cuModuleUnload)(raw),
                Kind::Library => (self.driver.cuLibraryUnload)(raw),
                Kind::Array => (self.driver.cuArrayDestroy)(raw),
                Kind::MipmappedArray => (self.driver.cuMipmappedArrayDestroy)(raw),
                Kind::Context => (self.driver.cuCtxDestroy_v2)(raw),
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
        let default_streams = [0, 1].map(|number| object(&driver, Kind::Stream, number, 0, None, None));
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
        if kind == Kind::Stream {
            note_stream(word, current_context());
            if word <= 1 {
                return Ok(self.default_streams[word as usize].clone());
            }
        }
        let graph = matches!(kind, Kind::Graph | Kind::GraphExec | Kind::GraphNode | Kind::UserObject);
        // Natively a wrong graph is a wrong value.
        let wrong = Refusal::Code(if graph { CUDA_ERROR_INVALID_VALUE } else { CUDA_ERROR_INVALID_HANDLE });
        let object = self.get(word).map_err(|_| wrong)?;
        if object.kind == kind || (kind == Kind::Function && object.kind == Kind::Kernel) {
            Ok(object)
        } else {
            Err(wrong)
        }
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
        let (mut context, mut parent, mut charge) = (context, parent, None);
        let index = match inner.known.get(&(kind, raw)) {
            Some(&index) => {
                // The driver named an object that it has named before: it still belongs where it came from.
                if let Some(old) = &inner.entries[index as usize].object {
                    (context, parent) = (old.context, old.parent.clone().or(parent));
                    charge = old.charge.get().cloned();
                }
                index
            }
            None => match inner.free.pop() {
                Some(index) => index,
                None if inner.entries.len() >= MOST_HANDLES => return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)),
                None => {
                    inner.entries.push(Entry { generation: 1, object: None });
                    inner.entries.len() as u32 - 1
                }
            },
        };
        inner.known.insert((kind, raw), index);
        let entry = &mut inner.entries[index as usize];
        let object = object(&self.driver, kind, raw, context, parent, parameters);
        charge.map(|charge| object.charge.set(charge));
        entry.object = Some(object);
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
            if found.borrowed.load(Ordering::Acquire) {
                return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
            }
            let index = Handle::from_word(word).map_or(0, |handle| handle.index);
            let closed = inner.remove(index).ok_or(invalid)?;
            if matches!(kind, Kind::Module | Kind::Library | Kind::Graph | Kind::GraphNode) {
                gone = inner.remove_where(|object| comes_from(object, &closed));
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
            let gone = inner.remove_where(|object| comes_from(object, &closed));
            drop(inner);
            drop((gone, closed));
        }
    }

    /// Fills or empties the slot of a device's primary context.
    pub(crate) fn set_primary(&self, device: u32, raw: Option<u64>) {
        let context = raw.map(|raw| object(&self.driver, Kind::Context, raw, 0, None, None));
        if let Some(entry) = self.write().entries.get_mut(1 + device as usize) {
            entry.object = context;
        }
    }

    /// The context at an index, as messages name it.
    pub(crate) fn context(&self, index: u32) -> Option<Arc<Object>> {
        let inner = self.read();
        let object = inner.entries.get(index as usize)?.object.as_ref()?;
        (object.kind == Kind::Context).then(|| object.clone())
    }

    /// Closes everything that lives in a context.
    pub(crate) fn close_context(&self, index: u32) {
        let gone = self.write().remove_where(|object| object.context == index && object.kind != Kind::Context);
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
    context: u32,
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
        parent,
        parameters,
        charge,
        shared,
        borrowed,
        nodes: Nodes::default(),
        weight: OnceLock::new(),
        held,
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

/// Is `object` a function, module or kernel of `owner`, directly or not?
fn comes_from(object: &Object, owner: &Arc<Object>) -> bool {
    let mut parent = object.parent.as_ref();
    while let Some(next) = parent {
        if Arc::ptr_eq(next, owner) {
            return true;
        }
        parent = next.parent.as_ref();
    }
    false
}

impl Inner {
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
        self.free.push(index);
        Some(object)
    }

    fn remove_where(&mut self, gone: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let indices: Vec<u32> = (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.object.as_ref().is_some_and(|object| gone(object)))
            .map(|(index, _)| index)
            .collect();
        indices.into_iter().filter_map(|index| self.remove(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_pays_until_it_is_gone() {
        use control::BrokerLink;
        let (broker, worker) = control::packet::pair().unwrap();
        let link = Arc::new(BrokerLink::from_fd(worker));
        // Nothing is asked of the broker for nothing, and nothing is given back.
        let memory = crate::memory::Memory::new(Arc::new(Driver::missing()), link);
        let charge = memory.charge(0).unwrap();
        let handles = handles();
        let word = handles.open(Kind::Module, 0x1000, 1).unwrap();
        handles.pays(word, charge);
        let paying = Arc::downgrade(handles.get(word).unwrap().charge.get().unwrap());
        // The driver names the same object again.
        assert_eq!(handles.open(Kind::Module, 0x1000, 1), Ok(word));
        assert!(paying.upgrade().is_some());
        let user = handles.get(word).unwrap();
        handles.close_context(1);
        assert!(paying.upgrade().is_some(), "somebody still uses it");
        // The driver of this test is missing, so nobody may call it.
        user.doomed.store(false, Ordering::Release);
        drop(user);
        assert!(paying.upgrade().is_none());
        drop(broker);
    }

    fn handles() -> Handles {
        Handles::new(Arc::new(Driver::missing()), 2)
    }

    #[test]
    fn stale_foreign_and_wrong_kind_handles_are_refused() {
        let handles = handles();
        let event = handles.open(Kind::Event, 0x1000, 1).unwrap();
        assert_eq!(handles.pin(Kind::Event, event).unwrap().raw, 0x1000);
        assert!(handles.pin(Kind::Stream, event).is_err());
        assert!(handles.close(Kind::Stream, event).is_err());
        handles.close(Kind::Event, event).unwrap();
        assert!(handles.close(Kind::Event, event).is_err());
        assert!(handles.pin(Kind::Event, event).is_err());
        let reused = handles.open(Kind::Event, 0x2000, 1).unwrap();
        assert_ne!(event, reused);
        assert!(handles.pin(Kind::Event, event).is_err());
        for word in [0, 2, 3, 0xdead_beef, u64::MAX, event ^ (1 << 48), reused + 16, reused + (1 << 32)] {
            assert!(handles.pin(Kind::Event, word).is_err(), "{word:#x}");
        }
    }

    #[test]
    fn a_library_takes_its_module_and_the_modules_functions_along() {
        let handles = handles();
        let library = handles.open(Kind::Library, 1, 0).unwrap();
        let parent = handles.pin(Kind::Library, library).unwrap();
        let module = handles.open_child(Kind::Module, 2, 0, Some(parent), None).unwrap();
        let parent = handles.pin(Kind::Module, module).unwrap();
        let function = handles.open_child(Kind::Function, 3, 1, Some(parent.clone()), None).unwrap();
        assert_eq!(handles.open_child(Kind::Function, 3, 1, Some(parent), None).unwrap(), function);
        handles.close(Kind::Library, library).unwrap();
        assert!(handles.pin(Kind::Module, module).is_err());
        assert!(handles.pin(Kind::Function, function).is_err());
    }

    /// Counts what it destroys, in place of a driver.
    static DESTROYED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

    unsafe extern "C" fn count_destroyed(_: *mut c_void) -> CUresult {
        DESTROYED.fetch_add(1, Ordering::Relaxed);
        CUDA_SUCCESS
    }

    #[test]
    fn the_last_user_destroys_what_was_closed_and_only_once() {
        let driver = Driver { cuStreamDestroy_v2: count_destroyed, ..Driver::missing() };
        let handles = Handles::new(Arc::new(driver), 1);
        let stream = handles.open(Kind::Stream, 7, 1).unwrap();
        let user = handles.pin(Kind::Stream, stream).unwrap();
        assert_eq!(handles.close(Kind::Stream, stream), Ok(CUDA_SUCCESS));
        assert!(handles.pin(Kind::Stream, stream).is_err());
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 0);
        drop(user);
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 1);
        let stream = handles.open(Kind::Stream, 8, 1).unwrap();
        handles.close(Kind::Stream, stream).unwrap();
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_graph_takes_its_nodes_along_and_keeps_what_they_use() {
        let destroyed = || DESTROYED_GRAPHS.load(Ordering::Relaxed);
        let driver = Driver {
            cuGraphDestroy: count_destroyed_graphs,
            cuGraphDestroyNode: count_destroyed_graphs,
            ..Driver::missing()
        };
        let handles = Handles::new(Arc::new(driver), 1);
        let word = handles.open(Kind::Graph, 1, 1).unwrap();
        let graph = handles.pin(Kind::Graph, word).unwrap();
        let node = handles.open_child(Kind::GraphNode, 2, 1, Some(graph.clone()), None).unwrap();
        let inner = handles.open_child(Kind::Graph, 3, 1, handles.pin(Kind::GraphNode, node).ok(), None).unwrap();
        handles.pin(Kind::Graph, inner).unwrap().borrowed.store(true, Ordering::Release);
        let function = handles.open(Kind::Function, 4, 1).unwrap();
        let held = Arc::downgrade(&handles.pin(Kind::Function, function).unwrap());
        graph.hold(&handles.pin(Kind::Function, function).unwrap());
        drop(graph);
        assert_eq!(handles.close(Kind::Graph, inner), Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE)));
        handles.close(Kind::Function, function).unwrap();
        assert!(held.upgrade().is_some());
        handles.close(Kind::Graph, word).unwrap();
        assert_eq!(destroyed(), 1);
        assert!(held.upgrade().is_none());
        assert!(handles.pin(Kind::GraphNode, node).is_err() && handles.pin(Kind::Graph, inner).is_err());
        // A context takes its graphs along, each once.
        let word = handles.open(Kind::Graph, 1, 1).unwrap();
        let graph = handles.pin(Kind::Graph, word).unwrap();
        handles.open_child(Kind::GraphNode, 2, 1, Some(graph), None).unwrap();
        handles.close_context(1);
        assert_eq!(destroyed(), 2);
    }

    static DESTROYED_GRAPHS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

    unsafe extern "C" fn count_destroyed_graphs(_: *mut c_void) -> CUresult {
        DESTROYED_GRAPHS.fetch_add(1, Ordering::Relaxed);
        CUDA_SUCCESS
    }

    #[test]
    fn primary_contexts_have_fixed_places() {
        let handles = handles();
        assert!(handles.context(1).is_none());
        handles.set_primary(0, Some(7));
        assert_eq!(handles.context(1).unwrap().raw, 7);
        let word = Handle { kind: Kind::Context, generation: 1, index: 1 }.to_word();
        assert_eq!(handles.pin(Kind::Context, word).unwrap().raw, 7);
        assert!(handles.context(2).is_none());
        assert!(handles.context(99).is_none());
    }

    #[test]
    fn a_flood_ends_in_out_of_memory() {
        let handles = handles();
        for raw in 0..MOST_HANDLES as u64 - 3 {
            handles.open(Kind::Event, raw + 1, 1).unwrap();
        }
        assert!(handles.room().is_err());
        assert!(handles.open(Kind::Event, u64::MAX, 1).is_err());
    }
}
