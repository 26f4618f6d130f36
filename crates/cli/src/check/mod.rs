//! `bulkhead run --check`: takes what the software GPU finds, and says it.
//!
//! Workers append lines of JSON to a file of this run. They open it before they go into their jail.

mod finding;
mod sarif;
mod suppress;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::args::CheckArgs;
use crate::exit::{Exit, Failure};
use finding::{Finding, Line};
use suppress::Suppressions;

/// How long a worker may take to say what its client has left behind.
const LAST_WORDS: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(10);
/// The most of a report that is read.
const MOST_REPORTED: u64 = 16 << 20;
/// The most findings that are printed one by one.
const MOST_PRINTED: usize = 200;

/// A run that is looked at.
pub(crate) struct Check {
    wanted: String,
    report: Report,
    suppressions: Suppressions,
    output: Option<(PathBuf, File)>,
}

/// The file of the workers; it goes with the run.
struct Report {
    path: PathBuf,
    file: File,
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Check {
    /// None when nothing is wanted. What the user got wrong fails before anything is started.
    pub(crate) fn begin(args: &CheckArgs) -> Result<Option<Check>, Failure> {
        let lockstep = args.lockstep.then_some("lockstep");
        let words: Vec<&str> = args.check.as_deref().into_iter().chain(lockstep).collect();
        if words.is_empty() {
            return Ok(None);
        }
        let suppressions = match &args.check_suppress {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| cannot("read", path, &error))?;
                Suppressions::parse(&text)
                    .map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", path.display())))?
            }
            None => Suppressions::default(),
        };
        let output = match &args.check_output {
            Some(path) => Some((path.clone(), File::create(path).map_err(|error| cannot("create", path, &error))?)),
            None => None,
        };
        let report = Report::create().map_err(|error| cannot("create", &std::env::temp_dir(), &error))?;
        Ok(Some(Check { wanted: words.join(","), report, suppressions, output }))
    }

    /// As the environment variable has it.
    pub(crate) fn wanted(&self) -> &str {
        &self.wanted
    }

    /// Where workers report to.
    pub(crate) fn report(&self) -> &Path {
        &self.report.path
    }

    /// The program has ended: says what was found. Answers how much that is.
    pub(crate) fn finish(mut self) -> Result<usize, Failure> {
        let text = self.report.wait().map_err(|error| cannot("read", &self.report.path, &error))?;
        let (mut found, mut suppressed) = (Vec::new(), 0);
        for finding in findings(&text) {
            if self.suppressions.cover(&finding) {
                suppressed += 1;
            } else {
                found.push(finding);
            }
        }
        for finding in found.iter().filter(|finding| !finding.printed).take(MOST_PRINTED) {
            eprintln!("softgpu: {}", finding.text);
        }
        if !found.is_empty() || suppressed > 0 {
            let many = if found.len() == 1 { "" } else { "s" };
            eprintln!("bulkhead: {} finding{many}, {suppressed} suppressed", found.len());
        }
        if let Some((path, file)) = &mut self.output {
            write(path, file, &found).map_err(|error| cannot("write", path, &error))?;
        }
        Ok(found.len())
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::system(Exit::Failure, &format!("cannot {what} {}", path.display()), error)
}

/// What is in a report, each once: several processes of a program may have found the same.
fn findings(text: &str) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for line in text.lines() {
        if let Some(Line::Finding(finding)) = finding::parse(line)
            && !found.iter().any(|known| known.is_alike(&finding))
        {
            found.push(finding);
        }
    }
    found
}

fn write(path: &Path, file: &mut File, found: &[Finding]) -> io::Result<()> {
    use std::io::Write;
    if path.extension().is_some_and(|extension| extension == "sarif") {
        let root = std::env::current_dir().unwrap_or_default();
        return writeln!(file, "{:#}", sarif::log(found, &root));
    }
    found.iter().try_for_each(|finding| writeln!(file, "{}", finding.json))
}

