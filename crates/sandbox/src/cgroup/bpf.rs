//! Device rules of version 2: a small program that the kernel asks whenever someone inside opens a device.
//!
//! Written as instructions, for it is a list of comparisons; a compiler and a loader would be more to trust.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::Rule;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Programs of groups above count as well: all of them must agree.
const ALLOW_MULTI: u32 = 2;

const TYPE_CHARACTER: i32 = 2;
const ACCESS_MAKE: i32 = 1;

/// One instruction: operation, registers (destination below, source above), jump, number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    number: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, number }
}

const fn load(to: u8, offset: i16) -> Instruction {
    instruction(0x61, to, 1, offset, 0)
}

const fn and(to: u8, number: i32) -> Instruction {
    instruction(0x57, to, 0, 0, number)
}

const fn shift_right(to: u8, number: i32) -> Instruction {
    instruction(0x77, to, 0, 0, number)
}

/// Skips `offset` instructions if the register holds something else.
const fn unless(register: u8, number: i32, offset: i16) -> Instruction {
    instruction(0x55, register, 0, offset, number)
}

const fn set(to: u8, number: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, number)
}

const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

/// Register 1 points to type and access, major, minor; 1 in register 0 allows.
fn program(rules: &[Rule]) -> Vec<Instruction> {
    let mut program = vec![
        load(2, 0),
        load(3, 4),
        load(4, 8),
        // Type of the device in the lower half, access in the upper.
        instruction(0xbf, 5, 2, 0, 0),
        and(5, 0xffff),
        unless(5, TYPE_CHARACTER, 4),
        shift_right(2, 16),
        and(2, ACCESS_MAKE),
        unless(2, 0, 1),
        // Neither of them: on to the list.
        instruction(0x05, 0, 0, 2, 0),
        set(0, 0),
        EXIT,
    ];
    for rule in rules {
        program.extend([
            unless(3, rule.major.cast_signed(), 3),
            unless(4, rule.minor.cast_signed(), 2),
            set(0, 1),
            EXIT,
        ]);
    }
    program.extend([set(0, 0), EXIT]);
    program
}

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
}

#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Puts the rules on a group. They stay as long as it does.
pub(super) fn attach(group: BorrowedFd<'_>, rules: &[Rule]) -> io::Result<()> {
    let program = program(rules);
    let load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr() as u64,
        licence: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads the program and the licence, which live through the call.
    let program = unsafe { bpf(PROG_LOAD, &load)? };
    // SAFETY: on success the number is a new descriptor, which nobody else owns.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let attach = Attach {
        target: group.as_raw_fd().cast_unsigned(),
        program: program.as_raw_fd().cast_unsigned(),
        kind: ATTACH_CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: two open descriptors and plain numbers.
    unsafe { bpf(PROG_ATTACH, &attach) }.map(drop)
}

/// # Safety
/// `T` is what the command takes, and what its addresses name lives through the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads as many bytes as the struct has.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { libc::c_int::try_from(result).map_err(io::Error::other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do with the few instructions that we use.
    fn run(program: &[Instruction], context: [u32; 3]) -> i64 {
        let mut registers = [0i64; 11];
        let mut at = 0;
        for _ in 0..1000 {
            let Instruction { code, registers: pair, offset, number } = program[at];
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            at += 1;
            match code {
                0x61 => registers[to] = i64::from(context[offset as usize / 4]),
                0xbf => registers[to] = registers[from],
                0x57 => registers[to] &= i64::from(number),
                0x77 => registers[to] >>= number,
                0xb7 => registers[to] = i64::from(number),
                0x55 if registers[to] != i64::from(number) => at += offset as usize,
                0x55 => {}
                0x05 => at += offset as usize,
                0x95 => return registers[0],
                _ => panic!("{code:#x}"),
            }
        }
        panic!("it does not end")
    }

    #[test]
    fn what_is_on_the_list_may_be_read_and_written_and_nothing_else() {
        let (character, block) = (2, 1);
        let (make, read, write) = (1 << 16, 2 << 16, 4 << 16);
        let program = program(&[Rule { major: 1, minor: 3 }, Rule { major: 195, minor: 255 }]);
        for (major, minor) in [(1, 3), (195, 255)] {
            for access in [read, write, read | write, 0] {
                assert_eq!(run(&program, [character | access, major, minor]), 1);
                assert_eq!(run(&program, [block | access, major, minor]), 0);
                assert_eq!(run(&program, [character | access | make, major, minor]), 0);
            }
        }
        for (major, minor) in [(1, 255), (195, 3), (195, 0), (1, 5), (0, 0), (u32::MAX, u32::MAX)] {
            assert_eq!(run(&program, [character | read, major, minor]), 0, "{major}:{minor}");
        }
    }
}
