//! Messages of workers that have fallen, and of clients that publish or wait, as the broker decides about them: nobody gets
//! what its zone may not have, nobody pays for another, and nothing is left of those who are gone.
#![no_main]

use broker::Strangers;
use control::messages::{Shared, ToBroker, Token, event_page, shared, to_broker};
use control::rendezvous::{RendezvousMessage, kind};
use idm::bootstrap::Message;
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, SealFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const WORKERS: u64 = 6;

fuzz_target!(|steps: Vec<(u8, u8, u8, [u8; 12])>| {
    let mut strangers = Strangers::default();
    let mut tokens: Vec<Token> = Vec::new();
    for (what, who, which, bytes) in steps.into_iter().take(200) {
        let peer = u64::from(who) % WORKERS;
        let token = tokens.get(usize::from(which) % tokens.len().max(1)).copied().unwrap_or([which; 16]);
        match what % 8 {
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
            _ if which & 1 == 0 => strangers.client_leaves(u64::from(who % 24)),
            _ => strangers.client_reads(u64::from(who % 24)),
        }
    }
    strangers.end(WORKERS);
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
