//! The link with agents that are honest, slow, silent, or lie.

use super::*;
use agent::protocol::{CHUNK, StreamKind};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// The machine's side of a link.
struct Far {
    socket: UnixStream,
    killed: Arc<AtomicBool>,
}

impl Far {
    fn say(&mut self, message: &Up) {
        self.say_bytes(&frame(&message.encode()));
    }

    fn say_bytes(&mut self, bytes: &[u8]) {
        // It may have been closed already, after a lie.
        let _ = self.socket.write_all(bytes);
    }

    fn hear(&mut self) -> Down {
        let mut head = [0; 4];
        self.socket.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_le_bytes(head) as usize];
        self.socket.read_exact(&mut body).unwrap();
        Down::decode(&body).unwrap()
    }
}

fn link() -> (Link, Ready, mpsc::UnboundedReceiver<Event>, Far) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let killed = Arc::new(AtomicBool::new(false));
    let (flag, socket) = (killed.clone(), ours.try_clone().unwrap());
    let kill = move || {
        flag.store(true, Ordering::Release);
        let _ = socket.shutdown(std::net::Shutdown::Both);
    };
    let (link, ready, events) = Link::new(Box::new(ours.try_clone().unwrap()), Box::new(ours), kill);
    (link, ready, events, Far { socket: theirs, killed })
}

const OUT: StreamId = StreamId { process: 1, kind: StreamKind::Stdout };
const OTHER: StreamId = StreamId { process: 2, kind: StreamKind::Stdout };

fn output(stream: StreamId, length: usize) -> Up {
    Up::Output { stream, bytes: vec![b'x'; length] }
}

#[tokio::test]
async fn output_that_nobody_reads_holds_up_nothing_else() {
    let (link, ready, _events, mut far) = link();
    far.say(&Up::Ready { version: VERSION });
    ready.wait().await.unwrap();
    let _unread = link.open_output(OUT);
    let mut read = link.open_output(OTHER);
    // All that the agent may send on the first stream, and then something on the second and an answer.
    for _ in 0..WINDOW as usize / CHUNK {
        far.say(&output(OUT, CHUNK));
    }
    far.say(&output(OTHER, 3));
    assert_eq!(read.recv().await.unwrap(), b"xxx");
    let asking = link.clone();
    let answer = tokio::spawn(async move { asking.ask(Request::Pids { process: 1 }).await });
    let (mut far, heard) = tokio::task::spawn_blocking(move || {
        let heard = far.hear();
        (far, heard)
    })
    .await
    .unwrap();
    let Down::Request { number, .. } = heard else { panic!("{heard:?}") };
    far.say(&Up::Reply { number, result: Ok(Answer::Pids(vec![7])) });
    assert_eq!(answer.await.unwrap().unwrap(), Answer::Pids(vec![7]));
    assert!(!far.killed.load(Ordering::Acquire));
}

#[tokio::test]
async fn credit_that_was_given_back_can_be_used_again() {
    let (link, _ready, _events, mut far) = link();
    let mut chunks = link.open_output(OUT);
    let mut seen = 0;
    // Twice the window goes through, if what was read is granted again.
    for _ in 0..2 * WINDOW as usize / CHUNK {
        far.say(&output(OUT, CHUNK));
        seen += chunks.recv().await.unwrap().len();
        link.grant(OUT, CHUNK as u32);
        assert_eq!(far.hear(), Down::Credit { stream: OUT, bytes: CHUNK as u32 });
    }
    assert_eq!(seen, 2 * WINDOW as usize);
    far.say(&Up::OutputEnd { stream: OUT });
    assert_eq!(chunks.recv().await, None);
}

