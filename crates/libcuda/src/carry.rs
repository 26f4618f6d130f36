//! Sending messages: posted, called, or blocking. Generated code sends the table's calls from here; the protocol's own
//! operations go by way of [`crate::operation`].

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cuda_abi::error::*;
use cuda_abi::wire::ops::{ImagePart, Synchronize, TakeError};
use cuda_abi::wire::record::Way;
use cuda_abi::wire::{Field, Malformed, Operation, Raw, Reader, Writer, encode_into, error_word};
use idm::lane::{CallError, Lane};
use idm::ring::PostError;

use crate::context;
use crate::graph::capture;
use crate::operation;
use crate::output;
use crate::remembered::{self, Lasting};
use crate::session::{self, Session};
use crate::trace::{self, kept};

/// The longest message that is put together here; longer ones are cut up by those who send them.
const MAX_MESSAGE: usize = 60 << 10;

thread_local! {
    /// The lane of this thread and a buffer for its messages; given back when the thread ends.
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

pub(crate) struct Thread {
    pub lane: Lane,
    buffer: Vec<u8>,
}

impl Thread {
    /// Puts a message together in the buffer; answers its length.
    fn compose(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> CudaResult<usize> {
        let mut writer = Writer::new(&mut self.buffer);
        write(&mut writer);
        writer.finish().map_err(|_| CUDA_ERROR_INVALID_VALUE)
    }
}

fn call_error(error: CallError) -> CUresult {
    match error {
        CallError::Gone(_) => session::lost(),
        CallError::Exhausted(_) => CUDA_ERROR_OPERATING_SYSTEM,
        error => {
            eprintln!("bulkhead: {error}");
            CUDA_ERROR_UNKNOWN
        }
    }
}

fn post_error(error: PostError) -> CUresult {
    match error {
        PostError::Gone(_) => session::lost(),
        error => {
            eprintln!("bulkhead: {error}");
            CUDA_ERROR_UNKNOWN
        }
    }
}

/// A poisoned context answers every call with its fault.
#[inline]
pub(crate) fn check_fault(session: &Session) -> CudaResult {
    match session.client.status() {
        0 => Ok(()),
        fault => Err(fault),
    }
}

/// Reports an error of something posted earlier, if the worker has one: for calls that wait without asking the worker.
pub(crate) fn check_posted(session: &Session) -> CudaResult {
    let flags = session.client.flags();
    if flags.load(error_word(flags.count())) == 0 {
        return Ok(());
    }
    operation::call_in(session, 0, &TakeError {}, |()| ())
}

/// Works with this thread's lane. After the thread's own storage is gone (static destructors call the driver), a lane is
/// borrowed for the moment.
pub(crate) fn with_thread<T>(session: &Session, work: impl FnOnce(&mut Thread) -> CudaResult<T>) -> CudaResult<T> {
    let make = || -> CudaResult<Thread> {
        let lane = session.client.lane().map_err(call_error)?;
        Ok(Thread { lane, buffer: vec![0; MAX_MESSAGE] })
    };
    let mut work = Some(work);
    let done = THREAD.try_with(|thread| {
        let mut thread = thread.try_borrow_mut().ok()?;
        if thread.is_none() {
            match make() {
                Ok(made) => *thread = Some(made),
                Err(code) => return Some(Err(code)),
            }
        }
        Some((work.take()?)(thread.as_mut()?))
    });
    match (done, work) {
        (Ok(Some(result)), _) => result,
        (_, Some(work)) => work(&mut make()?),
        _ => Err(CUDA_ERROR_UNKNOWN),
    }
}

/// Posts a message that nobody waits for.
pub(crate) fn post(op: u16, write: impl FnOnce(&mut Writer<'_>)) -> CudaResult {
    let session = session::get()?;
    check_fault(session)?;
    let tag = capture::mark(context::current_tag()?);
    if capture::is_open() {
        return call_with(session, op, tag, write, |_| Ok(()));
    }
    if session.launch_blocking {
        call_with(session, op, tag, write, |_| Ok(()))?;
        return synchronize(session, tag);
    }
    post_in(session, op, tag, write)
}

/// Posts a message in a context that need not be this thread's own, whatever is being captured.
fn post_in(session: &Session, op: u16, tag: u32, write: impl FnOnce(&mut Writer<'_>)) -> CudaResult {
    with_thread(session, |thread| {
        let len = thread.compose(write)?;
        let bytes = &thread.buffer[..len];
        let fill = kept(Way::Posted, op, tag, |slot| slot.copy_from_slice(bytes));
        session.client.post(op, 0, tag, len, fill).map_err(post_error)?;
        trace::posted(len);
        Ok(())
    })
}

/// Posts a message whose length is known, written straight into the ring. `fill` runs under the ring's lock.
#[inline]
pub(crate) fn post_sized(op: u16, len: usize, fill: impl FnOnce(&mut [u8])) -> CudaResult {
    let session = session::get()?;
    check_fault(session)?;
    let tag = context::current_tag()?;
    if capture::is_open() {
        return call_sized(session, op, capture::mark(tag), len, fill);
    }
    session.client.post(op, 0, tag, len, kept(Way::Posted, op, tag, fill)).map_err(post_error)?;
    trace::posted(len);
    if session.launch_blocking {
        return synchronize(session, tag);
    }
    Ok(())
}

/// As `post_sized`, in a context that need not be this thread's own; answers the ring position after it.
#[inline]
pub(crate) fn post_sized_in(
    session: &Session,
    tag: u32,
    op: u16,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> CudaResult<u64> {
    if capture::is_open() {
        call_sized(session, op, tag, len, fill)?;
        return Ok(session.client.position());
    }
    let position = session.client.post(op, 0, tag, len, kept(Way::Posted, op, tag, fill)).map_err(post_error)?;
    trace::posted(len);
    Ok(position)
}

/// While a stream is being captured, what would be posted waits for the driver's word.
#[cold]
fn call_sized(session: &Session, op: u16, tag: u32, len: usize, fill: impl FnOnce(&mut [u8])) -> CudaResult {
    with_thread(session, |thread| {
        let reply = thread.lane.call(op, 0, tag, len, kept(Way::Called, op, tag, fill)).map_err(call_error)?;
        answer(reply.status, reply.payload, |_| Ok(()))
    })
}

fn synchronize(session: &Session, tag: u32) -> CudaResult {
    operation::block_in(session, tag, &Synchronize { context: None }, |()| ())
}

/// Asks and waits for the answer, in order with everything posted.
pub(crate) fn call(
    op: u16,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    let session = session::get()?;
    check_fault(session)?;
    call_with(session, op, capture::mark(context::tag_or_none()), write, read)
}

/// As `call`, of what stays the same for a while: the answer is remembered.
pub(crate) fn remembered(
    lasting: Lasting,
    op: u16,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    let session = session::get()?;
    check_fault(session)?;
    let tag = capture::mark(context::tag_or_none());
    with_thread(session, |thread| {
        let len = thread.compose(write)?;
        let question = &thread.buffer[..len];
        if let Some(known) = remembered::find(lasting, op, tag, question) {
            return answer(CUDA_SUCCESS as i32, &known, read);
        }
        let asked = remembered::count(lasting);
        let fill = kept(Way::Called, op, tag, |slot| slot.copy_from_slice(question));
        let reply = thread.lane.call(op, 0, tag, len, fill).map_err(call_error)?;
        trace::round_trip(len, reply.payload.len());
        if reply.status == CUDA_SUCCESS as i32 {
            remembered::keep(asked, op, tag, question, reply.payload);
        }
        answer(reply.status, reply.payload, read)
    })
}

pub(crate) fn call_with(
    session: &Session,
    op: u16,
    tag: u32,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    with_thread(session, |thread| {
        let len = thread.compose(write)?;
        let bytes = &thread.buffer[..len];
        let fill = kept(Way::Called, op, tag, |slot| slot.copy_from_slice(bytes));
        let reply = thread.lane.call(op, 0, tag, len, fill).map_err(call_error)?;
        trace::round_trip(len, reply.payload.len());
        answer(reply.status, reply.payload, read)
    })
}

/// Asks something that may take long: it is executed after everything posted so far, without holding up others.
pub(crate) fn block(
    op: u16,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    let session = session::get()?;
    output::flush_own();
    check_fault(session)?;
    let tag = capture::mark(context::tag_or_none());
    if capture::is_forbidden_here() {
        return call_with(session, op, tag, write, read);
    }
    block_after(session, op, tag, session.client.position(), write, read)
}

/// As `block`, of what takes longer than an answer mostly does, and not long: it is spun for, where there are processors
/// enough.
pub(crate) fn block_briefly(
    op: u16,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    const PLENTY: usize = 4;
    const LONGEST: Duration = Duration::from_micros(300);
    static SPINS: OnceLock<bool> = OnceLock::new();
    let many = || std::thread::available_parallelism().is_ok_and(|count| count.get() >= PLENTY);
    if capture::is_forbidden_here() || !SPINS.get_or_init(many) {
        return block(op, write, read);
    }
    let session = session::get()?;
    check_fault(session)?;
    let tag = capture::mark(context::tag_or_none());
    let after = session.client.position();
    with_thread(session, |thread| {
        let len = thread.compose(write)?;
        let bytes = &thread.buffer[..len];
        let fill = kept(Way::Blocking, op, tag, |slot| slot.copy_from_slice(bytes));
        thread.lane.begin_block(op, 0, tag, after, len, fill).map_err(call_error)?;
        let begun = Instant::now();
        while !thread.lane.has_answer() && begun.elapsed() < LONGEST {
            std::hint::spin_loop();
        }
        let reply = thread.lane.finish(None).map_err(call_error)?;
        trace::round_trip(len, reply.payload.len());
        answer(reply.status, reply.payload, read)
    })
}

/// As `block`, after what was posted before a position of the ring: 0 for what comes after nothing.
pub(crate) fn block_after(
    session: &Session,
    op: u16,
    tag: u32,
    after: u64,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    with_thread(session, |thread| {
        let len = thread.compose(write)?;
        let bytes = &thread.buffer[..len];
        let fill = kept(Way::Blocking, op, tag, |slot| slot.copy_from_slice(bytes));
        let reply = thread.lane.block(op, 0, tag, after, len, fill).map_err(call_error)?;
        trace::round_trip(len, reply.payload.len());
        answer(reply.status, reply.payload, read)
    })
}

fn answer(status: i32, payload: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>) -> CudaResult {
    if status != CUDA_SUCCESS as i32 {
        return Err(status as CUresult);
    }
    read(&mut Reader::new(payload)).map_err(|_| CUDA_ERROR_UNKNOWN)
}

/// Uploads what is too long for a message, by parts, then asks what is to be done with it.
pub(crate) fn upload(
    image: &[u8],
    op: u16,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    const PART: usize = 128 << 10;
    let session = session::get()?;
    check_fault(session)?;
    let tag = context::tag_or_none();
    with_thread(session, |thread| {
        let lane = thread.lane.index();
        for part in image.chunks(PART) {
            let part = ImagePart { lane, part: Raw(part) };
            let fill = kept(Way::Posted, ImagePart::CODE, 0, |slot| encode_into(&part, slot));
            session.client.post(ImagePart::CODE, 0, 0, part.size(), fill).map_err(post_error)?;
            trace::posted(part.size());
        }
        let after = session.client.position();
        let len = thread.compose(write)?;
        let bytes = &thread.buffer[..len];
        let fill = kept(Way::Blocking, op, tag, |slot| slot.copy_from_slice(bytes));
        let reply = thread.lane.block(op, 0, tag, after, len, fill).map_err(call_error)?;
        trace::round_trip(len, reply.payload.len());
        answer(reply.status, reply.payload, read)
    })
}
