use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::publication::{MAX_CONSUMERS, MAX_OF_ANOTHER_ZONE};
use super::*;
use crate::sharing::Grants;
use control::grant::{Access, Grant};
use idm::bootstrap::Message;

/// As many messages as a peer has room for that does not read: more than a page of a list.
const ROOM: usize = PAGE + 2;

/// The end of a connection that is the client's.
#[derive(Clone, Default)]
struct Client {
    id: u64,
    inbox: Rc<RefCell<VecDeque<RendezvousMessage>>>,
    gone: Rc<Cell<bool>>,
}

impl Link for Client {
    fn send(&self, message: &RendezvousMessage) -> Sent {
        let mut inbox = self.inbox.borrow_mut();
        if self.gone.get() {
            return Sent::Gone;
        }
        if inbox.len() >= ROOM {
            return Sent::Full;
        }
        inbox.push_back(message.clone());
        Sent::Taken
    }
}

struct Node {
    rendezvous: Rendezvous<Client>,
    grants: Grants,
    exports: Exports,
    next: u64,
}

fn zone(name: &str) -> ZoneName {
    name.parse().unwrap()
}

impl Node {
    fn new() -> Self {
        let rendezvous = Rendezvous::with_room_for(ALL);
        Self { rendezvous, grants: Grants::default(), exports: Exports::new(), next: 0 }
    }

    fn grant(&mut self, from: &str, to: &str) {
        let (from, to) = (zone(from), zone(to));
        self.grants.add(Grant { from, to, access: Access::ReadOnly, expires: None, configured: false });
    }

    fn enter(&mut self, name: &str) -> Client {
        self.next += 1;
        let client = Client { id: self.next, ..Client::default() };
        self.rendezvous.add(client.id, zone(name), 1, client.clone());
        client
    }

    fn say(&mut self, client: &Client, message: &RendezvousMessage) {
        let view = View { policy: self.grants.at(100), exports: &self.exports };
        self.rendezvous.on_message(client.id, message.clone(), view, Instant::now());
    }

    /// Hangs up, as a process does that ends.
    fn leave(&mut self, client: Client) {
        client.gone.set(true);
        let view = View { policy: self.grants.at(100), exports: &self.exports };
        self.rendezvous.lost(client.id, view);
    }
}

/// What a peer has heard, in order.
fn heard(client: &Client) -> Vec<(u32, u64, u32)> {
    let told = client.inbox.borrow_mut().drain(..).collect::<Vec<_>>();
    told.into_iter().map(|message| (message.kind, message.number, message.code)).collect()
}

fn publish(name: &str) -> RendezvousMessage {
    let mut message = RendezvousMessage::new(kind::PUBLISH).named(&zone(name));
    message.set_note(b"a note");
    message
}

fn wait(name: &str) -> RendezvousMessage {
    RendezvousMessage::new(kind::WAIT).named(&zone(name))
}

#[test]
fn publisher_and_consumer_both_learn_when_the_other_is_done() {
    let mut node = Node::new();
    let (early, late) = (node.enter("a"), node.enter("a"));
    node.say(&early, &wait("x"));
    assert_eq!(heard(&early), []);
    let publisher = node.enter("a");
    node.say(&publisher, &publish("x"));
    assert_eq!(heard(&early), [(kind::FOUND, 1, 0)]);
    node.say(&late, &wait("x"));
    assert_eq!(heard(&late), [(kind::FOUND, 2, 0)]);
    node.say(&early, &RendezvousMessage::new(kind::DONE));
    node.leave(late);
    assert_eq!(
        heard(&publisher),
        [
            (kind::PUBLISHED, 0, 0),
            (kind::TAKEN, 1, 0),
            (kind::TAKEN, 2, 0),
            (kind::FINISHED, 1, 0),
            (kind::LOST, 2, 0)
        ]
    );
    node.leave(publisher);
    assert_eq!(node.rendezvous.peers.len(), 0);
}

