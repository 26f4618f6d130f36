//! Whether preemption works on this driver: of two kernels that never end, one is stopped and resumed.

use std::fmt;
use std::time::{Duration, Instant};

use crate::preemptor::{PreemptError, Preemptor};

/// How long a kernel is watched. A driver switches between two of them every few milliseconds.
const WATCHED: Duration = Duration::from_millis(60);
/// How long a kernel may take to go on.
const GO_ON_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after a stop the last that a kernel wrote may take to be seen.
const SETTLE: Duration = Duration::from_millis(5);
/// A slice like that of drivers, so that setting it changes nothing.
const SLICE: Duration = Duration::from_millis(2);

/// What the calls took here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Stopping a kernel that never ends.
    pub stop: Duration,
    /// Resuming it.
    pub resume: Duration,
    /// Setting its slice.
    pub slice: Duration,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stop, resume, slice } = self;
        let [stop, resume, slice] = [stop, resume, slice].map(Duration::as_micros);
        write!(f, "stop {stop} us, resume {resume} us, set slice {slice} us")
    }
}

/// Why preemption is not used on this driver.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A call failed.
    #[error("cannot {0}: {1}")]
    Call(&'static str, PreemptError),
    /// The kernels do not run before anything is done.
    #[error("the kernels do not run")]
    NotRunning,
    /// Stopping it has no effect.
    #[error("a stopped kernel runs on")]
    RunsOn,
    /// The neighbour is stopped as well.
    #[error("the neighbour of a stopped kernel does not run")]
    NeighbourStopped,
    /// It stays stopped.
    #[error("a resumed kernel does not run")]
    NotResumed,
}

/// Stops and resumes the first of two kernels that never end; each counts its rounds.
pub fn run(
    preemptor: &mut dyn Preemptor,
    count: impl Fn() -> u64,
    neighbour: impl Fn() -> u64,
) -> Result<Measured, TrialError> {
    let until_more = |count: &dyn Fn() -> u64, than: u64| {
        let start = Instant::now();
        while count() == than {
            if start.elapsed() > GO_ON_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    };
    if !until_more(&count, count()) || !until_more(&neighbour, neighbour()) {
        return Err(TrialError::NotRunning);
    }
    let slice = timed("set a slice", || preemptor.set_slice(SLICE))?;
    let stop = timed("stop", || preemptor.stop())?;
    std::thread::sleep(SETTLE);
    let (at, beside) = (count(), neighbour());
    std::thread::sleep(WATCHED);
    let neighbour_runs = until_more(&neighbour, beside);
    let later = count();
    let resume = timed("resume", || preemptor.resume())?;
    if later != at {
        return Err(TrialError::RunsOn);
    }
    if !neighbour_runs {
        return Err(TrialError::NeighbourStopped);
    }
    if !until_more(&count, later) {
        return Err(TrialError::NotResumed);
    }
    Ok(Measured { stop, resume, slice })
}

fn timed(what: &'static str, call: impl FnOnce() -> Result<(), PreemptError>) -> Result<Duration, TrialError> {
    let start = Instant::now();
    call().map_err(|error| TrialError::Call(what, error))?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::preemptor::Costs;

    #[derive(Default)]
    struct Fake {
        stopped: Rc<Cell<bool>>,
        /// Stopping does nothing.
        weak: bool,
        /// Resuming does nothing.
        sticky: bool,
    }

    impl Preemptor for Fake {
        fn costs(&self) -> Costs {
            Costs { slice: SETTLE, stop: SETTLE, stop_endless: SETTLE, resume: SETTLE }
        }

        fn set_slice(&mut self, _: Duration) -> Result<(), PreemptError> {
            Ok(())
        }

        fn stop(&mut self) -> Result<(), PreemptError> {
            self.stopped.set(!self.weak);
            Ok(())
        }

        fn resume(&mut self) -> Result<(), PreemptError> {
            self.stopped.set(self.sticky);
            Ok(())
        }
    }

    fn try_with(mut fake: Fake, both_stop: bool) -> Result<Measured, TrialError> {
        let (rounds, beside) = (Cell::new(0), Cell::new(0));
        let stopped = fake.stopped.clone();
        let next = |cell: &Cell<u64>, stands: bool| {
            cell.set(cell.get() + u64::from(!stands));
            cell.get()
        };
        run(&mut fake, || next(&rounds, stopped.get()), || next(&beside, both_stop && stopped.get()))
    }

    #[test]
    fn each_way_to_fail_is_told_apart() {
        assert!(try_with(Fake::default(), false).is_ok());
        assert!(matches!(try_with(Fake { weak: true, ..Fake::default() }, false), Err(TrialError::RunsOn)));
        assert!(matches!(try_with(Fake::default(), true), Err(TrialError::NeighbourStopped)));
        assert!(matches!(try_with(Fake { sticky: true, ..Fake::default() }, false), Err(TrialError::NotResumed)));
        assert!(matches!(run(&mut Fake::default(), || 1, || 2), Err(TrialError::NotRunning)));
    }
}
