//! What the broker finds out about the node and its zones: the GPUs ([`inventory`]), how busy zones keep them
//! ([`utilization`]), and what workers really use ([`meter`]), and whether GPUs work
//! ([`faults`]). [`views`] tells clients of their zone.

mod faults;
mod inventory;
mod meter;
mod overdraft;
mod pci;
mod utilization;
mod views;

use faults::Faults;
pub(crate) use inventory::Inventory;
pub use meter::Meter;
use meter::Running;
use overdraft::{Hidden, MeterProcess};
pub(crate) use utilization::OnGpu;
use utilization::Utilization;
use views::{Helper, Views};

#[derive(Default)]
pub(crate) struct Monitor {
    pub inventory: Inventory<Helper>,
    pub views: Views,
    pub utilization: Utilization,
    pub meter: MeterProcess<Running>,
    pub hidden: Hidden,
    pub faults: Faults,
}
