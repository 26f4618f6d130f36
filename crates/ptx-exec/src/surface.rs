//! Reading and writing surfaces. The first coordinate counts bytes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ptx_passes::texture::{CLAMP, Geometry, REDUCE, SIGNED, STORE, SURFACE_WORDS, ZERO};

use super::context::{Context, RawFault, fail};
use super::fault::FaultKind;
use super::image::SURFACES;

/// # Safety
/// On the fiber of `context`; there are `SURFACE_WORDS` words.
pub(crate) unsafe fn access(context: *mut Context, code: u64, words: *mut u64) {
    // SAFETY: as promised; the image is copied, so nothing is held when the fiber ends.
    unsafe {
        let inputs = *words.cast::<[u64; SURFACE_WORDS]>();
        let Some(image) = SURFACES.get(inputs[0]).map(|image| *image) else {
            let message = String::from("not a surface object");
            fail(context, RawFault { kind: FaultKind::IllegalAddress, address: Some(inputs[0]), message })
        };
        let geometry = Geometry::of_number(code & 15);
        let (width, count) = (code >> 4 & 15, code >> 8 & 15);
        let bytes = width * count;
        let row = u64::from(image.size[0]) * image.element();
        let layer = i64::from(inputs[1] as i32);
        let mut place = [2, 3, 4].map(|at| i64::from(inputs[at] as i32));
        let mut limits = [row as i64, i64::from(image.size[1]), i64::from(image.size[2])];
        let axes = if geometry.layered() { geometry.axes().min(2) } else { geometry.axes() };
        for axis in axes..3 {
            (place[axis], limits[axis]) = (0, 1);
        }
        if geometry.layered() {
            (place[2], limits[2]) = (layer, i64::from(image.size[2]));
        }
        let aligned = place[0] % bytes as i64 == 0;
        let inside = |axis: usize| {
            let room = if axis == 0 { bytes as i64 } else { 1 };
            place[axis] >= 0 && place[axis] <= limits[axis] - room
        };
        if !(inside(0) && inside(1) && inside(2) && aligned) {
            if code & ZERO != 0 {
                return zero(words, count);
            }
            if code & CLAMP == 0 || row < bytes {
                let message =
                    format!("surface of {row} bytes by {} by {}, at {place:?}", image.size[1], image.size[2]);
                fail(context, RawFault { kind: FaultKind::IllegalAddress, address: None, message });
            }
            for axis in 0..3 {
                let room = if axis == 0 { bytes as i64 } else { 1 };
                place[axis] = place[axis].clamp(0, limits[axis] - room);
            }
            place[0] -= place[0] % bytes as i64;
        }
        let address = image.base + place[2] as u64 * image.slice + place[1] as u64 * image.pitch + place[0] as u64;
        if code & REDUCE != 0 {
            return reduce(code, address, width, inputs[5]);
        }
        for at in 0..count {
            let from = (address + at * width) as *mut u8;
            let word = words.add(if code & STORE != 0 { 5 + at as usize } else { at as usize });
            match (code & STORE != 0, width) {
                (true, 1) => *from = *word as u8,
                (true, 2) => from.cast::<u16>().write_unaligned(*word as u16),
                (true, 4) => from.cast::<u32>().write_unaligned(*word as u32),
                (true, _) => from.cast::<u64>().write_unaligned(*word),
                (false, 1) => *word = u64::from(*from),
                (false, 2) => *word = u64::from(from.cast::<u16>().read_unaligned()),
                (false, 4) => *word = u64::from(from.cast::<u32>().read_unaligned()),
                (false, _) => *word = from.cast::<u64>().read_unaligned(),
            }
        }
    }
}

unsafe fn zero(words: *mut u64, count: u64) {
    for at in 0..count as usize {
        // SAFETY: results come first in the words, of which there are more.
        unsafe { *words.add(at) = 0 };
    }
}

/// `sured`, on 4 or 8 bytes.
unsafe fn reduce(code: u64, address: u64, width: u64, operand: u64) {
    let signed = code & SIGNED != 0;
    let combine = |old: u64, new: u64, bits: u32| {
        let value = |word: u64| (word << (64 - bits)) as i64 >> (64 - bits);
        let less = if signed { value(new) < value(old) } else { new < old };
        match code >> 16 & 7 {
            0 => old.wrapping_add(new),
            1 if less => new,
            2 if !less => new,
            3 => old & new,
            4 => old | new,
            _ => old,
        }
    };
    // SAFETY: the place is inside of the image and aligned; a missing page is a fault of the kernel.
    unsafe {
        if width == 8 {
            let cell = AtomicU64::from_ptr(address as *mut u64);
            let _ = cell.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |old| Some(combine(old, operand, 64)));
        } else {
            let cell = AtomicU32::from_ptr(address as *mut u32);
            let operand = operand & 0xffff_ffff;
            let next = |old: u32| Some(combine(old.into(), operand, 32) as u32);
            let _ = cell.fetch_update(Ordering::SeqCst, Ordering::Relaxed, next);
        }
    }
}
