//! `libnvidia-ml.so.1` for programs in a zone: NVML as `nvidia-smi`, pynvml and frameworks ask for it.
//!
//! Every symbol of the API is exported, generated from `table/nvml.abi`. What is answered is what the broker knows of
//! the zone: its cards, its memory account, its own processes. What belongs to the node (temperatures, clocks, other
//! tenants) is `NVML_ERROR_NOT_SUPPORTED`, and whatever would change a card is `NVML_ERROR_NO_PERMISSION`. Nothing
//! happens before `nvmlInit`: loading the library opens nothing and starts nothing.
#![warn(unreachable_pub)]

mod cards;
mod codes;
mod entry;
mod events;
mod hidden;
mod memory;
mod processes;
mod session;
mod system;
mod trace;
mod types;

/// The hand-written functions that the exports call.
mod api {
    pub(crate) use crate::cards::api::*;
    pub(crate) use crate::events::*;
    pub(crate) use crate::hidden::nvmlInternalGetExportTable;
    pub(crate) use crate::memory::api::*;
    pub(crate) use crate::processes::api::*;
    pub(crate) use crate::session::api::*;
    pub(crate) use crate::system::*;
}

/// Generated from the table; its shape is the generator's, not ours to polish.
#[allow(clippy::all, non_snake_case, unused_unsafe)]
#[allow(clippy::undocumented_unsafe_blocks)]
#[allow(unreachable_pub, reason = "public to C")]
mod exports {
    use cuda_abi::border;

    use crate::types::*;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    const TABLE: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/names.rs"));

    #[test]
    fn the_table_holds_each_symbol_once() {
        assert_eq!(TABLE.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), TABLE.len());
    }

    #[test]
    fn nothing_that_changes_a_card_is_allowed() {
        for (name, kind) in TABLE {
            let changes = ["DeviceSet", "DeviceReset", "DeviceClear", "DeviceCreate", "DeviceRemove", "SystemSet"];
            let changes = changes.iter().any(|part| name.starts_with(&format!("nvml{part}")));
            assert_eq!(*kind == "deny", changes || *kind == "deny", "{name}");
        }
    }
}
