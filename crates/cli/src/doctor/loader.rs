//! Which `libcuda.so.1` a program would load, and why.

use std::path::{Path, PathBuf};

use control::elf;

use super::finding::Finding;
use super::scene::Scene;

const LIBRARY: &str = "libcuda.so.1";
/// The loader's default directories.
pub(super) const USUAL: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// A library that the loader would find, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub path: PathBuf,
    pub why: String,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ours,
    Nvidia,
    /// For linking only; every call fails.
    Stub,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "the client library",
            Self::Nvidia => "the driver library",
            Self::Stub => "a stub for linking",
        }
    }
}

/// All candidates in the loader's order; the first one is loaded.
pub(super) fn candidates(scene: &Scene) -> Vec<Candidate> {
    let program = scene.program.as_deref().and_then(|path| elf::describe(&scene.path(path)));
    let program = program.unwrap_or_default();
    let mut found: Vec<Candidate> = Vec::new();
    let mut add = |path: PathBuf, why: String| {
        let known = path.canonicalize().unwrap_or_else(|_| path.clone());
        if found.iter().any(|other| other.path.canonicalize().is_ok_and(|other| other == known)) {
            return;
        }
        if let Some(kind) = kind(&path) {
            found.push(Candidate { path, why, kind });
        }
    };
    let preload = scene.variable("LD_PRELOAD").unwrap_or_default();
    for path in preload.split([':', ' ']).filter(|path| path.contains("libcuda.so")) {
        add(scene.path(path), "in LD_PRELOAD".to_owned());
    }
    if program.runpath.is_empty() {
        for dir in &program.rpath {
            add(scene.path(dir).join(LIBRARY), "in the program's RPATH".to_owned());
        }
    }
    let named = scene.variable("LD_LIBRARY_PATH").unwrap_or_default();
    for dir in named.split([':', ';']).filter(|dir| !dir.is_empty()) {
        add(scene.path(dir).join(LIBRARY), format!("{dir} is in LD_LIBRARY_PATH"));
    }
    for dir in &program.runpath {
        add(scene.path(dir).join(LIBRARY), "in the program's RUNPATH".to_owned());
    }
    let cache = std::fs::read(scene.path("/etc/ld.so.cache")).unwrap_or_default();
    for path in cached(&cache, LIBRARY) {
        add(scene.path(path), "in /etc/ld.so.cache".to_owned());
    }
    for dir in USUAL {
        add(scene.path(dir).join(LIBRARY), format!("{dir} is a default directory of the loader"));
    }
    found
}

fn kind(path: &Path) -> Option<Kind> {
    let found = elf::describe(path).filter(|found| found.dynamic)?;
    let real = path.canonicalize().ok()?;
    let stub = real.parent().is_some_and(|dir| dir.ends_with("stubs"));
    Some(if found.ours {
        Kind::Ours
    } else if stub {
        Kind::Stub
    } else {
        Kind::Nvidia
    })
}

/// Paths that the loader's cache has for a name, in order.
fn cached(bytes: &[u8], name: &str) -> Vec<String> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    let Some(start) = bytes.windows(MAGIC.len()).position(|part| part == MAGIC) else { return Vec::new() };
    let cache = &bytes[start..];
    let word = |at: usize| cache.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let text = |at: u32| {
        let rest = cache.get(at as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    };
    let count = word(MAGIC.len()).unwrap_or(0) as usize;
    let entry = |index: usize| {
        let at = HEADER + index * ENTRY;
        let (key, value) = (text(word(at + 4)?)?, text(word(at + 8)?)?);
        (key == name).then(|| value.to_owned())
    };
    (0..count.min(cache.len() / ENTRY)).filter_map(entry).collect()
}

