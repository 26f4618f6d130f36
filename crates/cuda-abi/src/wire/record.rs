//! Messages in a file, as a program sent them: to look at, and to make attacks of.
//!
//! A message is a line of [`HEAD`] bytes (way, nothing, op, tag, length, each little-endian) and its payload.

/// Bytes before the payload.
pub const HEAD: usize = 12;

/// How a message was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// On the ring, without a reply.
    Posted = 0,
    /// On the ring, with a reply.
    Called = 1,
    /// In a lane.
    Blocking = 2,
}

/// A message of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// How it was sent.
    pub way: Way,
    /// The opcode on the wire.
    pub op: u16,
    /// The index of the context, and flags.
    pub tag: u32,
    /// The encoded request.
    pub payload: Vec<u8>,
}

/// What stands before a payload in the file.
pub fn head(way: Way, op: u16, tag: u32, len: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = way as u8;
    head[2..4].copy_from_slice(&op.to_le_bytes());
    head[4..8].copy_from_slice(&tag.to_le_bytes());
    head[8..].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    head
}

/// All messages of a file; a last one that was cut off is left out.
pub fn read(mut bytes: &[u8]) -> Vec<Recorded> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let way = match head[0] {
            0 => Way::Posted,
            1 => Way::Called,
            2 => Way::Blocking,
            _ => break,
        };
        let [.., a, b, c, d] = *head;
        let Some((payload, rest)) = rest.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize) else { break };
        let op = u16::from_le_bytes([head[2], head[3]]);
        let tag = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        all.push(Recorded { way, op, tag, payload: payload.to_vec() });
        bytes = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_cut_one_is_not() {
        let messages = [(Way::Posted, 7, 1, &b"payload"[..]), (Way::Blocking, 0x8001, u32::MAX, b"")];
        let mut file: Vec<u8> = messages
            .iter()
            .flat_map(|(way, op, tag, payload)| [&head(*way, *op, *tag, payload.len())[..], payload].concat())
            .collect();
        let recorded =
            |(way, op, tag, payload): (Way, u16, u32, &[u8])| Recorded { way, op, tag, payload: payload.to_vec() };
        assert_eq!(read(&file), messages.map(recorded));
        file.extend(head(Way::Called, 1, 2, 100));
        assert_eq!(read(&file).len(), 2);
        assert_eq!(read(&[9; HEAD]), []);
    }
}
