//! One client and one server in this process, over a real region.
#![cfg(not(loom))]

use std::thread;

use idm::region::{Layout, Placement};
use idm::ring::NO_LANE;
use idm::{Client, Server};

fn pair(layout: Layout) -> (Client, Server) {
    let server = Server::create(layout, Placement::Anywhere).unwrap();
    let fd = server.fd().unwrap().try_clone_to_owned().unwrap();
    let client = Client::attach(fd, layout, Placement::Anywhere).unwrap();
    (client, server)
}

#[test]
fn posts_calls_and_blocks() {
    let (client, mut server) = pair(Layout::default());
    let mut consumer = server.take_consumer().unwrap();
    let mut dispatcher = server.take_dispatcher().unwrap();
    let replies = server.replies();
    let executor = thread::spawn({
        let replies = replies.clone();
        move || {
            let mut posted = 0u64;
            while let Ok(record) = consumer.next() {
                if record.header.lane == NO_LANE {
                    posted += record.payload.len() as u64;
                } else {
                    replies.send(record.header.lane, record.header.seq, 7, &posted.to_ne_bytes()).unwrap();
                }
            }
        }
    });
    let lanes = thread::spawn(move || {
        let mut threads = Vec::new();
        while let Ok(mut lane) = dispatcher.next() {
            let replies = replies.clone();
            threads.push(thread::spawn(move || {
                while let Ok(request) = lane.next() {
                    let doubled: Vec<u8> = request.payload.iter().map(|b| b * 2).collect();
                    replies.send(request.header.lane, request.header.seq, -1, &doubled).unwrap();
                }
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });

    let mut lane = client.lane().unwrap();
    for round in 1..=1000u64 {
        let position = client.post(1, 0, 0, 100, |slot| slot.fill(1)).unwrap();
        let reply = lane.call(2, 0, 0, 0, |_| {}).unwrap();
        assert_eq!((reply.status, reply.payload), (7, &(100 * round).to_ne_bytes()[..]));
        let reply = lane.block(3, 0, 0, position, 3, |slot| slot.copy_from_slice(&[1, 2, 3])).unwrap();
        assert_eq!((reply.status, reply.payload), (-1, &[2, 4, 6][..]));
    }
    let position = client.position();
    assert!(client.wait_executed(position, None).unwrap());

    server.gone().set();
    server.gone().linger();
    executor.join().unwrap();
    lanes.join().unwrap();
}
