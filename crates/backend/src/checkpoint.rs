//! Moving a process's GPU memory to host memory and back, by the driver's own means.
//!
//! The broker loads no driver: it runs a process of its own for each move, which needs the right to do so to another
//! process and ends with the outcome.

use std::ffi::c_void;
use std::path::Path;
use std::time::Duration;

use libloading::Library;

use control::checkpoint::{Move, Target};
use sandbox::jail;

/// The driver waits this long for calls under way. The worker is suspended: there are none.
const LOCK_TIME: Duration = Duration::from_secs(5);
const OUT_OF_MEMORY: u32 = 2;
/// What may be needed to do something to another user's process and its memory, and nothing else of what root may do:
/// DAC_OVERRIDE, DAC_READ_SEARCH, KILL, IPC_LOCK, SYS_PTRACE, SYS_ADMIN, SYS_NICE, SYS_RESOURCE, CHECKPOINT_RESTORE.
const CAPABILITIES: [u32; 9] = [1, 2, 5, 14, 19, 21, 23, 24, 40];
/// Of the process, as `cuCheckpointProcessGetState` says.
const LOCKED: i32 = 1;
const CHECKPOINTED: i32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("the process is gone")]
    Gone,
    #[error("cannot drop privileges: {0}")]
    Rights(std::io::Error),
    #[error("not supported by the driver: {0}")]
    Library(#[from] libloading::Error),
    /// There is no room on the GPU: it stays where it is.
    #[error("not enough memory on the GPU")]
    NoRoom,
    #[error("{0} failed with {1}")]
    Driver(&'static str, u32),
}

/// `CUcheckpointLockArgs`; the others are as long and all reserved.
#[repr(C)]
struct Arguments {
    timeout_ms: u32,
    reserved: [u32; 15],
}

type GetState = unsafe extern "C" fn(i32, *mut i32) -> u32;
type Act = unsafe extern "C" fn(i32, *mut c_void) -> u32;

struct Functions {
    state: GetState,
    lock: Act,
    checkpoint: Act,
    restore: Act,
    unlock: Act,
    _library: Library,
}

/// Moves the memory of a process. What fails is undone: the process is as before.
pub fn run(library: &Path, target: &Target, which: Move) -> Result<(), MoveError> {
    jail::keep_capabilities(&CAPABILITIES).map_err(MoveError::Rights)?;
    let functions = Functions::load(library)?;
    let pid = target.pid;
    // Last of all, and held meanwhile: the driver knows processes by their numbers alone.
    let _process = target.open().ok_or(MoveError::Gone)?;
    match which {
        Move::Out => functions.out(pid),
        Move::Back => functions.back(pid),
    }
}

impl Functions {
    fn load(path: &Path) -> Result<Self, MoveError> {
        // SAFETY: NVIDIA's library, which the operator's driver brought; its functions have these types.
        unsafe {
            let library = Library::new(path)?;
            Ok(Self {
                state: *library.get(b"cuCheckpointProcessGetState\0")?,
                lock: *library.get(b"cuCheckpointProcessLock\0")?,
                checkpoint: *library.get(b"cuCheckpointProcessCheckpoint\0")?,
                restore: *library.get(b"cuCheckpointProcessRestore\0")?,
                unlock: *library.get(b"cuCheckpointProcessUnlock\0")?,
                _library: library,
            })
        }
    }

    fn out(&self, pid: i32) -> Result<(), MoveError> {
        let mut arguments = Arguments { timeout_ms: LOCK_TIME.as_millis() as u32, reserved: [0; 15] };
        // SAFETY: the struct is a local; of the others the driver takes NULL.
        unsafe {
            check("cuCheckpointProcessLock", (self.lock)(pid, (&raw mut arguments).cast()))?;
            check("cuCheckpointProcessCheckpoint", (self.checkpoint)(pid, std::ptr::null_mut())).inspect_err(|_| {
                (self.unlock)(pid, std::ptr::null_mut());
            })
        }
    }

    /// From whatever state it is in: what was begun before a broker ended is finished by the next.
    fn back(&self, pid: i32) -> Result<(), MoveError> {
        let mut state = 0;
        // SAFETY: the output is a local; of arguments the driver takes NULL.
        unsafe {
            check("cuCheckpointProcessGetState", (self.state)(pid, &mut state))?;
            if state == CHECKPOINTED {
                check("cuCheckpointProcessRestore", (self.restore)(pid, std::ptr::null_mut()))?;
            }
            if state == CHECKPOINTED || state == LOCKED {
                check("cuCheckpointProcessUnlock", (self.unlock)(pid, std::ptr::null_mut()))?;
            }
        }
        Ok(())
    }
}

fn check(name: &'static str, code: u32) -> Result<(), MoveError> {
    match code {
        0 => Ok(()),
        OUT_OF_MEMORY => Err(MoveError::NoRoom),
        code => Err(MoveError::Driver(name, code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that moves processes with even numbers, has no room for number 6, and remembers one state.
    const FAKE: &str = r#"
        static int state;
        int cuCheckpointProcessGetState(int pid, int *s) { *s = state; return 0; }
        int cuCheckpointProcessLock(int pid, void *a) { if (*(unsigned *)a != 5000) return 1; state = 1; return 0; }
        int cuCheckpointProcessCheckpoint(int pid, void *a) { if (pid % 2) return 801; state = 2; return 0; }
        int cuCheckpointProcessRestore(int pid, void *a) { if (pid == 6) return 2; state = 1; return 0; }
        int cuCheckpointProcessUnlock(int pid, void *a) { state = 0; return 0; }"#;

    #[test]
    fn what_cannot_be_moved_is_left_as_it_was() {
        let directory = testkit::directory();
        let library = directory.shared_library("libcuda.so.1", FAKE);
        let functions = Functions::load(&library).unwrap();
        let state = |pid| {
            let mut state = -1;
            // SAFETY: the output is a local.
            unsafe { (functions.state)(pid, &mut state) };
            state
        };
        assert!(functions.out(4).is_ok() && state(4) == CHECKPOINTED);
        assert!(functions.back(4).is_ok() && state(4) == 0);
        assert!(functions.back(4).is_ok(), "it is here already");
        assert!(matches!(functions.out(5), Err(MoveError::Driver("cuCheckpointProcessCheckpoint", 801))));
        assert_eq!(state(5), 0, "it goes on");
        assert!(functions.out(6).is_ok());
        assert!(matches!(functions.back(6), Err(MoveError::NoRoom)));
        assert_eq!(state(6), CHECKPOINTED);
    }
}
