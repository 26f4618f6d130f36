//! Runs the suite: each test in a process of its own, because a driver is state of the whole process and a fault must
//! not spoil the next test.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::{Backend, BackendError};
use crate::kernels;
use crate::suite::{self, Test};

/// No test takes longer, unless it hangs.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// How many tests run at the same time.
pub const AT_ONCE: usize = 2;

#[derive(Debug, Clone)]
pub struct Options {
    pub backend: Backend,
    pub json: bool,
    pub list: bool,
    /// Where the compiled kernels are; without them their tests are skipped.
    pub kernels: Option<PathBuf>,
    pub names: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("{0} needs a value")]
    Value(String),
    #[error("what is {0}? (--help)")]
    Unknown(String),
    #[error("no test is called like that: {0}")]
    NoTest(String),
}

impl Options {
    pub fn parse(words: &[&str]) -> Result<Self, OptionsError> {
        let mut options =
            Self { backend: Backend::SoftDirect, json: false, list: false, kernels: None, names: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--backend" => {
                    let value = words.next().ok_or_else(|| OptionsError::Value((*word).to_owned()))?;
                    options.backend = value.parse()?;
                }
                "--kernels" => {
                    let value = words.next().ok_or_else(|| OptionsError::Value((*word).to_owned()))?;
                    options.kernels = Some(PathBuf::from(value));
                }
                word if word.starts_with('-') => return Err(OptionsError::Unknown(word.to_owned())),
                name => options.names.push(name.to_owned()),
            }
        }
        for name in &options.names {
            if !suite::all().any(|test| test.full_name().contains(name)) {
                return Err(OptionsError::NoTest(name.clone()));
            }
        }
        Ok(options)
    }

    fn chosen(&self) -> Vec<Test> {
        let wanted =
            |test: &Test| self.names.is_empty() || self.names.iter().any(|name| test.full_name().contains(name));
        suite::all().filter(wanted).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    Pass,
    Fail {
        why: String,
    },
    /// The test asks for something that a native driver leaves undefined.
    Skip {
        why: &'static str,
    },
}

#[derive(Debug, Clone, Serialize)]
pub struct TestResult {
    pub name: String,
    pub backend: &'static str,
    #[serde(flatten)]
    pub outcome: Outcome,
    pub seconds: f64,
}

impl TestResult {
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Fail { .. })
    }

    pub fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).unwrap_or_default());
            return;
        }
        match &self.outcome {
            Outcome::Pass => println!("PASS  {}", self.name),
            Outcome::Skip { why } => println!("SKIP  {} ({why})", self.name),
            Outcome::Fail { why } => println!("FAIL  {}\n      {}", self.name, why.replace('\n', "\n      ")),
        }
    }
}

/// Runs the chosen tests. `player` makes the command of the `conformance` program, with its surroundings, given which of
/// the [`AT_ONCE`] that run at the same time it is; `seen` hears of each result as it comes.
pub fn run(
    options: &Options,
    player: impl Fn(usize) -> Command + Sync,
    seen: impl Fn(&TestResult) + Sync,
) -> Vec<TestResult> {
    let tests = Mutex::new(options.chosen().into_iter());
    let results = Mutex::new(Vec::new());
    let next = || tests.lock().ok()?.next();
    std::thread::scope(|scope| {
        // On a real GPU two at once would see each other's memory come and go.
        let at_once = if is_native(&options.backend) { 1 } else { AT_ONCE };
        for slot in 0..at_once {
            let (next, player, seen, results) = (&next, &player, &seen, &results);
            scope.spawn(move || {
                while let Some(test) = next() {
                    let start = Instant::now();
                    let outcome = run_in_child(&test, options, player(slot));
                    let (name, backend) = (test.full_name(), options.backend.name());
                    let result = TestResult { name, backend, outcome, seconds: start.elapsed().as_secs_f64() };
                    seen(&result);
                    if let Ok(mut results) = results.lock() {
                        results.push(result);
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by(|a: &TestResult, b| a.name.cmp(&b.name));
    results
}

fn run_in_child(test: &Test, options: &Options, mut player: Command) -> Outcome {
    let backend = &options.backend;
    match &options.kernels {
        Some(dir) => drop(player.env(kernels::DIR_VARIABLE, dir)),
        None if test.kernels => return Outcome::Skip { why: "there are no compiled kernels" },
        None => {}
    }
    if let (Some(why), true) = (test.only_ours, is_native(backend)) {
        return Outcome::Skip { why };
    }
    let fail = |why: String| Outcome::Fail { why };
    player.args(["one", &backend.argument(), &test.full_name()]);
    player.env("RUST_BACKTRACE", "0");
    player.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match player.spawn() {
        Ok(child) => child,
        Err(error) => return fail(format!("cannot start: {error}")),
    };
    let errors = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
        String::from_utf8_lossy(&text).trim().to_owned()
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if start.elapsed() > TIME_LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("hangs (ended after {} s)", TIME_LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => break Err(format!("cannot wait for it: {error}")),
        }
    };
    // A process that the test left behind may hold its standard error open; what it wrote is no use then.
    let text = if status.is_ok() { reader.join().unwrap_or_default() } else { String::new() };
    match status {
        Ok(status) if status.success() => Outcome::Pass,
        Ok(status) if status.code() == Some(kernels::NOT_FOR_THESE.into()) => {
            Outcome::Skip { why: "not for these GPUs" }
        }
        Ok(status) if text.is_empty() => fail(status.to_string()),
        Ok(status) => fail(format!("{status}: {text}")),
        Err(why) => fail(why),
    }
}

/// Is it NVIDIA's library? The user who runs it says so.
fn is_native(backend: &Backend) -> bool {
    matches!(backend, Backend::Library(_)) && std::env::var_os("CONFORMANCE_NATIVE").is_some()
}

/// Runs one test in this process, which ends with it.
pub fn run_one(backend: &str, name: &str) -> ExitCode {
    let driver = backend.parse::<Backend>().and_then(|backend| backend.load());
    let test = suite::all().find(|test| test.full_name() == name);
    match (driver, test) {
        (Ok(driver), Some(test)) => {
            (test.body)(&driver);
            ExitCode::SUCCESS
        }
        (Err(error), _) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        (_, None) => {
            eprintln!("there is no test {name}");
            ExitCode::from(2)
        }
    }
}

/// How many of each family passed.
pub fn print_table(results: &[TestResult]) {
    let mut families: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for result in results {
        let family = result.name.split("::").next().unwrap_or_default();
        let (passed, failed, skipped) = families.entry(family).or_default();
        match result.outcome {
            Outcome::Pass => *passed += 1,
            Outcome::Fail { .. } => *failed += 1,
            Outcome::Skip { .. } => *skipped += 1,
        }
    }
    println!("\n{:<14} {:>6} {:>6} {:>7}", "FAMILY", "PASSED", "FAILED", "SKIPPED");
    let mut total = (0, 0, 0);
    for (family, (passed, failed, skipped)) in families {
        println!("{family:<14} {passed:>6} {failed:>6} {skipped:>7}");
        total = (total.0 + passed, total.1 + failed, total.2 + skipped);
    }
    println!("{:<14} {:>6} {:>6} {:>7}", "all", total.0, total.1, total.2);
}
