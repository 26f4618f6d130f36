//! A container's seccomp profile as a program for the kernel.
//!
//! The program looks at the number of a call and finds the range of numbers that it belongs to; ranges in which the answer
//! is the same are one. Numbers whose rules look at arguments have a range of their own and go through their rules in
//! turn. The profile's last rule for a number without arguments wins over those before it, and rules with arguments over
//! rules without.
//!
//! Calls of other architectures than the machine's own (32-bit programs) get the profile's default action, whatever
//! architectures it lists: there is one table of numbers here.

use super::syscalls;
use crate::oci::{Seccomp, SyscallArgument};
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter,
};
use std::collections::BTreeMap;

const ARCH_X86_64: u32 = 0xc000_003e;
/// Calls of the x32 architecture carry this bit.
const X32: u32 = 0x4000_0000;
/// Where the kernel has number, architecture and arguments of a call.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;
/// What the kernel takes.
const MAX_INSTRUCTIONS: usize = 4096;
const EPERM: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeccompError {
    #[error("seccomp action {0} is not supported")]
    Action(String),
    #[error("seccomp comparison {0} is not supported")]
    Comparison(String),
    #[error("seccomp rule looks at argument {0}; there are 6")]
    Argument(u32),
    #[error("seccomp profile is too long for the kernel")]
    TooLong,
    #[error("seccomp flag {0} is not supported")]
    Flag(String),
}

/// What is answered for a number: each list of arguments in turn, then the plain answer.
#[derive(Clone, Default, PartialEq)]
struct Rules {
    with_arguments: Vec<(Vec<SyscallArgument>, u32)>,
    plain: Option<u32>,
}

/// The program for a profile; none where it lets everything pass.
pub(crate) fn compile(profile: &Seccomp) -> Result<Vec<sock_filter>, SeccompError> {
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    let mut rules: BTreeMap<u32, Rules> = BTreeMap::new();
    for entry in &profile.syscalls {
        let answer = action(&entry.action, entry.errno_ret)?;
        for number in entry.names.iter().filter_map(|name| syscalls::number(name)) {
            let rule = rules.entry(number).or_default();
            if entry.args.is_empty() {
                rule.plain = Some(answer);
            } else {
                rule.with_arguments.push((entry.args.clone(), answer));
            }
        }
    }
    let mut program = vec![
        load(ARCH),
        jump(BPF_JEQ, ARCH_X86_64, 1, 0),
        ret(default),
        load(NUMBER),
        jump(BPF_JGE, X32, 0, 1),
        ret(default),
    ];
    for (end, rule) in ranges(&rules) {
        let block = block(&rule, default)?;
        // Not in this range: go on behind its block.
        let skip = u8::try_from(block.len()).map_err(|_| SeccompError::TooLong)?;
        program.push(jump(BPF_JGE, end, skip, 0));
        program.extend(block);
    }
    program.push(ret(default));
    if program.len() > MAX_INSTRUCTIONS {
        return Err(SeccompError::TooLong);
    }
    Ok(program)
}

/// The numbers from 0 on as ranges with the same rules, each by the number behind its last.
fn ranges(rules: &BTreeMap<u32, Rules>) -> Vec<(u32, Rules)> {
    let mut ranges: Vec<(u32, Rules)> = Vec::new();
    let mut push = |end: u32, rule: Rules| match ranges.last_mut() {
        Some((last, same)) if *same == rule => *last = end,
        _ => ranges.push((end, rule)),
    };
    let mut next = 0;
    for (number, rule) in rules {
        if *number > next {
            push(*number, Rules::default());
        }
        push(number + 1, rule.clone());
        next = number + 1;
    }
    ranges
}

/// The instructions for a number that is known to be in the range.
fn block(rules: &Rules, default: u32) -> Result<Vec<sock_filter>, SeccompError> {
    let mut program = Vec::new();
    for (arguments, answer) in &rules.with_arguments {
        let mut checks: Vec<Vec<sock_filter>> = Vec::new();
        for argument in arguments {
            checks.push(check(argument)?);
        }
        // Behind the checks is one instruction, the answer; a check that fails goes behind that.
        let mut rest: usize = checks.iter().map(Vec::len).sum::<usize>() + 1;
        for check in checks {
            for mut instruction in check {
                rest -= 1;
                for target in [&mut instruction.jt, &mut instruction.jf] {
                    if *target == FAIL {
                        *target = u8::try_from(rest).map_err(|_| SeccompError::TooLong)?;
                    }
                }
                program.push(instruction);
            }
        }
        program.push(ret(*answer));
        // Checks load arguments, and the next range looks at the number; but it is never reached from within a block.
    }
    program.push(ret(rules.plain.unwrap_or(default)));
    Ok(program)
}

/// Stands for "this check fails" until it is known how far that is.
const FAIL: u8 = u8::MAX;

