//! What travels over the link.
//!
//! A frame is a word that says what it is, a word with the length of what follows, and that. What is longer than a
//! frame may be is sent in several.

use super::LinkError;
use xen::ring::Ring;

/// The longest that follows the two words.
pub const MAX_PAYLOAD: usize = 32 << 10;
const HEAD: usize = 8;
/// How much input may be under way to a program that does not read it: signals must not wait behind it.
pub const MAX_INPUT: usize = 256 << 10;

/// To the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// The next argument of the command; the first is the program.
    Argument(Vec<u8>),
    /// NAME=VALUE, for the command's environment.
    Variable(Vec<u8>),
    /// Where the command runs.
    WorkingDirectory(Vec<u8>),
    /// Run it: all has been said. True: on a terminal.
    Start {
        terminal: bool,
    },
    Input(Vec<u8>),
    InputEnd,
    Signal(u32),
    /// Rows and columns of the terminal.
    Size(u16, u16),
}

/// To the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Up {
    /// The guest is up, after so many milliseconds.
    Ready(u32),
    Output(Vec<u8>),
    Errors(Vec<u8>),
    /// So much of the input went to the program, or nobody will read it any more.
    InputTaken(u32),
    /// The command could not be started: the system's number for why.
    CannotStart(u32),
    /// It has ended: its status, or 128 and the signal's number.
    Exited(u8),
}

/// What can be put on a ring and taken off it.
pub trait Frame: Sized {
    fn encode(&self) -> (u32, Vec<u8>);
    /// None for what no honest side sends.
    fn decode(kind: u32, payload: Vec<u8>) -> Option<Self>;
}

impl Frame for Down {
    fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Self::Argument(bytes) => (1, bytes.clone()),
            Self::Variable(bytes) => (2, bytes.clone()),
            Self::WorkingDirectory(bytes) => (3, bytes.clone()),
            Self::Start { terminal } => (4, vec![(*terminal).into()]),
            Self::Input(bytes) => (5, bytes.clone()),
            Self::InputEnd => (6, Vec::new()),
            Self::Signal(number) => (7, number.to_le_bytes().into()),
            Self::Size(rows, columns) => (8, [rows.to_le_bytes(), columns.to_le_bytes()].concat()),
        }
    }

    fn decode(kind: u32, payload: Vec<u8>) -> Option<Self> {
        Some(match (kind, &payload[..]) {
            (1, _) => Self::Argument(payload),
            (2, _) => Self::Variable(payload),
            (3, _) => Self::WorkingDirectory(payload),
            (4, [terminal @ (0 | 1)]) => Self::Start { terminal: *terminal == 1 },
            (5, _) => Self::Input(payload),
            (6, []) => Self::InputEnd,
            (7, _) => Self::Signal(number(&payload)?),
            (8, [a, b, c, d]) => Self::Size(u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d])),
            _ => return None,
        })
    }
}

impl Frame for Up {
    fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Self::Ready(time) => (1, time.to_le_bytes().into()),
            Self::Output(bytes) => (2, bytes.clone()),
            Self::Errors(bytes) => (3, bytes.clone()),
            Self::InputTaken(count) => (4, count.to_le_bytes().into()),
            Self::CannotStart(why) => (5, why.to_le_bytes().into()),
            Self::Exited(status) => (6, vec![*status]),
        }
    }

    fn decode(kind: u32, payload: Vec<u8>) -> Option<Self> {
        Some(match (kind, &payload[..]) {
            (1, _) => Self::Ready(number(&payload)?),
            (2, _) => Self::Output(payload),
            (3, _) => Self::Errors(payload),
            (4, _) => Self::InputTaken(number(&payload)?),
            (5, _) => Self::CannotStart(number(&payload)?),
            (6, [status]) => Self::Exited(*status),
            _ => return None,
        })
    }
}

fn number(payload: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(payload.try_into().ok()?))
}

/// Puts a frame on the ring. False: there is no room for it now.
pub fn send(ring: &mut Ring, frame: &impl Frame) -> Result<bool, LinkError> {
    let (kind, payload) = frame.encode();
    if payload.len() > MAX_PAYLOAD {
        return Err(LinkError::Broken);
    }
    if ring.room()? < HEAD + payload.len() {
        return Ok(false);
    }
    ring.put(&[&kind.to_le_bytes(), &(payload.len() as u32).to_le_bytes(), &payload]);
    Ok(true)
}

