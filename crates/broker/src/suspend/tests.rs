use super::*;

const SECOND: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(10);

/// Movers are numbers here, and the driver moves memory.
fn suspension() -> Suspension<u32> {
    Suspension::new(Suspend { after: Some(AFTER), with_context: true, ..Suspend::default() })
}

/// Workers move their memory themselves.
fn own() -> Suspension<u32> {
    Suspension::new(Suspend { after: Some(AFTER), ..Suspend::default() })
}

const DRIVERS: Said = Said::Suspended { itself: None, away: false };

fn seen(id: u64, calls: u64) -> Seen {
    Seen { id, done: (calls, None), priority: 0 }
}

/// Looks at workers that do nothing.
fn idle(suspension: &mut Suspension<u32>, ids: &[u64], now: Instant) -> Vec<Effect> {
    suspension.observe(ids.iter().map(|id| seen(*id, 1)), now)
}

/// A worker that is suspended.
fn suspended(suspension: &mut Suspension<u32>, id: u64, now: Instant) {
    idle(suspension, &[id], now);
    suspension.asked(id, now);
    assert_eq!(suspension.on_message(id, DRIVERS, now), Some(Effect::StartMove(id, Move::Out)));
    suspension.move_started(id, Move::Out, Some(7), now);
    assert_eq!(suspension.move_ended(id, Outcome::Done, now), Some((Moved::Suspended, vec![])));
}

#[test]
fn only_a_lack_of_room_is_one() {
    let statuses = ["exit status 0", "exit status 81", "exit status 70", "exit status 810", "signal 9", ""];
    let outcomes =
        [Outcome::Done, Outcome::NoRoom, Outcome::Failed, Outcome::Killed, Outcome::Killed, Outcome::Killed];
    assert_eq!(statuses.map(Outcome::of), outcomes);
}

#[test]
fn who_does_nothing_for_long_enough_is_asked_once() {
    let (mut suspension, now) = (suspension(), Instant::now());
    assert_eq!(idle(&mut suspension, &[1, 2], now), []);
    suspension.observe([seen(2, 5)].into_iter(), now + 5 * SECOND);
    let later = now + AFTER;
    assert_eq!(suspension.observe([seen(1, 1), seen(2, 5)].into_iter(), later), [Effect::Ask(1)]);
    suspension.asked(1, later);
    assert_eq!(idle(&mut suspension, &[1], later + SECOND), []);
    // It never answers: it is asked again when it has been idle for as long again.
    let silent = later + ANSWER_TIMEOUT;
    assert_eq!(idle(&mut suspension, &[1], silent), []);
    assert_eq!(idle(&mut suspension, &[1], silent + AFTER), [Effect::Ask(1)]);
    let mut never = Suspension::<u32>::new(Suspend::default());
    assert_eq!(idle(&mut never, &[1], later), []);
}

#[test]
fn memory_goes_and_comes_back_when_the_client_wants_something() {
    let (mut suspension, now) = (suspension(), Instant::now());
    suspended(&mut suspension, 1, now);
    assert!(suspension.is_suspended(1) && suspension.next_deadline().is_none());
    assert_eq!(suspension.on_message(1, Said::Busy, now), Some(Effect::StartMove(1, Move::Back)));
    suspension.move_started(1, Move::Back, Some(8), now);
    assert_eq!((suspension.mover(1), suspension.next_deadline()), (Some(&8), Some(now + MOVE_TIMEOUT)));
    assert_eq!(suspension.move_ended(1, Outcome::Done, now), Some((Moved::Resumed, vec![Effect::Resume(1)])));
    assert!(!suspension.is_suspended(1));
}

