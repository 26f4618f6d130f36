//! Programs that meet by name: one publishes a buffer, others wait for it, and each learns when the other is done.
//!
//! A connection to the zone's socket begins with idm's `Rendezvous`, and goes on with messages of one size in both directions.
//! It has one role, given by its first message:
//!
//! | says | hears |
//! |---|---|
//! | `PUBLISH` name, offer | `PUBLISHED` or `REFUSED`; then `TAKEN`, `FINISHED`, `LOST` for each who takes it |
//! | `WAIT` name | `FOUND` with the offer, when there is one; then `GONE` when its publisher is |
//! | `LIST` from `number` on | an `ENTRY` for each publication that the zone may see, as many as fit, then `END` with the `number` of all |
//! | `FINISH` name | `END`: those of the zone who took it without staying are done |
//!
//! Then a publisher says `DONE` when it withdraws its offer, and the client that took it does when it has no more
//! use for it; a client that hangs up without saying so is lost. Time-outs are the client's own: it hangs up.
//!
//! `bindings/c/bulkhead_ipc.h` and `bindings/python/bulkhead` speak the same; the numbers here never change their meaning.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use idm::bootstrap::{self, BootstrapError, Message, Rendezvous};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::name::{MAX, ZoneName};

/// Kinds of [`RendezvousMessage`]: below 100 a client's, above it the broker's.
pub mod kind {
    /// Offers a buffer under a name.
    pub const PUBLISH: u32 = 1;
    /// Asks for a name.
    pub const WAIT: u32 = 2;
    /// Withdraws the offer, or has no more use for it.
    pub const DONE: u32 = 3;
    /// Asks what is published.
    pub const LIST: u32 = 4;
    /// Has no more use for what was taken with [`DETACH`](super::DETACH).
    pub const FINISH: u32 = 5;

    /// The offer stands.
    pub const PUBLISHED: u32 = 101;
    /// Here is the offer.
    pub const FOUND: u32 = 102;
    /// To who has taken it: the publisher has withdrawn it (`code` 0), or is lost.
    pub const GONE: u32 = 103;
    /// To the publisher: consumer `number`, of `zone`, has it.
    pub const TAKEN: u32 = 104;
    /// To the publisher: a consumer is done with it.
    pub const FINISHED: u32 = 105;
    /// To the publisher: a consumer hung up without a word.
    pub const LOST: u32 = 106;
    /// A publication, in answer to `LIST`.
    pub const ENTRY: u32 = 107;
    /// Nothing more comes.
    pub const END: u32 = 108;
    /// No, and `code` says why.
    pub const REFUSED: u32 = 109;
}

/// Codes of `REFUSED` and `GONE`.
pub mod code {
    /// The name, or something else of the message, is not as it must be.
    pub const MALFORMED: u32 = 1;
    /// The zone has a publication of that name.
    pub const NAME_TAKEN: u32 = 2;
    /// The handle opens nothing: its memory was freed, or it is from before the proxy was started.
    pub const STALE: u32 = 3;
    /// The zone has as many publications and waiting programs as it may have.
    pub const TOO_MANY: u32 = 4;
    /// The publisher is gone without a word.
    pub const DIED: u32 = 5;
}

/// Flag of `WAIT`: the connection ends with the answer, and `FINISH` says when the offer is done with.
pub const DETACH: u32 = 1;
/// Bytes of a name, its NUL included.
pub const FIELD: usize = MAX + 1;
/// Bytes of a handle.
pub const HANDLE: usize = 64;
/// Bytes of a note at most.
pub const NOTE: usize = 712;

/// A field that should be a name, and is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoName;

/// A message, in either direction.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RendezvousMessage {
    /// One of [`kind`].
    pub kind: u32,
    /// Of `WAIT`: flags. Of `REFUSED` and `GONE`: why.
    pub code: u32,
    /// Which consumer it is about, counted from 1; of an `ENTRY`: how many have it now; of `LIST` and `END`: see above.
    pub number: u64,
    /// Of the offer: how many bytes, and where in the memory they begin.
    pub bytes: u64,
    /// Where in the memory the buffer begins.
    pub offset: u64,
    /// Of an `ENTRY`: how long ago it was published, in milliseconds.
    pub age: u64,
    /// Zero.
    pub reserved: u64,
    /// What it is published as; see [`RendezvousMessage::name`].
    pub name: [u8; FIELD],
    /// Of `WAIT`: the zone that it must come from, if that matters. From the broker: the zone it is about.
    pub zone: [u8; FIELD],
    /// As `cuIpcGetMemHandle` and `cuIpcGetEventHandle` gave them; all zeros: there is none.
    pub memory: [u8; HANDLE],
    /// As `memory`: recorded when the buffer's content is ready.
    pub event: [u8; HANDLE],
    /// How many bytes of `note` count.
    pub note_len: u64,
    /// Whatever the publisher has to say, such as the shape of a tensor. Nobody between reads it.
    pub note: [u8; NOTE],
}

const _: () = assert!(size_of::<RendezvousMessage>() == 1024);

impl RendezvousMessage {
    /// A message of which only the kind is set.
    pub fn new(kind: u32) -> Self {
        let mut message = Self::new_zeroed();
        message.kind = kind;
        message
    }

    /// A `REFUSED` with a reason, one of [`code`].
    pub fn refusal(code: u32) -> Self {
        let mut message = Self::new(kind::REFUSED);
        message.code = code;
        message
    }

    /// The same with a name.
    pub fn named(mut self, name: &ZoneName) -> Self {
        self.name = name.to_field();
        self
    }

    /// The name, if it is one.
    pub fn name(&self) -> Option<ZoneName> {
        ZoneName::from_field(&self.name)
    }

