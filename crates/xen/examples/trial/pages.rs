//! Grants, mapping by another process than the one that chose, events, and both kinds of "tell me at the end".

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use xen::DomainId;
use xen::link::Taken;
use xen::store::{Permission, Store};
use xen::sys::Place;
use xen::sys::endings::{Endings, Expected};
use xen::sys::evtchn::Channel;
use xen::sys::gntalloc::GrantAllocator;
use xen::sys::gntdev::ForeignPages;

const PAGES: usize = 600;
const ROUNDS: u32 = 1000;
const NODE: &str = "data/trial";
const COUNTER: usize = 0;
const HOST_ALIVE: usize = 4;
const GUEST_ALIVE: usize = 8;
const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// A process of the guest that is killed by its parent, so that its end is its kernel's to tell.
pub(crate) fn guest() {
    if std::env::var_os("TRIAL_CHILD").is_some() {
        return guest_child();
    }
    let exe = std::env::current_exe().unwrap();
    let mut child =
        Command::new(exe).arg("pages-guest").env("TRIAL_CHILD", "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    while let Some(Ok(line)) = lines.next() {
        println!("{line}");
        if line == "kill me" {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
}

fn guest_child() {
    let mut store = Store::open().unwrap();
    let own: DomainId = store.read_text("domid").unwrap().unwrap().parse().unwrap();
    let allocator = GrantAllocator::open().unwrap();
    let grants = allocator.grant(0, PAGES).unwrap();
    let pages = grants.map(Place::Anywhere).unwrap();
    for page in 0..PAGES {
        pages.copy_in(page * xen::PAGE + 64, &[page as u8; 32]);
    }
    pages.word(HOST_ALIVE).store(1, Ordering::SeqCst);
    pages.word(GUEST_ALIVE).store(1, Ordering::SeqCst);
    let channel = Channel::offer(0).unwrap();
    grants.notify_at_end(GUEST_ALIVE, channel.port()).unwrap();
    // A batch that is given back at once leaves its references free.
    drop(allocator.grant(0, 100).unwrap());
    for (index, refs) in grants.refs().chunks(300).enumerate() {
        let text: Vec<String> = refs.iter().map(u32::to_string).collect();
        store.write(&format!("{NODE}/refs-{index}"), text.join(" ").as_bytes()).unwrap();
    }
    store.write(&format!("{NODE}/port"), channel.port().to_string().as_bytes()).unwrap();
    store.set_permissions(NODE, &[Permission::None(own), Permission::Read(0)]).unwrap();
    println!("guest {own}: {PAGES} pages granted, port {}", channel.port());
    // Ping, pong.
    for round in 1..=ROUNDS {
        while pages.word(COUNTER).load(Ordering::SeqCst) != 2 * round - 1 {
            assert!(channel.wait(LONG).unwrap());
        }
        pages.word(COUNTER).store(2 * round, Ordering::SeqCst);
        channel.notify().unwrap();
    }
    // The host's second process ends; its kernel clears the byte and rings.
    while pages.word(HOST_ALIVE).load(Ordering::SeqCst) != 0 {
        assert!(channel.wait(LONG).unwrap());
    }
    println!("guest {own}: saw the end of the one that had mapped the pages");
    println!("kill me");
    loop {
        std::thread::park();
    }
}

pub(crate) fn host(domain: DomainId) {
    let mut store = Store::open().unwrap();
    let home = store.domain_path(domain).unwrap();
    let node = format!("{home}/{NODE}");
    store.watch(&node, "trial").unwrap();
    let port = loop {
        match store.read_text(&format!("{node}/port")).unwrap() {
            Some(port) => break port.parse().unwrap(),
            None => assert!(store.next_event(LONG).unwrap().is_some(), "the guest says nothing"),
        }
    };
    let mut refs = Vec::new();
    for index in 0..PAGES / 300 {
        let text = store.read_text(&format!("{node}/refs-{index}")).unwrap().unwrap();
        refs.extend(text.split(' ').map(|number| number.parse::<u32>().unwrap()));
    }
    assert!(store.is_introduced(domain).unwrap() && !store.is_introduced(12345).unwrap());
    // References that were never granted cannot be mapped.
    assert!(ForeignPages::choose(domain, &[1 << 20]).and_then(|pages| pages.map(Place::Anywhere)).is_err());
    assert!(ForeignPages::choose(domain, &[refs[0], 1 << 20]).and_then(|p| p.map(Place::Anywhere)).is_err());
    assert!(Channel::bind(domain, 4000).is_err());

    let channel = Channel::bind(domain, port).unwrap();
    restricted(domain, &channel);
    endings(domain, &refs);
    // Mapped a second time, in this process.
    let second = ForeignPages::choose(domain, &refs[..1]).unwrap().map(Place::Anywhere).unwrap();
    let pages = ForeignPages::choose(domain, &refs).unwrap();
    // Chosen here, mapped there: another process gets both descriptors, and nothing of them stays here.
    let (ours, theirs) = idm::bootstrap::pair().unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut child = Command::new(exe).arg("pages-host-child").stdin(Stdio::from(theirs)).spawn().unwrap();
    let offer = Parts { index: pages.index(), pages: PAGES as u64, port: channel.port(), pad: 0 };
    idm::bootstrap::send(&ours, &offer, &[pages.as_fd(), channel.as_fd()]).unwrap();
    idm::bootstrap::recv::<Taken>(&ours).unwrap();
    pages.notify_when_unmapped(HOST_ALIVE, channel.port()).unwrap();
    drop((pages, channel));
    assert!(child.wait().unwrap().success());
    // The guest's process is killed, and its kernel clears the byte of a page that is still mapped here.
    let start = std::time::Instant::now();
    while second.word(GUEST_ALIVE).load(Ordering::SeqCst) != 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the guest's process lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("host: saw the end of the guest's process");
    store.remove(&node).unwrap();
}

/// The kernel says when nothing holds pages that were chosen any more: not while they are mapped or can be mapped, and once.
fn endings(domain: DomainId, refs: &[u32]) {
    let own: DomainId = Store::open().unwrap().read_text("domid").unwrap().unwrap_or_default().parse().unwrap_or(0);
    let endings = Endings::open(own).unwrap();
    // Binding raises events at the other end, for nothing.
    let heard = |expected: &Expected| {
        let mut count = 0;
        while let Some(port) = endings.next().unwrap() {
            count += usize::from(expected.is_at(port));
        }
        count
    };
    let soon = |expected: &Expected| {
        let start = std::time::Instant::now();
        let mut count = 0;
        while count == 0 && start.elapsed() < Duration::from_secs(60) {
            count = heard(expected);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((count, heard(expected)), (1, 0));
        endings.forget(*expected);
    };
    let mapped = ForeignPages::choose(domain, &refs[..3]).unwrap();
    let expected = endings.expect(&mapped).unwrap();
    let mapped = mapped.map(Place::Anywhere).unwrap();
    assert_eq!(heard(&expected), 0, "they are mapped");
    drop(mapped);
    soon(&expected);
    let never_mapped = ForeignPages::choose(domain, &refs[..3]).unwrap();
    let expected = endings.expect(&never_mapped).unwrap();
    assert_eq!(heard(&expected), 0, "somebody could map them");
    drop(never_mapped);
    soon(&expected);
    // Harmless where pages cannot be mapped.
    let not_granted = ForeignPages::choose(domain, &[refs[0], 1 << 20]).unwrap();
    let expected = endings.expect(&not_granted).unwrap();
    assert!(not_granted.map(Place::Anywhere).is_err());
    soon(&expected);
    println!("host: heard three times that pages were let go of");
}

/// A channel to one domain is of no use for another, no matter who has its descriptor; and one that was ended is of no use at all.
fn restricted(domain: DomainId, channel: &Channel) {
    let device = channel.as_fd().try_clone_to_owned().unwrap();
    assert!(
        Channel::offer_on(device, domain + 1).is_err(),
        "a restricted descriptor offers a channel to another domain"
    );
    let own = Channel::offer(domain).unwrap();
    own.notify().unwrap();
    own.unbind().unwrap();
    assert!(own.notify().is_err() && own.unbind().is_err(), "what was unbound is gone");
}

#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
struct Parts {
    index: u64,
    pages: u64,
    port: u32,
    pad: u32,
}

impl idm::bootstrap::Message for Parts {
    fn is_valid(&self) -> bool {
        true
    }

    fn descriptors(&self) -> usize {
        2
    }
}

pub(crate) fn host_child() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let (parts, fds) = idm::bootstrap::recv::<Parts>(&socket).unwrap();
    let [pages, channel]: [OwnedFd; 2] = fds.try_into().unwrap();
    let pages = ForeignPages::from_parts(pages, parts.index, parts.pages as usize).map(Place::Anywhere).unwrap();
    let channel = Channel::from_parts(channel, parts.port);
    idm::bootstrap::send(&socket, &Taken::default(), &[]).unwrap();
    let mut bytes = [0; 32];
    for page in 0..PAGES {
        pages.copy_out(page * xen::PAGE + 64, &mut bytes);
        assert_eq!(bytes, [page as u8; 32]);
    }
    // A futex that is private to this process works on foreign pages.
    let word = pages.word(COUNTER);
    let timeout = rustix::thread::futex::Timespec { tv_sec: 0, tv_nsec: 1000 };
    let private = rustix::thread::futex::Flags::PRIVATE;
    let slept = rustix::thread::futex::wait(word, private, 0, Some(&timeout));
    assert_eq!(slept.err(), Some(rustix::io::Errno::TIMEDOUT));
    for round in 1..=ROUNDS {
        word.store(2 * round - 1, Ordering::SeqCst);
        channel.notify().unwrap();
        while word.load(Ordering::SeqCst) != 2 * round {
            assert!(channel.wait(LONG).unwrap());
        }
    }
    println!("host: {ROUNDS} round trips in another process than the one that chose the pages");
}
