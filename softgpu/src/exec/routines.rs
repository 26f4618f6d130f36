//! Instructions that are done as a whole, by their number.

use super::context::Context;
use super::{small as small_floats, video};
use crate::passes::ir::Routine;
use crate::passes::small;

/// Reads its operands from `words` and leaves its results there.
pub extern "C" fn runtime(context: *mut Context, routine: i32, code: u64, words: *mut u64) {
    let Some(routine) = Routine::ALL.get(routine as usize) else { return };
    let _ = context;
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
        _ => {}
    }
}