#[test]
fn who_has_it_learns_how_its_publisher_went() {
    for (farewell, code) in [(true, 0), (false, code::DIED)] {
        let mut node = Node::new();
        let (publisher, consumer) = (node.enter("a"), node.enter("a"));
        node.say(&publisher, &publish("x"));
        node.say(&consumer, &wait("x"));
        assert_eq!(heard(&consumer), [(kind::FOUND, 1, 0)]);
        if farewell {
            node.say(&publisher, &RendezvousMessage::new(kind::DONE));
        } else {
            node.leave(publisher);
        }
        assert_eq!(heard(&consumer), [(kind::GONE, 0, code)]);
        let late = node.enter("a");
        node.say(&late, &wait("x"));
        assert_eq!(heard(&late), [], "nobody gets what is gone");
    }
}

#[test]
fn names_are_seen_where_a_grant_says_so() {
    let mut node = Node::new();
    let (publisher, stranger) = (node.enter("a"), node.enter("b"));
    node.say(&publisher, &publish("x"));
    node.say(&stranger, &wait("x"));
    let lister = node.enter("b");
    node.say(&lister, &RendezvousMessage::new(kind::LIST));
    assert_eq!((heard(&stranger), heard(&lister)), (vec![], vec![(kind::END, 0, 0)]));
    node.grant("a", "b");
    let view = View { policy: node.grants.at(100), exports: &node.exports };
    node.rendezvous.match_all(view);
    assert_eq!(heard(&stranger), [(kind::FOUND, 1, 0)]);
    // A zone's own comes before others'; a zone that is named, before all.
    let own = node.enter("b");
    node.say(&own, &publish("x"));
    let (plain, named) = (node.enter("b"), node.enter("b"));
    node.say(&plain, &wait("x"));
    let mut from = wait("x");
    from.zone = zone("a").to_field();
    node.say(&named, &from);
    let zone_of = |peer: &Client| peer.inbox.borrow_mut().pop_front().unwrap().zone().unwrap().unwrap();
    assert_eq!((zone_of(&plain), zone_of(&named)), (zone("b"), zone("a")));
}

#[test]
fn stale_handles_are_neither_taken_nor_given() {
    let mut node = Node::new();
    let publisher = node.enter("a");
    let mut offer = publish("x");
    offer.memory = [9; 64];
    node.say(&publisher, &offer);
    assert_eq!(heard(&publisher), [(kind::REFUSED, 0, code::STALE)]);
    assert_eq!(node.rendezvous.peers.len(), 0);
}

#[test]
fn who_does_not_stay_says_so_later() {
    let mut node = Node::new();
    let (publisher, consumer) = (node.enter("a"), node.enter("a"));
    node.say(&publisher, &publish("x"));
    let mut detached = wait("x");
    detached.code = DETACH;
    node.say(&consumer, &detached);
    assert_eq!(heard(&consumer), [(kind::FOUND, 1, 0)]);
    node.leave(consumer);
    assert_eq!(heard(&publisher), [(kind::PUBLISHED, 0, 0), (kind::TAKEN, 1, 0)], "not lost");
    for expected in [vec![(kind::FINISHED, 1, 0)], vec![]] {
        let other = node.enter("a");
        node.say(&other, &RendezvousMessage::new(kind::FINISH).named(&zone("x")));
        assert_eq!((heard(&other), heard(&publisher)), (vec![(kind::END, 0, 0)], expected));
    }
}

#[test]
fn nonsense_is_refused_and_leaves_nothing() {
    let mut node = Node::new();
    let first = node.enter("a");
    node.say(&first, &publish("x"));
    let mut bad_name = publish("y");
    bad_name.name = [b' '; 64];
    let mut bad_zone = wait("x");
    bad_zone.zone[0] = 1;
    let mut bad_flags = wait("x");
    bad_flags.code = 2;
    let cases = [
        (bad_name, code::MALFORMED),
        (bad_zone, code::MALFORMED),
        (bad_flags, code::MALFORMED),
        (RendezvousMessage::new(77), code::MALFORMED),
        (RendezvousMessage::new(kind::DONE), code::MALFORMED),
        (publish("x"), code::NAME_TAKEN),
    ];
    for (message, code) in cases {
        let peer = node.enter("a");
        node.say(&peer, &message);
        assert_eq!(heard(&peer), [(kind::REFUSED, 0, code)]);
    }
    assert_eq!(node.rendezvous.peers.len(), 1);
    // More than a zone may have.
    let many: Vec<_> = (0..PER_ZONE).map(|_| node.enter("a")).collect();
    assert_eq!(heard(many.last().unwrap()), [(kind::REFUSED, 0, code::TOO_MANY)]);
    let other = node.enter("b");
    assert!(node.rendezvous.has(other.id), "each zone has its own number");
}

