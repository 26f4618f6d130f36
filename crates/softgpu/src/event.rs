//! Events: points in a stream that can be waited for and have a time.
//!
//! Each record gives the event a new number when it is called, and reaches that number when the stream comes to it.
//! Who waits, waits for the number the event had when the wait was called.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cuda_abi::constants::{event_flag, event_record_flag};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::{Condvar, Mutex};

use super::abi::*;
use super::context::{Context, current};
use super::graph::Task;
use super::graph::capture::{self, Point};
use super::handles::{Owned, Table, of, out};
use super::queue::{Queue, Work};
use super::{state, stream};

pub(crate) static EVENTS: Table<Event> = Table::new(3);

pub(crate) struct Event {
    handle: u64,
    context: Arc<Context>,
    owner: u64,
    flags: u32,
    state: Mutex<State>,
    reached: Condvar,
}

#[derive(Default)]
struct State {
    recorded: u64,
    reached: u64,
    time: Option<Instant>,
    /// Where the last record stands.
    record: Option<(Weak<Queue>, u64)>,
    /// The last record was captured: what it stands for.
    captured: Option<Point>,
}

impl Owned for Event {
    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Event {
    fn reach(&self, number: u64) {
        let mut state = self.state.lock();
        if number > state.reached {
            state.reached = number;
            state.time = Some(Instant::now());
            self.reached.notify_all();
        }
    }

    fn wait(&self, number: u64) {
        self.wait_while(number, || true);
    }

    /// Records it in a graph that runs.
    pub(crate) fn record_now(&self) {
        let number = {
            let mut state = self.state.lock();
            state.captured = None;
            state.recorded += 1;
            state.recorded
        };
        self.reach(number);
    }

    /// Waits for it in a graph that runs.
    pub(crate) fn wait_now(&self, context: &Context) {
        let number = self.state.lock().recorded;
        self.wait_while(number, || context.runs());
    }

    /// An event that was captured cannot be queried.
    fn not_captured(&self) -> CudaResult {
        if self.state.lock().captured.is_some() { Err(CUDA_ERROR_CAPTURED_EVENT) } else { Ok(()) }
    }

    /// Waits as a stream does: the event may belong to another context and never be reached, so the end of the
    /// stream's own context must end the wait.
    fn wait_while(&self, number: u64, goes_on: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.reached < number && goes_on() {
            self.reached.wait_for(&mut state, Duration::from_millis(20));
        }
    }
}

/// The handle of an event.
pub(crate) fn handle_of(event: &Event) -> u64 {
    event.handle
}

/// An event in a context that is fit for use.
pub(crate) fn event(handle: CUevent) -> CudaResult<Arc<Event>> {
    state::state()?;
    let event = EVENTS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    event.context.usable()?;
    Ok(event)
}

fn cuEventCreate(event: Out<CUevent>, flags: u32) -> CudaResult {
    event.required()?;
    let context = current()?;
    valid(flags & !7 == 0)?;
    valid(flags & event_flag::INTERPROCESS == 0 || flags & event_flag::DISABLE_TIMING != 0)?;
    let owner = context.id();
    let state = Mutex::default();
    let make = |handle| Event { handle, context, owner, flags, state, reached: Condvar::new() };
    event.put(out(EVENTS.insert_with(make).0))
}

fn cuEventDestroy_v2(event: CUevent) -> CudaResult {
    state::state()?;
    EVENTS.remove(of(event)).map(|_| ()).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

/// Records an event in a queue of the same context.
pub(crate) fn record(handle: CUevent, queue: &Arc<Queue>) -> CudaResult {
    let event = event(handle)?;
    if event.owner != queue.owner {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    if let Some(point) = capture::point(queue)? {
        event.state.lock().captured = Some(point);
        return Ok(());
    }
    capture::refuse(queue)?;
    let number = {
        let mut state = event.state.lock();
        state.captured = None;
        state.recorded += 1;
        state.recorded
    };
    let reached = event.clone();
    let position = queue.publish(Work::always(move |_| reached.reach(number)));
    event.state.lock().record = Some((Arc::downgrade(queue), position));
    Ok(())
}

fn cuEventRecord(event: CUevent, stream: CUstream) -> CudaResult {
    record(event, &stream::queue(stream)?)
}

fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) -> CudaResult {
    if flags > event_record_flag::EXTERNAL {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if flags == event_record_flag::EXTERNAL {
        let (queue, node) = (stream::queue(stream)?, self::event(event)?);
        // Outside of a capture the flag means nothing, natively it is an error.
        return if capture::takes(&queue, || Task::Record(node))? { Ok(()) } else { Err(CUDA_ERROR_ILLEGAL_STATE) };
    }
    cuEventRecord(event, stream)
}

fn cuStreamWaitEvent(stream: CUstream, event_: CUevent, flags: u32) -> CudaResult {
    valid(flags <= 1)?;
    let queue = stream::queue(stream)?;
    let event = event(event_)?;
    if flags == event_record_flag::EXTERNAL {
        let external = event.clone();
        let taken = capture::takes(&queue, || Task::Wait(external))?;
        return if taken { Ok(()) } else { Err(CUDA_ERROR_ILLEGAL_STATE) };
    }
    let captured = event.state.lock().captured.clone();
    if let Some(point) = captured {
        return capture::join(&queue, &point);
    }
    capture::isolate(&queue)?;
    capture::refuse(&queue)?;
    let number = {
        let state = event.state.lock();
        if state.reached >= state.recorded {
            return Ok(());
        }
        state.recorded
    };
    queue.submit(Work::run(move |context| {
        event.wait_while(number, || context.runs());
        Ok(())
    }));
    Ok(())
}

fn cuEventQuery(event_: CUevent) -> CudaResult {
    capture::permit()?;
    let event = event(event_)?;
    event.not_captured()?;
    let state = event.state.lock();
    if state.reached < state.recorded { Err(CUDA_ERROR_NOT_READY) } else { event.context.health() }
}

fn cuEventSynchronize(event_: CUevent) -> CudaResult {
    let event = event(event_)?;
    event.not_captured()?;
    let (number, record) = {
        let state = event.state.lock();
        (state.recorded, state.record.clone().filter(|_| state.reached < state.recorded))
    };
    if let Some((queue, position)) = record.and_then(|(queue, position)| Some((queue.upgrade()?, position))) {
        queue.help(position);
    }
    event.wait(number);
    super::memory::pool::settle();
    super::output::flush();
    event.context.health()
}

fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) -> CudaResult {
    milliseconds.required()?;
    event(start)?;
    milliseconds.put(elapsed(start, end)?)
}

/// Unlike the first version this one does not report errors of pending work.
fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) -> CudaResult {
    milliseconds.required()?;
    state::state()?;
    milliseconds.put(elapsed(start, end)?)
}

fn elapsed(start: CUevent, end: CUevent) -> CudaResult<f32> {
    let time = |event: CUevent| {
        let event = EVENTS.get(of(event)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        let state = event.state.lock();
        if state.recorded == 0 || event.flags & event_flag::DISABLE_TIMING != 0 {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        Ok(state.time.filter(|_| state.reached >= state.recorded))
    };
    let (start, end) = (time(start)?, time(end)?);
    let (start, end) = start.zip(end).ok_or(CUDA_ERROR_NOT_READY)?;
    // The end may have been reached first, in another stream: then the time is negative.
    let forward = end.saturating_duration_since(start).as_secs_f64();
    let backward = start.saturating_duration_since(end).as_secs_f64();
    Ok(((forward - backward) * 1e3) as f32)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuEventCreate,
        cuEventDestroy = cuEventDestroy_v2,
        cuEventDestroy_v2,
        cuEventRecord,
        cuEventRecordWithFlags,
        cuStreamWaitEvent,
        cuEventQuery,
        cuEventSynchronize,
        cuEventElapsedTime,
        cuEventElapsedTime_v2
    )
}
