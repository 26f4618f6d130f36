//! Where everything lies in the region.
//!
//! The server chooses a `Layout`, keeps it, and sends it in the `Attach` message. Neither side ever reads it from the
//! region. All offsets follow from the few sizes, by one computation that both sides share.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::doorbell::BellWords;
use crate::lane::{DispatchWords, LaneWords, MAX_LANES};
use crate::ring::{Line, RingWords};

/// Raised whenever the meaning of any word of the region changes.
pub const LAYOUT_VERSION: u32 = 3;

const PAGE: u64 = 4096;
/// The bulk area starts on a huge page, so that registering it with a device is cheap.
const HUGE_PAGE: u64 = 2 << 20;
const MIN_RING: u64 = 4096;
const MAX_RING: u64 = 1 << 30;
const MAX_LANE_AREA: u32 = 16 << 20;
const MAX_FLAGS: u32 = 1 << 20;
const MAX_BULK: u64 = 1 << 40;

/// Why a layout is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// It has another version.
    #[error("unsupported layout version {0}; expected {LAYOUT_VERSION}")]
    Version(u32),
    /// The ring has a size that is no power of two, or out of bounds.
    #[error("ring size {0} is not a power of two between {MIN_RING} and {MAX_RING}")]
    Ring(u64),
    /// Too few or too many lanes.
    #[error("number of lanes {0} is not between 1 and {MAX_LANES}")]
    Lanes(u32),
    /// The area of a lane is not made of whole pages, or is too large.
    #[error("lane area of {0} bytes is not a multiple of {PAGE} up to {MAX_LANE_AREA}")]
    LaneArea(u32),
    /// The completion words do not fill whole pages, or are too many.
    #[error("number of flags {0} is not a multiple of 512 up to {MAX_FLAGS}")]
    Flags(u32),
    /// The bulk area is not made of whole pages, or is too large.
    #[error("bulk size {0} is not a multiple of {PAGE} up to {MAX_BULK}")]
    Bulk(u64),
}

/// The sizes that make a region. Part of the `Attach` message as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Layout {
    /// The layout's own.
    pub version: u32,
    /// How many client threads can await an answer at the same time.
    pub lanes: u32,
    /// Size of the ring, a power of two.
    pub ring_bytes: u64,
    /// Size of each lane's request area.
    pub request_bytes: u32,
    /// Size of each lane's reply area.
    pub reply_bytes: u32,
    /// How many completion words.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// Size of the staging area.
    pub bulk_bytes: u64,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            version: LAYOUT_VERSION,
            lanes: 256,
            ring_bytes: 4 << 20,
            request_bytes: 64 << 10,
            reply_bytes: 64 << 10,
            flags: 4096,
            reserved: 0,
            bulk_bytes: 64 << 20,
        }
    }
}

/// Byte offsets from the start of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub status: u64,
    pub ring_words: u64,
    pub dispatch_words: u64,
    pub lane_words: u64,
    pub flags: u64,
    pub ring: u64,
    pub lane_areas: u64,
    pub bulk: u64,
    pub total: u64,
}

