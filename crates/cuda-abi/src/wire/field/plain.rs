//! C structs that travel as they lie in memory.

/// A value that is nothing but its bytes.
///
/// # Safety
/// The type has no padding, and every pattern of bits is a value of it.
pub unsafe trait Plain: Copy + 'static {
    /// Appends what the type is, for the shape of arrays.
    fn element(text: &mut String);

    /// The values' bytes.
    #[inline]
    fn bytes_of(values: &[Self]) -> &[u8] {
        // SAFETY: no byte of a plain value is padding, and the slice has as many bytes as its values.
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }

    /// The value that these bytes are, if there are as many as it has.
    #[inline]
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: as many bytes as the value has, read without regard to alignment; every pattern is a value.
        (bytes.len() == size_of::<Self>()).then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

macro_rules! plain_integers {
    ($($type:ident)*) => { $(
        // SAFETY: an integer.
        unsafe impl Plain for $type {
            fn element(text: &mut String) {
                text.push_str(stringify!($type));
            }
        }
    )* };
}

plain_integers! { u32 u64 }

/// Makes fields of plain structs: their bytes, padded to words.
macro_rules! plain_fields {
    ($($type:ident)*) => { $(
        // SAFETY: `structs!` and `blobs!` see to it that there is no padding; the fields are integers, pointers that
        // nobody follows before they are checked, and arrays of such.
        unsafe impl $crate::wire::Plain for $type {
            fn element(text: &mut String) {
                <$type as $crate::wire::Field>::shape(text);
            }
        }

        impl $crate::wire::Field for $type {
            const LEAST: usize = size_of::<$type>().next_multiple_of(8);

            fn shape(text: &mut String) {
                text.push_str(concat!(stringify!($type), ":"));
                text.push_str(&size_of::<$type>().to_string());
            }

            #[inline]
            fn size(&self) -> usize {
                size_of::<$type>().next_multiple_of(8)
            }

            #[inline]
            fn encode(&self, writer: &mut $crate::wire::Writer<'_>) {
                writer.raw(<$type as $crate::wire::Plain>::bytes_of(std::slice::from_ref(self)));
                writer.zeros(size_of::<$type>().next_multiple_of(8) - size_of::<$type>());
            }

            fn sample(source: &mut $crate::wire::Source<'_>, out: &mut Vec<u8>) {
                source.fill(size_of::<$type>(), out);
                out.resize(out.len().next_multiple_of(8), 0);
            }
        }

        impl $crate::wire::Decode<'_> for $type {
            #[inline]
            fn decode(reader: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::Malformed> {
                let bytes = reader.padded(size_of::<$type>())?;
                <$type as $crate::wire::Plain>::from_bytes(bytes).ok_or($crate::wire::Malformed)
            }
        }
    )* };
}

pub(crate) use plain_fields;
