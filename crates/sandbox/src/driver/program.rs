//! The list as a program for the kernel's seccomp.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use seccompiler::{BpfProgram, sock_filter};

use super::Branch;
use super::requests::{Decider, Pattern, patterns};

/// Refuses every request that is not on the list. The process has `no_new_privs`.
pub fn install_refusing(branch: Branch) -> io::Result<()> {
    seccompiler::apply_filter(&program(&patterns(branch), libc::SECCOMP_RET_ALLOW)).map_err(io::Error::other)
}

/// Where the kernel tells a filter what is called, and the second argument's lower half: `struct seccomp_data`.
const CALL: u32 = 0;
const OPTION: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
const REQUEST: u32 = OPTION + 8;

/// As [`install_refusing`], for all threads; and requests that the supervisor decides about wait for it. Returns the descriptor
/// that it learns of them by. No filter can be added after this one.
pub(super) fn install_supervised(branch: Branch) -> io::Result<OwnedFd> {
    let program = supervised(branch);
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let description = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads the program, which lives through the call, as many instructions as the description says; those of
    // this crate are laid out as its own.
    let listener =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, &raw const description) };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    let listener = RawFd::try_from(listener).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// Whether this kernel has what [`install_supervised`] needs. It looks at flags before it looks at the program.
pub(super) fn can_supervise() -> io::Result<()> {
    let nothing = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: there is no program, so that nothing is read and nothing installed.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, FLAGS, nothing) };
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        error => Err(error),
    }
}

/// A listener; for all threads, with an error number of its own where one of them cannot have it; and who waits for an answer
/// that is under way is interrupted by its death alone.
const FLAGS: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
    | libc::SECCOMP_FILTER_FLAG_TSYNC
    | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH
    | WAIT_KILLABLE_RECV;
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

fn supervised(branch: Branch) -> BpfProgram {
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);
    // Another filter could answer in this one's place.
    let mut whole = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, CALL),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 3, 0, number(libc::SYS_seccomp)),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, number(libc::SYS_prctl)),
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, OPTION),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::PR_SET_SECCOMP.unsigned_abs()),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()),
    ];
    whole.extend(program(&patterns(branch), libc::SECCOMP_RET_USER_NOTIF));
    whole
}

/// What is on the list goes to the driver, or has `supervised` happen to it; other requests get `EPERM`, and other calls are
/// no concern of this program.
fn program(patterns: &[Pattern], supervised: u32) -> BpfProgram {
    let ioctl = u32::try_from(libc::SYS_ioctl).unwrap_or(u32::MAX);
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, CALL),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, ioctl),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    for Pattern { mask, value, decider } in patterns {
        // Of a request the kernel looks at the lower half.
        program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, REQUEST));
        if *mask != u32::MAX {
            program.push(instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, *mask));
        }
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *value));
        program.push(answer(match decider {
            Decider::Driver => libc::SECCOMP_RET_ALLOW,
            Decider::Supervisor => supervised,
        }));
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()));
    program
}

fn answer(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

#[expect(clippy::cast_possible_truncation, reason = "opcodes have 16 bits")]
fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::requests::decider;

    /// What the kernel would answer, for the instructions that are used here.
    fn run(program: &[sock_filter], call: libc::c_long, request: u64) -> u32 {
        run_with(program, call, 0, request)
    }

    fn run_with(program: &[sock_filter], call: libc::c_long, option: u64, request: u64) -> u32 {
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&i32::try_from(call).unwrap().to_ne_bytes());
        data[16..24].copy_from_slice(&option.to_ne_bytes());
        data[24..32].copy_from_slice(&request.to_ne_bytes());
        let (mut at, mut value) = (0, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let k = k as usize;
                    value = u32::from_ne_bytes(data[k..k + 4].try_into().unwrap());
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => value &= k,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if value == k { jt } else { jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                code => panic!("{code:x}"),
            }
        }
    }

    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn the_program_says_what_the_list_says() {
        let branch = Branch::of("580.1").unwrap();
        let program = program(&patterns(branch), libc::SECCOMP_RET_USER_NOTIF);
        assert!(program.len() < 4096, "{}", program.len());
        // Every number with its usual sizes, as an escape and as a number alone; and kinds and directions around it.
        let sizes = [0u32, 4, 8, 16, 24, 28, 32, 40, 48, 56, 72, 184, 560, 2304];
        let escapes = (0..=255).flat_map(|number| sizes.map(|size| 0xc000_4600 | size << 16 | number));
        let numbers = (0..=255).chain([0x3000_0001, 0x3000_0002, 0x3000_0003, 0x5412, 0x5421, 0x4018_2103]);
        for request in escapes.clone().chain(numbers).chain(escapes.map(|request| request ^ 0x4000_0100)) {
            let expected = match decider(branch, request) {
                None => REFUSED,
                Some(Decider::Driver) => libc::SECCOMP_RET_ALLOW,
                Some(Decider::Supervisor) => libc::SECCOMP_RET_USER_NOTIF,
            };
            assert_eq!(run(&program, libc::SYS_ioctl, request.into()), expected, "{request:x}");
            // The kernel ignores the upper half, so that it hides nothing.
            let upper = 0xdead_0000_0000 | u64::from(request);
            assert_eq!(run(&program, libc::SYS_ioctl, upper), expected, "{upper:x}");
        }
        assert_eq!(run(&program, libc::SYS_read, 0xc010_46d3), libc::SECCOMP_RET_ALLOW, "no ioctl");
    }

    #[test]
    fn under_supervision_no_other_filter_comes() {
        let branch = Branch::of("580.1").unwrap();
        let program = supervised(branch);
        assert_eq!(run(&program, libc::SYS_seccomp, 0), REFUSED);
        let option = |option: i32| run_with(&program, libc::SYS_prctl, option.unsigned_abs().into(), 0);
        assert_eq!((option(libc::PR_SET_SECCOMP), option(libc::PR_SET_NAME)), (REFUSED, libc::SECCOMP_RET_ALLOW));
        assert_eq!(run(&program, libc::SYS_ioctl, 0xc020_462a), libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(run(&program, libc::SYS_ioctl, 0xc038_464e), libc::SECCOMP_RET_ALLOW);
        assert_eq!(run(&program, libc::SYS_ioctl, 0xc010_46d3), REFUSED);
        assert_eq!(run(&program, libc::SYS_read, 22), libc::SECCOMP_RET_ALLOW);
    }
}