#[test]
fn a_publisher_that_is_busy_hears_everything_later_and_is_not_ended_by_its_consumers() {
    let mut node = Node::new();
    node.grant("a", "b");
    let publisher = node.enter("a");
    node.say(&publisher, &publish("x"));
    // One after the other takes it and goes, until one has to wait.
    let mut taken = 0;
    let waiting = loop {
        let consumer = node.enter("b");
        node.say(&consumer, &wait("x"));
        if heard(&consumer).is_empty() {
            break consumer;
        }
        node.leave(consumer);
        taken += 1;
        assert!(taken < 100_000, "there is an end to it");
    };
    assert!(node.rendezvous.has(publisher.id) && node.rendezvous.next_deadline(Instant::now()).is_some());
    let mut all = Vec::new();
    while node.rendezvous.next_deadline(Instant::now()).is_some() {
        all.extend(heard(&publisher));
        let view = View { policy: node.grants.at(100), exports: &node.exports };
        node.rendezvous.flush(view);
    }
    all.extend(heard(&publisher));
    assert_eq!(heard(&waiting), [(kind::FOUND, taken + 1, 0)]);
    let of = |wanted: u32| all.iter().filter(move |(kind, ..)| *kind == wanted).map(|(_, number, _)| *number);
    assert!(of(kind::TAKEN).eq(1..=taken + 1) && of(kind::LOST).eq(1..=taken), "{taken}");
}

#[test]
fn those_who_do_not_stay_are_counted() {
    let mut node = Node::new();
    let publisher = node.enter("a");
    node.say(&publisher, &publish("x"));
    let mut detached = wait("x");
    detached.code = DETACH;
    let mut taken = 0;
    let waiting = loop {
        let consumer = node.enter("a");
        node.say(&consumer, &detached);
        let _ = heard(&publisher);
        if heard(&consumer).is_empty() {
            break consumer;
        }
        taken += 1;
    };
    assert_eq!(taken, MAX_CONSUMERS as u64);
    let other = node.enter("a");
    node.say(&other, &RendezvousMessage::new(kind::FINISH).named(&zone("x")));
    assert_eq!(heard(&waiting), [(kind::FOUND, taken + 1, 0)], "there is room again");
}

#[test]
fn no_zone_takes_all_places_of_anothers_publication() {
    let mut node = Node::new();
    for other in ["b", "c"] {
        node.grant("a", other);
    }
    let publisher = node.enter("a");
    node.say(&publisher, &publish("x"));
    let mut detached = wait("x");
    detached.code = DETACH;
    let take = |node: &mut Node, who: &str, how: &RendezvousMessage| {
        let consumer = node.enter(who);
        node.say(&consumer, how);
        let _ = heard(&publisher);
        (!heard(&consumer).is_empty(), consumer)
    };
    // As many of one kind as of the other.
    for number in 0..MAX_OF_ANOTHER_ZONE / 2 {
        assert!(take(&mut node, "b", &detached).0 && take(&mut node, "b", &wait("x")).0, "{number}");
    }
    let (found, waiting) = take(&mut node, "b", &wait("x"));
    assert!(!found, "it has had its part");
    assert!(take(&mut node, "c", &wait("x")).0 && take(&mut node, "a", &detached).0, "others have theirs");
    // Those who did not stay are forgotten when they may not have it any more.
    let view = View { policy: node.grants.at(100), exports: &node.exports };
    node.rendezvous.lose_detached(|publisher, consumer| !view.may_see(publisher, consumer));
    assert_eq!(heard(&publisher), []);
    node.grants = Grants::default();
    node.grant("a", "c");
    let view = View { policy: node.grants.at(100), exports: &node.exports };
    node.rendezvous.lose_detached(|publisher, consumer| !view.may_see(publisher, consumer));
    let lost = heard(&publisher);
    assert!(lost.len() == MAX_OF_ANOTHER_ZONE / 2 && lost.iter().all(|(kind, ..)| *kind == kind::LOST), "{lost:?}");
    assert_eq!(heard(&waiting), [], "nor does anybody get it in their place");
}