impl Report {
    fn create() -> io::Result<Report> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("bulkhead-check-{:016x}", u64::from_ne_bytes(random));
        let path = std::env::temp_dir().join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Report { path, file })
    }

    fn read(&mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.file.rewind()?;
        self.file.by_ref().take(MOST_REPORTED).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What is in it once every worker that has begun has ended, or has had time for it.
    fn wait(&mut self) -> io::Result<String> {
        let until = Instant::now() + LAST_WORDS;
        loop {
            let text = self.read()?;
            if open_workers(&text) == 0 {
                return Ok(text);
            }
            if Instant::now() >= until {
                eprintln!("bulkhead: a worker did not finish its report; findings may be missing");
                return Ok(text);
            }
            std::thread::sleep(POLL);
        }
    }
}

fn open_workers(text: &str) -> usize {
    let mut open: Vec<u64> = Vec::new();
    for line in text.lines().filter_map(finding::parse) {
        match line {
            Line::Begin(pid) => open.push(pid),
            Line::End(pid) => open.retain(|other| *other != pid),
            Line::Finding(_) => {}
        }
    }
    open.len()
}

/// Opens the file for a worker, if it belongs to the user that the worker begins as.
pub(crate) fn open_report(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let file = options.append(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path).ok()?;
    let data = file.metadata().ok()?;
    let ours = data.is_file() && data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o022 == 0;
    ours.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: &str = r#"{"check":"races","what":"race between blocks","kernel":"add(int*)","mangled":"_Z3addPi","threads":[{"does":"write of 4 bytes","block":[1,0,0],"thread":[0,0,0],"file":"/src/a.cu","line":12},{"does":"read of 4 bytes","block":[0,0,0],"thread":[0,0,0],"file":"/src/b.h","line":3}],"text":"races: race"}"#;

    #[test]
    fn a_worker_that_has_not_ended_is_waited_for() {
        assert_eq!(open_workers(""), 0);
        assert_eq!(open_workers("{\"begin\":7}\n"), 1);
        assert_eq!(open_workers("{\"begin\":7}\n{\"begin\":8}\nnonsense\n{\"end\":7}\n"), 1);
        assert_eq!(open_workers("{\"begin\":7}\n{\"end\":7}\n"), 0);
    }

    #[test]
    fn findings_are_said_once_and_some_not_at_all() {
        let text = format!("{{\"begin\":7}}\n{RACE}\n{RACE}\nbroken\n{{\"end\":7}}\n");
        let found = findings(&text);
        assert_eq!(found.len(), 1);
        let covered = |rules: &str| Suppressions::parse(rules).unwrap().cover(&found[0]);
        assert!(
            covered("races kernel:add*") && covered("* kernel:_Z3addPi") && covered("# why\nraces source:*/b.h:3")
        );
        assert!(!covered("init kernel:*") && !covered("races source:*/b.h:4") && !covered(""));
        assert!(Suppressions::parse("race kernel:x").is_err() && Suppressions::parse("races x").is_err());
    }

    #[test]
    fn sarif_names_files_below_the_root() {
        let log = sarif::log(&findings(RACE), Path::new("/src"));
        let result = &log["runs"][0]["results"][0];
        assert_eq!((result["ruleId"].as_str(), result["level"].as_str()), (Some("races"), Some("error")));
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "a.cu");
        assert_eq!(place["region"]["startLine"], 12);
        let other = &result["relatedLocations"][0]["physicalLocation"];
        assert_eq!(other["artifactLocation"]["uri"], "b.h");
        let log = sarif::log(&findings(RACE), Path::new("/elsewhere"));
        let place = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "file:///src/a.cu");
    }

    #[test]
    fn the_report_goes_with_the_run() {
        let args =
            CheckArgs { check: Some("races".into()), check_output: None, check_suppress: None, lockstep: true };
        let check = Check::begin(&args).unwrap().unwrap();
        let path = check.report().to_owned();
        assert_eq!(check.wanted(), "races,lockstep");
        use std::io::Write;
        writeln!(open_report(&path).unwrap(), "{RACE}").unwrap();
        assert_eq!(check.finish().ok(), Some(1));
        assert!(!path.exists());
        let nothing = CheckArgs { check: None, check_output: None, check_suppress: None, lockstep: false };
        assert!(Check::begin(&nothing).unwrap().is_none());
    }
}
