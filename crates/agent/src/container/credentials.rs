//! Who a process is: user, groups, capabilities, limits.

use super::SetupError;
use crate::oci::{Capabilities, Process, Rlimit};
use rustix::process::Resource;
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// The capabilities by their bits.
#[rustfmt::skip]
const NAMES: [&str; 41] = [
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
];

/// A set of names as bits. A name that is not known is not given: less is always safe.
fn bits(names: &[String]) -> u64 {
    let bit = |name: &String| NAMES.iter().position(|known| name.strip_prefix("CAP_") == Some(*known));
    names.iter().filter_map(bit).fold(0, |bits, bit| bits | 1 << bit)
}

fn failed(what: &'static str) -> impl Fn(rustix::io::Errno) -> SetupError {
    move |error| SetupError::Step(what, error.into())
}

/// Limits first, which root may raise.
pub(super) fn limit(limits: &[Rlimit]) -> Result<(), SetupError> {
    for limit in limits {
        let Some(resource) = resource(&limit.kind) else {
            return Err(SetupError::Rlimit(limit.kind.clone(), std::io::ErrorKind::InvalidInput.into()));
        };
        let value = |value: u64| (value != u64::MAX).then_some(value);
        let wanted = rustix::process::Rlimit { current: value(limit.soft), maximum: value(limit.hard) };
        rustix::process::setrlimit(resource, wanted)
            .map_err(|error| SetupError::Rlimit(limit.kind.clone(), error.into()))?;
    }
    Ok(())
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "RLIMIT_CPU" => Resource::Cpu,
        "RLIMIT_FSIZE" => Resource::Fsize,
        "RLIMIT_DATA" => Resource::Data,
        "RLIMIT_STACK" => Resource::Stack,
        "RLIMIT_CORE" => Resource::Core,
        "RLIMIT_RSS" => Resource::Rss,
        "RLIMIT_NPROC" => Resource::Nproc,
        "RLIMIT_NOFILE" => Resource::Nofile,
        "RLIMIT_MEMLOCK" => Resource::Memlock,
        "RLIMIT_AS" => Resource::As,
        "RLIMIT_LOCKS" => Resource::Locks,
        "RLIMIT_SIGPENDING" => Resource::Sigpending,
        "RLIMIT_MSGQUEUE" => Resource::Msgqueue,
        "RLIMIT_NICE" => Resource::Nice,
        "RLIMIT_RTPRIO" => Resource::Rtprio,
        "RLIMIT_RTTIME" => Resource::Rttime,
        _ => return None,
    })
}

/// Becomes the user that the process is to be, with these capabilities and no more. Only for a process with one thread:
/// the kernel changes the thread that calls.
pub(super) fn become_user(process: &Process) -> Result<(), SetupError> {
    let none = Capabilities::default();
    let wanted = process.capabilities.as_ref().unwrap_or(&none);
    let bounding = bits(&wanted.bounding);
    for bit in (0..NAMES.len()).filter(|bit| bounding & (1 << bit) == 0) {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // One that this kernel does not have.
            Err(rustix::io::Errno::INVAL) => {}
            other => other.map_err(failed("drop a capability"))?,
        }
    }
    rustix::thread::set_keep_capabilities(true).map_err(failed("keep capabilities"))?;
    let user = &process.user;
    let groups: Vec<Gid> = user.additional_gids.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups).map_err(failed("set groups"))?;
    let gid = Gid::from_raw(user.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed("set the group"))?;
    let uid = Uid::from_raw(user.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed("set the user"))?;
    rustix::thread::set_keep_capabilities(false).map_err(failed("keep capabilities"))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(user.umask.unwrap_or(0o022)));
    let set = |names: &[String]| CapabilitySet::from_bits_retain(bits(names));
    let sets = CapabilitySets {
        effective: set(&wanted.effective),
        permitted: set(&wanted.permitted),
        inheritable: set(&wanted.inheritable),
    };
    rustix::thread::set_capabilities(None, sets).map_err(failed("set capabilities"))?;
    let _ = rustix::thread::clear_ambient_capability_set();
    let ambient = bits(&wanted.ambient);
    for bit in (0..NAMES.len()).filter(|bit| ambient & (1 << bit) != 0) {
        // One that is not permitted and inheritable cannot be ambient, and the process does without.
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        let _ = rustix::thread::configure_capability_in_ambient_set(capability, true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bits() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(bits(&names(&["CAP_CHOWN", "CAP_KILL"])), 0b10_0001);
        assert_eq!(bits(&names(&["CAP_CHECKPOINT_RESTORE"])), 1 << 40);
        assert_eq!(bits(&names(&["KILL", "CAP_NONSENSE"])), 0);
        assert_eq!(CapabilitySet::SYS_ADMIN.bits(), bits(&names(&["CAP_SYS_ADMIN"])));
    }
}