    /// The zone, if one is named; an error if it is not a name.
    pub fn zone(&self) -> Result<Option<ZoneName>, NoName> {
        if self.zone == [0; FIELD] { Ok(None) } else { ZoneName::from_field(&self.zone).map(Some).ok_or(NoName) }
    }

    /// The part of it that counts, whatever the length says.
    pub fn note(&self) -> &[u8] {
        usize::try_from(self.note_len).ok().and_then(|len| self.note.get(..len)).unwrap_or_default()
    }

    /// As much of it as there is room for.
    pub fn set_note(&mut self, note: &[u8]) {
        let len = note.len().min(NOTE);
        self.note[..len].copy_from_slice(&note[..len]);
        self.note_len = len as u64;
    }

    /// The broker's token in a handle; none where there is no handle.
    pub fn tokens(&self) -> impl Iterator<Item = [u8; 16]> {
        const TOKEN_AT: usize = 16;
        let handles = [self.memory, self.event].into_iter().filter(|handle| *handle != [0; HANDLE]);
        handles.map(|handle| std::array::from_fn(|byte| handle[TOKEN_AT + byte]))
    }
}

impl Message for RendezvousMessage {
    fn is_valid(&self) -> bool {
        self.reserved == 0 && self.note_len <= NOTE as u64
    }

    fn descriptors(&self) -> usize {
        0
    }
}

/// Why there was no rendezvous.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RendezvousError {
    #[error(transparent)]
    Connection(#[from] BootstrapError),
    #[error("timed out: nothing was published under this name")]
    TimedOut,
    #[error("refused by the proxy: {}", explain(*.0))]
    Refused(u32),
    #[error("the publisher is gone")]
    Gone,
    #[error("invalid answer from the proxy")]
    Nonsense,
}

/// A code of `REFUSED`, for people.
pub fn explain(code: u32) -> &'static str {
    match code {
        code::MALFORMED => "not a valid name (1 to 63 letters, digits, '-', '_' or '.')",
        code::NAME_TAKEN => "the zone has a publication of that name already",
        code::STALE => "the handle is stale: its memory was freed, or the proxy was restarted since",
        code::TOO_MANY => "the zone has too many publications or waiting programs",
        code::DIED => "the publisher ended without withdrawing it",
        _ => "for a reason that this program does not know",
    }
}

/// A program's end of such a connection.
pub struct RendezvousClient {
    socket: OwnedFd,
}

impl RendezvousClient {
    /// To the zone's socket.
    pub fn connect(socket: &Path) -> Result<Self, RendezvousError> {
        let socket = bootstrap::connect(socket)?;
        bootstrap::send(&socket, &Rendezvous::default(), &[])?;
        Ok(Self { socket })
    }

    /// The connection, to be watched: its hang-up says that the broker is gone.
    pub fn socket(&self) -> &impl AsFd {
        &self.socket
    }

    /// Sends a message.
    pub fn say(&self, message: &RendezvousMessage) -> Result<(), RendezvousError> {
        Ok(bootstrap::send(&self.socket, message, &[])?)
    }

    /// The next message; none if there is none until then.
    pub fn hear(&self, until: Option<Instant>) -> Result<Option<RendezvousMessage>, RendezvousError> {
        let received = match until {
            None => bootstrap::recv::<RendezvousMessage>(&self.socket),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                bootstrap::recv_within::<RendezvousMessage>(&self.socket, left)
            }
        };
        match received {
            Ok((message, _)) => Ok(Some(message)),
            Err(BootstrapError::Timeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes an offer. It stands until this is dropped, or `DONE` is said.
    pub fn publish(socket: &Path, offer: &RendezvousMessage) -> Result<Self, RendezvousError> {
        let client = Self::connect(socket)?;
        client.say(offer)?;
        match client.hear(Some(Instant::now() + ANSWER_TIME))? {
            Some(answer) if answer.kind == kind::PUBLISHED => Ok(client),
            Some(answer) if answer.kind == kind::REFUSED => Err(RendezvousError::Refused(answer.code)),
            _ => Err(RendezvousError::Nonsense),
        }
    }

    /// Waits for an offer.
    pub fn wait(
        socket: &Path,
        request: &RendezvousMessage,
        until: Option<Instant>,
    ) -> Result<(Self, RendezvousMessage), RendezvousError> {
        let client = Self::connect(socket)?;
        client.say(request)?;
        match client.hear(until)? {
            None => Err(RendezvousError::TimedOut),
            Some(answer) if answer.kind == kind::FOUND => Ok((client, answer)),
            Some(answer) if answer.kind == kind::REFUSED => Err(RendezvousError::Refused(answer.code)),
            Some(_) => Err(RendezvousError::Nonsense),
        }
    }
}

/// A broker answers at once.
const ANSWER_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_names_stay_within_their_fields() {
        let mut message = RendezvousMessage::new(kind::PUBLISH).named(&"weights".parse().unwrap());
        message.set_note(&[7; NOTE + 9]);
        assert!(message.is_valid() && message.note().len() == NOTE);
        assert_eq!(message.name().unwrap().as_str(), "weights");
        message.note_len = NOTE as u64 + 1;
        assert!(!message.is_valid() && message.note().is_empty());
        message.name = [b'/'; FIELD];
        assert_eq!(message.name(), None);
        assert_eq!(message.zone(), Ok(None));
        message.zone[0] = b'!';
        assert_eq!(message.zone(), Err(NoName));
    }

    #[test]
    fn a_handle_of_zeros_is_none() {
        let mut message = RendezvousMessage::new(kind::PUBLISH);
        assert_eq!(message.tokens().count(), 0);
        message.memory[16..32].copy_from_slice(&[3; 16]);
        assert_eq!(message.tokens().collect::<Vec<_>>(), [[3; 16]]);
    }
}
