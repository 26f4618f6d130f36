//! From what was found in a grid to what is said about it.

use std::sync::Once;

use ptx_passes::ir::Module;

use super::shadow::Access;
use super::{Finding, Site};
use crate::grid::Grid;

/// Hands out what was found, at the end of a grid.
pub(crate) fn report(grid: &Grid, module: &Module) {
    let Some(sanitizer) = &grid.sanitizer else { return };
    let [x, y, _] = grid.launch.block;
    let site = |(access, does): (Access, &str)| Site {
        does: match access.size {
            0 => does.to_owned(),
            1 => format!("{does} of 1 byte"),
            size => format!("{does} of {size} bytes"),
        },
        block: grid.coordinates(access.block.into()),
        thread: {
            let linear = u32::from(access.thread);
            [linear % x, linear / x % y, linear / x / y]
        },
        line: (access.line != 0).then_some(access.line),
        source: module.source(access.line),
    };
    let (found, full) = sanitizer.finish();
    for raw in found {
        grid.launch.output.finding(Finding {
            check: raw.check,
            what: raw.what.to_owned(),
            kernel: grid.kernel.to_owned(),
            here: site(raw.here),
            there: raw.there.map(site),
            place: raw.place,
            count: raw.count,
            hint: raw.hint,
        });
    }
    if full {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            eprintln!("softgpu: races: kernels touch more memory than is looked at; what is beyond was not");
        });
    }
}