impl Layout {
    /// Whether the sizes are within bounds and fit each other: a peer may have written anything.
    pub fn validate(&self) -> Result<(), LayoutError> {
        if self.version != LAYOUT_VERSION || self.reserved != 0 {
            return Err(LayoutError::Version(self.version));
        }
        if !self.ring_bytes.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&self.ring_bytes) {
            return Err(LayoutError::Ring(self.ring_bytes));
        }
        if self.lanes == 0 || self.lanes > MAX_LANES {
            return Err(LayoutError::Lanes(self.lanes));
        }
        for area in [self.request_bytes, self.reply_bytes] {
            if area == 0 || area > MAX_LANE_AREA || !u64::from(area).is_multiple_of(PAGE) {
                return Err(LayoutError::LaneArea(area));
            }
        }
        if self.flags == 0 || self.flags > MAX_FLAGS || !self.flags.is_multiple_of(512) {
            return Err(LayoutError::Flags(self.flags));
        }
        if self.bulk_bytes > MAX_BULK || !self.bulk_bytes.is_multiple_of(PAGE) {
            return Err(LayoutError::Bulk(self.bulk_bytes));
        }
        Ok(())
    }

    /// Size of the whole region in bytes.
    pub fn region_bytes(&self) -> Result<u64, LayoutError> {
        Ok(self.offsets()?.total)
    }

    /// No step can overflow: `validate` bounds every size far below that.
    pub(crate) fn offsets(&self) -> Result<Offsets, LayoutError> {
        self.validate()?;
        let status = 0;
        let ring_words = status + size_of::<StatusWords>() as u64;
        let dispatch_words = ring_words + size_of::<RingWords>() as u64;
        let lane_words = dispatch_words + size_of::<DispatchWords>() as u64;
        let flags = up(lane_words + u64::from(self.lanes) * size_of::<LaneWords>() as u64, PAGE);
        let ring = flags + u64::from(self.flags) * 8;
        let lane_areas = ring + self.ring_bytes;
        let lane_stride = u64::from(self.request_bytes) + u64::from(self.reply_bytes);
        let bulk = up(lane_areas + u64::from(self.lanes) * lane_stride, HUGE_PAGE);
        let total = bulk + self.bulk_bytes;
        Ok(Offsets { status, ring_words, dispatch_words, lane_words, flags, ring, lane_areas, bulk, total })
    }
}

const fn up(value: u64, to: u64) -> u64 {
    value.next_multiple_of(to)
}

/// The words at the very start.
#[repr(C, align(128))]
pub(crate) struct StatusWords {
    /// Written by the server: 0, or the code of a fault that ends this client's work.
    pub status: crate::sync::AtomicU32,
    /// For the transport's own use; zero at first.
    pub transport: Line<[crate::sync::AtomicU32; TRANSPORT_WORDS]>,
}

/// Words of the region that belong to the transport.
pub const TRANSPORT_WORDS: usize = 8;

// The offsets above rely on whole cache-line pairs.
#[cfg(not(loom))]
const _: () = assert!(
    size_of::<StatusWords>().is_multiple_of(128)
        && size_of::<RingWords>().is_multiple_of(128)
        && size_of::<DispatchWords>().is_multiple_of(128)
        && size_of::<LaneWords>().is_multiple_of(128)
        && size_of::<BellWords>() == 64
);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn default_is_valid_and_ranges_do_not_overlap() {
        let layout = Layout::default();
        let o = layout.offsets().unwrap();
        let ends =
            [o.status, o.ring_words, o.dispatch_words, o.lane_words, o.flags, o.ring, o.lane_areas, o.bulk, o.total];
        assert!(ends.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(o.flags.is_multiple_of(PAGE) && o.ring.is_multiple_of(PAGE) && o.bulk.is_multiple_of(HUGE_PAGE));
    }

    #[test]
    fn largest_sizes_do_not_overflow() {
        let layout = Layout {
            lanes: MAX_LANES,
            ring_bytes: MAX_RING,
            request_bytes: MAX_LANE_AREA,
            reply_bytes: MAX_LANE_AREA,
            flags: MAX_FLAGS,
            bulk_bytes: MAX_BULK,
            ..Layout::default()
        };
        assert!(layout.region_bytes().unwrap() > MAX_BULK);
    }

    #[test]
    fn refuses_bad_sizes() {
        let good = Layout::default();
        let bad = [
            Layout { version: LAYOUT_VERSION + 1, ..good },
            Layout { reserved: 1, ..good },
            Layout { ring_bytes: 0, ..good },
            Layout { ring_bytes: 5000, ..good },
            Layout { ring_bytes: 1 << 31, ..good },
            Layout { lanes: 0, ..good },
            Layout { lanes: MAX_LANES + 1, ..good },
            Layout { request_bytes: 0, ..good },
            Layout { reply_bytes: 100, ..good },
            Layout { request_bytes: u32::MAX, ..good },
            Layout { flags: 1, ..good },
            Layout { bulk_bytes: u64::MAX, ..good },
        ];
        for layout in bad {
            assert!(layout.validate().is_err(), "{layout:?}");
        }
    }
}
