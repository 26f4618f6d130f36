//! The opaque handles of one client: index, generation and kind, each checked on every use.
//!
//! A handle belongs to the context it was made in, and functions to the module or library they came from: when the owner
//! goes, its handles go first, so that a stale one can never reach the driver.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cuda_abi::error::*;
use cuda_abi::wire::{Handle, Kind};

use super::Refusal;

/// How many handles a client may hold. Natively memory is the limit; this keeps a flood within some hundred MiB.
const MOST_HANDLES: usize = 1 << 20;

/// Where the parameters of a function lie in the block that a launch brings.
#[derive(Debug)]
pub struct Parameters {
    pub offsets: Vec<u32>,
    pub bytes: u32,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub kind: Kind,
    /// The driver's pointer or number.
    pub raw: u64,
    /// Index of the context it lives in; 0 for what needs none.
    pub context: u32,
    /// Index of the module or library it came from; 0 for none.
    pub parent: u32,
    /// For functions and kernels.
    pub parameters: Option<Arc<Parameters>>,
}

#[derive(Default)]
struct Entry {
    generation: u16,
    object: Option<Object>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The driver answers some questions (a library's module, a kernel's function) with the same object each time.
    known: HashMap<(Kind, u64), u32>,
}

pub struct Handles(RwLock<Inner>);

impl Handles {
    /// The first slots are the devices' primary contexts, at index 1 + device: clients know them before they exist.
    pub fn new(devices: u32) -> Handles {
        let mut entries: Vec<Entry> = Vec::new();
        entries.resize_with(1 + devices as usize, || Entry { generation: 1, object: None });
        Handles(RwLock::new(Inner { entries, ..Inner::default() }))
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is there room for one more? Asked before the driver makes something that would need a handle.
    pub fn room(&self) -> Result<(), Refusal> {
        let inner = self.read();
        if inner.entries.len() - inner.free.len() < MOST_HANDLES {
            Ok(())
        } else {
            Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))
        }
    }

    pub fn get(&self, word: u64) -> Result<Object, Refusal> {
        let found = Handle::from_word(word).and_then(|handle| {
            let inner = self.read();
            let entry = inner.entries.get(handle.index as usize)?;
            entry
                .object
                .as_ref()
                .filter(|object| object.kind == handle.kind && entry.generation == handle.generation)
                .cloned()
        });
        found.ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))
    }

    /// The driver's object behind a handle of this kind. The default streams are numbers, not handles; and where the
    /// driver takes a function it takes a kernel as well.
    pub fn raw(&self, kind: Kind, word: u64) -> Result<u64, Refusal> {
        if kind == Kind::Stream && word <= 1 {
            return Ok(word);
        }
        let object = self.get(word)?;
        if object.kind == kind || (kind == Kind::Function && object.kind == Kind::Kernel) {
            Ok(object.raw)
        } else {
            Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))
        }
    }

    /// A handle for an object of the driver's: the one it has, or a new one.
    pub fn open(&self, kind: Kind, raw: u64, context: u32, parent: u32) -> Result<u64, Refusal> {
        self.open_object(Object { kind, raw, context, parent, parameters: None })
    }

    pub fn open_object(&self, object: Object) -> Result<u64, Refusal> {
        let mut inner = self.write();
        let kind = object.kind;
        if let Some(&index) = inner.known.get(&(kind, object.raw)) {
            let entry = &mut inner.entries[index as usize];
            entry.object = Some(object);
            return Ok(Handle { kind, generation: entry.generation, index }.to_word());
        }
        let index = match inner.free.pop() {
            Some(index) => index,
            None if inner.entries.len() >= MOST_HANDLES => return Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)),
            None => {
                inner.entries.push(Entry { generation: 1, object: None });
                inner.entries.len() as u32 - 1
            }
        };
        inner.known.insert((kind, object.raw), index);
        let entry = &mut inner.entries[index as usize];
        entry.object = Some(object);
        Ok(Handle { kind, generation: entry.generation, index }.to_word())
    }

    pub fn close(&self, word: u64) {
        let Some(handle) = Handle::from_word(word) else { return };
        let mut inner = self.write();
        inner.remove(handle.index);
        if matches!(handle.kind, Kind::Module | Kind::Library) {
            inner.remove_where(|object| object.parent == handle.index);
        }
    }

    /// Fills or empties the slot of a device's primary context.
    pub fn set_primary(&self, device: u32, raw: Option<u64>) {
        let mut inner = self.write();
        let object = raw.map(|raw| Object { kind: Kind::Context, raw, context: 0, parent: 0, parameters: None });
        if let Some(entry) = inner.entries.get_mut(1 + device as usize) {
            entry.object = object;
        }
    }

    /// The driver's context at an index, as messages name it.
    pub fn context(&self, index: u32) -> Option<u64> {
        let inner = self.read();
        let object = inner.entries.get(index as usize)?.object.as_ref()?;
        (object.kind == Kind::Context).then_some(object.raw)
    }

    /// Takes out everything that lives in a context.
    pub fn drain_context(&self, index: u32) -> Vec<Object> {
        self.write().remove_where(|object| object.context == index && object.kind != Kind::Context)
    }
}

