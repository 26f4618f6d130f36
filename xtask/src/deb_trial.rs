//! `cargo xtask deb --try`: installs the package, runs a CUDA program with it, removes and purges it, as root on a copy of this
//! machine's file system that is thrown away.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use xtask::programs::{self, Linkage};
use xtask::{deb, paths, sh, toolchain};

/// `$1` is an empty directory, `$2` the package, `$3` a program. In a mount namespace of its own, so that nothing is left mounted.
const MACHINE: &str = r#"set -eu
mount -t tmpfs trial "$1"
mkdir "$1/upper" "$1/work" "$1/root" "$1/upper/trial"
cp "$2" "$1/upper/trial/bulkhead.deb"
cp "$3" "$1/upper/trial/program"
printf '%s' "$INSIDE" >"$1/upper/trial/inside"
mount -t overlay trial -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for dir in proc dev sys; do mount --rbind "/$dir" "$1/root/$dir"; done
exec chroot "$1/root" sh -eux /trial/inside
"#;

/// What one who has the package does.
const INSIDE: &str = r#"cd /trial
test ! -e /usr/bin/bulkhead
dpkg --install bulkhead.deb
bulkhead --version
bulkhead proxy --check --config /etc/bulkhead/bulkhead.toml --backend soft
bulkhead run --backend soft -- ./program
test -s /usr/share/man/man1/bulkhead-run.1
test -s /usr/share/bash-completion/completions/bulkhead
python3=/usr/bin/python3
if [ -x $python3 ]; then $python3 -c 'import bulkhead'; fi
dpkg --remove bulkhead
test ! -e /usr/bin/bulkhead
test -e /etc/bulkhead/bulkhead.toml
dpkg --purge bulkhead
for path in /etc/bulkhead /usr/lib/bulkhead /var/lib/bulkhead; do test ! -e $path; done
"#;

pub(crate) fn run() -> Result<()> {
    toolchain::ensure_compiler()?;
    let mut all = programs::all()?;
    all.retain(|program| program.name == "vecadd");
    let built = programs::build(&programs::own(&all, &[Linkage::Static])?, &[])?;
    let program = &built.first().context("there is no program vecadd")?.path;
    let dir = std::env::temp_dir().join(format!("bulkhead-deb-trial-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let tried = install(&dir, program);
    fs::remove_dir(&dir).context("cannot clean up")?;
    tried?;
    println!("{} installs, runs, and leaves nothing when it is purged", deb::path().display());
    Ok(())
}

fn install(dir: &Path, program: &Path) -> Result<()> {
    let mut machine = Command::new("unshare");
    machine.args(["--mount", "--propagation", "private", "sh", "-c", MACHINE, "sh"]);
    machine.arg(dir).arg(deb::path()).arg(program).env("INSIDE", INSIDE).stdin(Stdio::null());
    // What the tests' environment has would be found in place of what is installed.
    for name in ["BULKHEAD_LIB_DIR", "BULKHEAD_BIN", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR"] {
        machine.env_remove(name);
    }
    machine.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").current_dir(paths::root());
    let output = sh::capture(&mut machine)?;
    let (said, steps) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the package fails, as root: {}\n{said}{steps}", output.status);
    ensure!(said.lines().any(|line| line == "PASS"), "the program did not pass:\n{said}{steps}");
    Ok(())
}
