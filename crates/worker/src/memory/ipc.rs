//! Device memory that is shared with other workers, by descriptors that the broker passes on.
//!
//! A block is exported with the whole mapping that it lies in. That is the block alone if it is large; small ones bring
//! their neighbours along, as natively, which the broker keeps within the zone. An import is a mapping of its own, of
//! which the client may name the piece that was exported, and nothing else.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, mpsc};

use cuda_abi::constants::access;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::plan::DEVICE_GRANULE;
use cuda_abi::types::*;

use super::device::{ACCESS_READ_WRITE, HANDLE_POSIX_DESCRIPTOR, Home, LOCATION_DEVICE, NotBacked};
use super::vmm::Physical;
use super::{Memory, State};
use crate::{Refusal, succeed};
use control::link::{Imported, NotShared};
use control::messages::{Shared, Token, shared, shared_flags};

const INVALID: Refusal = Refusal::Code(CUDA_ERROR_INVALID_VALUE);

/// Something of this worker's that others may open.
#[derive(Clone, Copy)]
pub(super) struct Exported {
    pub(super) token: Token,
    /// The broker that knows of it.
    epoch: u64,
}

/// Something of another worker's, mapped here.
pub(super) struct Import {
    token: Token,
    base: u64,
    size: u64,
    len: u64,
    context: u32,
}

/// Tidies up after imports, so that nobody waits for it: what a mapping keeps alive needs neither its handle nor its
/// descriptor any more, and giving those back takes the driver as long as much of the import itself.
#[derive(Default)]
pub(super) struct Importing {
    left_over: Option<mpsc::Sender<(u64, OwnedFd)>>,
}

impl Importing {
    fn leave(&mut self, driver: &Arc<Driver>, physical: u64, file: OwnedFd) {
        let left_over = self.left_over.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel();
            let driver = driver.clone();
            let tidy = move || receiver.iter().for_each(|(physical, file)| give_back(&driver, physical, file));
            // Without the thread the receiver is gone, and what is left comes back to us.
            let _ = std::thread::Builder::new().name("imports".into()).spawn(tidy);
            sender
        });
        if let Err(mpsc::SendError((physical, file))) = left_over.send((physical, file)) {
            give_back(driver, physical, file);
        }
    }
}

fn give_back(driver: &Driver, physical: u64, file: OwnedFd) {
    // SAFETY: a handle of ours, which nobody else knows.
    unsafe { (driver.cuMemRelease)(physical) };
    drop(file);
}

impl From<NotShared> for Refusal {
    fn from(why: NotShared) -> Self {
        Refusal::Code(match why {
            NotShared::Unknown => CUDA_ERROR_INVALID_VALUE,
            // As natively.
            NotShared::Own => CUDA_ERROR_INVALID_CONTEXT,
            NotShared::Denied => CUDA_ERROR_NOT_PERMITTED,
            NotShared::OverLimit | NotShared::TooMany => CUDA_ERROR_OUT_OF_MEMORY,
            NotShared::NoBroker => CUDA_ERROR_SYSTEM_NOT_READY,
        })
    }
}

/// Exports under way, by number, and what of: a block that is freed meanwhile, and perhaps another one at its address by then, is not
/// the one whose memory was described.
#[derive(Default)]
pub(super) struct Exporting {
    last: u64,
    addresses: HashMap<u64, u64>,
}

impl Exporting {
    fn begin(&mut self, address: u64) -> u64 {
        self.last += 1;
        self.addresses.insert(self.last, address);
        self.last
    }

    /// The block at an address goes.
    fn spoil(&mut self, address: u64) {
        self.addresses.retain(|_, of| *of != address);
    }

    /// Whether the block was there all the time.
    fn end(&mut self, number: u64) -> bool {
        self.addresses.remove(&number).is_some()
    }
}

impl Memory {
    /// Offers a block to others; answers with its token, the same one as before if there is one.
    pub(crate) fn export(&self, address: u64, len: u64, kind: u64) -> Result<Token, Refusal> {
        let epoch = self.ledger.epoch();
        let (home, number) = {
            let mut state = self.state();
            if let Some(known) = state.exports.get(&address).filter(|known| known.epoch == epoch) {
                return Ok(known.token);
            }
            let home = Self::home_of(&state, address).filter(|home| len > 0 && len <= home.room).ok_or(INVALID)?;
            // From here on others may map it, also when the broker is gone that knew of it: it stays where it is.
            if let Some(backed) = state.backed.get_mut(&home.base) {
                backed.is_shared = true;
            }
            softgpu::sanitizer::shared(home.base, home.size);
            (home, state.exporting.begin(address))
        };
        let offered = self.offer(&home, address, len, kind);
        let mut state = self.state();
        let freed = !state.exporting.end(number);
        let token = offered?;
        let first = state.exports.get(&address).filter(|known| known.epoch == epoch).map(|known| known.token);
        if freed || first.is_some() {
            drop(state);
            self.ledger.withdraw(token);
            return first.filter(|_| !freed).ok_or(INVALID);
        }
        state.exports.insert(address, Exported { token, epoch });
        Ok(token)
    }

