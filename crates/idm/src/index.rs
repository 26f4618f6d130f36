//! Places in memory that both sides write as 64 bits.

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "idm is for machines of 64 bits");

/// A place or length, as memory is indexed. Whether it is in range is for the index to find out.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "both have 64 bits, as checked above")]
pub(crate) const fn index(place: u64) -> usize {
    place as usize
}
