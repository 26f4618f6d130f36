//! What lists with commas can show: the names by which fields are asked for, and their values.

use cuda_abi::wire::view::Process;

use crate::Problem;
use crate::gpu::{self, Gpu, Zone, mib};
use crate::time::Moment;

/// A value, as it is shown with and without its unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(u64, Unit),
    /// The zone does not show it.
    NotAvailable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    MiB,
    Percent,
}

impl Unit {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::MiB => "MiB",
            Self::Percent => "%",
        }
    }
}

/// What a field is of.
pub(crate) struct Subject<'a> {
    pub zone: &'a Zone,
    pub gpu: &'a Gpu,
    pub moment: Moment,
}

/// A field, by all its names; the first is the heading.
pub(crate) struct Field<T: 'static> {
    pub names: &'static [&'static str],
    pub unit: Option<Unit>,
    pub about: &'static str,
    pub value: fn(&Subject<'_>, &T) -> Value,
}

/// A field that was asked for, under the name by which it was.
pub(crate) struct Wanted<T: 'static> {
    pub name: &'static str,
    pub field: &'static Field<T>,
}

pub(crate) type GpuField = Wanted<()>;
pub(crate) type ProcessField = Wanted<Process>;

impl<T> std::fmt::Debug for Wanted<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Kinds of things that have fields.
pub(crate) trait HasFields: Sized + 'static {
    const FIELDS: &'static [Field<Self>];
}

/// The fields of a list such as `name,memory.used`.
pub(crate) fn of<T: HasFields>(list: &str) -> Result<Vec<Wanted<T>>, Problem> {
    let find = |name: &str| {
        let known = T::FIELDS.iter().flat_map(|field| field.names.iter().map(move |name| (*name, field)));
        let found = known.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let wanted = found.map(|(name, field)| Wanted { name, field });
        wanted.ok_or_else(|| Problem::Usage(format!("Field \"{name}\" is not a valid field to query.")))
    };
    list.split(',').map(|name| find(name.trim())).collect()
}

fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into())
}

fn bytes(bytes: u64) -> Value {
    Value::Number(mib(bytes), Unit::MiB)
}

fn hex(part: impl Fn(inquiry::PciAddress) -> u32, digits: usize, gpu: &Gpu) -> Value {
    gpu.address().map_or(Value::NotAvailable, |address| text(format!("0x{:0digits$X}", part(address))))
}

/// A field of this name, with its unit, its description, and its value.
macro_rules! field {
    ($($name:literal)|+, $unit:expr, $about:literal, $value:expr) => {
        Field { names: &[$($name),+], unit: $unit, about: $about, value: $value }
    };
}

/// Fields that belong to the node, which programs ask for all the same.
macro_rules! not_shown {
    ($($name:literal)|+) => {
        field!($($name)|+, None, "Not shown in a zone.", |_, ()| Value::NotAvailable)
    };
}

const MIB: Option<Unit> = Some(Unit::MiB);
const PERCENT: Option<Unit> = Some(Unit::Percent);

