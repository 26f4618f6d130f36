//! The list of requests, in force in a process of its own: what the kernel answers then.

use std::os::fd::AsRawFd;

use sandbox::driver::{Branch, install_refusing};

/// Requests, and what a file that is no driver answers to them behind the filter: `ENOTTY` where they got through.
const REQUESTS: &[(u64, i32)] = &[
    (0xc020_462a, libc::ENOTTY), // RM_CONTROL
    (0xc030_462b, libc::ENOTTY), // RM_ALLOC
    (0xc038_464e, libc::ENOTTY), // RM_MAP_MEMORY
    (0x3000_0001, libc::ENOTTY), // UVM_INITIALIZE
    (33, libc::ENOTTY),          // UVM_MAP_EXTERNAL_ALLOCATION
    // The driver would take these for RM_CONTROL, whatever kind, direction and upper half say.
    (0xc020_472a, libc::EPERM),
    (0x0020_462a, libc::EPERM),
    (0xdead_c020_472a, libc::EPERM),
    (0xdead_c020_462a, libc::ENOTTY),
    (0xc010_46d3, libc::EPERM), // a wrapper around any other
    (0xca30_46d9, libc::EPERM), // exports to other subsystems
    (56, libc::EPERM),          // tools
    (0x5412, libc::EPERM),      // input into a terminal
    (0x4018_2103, libc::EPERM), // descriptors into another process
    (0xc010_4701, libc::EPERM), // pages of any domain
];

#[test]
fn what_is_not_on_the_list_never_reaches_a_file() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let branch = Branch::of("580.159.04").unwrap();
    // SAFETY: the child makes system calls, allocates as a child of the C library's fork may, and ends.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        let status = i32::from(inside(file.as_raw_fd(), branch));
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the status is a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:x}");
    let wrong = libc::WEXITSTATUS(status);
    assert_eq!(wrong, 0, "{}: {:x?}", wrong, usize::try_from(wrong - 1).ok().and_then(|at| REQUESTS.get(at)));
}

/// 0, or which request got another answer, from 1 on.
fn inside(file: i32, branch: Branch) -> u8 {
    // SAFETY: takes plain numbers.
    let confined = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    if !confined || install_refusing(branch).is_err() {
        return 255;
    }
    let answer = |request: u64| {
        // SAFETY: none of these requests is one of this file's, so that nobody looks at the address.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, file, request, 0) };
        (result == -1).then(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    };
    let wrong = REQUESTS.iter().position(|(request, expected)| answer(*request) != Some(*expected));
    let mut waiting = 0;
    let mut ends = [0; 2];
    // SAFETY: locals to write to.
    let harmless =
        unsafe { libc::pipe(ends.as_mut_ptr()) == 0 && libc::ioctl(ends[0], libc::FIONREAD, &raw mut waiting) == 0 };
    if harmless { wrong.map_or(0, |at| u8::try_from(at + 1).unwrap_or(254)) } else { 253 }
}
