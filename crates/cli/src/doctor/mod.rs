//! Checks of GPUs, containers and Bulkhead itself.
//!
//! Each check is a file; it reads the machine's state and never changes anything. A driver is loaded only in separate
//! processes (`trial`).

pub(crate) mod bundle;
mod container;
mod driver;
pub(crate) mod finding;
mod loader;
mod redact;
pub(crate) mod scene;
mod service;
mod trial;

use finding::Finding;
use scene::Scene;

use crate::args::BackendArgs;

/// All findings, in the order of the checks.
pub(crate) fn examine(scene: &Scene, backend: &BackendArgs, self_test: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    driver::check(scene, &mut findings);
    container::check(scene, &mut findings);
    loader::check(scene, &mut findings);
    let way = service::check(scene, &mut findings);
    trial::survey(scene, backend, &mut findings);
    if self_test {
        trial::selftest(scene, way, backend, &mut findings);
    }
    findings
}
