//! Parts of the test beside each other: which may begin, and what becomes of those whose needs failed.
//!
//! A part is a process of its own, so that what it prints goes to a file and is shown in one piece when it ends.

use super::parts::Part;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;
use xtask::paths;
use xtask::report::{Counts, Report, counted};

/// The hidden verb with which this program runs one part.
pub(crate) const VERB: &str = "test-part";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Running,
    Passed,
    Failed,
}

struct Board<'a> {
    parts: &'a [&'a Part],
    states: Vec<State>,
    cores: usize,
}

impl<'a> Board<'a> {
    fn new(parts: &'a [&'a Part], cores: usize) -> Board<'a> {
        Board { parts, states: vec![State::Waiting; parts.len()], cores }
    }

    /// None for a part that does not take part this time: nobody waits for it.
    fn state(&self, name: &str) -> Option<State> {
        self.parts.iter().position(|part| part.name == name).map(|index| self.states[index])
    }

    /// The first waiting part that cannot be tried, and what it needs that failed.
    fn hopeless(&self) -> Option<(usize, &'static str)> {
        let waiting = self.waiting();
        waiting.into_iter().find_map(|index| {
            let failed = |need: &&&str| self.state(need) == Some(State::Failed);
            Some((index, *self.parts[index].needs.iter().find(failed)?))
        })
    }

    /// The first waiting part that can begin now.
    fn next(&self) -> Option<usize> {
        let running = self.states.iter().zip(self.parts).filter(|(state, _)| **state == State::Running);
        let taken: usize = running.map(|(_, part)| part.cores).sum();
        let ended = |name: &&str| !matches!(self.state(name), Some(State::Waiting | State::Running));
        let others_ended = |index: usize| {
            let others = self.states.iter().enumerate().filter(|(other, _)| *other != index);
            others.into_iter().all(|(_, state)| matches!(state, State::Passed | State::Failed))
        };
        self.waiting().into_iter().find(|index| {
            let part = self.parts[*index];
            // The first one always has room, however much it wants.
            let room = taken == 0 || taken + part.cores <= self.cores;
            let ready = part.needs.iter().chain(part.after).all(ended);
            room && ready && (!part.last || others_ended(*index))
        })
    }

    fn waiting(&self) -> Vec<usize> {
        (0..self.parts.len()).filter(|index| self.states[*index] == State::Waiting).collect()
    }
}

/// Runs the parts, as many beside each other as there are cores for.
pub(super) fn run(parts: &[&Part], report: &mut Report) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let logs = logs();
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    println!("{} parts; what each prints goes to {} until it ends", parts.len(), logs.display());
    let mut board = Board::new(parts, cores);
    let (ended, ends) = mpsc::channel();
    loop {
        while let Some((index, need)) = board.hopeless() {
            board.states[index] = State::Failed;
            report.skip(parts[index].name, &format!("needs {need}, which failed"));
        }
        while let Some(index) = board.next() {
            board.states[index] = State::Running;
            let (part, ended) = (parts[index], ended.clone());
            println!("   {} begins", part.name);
            let name = part.name;
            std::thread::spawn(move || {
                let began = Instant::now();
                let result = child(name);
                // The receiver is there as long as parts run.
                let _ = ended.send((index, began, result));
            });
        }
        if !board.states.contains(&State::Running) {
            return Ok(());
        }
        let (index, began, result) = ends.recv().context("a part ended without a word")?;
        let name = parts[index].name;
        println!("\n── {name}\n{}", fs::read_to_string(log(name)).unwrap_or_default().trim_end());
        let counts = counted(result);
        board.states[index] = if counts.failed == 0 { State::Passed } else { State::Failed };
        report.add(name, counts, began);
    }
}

fn logs() -> PathBuf {
    paths::target().join("test-logs")
}

fn log(part: &str) -> PathBuf {
    logs().join(format!("{}.log", part.replace(' ', "-")))
}

/// Runs one part with its output in its file.
fn child(name: &str) -> Result<Counts> {
    let log = File::create(log(name)).context("cannot write the part's output")?;
    // By this name it is found even when a build has replaced the file meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args([VERB, name]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Counts::of(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Part = Part {
        name: "",
        what: "",
        needs: &[],
        after: &[],
        quick: true,
        cores: 1,
        last: false,
        run: || unreachable!(),
    };
    const BUILD: Part = Part { name: "build", ..PLAIN };
    const FETCH: Part = Part { name: "fetch", cores: 0, ..PLAIN };
    const TESTS: Part = Part { name: "tests", needs: &["build"], after: &["fetch"], ..PLAIN };
    const LOOM: Part = Part { name: "loom", ..PLAIN };
    const FUZZ: Part = Part { name: "fuzz", ..PLAIN };
    const LEFT: Part = Part { name: "left", last: true, ..PLAIN };
    const ALL: [&Part; 6] = [&BUILD, &FETCH, &TESTS, &LOOM, &FUZZ, &LEFT];

    /// The names of those that begin.
    fn begin(board: &mut Board) -> Vec<&'static str> {
        std::iter::from_fn(|| {
            let index = board.next()?;
            board.states[index] = State::Running;
            Some(board.parts[index].name)
        })
        .collect()
    }

    fn end(board: &mut Board, name: &str, state: State) {
        let index = board.parts.iter().position(|part| part.name == name).unwrap();
        assert_eq!(board.states[index], State::Running, "{name}");
        board.states[index] = state;
    }

    #[test]
    fn parts_begin_in_order_as_cores_and_needs_allow() {
        let mut board = Board::new(&ALL, 2);
        assert_eq!(begin(&mut board), ["build", "fetch", "loom"]);
        end(&mut board, "build", State::Passed);
        assert_eq!(begin(&mut board), ["fuzz"], "tests wait for fetch");
        end(&mut board, "fetch", State::Failed);
        end(&mut board, "loom", State::Passed);
        assert_eq!(begin(&mut board), ["tests"], "which need not succeed");
        end(&mut board, "fuzz", State::Failed);
        assert!(begin(&mut board).is_empty(), "the last one waits for all");
        end(&mut board, "tests", State::Passed);
        assert_eq!(begin(&mut board), ["left"]);
    }

    #[test]
    fn what_needs_something_that_failed_is_not_tried() {
        let mut board = Board::new(&ALL, 2);
        begin(&mut board);
        assert_eq!(board.hopeless(), None);
        end(&mut board, "build", State::Failed);
        assert_eq!(board.hopeless(), Some((2, "build")));
    }

    #[test]
    fn nobody_waits_for_a_part_that_is_left_out() {
        let parts = [&TESTS];
        assert_eq!(Board::new(&parts, 2).next(), Some(0));
    }

    #[test]
    fn one_core_is_enough() {
        let mut board = Board::new(&ALL, 1);
        assert_eq!(begin(&mut board), ["build", "fetch"]);
    }
}
