//! The jail, really entered, and looked at from inside. This program jails itself when told so; without root it tries
//! the user namespace only.

use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use control::backend::{Backend, Options};
use control::packet;
use libtest_mimic::{Arguments, Trial};
use sandbox::driver::{Branch, Seal};
use sandbox::jail::{self, Policy, Request};

const NOBODY: u32 = 65534;
/// Names the policy of NVIDIA's driver where there is none; nothing of this name is looked at.
const STANDIN: &str = "/usr/lib/libstandin.so";
const OWN_UID: u32 = 0x3000_0007;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("inside") => inside(&arguments[1..]),
        Some("another-user") => another_user(),
        _ => libtest_mimic::run(&Arguments::from_args(), tests()).exit(),
    }
}

// Inside.

/// Arguments: policy, user id or `-`, directory, what to try.
fn inside(arguments: &[String]) {
    let stray = File::open("/etc/hosts").unwrap();
    let socket = packet::pair().unwrap().0;
    let dir = Path::new(&arguments[2]);
    let request = Request {
        policy: match arguments[0].as_str() {
            "soft" => Policy::Soft,
            library => Policy::Nvidia { library: library.into(), devices: Vec::new() },
        },
        root: dir.join("jail"),
        uid: arguments[1].parse().ok(),
        rejoin: Some(dir.join("workers/rejoin")),
        keep: vec![socket.as_raw_fd()],
        without_pid_namespace: false,
        names_descriptors: true,
        driver_filter: match arguments[3].as_str() {
            "supervised" => jail::DriverFilter::Supervise,
            "filtered" => jail::DriverFilter::Refuse,
            _ => jail::DriverFilter::Off,
        },
        branch: Branch::of("580.159.04"),
    };
    let mut kernel = jail::Linux::default();
    let report = jail::enter(&mut kernel, &jail::plan(&request)).unwrap();
    assert!(report.missing.is_empty(), "{:?}", report.reasons);
    match arguments[3].as_str() {
        "cuda" => start_cuda(&arguments[0]),
        "filtered" => filtered(),
        "supervised" => supervised(kernel.take_seal().expect("a guard that supervises")),
        "look" => look(&request, stray.as_raw_fd(), socket.as_raw_fd()),
        "wait" => {
            // SAFETY: the call takes nothing.
            eprintln!("waiting {}", unsafe { libc::getpid() });
            loop {
                std::thread::park();
            }
        }
        attack => {
            attempt(attack);
            eprintln!("survived");
        }
    }
    // The files behind these are closed, by the jail and not by their owners.
    std::mem::forget(stray);
}

/// Becomes another user and says by which signal its parent's death reaches it.
fn another_user() {
    jail::become_user(OWN_UID, OWN_UID).unwrap();
    let signal = rustix::process::parent_process_death_signal().unwrap();
    println!("{}", signal.map_or(0, rustix::process::Signal::as_raw));
}

