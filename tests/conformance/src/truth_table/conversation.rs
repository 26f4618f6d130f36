//! What a producer and its consumers do in each row: share memory and an event, in order, over a file.

use std::path::Path;

use crate::harness::Honest;

/// Why a row does not work, as a cell of the table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotShared {
    #[error("a program does not start ({0})")]
    Start(String),
    #[error("`{what}` answers {answer}")]
    Step { what: String, answer: String },
    #[error("the container is not what it should be: {0}")]
    Surroundings(String),
    #[error("cannot hand the handles over: {0}")]
    File(String),
}

/// One of those who share.
pub(super) struct Actor(pub Honest);

impl Actor {
    fn ask(&mut self, line: &str) -> Result<String, NotShared> {
        let what = line.split(' ').next().unwrap_or_default().to_owned();
        self.0.try_ask(line).ok_or(NotShared::Step { what, answer: "nothing".to_owned() })
    }

    fn expect(&mut self, line: &str, wanted: &str) -> Result<(), NotShared> {
        let answer = self.ask(line)?;
        let what = line.split(' ').next().unwrap_or_default().to_owned();
        if answer == wanted { Ok(()) } else { Err(NotShared::Step { what, answer: explain(&answer) }) }
    }

    fn open(&mut self, handle: &str) -> Result<(), NotShared> {
        let answer = self.ask(&format!("open {handle}"))?;
        let opened = answer.starts_with("0x");
        if opened { Ok(()) } else { Err(NotShared::Step { what: "open".into(), answer: explain(&answer) }) }
    }
}

/// CUDA's name beside the number of an error.
fn explain(answer: &str) -> String {
    let code = answer.strip_prefix("error ").and_then(|number| number.parse().ok());
    code.map_or_else(|| answer.to_owned(), |code: u32| format!("{code} {}", cuda_abi::error::name(code)))
}

/// Memory that one process fills, and all others read and write, one after the other.
pub(super) fn memory(producer: &mut Actor, consumers: &mut [Actor], file: &Path) -> Result<(), NotShared> {
    producer.expect("alloc 5000000", "ok")?;
    producer.expect("fill 7", "ok")?;
    // The classic hand-over: bytes in a file of a directory that all see.
    let handle = producer.ask("handle")?;
    let failed = |error: std::io::Error| NotShared::File(error.to_string());
    std::fs::write(file, handle).map_err(failed)?;
    let handle = std::fs::read_to_string(file).map_err(failed)?;
    for (number, consumer) in consumers.iter_mut().enumerate() {
        consumer.open(&handle)?;
        consumer.expect("read", &(7 + number).to_string())?;
        consumer.expect(&format!("fill {}", 8 + number), "ok")?;
        producer.expect("read", &(8 + number).to_string())?;
    }
    Ok(())
}

/// An event that orders the work of all: each waits for the one before it, in its stream.
pub(super) fn events(producer: &mut Actor, consumers: &mut [Actor]) -> Result<(), NotShared> {
    producer.expect("event", "ok")?;
    let handle = producer.ask("event-handle")?;
    for (number, consumer) in consumers.iter_mut().enumerate() {
        consumer.expect(&format!("open-event {handle}"), "ok")?;
        producer.expect(&format!("fill {}", 20 + number), "ok")?;
        producer.expect("record", "ok")?;
        consumer.expect("wait", "ok")?;
        consumer.expect("later", "ok")?;
        consumer.expect("result", &(20 + number).to_string())?;
    }
    Ok(())
}

/// The producer is gone, and those who have its memory open still see it.
pub(super) fn farewell(producer: Actor, consumers: Vec<Actor>) -> Result<(), NotShared> {
    producer.0.quit();
    for mut consumer in consumers {
        // Whatever the last of them wrote, it is the same everywhere.
        let seen = consumer.ask("read")?;
        if seen.starts_with("error") || seen == "mixed" {
            return Err(NotShared::Step { what: "read".into(), answer: explain(&seen) });
        }
        consumer.expect("close", "ok")?;
        consumer.0.quit();
    }
    Ok(())
}

/// One who must not open it.
pub(super) fn stranger_is_refused(producer: &mut Actor, stranger: &mut Actor) -> Result<(), NotShared> {
    const NOT_PERMITTED: &str = "error 800";
    let handle = producer.ask("handle")?;
    stranger.expect(&format!("open {handle}"), NOT_PERMITTED)
}
