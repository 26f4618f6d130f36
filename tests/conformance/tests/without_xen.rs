//! The client libraries built without their feature `xen`: for containers alone, without code for guests.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::harness::{Binaries, Honest, Place, Proxy};

/// A trace of the other kind of client: where its grants come from.
const MARK: &[u8] = b"/dev/xen/gntalloc";

fn cargo(arguments: &[&str]) -> Option<String> {
    let Some(cargo) = std::env::var_os("CARGO") else {
        testkit::not_tried("needs cargo, to build the libraries without a feature");
        return None;
    };
    let mut command = Command::new(cargo);
    command.args(arguments).args([
        "--package",
        "libcuda",
        "--package",
        "libnvml",
        "--no-default-features",
        "--offline",
    ]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn holds_mark(library: &Path) -> bool {
    let bytes = std::fs::read(library).expect("a built library");
    bytes.windows(MARK.len()).any(|part| part == MARK)
}

#[test]
fn they_depend_on_no_xen() {
    let Some(tree) = cargo(&["tree", "--edges", "normal", "--prefix", "none"]) else { return };
    assert!(tree.lines().any(|line| line.starts_with("idm ")), "{tree}");
    assert!(!tree.lines().any(|line| line.starts_with("xen ")), "{tree}");
}

#[test]
fn a_client_works_with_them() {
    // Apart from those that other tests use meanwhile.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-xen");
    let Some(_) = cargo(&["build", "--target-dir", target.to_str().expect("a plain path")]) else { return };
    let usual = Binaries::find().unwrap_or_else(|error| panic!("{error}"));
    let binaries = Binaries { library: target.join("debug/libcuda.so"), ..usual.clone() };
    for (with, without) in [(usual.library.clone(), binaries.library.clone()), (usual.nvml(), binaries.nvml())] {
        assert!(holds_mark(&with), "{} is built without Xen", with.display());
        assert!(!holds_mark(&without), "{} knows Xen", without.display());
    }
    let place = Place::of(binaries, PathBuf::from(env!("CARGO_BIN_EXE_conformance")));
    let proxy = Proxy::start(&place, &["a"]);
    let mut client = Honest::start(&place, &proxy.socket("a"));
    client.expect(&[("alloc 1000000", "ok"), ("compute", "ok")]);
    client.quit();
    proxy.stop();
    place.nothing_is_left();
}