pub(super) fn check(scene: &Scene, findings: &mut Vec<Finding>) {
    let candidates = candidates(scene);
    let listed = |candidate: &Candidate| {
        format!("{} ({}; {})", candidate.path.display(), candidate.kind.name(), candidate.why)
    };
    let others: Vec<String> = candidates.iter().skip(1).map(listed).collect();
    let others = if others.is_empty() { String::new() } else { format!("; followed by {}", others.join(", ")) };
    let Some(first) = candidates.first() else {
        let seen = format!("the loader finds no {LIBRARY}");
        findings.push(if scene.is_tenant() {
            Finding::error(
                "loader",
                seen,
                "CUDA programs report that no driver is installed (cudaErrorInsufficientDriver, 35)",
                "the client library is neither in a directory of the loader nor in LD_LIBRARY_PATH",
                "start the program with `bulkhead run`, or mount the client library into /usr/lib/x86_64-linux-gnu, as \
                 the device plugin does",
            )
        } else {
            Finding::note("loader", format!("{seen}; `bulkhead run` loads the client library first"))
        });
        return;
    };
    let seen = format!("programs load {}{others}", listed(first));
    findings.push(match (first.kind, scene.is_tenant()) {
        (Kind::Ours, _) => Finding::ok("loader", seen),
        (Kind::Nvidia, false) => {
            Finding::note("loader", format!("{seen}; `bulkhead run` loads the client library first"))
        }
        (Kind::Nvidia, true) => Finding::error(
            "loader",
            seen,
            "cuInit returns 100 (no device), because this library needs device nodes",
            "a driver library of the image or of NVIDIA's container toolkit comes before the client library",
            "remove it from the image or from LD_LIBRARY_PATH, and remove NVIDIA's runtime class from the pod",
        ),
        (Kind::Stub, _) => Finding::error(
            "loader",
            seen,
            "every CUDA call returns 34 (stub library)",
            "LD_LIBRARY_PATH contains the CUDA toolkit's stubs, which are for linking only",
            "remove .../lib64/stubs from LD_LIBRARY_PATH",
        ),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache as ldconfig writes it, with these names and paths.
    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let strings_at = 48 + entries.len() * 24;
        let (mut strings, mut table) = (Vec::new(), Vec::new());
        for (key, value) in entries {
            let mut place = |text: &str| {
                let at = (strings_at + strings.len()) as u32;
                strings.extend_from_slice(text.as_bytes());
                strings.push(0);
                at
            };
            let (key, value) = (place(key), place(value));
            for word in [0x0303, key, value, 0, 0, 0] {
                table.extend_from_slice(&u32::to_le_bytes(word));
            }
        }
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        bytes.resize(48, 0);
        bytes.extend(table);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn the_cache_is_read_and_nonsense_is_none() {
        let bytes =
            cache(&[("libc.so.6", "/lib/libc.so.6"), (LIBRARY, "/a/libcuda.so.1"), (LIBRARY, "/b/libcuda.so.1")]);
        assert_eq!(cached(&bytes, LIBRARY), ["/a/libcuda.so.1", "/b/libcuda.so.1"]);
        for end in 0..bytes.len() {
            cached(&bytes[..end], LIBRARY);
        }
        assert!(cached(b"nothing", LIBRARY).is_empty());
    }

    #[test]
    fn the_first_in_the_loaders_order_is_told_with_its_reason() {
        let root = testkit::directory();
        for dir in ["opt/ours", "opt/stubs", "usr/lib64", "etc"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let compile = |dir: &str, source: &str| drop(root.shared_library(&format!("{dir}/{LIBRARY}"), source));
        compile("opt/ours", "int bulkhead_libvgpu = 1;");
        compile("opt/stubs", "int cuInit;");
        compile("usr/lib64", "int cuInit;");
        std::fs::write(root.join("etc/ld.so.cache"), cache(&[(LIBRARY, "/usr/lib64/libcuda.so.1")])).unwrap();
        let kinds = |path: &str| {
            let scene = Scene::fake(&root, &[("LD_LIBRARY_PATH", path)]);
            candidates(&scene).iter().map(|found| found.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds("/opt/ours:/opt/stubs"), [Kind::Ours, Kind::Stub, Kind::Nvidia]);
        assert_eq!(kinds("/opt/stubs:/nowhere"), [Kind::Stub, Kind::Nvidia]);
        assert_eq!(kinds(""), [Kind::Nvidia], "once, though the cache and the loader's directories both have it");
        let mut findings = Vec::new();
        check(&Scene::fake(&root, &[("BULKHEAD_SOCKET", "/s"), ("LD_LIBRARY_PATH", "/opt/stubs")]), &mut findings);
        assert!(findings[0].symptom.contains("34"), "{findings:?}");
    }
}
