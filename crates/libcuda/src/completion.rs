//! Knowing that the GPU is done, without asking anybody.
//!
//! The GPU writes a word of the region when it gets to a mark on a stream; a thread that waits watches the word. A faulted
//! context never writes it, so nobody watches for long: after that the worker is asked to synchronise, which says what
//! is wrong, and costs little beside what was waited already.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cuda_abi::constants::default_stream;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Completion, Mark, Synchronize, SynchronizeStream};
use cuda_abi::wire::{self, Malformed, Operation, Reader, Typed, Writer};
use idm::flags::Watched;
use idm::ring::record::footprint;
use parking_lot::Mutex;

use crate::graph::capture;
use crate::session::{self, Session};
use crate::{carry, context, exports, handles, operation, output};

/// The stream that waits for all streams but the independent ones, and they for it.
const DEFAULT_STREAM: u64 = 0;
/// How long a word is watched before the worker is asked.
const WATCH: Duration = Duration::from_millis(2);
/// Where processors are few, a thread that spins takes time from those that work.
const WATCH_WITH_FEW: Duration = Duration::from_micros(20);
const FEW: usize = 4;

/// A completion word, and the value it will have.
pub(crate) struct Word {
    pub index: u64,
    pub value: u64,
}

impl Word {
    /// What the GPU is to write.
    pub(crate) fn completion(&self) -> Completion {
        Completion { word: self.index, value: self.value }
    }
}

/// Words that are free, with the value each was last given.
struct Words {
    free: Vec<(u64, u64)>,
    made: u64,
}

static WORDS: Mutex<Words> = Mutex::new(Words { free: Vec::new(), made: 0 });

/// A word that nobody else uses; `None` if all are taken.
pub(crate) fn take(session: &Session) -> Option<Word> {
    let mut words = WORDS.lock();
    if let Some((index, value)) = words.free.pop() {
        return Some(Word { index, value: value + 1 });
    }
    let index = words.made;
    (index < wire::error_word(session.client.flags().count()) as u64).then(|| {
        words.made += 1;
        Word { index, value: 1 }
    })
}

/// Gives a word back. Only one that has its value, or never will, may be used again.
pub(crate) fn give_back(word: Word) {
    WORDS.lock().free.push((word.index, word.value));
}

/// Has the GPU written the word already?
pub(crate) fn is_reached(session: &Session, word: &Word) -> bool {
    session.client.flags().load(word.index as usize) >= word.value
}

/// Watches a word for a while. False: the worker must be asked.
pub(crate) fn watch(session: &Session, word: &Word) -> CudaResult<bool> {
    watch_within(session, word, watch_time())
}

fn watch_within(session: &Session, word: &Word, limit: Duration) -> CudaResult<bool> {
    let flags = session.client.flags();
    let watched = flags.spin(word.index as usize, word.value, limit).map_err(|_| session::lost())?;
    match watched {
        Watched::Reached => Ok(true),
        Watched::Fault(code) => Err(code),
        Watched::TimeIsUp => Ok(false),
    }
}

/// Watches for anything that the GPU changes, for a while. False: the worker must be asked.
pub(crate) fn watch_until(session: &Session, arrived: impl Fn() -> bool) -> CudaResult<bool> {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if arrived() {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        carry::check_fault(session)?;
        session.client.gone().check().map_err(|_| session::lost())?;
        if start.elapsed() >= watch_time() {
            return Ok(false);
        }
    }
}

/// Does this machine have the processors to watch for what takes its time?
pub(crate) fn has_time_to_watch() -> bool {
    watch_time() == WATCH
}

fn watch_time() -> Duration {
    static WATCH_TIME: OnceLock<Duration> = OnceLock::new();
    *WATCH_TIME.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        if processors < FEW { WATCH_WITH_FEW } else { WATCH }
    })
}

/// A place in the ring up to which a stream is known to be done.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Done {
    context: u64,
    stream: u64,
    position: u64,
}

thread_local! {
    static DONE: Cell<Option<Done>> = const { Cell::new(None) };
}

/// Remembers that everything on a stream is done which was posted before `position`.
pub(crate) fn note_done(stream: u64, position: u64) {
    DONE.set(Some(Done { context: context::current_word(), stream, position }));
}

