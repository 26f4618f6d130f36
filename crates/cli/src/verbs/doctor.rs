//! `bulkhead doctor`: diagnoses problems and suggests fixes.

use std::process::ExitCode;

use crate::args::DoctorArgs;
use crate::doctor::bundle::Bundle;
use crate::doctor::examine;
use crate::doctor::finding::{self, Level};
use crate::doctor::scene::Scene;
use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::{program, verbs};

pub(crate) fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    // A file of any kind, such as a library; or what `run` would find by that name.
    let program = match args.program {
        Some(path) if !path.is_file() => Some(program::find(path.as_os_str())?),
        program => program,
    };
    // Who named a file that cannot be written is told before the examination, not after.
    let bundle = args.bundle.as_deref().map(Bundle::create).transpose()?;
    let scene = Scene::of_this_machine(args.admin.socket, program);
    let progress = Progress::of("examining this machine; the self-test runs a CUDA program");
    let findings = examine(&scene, &args.backend, !args.no_self_test);
    drop(progress);
    if args.admin.json {
        verbs::status::print_json(&findings)?;
    } else {
        verbs::man::print(finding::text(&findings).as_bytes())?;
    }
    if let Some(bundle) = bundle {
        let progress = Progress::of("collecting logs and state");
        let path = bundle.write(&scene, &findings)?;
        drop(progress);
        eprintln!("bulkhead: wrote {}; check that nothing in it is confidential before you share it", path.display());
    }
    let wrong = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(if wrong { Exit::Unwell.into() } else { ExitCode::SUCCESS })
}
