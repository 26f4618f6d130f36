//! Writing and reading payloads: words, and byte strings padded to words.

use std::fmt;

use super::Field;

/// A payload that does not fit its description: the peer is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed message")
    }
}

impl std::error::Error for Malformed {}

/// Fills a buffer of fixed size. What does not fit is dropped and [`Writer::finish`] says so.
pub struct Writer<'a> {
    /// What is left of the buffer.
    rest: &'a mut [u8],
    len: usize,
    overflow: bool,
}

impl<'a> Writer<'a> {
    /// Writes from the beginning of `buffer` on.
    #[inline]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Writer { len: buffer.len(), rest: buffer, overflow: false }
    }

    /// Eight bytes, little-endian; what does not fit is found by [`Writer::finish`].
    #[inline]
    pub fn word(&mut self, word: u64) {
        match std::mem::take(&mut self.rest).split_first_chunk_mut() {
            Some((room, rest)) => {
                *room = word.to_le_bytes();
                self.rest = rest;
            }
            None => self.overflow = true,
        }
    }

    /// One word after the other.
    pub fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.word(*word));
    }

    /// Length, bytes, padding.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.raw(bytes);
        self.raw(&[0; 8][..bytes.len().next_multiple_of(8) - bytes.len()]);
    }

    /// So many zeros.
    #[inline]
    pub fn zeros(&mut self, len: usize) {
        if let Some(room) = self.take(len) {
            room.fill(0);
        }
    }

    /// The next bytes of the buffer, if there are so many.
    #[inline]
    fn take(&mut self, len: usize) -> Option<&'a mut [u8]> {
        match std::mem::take(&mut self.rest).split_at_mut_checked(len) {
            Some((room, rest)) => {
                self.rest = rest;
                Some(room)
            }
            None => {
                self.overflow = true;
                None
            }
        }
    }

    /// Has [`Writer::finish`] say that this is no message: a field that is outside of its bounds does.
    #[cold]
    pub fn refuse(&mut self) {
        self.rest = &mut [];
        self.overflow = true;
    }

    /// One more item of a message that ends with [as many as fit](super::Rest); says whether it did.
    pub fn append(&mut self, item: &impl Field) -> bool {
        let fits = item.size() <= self.room();
        if fits {
            item.encode(self);
        }
        fits
    }

    /// A plain value as bytes.
    ///
    /// # Safety
    /// `T` must have no padding that matters to secrecy and `value` must be readable: it is copied byte by byte.
    pub unsafe fn plain<T: Copy>(&mut self, value: *const T) {
        // SAFETY: the caller vouches that `value` is readable for its size.
        self.bytes(unsafe { std::slice::from_raw_parts(value.cast(), size_of::<T>()) });
    }

    /// An array of plain values as bytes.
    ///
    /// # Safety
    /// `values` must be readable for `count` elements.
    pub unsafe fn array<T: Copy>(&mut self, values: *const T, count: usize) {
        if count == 0 || values.is_null() {
            return self.bytes(&[]);
        }
        match count.checked_mul(size_of::<T>()) {
            Some(len) if len <= self.len => {
                // SAFETY: the caller vouches for `count` readable elements.
                self.bytes(unsafe { std::slice::from_raw_parts(values.cast(), len) })
            }
            _ => self.overflow = true,
        }
    }

    /// How many bytes still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.rest.len()
    }

    /// Bytes as they are.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Some(room) = self.take(bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// How many bytes were written, if all fitted.
    pub fn finish(self) -> Result<usize, Malformed> {
        if self.overflow { Err(Malformed) } else { Ok(self.len - self.rest.len()) }
    }
}