#[tokio::test]
async fn a_lie_ends_the_machine() {
    let word = |value: u32| value.to_le_bytes().to_vec();
    let framed = |message: &Up| frame(&message.encode());
    let flood: Vec<u8> = (0..=WINDOW as usize / CHUNK).flat_map(|_| framed(&output(OUT, CHUNK))).collect();
    let lies: [(&str, Vec<u8>); 8] = [
        ("a frame that is too long", word(MAX_UP as u32 + 1)),
        ("a frame that is much too long", word(u32::MAX)),
        ("nonsense", [word(3), vec![99, 1, 2]].concat()),
        ("an empty frame", word(0)),
        ("an answer to nothing", framed(&Up::Reply { number: 77, result: Ok(Answer::Done) })),
        ("more output than granted", flood),
        ("output without bytes", framed(&output(OUT, 0))),
        ("credit for what was not sent", framed(&Up::Credit { process: 1, bytes: 1 })),
    ];
    for (what, bytes) in lies {
        let (link, _ready, mut events, mut far) = link();
        let _chunks = link.open_output(OUT);
        let _credit = link.open_input(1);
        far.say_bytes(&bytes);
        let event = events.recv().await.unwrap();
        assert!(matches!(&event, Event::Gone { reason } if reason.contains("protocol")), "{what}: {event:?}");
        // The reason is sent first, and then the machine is ended.
        while !far.killed.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
        assert!(matches!(link.ask(Request::Stats { process: 1 }).await, Err(LinkError::Gone)), "{what}");
    }
}

#[tokio::test]
async fn an_agent_of_another_version_is_refused() {
    let (_link, ready, mut events, mut far) = link();
    far.say(&Up::Ready { version: VERSION + 1 });
    assert!(ready.wait().await.is_err());
    assert!(matches!(events.recv().await, Some(Event::Gone { .. })));
}

#[tokio::test]
async fn ends_and_messages_are_told_once_and_only_when_expected() {
    let (link, _ready, mut events, mut far) = link();
    link.expect_exit(5);
    link.expect_message("v1");
    let exited = Up::Exited { process: 5, status: 3, out_of_memory: false };
    let left = |volume: &str| Up::TerminationMessage { volume: volume.into(), bytes: b"why".to_vec() };
    for message in [&left("v2"), &left("v1"), &left("v1"), &exited, &exited] {
        far.say(message);
    }
    far.say(&Up::Exited { process: 6, status: 0, out_of_memory: false });
    drop(far);
    assert!(matches!(events.recv().await, Some(Event::TerminationMessage { .. })));
    assert_eq!(events.recv().await, Some(Event::Exited { process: 5, status: 3, out_of_memory: false }));
    assert!(matches!(events.recv().await, Some(Event::Gone { .. })));
}

#[tokio::test]
async fn an_agent_that_never_answers_loses_its_machine() {
    let (link, _ready, mut events, far) = link();
    let asked = link.ask_within(Duration::from_millis(10), Request::Stats { process: 1 }).await;
    assert!(matches!(asked, Err(LinkError::Timeout)));
    // That it is gone is said when it is.
    assert!(matches!(events.recv().await, Some(Event::Gone { .. })));
    assert!(far.killed.load(Ordering::Acquire));
}

#[tokio::test]
async fn an_agent_that_does_not_read_cannot_fill_the_hosts_memory() {
    let (link, _ready, mut events, far) = link();
    // Far more than the socket takes, without waiting for answers.
    let request = |process| Request::Update { process, resources: vec![0; 1 << 20] };
    let asks: Vec<_> = (0..40)
        .map(|process| {
            let link = link.clone();
            tokio::spawn(async move { link.ask(request(process)).await })
        })
        .collect();
    assert!(matches!(events.recv().await, Some(Event::Gone { .. })));
    for ask in asks {
        assert!(ask.await.unwrap().is_err());
    }
    assert!(far.killed.load(Ordering::Acquire));
}

#[tokio::test]
async fn a_machine_that_ends_fails_what_waits_for_it() {
    let (link, ready, mut events, far) = link();
    let asking = link.clone();
    let answer = tokio::spawn(async move { asking.ask(Request::Stats { process: 1 }).await });
    drop(far);
    assert!(answer.await.unwrap().is_err());
    assert!(ready.wait().await.is_err());
    assert!(matches!(events.recv().await, Some(Event::Gone { .. })));
}

#[test]
fn what_the_machine_says_is_one_line_of_text() {
    let failure = Failure { kind: FailureKind::Failed, text: "no\n\u{1b}[2Jlevel=error msg=x".into() };
    assert_eq!(printable(failure).text, "no  [2Jlevel=error msg=x");
}