/// Falls through if the argument is as it says. Arguments have 64 bits, and the kernel compares 32 at a time.
fn check(argument: &SyscallArgument) -> Result<Vec<sock_filter>, SeccompError> {
    if argument.index > 5 {
        return Err(SeccompError::Argument(argument.index));
    }
    let low_at = ARGUMENTS + argument.index * 8;
    let high_at = low_at + 4;
    let halves = |value: u64| ((value >> 32) as u32, (value & 0xffff_ffff) as u32);
    let (high, low) = halves(argument.value);
    Ok(match argument.op.as_str() {
        "SCMP_CMP_EQ" => {
            vec![load(high_at), jump(BPF_JEQ, high, 0, FAIL), load(low_at), jump(BPF_JEQ, low, 0, FAIL)]
        }
        "SCMP_CMP_NE" => {
            vec![load(high_at), jump(BPF_JEQ, high, 0, 2), load(low_at), jump(BPF_JEQ, low, FAIL, 0)]
        }
        "SCMP_CMP_MASKED_EQ" => {
            let (mask_high, mask_low) = halves(argument.value);
            let (high, low) = halves(argument.value_two);
            vec![
                load(high_at),
                and(mask_high),
                jump(BPF_JEQ, high, 0, FAIL),
                load(low_at),
                and(mask_low),
                jump(BPF_JEQ, low, 0, FAIL),
            ]
        }
        // Above in the high half decides; equal there leaves it to the low half.
        "SCMP_CMP_GT" => above(high_at, high, load(low_at), jump(BPF_JGT, low, 0, FAIL)),
        "SCMP_CMP_GE" => above(high_at, high, load(low_at), jump(BPF_JGE, low, 0, FAIL)),
        "SCMP_CMP_LT" => below(high_at, high, load(low_at), jump(BPF_JGE, low, FAIL, 0)),
        "SCMP_CMP_LE" => below(high_at, high, load(low_at), jump(BPF_JGT, low, FAIL, 0)),
        other => return Err(SeccompError::Comparison(other.to_owned())),
    })
}

fn above(high_at: u32, high: u32, load_low: sock_filter, compare_low: sock_filter) -> Vec<sock_filter> {
    vec![load(high_at), jump(BPF_JGT, high, 3, 0), jump(BPF_JEQ, high, 0, FAIL), load_low, compare_low]
}

fn below(high_at: u32, high: u32, load_low: sock_filter, compare_low: sock_filter) -> Vec<sock_filter> {
    vec![load(high_at), jump(BPF_JGT, high, FAIL, 0), jump(BPF_JEQ, high, 0, 2), load_low, compare_low]
}

fn action(name: &str, errno: Option<u32>) -> Result<u32, SeccompError> {
    let errno = errno.unwrap_or(EPERM) & libc::SECCOMP_RET_DATA;
    Ok(match name {
        "SCMP_ACT_ALLOW" => libc::SECCOMP_RET_ALLOW,
        "SCMP_ACT_ERRNO" => libc::SECCOMP_RET_ERRNO | errno,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => libc::SECCOMP_RET_KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => libc::SECCOMP_RET_KILL_PROCESS,
        "SCMP_ACT_TRAP" => libc::SECCOMP_RET_TRAP,
        "SCMP_ACT_TRACE" => libc::SECCOMP_RET_TRACE | errno,
        "SCMP_ACT_LOG" => libc::SECCOMP_RET_LOG,
        other => return Err(SeccompError::Action(other.to_owned())),
    })
}

/// The flags that the filter is installed with.
pub(crate) fn flags(profile: &Seccomp) -> Result<u64, SeccompError> {
    let mut flags = 0;
    for flag in &profile.flags {
        flags |= match flag.as_str() {
            "SECCOMP_FILTER_FLAG_TSYNC" => libc::SECCOMP_FILTER_FLAG_TSYNC,
            "SECCOMP_FILTER_FLAG_LOG" => libc::SECCOMP_FILTER_FLAG_LOG,
            "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            other => return Err(SeccompError::Flag(other.to_owned())),
        };
    }
    Ok(flags)
}

/// Installs the program for this process and what it becomes.
pub(crate) fn install(program: &[sock_filter], flags: u64) -> std::io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    let described = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions from `filter`, which `program` has, and keeps nothing of ours.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const described) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    // Codes of classic BPF have eight bits.
    sock_filter { code: (code & 0xffff) as u16, jt, jf, k }
}

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset)
}

fn jump(test: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(BPF_JMP | test | BPF_K, yes, no, value)
}

fn and(mask: u32) -> sock_filter {
    instruction(BPF_ALU | BPF_AND | BPF_K, 0, 0, mask)
}

fn ret(answer: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, 0, 0, answer)
}

#[cfg(test)]
#[path = "seccomp_tests.rs"]
mod tests;