    /// Has the broker keep a descriptor of the memory that a block is in.
    fn offer(&self, home: &Home, address: u64, len: u64, kind: u64) -> Result<Token, Refusal> {
        let Home { device, base, size, has_neighbours, .. } = *home;
        let file = self.descriptor_of(base)?;
        let flags = if has_neighbours { shared_flags::HAS_NEIGHBOURS } else { 0 };
        let details = Shared { kind, size, offset: address - base, len, flags };
        Ok(self.ledger.export(self.gpu(device), details, Token::default(), Some(borrow(&file)))?)
    }

    /// Takes a block that is being freed back from those who might still open it.
    pub(super) fn withdraw(&self, address: u64) {
        let gone = {
            let mut state = self.state();
            state.exporting.spoil(address);
            state.exports.remove(&address)
        };
        if let Some(gone) = gone {
            self.ledger.withdraw(gone.token);
        }
    }

    /// A descriptor of the physical memory that is mapped at an address.
    fn descriptor_of(&self, base: u64) -> Result<OwnedFd, Refusal> {
        let mut physical = 0;
        // SAFETY: a mapping of ours, which nobody unmaps: the client is the one that would have to free it. If it does
        // so meanwhile, the driver finds no memory at this address.
        unsafe {
            succeed((self.driver.cuMemRetainAllocationHandle)(&mut physical, base as *mut c_void))?;
            let file = self.describe(physical);
            (self.driver.cuMemRelease)(physical);
            file
        }
    }

    fn describe(&self, physical: u64) -> Result<OwnedFd, Refusal> {
        let mut file = -1i32;
        let kind = HANDLE_POSIX_DESCRIPTOR;
        // SAFETY: for this kind of handle the driver writes a descriptor, which is ours from then on.
        unsafe {
            let out = (&raw mut file).cast::<c_void>();
            succeed((self.driver.cuMemExportToShareableHandle)(out, physical, kind, 0))?;
            Ok(OwnedFd::from_raw_fd(file))
        }
    }

    fn undescribe(&self, file: &OwnedFd) -> Result<u64, Refusal> {
        let mut physical = 0;
        let number = file.as_raw_fd() as usize as *mut c_void;
        // SAFETY: an open descriptor, which the driver checks.
        succeed(unsafe {
            (self.driver.cuMemImportFromShareableHandle)(&mut physical, number, HANDLE_POSIX_DESCRIPTOR)
        })?;
        Ok(physical)
    }

    /// Maps what a token stands for; answers with its address and length. What is open already has one address.
    pub(crate) fn import(&self, token: Token, kind: u64, device: i32, context: u32) -> Result<(u64, u64), Refusal> {
        let mut importing = self.importing.lock();
        if let Some((start, known)) = self.state().imports.iter().find(|(_, known)| known.token == token) {
            return Ok((*start, known.len));
        }
        let imported = self.ledger.import(token, kind)?;
        let Shared { size, offset, len, flags, .. } = imported.details;
        let mapped = self.map_import(&imported, size, device, flags);
        let (base, physical) = mapped.inspect_err(|_| self.ledger.close_import(token))?;
        importing.leave(&self.driver, physical, imported.fd);
        let start = base + offset;
        let mut state = self.state();
        state.mapped.insert(start, len);
        state.imports.insert(start, Import { token, base, size, len, context });
        Ok((start, len))
    }