#[test]
fn a_client_that_continues_meanwhile_does_not_wait_for_nothing() {
    let (mut suspension, now) = (suspension(), Instant::now());
    idle(&mut suspension, &[1], now);
    suspension.asked(1, now);
    assert_eq!(suspension.on_message(1, Said::Busy, now), None, "it goes on by itself");
    assert!(!suspension.is_suspended(1));
    suspension.asked(1, now);
    suspension.on_message(1, DRIVERS, now);
    suspension.move_started(1, Move::Out, Some(7), now);
    assert_eq!(suspension.on_message(1, Said::Busy, now), None);
    let back = vec![Effect::StartMove(1, Move::Back)];
    assert_eq!(suspension.move_ended(1, Outcome::Done, now), Some((Moved::Suspended, back)));
}

#[test]
fn a_worker_that_lies_moves_nobody() {
    let (mut suspension, now) = (suspension(), Instant::now());
    assert_eq!(suspension.on_message(1, DRIVERS, now), Some(Effect::Resume(1)));
    assert_eq!(suspension.on_message(1, Said::Busy, now), None);
    assert_eq!(idle(&mut suspension, &[1], now + AFTER + SECOND), [], "and is not asked for a while");
    assert_eq!(suspension.move_ended(1, Outcome::Done, now), None);
    // One of the last broker's may say it once.
    suspension.adopt(2, now);
    assert_eq!(suspension.on_message(2, DRIVERS, now), Some(Effect::StartMove(2, Move::Back)));
    suspension.move_started(2, Move::Back, Some(7), now);
    suspension.move_ended(2, Outcome::Done, now);
    assert_eq!(suspension.on_message(2, DRIVERS, now), Some(Effect::Resume(2)));
}

#[test]
fn the_longest_idle_makes_room() {
    let (mut suspension, now) = (suspension(), Instant::now());
    suspended(&mut suspension, 1, now);
    idle(&mut suspension, &[3], now);
    idle(&mut suspension, &[2], now + SECOND);
    idle(&mut suspension, &[4], now + 5 * SECOND);
    suspension.on_message(1, Said::Busy, now);
    suspension.move_started(1, Move::Back, Some(7), now);
    let later = now + 5 * SECOND;
    let ended = suspension.move_ended(1, Outcome::NoRoom, later);
    assert_eq!(ended, Some((Moved::Stranded, vec![Effect::AskFirst(vec![3, 2])])));
    assert_eq!((suspension.next_deadline(), suspension.tick(later)), (Some(later + SECOND), vec![]));
    // As soon as somebody has gone, it need not wait any longer.
    suspended(&mut suspension, 3, later);
    assert_eq!(suspension.tick(later), [Effect::StartMove(1, Move::Back)]);
    suspension.move_started(1, Move::Back, Some(8), later);
    let failed = suspension.move_ended(1, Outcome::Failed, later);
    assert_eq!(failed, Some((Moved::Stranded, vec![])), "nobody makes room for what failed for another reason");
}

