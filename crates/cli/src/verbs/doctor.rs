//! `bulkhead doctor`: diagnoses problems and suggests fixes.

use std::process::ExitCode;

use crate::args::DoctorArgs;
use crate::doctor::finding::{self, Level};
use crate::doctor::scene::Scene;
use crate::doctor::{bundle, examine};
use crate::exit::{Exit, Failure};
use crate::verbs;

pub(crate) fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    if let Some(program) = args.program.as_ref().filter(|program| !program.is_file()) {
        return Err(Failure::new(Exit::NotFound, format!("program not found: {}", program.display())));
    }
    let scene = Scene::of_this_machine(args.admin.socket, args.program);
    let findings = examine(&scene, &args.backend, !args.no_self_test);
    if args.admin.json {
        verbs::status::print_json(&findings)?;
    } else {
        verbs::man::print(finding::text(&findings).as_bytes())?;
    }
    if let Some(path) = &args.bundle {
        bundle::write(path, &scene, &findings).map_err(|error| {
            Failure::system(Exit::Failure, &format!("cannot write the support bundle {}", path.display()), &error)
        })?;
        eprintln!("bulkhead: wrote {}; check that nothing in it is confidential before you share it", path.display());
    }
    let wrong = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(if wrong { Exit::Unwell.into() } else { ExitCode::SUCCESS })
}