    /// Answers with the address, and the handle that is left over.
    fn map_import(&self, imported: &Imported, size: u64, device: i32, flags: u64) -> Result<(u64, u64), Refusal> {
        if size == 0 || !size.is_multiple_of(DEVICE_GRANULE) {
            return Err(INVALID);
        }
        let physical = self.undescribe(&imported.fd)?;
        if !self.is_of(physical, imported.gpu) {
            // SAFETY: a handle of ours, which nothing uses.
            unsafe { (self.driver.cuMemRelease)(physical) };
            return Err(INVALID);
        }
        let address = self.state().space.take(size, DEVICE_GRANULE);
        let read_only = flags & shared_flags::READ_ONLY != 0;
        let location = CUmemLocation { kind: LOCATION_DEVICE, id: device };
        let access = CUmemAccessDesc { location, flags: if read_only { access::READ } else { ACCESS_READ_WRITE } };
        // SAFETY: the range is ours and free; the struct lives across the calls.
        let mapped = unsafe {
            address.ok_or(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY).into()).and_then(|address| {
                succeed((self.driver.cuMemMap)(address, size as usize, 0, physical, 0))?;
                succeed((self.driver.cuMemSetAccess)(address, size as usize, &access, 1)).map_err(|why| {
                    let unmapped = (self.driver.cuMemUnmap)(address, size as usize);
                    NotBacked { why, stays: unmapped != CUDA_SUCCESS }
                })?;
                Ok((address, physical))
            })
        };
        mapped.map_err(|NotBacked { why, stays }| {
            // SAFETY: a handle of ours, which nothing uses.
            unsafe { (self.driver.cuMemRelease)(physical) };
            if let Some(address) = address.filter(|_| !stays) {
                self.state().space.give(address, size);
            }
            why
        })
    }

    /// Whether physical memory is that of a GPU. Who exports it says so, and this zone pays for it there.
    fn is_of(&self, physical: u64, gpu: u32) -> bool {
        let mut properties = CUmemAllocationProp::default();
        // SAFETY: a handle of ours; the output is a local.
        let told = unsafe { (self.driver.cuMemGetAllocationPropertiesFromHandle)(&mut properties, physical) };
        told != CUDA_SUCCESS || !self.gpus.knows_origins() || self.gpu(properties.location.id) == gpu
    }

    /// Does an address lie in memory of another worker?
    pub(crate) fn is_imported(&self, address: u64) -> bool {
        let state = self.state();
        let before = state.imports.range(..=address).next_back();
        before.is_some_and(|(start, import)| address - start < import.len)
    }

    /// Unmaps what `import` mapped. The caller has waited for all work that may use it.
    pub(crate) fn close_import(&self, start: u64) -> Result<(), Refusal> {
        let import = {
            let mut state = self.state();
            let import = state.imports.get(&start).ok_or(INVALID)?;
            // SAFETY: exactly this range was mapped by `import`.
            succeed(unsafe { (self.driver.cuMemUnmap)(import.base, import.size as usize) })?;
            forget(&mut state, start)
        };
        if let Some(import) = import {
            self.ledger.close_import(import.token);
        }
        Ok(())
    }

    /// Closes what was opened in a context that is being retired.
    pub(super) fn close_imports(&self, context: u32) {
        let gone: Vec<u64> = {
            let state = self.state();
            let mine = state.imports.iter().filter(|(_, import)| import.context == context);
            mine.map(|(start, _)| *start).collect()
        };
        for start in gone {
            let _ = self.close_import(start);
        }
    }

    /// Offers the client's own physical memory to others.
    pub(crate) fn export_physical(&self, physical: u64) -> Result<Token, Refusal> {
        let epoch = self.ledger.epoch();
        let (size, gpu, handle, known, foreign) = {
            let state = self.state();
            let entry = state.physical.get(&physical).ok_or(INVALID)?;
            let known = entry.exported.filter(|known| known.epoch == epoch).map(|known| known.token);
            // What came from another worker is that worker's to give, under the token that it came with.
            (entry.len, entry.gpu, entry.handle, known, entry.imported)
        };
        if let Some(token) = known.or(foreign) {
            return Ok(token);
        }
        let file = self.describe(handle)?;
        let details = Shared { kind: shared::PHYSICAL, size, offset: 0, len: size, flags: 0 };
        let token = self.ledger.export(gpu, details, Token::default(), Some(borrow(&file)))?;
        let old = match self.state().physical.get_mut(&physical) {
            Some(entry) => entry.exported.replace(Exported { token, epoch }),
            None => Some(Exported { token, epoch }),
        };
        if let Some(old) = old.filter(|old| old.epoch == epoch) {
            self.ledger.withdraw(old.token);
        }
        Ok(token)
    }

    /// A handle to what a token stands for: the same one as before, if there is one.
    pub(crate) fn import_physical(&self, token: Token) -> Result<u64, Refusal> {
        let _importing = self.importing.lock();
        {
            let mut state = self.state();
            let mut entries = state.physical.iter_mut();
            let same = |entry: &Physical| {
                entry.imported == Some(token) || entry.exported.is_some_and(|exported| exported.token == token)
            };
            if let Some((physical, entry)) = entries.find(|(_, entry)| same(entry) && entry.handles > 0) {
                entry.handles += 1;
                return Ok(*physical);
            }
        }
        let imported = self.ledger.import(token, shared::PHYSICAL)?;
        let physical = self.undescribe(&imported.fd).inspect_err(|_| self.ledger.close_import(token))?;
        if !self.is_of(physical, imported.gpu) {
            // SAFETY: a handle of ours, which nothing uses.
            unsafe { (self.driver.cuMemRelease)(physical) };
            self.ledger.close_import(token);
            return Err(INVALID);
        }
        let mut entry = Physical::new(physical, imported.gpu, imported.details.size);
        entry.imported = Some(token);
        entry.read_only = imported.details.flags & shared_flags::READ_ONLY != 0;
        Ok(self.state().enter_physical(entry))
    }
}