#[test]
fn moves_that_fail_are_tried_less_and_less_often() {
    let (mut suspension, now) = (suspension(), Instant::now());
    suspended(&mut suspension, 1, now);
    suspension.on_message(1, Said::Busy, now);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert_eq!(suspension.move_not_started(1, Move::Back, None, now), None);
        pauses.push((suspension.next_deadline().unwrap() - now).as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
}

#[test]
fn what_cannot_go_stays_and_what_hangs_is_ended() {
    let (mut suspension, now) = (suspension(), Instant::now());
    idle(&mut suspension, &[1, 2], now);
    suspension.asked(1, now);
    assert_eq!(suspension.move_not_started(1, Move::Out, None, now), Some(Effect::Resume(1)));
    assert!(!suspension.is_suspended(1));
    suspension.asked(2, now);
    suspension.move_started(2, Move::Out, Some(7), now);
    assert_eq!(suspension.tick(now + MOVE_TIMEOUT), [Effect::KillMover(2)]);
    assert_eq!(suspension.tick(now + MOVE_TIMEOUT), [], "once is enough");
    let back = vec![Effect::StartMove(2, Move::Back)];
    assert_eq!(suspension.move_ended(2, Outcome::Killed, now), Some((Moved::Interrupted, back)));
    suspension.move_started(2, Move::Back, Some(8), now);
    suspension.worker_gone(2);
    assert_eq!(suspension.mover(2), Some(&8), "a move under way ends by itself");
    suspension.forget(2);
    suspension.worker_gone(1);
    assert!(!suspension.is_suspended(2) && suspension.workers.is_empty());
}

fn report(outcome: u32, bytes: u64) -> MoveReport {
    MoveReport { outcome, bytes, time: SECOND }
}

fn able(bytes: u64) -> Said {
    Said::Suspended { itself: Some(bytes), away: false }
}

/// A worker that has moved its own memory.
fn moved_itself(suspension: &mut Suspension<u32>, id: u64, now: Instant) {
    idle(suspension, &[id], now);
    suspension.asked(id, now);
    assert_eq!(suspension.on_message(id, able(50), now), Some(Effect::StartMove(id, Move::Out)));
    assert_eq!(
        (suspension.bytes(id), suspension.held(|_| true)),
        (50, 0),
        "nothing is held before the budget agrees"
    );
    suspension.move_started(id, Move::Out, None, now);
    let ended = suspension.on_report(id, Move::Out, &report(moved::DONE, 40), now);
    assert_eq!(ended, Some((Moved::Suspended, vec![])));
    assert_eq!(suspension.held(|_| true), 40, "what was really moved");
}

#[test]
fn a_worker_moves_its_own_memory_out_and_back() {
    let (mut suspension, now) = (own(), Instant::now());
    moved_itself(&mut suspension, 1, now);
    assert_eq!(suspension.snapshot(1).state, control::admin::SuspendState::Suspended);
    assert_eq!(suspension.on_message(1, Said::Busy, now), Some(Effect::StartMove(1, Move::Back)));
    suspension.move_started(1, Move::Back, None, now);
    assert_eq!(suspension.on_report(1, Move::Out, &report(moved::DONE, 40), now), None, "that was another move");
    let ended = suspension.on_report(1, Move::Back, &report(moved::DONE, 40), now);
    assert_eq!(ended, Some((Moved::Resumed, vec![Effect::Resume(1)])));
    assert_eq!((suspension.held(|_| true), suspension.is_suspended(1)), (0, false));
    assert_eq!(suspension.on_report(1, Move::Back, &report(moved::DONE, 40), now), None, "nobody moves it now");
}

#[test]
fn what_has_no_room_to_come_back_to_waits_and_is_ended_in_the_end() {
    let (mut suspension, now) = (own(), Instant::now());
    moved_itself(&mut suspension, 1, now);
    suspension.on_message(1, Said::Busy, now);
    let mut at = now;
    let mut tries = 0;
    loop {
        suspension.move_started(1, Move::Back, None, at);
        let ended = suspension.on_report(1, Move::Back, &report(moved::NO_ROOM, 0), at);
        assert_eq!(ended, Some((Moved::Stranded, vec![Effect::AskFirst(vec![])])));
        assert_eq!(suspension.snapshot(1).state, control::admin::SuspendState::Waiting);
        at = suspension.next_deadline().unwrap();
        tries += 1;
        match &suspension.tick(at)[..] {
            [Effect::StartMove(1, Move::Back)] => {}
            [Effect::End(1)] => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(tries > 5 && at >= now + Duration::from_secs(600), "{tries} tries");
    assert_eq!(suspension.tick(at), [], "once is enough");
}

#[test]
fn a_client_that_continues_before_anything_moved_just_goes_on() {
    let (mut suspension, now) = (own(), Instant::now());
    idle(&mut suspension, &[1], now);
    suspension.asked(1, now);
    assert_eq!(suspension.on_message(1, Said::Busy, now), None);
    assert_eq!(suspension.on_message(1, able(50), now), Some(Effect::Resume(1)));
    assert!(!suspension.is_suspended(1));
    // Unless somebody wants it suspended: then it waits for both ways.
    assert!(suspension.request(1, false, now) && suspension.wait_for(1) > IDLE_WAIT);
    suspension.asked(1, now);
    suspension.on_message(1, Said::Busy, now);
    assert_eq!(suspension.on_message(1, able(50), now), Some(Effect::StartMove(1, Move::Out)));
    suspension.move_started(1, Move::Out, None, now);
    let back = vec![Effect::StartMove(1, Move::Back)];
    assert_eq!(suspension.on_report(1, Move::Out, &report(moved::DONE, 50), now), Some((Moved::Suspended, back)));
}

#[test]
fn who_is_held_stays_until_an_operator_says_otherwise() {
    let (mut suspension, now) = (own(), Instant::now());
    assert!(suspension.request(1, true, now));
    suspension.asked(1, now);
    suspension.on_message(1, able(50), now);
    suspension.move_started(1, Move::Out, None, now);
    suspension.on_message(1, Said::Busy, now);
    assert_eq!(suspension.on_report(1, Move::Out, &report(moved::DONE, 50), now), Some((Moved::Suspended, vec![])));
    assert_eq!(suspension.on_message(1, Said::Busy, now), None);
    assert!(suspension.snapshot(1).held && !suspension.request(1, true, now), "it is away already");
    assert_eq!(suspension.release(1), Some(Effect::StartMove(1, Move::Back)));
}

#[test]
fn refusals_are_remembered_until_the_next_try() {
    let (mut suspension, now) = (own(), Instant::now());
    suspension.request(1, false, now);
    suspension.asked(1, now);
    assert_eq!(suspension.on_message(1, Said::NotSuspended(2), now), None);
    assert_eq!(suspension.snapshot(1).refused, Some(Refused::Worker(2)));
    assert!(suspension.request(1, false, now), "it may be asked again at once");
    suspension.asked(1, now);
    assert_eq!(suspension.snapshot(1).refused, None);
    suspension.on_message(1, able(50), now);
    let why = Refused::Budget { limit: budget::Limit::Zone, needed: 50, left: 1 };
    assert_eq!(suspension.move_not_started(1, Move::Out, Some(why), now), Some(Effect::Resume(1)));
    assert_eq!(suspension.snapshot(1).refused, Some(why));
    // A worker of a version that cannot says nothing of bytes.
    suspension.request(1, false, now);
    suspension.asked(1, now);
    assert_eq!(suspension.on_message(1, DRIVERS, now), Some(Effect::Resume(1)));
    assert_eq!(suspension.snapshot(1).refused, Some(Refused::Unable));
}

#[test]
fn a_new_broker_learns_whose_memory_is_away() {
    let (mut suspension, now) = (own(), Instant::now());
    suspension.adopt(1, now);
    let away = Said::Suspended { itself: Some(70), away: true };
    assert_eq!(suspension.on_message(1, away, now), None, "it stays where it is");
    assert_eq!((suspension.held(|_| true), suspension.is_suspended(1)), (70, true));
    assert_eq!(suspension.on_message(1, Said::Busy, now), Some(Effect::StartMove(1, Move::Back)));
    assert!(suspension.moves_itself(1));
    // Whoever says so unasked is told to go on.
    assert_eq!(suspension.on_message(2, away, now), Some(Effect::Resume(2)));
}

/// One that takes its time, for whatever reason, keeps others from the GPU for so long and no longer.
#[test]
fn room_is_not_expected_of_one_that_never_leaves() {
    let mut suspension = own();
    let start = Instant::now();
    idle(&mut suspension, &[1], start);
    suspension.asked(1, start);
    let all = |_| true;
    assert!(suspension.is_making_room(start, all) && !suspension.is_making_room(start, |_| false), "on another GPU");
    assert!(!suspension.is_making_room(start + WAIT + LEAVES_WITHIN, all));
    let said = Said::Suspended { itself: Some(10 << 30), away: false };
    assert_eq!(suspension.on_message(1, said, start), Some(Effect::StartMove(1, Move::Out)));
    suspension.move_started(1, Move::Out, None, start);
    let by = start + LEAVES_WITHIN + 10 * EACH_GIB;
    assert!(suspension.is_making_room(by - SECOND, all) && !suspension.is_making_room(by, all));
}