fn look(request: &Request, stray: i32, kept: i32) {
    let soft = request.policy == Policy::Soft;
    // SAFETY: these calls take plain numbers.
    unsafe {
        assert_eq!(libc::getpid(), 1);
        assert_eq!(libc::getuid(), request.uid.unwrap_or(NOBODY));
        assert_eq!(libc::getgid(), request.uid.unwrap_or(NOBODY));
        assert_eq!(libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
        assert_eq!(libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0), 2);
        assert_eq!(libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0), 0xef);
        // It ends with its guard, and cannot change that.
        let mut signal: libc::c_int = 0;
        assert_eq!(libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0), -1, "it can outlive its guard");
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        assert_eq!(libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal, 0, 0, 0), 0);
        assert_eq!(signal, libc::SIGKILL);
        for capability in 0..40 {
            assert_eq!(libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0), 0, "capability {capability}");
        }
        assert_eq!(libc::fcntl(stray, libc::F_GETFD), -1, "a stray descriptor is open");
        assert_ne!(libc::fcntl(kept, libc::F_GETFD), -1);
        // Threads are allowed, processes of the soft policy are not.
        if soft {
            assert_eq!(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0), -1);
        }
        // Code generators need this.
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let memory = libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        assert_eq!(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), -1);
        assert_eq!(libc::kill(-1, 0), -1, "there is somebody else");
        // Terminals are nobody's business here; what is asked of any descriptor is no request to one.
        let mut byte = 0u8;
        for request in [libc::TIOCSTI, libc::TIOCSCTTY, libc::TIOCLINUX] {
            assert_eq!(libc::ioctl(2, request, &raw mut byte), -1);
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM), "{request:x}");
        }
        let mut waiting: libc::c_int = 0;
        assert_eq!(libc::ioctl(kept, libc::FIONREAD, &raw mut waiting), if soft { -1 } else { 0 });
    }
    std::thread::spawn(|| {}).join().unwrap();
    send_descriptors();
    for gone in
        ["/etc/passwd", "/home", "/root", "/sys", "/var", "/dev/mem", "/dev/kmsg", "/run/bulkhead/../../etc/passwd"]
    {
        assert!(!Path::new(gone).exists(), "{gone} is visible");
    }
    assert!(!request.root.exists(), "the host's directory is visible");
    for write in ["/x", "/dev/x", "/run/x", "/run/bulkhead/x"] {
        assert!(File::create(write).is_err(), "{write} can be written");
    }
    File::options().write(true).open("/dev/null").unwrap();
    packet::connect(&Path::new(jail::REJOIN_INSIDE).join("sock")).unwrap();
    if soft {
        assert!(!Path::new("/usr").exists() && !Path::new("/proc/self").exists());
    } else {
        assert_eq!(std::fs::read_link("/proc/self").unwrap(), PathBuf::from("1"));
        assert_eq!(File::create("/usr/x").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        std::fs::write("/dev/shm/x", "x").unwrap();
        let name = CString::new("libm.so.6").unwrap();
        // SAFETY: the C library's own part, which has no constructors of note.
        assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null(), "libraries cannot be loaded");
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
        }
        let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        assert_eq!(interfaces.lines().skip(2).count(), 1, "{interfaces}");
    }
    eprintln!("fine");
}

/// Messages can be sent, and descriptors cannot, in any of the ways that we know.
fn send_descriptors() {
    let (ours, theirs) = packet::pair().unwrap();
    packet::send(&ours, b"hello", &[]).unwrap();
    assert_eq!(packet::receive(&theirs, &mut [0; 8]).unwrap().len, 5);
    let sent = packet::send(&ours, b"hello", &[theirs.as_fd()]);
    assert_eq!(sent.map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied));
    // SAFETY: no messages, so nothing is read.
    assert_eq!(unsafe { libc::sendmmsg(ours.as_raw_fd(), std::ptr::null_mut(), 0, 0) }, -1);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
    // A listener of somebody's filter, through which its owner would get files of the process that answers; and binder. On any
    // other descriptor, and in another form, the kernel would know no such request.
    for request in [0x4018_2103 as libc::c_ulong, 0x2103, 0xc030_6201] {
        // SAFETY: the request is refused before anybody looks at the address.
        let asked = unsafe { libc::syscall(libc::SYS_ioctl, ours.as_raw_fd(), request, 0) };
        assert_eq!((asked, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)), "{request:x}");
    }
}

/// A control of an object, to a file that is no driver: the result, and what the driver is said to have answered.
fn control(file: &File, command: u32) -> (i64, u32) {
    let mut parameters = [0u32; 4];
    let address = parameters.as_mut_ptr().expose_provenance() as u64;
    let mut arguments = [1, 1, command, 0, address as u32, (address >> 32) as u32, 16, 0xdead];
    // SAFETY: arguments and parameters of a control, which live through the call.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), 0xc020_462a_u64, arguments.as_mut_ptr()) };
    (result, arguments[7])
}

/// Requests that no driver library makes are refused, and the others get where they are sent.
fn filtered() {
    let file = File::open("/dev/null").unwrap();
    assert_eq!(control(&file, 0x2080_110b), (-1, 0xdead));
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY), "the file's own answer");
    // SAFETY: the request is refused before anybody looks at the address.
    assert_eq!(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), 0xc010_46d3_u64, 0) }, -1);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
    eprintln!("fine");
}

