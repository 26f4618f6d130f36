//! The server that the suite talks to.

use std::sync::{Arc, Condvar, Mutex};

use zerocopy::IntoBytes;

use crate::{mix, op, words};
use idm::Server;
use idm::bulk::BulkView;
use idm::lane::{Dispatcher, Replies};
use idm::ring::{ConsumeError, Consumer, NO_LANE, RecordHeader};

#[derive(Default)]
struct State {
    sum: u64,
    digest: u64,
    released: bool,
    over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Serves until the client is gone (`server.gone()`), breaks the protocol, or asks for death; then all threads have
/// ended. `die` runs when the client asks for death.
pub fn serve(mut server: Server, die: impl FnOnce()) -> Result<(), ConsumeError> {
    let (Some(mut consumer), Some(dispatcher)) = (server.take_consumer(), server.take_dispatcher()) else {
        return Ok(());
    };
    let shared = Arc::new(Shared::default());
    let replies = server.replies();
    let lanes = std::thread::spawn({
        let (shared, replies) = (shared.clone(), replies.clone());
        move || serve_lanes(dispatcher, &shared, &replies)
    });
    let result = execute(&server, &mut consumer, &shared, &replies, die);
    shared.state.lock().unwrap().over = true;
    shared.changed.notify_all();
    server.gone().set();
    server.gone().linger();
    lanes.join().expect("lanes do not panic");
    result
}

fn execute(
    server: &Server,
    consumer: &mut Consumer,
    shared: &Shared,
    replies: &Replies,
    die: impl FnOnce(),
) -> Result<(), ConsumeError> {
    let (bulk, flags) = (server.bulk(), server.flags());
    loop {
        let record = consumer.next()?;
        let (header, payload) = (record.header, record.payload);
        match header.op {
            op::ADD => {
                let mut state = shared.state.lock().unwrap();
                let [value] = words(payload).unwrap_or([0]);
                state.sum = state.sum.wrapping_add(value);
                state.digest = mix(state.digest, value);
            }
            op::RELEASE => {
                shared.state.lock().unwrap().released = true;
                shared.changed.notify_all();
            }
            op::FLAG => {
                let [index, value] = words(payload).unwrap_or([0, 0]);
                flags.store(index as usize % flags.count(), value);
            }
            op::STATUS => server.set_status(header.tag),
            op::INVERT => reply(replies, header, invert(&bulk, payload), &[]),
            op::DIE => {
                die();
                return Ok(());
            }
            _ if header.lane != NO_LANE => answer(shared, replies, header, payload),
            _ => {}
        }
    }
}

fn invert(bulk: &BulkView, payload: &[u8]) -> i32 {
    let [offset, len] = words(payload).unwrap_or([u64::MAX, 0]);
    if bulk.slice(offset, len).is_err() {
        return 1;
    }
    let mut copy = vec![0; len as usize];
    let done = bulk.copy_out(offset, &mut copy).and_then(|()| {
        copy.iter_mut().for_each(|byte| *byte = !*byte);
        bulk.copy_in(offset, &copy)
    });
    i32::from(done.is_err())
}

/// What calls and blocking requests have in common.
fn answer(shared: &Shared, replies: &Replies, header: RecordHeader, payload: &[u8]) {
    match header.op {
        op::READ => {
            let (sum, digest) = {
                let state = shared.state.lock().unwrap();
                (state.sum, state.digest)
            };
            reply(replies, header, 0, [sum, digest].as_bytes());
        }
        op::ECHO => reply(replies, header, header.tag as i32, payload),
        _ => reply(replies, header, -1, &[]),
    }
}

/// A client that asked for a reply it cannot take gets an error instead of silence.
fn reply(replies: &Replies, header: RecordHeader, status: i32, payload: &[u8]) {
    if replies.send(header.lane, header.seq, status, payload).is_err() {
        let _ = replies.send(header.lane, header.seq, -2, &[]);
    }
}

fn serve_lanes(mut dispatcher: Dispatcher, shared: &Arc<Shared>, replies: &Replies) {
    let mut threads = Vec::new();
    while let Ok(mut lane) = dispatcher.next() {
        let (shared, replies) = (shared.clone(), replies.clone());
        threads.push(std::thread::spawn(move || {
            while let Ok(request) = lane.next() {
                if request.header.op == op::HOLD {
                    let state = shared.state.lock().unwrap();
                    drop(shared.changed.wait_while(state, |state| !state.released && !state.over));
                    reply(&replies, request.header, 0, &[]);
                } else {
                    answer(&shared, &replies, request.header, request.payload);
                }
            }
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("lanes do not panic"));
}
