//! What the broker asks of the process that moves a worker's GPU memory.

use std::os::fd::OwnedFd;

use crate::process;

/// The mover's exit status for a GPU without room: others can do something about that.
pub const NO_ROOM_STATUS: u8 = 81;

/// Where memory is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// To host memory; the GPU has none of it then, not even the context.
    Out,
    /// To the GPU, where it was.
    Back,
}

impl Move {
    /// As the mover's argument.
    pub fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Back => "back",
        }
    }
}

/// The process whose memory is moved. Its number may be another's by the time that it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// In the mover's pid namespace.
    pub pid: i32,
    /// As [`process::start_time`] tells it.
    pub start_time: u64,
    /// The user that the worker runs as.
    pub uid: u32,
}

impl Target {
    /// The process, if it is the one that was meant.
    pub fn open(&self) -> Option<OwnedFd> {
        let pid = u32::try_from(self.pid).ok()?;
        let process = process::open_if_same(pid, self.start_time)?;
        let same_user = process::uid(pid) == Some(self.uid);
        (same_user && process::is_alive(&process)).then_some(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_was_meant_is_touched() {
        let pid = std::process::id();
        let (start_time, uid) = (process::start_time(pid).unwrap(), rustix::process::getuid().as_raw());
        let target = Target { pid: pid as i32, start_time, uid };
        assert!(target.open().is_some());
        for other in [
            Target { start_time: start_time + 1, ..target },
            Target { uid: uid + 1, ..target },
            Target { pid: 0, ..target },
            Target { pid: -1, ..target },
        ] {
            assert!(other.open().is_none(), "{other:?}");
        }
    }
}
