//! A process in namespaces of its own, as a container runtime makes them.

use std::process::Command;

/// One of the eight rows: what a pod shares with its node, and whether it is privileged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub host_ipc: bool,
    pub host_pid: bool,
    pub privileged: bool,
}

impl Row {
    /// From nothing at all to everything.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|number| Self {
            host_ipc: number & 4 != 0,
            host_pid: number & 2 != 0,
            privileged: number & 1 != 0,
        })
    }
}

/// Which device nodes the container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// Those that every container has, and no GPU.
    Plain,
    /// NVIDIA's, too, as its container toolkit puts them there.
    Nvidia,
}

/// Makes a `/dev` with what every container has, in place of the node's. The first word says whether `/dev/shm` is the
/// node's, the second which GPU nodes there are.
const MAKE_DEV: &str = r#"
set -e
new=$(mktemp -d)
mount -t tmpfs -o mode=755 dev "$new"
for node in null zero full random urandom tty $2; do
    [ -e "/dev/$node" ] || continue
    : > "$new/$node"
    mount --bind "/dev/$node" "$new/$node"
done
if [ -d /dev/nvidia-caps ] && [ -n "$2" ]; then mkdir "$new/nvidia-caps"; mount --rbind /dev/nvidia-caps "$new/nvidia-caps"; fi
mkdir "$new/shm"
if [ "$1" = host ]; then mount --rbind /dev/shm "$new/shm"; else mount -t tmpfs shm "$new/shm"; fi
for link in fd stdin stdout stderr; do cp -P "/dev/$link" "$new/$link" 2>/dev/null || true; done
mount --move "$new" /dev
rmdir "$new"
shift 2
exec "$@"
"#;

impl Row {
    /// The program as a container runs it: with namespaces, `/dev` and `/proc` of its own, in an empty network. Unless the
    /// pod may see the node's processes, it is the first process of its pid namespace; unless it is privileged, it has no
    /// capability and no way to gain one.
    pub fn container(self, program: &Command, devices: Devices) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--net", "--uts", "--cgroup"]);
        if !self.host_ipc {
            command.arg("--ipc");
        }
        if !self.host_pid {
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        }
        command.args(["--", "sh", "-c", MAKE_DEV, "container"]);
        command.arg(if self.host_ipc { "host" } else { "own" });
        command.arg(if devices == Devices::Nvidia { nvidia_nodes() } else { String::new() });
        if !self.privileged {
            command.args(["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]);
        }
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// What [`surroundings`] must say inside.
    pub fn is_described_by(self, said: &str, devices: Devices) -> bool {
        let has = |words: &str| said.split(", ").any(|part| part == words);
        let first = has("pid 1") != self.host_pid;
        let nodes = devices == Devices::Nvidia || has("0 GPU nodes");
        first && has("no capabilities") != self.privileged && nodes
    }
}

/// Can this machine make such containers?
pub fn are_allowed() -> bool {
    let row = Row { host_ipc: false, host_pid: false, privileged: false };
    row.container(&Command::new("true"), Devices::Plain).status().is_ok_and(|status| status.success())
}

/// Names of NVIDIA's nodes in /dev, with blanks between.
fn nvidia_nodes() -> String {
    nodes().into_iter().filter(|name| name != "nvidia-caps").collect::<Vec<_>>().join(" ")
}

fn nodes() -> Vec<String> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("nvidia"))
        .collect()
}

/// What a process sees of where it is: its number, its rights, and the GPU's nodes.
pub fn surroundings() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let rights = |name: &str| u64::from_str_radix(field(name), 16).unwrap_or(u64::MAX);
    let none = ["CapEff:", "CapPrm:", "CapBnd:"].into_iter().all(|name| rights(name) == 0);
    let capabilities = if none { "no capabilities" } else { "capabilities" };
    format!("pid {}, {capabilities}, {} GPU nodes", std::process::id(), nodes().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_is_none_is_found_out() {
        let row = Row { host_ipc: false, host_pid: false, privileged: false };
        assert!(row.is_described_by("pid 1, no capabilities, 0 GPU nodes", Devices::Plain));
        for wrong in [
            "pid 12, no capabilities, 0 GPU nodes",
            "pid 1, capabilities, 0 GPU nodes",
            "pid 1, no capabilities, 3 GPU nodes",
            "",
        ] {
            assert!(!row.is_described_by(wrong, Devices::Plain), "{wrong}");
        }
        assert!(row.is_described_by("pid 1, no capabilities, 3 GPU nodes", Devices::Nvidia));
        let all = Row { host_ipc: true, host_pid: true, privileged: true };
        assert!(all.is_described_by("pid 12, capabilities, 0 GPU nodes", Devices::Plain));
        assert!(!all.is_described_by("pid 1, capabilities, 0 GPU nodes", Devices::Plain));
    }

    #[test]
    fn there_are_eight_rows() {
        let rows: Vec<Row> = Row::all().collect();
        assert!(rows.iter().enumerate().all(|(at, row)| !rows[..at].contains(row)) && rows.len() == 8);
    }
}
