//! Instructions that are done as a whole, by their number.

use ptx_passes::ir::{Routine, Space, WarpOp};
use ptx_passes::matrix::SPACES;
use ptx_passes::small;

use super::context::Context;
use super::helpers::warp;
use super::{asynchronous, matrix, small as small_floats, surface, texture, video};

/// Reads its operands from `words` and leaves its results there.
pub(crate) extern "C" fn runtime(context: *mut Context, routine: i32, code: u64, words: *mut u64) {
    let Some(routine) = Routine::ALL.get(routine as usize) else { return };
    let space = SPACES.get((code >> 28 & 7) as usize).copied().unwrap_or(Space::Generic);
    match routine {
        Routine::Video => {
            // SAFETY: compiled code reserves a word for each source and result; these have three sources.
            let words = unsafe { &mut *words.cast::<[u64; 3]>() };
            words[0] = video::compute(code, *words);
        }
        Routine::ConvertPack => {
            // SAFETY: as above.
            let words = unsafe { &mut *words.cast::<[u64; 3]>() };
            words[0] = video::pack(code, *words);
        }
        Routine::ConvertSmall => {
            let pair = code & (small::BACK | small::HALVES) == 0 && code & 15 != 0;
            // SAFETY: as above; conversions of two singles have two sources, all others one.
            unsafe { *words = small_floats::convert(code, *words, if pair { *words.add(1) } else { 0 }) };
        }
        Routine::Multiply | Routine::MoveMatrix => {
            // SAFETY: called by compiled code on the running fiber, with the words that the code needs. The other
            // lanes' words stay where they are until this lane is let go.
            unsafe {
                if *routine == Routine::MoveMatrix {
                    matrix::prepare_move(context, code, space, words);
                }
                warp(context, WarpOp::Together as i32, words as u64, 0, !0, code);
            }
        }
        // SAFETY: called by compiled code on the running fiber, with the words that the code needs.
        Routine::WarpMatrix => unsafe { matrix::fragment(context, code, words) },
        // SAFETY: as above.
        Routine::CopyAsync => unsafe { asynchronous::copy(context, code, words) },
        // SAFETY: as above.
        Routine::MemoryBarrier => unsafe { asynchronous::barrier(context, code, space, words) },
        // SAFETY: as above.
        Routine::Texture => unsafe { texture::read(context, code, words) },
        // SAFETY: as above.
        Routine::Surface => unsafe { surface::access(context, code, words) },
        // SAFETY: as above.
        Routine::TextureQuery => unsafe { texture::query(context, code, words) },
    }
}
