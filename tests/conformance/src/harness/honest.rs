//! A client that does what it is told: see [`crate::client`].

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;

use super::{Place, TIMEOUT, signal};

pub struct Honest {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Honest {
    /// Starts a client in a zone, with a context and some memory.
    pub fn start(place: &Place, socket: &Path) -> Self {
        Self::from_command(place.player(&["client"], socket))
    }

    /// The same from a command, such as `bulkhead run … conformance client`.
    pub fn from_command(command: std::process::Command) -> Self {
        Self::try_from_command(command).unwrap_or_else(|why| panic!("the client does not start: {why}"))
    }

    /// The same, where it may well fail: answers with the last line that it said of it.
    pub fn try_from_command(mut command: std::process::Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let answers = lines(child.stdout.take().expect("piped"));
        // What it says of a lost worker is expected here, and no concern of who reads the tests' output.
        let errors = child.stderr.take().expect("piped");
        let errors = std::thread::spawn(move || BufReader::new(errors).lines().map_while(Result::ok).last());
        let input = child.stdin.take();
        let mut honest = Self { child, input, answers };
        match honest.try_hear().as_deref() {
            Some("ready") => Ok(honest),
            said => {
                let said = said.map(str::to_owned);
                drop(honest);
                Err(said.or_else(|| errors.join().ok().flatten()).unwrap_or_default())
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says a line without waiting for the answer.
    pub fn tell(&mut self, command: &str) {
        let input = self.input.as_mut().expect("the client's input is open");
        writeln!(input, "{command}").expect("the client reads");
    }

    /// The next answer.
    ///
    /// # Panics
    /// When none comes.
    pub fn hear(&mut self) -> String {
        self.answers.recv_timeout(TIMEOUT).expect("the client answers in time")
    }

    /// The next answer, if one comes.
    pub fn try_hear(&mut self) -> Option<String> {
        self.answers.recv_timeout(TIMEOUT).ok()
    }

    /// The answer to a line, if the client is there to give one.
    pub fn try_ask(&mut self, command: &str) -> Option<String> {
        writeln!(self.input.as_mut()?, "{command}").ok()?;
        self.try_hear()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.hear()
    }

    /// A conversation: lines, and what each must be answered with.
    ///
    /// # Panics
    /// At the first other answer.
    #[track_caller]
    pub fn expect(&mut self, conversation: &[(&str, &str)]) {
        for (line, answer) in conversation {
            assert_eq!(self.ask(line), *answer, "{line}");
        }
    }

    /// Opens memory by its handle; answers what is said of where it is.
    ///
    /// # Panics
    /// When it does not open.
    #[track_caller]
    pub fn opens(&mut self, handle: &str) -> String {
        let said = self.ask(&format!("open {handle}"));
        assert!(said.starts_with("0x"), "{said}");
        said
    }

    pub fn kill(&mut self) -> ExitStatus {
        signal(self.child.id(), Signal::KILL);
        self.child.wait().expect("our child")
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("our child")
    }

    /// Ends it the good way.
    pub fn quit(mut self) {
        self.tell("quit");
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "the client ended with {status}");
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
