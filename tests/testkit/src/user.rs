//! Other users of the machine.

use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user and a group that own nothing.
pub const NOBODY: u32 = 65_534;

/// Does something as another user, in a thread of its own, where the caller is root.
///
/// # Panics
/// When the caller is not root, or the work panics.
pub fn as_user<T: Send>(uid: u32, gid: u32, work: impl FnOnce() -> T + Send) -> T {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Of this thread alone: other users of this process keep what they are.
            set_thread_groups(&[]).expect("root");
            set_thread_res_gid(gid, gid, gid).expect("root");
            set_thread_res_uid(uid, uid, uid).expect("root");
            work()
        });
        thread.join()
    });
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
