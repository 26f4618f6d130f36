//! A private buffer whose start is aligned for any struct that a message may hold.

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code)] [u8; 64]);

pub(crate) struct AlignedBuf(Box<[Line]>);

impl AlignedBuf {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![Line([0; 64]); len.div_ceil(64)].into_boxed_slice())
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without padding between or inside.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 64) }
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 64) }
    }
}
