//! Messages come out as they went in, and no bytes at all make the decoder do anything but say no.

use agent::protocol::{
    Address, Answer, CHUNK, Decode, Down, Failure, FailureKind, MAX_TERMINATION_MESSAGE, Network, PidNamespace,
    Request, Root, RootMount, Route, Stats, StreamId, StreamKind, Up, VolumeKind,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn stream() -> impl Strategy<Value = StreamId> {
    let kind = prop_oneof![Just(StreamKind::Stdin), Just(StreamKind::Stdout), Just(StreamKind::Stderr)];
    (any::<u32>(), kind).prop_map(|(process, kind)| StreamId { process, kind })
}

fn answer() -> impl Strategy<Value = Answer> {
    let stats = any::<[u64; 8]>().prop_map(|n| {
        Answer::Stats(Stats {
            memory_bytes: n[0],
            memory_limit: n[1],
            inactive_file_bytes: n[2],
            cpu_nanoseconds: n[3],
            cpu_user_nanoseconds: n[4],
            cpu_kernel_nanoseconds: n[5],
            processes: n[6],
            processes_limit: n[7],
        })
    });
    prop_oneof![Just(Answer::Done), stats, vec(any::<u32>(), 0..20).prop_map(Answer::Pids)]
}

fn failure() -> impl Strategy<Value = Failure> {
    let kind = prop_oneof![Just(FailureKind::NotFound), Just(FailureKind::Invalid), Just(FailureKind::Failed)];
    (kind, ".{0,60}").prop_map(|(kind, text)| Failure { kind, text })
}

fn up() -> impl Strategy<Value = Up> {
    let result = prop_oneof![answer().prop_map(Ok), failure().prop_map(Err)];
    prop_oneof![
        any::<u32>().prop_map(|version| Up::Ready { version }),
        (any::<u32>(), result).prop_map(|(number, result)| Up::Reply { number, result }),
        (stream(), vec(any::<u8>(), 0..200)).prop_map(|(stream, bytes)| Up::Output { stream, bytes }),
        stream().prop_map(|stream| Up::OutputEnd { stream }),
        (any::<u32>(), any::<u32>()).prop_map(|(process, bytes)| Up::Credit { process, bytes }),
        (any::<u32>(), any::<u8>(), any::<bool>()).prop_map(|(process, status, out_of_memory)| Up::Exited {
            process,
            status,
            out_of_memory
        }),
        (".{0,20}", vec(any::<u8>(), 0..200)).prop_map(|(volume, bytes)| Up::TerminationMessage { volume, bytes }),
    ]
}

proptest! {
    #[test]
    fn what_the_agent_says_comes_out_as_it_went_in(message in up()) {
        prop_assert_eq!(Up::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn noise_is_refused_or_is_exactly_a_message(noise in vec(any::<u8>(), 0..300)) {
        if let Ok(message) = Up::decode(&noise) {
            prop_assert_eq!(message.encode(), noise);
        }
    }

    #[test]
    fn a_message_with_bytes_changed_is_refused_or_exactly_another(
        message in up(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()
    ) {
        let mut body = message.encode();
        let index = at.index(body.len());
        body[index] = byte;
        body.truncate(cut.index(body.len()) + 1);
        if let Ok(message) = Up::decode(&body) {
            prop_assert_eq!(message.encode(), body);
        }
    }
}

#[test]
fn lengths_have_bounds() {
    let stream = StreamId { process: 1, kind: StreamKind::Stdout };
    assert!(Up::decode(&Up::Output { stream, bytes: vec![0; CHUNK] }.encode()).is_ok());
    assert!(Up::decode(&Up::Output { stream, bytes: vec![0; CHUNK + 1] }.encode()).is_err());
    let message = |length| Up::TerminationMessage { volume: "v".into(), bytes: vec![0; length] };
    assert!(Up::decode(&message(MAX_TERMINATION_MESSAGE).encode()).is_ok());
    assert!(Up::decode(&message(MAX_TERMINATION_MESSAGE + 1).encode()).is_err());
    // A long text is cut where a character ends.
    let text = "ä".repeat(10_000);
    let long = Up::Reply { number: 1, result: Err(Failure { kind: FailureKind::Failed, text }) };
    assert!(matches!(Up::decode(&long.encode()), Ok(Up::Reply { result: Err(_), .. })));
}

#[test]
fn what_the_shim_says_comes_out_as_it_went_in() {
    let root = Root::Mounts(vec![RootMount {
        kind: "overlay".into(),
        source: "overlay".into(),
        target: String::new(),
        options: vec!["lowerdir=/a:/b".into(), "ro".into()],
    }]);
    let disk = Root::Disk { device: "xvdb".into(), kind: "ext4".into(), read_only: true };
    let (volume, path) = ("v1".to_owned(), "..data/key".to_owned());
    let requests = [
        Request::Create {
            process: 1,
            id: "c".into(),
            spec: b"{}".to_vec(),
            root,
            terminal: true,
            pids: PidNamespace::Own,
        },
        Request::Create {
            process: 2,
            id: "d".into(),
            spec: vec![],
            root: disk,
            terminal: false,
            pids: PidNamespace::Of(1),
        },
        Request::Create {
            process: 4,
            id: "e".into(),
            spec: vec![],
            root: Root::Layered { device: "xvdc".into(), kind: "ext4".into() },
            terminal: false,
            pids: PidNamespace::Own,
        },
        Request::Network(Network {
            mac: "0a:58:0a:16:00:05".into(),
            mtu: 1450,
            addresses: vec![
                Address { address: "10.22.0.5".parse().unwrap(), prefix: 24 },
                Address { address: "fd00::5".parse().unwrap(), prefix: 64 },
            ],
            routes: vec![
                Route { to: Address { address: "10.22.0.1".parse().unwrap(), prefix: 32 }, gateway: None },
                Route {
                    to: Address { address: "::".parse().unwrap(), prefix: 0 },
                    gateway: Some("fd00::1".parse().unwrap()),
                },
            ],
        }),
        Request::Exec { process: 3, container: 1, spec: b"{}".to_vec(), terminal: false },
        Request::Start { process: 1 },
        Request::Signal { process: 1, signal: 15, all: true },
        Request::Resize { process: 1, rows: 24, columns: 80 },
        Request::Stats { process: 1 },
        Request::Pids { process: 1 },
        Request::Update { process: 1, resources: b"{}".to_vec() },
        Request::Freeze { process: 1, frozen: true },
        Request::Delete { process: 1 },
        Request::Volume { name: volume.clone(), kind: VolumeKind::Memory(64 << 20), mode: 0o1777, uid: 0, gid: 5 },
        Request::PutDirectory { volume: volume.clone(), path: path.clone(), mode: 0o755, uid: 1, gid: 2 },
        Request::PutFile {
            volume: volume.clone(),
            path: path.clone(),
            mode: 0o644,
            uid: 1,
            gid: 2,
            append: true,
            bytes: b"x".to_vec(),
        },
        Request::PutLink { volume: volume.clone(), path: path.clone(), target: "..1".into() },
        Request::Remove { volume, path },
    ];
    for request in requests {
        let message = Down::Request { number: 7, request };
        assert_eq!(Down::decode(&message.encode()), Ok(message));
    }
    let stream = StreamId { process: 4, kind: StreamKind::Stderr };
    for message in [
        Down::Input { process: 1, bytes: b"in".to_vec() },
        Down::InputEnd { process: 1 },
        Down::Credit { stream, bytes: 9 },
    ] {
        assert_eq!(Down::decode(&message.encode()), Ok(message));
    }
}