impl HasFields for () {
    const FIELDS: &'static [Field<()>] = &[
        field!("timestamp", None, "The time of the answer, in UTC.", |of, ()| text(of.moment.stamp())),
        field!("driver_version", None, "The node's driver.", |of, ()| text(&of.zone.driver_version)),
        field!("count", None, "GPUs of the zone.", |of, ()| text(of.zone.count.to_string())),
        field!("name" | "gpu_name", None, "The product's name.", |of, ()| text(&of.gpu.card.name)),
        field!("index", None, "By which programs in the zone know it.", |of, ()| text(of.gpu.index.to_string())),
        field!("uuid" | "gpu_uuid", None, "Of the GPU, or of the MIG instance.", |of, ()| text(
            of.gpu.card.uuid_text()
        )),
        field!("pci.bus_id" | "gpu_bus_id", None, "domain:bus:device.function.", |of, ()| text(of.gpu.bus_id())),
        field!("pci.domain", None, "In hexadecimal.", |of, ()| hex(|at| at.domain, 4, of.gpu)),
        field!("pci.bus", None, "In hexadecimal.", |of, ()| hex(|at| at.bus, 2, of.gpu)),
        field!("pci.device", None, "In hexadecimal.", |of, ()| hex(|at| at.device, 2, of.gpu)),
        field!("pci.device_id", None, "Device and vendor.", |of, ()| text(format!(
            "0x{:08X}",
            of.gpu.card.pci_device
        ))),
        field!("pci.sub_device_id", None, "Of the board.", |of, ()| text(format!(
            "0x{:08X}",
            of.gpu.card.pci_subsystem
        ))),
        field!("compute_cap", None, "Compute capability.", |of, ()| {
            let (major, minor) = of.gpu.card.capability;
            text(format!("{major}.{minor}"))
        }),
        field!("memory.total", MIB, "The zone's limit, or what the GPU has.", |of, ()| bytes(of.gpu.memory.total)),
        field!("memory.used", MIB, "What the zone's processes hold.", |of, ()| bytes(of.gpu.memory.used)),
        field!("memory.free", MIB, "The rest.", |of, ()| bytes(of.gpu.memory.free)),
        field!("memory.reserved", MIB, "Always 0.", |_, ()| bytes(0)),
        field!("utilization.gpu", PERCENT, "How busy the zone keeps it, where that is measured.", |of, ()| {
            of.gpu.busy.map_or(Value::NotAvailable, |busy| Value::Number(busy.into(), Unit::Percent))
        }),
        field!("compute_mode", None, "Always Default.", |_, ()| text("Default")),
        field!("persistence_mode", None, "Always Enabled.", |_, ()| text("Enabled")),
        field!("display_active", None, "Always Disabled.", |_, ()| text("Disabled")),
        field!("display_mode" | "display_attached", None, "Always Disabled.", |_, ()| text("Disabled")),
        not_shown!("mig.mode.current"),
        not_shown!("mig.mode.pending"),
        not_shown!("serial" | "gpu_serial"),
        not_shown!("vbios_version"),
        not_shown!("pstate"),
        not_shown!("fan.speed"),
        not_shown!("temperature.gpu"),
        not_shown!("temperature.memory"),
        not_shown!("utilization.memory"),
        not_shown!("utilization.encoder"),
        not_shown!("utilization.decoder"),
        not_shown!("power.management"),
        not_shown!("power.draw" | "power.draw.average" | "power.draw.instant"),
        not_shown!("power.limit"),
        not_shown!("power.default_limit"),
        not_shown!("power.min_limit"),
        not_shown!("power.max_limit"),
        not_shown!("enforced.power.limit"),
        not_shown!("clocks.current.graphics" | "clocks.gr"),
        not_shown!("clocks.current.sm" | "clocks.sm"),
        not_shown!("clocks.current.memory" | "clocks.mem"),
        not_shown!("clocks.current.video" | "clocks.video"),
        not_shown!("clocks.max.graphics" | "clocks.max.gr"),
        not_shown!("clocks.max.sm"),
        not_shown!("clocks.max.memory" | "clocks.max.mem"),
        not_shown!("clocks_throttle_reasons.active" | "clocks_event_reasons.active"),
        not_shown!("ecc.mode.current"),
        not_shown!("ecc.mode.pending"),
        not_shown!("ecc.errors.corrected.volatile.total"),
        not_shown!("ecc.errors.uncorrected.volatile.total"),
        not_shown!("pcie.link.gen.current" | "pcie.link.gen.gpucurrent"),
        not_shown!("pcie.link.gen.max"),
        not_shown!("pcie.link.width.current"),
        not_shown!("pcie.link.width.max"),
        not_shown!("accounting.mode"),
        not_shown!("addressing_mode"),
    ];
}

impl HasFields for Process {
    const FIELDS: &'static [Field<Process>] = &[
        field!("timestamp", None, "The time of the answer, in UTC.", |of, _| text(of.moment.stamp())),
        field!("gpu_name", None, "The product's name.", |of, _| text(&of.gpu.card.name)),
        field!("gpu_uuid", None, "Of the GPU, or of the MIG instance.", |of, _| text(of.gpu.card.uuid_text())),
        field!("gpu_bus_id", None, "domain:bus:device.function.", |of, _| text(of.gpu.bus_id())),
        field!("gpu_serial", None, "Not shown in a zone.", |_, _| Value::NotAvailable),
        field!("gpu_instance_id" | "gi_id", None, "Not shown in a zone.", |_, _| Value::NotAvailable),
        field!("compute_instance_id" | "ci_id", None, "Not shown in a zone.", |_, _| Value::NotAvailable),
        field!("pid", None, "As the asking process knows it.", |_, process| text(process.pid.to_string())),
        field!("process_name" | "name", None, "The program.", |_, process| text(gpu::name(process))),
        field!("used_gpu_memory" | "used_memory", MIB, "What it holds.", |_, process| bytes(process.used)),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn unique<T: HasFields>() {
        let names: Vec<&str> = T::FIELDS.iter().flat_map(|field| field.names).copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn a_name_is_of_one_field() {
        unique::<()>();
        unique::<Process>();
    }

    /// A number without the unit that its heading promises would be read as another one.
    #[test]
    fn numbers_have_the_unit_of_their_heading() {
        let zone = gpu::tests::zone(&[]);
        let of = Subject { zone: &zone, gpu: &zone.gpus[0], moment: Moment::now() };
        for field in <() as HasFields>::FIELDS {
            if let Value::Number(_, unit) = (field.value)(&of, &()) {
                assert_eq!(Some(unit), field.unit, "{:?}", field.names);
            }
        }
    }
}
