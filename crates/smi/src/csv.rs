//! Lists with commas, for programs.

use std::fmt::Write;

use crate::args::Format;
use crate::fields::{GpuField, ProcessField, Subject, Value, Wanted};
use crate::gpu::Zone;
use crate::time::Moment;

pub(crate) fn gpus(zone: &Zone, moment: Moment, fields: &[GpuField], format: Format, first: bool) -> String {
    let mut out = header(fields, format, first);
    for gpu in &zone.gpus {
        line(&mut out, &Subject { zone, gpu, moment }, &(), fields, format);
    }
    out
}

pub(crate) fn processes(zone: &Zone, moment: Moment, fields: &[ProcessField], format: Format, first: bool) -> String {
    let mut out = header(fields, format, first);
    for gpu in &zone.gpus {
        for process in &gpu.processes {
            line(&mut out, &Subject { zone, gpu, moment }, process, fields, format);
        }
    }
    out
}

fn header<T>(fields: &[Wanted<T>], format: Format, first: bool) -> String {
    if format.no_header || !first {
        return String::new();
    }
    let name = |wanted: &Wanted<T>| match wanted.field.unit {
        Some(unit) => format!("{} [{}]", wanted.name, unit.text()),
        None => wanted.name.to_owned(),
    };
    fields.iter().map(name).collect::<Vec<_>>().join(", ") + "\n"
}

fn line<T>(out: &mut String, of: &Subject<'_>, thing: &T, fields: &[Wanted<T>], format: Format) {
    let show = |wanted: &Wanted<T>| match (wanted.field.value)(of, thing) {
        // A name with a comma or a line's end would look like two.
        Value::Text(text) => text.replace([',', '\n', '\r'], " "),
        Value::Number(number, _) if format.no_units => number.to_string(),
        Value::Number(number, unit) => format!("{number} {}", unit.text()),
        Value::NotAvailable => "[N/A]".to_owned(),
    };
    let _ = writeln!(out, "{}", fields.iter().map(show).collect::<Vec<_>>().join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;
    use crate::gpu::tests::zone;

    fn of_gpus(list: &str, format: Format) -> String {
        gpus(&zone(&[]), Moment::now(), &fields::of(list).unwrap(), format, true)
    }

    #[test]
    fn lists_are_as_scripts_read_them() {
        let asked = "index, name,memory.total,memory.used,utilization.gpu,temperature.gpu";
        let full = "index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], temperature.gpu\n\
                    0, NVIDIA H200, 4096 MiB, 1024 MiB, 37 %, [N/A]\n\
                    1, NVIDIA H200, 4096 MiB, 0 MiB, [N/A], [N/A]\n";
        assert_eq!(of_gpus(asked, Format::default()), full);
        let bare = Format { no_header: true, no_units: true };
        assert_eq!(of_gpus("memory.free,compute_cap", bare), "3072, 9.0\n4096, 9.0\n");
        let place = of_gpus("gpu_bus_id,pci.bus,pci.domain,pci.device_id", Format { no_header: true, ..bare });
        assert!(place.starts_with("00000000:18:00.0, 0x18, 0x0000, 0x233510DE\n"), "{place}");
    }

    #[test]
    fn processes_are_listed_with_their_gpu() {
        let asked = fields::of("pid,used_memory,gpu_uuid").unwrap();
        let text = processes(&zone(&[]), Moment::now(), &asked, Format::default(), true);
        let pid = std::process::id();
        let line = format!("{pid}, 1024 MiB, GPU-18181818-1818-1818-1818-181818181818\n");
        assert_eq!(text, format!("pid, used_memory [MiB], gpu_uuid\n{line}"));
        assert_eq!(processes(&zone(&[]), Moment::now(), &asked, Format::default(), false), line);
    }
}
