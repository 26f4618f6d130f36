//! The broker as a service of a real systemd, from the package and without one.

use super::{Scenario, Stage};
use crate::CGROUP;
use crate::wait::until;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use xtask::{deb, paths, sh};

pub(super) const SCENARIOS: &[Scenario] =
    &[Scenario { name: "service-install", play: install }, Scenario { name: "service-package", play: package }];

const BOOT: &str = include_str!("../../config/systemd.sh");
const SYSTEMD: &str = "/lib/systemd/systemd";

const SETTINGS: &str = "[proxy]\nbackend = \"soft\"\nsoft_devices = 1\nsoft_memory = \"4GiB\"\n";

/// Why these cannot be played here, if so.
pub(super) fn obstacle() -> Option<&'static str> {
    (!Path::new(SYSTEMD).exists()).then_some("this machine has no systemd")
}

/// `bulkhead install`, as the DaemonSet calls it: the service runs, is replaced without a program's notice, and goes
/// without a trace.
fn install(_: &mut Stage) -> Result<()> {
    let host = Host::boot()?;
    let config = paths::target().join("e2e/service.toml");
    fs::write(&config, SETTINGS)?;
    let program = paths::stage().join("bin/bulkhead").display().to_string();
    let words = [&program, "install", "--config", &config.display().to_string()].map(str::to_owned);
    let words = words.iter().map(String::as_str).collect::<Vec<_>>();
    host.run(&words)?;
    host.serves("/opt/bulkhead/current")?;
    // Nothing has changed, so nothing is restarted.
    let process = host.run(&["systemctl", "show", "--property=MainPID", "bulkhead-broker"])?;
    host.run(&words)?;
    ensure!(
        host.run(&["systemctl", "show", "--property=MainPID", "bulkhead-broker"])? == process,
        "it was restarted"
    );
    host.run(&[&program, "install", "--remove"])?;
    host.clean()
}

/// The package for Debian: installed it runs, purged it leaves nothing.
fn package(_: &mut Stage) -> Result<()> {
    let host = Host::boot()?;
    let settings = format!("mkdir /etc/bulkhead && cat >/etc/bulkhead/bulkhead.toml <<END\n{SETTINGS}END\n");
    host.run(&["sh", "-c", &settings])?;
    let package = deb::path().display().to_string();
    // Triggers are other packages' business, such as the index of manual pages.
    host.run(&["dpkg", "--no-triggers", "--force-confold", "--install", &package])?;
    host.serves("/usr")?;
    // What an administrator has brought stays until it is purged.
    host.run(&["dpkg", "--no-triggers", "--remove", "bulkhead"])?;
    host.run(&["test", "-e", "/etc/bulkhead/bulkhead.toml"])?;
    host.run(&["dpkg", "--no-triggers", "--purge", "bulkhead"])?;
    host.clean()
}

struct Host {
    boot: Child,
    /// Of its first process, out here.
    pid: String,
}

impl Host {
    fn boot() -> Result<Host> {
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--net",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            BOOT,
            "boot",
        ]);
        let boot = unshare.arg("/run/host").arg(std::env::var(CGROUP)?).spawn().context("cannot start unshare")?;
        let mut host = Host { boot, pid: String::new() };
        let children = format!("/proc/{0}/task/{0}/children", host.boot.id());
        until("systemd", || {
            host.pid = fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            let running = ["systemctl", "is-active", "host.target"];
            Ok((!host.pid.is_empty() && host.run(&running).is_ok()).then_some(()))
        })?;
        Ok(host)
    }

    /// What a command on the host prints.
    fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--net", "--pid", "--ipc", "--uts"]).args(words);
        sh::output(command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
    }

    /// A program works through the service, and goes on while that is restarted and reloaded.
    fn serves(&self, home: &str) -> Result<()> {
        let unit = ["systemctl", "is-active", "bulkhead-broker"];
        until("the service", || Ok(self.run(&unit).ok()))?;
        self.run(&["systemctl", "is-enabled", "bulkhead"])?;
        let bulkhead = format!("{home}/bin/bulkhead");
        self.run(&[&bulkhead, "zones", "create", "a", "--memory", "1GiB"])?;
        let steady = paths::programs().join("steady-13.0-static").display().to_string();
        let start = format!(
            "BULKHEAD_SOCKET=/run/bulkhead/zones/a/sock LD_LIBRARY_PATH={home}/lib/bulkhead {steady} 0 >/run/steady 2>&1 & \
             echo $! >/run/steady.pid"
        );
        self.run(&["sh", "-c", &start])?;
        self.goes_on()?;
        for (verb, unit) in [("restart", "bulkhead-broker"), ("reload", "bulkhead"), ("restart", "bulkhead")] {
            self.run(&["systemctl", verb, unit])?;
            until("the service", || Ok(self.run(&["systemctl", "is-active", "bulkhead-broker"]).ok()))?;
            self.goes_on().with_context(|| format!("after a {verb} of {unit}"))?;
        }
        let zones = self.run(&[&bulkhead, "zones", "list"])?;
        ensure!(zones.contains('a'), "there are the zones {zones}");
        self.run(&["sh", "-c", "kill $(cat /run/steady.pid)"]).map(drop)
    }

    fn goes_on(&self) -> Result<()> {
        let round = || -> Result<u64> {
            let last = self.run(&["tail", "-n", "1", "/run/steady"])?;
            Ok(last.trim().strip_prefix("round ").and_then(|round| round.parse().ok()).unwrap_or(0))
        };
        let before = round()?;
        let gone_on = until(&format!("a round after {before}"), || Ok((round()? > before + 2).then_some(())));
        gone_on.with_context(|| {
            let said = self.run(&["tail", "-n", "5", "/run/steady"]).unwrap_or_default();
            format!(
                "it said {said}; {}",
                self.run(&["journalctl", "-n", "40", "-u", "bulkhead*"]).unwrap_or_default()
            )
        })
    }

    /// No file, process or unit of ours is there.
    fn clean(&self) -> Result<()> {
        let find = "find /run/changes /run -xdev -iname '*bulkhead*' -not -type c -not -path '/run/changes/tmp/*' \
                    -not -path '/run/changes/var/log/*' -not -path '/run/changes/var/lib/dpkg/*' -not -path '/run/log/*'";
        let mut left = String::new();
        let gone = until("nothing left", || {
            left = self.run(&["sh", "-c", find])? + &self.run(&["sh", "-c", "pgrep -a bulkhead || true"])?;
            Ok(left.is_empty().then_some(()))
        });
        gone.with_context(|| format!("still there: {left}"))?;
        let known = self.run(&["systemctl", "list-units", "--all", "--no-legend", "bulkhead*"])?;
        ensure!(!known.contains("loaded"), "systemd knows of {known}");
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its first process goes with it, and all others with that one.
        let _ = self.boot.kill();
        let _ = self.boot.wait();
    }
}
