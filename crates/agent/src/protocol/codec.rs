//! Fields of messages as bytes: little-endian numbers, and lengths before what has one.

/// What no honest side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("message ends early")]
    Short,
    #[error("message has bytes after its end")]
    Long,
    #[error("unknown kind {0}")]
    Kind(u8),
    #[error("field is longer than {0} bytes")]
    TooLong(usize),
    #[error("text is not UTF-8")]
    Text,
}

/// Reads fields off the front of a body.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.take(N)?.try_into().map_err(|_| DecodeError::Short)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Kind(other)),
        }
    }

    pub fn bytes(&mut self, max: usize) -> Result<Vec<u8>, DecodeError> {
        let length = usize::try_from(self.u32()?).map_err(|_| DecodeError::TooLong(max))?;
        if length > max {
            return Err(DecodeError::TooLong(max));
        }
        Ok(self.take(length)?.to_vec())
    }

    pub fn text(&mut self, max: usize) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes(max)?).map_err(|_| DecodeError::Text)
    }

    /// A list. Nothing is set aside for elements that are promised and do not come.
    pub fn list<T>(
        &mut self,
        max: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = usize::try_from(self.u32()?).map_err(|_| DecodeError::TooLong(max))?;
        if count > max {
            return Err(DecodeError::TooLong(max));
        }
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(element(self)?);
        }
        Ok(list)
    }

    fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Long) }
    }
}

/// Writes fields behind each other.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend(value);
        self
    }

    pub fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    pub fn list<T>(&mut self, list: &[T], mut element: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u32(u32::try_from(list.len()).unwrap_or(u32::MAX));
        for value in list {
            element(self, value);
        }
        self
    }
}

/// A message as a body.
pub trait Decode: Sized {
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.write(&mut writer);
        writer.0
    }

    /// Whole, or not at all.
    fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let message = Self::read(&mut reader)?;
        reader.end()?;
        Ok(message)
    }
}