/// Takes a payload apart, in the order it was written.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of `payload` on.
    pub fn new(payload: &'a [u8]) -> Self {
        Reader { rest: payload }
    }

    /// Eight bytes, little-endian.
    #[inline]
    pub fn word(&mut self) -> Result<u64, Malformed> {
        let (word, rest) = self.rest.split_first_chunk::<8>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// A word that must fit a smaller integer.
    #[inline]
    pub fn narrow<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        self.word()?.try_into().map_err(|_| Malformed)
    }

    /// A byte string written by [`Writer::bytes`].
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len: usize = self.narrow()?;
        self.padded(len)
    }

    /// So many bytes, and the zeros behind them up to the next word.
    #[inline]
    pub fn padded(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let padded = len.checked_next_multiple_of(8).ok_or(Malformed)?;
        let (taken, rest) = self.rest.split_at_checked(padded).ok_or(Malformed)?;
        let (bytes, padding) = taken.split_at(len);
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Malformed);
        }
        self.rest = rest;
        Ok(bytes)
    }

    /// A plain value written by [`Writer::plain`].
    ///
    /// # Safety
    /// Every bit pattern must be a value of `T`.
    pub unsafe fn plain<T: Copy>(&mut self) -> Result<T, Malformed> {
        let bytes = self.bytes()?;
        if bytes.len() != size_of::<T>() {
            return Err(Malformed);
        }
        // SAFETY: the length is right, the read is unaligned, and the caller vouches for the bit pattern.
        Ok(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }

    /// An array written by [`Writer::array`], which must have `count` elements or none at all (a NULL pointer).
    ///
    /// # Safety
    /// Every bit pattern must be a value of `T`.
    pub unsafe fn array<T: Copy>(&mut self, count: u64) -> Result<Option<Vec<T>>, Malformed> {
        let bytes = self.bytes()?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if Some(bytes.len() as u64) != count.checked_mul(size_of::<T>() as u64) {
            return Err(Malformed);
        }
        let values = bytes.chunks_exact(size_of::<T>());
        // SAFETY: each chunk has the size of `T`, the read is unaligned, and the caller vouches for the bit pattern.
        Ok(Some(values.map(|chunk| unsafe { std::ptr::read_unaligned(chunk.as_ptr().cast()) }).collect()))
    }

    /// Is there nothing left to read?
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What has not been read, which stays to be read.
    #[inline]
    pub fn remaining(&self) -> &'a [u8] {
        self.rest
    }

    /// What has not been read: the bulk of a message whose head was.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Ends reading; anything left over is a defect of the peer's.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut buffer = [0; 128];
        let mut writer = Writer::new(&mut buffer);
        writer.word(7);
        writer.bytes(b"kernel");
        // SAFETY: an array of integers.
        unsafe { writer.plain(&[1u32, 2, 3]) };
        let used = writer.finish().unwrap();
        let mut reader = Reader::new(&buffer[..used]);
        assert_eq!(reader.narrow::<u32>(), Ok(7));
        assert_eq!(reader.bytes(), Ok(&b"kernel"[..]));
        // SAFETY: an array of integers.
        assert_eq!(unsafe { reader.plain::<[u32; 3]>() }, Ok([1, 2, 3]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn padding_is_zero() {
        let mut payload = 5u64.to_le_bytes().to_vec();
        payload.extend(*b"names\0\0\0");
        assert_eq!(Reader::new(&payload).bytes(), Ok(&b"names"[..]));
        payload[14] = 1;
        assert_eq!(Reader::new(&payload).bytes(), Err(Malformed));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for len in [9u64, u64::MAX, u64::MAX - 6, 1 << 40] {
            let mut payload = len.to_le_bytes().to_vec();
            payload.extend([0; 8]);
            assert_eq!(Reader::new(&payload).bytes(), Err(Malformed), "{len}");
        }
        assert_eq!(Reader::new(&[0; 7]).word(), Err(Malformed));
        assert_eq!(Reader::new(&[255; 8]).narrow::<u32>(), Err(Malformed));
        let mut small = [0; 8];
        let mut writer = Writer::new(&mut small);
        writer.bytes(b"no room");
        assert_eq!(writer.finish(), Err(Malformed));
    }
}
