//! Programs are tried in a small interpreter of the instructions that are used.

use super::*;
use crate::oci::Syscalls;

struct Call {
    arch: u32,
    number: u32,
    arguments: [u64; 6],
}

fn run(program: &[sock_filter], call: &Call) -> u32 {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&call.number.to_le_bytes());
    data[4..8].copy_from_slice(&call.arch.to_le_bytes());
    for (index, argument) in call.arguments.iter().enumerate() {
        data[16 + index * 8..24 + index * 8].copy_from_slice(&argument.to_le_bytes());
    }
    let (mut at, mut a) = (0, 0u32);
    loop {
        let i = program[at];
        at += 1;
        let code = u32::from(i.code);
        let k = i.k as usize;
        let mut branch = |yes: bool| at += usize::from(if yes { i.jt } else { i.jf });
        match code {
            c if c == BPF_LD | BPF_W | BPF_ABS => a = u32::from_le_bytes(data[k..k + 4].try_into().unwrap()),
            c if c == BPF_JMP | BPF_JEQ | BPF_K => branch(a == i.k),
            c if c == BPF_JMP | BPF_JGE | BPF_K => branch(a >= i.k),
            c if c == BPF_JMP | BPF_JGT | BPF_K => branch(a > i.k),
            c if c == BPF_ALU | BPF_AND | BPF_K => a &= i.k,
            c if c == BPF_RET | BPF_K => return i.k,
            other => panic!("unknown instruction {other}"),
        }
    }
}

fn native(name: &str, arguments: [u64; 6]) -> Call {
    Call { arch: ARCH_X86_64, number: syscalls::number(name).unwrap(), arguments }
}

fn rule(names: &[&str], action: &str, errno: Option<u32>, args: Vec<SyscallArgument>) -> Syscalls {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Syscalls { names, action: action.to_owned(), errno_ret: errno, args }
}

fn argument(index: u32, op: &str, value: u64, value_two: u64) -> SyscallArgument {
    SyscallArgument { index, value, value_two, op: op.to_owned() }
}

fn profile(default: &str, syscalls: Vec<Syscalls>) -> Seccomp {
    Seccomp { default_action: default.to_owned(), syscalls, ..Seccomp::default() }
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | 1;

#[test]
fn listed_calls_pass_and_others_do_not() {
    let listed = ["read", "write", "openat", "clone", "execve", "no_such_call"];
    let profile = profile(
        "SCMP_ACT_ERRNO",
        vec![rule(&listed, "SCMP_ACT_ALLOW", None, vec![]), rule(&["clone3"], "SCMP_ACT_ERRNO", Some(38), vec![])],
    );
    let program = compile(&profile).unwrap();
    for name in &listed[..5] {
        assert_eq!(run(&program, &native(name, [0; 6])), ALLOW, "{name}");
    }
    for name in ["close", "mount", "io_uring_setup", "openat2", "pidfd_open"] {
        assert_eq!(run(&program, &native(name, [0; 6])), DENY, "{name}");
    }
    assert_eq!(run(&program, &native("clone3", [0; 6])), libc::SECCOMP_RET_ERRNO | 38);
    assert_eq!(run(&program, &Call { number: 9999, ..native("read", [0; 6]) }), DENY);
}

#[test]
fn other_architectures_get_the_default() {
    let program = compile(&profile("SCMP_ACT_ERRNO", vec![rule(&["read"], "SCMP_ACT_ALLOW", None, vec![])])).unwrap();
    assert_eq!(run(&program, &Call { arch: 0x4000_0003, ..native("read", [0; 6]) }), DENY);
    assert_eq!(run(&program, &Call { number: X32, ..native("read", [0; 6]) }), DENY);
}

#[test]
fn a_profile_of_exceptions_lets_the_rest_pass() {
    let program =
        compile(&profile("SCMP_ACT_ALLOW", vec![rule(&["chmod"], "SCMP_ACT_ERRNO", None, vec![])])).unwrap();
    assert_eq!(run(&program, &native("chmod", [0; 6])), DENY);
    assert_eq!(run(&program, &native("fchmod", [0; 6])), ALLOW);
}

#[test]
fn arguments_are_compared_with_all_their_bits() {
    let big = 0x1_0000_0005u64;
    /// Comparison, its two values, arguments that pass and arguments that do not.
    type Case<'a> = (&'a str, u64, u64, &'a [u64], &'a [u64]);
    let cases: [Case<'_>; 7] = [
        ("SCMP_CMP_EQ", big, 0, &[big], &[5, 0x1_0000_0004, 0x2_0000_0005]),
        ("SCMP_CMP_NE", big, 0, &[5, 0x1_0000_0004, 0x2_0000_0005], &[big]),
        ("SCMP_CMP_GT", big, 0, &[big + 1, 0x2_0000_0000], &[big, 5, 0xffff_ffff]),
        ("SCMP_CMP_GE", big, 0, &[big, big + 1, 0x2_0000_0000], &[big - 1, 0xffff_ffff]),
        ("SCMP_CMP_LT", big, 0, &[big - 1, 0xffff_ffff, 0], &[big, big + 1, 0x2_0000_0000]),
        ("SCMP_CMP_LE", big, 0, &[big, big - 1, 0xffff_ffff], &[big + 1, 0x2_0000_0000]),
        ("SCMP_CMP_MASKED_EQ", 0x7e02_0000, 0, &[0x11, 0x1_0000_0000], &[0x1000_0000, 0x7e02_0000]),
    ];
    for (op, value, value_two, passes, fails) in cases {
        let rules = vec![rule(&["clone"], "SCMP_ACT_ALLOW", None, vec![argument(2, op, value, value_two)])];
        let program = compile(&profile("SCMP_ACT_ERRNO", rules)).unwrap();
        let answer = |value: u64| run(&program, &native("clone", [0, 0, value, 0, 0, 0]));
        for value in passes {
            assert_eq!(answer(*value), ALLOW, "{op} {value:#x}");
        }
        for value in fails {
            assert_eq!(answer(*value), DENY, "{op} {value:#x}");
        }
    }
}

#[test]
fn several_arguments_must_all_hold_and_several_rules_are_alternatives() {
    let both = vec![argument(0, "SCMP_CMP_EQ", 1, 0), argument(1, "SCMP_CMP_EQ", 2, 0)];
    let other = vec![argument(0, "SCMP_CMP_EQ", 9, 0)];
    let rules = vec![
        rule(&["personality"], "SCMP_ACT_ALLOW", None, both),
        rule(&["personality"], "SCMP_ACT_ALLOW", None, other),
    ];
    let program = compile(&profile("SCMP_ACT_ERRNO", rules)).unwrap();
    let answer = |first, second| run(&program, &native("personality", [first, second, 0, 0, 0, 0]));
    assert_eq!([answer(1, 2), answer(9, 0)], [ALLOW; 2]);
    assert_eq!([answer(1, 3), answer(0, 2), answer(8, 2)], [DENY; 3]);
}

#[test]
fn what_is_not_known_is_refused() {
    let wrong = |profile: Seccomp| compile(&profile).err().unwrap();
    assert_eq!(wrong(profile("SCMP_ACT_NOTIFY", vec![])), SeccompError::Action("SCMP_ACT_NOTIFY".into()));
    let odd = vec![rule(&["read"], "SCMP_ACT_ALLOW", None, vec![argument(6, "SCMP_CMP_EQ", 0, 0)])];
    assert_eq!(wrong(profile("SCMP_ACT_ERRNO", odd)), SeccompError::Argument(6));
}
