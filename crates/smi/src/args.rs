//! The command line, as NVIDIA's program takes it.

use std::path::PathBuf;
use std::time::Duration;

use crate::Problem;
use crate::details::Section;
use crate::fields::{self, GpuField, ProcessField};

#[derive(Debug, Default)]
pub(crate) enum Action {
    #[default]
    Table,
    List,
    Details(Vec<Section>),
    Gpus(Vec<GpuField>),
    Processes(Vec<ProcessField>),
    Help,
    GpuFields,
    ProcessFields,
    Version,
}

/// Of lists with commas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Format {
    pub no_header: bool,
    pub no_units: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Args {
    pub action: Action,
    pub format: Format,
    /// Those to show; none: all.
    pub gpus: Vec<String>,
    /// Between two looks; none: one look.
    pub pause: Option<Duration>,
    pub output: Option<PathBuf>,
}

/// What needs the node, in a zone that does not show it.
const NOT_HERE: [&str; 10] = ["-x", "--xml-format", "-B", "-u", "--unit", "dmon", "pmon", "daemon", "topo", "nvlink"];
/// Subcommands that look at what a zone does not show, too.
const NOT_HERE_EITHER: [&str; 9] = [
    "replay",
    "drain",
    "clocks",
    "encodersessions",
    "fbcsessions",
    "vgpu",
    "mig",
    "compute-policy",
    "power-smoothing",
];
/// Flags that would change something, without their values.
const CHANGES: [&str; 40] = [
    "-pm",
    "--persistence-mode",
    "-e",
    "--ecc-config",
    "-p",
    "--reset-ecc-errors",
    "-c",
    "--compute-mode",
    "--gom",
    "-dm",
    "--driver-model",
    "-fdm",
    "--force-driver-model",
    "-ac",
    "--applications-clocks",
    "-rac",
    "--reset-applications-clocks",
    "-lgc",
    "--lock-gpu-clocks",
    "-rgc",
    "--reset-gpu-clocks",
    "-lmc",
    "--lock-memory-clocks",
    "-rmc",
    "--reset-memory-clocks",
    "-pl",
    "--power-limit",
    "-am",
    "--accounting-mode",
    "-caa",
    "--clear-accounted-apps",
    "-mig",
    "--multi-instance-gpu",
    "-gtt",
    "--gpu-target-temp",
    "-r",
    "--gpu-reset",
    "-acp",
    "-lmcd",
    "-cc",
];

pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, Problem> {
    let mut args = Args::default();
    let mut format = None;
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        let mut value = || {
            let value = value.clone().or_else(|| words.next());
            value.ok_or_else(|| Problem::Usage(format!("Option {flag} needs a value.")))
        };
        match flag.as_str() {
            "-h" | "--help" => args.action = Action::Help,
            "--version" => args.action = Action::Version,
            "--help-query-gpu" => args.action = Action::GpuFields,
            "--help-query-compute-apps" => args.action = Action::ProcessFields,
            "-L" | "--list-gpus" => args.action = Action::List,
            "-q" | "--query" => {
                if !matches!(args.action, Action::Details(_)) {
                    args.action = Action::Details(Vec::new());
                }
            }
            "-d" | "--display" => {
                let wanted = value()?.split(',').map(Section::parse).collect::<Result<_, _>>()?;
                args.action = Action::Details(wanted);
            }
            "-i" | "--id" => args.gpus.extend(value()?.split(',').map(|id| id.trim().to_owned())),
            "-f" | "--filename" => args.output = Some(value()?.into()),
            "--format" => format = Some(parse_format(&value()?)?),
            "--query-gpu" => args.action = Action::Gpus(fields::of(&value()?)?),
            "--query-compute-apps" => args.action = Action::Processes(fields::of(&value()?)?),
            "-l" | "--loop" => args.pause = Some(Duration::from_secs(number(&flag, &value()?)?)),
            "-lms" | "--loop-ms" => args.pause = Some(Duration::from_millis(number(&flag, &value()?)?)),
            other
                if NOT_HERE.contains(&other) || NOT_HERE_EITHER.contains(&other) || other.starts_with("--query-") =>
            {
                return Err(Problem::NotInZone(other.to_owned()));
            }
            other if CHANGES.contains(&other) => return Err(Problem::Change(other.to_owned())),
            _ => return Err(Problem::Usage(format!("Invalid combination of input arguments: {word}"))),
        }
    }
    let listed = matches!(args.action, Action::Gpus(_) | Action::Processes(_));
    match format {
        None if listed => return Err(Problem::Usage("Missing required argument --format=csv.".to_owned())),
        Some(_) if !listed => return Err(Problem::Usage("--format goes with --query-gpu and the like.".to_owned())),
        format => args.format = format.unwrap_or_default(),
    }
    Ok(args)
}

fn number(flag: &str, text: &str) -> Result<u64, Problem> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Problem::Usage(format!("{text:?} is not a valid interval for {flag}.")))
}

fn parse_format(text: &str) -> Result<Format, Problem> {
    let (mut format, mut csv) = (Format::default(), false);
    for word in text.split(',').map(str::trim) {
        match word {
            "csv" => csv = true,
            "noheader" => format.no_header = true,
            "nounits" => format.no_units = true,
            _ => return Err(Problem::Usage(format!("{word:?} is not a valid format."))),
        }
    }
    if csv { Ok(format) } else { Err(Problem::Usage("--format needs csv.".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, Problem> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn values_stand_behind_a_sign_or_a_space() {
        for line in ["-i 0,GPU-x -l 5 -f out", "--id=0,GPU-x --loop=5 --filename=out"] {
            let args = parsed(line).unwrap();
            assert!(matches!(args.action, Action::Table));
            assert_eq!(args.gpus, ["0", "GPU-x"]);
            assert_eq!(args.pause, Some(Duration::from_secs(5)));
            assert_eq!(args.output, Some("out".into()));
        }
        let args = parsed("--query-gpu=name,memory.used --format=csv,noheader,nounits -lms 250").unwrap();
        assert!(matches!(&args.action, Action::Gpus(fields) if fields.len() == 2));
        assert_eq!(args.format, Format { no_header: true, no_units: true });
        assert_eq!(args.pause, Some(Duration::from_millis(250)));
        assert!(
            matches!(parsed("-d MEMORY,PIDS -q").unwrap().action, Action::Details(sections) if sections.len() == 2)
        );
    }

    #[test]
    fn what_cannot_be_done_has_the_code_of_nvidias_program() {
        let wrong = [
            ("--query-gpu=name", INVALID),
            ("--query-gpu=nonsense --format=csv", INVALID),
            ("--query-gpu= --format=csv", INVALID),
            ("--query-gpu=name --format=xml", INVALID),
            ("-L --format=csv", INVALID),
            ("--nonsense", INVALID),
            ("-i", INVALID),
            ("-l 0", INVALID),
            ("-l x", INVALID),
            ("-q -d NONSENSE", INVALID),
            ("-q -x", crate::NOT_SUPPORTED),
            ("-q -d CLOCK", crate::NOT_SUPPORTED),
            ("topo -m", crate::NOT_SUPPORTED),
            ("dmon", crate::NOT_SUPPORTED),
            ("--query-remapped-rows=gpu_uuid --format=csv", crate::NOT_SUPPORTED),
            ("-pm 1", crate::NO_PERMISSION),
            ("--gpu-reset -i 0", crate::NO_PERMISSION),
        ];
        for (line, code) in wrong {
            assert_eq!(parsed(line).err().map(|problem| problem.code()), Some(code), "{line}");
        }
    }

    const INVALID: u8 = crate::INVALID_ARGUMENT;
}
