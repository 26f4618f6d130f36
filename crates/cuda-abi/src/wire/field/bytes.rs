//! Byte strings.

use std::ffi::CString;

use super::sample::pad;
use super::{Decode, Field, Source};
use crate::wire::{Malformed, Reader, Writer};

/// Bytes of a string with its length and its padding.
#[inline]
fn string_size(len: usize) -> usize {
    8 + len.next_multiple_of(8)
}

fn sample_string(len: usize, source: &mut Source<'_>, out: &mut Vec<u8>) {
    out.extend((len as u64).to_le_bytes());
    source.fill(len, out);
    pad(out);
}

/// A byte string: length, bytes, padding. Only the message bounds it.
impl Field for &[u8] {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str("bytes");
    }

    #[inline]
    fn size(&self) -> usize {
        string_size(self.len())
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.bytes(self);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let len = source.count(100) * 7;
        sample_string(len, source, out);
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.bytes()
    }
}

/// Text for the driver: no NUL in it, and at most so many bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text<'a, const MAX: usize>(pub &'a [u8]);

impl<const MAX: usize> Text<'_, MAX> {
    /// As the driver takes it. One that was decoded has no NUL inside.
    pub fn to_c_string(self) -> Result<CString, Malformed> {
        CString::new(self.0).map_err(|_| Malformed)
    }
}

impl<const MAX: usize> Field for Text<'_, MAX> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str(&format!("text<={MAX}"));
    }

    #[inline]
    fn size(&self) -> usize {
        self.0.size()
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        if self.0.len() > MAX {
            writer.refuse();
        }
        self.0.encode(writer);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let len = source.count(MAX);
        out.extend((len as u64).to_le_bytes());
        out.extend((0..len).map(|_| b'a' + (source.word() % 26) as u8));
        pad(out);
    }
}

impl<'a, const MAX: usize> Decode<'a> for Text<'a, MAX> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let bytes = reader.bytes()?;
        if bytes.len() > MAX || bytes.contains(&0) { Err(Malformed) } else { Ok(Text(bytes)) }
    }
}

/// A byte string of at most so many bytes, which the sender may put in its place afterwards: then it is the last
/// field of its message, and what is written first are zeros.
#[derive(Clone, Copy, Debug)]
pub enum Block<'a, const MAX: usize> {
    /// The bytes themselves.
    Bytes(&'a [u8]),
    /// Room for so many, which [`Block::place`] finds again.
    Reserved(usize),
}

impl<'a, const MAX: usize> Block<'a, MAX> {
    /// The bytes of one that was decoded.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Block::Bytes(bytes) => bytes,
            Block::Reserved(_) => &[],
        }
    }

    /// Where the bytes go in an encoded message that ends with a block of `len` bytes.
    #[inline]
    pub fn place(message: &mut [u8], len: usize) -> &mut [u8] {
        let start = message.len().saturating_sub(len.next_multiple_of(8));
        let end = message.len().min(start + len);
        &mut message[start..end]
    }
}

impl<const MAX: usize> Field for Block<'_, MAX> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str(&format!("block<={MAX}"));
    }

    #[inline]
    fn size(&self) -> usize {
        match self {
            Block::Bytes(bytes) => bytes.size(),
            Block::Reserved(len) => string_size(*len),
        }
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Block::Bytes(bytes) => bytes.encode(writer),
            Block::Reserved(len) => {
                writer.word(*len as u64);
                writer.zeros(len.next_multiple_of(8));
            }
        }
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let len = source.count(MAX);
        sample_string(len, source, out);
    }
}

impl<'a, const MAX: usize> Decode<'a> for Block<'a, MAX> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let bytes = reader.bytes()?;
        if bytes.len() > MAX { Err(Malformed) } else { Ok(Block::Bytes(bytes)) }
    }
}

/// The rest of the message as it is, without a length or padding. Only the last field can be one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw<'a>(pub &'a [u8]);

impl Field for Raw<'_> {
    const LEAST: usize = 0;

    fn shape(text: &mut String) {
        text.push_str("raw");
    }

    #[inline]
    fn size(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.raw(self.0);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let len = source.count(100) * 3;
        source.fill(len, out);
    }
}

impl<'a> Decode<'a> for Raw<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Raw(reader.rest()))
    }
}
