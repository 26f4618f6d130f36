//! Booting Xen under QEMU, and listening to its serial console.

use super::Options;
use super::base::Base;
use super::scenarios::Scenario;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Emulated, always: where there is a /dev/kvm, Xen in it may still hang. With `max` for a CPU, Dom0 crashes.
const CPU: &str = "qemu64,+svm,+npt,+ssse3,+sse4.1,+sse4.2,+popcnt";
/// The machine's clock counts its instructions, one each nanosecond, and goes with ours while it has nothing to do:
/// what it sees of time hardly depends on what else runs here. Skipping idle time stopped the machine for good at times.
const CLOCK: &str = "shift=0,sleep=on";
const MEMORY: &str = "3072M";
/// More grants and event channels than Xen allows by itself, for many guests with many pages.
const XEN: &str = "console=com1 com1=115200,8n1 dom0_mem=1536M,max:1536M dom0_max_vcpus=1 bootscrub=0 \
    gnttab_max_frames=256 gnttab_max_maptrack_frames=1024 spec-ctrl=no xpti=no";
/// A machine that hangs must not hang the tests. Far above what they take, also where others want the processor: what a
/// scenario may take is counted in the machine's own time.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Runs the machine until it switches itself off, and gives what it said.
pub(crate) fn boot(
    base: &Base,
    archive: &Path,
    dir: &Path,
    scenarios: &[&Scenario],
    options: &Options,
) -> Result<String> {
    let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name).collect();
    let what = if options.shell { "shell=1".to_owned() } else { format!("scenarios={}", names.join(":")) };
    let dom0 = format!("console=hvc0 rdinit=/init quiet {what} thorough={}", u8::from(options.thorough));
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-cpu", CPU, "-smp", "1", "-m", MEMORY, "-nographic", "-no-reboot", "-net", "none"]);
    qemu.args(["-icount", CLOCK]);
    qemu.arg("-kernel").arg(base.xen()).args(["-append", XEN]);
    // A comma ends a module's arguments; two of them are one.
    let module = format!("{} {},{}", base.kernel().display(), dom0.replace(',', ",,"), archive.display());
    qemu.arg("-initrd").arg(module);
    if options.shell {
        xtask::sh::run(&mut qemu)?;
        return Ok(String::new());
    }
    listen(qemu, dir)
}

fn listen(mut qemu: Command, dir: &Path) -> Result<String> {
    let mut log = File::create(dir.join("serial.log")).context("cannot write the serial log")?;
    let start = Instant::now();
    let mut child = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start QEMU")?;
    let output = child.stdout.take().context("no output of QEMU")?;
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let serial = std::thread::scope(|scope| {
        scope.spawn(move || {
            // Ends early when the console is closed.
            if end.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                println!("nothing more after {} s: ending QEMU", PATIENCE.as_secs());
            }
            let _ = child.kill();
            let _ = child.wait();
        });
        let mut serial = String::new();
        let mut lines = BufReader::new(output);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned() + "\n";
            let _ = log.write_all(text.as_bytes());
            print!("{:>4} {text}", start.elapsed().as_secs());
            serial += &text;
            line.clear();
        }
        drop(ended);
        serial
    });
    Ok(serial)
}
