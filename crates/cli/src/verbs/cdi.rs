//! `bulkhead cdi`: CDI specifications for zones and GPUs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bulkhead_kube::cdi::passthrough::{self, NameStrategy};
use bulkhead_kube::cdi::spec::Spec;
use bulkhead_kube::cdi::{self, validate};
use bulkhead_kube::inject::{self, Places};
use control::ZoneName;
use control::{atomic_file, kernel_module, topology};

use crate::args::{BackendArgs, CdiAction, CdiArgs, CdiFormat, CdiGenerateArgs, CdiMode, NameStrategyArg, SpecDirs};
use crate::exit::{Exit, Failure};
use crate::text::counted;
use crate::{admin, library};

pub(crate) fn run(args: CdiArgs) -> Result<ExitCode, Failure> {
    match args.action {
        CdiAction::Generate(args) => generate(*args),
        CdiAction::Validate { files, dirs, json } => validate(files, &dirs, json),
        CdiAction::List { dirs, json } => list(&dirs, json),
    }
}

fn generate(args: CdiGenerateArgs) -> Result<ExitCode, Failure> {
    let spec = match args.mode {
        CdiMode::Zones => zones(&args)?,
        CdiMode::Nvidia => gpus(&args)?,
    };
    // Never write a file that runtimes would refuse, and all others with it.
    if let Some(problem) = validate::problems(&spec).into_iter().next() {
        return Err(Failure::new(Exit::Usage, problem));
    }
    let json = match (args.format, &args.output) {
        (Some(format), _) => format == CdiFormat::Json,
        (None, Some(path)) => path.extension().is_some_and(|ending| ending == "json"),
        (None, None) => false,
    };
    let text = if json {
        serde_json::to_string_pretty(&spec).map(|text| text + "\n").map_err(|error| error.to_string())
    } else {
        cdi::to_yaml(&spec)
    };
    let text = text.map_err(|error| Failure::new(Exit::Failure, error))?;
    let Some(path) = &args.output else { return super::man::print(text.as_bytes()) };
    let failed = |error| Failure::system(Exit::Failure, &format!("cannot write {}", path.display()), &error);
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    atomic_file::write(path, text.as_bytes()).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn zones(args: &CdiGenerateArgs) -> Result<Spec, Failure> {
    let libraries = args.library_dir.clone().map_or_else(library::find, Ok)?;
    let smi = inject::has_smi(&libraries);
    let places = Places { libraries, state: args.state_dir.clone(), smi };
    let socket = args.socket.clone().unwrap_or_else(|| args.state_dir.join("admin.sock"));
    let known = admin::status(&admin::connect(&socket)?)?.zones;
    let known: Vec<ZoneName> = known.into_iter().map(|zone| zone.name).collect();
    if let Some(unknown) = args.zones.iter().find(|zone| !known.contains(zone)) {
        return Err(admin::unknown_zone(unknown, &known));
    }
    let zones = if args.zones.is_empty() { &known } else { &args.zones };
    if zones.is_empty() {
        return Err(Failure::new(
            Exit::ZoneUnknown,
            "the proxy has no zones; create one with `bulkhead zones create`",
        ));
    }
    let vendor = args.vendor.as_deref().unwrap_or(cdi::VENDOR);
    let class = args.class.as_deref().unwrap_or(cdi::CLASS);
    Ok(cdi::zones_spec(&places, &format!("{vendor}/{class}"), zones))
}

fn gpus(args: &CdiGenerateArgs) -> Result<Spec, Failure> {
    let names = args.device_name_strategy.iter().map(|strategy| match strategy {
        NameStrategyArg::Index => NameStrategy::Index,
        NameStrategyArg::Uuid => NameStrategy::Uuid,
        NameStrategyArg::TypeIndex => NameStrategy::TypeIndex,
    });
    let mut names: Vec<NameStrategy> = names.collect();
    if names.is_empty() {
        names = vec![NameStrategy::Index, NameStrategy::Uuid];
    }
    let options = passthrough::Options {
        vendor: args.vendor.clone().unwrap_or_else(|| "nvidia.com".to_owned()),
        class: args.class.clone().unwrap_or_else(|| "gpu".to_owned()),
        dev_root: args.dev_root.clone().unwrap_or_else(|| args.driver_root.clone()),
        driver_root: args.driver_root.clone(),
        names,
        no_all_device: args.no_all_device,
        device_ids: args.device_ids.clone(),
        cut: cut_gpus(),
        proc: kernel_module::PROC.into(),
    };
    passthrough::generate(&options).map_err(|error| Failure::new(Exit::NoBackend, error.to_string()))
}

/// GPUs with MIG instances, whose UUIDs a separate process asks the driver for. Without UUIDs, instances are named by
/// index.
fn cut_gpus() -> Vec<topology::Gpu> {
    if kernel_module::instances(Path::new(kernel_module::PROC)).is_empty() {
        return Vec::new();
    }
    let left_open = BackendArgs::default();
    let survey = super::topology::ask(&left_open);
    survey
        .inspect_err(|failure| eprintln!("bulkhead: cannot get the UUIDs of MIG instances: {}", failure.line))
        .map_or_else(|_| Vec::new(), |survey| survey.gpus)
}

/// The files that could be read, and the errors of the others.
fn read(files: Vec<PathBuf>) -> (Vec<(PathBuf, Spec)>, Vec<String>) {
    let (mut specs, mut wrong) = (Vec::new(), Vec::new());
    for path in files {
        match validate::read(&path) {
            Ok(spec) => specs.push((path, spec)),
            Err(error) => wrong.push(error.to_string()),
        }
    }
    (specs, wrong)
}

fn find(dirs: &SpecDirs) -> Result<Vec<PathBuf>, Failure> {
    validate::find(&dirs.dirs)
        .map_err(|error| Failure::system(Exit::Failure, "cannot read the CDI directories", &error))
}

fn paths(specs: &[(PathBuf, Spec)]) -> impl Iterator<Item = (&Path, &Spec)> {
    specs.iter().map(|(path, spec)| (path.as_path(), spec))
}

fn validate(files: Vec<PathBuf>, dirs: &SpecDirs, json: bool) -> Result<ExitCode, Failure> {
    let files = if files.is_empty() { find(dirs)? } else { files };
    let (specs, mut wrong) = read(files);
    let mut notes = Vec::new();
    for (path, spec) in &specs {
        wrong.extend(validate::problems(spec).into_iter().map(|what| format!("{}: {what}", path.display())));
        notes.extend(validate::missing(spec).into_iter().map(|what| format!("{}: note: {what}", path.display())));
    }
    for (name, one, other) in validate::devices(paths(&specs)).conflicts {
        wrong.push(format!("{}: {name} is also defined in {}; runtimes refuse both", other.display(), one.display()));
    }
    if json {
        let files: Vec<String> = specs.iter().map(|(path, _)| path.display().to_string()).collect();
        let document = serde_json::json!({ "files": files, "errors": wrong, "notes": notes });
        let printed = super::status::print_json(&document)?;
        return Ok(if wrong.is_empty() { printed } else { Exit::Config.into() });
    }
    if !wrong.is_empty() {
        return Err(Failure::new(Exit::Config, wrong.join("\nbulkhead: ")));
    }
    notes.push(format!("{}: valid", counted(specs.len() as u64, "file")));
    super::man::print((notes.join("\n") + "\n").as_bytes())
}

fn list(dirs: &SpecDirs, json: bool) -> Result<ExitCode, Failure> {
    let (specs, wrong) = read(find(dirs)?);
    wrong.iter().for_each(|what| eprintln!("bulkhead: {what}"));
    let devices = validate::devices(paths(&specs));
    for (name, one, other) in &devices.conflicts {
        eprintln!(
            "bulkhead: {name} is defined in {} and in {}; runtimes refuse both",
            one.display(),
            other.display()
        );
    }
    if json {
        let files = devices.names.iter().map(|(name, path)| (name, path.display().to_string()));
        let list: Vec<_> = files.map(|(name, file)| serde_json::json!({ "name": name, "file": file })).collect();
        return super::status::print_json(&list);
    }
    if devices.names.is_empty() {
        let dirs: Vec<String> = dirs.dirs.iter().map(|dir| dir.display().to_string()).collect();
        eprintln!("bulkhead: no devices in {}", dirs.join(", "));
    }
    let lines: String = devices.names.keys().map(|name| format!("{name}\n")).collect();
    super::man::print(lines.as_bytes())
}
