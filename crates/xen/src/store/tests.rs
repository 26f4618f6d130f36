use super::*;

/// A store on the other end of a socket pair, which answers as it is told.
fn with_store(answers: Vec<(Kind, Vec<u8>)>, with: impl FnOnce(&mut Store)) -> Vec<(u32, Vec<u8>)> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let mut theirs = theirs;
        let mut asked = Vec::new();
        for (kind, payload) in answers {
            let mut header = Header::new_zeroed();
            if kind != Kind::WatchEvent {
                theirs.read_exact(header.as_mut_bytes()).unwrap();
                let mut request = vec![0; header.len as usize];
                theirs.read_exact(&mut request).unwrap();
                asked.push((header.kind, request));
            }
            let answer = Header { kind: kind as u32, len: payload.len() as u32, ..header };
            theirs.write_all(answer.as_bytes()).unwrap();
            theirs.write_all(&payload).unwrap();
        }
        // Still connected until the other end is done.
        (asked, theirs)
    });
    let mut store = Store::over(ours.into());
    with(&mut store);
    server.join().unwrap().0
}

#[test]
fn requests_are_written_as_the_protocol_wants() {
    let answers = vec![
        (Kind::Read, b"value".to_vec()),
        (Kind::Write, b"OK\0".to_vec()),
        (Kind::Directory, b"a\0b\0".to_vec()),
        (Kind::SetPermissions, b"OK\0".to_vec()),
        (Kind::Watch, b"OK\0".to_vec()),
        (Kind::GetDomainPath, b"/local/domain/3\0".to_vec()),
        (Kind::IsDomainIntroduced, b"T\0".to_vec()),
    ];
    let asked = with_store(answers, |store| {
        assert_eq!(store.read("x").unwrap(), b"value");
        store.write("x", b"y").unwrap();
        assert_eq!(store.list("x").unwrap(), ["a", "b"]);
        store.set_permissions("x", &[Permission::None(3), Permission::Read(0)]).unwrap();
        store.watch("x", "t").unwrap();
        assert_eq!(store.domain_path(3).unwrap(), "/local/domain/3");
        assert!(store.is_introduced(3).unwrap());
    });
    let expected: [(u32, &[u8]); 7] =
        [(2, b"x\0"), (11, b"x\0y"), (1, b"x\0"), (14, b"x\0n3\0r0\0"), (4, b"x\0t\0"), (10, b"3\0"), (17, b"3\0")];
    assert!(asked.iter().zip(expected).all(|(got, want)| (got.0, &got.1[..]) == want), "{asked:?}");
}

#[test]
fn what_is_not_there_is_none_and_other_errors_are_errors() {
    let answers = vec![(Kind::Error, b"ENOENT\0".to_vec()), (Kind::Error, b"EACCES\0".to_vec())];
    with_store(answers, |store| {
        assert_eq!(store.read_text("x").unwrap(), None);
        assert!(matches!(store.read_text("x"), Err(StoreError::Refused(code)) if code == "EACCES"));
        assert!(matches!(store.write("a b", b""), Err(StoreError::Path(_))));
        assert!(matches!(store.write("a", &[0; 5000]), Err(StoreError::TooLong)));
    });
}

#[test]
fn events_that_come_before_an_answer_are_kept() {
    let answers = vec![
        (Kind::WatchEvent, b"data/a\0t\0".to_vec()),
        (Kind::WatchEvent, b"data/b\0t\0".to_vec()),
        (Kind::Read, b"1".to_vec()),
    ];
    with_store(answers, |store| {
        assert_eq!(store.read("x").unwrap(), b"1");
        let event = |path: &str| Some(Event { path: path.to_owned(), token: "t".to_owned() });
        assert_eq!(store.next_event(None).unwrap(), event("data/a"));
        assert_eq!(store.next_event(None).unwrap(), event("data/b"));
        assert_eq!(store.next_event(Some(Duration::ZERO)).unwrap(), None);
    });
}

#[test]
fn events_that_are_too_many_are_told_of() {
    let mut answers = vec![(Kind::WatchEvent, b"data/a\0t\0".to_vec()); MAX_EVENTS];
    answers.push((Kind::Read, b"1".to_vec()));
    with_store(answers.clone(), |store| {
        assert_eq!(store.read("x").unwrap(), b"1");
        assert!(!store.has_missed_events());
    });
    answers.insert(0, (Kind::WatchEvent, b"data/b\0t\0".to_vec()));
    with_store(answers, |store| {
        assert_eq!(store.read("x").unwrap(), b"1");
        assert!(store.has_missed_events() && !store.has_missed_events());
    });
}

#[test]
fn an_answer_that_is_too_long_breaks_the_connection() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let header = Header { kind: Kind::Read as u32, request: 1, transaction: 0, len: 5000 };
    theirs.write_all(header.as_bytes()).unwrap();
    assert!(matches!(Store::over(ours.into()).read("x"), Err(StoreError::Nonsense)));
}
