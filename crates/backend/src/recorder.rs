//! Records what a driver library asks of NVIDIA's kernel driver, as far as preemption needs it: its clients, and the
//! channels that it makes below them.
//!
//! The program exports a function `ioctl` of its own, which the library finds before the C library's, as every symbol of a
//! program goes before those of the libraries that it loads. It makes the call as it is, and reads the arguments of those
//! that allocate and free. No call of a launch or a copy passes here: work is given to a GPU through memory.
//!
//! What is recorded is a worker's word, and used as such: whoever acts on it has the kernel driver confirm each handle.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use preempt::rm::{Alloc, AllocWithRights, Class, Free, Object, escape};

use crate::calls;

/// As many objects as are kept: a library that makes more is not one that we know.
const MAX_OBJECTS: usize = 8192;
/// Where parameters of channel groups and channels say the engine.
const GROUP_ENGINE: usize = 12;
const CHANNEL_ENGINE: usize = 128;
/// The parameters are packed, not as the class has them.
const PACKED: u32 = 1;

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static RECORD: Mutex<Record> = Mutex::new(Record { objects: Vec::new(), numbers: Vec::new(), made: 0, round: 1 });
static CHANGED: Condvar = Condvar::new();

struct Record {
    objects: Vec<Object>,
    /// Of each object, in the order in which they were made.
    numbers: Vec<u64>,
    made: u64,
    round: u64,
}

/// Begins, before the library is loaded. False where its calls do not come through here.
pub fn start() -> bool {
    // SAFETY: looks a name up, and nothing else.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ioctl".as_ptr()) };
    let own = ioctl as unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
    let is_ours = found == own as *mut c_void;
    IS_RECORDING.store(is_ours, Ordering::Relaxed);
    is_ours
}

/// What the library has now: clients that have channel groups, and what lies below them.
pub fn recorded() -> Vec<Object> {
    of_interest(&RECORD.lock().objects)
}

/// How far somebody has heard what was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    round: u64,
    heard: u64,
}

impl Turn {
    /// Whether everything is told from the beginning, and not what came since.
    pub fn is_new_round(self, before: Self) -> bool {
        self.round != before.round || before == Self::default()
    }
}

/// Has everything told again.
pub fn tell_again() {
    RECORD.lock().round += 1;
    CHANGED.notify_all();
}

/// Waits for what is new since the last turn: objects of interest, or all of them in a new round.
pub fn wait(turn: Turn) -> (Turn, Vec<Object>) {
    let mut record = RECORD.lock();
    loop {
        let next = Turn { round: record.round, heard: record.made };
        if next.is_new_round(turn) {
            return (next, of_interest(&record.objects));
        }
        let interesting = of_interest(&record.objects);
        // A client is of interest from its first group on; it and what it had before is new then, too.
        let is_new = |object: &Object| {
            let first = record
                .objects
                .iter()
                .position(|other| other.client == object.client && other.kind() == Some(Class::ChannelGroup));
            let at = record.objects.iter().position(|other| other == object);
            let group = first.map_or(u64::MAX, |at| record.numbers[at]);
            at.is_some_and(|at| record.numbers[at].max(group) > turn.heard)
        };
        let new: Vec<Object> = interesting.into_iter().filter(is_new).collect();
        if !new.is_empty() {
            return (next, new);
        }
        CHANGED.wait(&mut record);
    }
}

fn of_interest(objects: &[Object]) -> Vec<Object> {
    let has_groups = |client: u32| {
        objects.iter().any(|object| object.client == client && object.kind() == Some(Class::ChannelGroup))
    };
    objects.iter().filter(|object| has_groups(object.client)).copied().collect()
}

/// Notes an object that was made.
fn note(mut object: Object) {
    let mut record = RECORD.lock();
    match object.kind() {
        None => return,
        Some(Class::Client) => (object.client, object.parent) = (object.handle, 0),
        Some(_) => {
            // Calls about it go through the file of its client, whichever this one came through.
            let is_client = |other: &&Object| other.handle == object.client && other.kind() == Some(Class::Client);
            let Some(client) = record.objects.iter().find(is_client) else { return };
            object.descriptor = client.descriptor;
        }
    }
    if record.objects.len() < MAX_OBJECTS {
        record.made += 1;
        let number = record.made;
        record.objects.push(object);
        record.numbers.push(number);
        CHANGED.notify_all();
    }
}

/// Forgets an object, and what lies below it.
fn forget(client: u32, handle: u32) {
    let mut gone = vec![handle];
    let record = &mut *RECORD.lock();
    while let Some(handle) = gone.pop() {
        let goes = |object: &Object| {
            object.client == client && (object.handle == handle || object.parent == handle || handle == client)
        };
        for at in (0..record.objects.len()).rev().filter(|at| goes(&record.objects[*at])).collect::<Vec<_>>() {
            let object = record.objects.remove(at);
            record.numbers.remove(at);
            if object.handle != handle {
                gone.push(object.handle);
            }
        }
    }
}

/// Reads what the arguments of a successful call say.
///
/// # Safety
/// `argument` points to the arguments of this request, which the kernel has just read and written.
unsafe fn record(descriptor: c_int, request: u32, argument: *const c_void) {
    // SAFETY: the caller's promise, for the struct that has this number and size; all are plain integers.
    unsafe {
        match escape::parts(request) {
            Some((escape::ALLOC, size)) if size == size_of::<Alloc>() => {
                let Alloc { client, parent, handle, class, parameters, size, status } =
                    argument.cast::<Alloc>().read();
                if status == 0 {
                    let engine = engine(class, parameters, size);
                    note(Object { client, parent, handle, class, engine, descriptor });
                }
            }
            Some((escape::ALLOC, size)) if size == size_of::<AllocWithRights>() => {
                let call = argument.cast::<AllocWithRights>().read();
                let AllocWithRights { client, parent, handle, class, .. } = call;
                if call.status == 0 {
                    let parameters = if call.flags & PACKED == 0 { call.parameters } else { 0 };
                    let engine = engine(class, parameters, call.size);
                    note(Object { client, parent, handle, class, engine, descriptor });
                }
            }
            Some((escape::FREE, size)) if size == size_of::<Free>() => {
                let call = argument.cast::<Free>().read();
                if call.status == 0 {
                    forget(call.client, call.handle);
                }
            }
            _ => {}
        }
    }
}

