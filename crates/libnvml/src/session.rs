//! What `nvmlInit` begins and `nvmlShutdown` ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::wire::view::ZoneView;
use inquiry::InquiryError;
use parking_lot::Mutex;

use crate::codes::*;
use crate::entry::NvmlResult;

/// How often `nvmlInit` was called and not undone.
static REFERENCES: AtomicU32 = AtomicU32::new(0);
/// The view at the time of `nvmlInit`, for what does not change. Locked for moments only.
static FIRST: Mutex<Option<Arc<ZoneView>>> = Mutex::new(None);

pub(crate) fn ready() -> NvmlResult {
    if REFERENCES.load(Ordering::Relaxed) > 0 { Ok(()) } else { Err(UNINITIALIZED) }
}

/// The zone as it was at `nvmlInit`: its cards are still the same.
pub(crate) fn first() -> NvmlResult<Arc<ZoneView>> {
    FIRST.lock().clone().ok_or(UNINITIALIZED)
}

/// The zone as it is now.
pub(crate) fn now() -> NvmlResult<ZoneView> {
    inquiry::ask().map_err(|_| UNKNOWN)
}

fn start(without_cards: bool) -> NvmlResult {
    let view = inquiry::ask().map_err(|error| {
        crate::trace::note(&error.to_string());
        code(&error)
    })?;
    if view.cards.is_empty() && !without_cards {
        return Err(DRIVER_NOT_LOADED);
    }
    *FIRST.lock() = Some(Arc::new(view));
    REFERENCES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Of a proxy that does not answer, or not in a form that this version understands.
fn code(error: &InquiryError) -> u32 {
    if error.is_other_version() { LIB_RM_VERSION_MISMATCH } else { DRIVER_NOT_LOADED }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    const NO_GPUS: u32 = 1;
    const NO_ATTACH: u32 = 2;

    pub(crate) fn nvmlInit() -> NvmlResult {
        start(false)
    }

    pub(crate) fn nvmlInit_v2() -> NvmlResult {
        start(false)
    }

    pub(crate) fn nvmlInitWithFlags(flags: u32) -> NvmlResult {
        if flags & !(NO_GPUS | NO_ATTACH) != 0 {
            return Err(INVALID_ARGUMENT);
        }
        start(flags & NO_GPUS != 0)
    }

    pub(crate) fn nvmlShutdown() -> NvmlResult {
        let less = |count: u32| count.checked_sub(1);
        REFERENCES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(|_| ()).map_err(|_| UNINITIALIZED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_of_another_version_is_a_version_mismatch() {
        assert_eq!(code(&InquiryError::Version("/s".into())), LIB_RM_VERSION_MISMATCH);
        assert_eq!(code(&InquiryError::DriverDomain("gone".into())), DRIVER_NOT_LOADED);
    }
}