/// Posts something, in the current context, that gives the GPU nothing to do: what this thread has seen done before stays
/// known to be done, if nobody else has posted anything meanwhile.
pub(crate) fn post_idle<R: Operation>(session: &Session, request: &R) -> CudaResult {
    let tag = context::current_tag()?;
    let before = session.client.position();
    let after = operation::post_in(session, tag, request)?;
    let own = u32::try_from(request.size()).map(footprint);
    if let Some(done) = DONE.get().filter(|done| done.position == before)
        && own == Ok(after - before)
    {
        DONE.set(Some(Done { position: after, ..done }));
    }
    Ok(())
}

/// Has nothing been posted since this thread saw the stream done? A program that copies a result waits for it twice: the
/// copy does, and then it synchronises.
fn is_known_done(session: &Session, stream: u64) -> bool {
    let now = Done { context: context::current_word(), stream, position: session.client.position() };
    DONE.get() == Some(now)
}

/// Asks the worker how far a stream (as the worker knows it) is. The driver may take a moment longer to notice what the
/// GPU's word has told this thread already; a program that has waited must not hear that its stream is still at work.
pub(crate) fn query(
    stream: u64,
    op: u16,
    write: impl FnOnce(&mut Writer<'_>),
    read: impl FnOnce(&mut Reader<'_>) -> Result<(), Malformed>,
) -> CudaResult {
    let seen_done = session::get().is_ok_and(|session| is_known_done(session, stream));
    match carry::call(op, write, read) {
        Err(CUDA_ERROR_NOT_READY) if seen_done => Ok(()),
        answer => answer,
    }
}

/// Waits for a stream of the current context by a mark on it; `ask` is for when that does not do.
fn wait_by_mark(session: &Session, stream: u64, limit: Duration, ask: impl FnOnce() -> CudaResult) -> CudaResult {
    // A mark would become part of a capture.
    if capture::is_open() {
        return ask();
    }
    if is_known_done(session, stream) {
        return carry::check_posted(session);
    }
    let tag = context::current_tag()?;
    let Some(word) = take(session) else { return ask() };
    let position = match operation::post_in(session, tag, &Mark { stream: Typed(stream), done: word.completion() }) {
        Ok(position) => position,
        Err(code) => {
            give_back(Word { value: word.value - 1, ..word });
            return Err(code);
        }
    };
    if !watch_within(session, &word, limit)? {
        ask()?;
    }
    if is_reached(session, &word) {
        give_back(word);
        note_done(stream, position);
    }
    carry::check_posted(session)
}

/// Waits until a stream (as the worker knows it) has done everything posted so far.
pub(crate) fn wait_for_stream(stream: u64) -> CudaResult {
    wait_for_stream_within(stream, watch_time())
}

/// As `wait_for_stream`, after a copy of so many bytes that is about to end: natively one spins for it.
pub(crate) fn wait_for_copy(stream: u64, bytes: usize) -> CudaResult {
    /// Slower than any bus that a GPU is worth having on, in bytes a microsecond.
    const SLOW: u64 = 10_000;
    const LONGEST: Duration = Duration::from_millis(200);
    let transfer = if has_time_to_watch() { Duration::from_micros(bytes as u64 / SLOW) } else { Duration::ZERO };
    wait_for_stream_within(stream, (watch_time() + transfer).min(LONGEST))
}

fn wait_for_stream_within(stream: u64, limit: Duration) -> CudaResult {
    let session = session::get()?;
    output::flush_own();
    carry::check_fault(session)?;
    let ask = || operation::block(&SynchronizeStream { stream: Typed(stream) }, |()| ());
    let current = context::current_word();
    let here = current != 0
        && (stream <= default_stream::LEGACY || handles::context_of(wire::Kind::Stream, stream) == Ok(current));
    if here { wait_by_mark(session, stream, limit, ask) } else { ask() }?;
    session::print_output(session);
    Ok(())
}

/// Waits until a context has done everything posted so far.
pub(crate) fn wait_for_context(context: u64) -> CudaResult {
    let session = session::get()?;
    output::flush_own();
    carry::check_fault(session)?;
    let ask = || operation::block(&Synchronize { context: Some(Typed(context)) }, |()| ());
    if context != context::current_word()
        || handles::take_left_behind(context)
        || handles::has_independent_streams(context, stream_flags)?
    {
        ask()?;
    } else {
        wait_by_mark(session, DEFAULT_STREAM, watch_time(), ask)?;
    }
    session::print_output(session);
    Ok(())
}

fn stream_flags(stream: u64) -> CudaResult<u32> {
    let mut flags = 0;
    // SAFETY: the output is a local.
    match unsafe { exports::cuStreamGetFlags(stream as CUstream, &mut flags) } {
        CUDA_SUCCESS => Ok(flags),
        code => Err(code),
    }
}