/// The engine that a channel group or channel is for, as its parameters say.
///
/// # Safety
/// The kernel has just read the parameters of an object of this class at this address. A size of 0 is that of the class.
unsafe fn engine(class: u32, parameters: u64, size: u32) -> u32 {
    let at = match Class::of(class) {
        Some(Class::ChannelGroup) => GROUP_ENGINE,
        Some(Class::Channel) => CHANNEL_ENGINE,
        _ => return 0,
    };
    if parameters == 0 || size != 0 && (size as usize) < at + 4 {
        return 0;
    }
    // SAFETY: the caller's promise; parameters of both classes are longer than this in all known drivers.
    unsafe { std::ptr::with_exposed_provenance::<u8>(parameters as usize).add(at).cast::<u32>().read_unaligned() }
}

/// In place of the C library's, for every library of the process.
///
/// # Safety
/// As that: the argument is what the request wants.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the call as it was made.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) } as c_int;
    if result == 0 && IS_RECORDING.load(Ordering::Relaxed) && !argument.is_null() {
        // The kernel looks at the low half.
        // SAFETY: the kernel has taken these arguments.
        unsafe { record(descriptor, request as u32, argument) };
    }
    if calls::is_on() {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        // SAFETY: the arguments of the call.
        unsafe { calls::add(descriptor, request as u32, argument, if result == -1 { errno } else { 0 }) };
        // SAFETY: this thread's own; the caller looks at it.
        unsafe { *libc::__errno_location() = errno };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(client: u32, parent: u32, handle: u32, class: u32, parameters: &[u32]) -> AllocWithRights {
        let address = parameters.as_ptr().expose_provenance() as u64;
        let size = size_of_val(parameters) as u32;
        AllocWithRights {
            client,
            parent,
            handle,
            class,
            parameters: if parameters.is_empty() { 0 } else { address },
            rights: 0,
            size,
            flags: 0,
            status: 0,
            padding: 0,
        }
    }

    fn call<T>(descriptor: c_int, number: u8, argument: &T) {
        let request = escape::request(number, size_of::<T>());
        // SAFETY: these are the arguments of that request.
        unsafe { record(descriptor, request, (&raw const *argument).cast()) };
    }

    /// One test, for there is one recorder.
    #[test]
    fn channels_are_recorded_and_forgotten() {
        call(5, escape::ALLOC, &alloc(0, 0, 0xc1, 0x41, &[]));
        call(9, escape::ALLOC, &alloc(0xc1, 0xc1, 0x80, 0x80, &[]));
        call(9, escape::ALLOC, &alloc(0xc1, 0x80, 2, 0x2080, &[]));
        assert!(recorded().is_empty(), "it has no channels");
        call(9, escape::ALLOC, &alloc(0xc1, 0x80, 3, 0xa06c, &[0, 0, 0, 1, 0]));
        call(9, escape::ALLOC, &AllocWithRights { status: 0x1b, ..alloc(0xc1, 0x80, 4, 0xa06c, &[]) });
        call(9, escape::ALLOC, &alloc(0xc1, 3, 7, 0xc86f, &[]));
        call(9, escape::ALLOC, &alloc(0xc2, 3, 8, 0xc86f, &[]));
        let handles: Vec<u32> = recorded().iter().map(|object| object.handle).collect();
        assert_eq!(handles, [0xc1, 2, 3, 7]);
        let group = recorded()[2];
        assert_eq!((group.engine, group.descriptor, group.parent), (1, 5, 0x80), "of the client's file");
        let (turn, all) = wait(Turn::default());
        assert_eq!((all, turn.is_new_round(Turn::default())), (recorded(), true));
        call(9, escape::ALLOC, &alloc(0xc1, 3, 9, 0xc86f, &[]));
        let (next, new) = wait(turn);
        assert_eq!((new, next.is_new_round(turn)), (recorded()[4..].to_vec(), false));
        tell_again();
        assert_eq!(wait(next).1, recorded());
        call(5, escape::ALLOC, &alloc(0, 0, 0xc5, 0x41, &[]));
        let turn = wait(next).0;
        call(9, escape::ALLOC, &alloc(0xc5, 0x80, 3, 0xa06c, &[0, 0, 0, 1, 0]));
        let handles: Vec<u32> = wait(turn).1.iter().map(|object| object.handle).collect();
        assert_eq!(handles, [0xc5, 3], "the client is of interest with its first group");
        call(9, escape::FREE, &Free { client: 0xc5, parent: 0, handle: 0xc5, status: 0 });
        call(9, escape::FREE, &Free { client: 0xc1, parent: 0x80, handle: 3, status: 0 });
        assert!(recorded().is_empty(), "the channel went with its group");
        call(9, escape::ALLOC, &alloc(0xc1, 0x80, 3, 0xa06c, &[0, 0, 0, 9, 0]));
        assert_eq!(recorded()[2].engine, 9);
        call(9, escape::FREE, &Free { client: 0xc1, parent: 0, handle: 0xc1, status: 0 });
        assert!(RECORD.lock().objects.is_empty());
    }
}
