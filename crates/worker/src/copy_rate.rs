//! How fast copies from and to other processes' memory go, seen on one of them now and then: two events around a copy that
//! is large enough to tell, and never more than one such copy under way.

use std::time::{Duration, Instant};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::state::{Counters, current_context};
use control::histogram::COPY_RATES;

/// Below this the copy's start is most of it.
pub(crate) const LEAST: u64 = 1 << 20;
/// Between two looks, so that they cost nothing.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct CopyRate(Mutex<State>);

#[derive(Default)]
struct State {
    under_way: Option<Look>,
    last: Option<Instant>,
}

struct Look {
    start: CUevent,
    end: CUevent,
    bytes: u64,
    /// Index of the context that the events live in.
    context: u32,
    /// Not before the copy was given to the GPU.
    complete: bool,
}

// SAFETY: events are the driver's, which any thread may name.
unsafe impl Send for Look {}

impl CopyRate {
    /// A copy is about to be given to a stream: true if it is looked at, and `after` must follow.
    pub(crate) fn before(&self, driver: &Driver, counters: &Counters, stream: CUstream, bytes: u64) -> bool {
        let mut state = self.0.lock();
        collect(&mut state, driver, counters);
        if state.under_way.is_some() || state.last.is_some_and(|last| last.elapsed() < PAUSE) {
            return false;
        }
        let (mut start, mut end) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: outputs are locals; the stream is held by the caller.
        unsafe {
            if (driver.cuEventCreate)(&mut start, 0) != CUDA_SUCCESS {
                return false;
            }
            if (driver.cuEventCreate)(&mut end, 0) != CUDA_SUCCESS
                || (driver.cuEventRecord)(start, stream) != CUDA_SUCCESS
            {
                destroy(driver, [start, end]);
                return false;
            }
        }
        state.under_way = Some(Look { start, end, bytes, context: current_context(), complete: false });
        true
    }

    /// It has been given to the stream.
    pub(crate) fn after(&self, driver: &Driver, stream: CUstream) {
        let mut state = self.0.lock();
        let Some(look) = state.under_way.as_mut() else { return };
        // SAFETY: an event of ours; the stream is held by the caller.
        look.complete = unsafe { (driver.cuEventRecord)(look.end, stream) } == CUDA_SUCCESS;
        if !look.complete {
            let events = [look.start, look.end];
            state.under_way = None;
            destroy(driver, events);
        }
    }

    /// A context, which is current and has no more work, is about to go, and its events with it.
    pub(crate) fn end_context(&self, driver: &Driver, counters: &Counters, context: u32) {
        let mut state = self.0.lock();
        if state.under_way.as_ref().is_some_and(|look| look.context == context) {
            collect(&mut state, driver, counters);
            let left = state.under_way.take();
            left.into_iter().for_each(|look| destroy(driver, [look.start, look.end]));
        }
    }

    /// Takes what has been seen, if the copy is through.
    pub(crate) fn collect(&self, driver: &Driver, counters: &Counters) {
        collect(&mut self.0.lock(), driver, counters);
    }
}

fn collect(state: &mut State, driver: &Driver, counters: &Counters) {
    let Some(look) = state.under_way.as_ref().filter(|look| look.complete) else { return };
    let mut milliseconds = 0.0f32;
    // SAFETY: events of ours, whose context is there; the output is a local.
    let code = unsafe {
        match (driver.cuEventQuery)(look.end) {
            CUDA_ERROR_NOT_READY => return,
            CUDA_SUCCESS => (driver.cuEventElapsedTime)(&mut milliseconds, look.start, look.end),
            code => code,
        }
    };
    if code == CUDA_SUCCESS && milliseconds > 0.0 {
        let rate = look.bytes as f64 / (f64::from(milliseconds) / 1e3);
        counters.shared_copies.observe(rate as u64, &COPY_RATES);
    }
    let events = [look.start, look.end];
    (state.under_way, state.last) = (None, Some(Instant::now()));
    destroy(driver, events);
}

fn destroy(driver: &Driver, events: [CUevent; 2]) {
    for event in events.into_iter().filter(|event| !event.is_null()) {
        // SAFETY: an event of ours, used no more.
        unsafe { (driver.cuEventDestroy_v2)(event) };
    }
}

#[cfg(test)]
mod tests {
    use control::statistics::Writer;

    use super::*;
    use crate::test_driver::{EVENTS, QUERY, driver};

    #[test]
    fn no_event_outlives_its_context() {
        QUERY.set(CUDA_ERROR_NOT_READY);
        let (rate, counters, driver) = (CopyRate::default(), Counters::new(Writer::new(None)), driver());
        assert!(rate.before(&driver, &counters, std::ptr::null_mut(), LEAST));
        rate.after(&driver, std::ptr::null_mut());
        let context = current_context();
        rate.end_context(&driver, &counters, context + 1);
        assert_eq!(EVENTS.get(), 2, "another context");
        rate.end_context(&driver, &counters, context);
        assert_eq!(EVENTS.get(), 0);
    }
}