/// The guard makes the calls, with the worker's own user and no right of its own.
fn supervised(seal: Seal) {
    let file = File::open("/dev/null").unwrap();
    assert_eq!(control(&file, 0x2080_110b), (-1, 0xdead), "nobody stands between yet");
    seal.close().unwrap();
    const NOT_SUPPORTED: u32 = 0x56;
    assert_eq!(control(&file, 0x2080_110b), (0, NOT_SUPPORTED), "stopping channels");
    assert_eq!(control(&file, 0x2080_200a), (0, 0), "a setting of the whole GPU is answered");
    assert_eq!(control(&file, 0x0000_0102), (-1, 0xdead));
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY), "the guard calls drivers only");
    let threads = [0; 4].map(|_| {
        std::thread::spawn(|| {
            let file = File::open("/dev/null").unwrap();
            for _ in 0..100 {
                assert_eq!(control(&file, 0x2080_110b), (0, NOT_SUPPORTED));
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    eprintln!("fine");
}

/// NVIDIA's driver, as a worker would start it.
fn start_cuda(library: &str) {
    let library = CString::new(library).unwrap();
    // SAFETY: the driver's library, called as its manual says, with locals to write to.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "the driver cannot be loaded");
        let find = |name: &str| {
            let address = libc::dlsym(handle, CString::new(name).unwrap().as_ptr());
            assert!(!address.is_null(), "{name}");
            address
        };
        type Init = unsafe extern "C" fn(u32) -> i32;
        type Context = unsafe extern "C" fn(*mut *mut libc::c_void, i32) -> i32;
        type Set = unsafe extern "C" fn(*mut libc::c_void) -> i32;
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> i32;
        assert_eq!(std::mem::transmute::<*mut libc::c_void, Init>(find("cuInit"))(0), 0, "cuInit");
        let mut context = std::ptr::null_mut();
        let retain = std::mem::transmute::<*mut libc::c_void, Context>(find("cuDevicePrimaryCtxRetain"));
        assert_eq!(retain(&raw mut context, 0), 0, "cuDevicePrimaryCtxRetain");
        assert_eq!(std::mem::transmute::<*mut libc::c_void, Set>(find("cuCtxSetCurrent"))(context), 0);
        let mut memory = 0;
        let allocate = std::mem::transmute::<*mut libc::c_void, Allocate>(find("cuMemAlloc_v2"));
        assert_eq!(allocate(&raw mut memory, 1 << 20), 0, "cuMemAlloc");
        eprintln!("fine");
    }
}

fn attempt(attack: &str) {
    let path = CString::new("/").unwrap();
    let pointer = path.as_ptr();
    // SAFETY: the calls get valid strings or plain numbers; if one of them worked, the test would fail.
    unsafe {
        match attack {
            "mount" => libc::syscall(libc::SYS_mount, pointer, pointer, pointer, libc::MS_BIND, 0),
            "unshare" => libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER),
            "ptrace" => libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0),
            "bpf" => libc::syscall(libc::SYS_bpf, 0, 0, 0),
            "keyctl" => libc::syscall(libc::SYS_keyctl, 0, 0, 0),
            "chroot" => libc::syscall(libc::SYS_chroot, pointer),
            "execve" => libc::syscall(libc::SYS_execve, pointer, 0, 0),
            // The same call by its number in the second ABI.
            "x32" => libc::syscall(0x4000_0000 + libc::SYS_getpid),
            _ => panic!("{attack}"),
        }
    };
}

// Outside.

struct Directory(PathBuf, #[allow(dead_code)] std::os::fd::OwnedFd);

impl Directory {
    fn new(owner: u32) -> Self {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        let path = PathBuf::from(format!("/tmp/bulkhead-jail-{:x}", u64::from_ne_bytes(random)));
        for dir in [path.clone(), path.join("jail"), path.join("workers"), path.join("workers/rejoin")] {
            std::fs::create_dir(&dir).unwrap();
            let _ = std::os::unix::fs::chown(&dir, Some(owner), Some(owner));
        }
        let listener = packet::listen(&path.join("workers/rejoin/sock"), 0o666, 8).unwrap();
        // Who is inside finds the socket where it is bound, and could not by its path.
        std::fs::set_permissions(path.join("workers"), Permissions::from_mode(0o700)).unwrap();
        Self(path, listener)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(dir: &Directory, policy: &str, root: bool, what: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    let uid = if root { OWN_UID.to_string() } else { "-".to_owned() };
    command.args(["inside", policy, &uid]).arg(&dir.0).arg(what).stderr(Stdio::piped()).stdin(Stdio::null());
    if !root && rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Gets a directory, and whether it is root who tries.
type Test = Box<dyn FnOnce(&Directory, bool) + Send>;

fn tests() -> Vec<Trial> {
    let mut all = Vec::new();
    for (whose, root) in [("root", true), ("anybody", false)] {
        let mut add = |name: String, test: Test| {
            let not_root = root && !rustix::process::geteuid().is_root();
            let trial = Trial::test(format!("{name}, by {whose}"), move || {
                test(&Directory::new(if root { 0 } else { NOBODY }), root);
                Ok(())
            });
            all.push(trial.with_ignored_flag(not_root).with_kind(if not_root { "needs root" } else { "" }));
        };
        for policy in ["soft", STANDIN] {
            add(format!("inside, with {policy}"), Box::new(move |dir, root| run_inside(dir, policy, root, "look")));
            for attack in ["mount", "unshare", "ptrace", "bpf", "keyctl", "chroot", "x32", "execve"] {
                let test = move |dir: &Directory, root| try_inside(dir, policy, root, attack);
                add(format!("{attack}, with {policy}"), Box::new(test));
            }
        }
        if let Ok(Backend::Nvidia { library, .. }) = Backend::choose(&Options::default()) {
            let test = move |dir: &Directory, root| run_inside(dir, library.to_str().unwrap(), root, "cuda");
            add("NVIDIA's driver starts".to_owned(), Box::new(test));
        }
        add("filtered".to_owned(), Box::new(|dir, root| run_inside(dir, STANDIN, root, "filtered")));
        if root {
            add("supervised".to_owned(), Box::new(|dir, root| run_inside(dir, STANDIN, root, "supervised")));
        }
        add("a killed guard takes its worker along".to_owned(), Box::new(kill_guard));
    }
    let tied = Trial::test("who becomes another user ends with its parent still", || {
        stay_tied();
        Ok(())
    });
    let not_root = !rustix::process::geteuid().is_root();
    all.push(tied.with_ignored_flag(not_root).with_kind(if not_root { "needs root" } else { "" }));
    all
}

fn run_inside(dir: &Directory, policy: &str, root: bool, what: &str) {
    let output = command(dir, policy, root, what).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.trim_end().ends_with("fine"), "{policy} {root}: {text}");
}

fn try_inside(dir: &Directory, policy: &str, root: bool, attack: &str) {
    let output = command(dir, policy, root, attack).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    // NVIDIA's library tries to start a helper; it gets an error for that.
    let refused = policy == STANDIN && attack == "execve";
    let expected = if refused { 0 } else { 128 + libc::SIGSYS };
    assert_eq!(output.status.code(), Some(expected), "{attack}: {text}");
}

fn stay_tied() {
    let mut command = Command::new("/proc/self/exe");
    command.arg("another-user");
    let said = |command: &mut Command| String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_eq!(said(&mut command), "0\n", "nobody has tied it");
    jail::die_with_parent(&mut command);
    assert_eq!(said(&mut command), format!("{}\n", libc::SIGKILL));
}

fn kill_guard(dir: &Directory, root: bool) {
    let mut guard = command(dir, "soft", root, "wait").spawn().unwrap();
    let mut pipe = BufReader::new(guard.stderr.take().unwrap());
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    assert_eq!(line, "waiting 1\n");
    guard.kill().unwrap();
    guard.wait().unwrap();
    // The worker held the other end; this returns when it is gone.
    pipe.read_to_end(&mut Vec::new()).unwrap();
}