#[test]
fn the_end_of_a_zone_frees_what_it_took() {
    let mut node = Node::new();
    node.grant("a", "b");
    let (publisher, consumer) = (node.enter("a"), node.enter("b"));
    node.say(&publisher, &publish("x"));
    let mut detached = wait("x");
    detached.code = DETACH;
    node.say(&consumer, &detached);
    let _ = heard(&publisher);
    node.rendezvous.end_zone(&zone("b"));
    assert_eq!(heard(&publisher), [(kind::LOST, 1, 0)]);
}

#[test]
fn a_zone_has_an_eighth_of_few_connections() {
    let mut node = Node::new();
    node.rendezvous = Rendezvous::with_room_for(32);
    let of_zone: Vec<_> = (0..5).map(|_| node.enter("a")).collect();
    assert_eq!(of_zone.iter().filter(|client| node.rendezvous.has(client.id)).count(), 4);
    let other = node.enter("b");
    assert!(node.rendezvous.has(other.id));
}

#[test]
fn a_long_list_comes_in_pages() {
    let mut node = Node::new();
    let _all: Vec<_> = (0..PAGE + 9)
        .map(|number| {
            let peer = node.enter("a");
            node.say(&peer, &publish(&format!("n{number}")));
            peer
        })
        .collect();
    for (from, entries) in [(0, PAGE), (PAGE as u64, 9), (1000, 0), (u64::MAX, 0)] {
        let lister = node.enter("a");
        let mut request = RendezvousMessage::new(kind::LIST);
        request.number = from;
        node.say(&lister, &request);
        let heard = heard(&lister);
        assert_eq!(heard.len(), entries + 1, "{from}");
        assert_eq!(heard.last(), Some(&(kind::END, PAGE as u64 + 9, 0)));
    }
}

/// Whatever clients send, and whenever they go: nobody is forgotten, and nobody is kept.
#[test]
fn noise_leaves_everything_in_order() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut node = Node::new();
    node.grant("a", "b");
    let mut peers: Vec<Client> = Vec::new();
    for _ in 0..20_000 {
        match random(10) {
            0..4 => peers.push(node.enter(["a", "b", "c"][random(3) as usize])),
            4 | 5 if !peers.is_empty() => {
                let at = random(peers.len() as u64) as usize;
                node.leave(peers.swap_remove(at));
            }
            _ if !peers.is_empty() => {
                let mut message = RendezvousMessage::new([1, 2, 2, 2, 3, 4, 5, 102, 999][random(9) as usize]);
                message.code = u32::from(random(4) == 0) * random(4) as u32;
                message.name[0] = [b'x', b'y', b'/', 0][random(4) as usize];
                if random(4) == 0 {
                    message.zone[0] = [b'a', b'z', 7][random(3) as usize];
                }
                if random(8) == 0 {
                    message.memory[random(64) as usize] = 1;
                }
                message.note_len = [0, 9, 712, 713, u64::MAX][random(5) as usize];
                let peer = &peers[random(peers.len() as u64) as usize];
                // What is not valid never gets here: the connection ends.
                if message.is_valid() {
                    node.say(peer, &message);
                } else {
                    let view = View { policy: node.grants.at(100), exports: &node.exports };
                    node.rendezvous.lost(peer.id, view);
                }
                let _ = heard(peer);
            }
            _ => {}
        }
        peers.retain(|peer| node.rendezvous.has(peer.id));
        assert_eq!(node.rendezvous.peers.len(), peers.len());
        for (id, peer) in &node.rendezvous.peers {
            match &peer.role {
                Role::Consumer { publisher, .. } => {
                    if let Some(Peer { role: Role::Publisher(publication), .. }) =
                        node.rendezvous.peers.get(publisher)
                    {
                        assert!(publication.consumers.contains_key(id));
                    }
                }
                Role::Publisher(publication) => {
                    let is_consumer = |id: &u64| {
                        let peer = node.rendezvous.peers.get(id);
                        peer.is_some_and(|peer| matches!(peer.role, Role::Consumer { .. }))
                    };
                    assert!(publication.consumers.keys().all(is_consumer));
                    assert!(publication.consumers.len() + publication.detached.len() <= MAX_CONSUMERS);
                    assert!(node.rendezvous.names[&publication.name].contains(id));
                }
                _ => {}
            }
        }
    }
    peers.into_iter().for_each(|peer| node.leave(peer));
    assert!(node.rendezvous.peers.is_empty() && node.rendezvous.names.is_empty());
}
