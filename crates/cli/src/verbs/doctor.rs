//! `bulkhead doctor`: diagnoses problems and suggests fixes.

use std::process::ExitCode;

use crate::args::DoctorArgs;
use crate::doctor::examine;
use crate::doctor::finding::{self, Level};
use crate::doctor::scene::Scene;
use crate::exit::{Exit, Failure};
use crate::verbs;

pub fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let scene = Scene::of_this_machine(args.admin.socket, args.program);
    let findings = examine(&scene, &args.backend, !args.no_self_test);
    if args.admin.json {
        verbs::status::print_json(&findings)?;
    } else {
        verbs::man::print(finding::text(&findings).as_bytes())?;
    }
    let wrong = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(if wrong { Exit::Unwell.into() } else { ExitCode::SUCCESS })
}
