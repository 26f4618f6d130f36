//! Several of the same.

use std::fmt;
use std::marker::PhantomData;

use super::sample::pad;
use super::{Decode, Field, Plain, Source};
use crate::wire::{Malformed, Reader, Writer};

/// Plain values one behind the other, as one byte string: at most so many. What was decoded lies where it came from.
#[derive(Clone, Copy)]
pub struct Array<'a, T, const MAX: usize> {
    bytes: &'a [u8],
    values: PhantomData<&'a [T]>,
}

impl<'a, T: Plain, const MAX: usize> Array<'a, T, MAX> {
    /// To be written.
    #[inline]
    pub fn new(values: &'a [T]) -> Self {
        Array { bytes: T::bytes_of(values), values: PhantomData }
    }

    /// An array of the program's: NULL stands for none.
    ///
    /// # Safety
    /// `values` is NULL, or there are `count` values, which stay as they are for `'a`.
    pub unsafe fn at(values: *const T, count: usize) -> Self {
        if values.is_null() {
            return Array::default();
        }
        // One too many is enough not to be sent.
        let len = count.min(MAX + 1) * size_of::<T>();
        // SAFETY: the caller's promise; bytes need no alignment.
        Array { bytes: unsafe { std::slice::from_raw_parts(values.cast(), len) }, values: PhantomData }
    }

    /// How many values there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Whether there is no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The values, copied one by one: they need not be aligned in the message.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + Clone + use<'a, T, MAX> {
        // SAFETY: each chunk is as long as a value, the read is unaligned, and every pattern of bits is a value.
        self.bytes
            .chunks_exact(size_of::<T>())
            .map(|chunk| unsafe { std::ptr::read_unaligned(chunk.as_ptr().cast()) })
    }
}

impl<T, const MAX: usize> Default for Array<'_, T, MAX> {
    fn default() -> Self {
        Array { bytes: &[], values: PhantomData }
    }
}

impl<T, const MAX: usize> fmt::Debug for Array<'_, T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Array").field(&self.bytes).finish()
    }
}

impl<T: Plain, const MAX: usize> Field for Array<'_, T, MAX> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push('[');
        T::element(text);
        text.push_str(&format!("]<={MAX}"));
    }

    #[inline]
    fn size(&self) -> usize {
        self.bytes.size()
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        if self.len() > MAX {
            writer.refuse();
        }
        writer.bytes(self.bytes);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let len = source.count(MAX) * size_of::<T>();
        out.extend((len as u64).to_le_bytes());
        source.fill(len, out);
        pad(out);
    }
}

impl<'a, T: Plain, const MAX: usize> Decode<'a> for Array<'a, T, MAX> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let bytes = reader.bytes()?;
        if !bytes.len().is_multiple_of(size_of::<T>()) || bytes.len() / size_of::<T>() > MAX {
            return Err(Malformed);
        }
        Ok(Array { bytes, values: PhantomData })
    }
}

/// Where the items of a list are: with the writer, or in the message.
#[derive(Clone, Copy, Debug)]
enum Items<'a, T> {
    Given(&'a [T]),
    /// How many, and their encoding, which was read through once.
    Encoded(usize, &'a [u8]),
}

impl<'a, T: Decode<'a> + Copy> Items<'a, T> {
    fn iter(self) -> impl Iterator<Item = T> {
        let (given, mut reader) = match self {
            Items::Given(items) => (items, Reader::new(&[])),
            Items::Encoded(_, bytes) => (&[][..], Reader::new(bytes)),
        };
        let encoded = std::iter::from_fn(move || if reader.is_empty() { None } else { T::decode(&mut reader).ok() });
        given.iter().copied().chain(encoded)
    }
}

impl<T: Field> Items<'_, T> {
    fn size(&self) -> usize {
        match self {
            Items::Given(items) => items.iter().map(Field::size).sum(),
            Items::Encoded(_, bytes) => bytes.len(),
        }
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Items::Given(items) => items.iter().for_each(|item| item.encode(writer)),
            Items::Encoded(_, bytes) => writer.raw(bytes),
        }
    }
}

/// How many there are, then each: at most so many. Items may differ in length.
#[derive(Clone, Copy, Debug)]
pub struct List<'a, T, const MAX: usize>(Items<'a, T>);

impl<'a, T, const MAX: usize> List<'a, T, MAX> {
    /// To be written.
    pub fn new(items: &'a [T]) -> Self {
        List(Items::Given(items))
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        match self.0 {
            Items::Given(items) => items.len(),
            Items::Encoded(count, _) => count,
        }
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Decode<'a> + Copy, const MAX: usize> List<'a, T, MAX> {
    /// The items, decoded one by one.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.0.iter()
    }
}

impl<T: Field, const MAX: usize> Field for List<'_, T, MAX> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str("list(");
        T::shape(text);
        text.push_str(&format!(")<={MAX}"));
    }

    fn size(&self) -> usize {
        8 + self.0.size()
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        if self.len() > MAX {
            writer.refuse();
        }
        writer.word(self.len() as u64);
        self.0.encode(writer);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let count = source.count(MAX);
        out.extend((count as u64).to_le_bytes());
        (0..count).for_each(|_| T::sample(source, out));
    }
}

impl<'a, T: Decode<'a>, const MAX: usize> Decode<'a> for List<'a, T, MAX> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count: usize = reader.narrow()?;
        if count > MAX {
            return Err(Malformed);
        }
        let before = reader.remaining();
        for _ in 0..count {
            T::decode(reader)?;
        }
        let encoded = before.len() - reader.remaining().len();
        Ok(List(Items::Encoded(count, &before[..encoded])))
    }
}

/// As many as fit: one behind the other up to the message's end. Only the last field can be one, and
/// [`Writer::append`] adds to it while there is room.
#[derive(Clone, Copy, Debug)]
pub struct Rest<'a, T>(Items<'a, T>);

impl<'a, T> Rest<'a, T> {
    /// To be written.
    pub fn new(items: &'a [T]) -> Self {
        Rest(Items::Given(items))
    }
}

impl<'a, T: Decode<'a> + Copy> Rest<'a, T> {
    /// The items, decoded one by one.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.0.iter()
    }
}

impl<T: Field> Field for Rest<'_, T> {
    const LEAST: usize = 0;

    fn shape(text: &mut String) {
        text.push_str("rest(");
        T::shape(text);
        text.push(')');
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        self.0.encode(writer);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        let count = source.count(usize::MAX);
        (0..count).for_each(|_| T::sample(source, out));
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Rest<'a, T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let all = reader.remaining();
        let mut count = 0;
        while !reader.is_empty() {
            let before = reader.remaining().len();
            T::decode(reader)?;
            // An item of no length would come for ever.
            if reader.remaining().len() == before {
                return Err(Malformed);
            }
            count += 1;
        }
        Ok(Rest(Items::Encoded(count, all)))
    }
}
