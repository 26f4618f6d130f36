//! Messages of workers that have fallen, and of clients that publish or wait, as the broker decides about them: nobody gets
//! what its zone may not have, nobody pays for another, no message changes what another worker has, and nothing is left of those
//! who are gone. Of what workers say, `JAILED`, `READY`, `REJOIN`, `DRIVER_FILE` and `ANNOUNCED` are left out: they are about
//! processes and files.
#![no_main]

use broker::{FallenWorkers, Strangers};
use control::messages::{Shared, ToBroker, Token, event_page, shared, to_broker};
use control::rendezvous::{RendezvousMessage, kind};
use idm::bootstrap::Message;
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, SealFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const WORKERS: u64 = 6;

fuzz_target!(|steps: Vec<(u8, u8, u8, [u8; 12])>| {
    let mut strangers = Strangers::default();
    let mut fallen = FallenWorkers::default();
    let mut tokens: Vec<Token> = Vec::new();
    for (what, who, which, bytes) in steps.into_iter().take(200) {
        let peer = u64::from(who) % WORKERS;
        let token = tokens.get(usize::from(which) % tokens.len().max(1)).copied().unwrap_or([which; 16]);
        match what % 12 {
            0 | 1 => {
                let (message, file) = export(token, which, &bytes);
                tokens.extend(strangers.worker_says(peer, &message, file));
            }
            2..5 => {
                let kinds = [to_broker::IMPORT, to_broker::IMPORT, to_broker::CLOSE, to_broker::WITHDRAW];
                let mut message = ToBroker::new(kinds[usize::from(what >> 3) % kinds.len()]);
                (message.token, message.value) = (token, u64::from(bytes[0] % 7));
                strangers.worker_says(peer, &message, None);
            }
            5 => strangers.worker_ends(peer),
            6 => {
                let client = u64::from(who % 24);
                strangers.client_enters(client);
                let message = client_message(token, which, &bytes);
                if message.is_valid() {
                    strangers.client_says(client, message);
                }
            }
            8 | 9 => fallen.says(peer, &memory_message(which, &bytes)),
            10 => match which % 4 {
                0 => fallen.suspend(peer),
                1 => fallen.wait(bytes[0]),
                2 => fallen.adopt(peer),
                _ => fallen.ends(peer),
            },
            _ if which & 1 == 0 => strangers.client_leaves(u64::from(who % 24)),
            _ => strangers.client_reads(u64::from(who % 24)),
        }
    }
    strangers.end(WORKERS);
    fallen.end(WORKERS);
});

/// Something to share, right in most of its fields.
fn export(page: Token, which: u8, bytes: &[u8; 12]) -> (ToBroker, Option<std::os::fd::OwnedFd>) {
    let mut message = ToBroker::new(to_broker::EXPORT);
    message.token = page;
    let size = u64::from(bytes[0]) << 12;
    let (kind, size) = match which % 8 {
        0 => (shared::PAGE, event_page::PAGE as u64),
        1 => (shared::EVENT, event_page::PAGE as u64),
        2 => (shared::PHYSICAL, size),
        3 => (shared::POOLED, size),
        4 => (u64::from(bytes[1]), size),
        _ => (shared::MEMORY, size),
    };
    let (offset, len) =
        if bytes[2] & 1 == 0 { (0, size) } else { (u64::from(bytes[3]) << 8, u64::from(bytes[4]) << 8) };
    message.details = Shared { kind, size, offset, len, flags: u64::from(bytes[5] & 3) };
    if bytes[6] == 0 {
        message.details.len = u64::MAX - u64::from(bytes[7]);
    }
    let file = (kind != shared::EVENT && bytes[8] & 15 != 0).then(|| {
        let file =
            rustix::fs::memfd_create("shared", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::ftruncate(&file, event_page::PAGE as u64).expect("a page");
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        file
    });
    (message, file)
}

/// What a worker says of its memory, of being suspended, or of its driver's objects.
fn memory_message(which: u8, bytes: &[u8; 12]) -> ToBroker {
    let kinds = [
        to_broker::CHARGE,
        to_broker::CHARGE,
        to_broker::RELEASE,
        to_broker::USAGE,
        to_broker::SUSPENDED,
        to_broker::BUSY,
        to_broker::NOT_SUSPENDED,
        to_broker::MOVED,
        to_broker::NEED_ROOM,
        to_broker::DRIVER_OBJECT,
        u32::from(bytes[0]),
    ];
    let mut message = ToBroker::new(kinds[usize::from(which) % kinds.len()]);
    message.account = u32::from(bytes[1] % 5);
    message.version = u32::from(bytes[2] & 3);
    let value = u64::from_le_bytes([bytes[3], bytes[4], bytes[5], 0, 0, 0, 0, 0]);
    message.value = if bytes[6] == 0 { u64::MAX - value } else { value >> (bytes[6] & 7) };
    message.details = Shared {
        kind: u64::from(bytes[7] & 3),
        size: u64::from(bytes[8]) << 28,
        offset: u64::from(bytes[9]),
        len: u64::from(bytes[10]) << 56,
        flags: u64::from(bytes[11]),
    };
    message
}

fn client_message(token: Token, which: u8, bytes: &[u8; 12]) -> RendezvousMessage {
    let kinds = [kind::PUBLISH, kind::WAIT, kind::DONE, kind::LIST, kind::FINISH, u32::from(bytes[0])];
    let mut message = RendezvousMessage::new_zeroed();
    message.kind = kinds[usize::from(which) % kinds.len()];
    message.code = u32::from(bytes[1] & 3);
    message.number = u64::from(bytes[2]);
    message.name[0] = b'a' + bytes[3] % 3;
    if bytes[4] & 3 == 0 {
        message.zone[..5].copy_from_slice(b"first");
    }
    if bytes[5] & 1 == 0 {
        message.memory[16..32].copy_from_slice(&token);
    }
    if bytes[6] == 0 {
        let mut noise = message.as_bytes().to_vec();
        let at = usize::from(bytes[7]) * 4;
        noise[at..at + 4].copy_from_slice(&bytes[8..12]);
        message = RendezvousMessage::read_from_bytes(&noise).expect("as long as it was");
    }
    message
}