fn forget(state: &mut State, start: u64) -> Option<Import> {
    let import = state.imports.remove(&start)?;
    state.mapped.remove(&start);
    state.space.give(import.base, import.size);
    Some(import)
}

fn borrow(file: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a broker would keep is the memory of the block that is gone, and nobody would pay for it.
    #[test]
    fn a_block_that_is_freed_while_it_is_exported_is_not() {
        let mut exporting = Exporting::default();
        let numbers = [0x1000, 0x1000, 0x2000].map(|address| exporting.begin(address));
        exporting.spoil(0x1000);
        // Another block lies there by now.
        let next = exporting.begin(0x1000);
        assert_eq!(numbers.map(|number| exporting.end(number)), [false, false, true]);
        assert!(exporting.end(next) && !exporting.end(next));
    }
    /// While the driver describes the memory, another thread frees the block and gets another one at its address.
    #[test]
    fn an_export_is_of_the_block_that_was_there_when_it_began() {
        use std::cell::RefCell;
        use std::sync::atomic::{AtomicU8, Ordering};

        use control::BrokerLink;
        use control::messages::{ToWorker, code, to_broker, to_worker};

        type Meanwhile = Box<dyn FnOnce()>;
        thread_local! {
            static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
        }

        unsafe extern "C" fn retain(_: *mut u64, _: *mut c_void) -> CUresult {
            CUDA_SUCCESS
        }

        unsafe extern "C" fn describe(file: *mut c_void, _: u64, _: u32, _: u64) -> CUresult {
            let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            // SAFETY: the caller's output, for a descriptor.
            unsafe { *file.cast::<i32>() = std::os::fd::IntoRawFd::into_raw_fd(memory) };
            MEANWHILE.take().into_iter().for_each(|meanwhile| meanwhile());
            CUDA_SUCCESS
        }

        const LEN: u64 = 4 << 20;
        let tokens = Arc::new(AtomicU8::new(0));
        let given = tokens.clone();
        let link = BrokerLink::in_process(Box::new(move |message| {
            let mut answer = ToWorker::new(to_worker::REPLY);
            if message.kind == to_broker::EXPORT {
                let number = given.fetch_add(1, Ordering::Relaxed) + 1;
                (answer.code, answer.token) = (code::GRANTED, [number; 16]);
            }
            (answer, Vec::new())
        }));
        let mut driver = crate::test_driver::driver();
        driver.cuMemRetainAllocationHandle = retain;
        driver.cuMemExportToShareableHandle = describe;
        let backend = control::backend::Backend::Nvidia { library: "".into(), devices: Vec::new() };
        let gpus = Arc::new(crate::Gpus::new(&backend, Vec::new()));
        let memory = Arc::new(Memory::new(Arc::new(driver), gpus, Arc::new(link)));

        let address = memory.allocate(0, 1, LEN).unwrap();
        let other = memory.clone();
        MEANWHILE.set(Some(Box::new(move || {
            let again = move || {
                other.free(address, 1, || Ok(())).unwrap();
                other.allocate(0, 1, LEN).unwrap()
            };
            assert_eq!(std::thread::spawn(again).join().unwrap(), address);
        })));
        assert_eq!(memory.export(address, LEN, shared::MEMORY), Err(INVALID));
        assert!(memory.state().exports.is_empty(), "the new block is not exported");
        assert_eq!(memory.export(address, LEN, shared::MEMORY), Ok([2; 16]));
        assert_eq!(memory.export(address, LEN, shared::MEMORY), Ok([2; 16]), "and once");
    }
}