impl Inner {
    fn remove(&mut self, index: u32) -> Option<Object> {
        let entry = self.entries.get_mut(index as usize)?;
        let object = entry.object.take()?;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.known.remove(&(object.kind, object.raw));
        self.free.push(index);
        Some(object)
    }

    fn remove_where(&mut self, gone: impl Fn(&Object) -> bool) -> Vec<Object> {
        let indices: Vec<u32> = (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.object.as_ref().is_some_and(&gone))
            .map(|(index, _)| index)
            .collect();
        indices.into_iter().filter_map(|index| self.remove(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_foreign_and_wrong_kind_handles_are_refused() {
        let handles = Handles::new(1);
        let event = handles.open(Kind::Event, 0x1000, 1, 0).unwrap();
        assert_eq!(handles.raw(Kind::Event, event).unwrap(), 0x1000);
        assert!(handles.raw(Kind::Stream, event).is_err());
        handles.close(event);
        assert!(handles.raw(Kind::Event, event).is_err());
        let reused = handles.open(Kind::Event, 0x2000, 1, 0).unwrap();
        assert_ne!(event, reused);
        assert!(handles.raw(Kind::Event, event).is_err());
        for word in [0, 2, 3, 0xdead_beef, u64::MAX, event ^ (1 << 48), reused + 16, reused + (1 << 32)] {
            assert!(handles.raw(Kind::Event, word).is_err(), "{word:#x}");
        }
    }

    #[test]
    fn a_module_takes_its_functions_along() {
        let handles = Handles::new(1);
        let module = handles.open(Kind::Module, 1, 1, 0).unwrap();
        let parent = Handle::from_word(module).unwrap().index;
        let function = handles.open(Kind::Function, 2, 1, parent).unwrap();
        assert_eq!(handles.open(Kind::Function, 2, 1, parent).unwrap(), function);
        handles.close(module);
        assert!(handles.raw(Kind::Function, function).is_err());
    }

    #[test]
    fn primary_contexts_have_fixed_places() {
        let handles = Handles::new(2);
        assert_eq!(handles.context(1), None);
        handles.set_primary(0, Some(7));
        assert_eq!(handles.context(1), Some(7));
        let word = Handle { kind: Kind::Context, generation: 1, index: 1 }.to_word();
        assert_eq!(handles.raw(Kind::Context, word).unwrap(), 7);
        assert_eq!(handles.context(2), None);
        assert_eq!(handles.context(99), None);
    }

    #[test]
    fn a_flood_ends_in_out_of_memory() {
        let handles = Handles::new(1);
        for raw in 0..MOST_HANDLES as u64 - 2 {
            handles.open(Kind::Event, raw + 1, 1, 0).unwrap();
        }
        assert!(handles.room().is_err());
        assert!(handles.open(Kind::Event, u64::MAX, 1, 0).is_err());
    }
}