/// Takes a frame off the ring, if there is one.
pub fn receive<F: Frame>(ring: &mut Ring) -> Result<Option<F>, LinkError> {
    let filled = ring.filled()?;
    if filled < HEAD {
        return Ok(None);
    }
    let mut head = [0; HEAD];
    ring.peek(&mut head);
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (kind, len) = (word(0), word(4) as usize);
    // A frame is put in as a whole, so one that is not whole is a lie.
    if len > MAX_PAYLOAD || filled < HEAD + len {
        return Err(LinkError::Broken);
    }
    let mut frame = vec![0; HEAD + len];
    ring.peek(&mut frame);
    // The head may have been changed meanwhile; what was checked is what counts.
    let payload = frame.split_off(HEAD);
    ring.take(HEAD + len);
    F::decode(kind, payload).map(Some).ok_or(LinkError::Broken)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

    use super::super::pages::{RING_BYTES, UP, UP_BYTES};
    use super::*;
    use xen::ring::Shared;

    /// Memory of this process in the place of granted pages.
    struct Memory {
        bytes: Vec<AtomicU8>,
        words: Vec<AtomicU32>,
    }

    impl Shared for Memory {
        fn copy_out(&self, offset: usize, into: &mut [u8]) {
            into.iter_mut().zip(&self.bytes[offset..]).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        }

        fn copy_in(&self, offset: usize, from: &[u8]) {
            from.iter().zip(&self.bytes[offset..]).for_each(|(from, to)| to.store(*from, Ordering::Relaxed));
        }

        fn word(&self, offset: usize) -> &AtomicU32 {
            &self.words[offset / 4]
        }
    }

    fn ends() -> (Ring, Ring) {
        let bytes = (0..RING_BYTES).map(|_| AtomicU8::new(0)).collect();
        let words = (0..xen::PAGE / 4).map(|_| AtomicU32::new(0)).collect();
        let memory = Arc::new(Memory { bytes, words });
        let end = || Ring::new(memory.clone(), memory.clone(), UP_BYTES, UP);
        (end(), end())
    }

    #[test]
    fn every_frame_comes_out_as_it_went_in() {
        let (mut sender, mut receiver) = ends();
        let bytes = || b"some bytes".to_vec();
        let down = [
            Down::Argument(bytes()),
            Down::Variable(bytes()),
            Down::WorkingDirectory(Vec::new()),
            Down::Start { terminal: true },
            Down::Input(vec![7; MAX_PAYLOAD]),
            Down::InputEnd,
            Down::Signal(15),
            Down::Size(24, 80),
        ];
        for frame in down {
            assert!(send(&mut sender, &frame).unwrap());
            assert_eq!(receive::<Down>(&mut receiver).unwrap(), Some(frame));
        }
        let up = [
            Up::Ready(1200),
            Up::Output(bytes()),
            Up::Errors(bytes()),
            Up::InputTaken(3),
            Up::CannotStart(2),
            Up::Exited(137),
        ];
        for frame in up {
            assert!(send(&mut sender, &frame).unwrap());
            assert_eq!(receive::<Up>(&mut receiver).unwrap(), Some(frame));
        }
        assert_eq!(receive::<Up>(&mut receiver).unwrap(), None);
    }

    #[test]
    fn a_full_ring_takes_no_more_and_loses_nothing() {
        let (mut sender, mut receiver) = ends();
        let frame = Up::Output(vec![1; 30_000]);
        assert!(send(&mut sender, &frame).unwrap());
        assert!(send(&mut sender, &frame).unwrap());
        assert!(!send(&mut sender, &frame).unwrap());
        assert_eq!(receive(&mut receiver).unwrap().as_ref(), Some(&frame));
        assert!(send(&mut sender, &frame).unwrap());
    }

    #[test]
    fn lies_end_the_link() {
        let word = |value: u32| value.to_le_bytes();
        let lies: [&[&[u8]]; 5] = [
            &[&word(2), &word(MAX_PAYLOAD as u32 + 1)],
            &[&word(2), &word(u32::MAX)],
            &[&word(2), &word(10), b"short"],
            &[&word(99), &word(0)],
            &[&word(6), &word(2), b"xx"],
        ];
        for lie in lies {
            let (mut sender, mut receiver) = ends();
            sender.put(lie);
            assert!(matches!(receive::<Up>(&mut receiver), Err(LinkError::Broken)), "{lie:?}");
        }
    }
}
