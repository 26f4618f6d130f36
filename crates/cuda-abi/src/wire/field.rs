//! What may be a field of a message: how it is written, read, measured, and told apart by the fingerprint.
//!
//! A message is its fields, one behind the other. Every field begins at a word and ends at one, and each value has one
//! encoding: what is decoded and encoded again gives the same bytes. A field that has bounds refuses what is outside of
//! them when it is decoded, so a decoded message keeps to its description. Whether the handles
//! and addresses in it are the client's is for the worker to find out.

mod bytes;
mod list;
mod plain;
mod sample;

pub use bytes::{Block, Raw, Text};
pub use list::{Array, List, Rest};
pub use plain::Plain;
pub(crate) use plain::plain_fields;
pub use sample::Source;

use super::{Malformed, Reader, Writer};

/// Something that a message is made of, or a whole message.
pub trait Field {
    /// The fewest bytes that it has in a message. Whole messages are compared with it first, which spares the comparison
    /// word by word.
    const LEAST: usize;

    /// Appends what the field looks like, in words: the protocol's fingerprint is made of it.
    fn shape(text: &mut String);

    /// How many bytes [`Field::encode`] writes.
    fn size(&self) -> usize;

    /// Appends the field to a message. What is outside of its bounds makes the message invalid.
    fn encode(&self, writer: &mut Writer<'_>);

    /// Appends the encoding of some value that keeps to the field's bounds: for tests, fuzzing and attacks.
    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>);
}

/// A field that can be read out of a message, from which it may borrow.
pub trait Decode<'a>: Field + Sized {
    /// Takes the field off a message, checked against its bounds.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed>;
}

/// Reads a whole message: whatever is left over is a defect of the peer's.
#[inline]
pub fn decode<'a, T: Decode<'a>>(payload: &'a [u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(payload);
    let message = T::decode(&mut reader)?;
    reader.end()?;
    Ok(message)
}

/// Writes a whole message into the room that was made for it, which has [`Field::size`] bytes.
#[inline]
pub fn encode_into(message: &impl Field, room: &mut [u8]) {
    let mut writer = Writer::new(room);
    message.encode(&mut writer);
    debug_assert_eq!((writer.room(), writer.finish()), (0, Ok(message.size())), "a message is as long as it says");
}

/// A whole message in memory of its own.
pub fn to_vec(message: &impl Field) -> Vec<u8> {
    let mut bytes = vec![0; message.size()];
    encode_into(message, &mut bytes);
    bytes
}

/// Integers, each in a word that it must fit.
macro_rules! integers {
    ($($type:ident)*) => { $(
        impl Field for $type {
            const LEAST: usize = 8;

            fn shape(text: &mut String) {
                text.push_str(stringify!($type));
            }

            #[inline]
            fn size(&self) -> usize {
                8
            }

            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) {
                writer.word(*self as u64);
            }

            fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
                #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "any value will do")]
                let value = source.word() as $type;
                out.extend((value as u64).to_le_bytes());
            }
        }

        impl Decode<'_> for $type {
            #[inline]
            fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                reader.narrow()
            }
        }
    )* };
}

integers! { u64 u32 usize }

/// In the lower half of a word, whose upper half is zero.
impl Field for i32 {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str("i32");
    }

    #[inline]
    fn size(&self) -> usize {
        8
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        self.cast_unsigned().encode(writer);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        u32::sample(source, out);
    }
}

impl Decode<'_> for i32 {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        u32::decode(reader).map(u32::cast_signed)
    }
}

/// A word that is 0 or 1.
impl Field for bool {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str("bool");
    }

    #[inline]
    fn size(&self) -> usize {
        8
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.word(u64::from(*self));
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        out.extend((source.word() & 1).to_le_bytes());
    }
}

impl Decode<'_> for bool {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

/// The reply of operations that have nothing to say.
impl Field for () {
    const LEAST: usize = 0;

    fn shape(_: &mut String) {}

    #[inline]
    fn size(&self) -> usize {
        0
    }

    #[inline]
    fn encode(&self, _: &mut Writer<'_>) {}

    fn sample(_: &mut Source<'_>, _: &mut Vec<u8>) {}
}

impl Decode<'_> for () {
    #[inline]
    fn decode(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

/// One element behind the other.
impl<T: Field, const N: usize> Field for [T; N] {
    const LEAST: usize = N * T::LEAST;

    fn shape(text: &mut String) {
        text.push('[');
        T::shape(text);
        text.push_str(&format!(";{N}]"));
    }

    #[inline]
    fn size(&self) -> usize {
        self.iter().map(Field::size).sum()
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        self.iter().for_each(|element| element.encode(writer));
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        (0..N).for_each(|_| T::sample(source, out));
    }
}

impl<'a, T: Decode<'a> + Copy + Default, const N: usize> Decode<'a> for [T; N] {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut elements = [T::default(); N];
        for element in &mut elements {
            *element = T::decode(reader)?;
        }
        Ok(elements)
    }
}

/// Whether it is there, then what is.
impl<T: Field> Field for Option<T> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push('?');
        T::shape(text);
    }

    #[inline]
    fn size(&self) -> usize {
        8 + self.as_ref().map_or(0, Field::size)
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        self.is_some().encode(writer);
        if let Some(value) = self {
            value.encode(writer);
        }
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let is_there = source.word() & 1;
        out.extend(is_there.to_le_bytes());
        if is_there == 1 {
            T::sample(source, out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        if bool::decode(reader)? { T::decode(reader).map(Some) } else { Ok(None) }
    }
}
