//! `cuGetProcAddress`: which symbol a name stands for, at which version and with which notion of the NULL stream.

use cuda_abi::constants::proc_address_flag;
use cuda_abi::types::c_void;

/// A function's address, which is the same for every thread.
pub(crate) struct Pointer(pub *const c_void);

// SAFETY: the address of code.
unsafe impl Sync for Pointer {}

/// One ABI of a name.
pub(crate) struct Row {
    pub name: &'static str,
    /// The lowest version that gets this row.
    pub since: u32,
    pub per_thread: bool,
    #[cfg_attr(not(test), allow(dead_code))]
    pub symbol: &'static str,
    pub function: Pointer,
}

include!(concat!(env!("OUT_DIR"), "/procaddr.rs"));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Function(*const c_void),
    /// The name is known, but only in later versions.
    TooOld,
    Unknown,
}

/// Rows are sorted by name and falling version.
pub(crate) fn find(name: &str, version: u32, flags: u64) -> Found {
    let start = ROWS.partition_point(|row| row.name < name);
    let rows = ROWS[start..].iter().take_while(|row| row.name == name);
    let wants_own = flags & proc_address_flag::PER_THREAD_DEFAULT_STREAM != 0;
    let has_own = rows.clone().any(|row| row.per_thread);
    let mut known = false;
    for row in rows {
        known = true;
        if row.since <= version && row.per_thread == (wants_own && has_own) {
            return Found::Function(row.function.0);
        }
    }
    if known { Found::TooOld } else { Found::Unknown }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use cuda_abi::border::{Out, Str};
    use cuda_abi::constants::proc_address_result;
    use cuda_abi::error::*;
    use cuda_abi::types::*;

    use super::{Found, find};

    fn version() -> u32 {
        let mut version = 0;
        // It fails for want of an output only.
        let _ = crate::api::cuDriverGetVersion(Out::to(&mut version));
        version as u32
    }

    pub(crate) fn cuGetProcAddress_v2(
        symbol: Str,
        pfn: Out<*mut c_void>,
        cuda_version: i32,
        flags: u64,
        status: Out<CUdriverProcAddressQueryResult>,
    ) -> CudaResult {
        symbol.required()?;
        pfn.required()?;
        let name = symbol.text()?.to_str().unwrap_or("");
        if cuda_version < 0 || cuda_version as u32 > version() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (function, answer) = match find(name, cuda_version as u32, flags) {
            Found::Function(function) => (function, proc_address_result::SUCCESS),
            Found::Unknown => (std::ptr::null(), proc_address_result::SYMBOL_NOT_FOUND),
            Found::TooOld => (std::ptr::null(), proc_address_result::VERSION_NOT_SUFFICIENT),
        };
        pfn.put(function.cast_mut())?;
        status.put_if(answer);
        Ok(())
    }

    pub(crate) fn cuGetProcAddress(symbol: Str, pfn: Out<*mut c_void>, cuda_version: i32, flags: u64) -> CudaResult {
        symbol.required()?;
        pfn.required()?;
        let name = symbol.text()?.to_str().unwrap_or("");
        match find(name, cuda_version.max(0) as u32, flags) {
            Found::Function(function) => pfn.put(function.cast_mut()),
            _ => Err(CUDA_ERROR_NOT_FOUND),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: u32, flags: u64) -> Option<&'static str> {
        match find(name, version, flags) {
            Found::Function(function) => {
                ROWS.iter().find(|row| row.function.0 == function && row.name == name).map(|row| row.symbol)
            }
            _ => None,
        }
    }

    #[test]
    fn versions_and_flags_choose_the_symbol() {
        assert_eq!(symbol("cuCtxCreate", 2000, 0), Some("cuCtxCreate"));
        assert_eq!(symbol("cuCtxCreate", 11000, 0), Some("cuCtxCreate_v2"));
        assert_eq!(symbol("cuCtxCreate", 13000, 0), Some("cuCtxCreate_v4"));
        assert_eq!(symbol("cuMemcpyHtoDAsync", 13000, 0), Some("cuMemcpyHtoDAsync_v2"));
        assert_eq!(symbol("cuMemcpyHtoDAsync", 13000, 1), Some("cuMemcpyHtoDAsync_v2"));
        assert_eq!(symbol("cuMemcpyHtoDAsync", 13000, 2), Some("cuMemcpyHtoDAsync_v2_ptsz"));
        assert_eq!(symbol("cuMemcpyHtoD", 13000, 2), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(symbol("cuGetProcAddress", 11030, 0), Some("cuGetProcAddress"));
        assert_eq!(symbol("cuGetProcAddress", 12000, 0), Some("cuGetProcAddress_v2"));
        assert_eq!(symbol("cuGraphInstantiate", 12000, 0), Some("cuGraphInstantiate_v2"));
        assert_eq!(symbol("cuCtxSynchronize", 12090, 2), Some("cuCtxSynchronize"));
        assert_eq!(find("cuCtxCreate", 1000, 0), Found::TooOld);
        assert_eq!(find("cuNothing", 13000, 0), Found::Unknown);
        assert_eq!(find("", 0, 0), Found::Unknown);
    }

    #[test]
    fn every_row_is_reached_at_its_own_version() {
        for row in &ROWS {
            let flags = if row.per_thread { proc_address_flag::PER_THREAD_DEFAULT_STREAM } else { 0 };
            assert_eq!(symbol(row.name, row.since, flags), Some(row.symbol), "{} {}", row.name, row.since);
        }
    }
}
