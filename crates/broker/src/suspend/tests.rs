use super::*;

const SECOND: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(10);

/// Movers are numbers here.
fn suspension() -> Suspension<u32> {
    Suspension::new(Some(Suspend { after: AFTER }))
}

/// Looks at workers that do nothing.
fn idle(suspension: &mut Suspension<u32>, ids: &[u64], now: Instant) -> Vec<Effect> {
    suspension.observe(ids.iter().map(|id| (*id, (1, None))), now)
}

/// A worker that is suspended.
fn suspended(suspension: &mut Suspension<u32>, id: u64, now: Instant) {
    idle(suspension, &[id], now);
    suspension.asked(id, now);
    assert_eq!(suspension.on_message(id, Said::Suspended, now), Some(Effect::StartMove(id, Move::Out)));
    suspension.move_started(id, Move::Out, 7, now);
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
    suspension.observe([(2, (5, None))].into_iter(), now + 5 * SECOND);
    let later = now + AFTER;
    assert_eq!(suspension.observe([(1, (1, None)), (2, (5, None))].into_iter(), later), [Effect::Ask(1)]);
    suspension.asked(1, later);
    assert_eq!(idle(&mut suspension, &[1], later + SECOND), []);
    // It never answers: it is asked again when it has been idle for as long again.
    let silent = later + ANSWER_TIMEOUT;
    assert_eq!(idle(&mut suspension, &[1], silent), []);
    assert_eq!(idle(&mut suspension, &[1], silent + AFTER), [Effect::Ask(1)]);
    let mut never = Suspension::<u32>::new(None);
    assert_eq!(idle(&mut never, &[1], later), []);
}

#[test]
fn memory_goes_and_comes_back_when_the_client_wants_something() {
    let (mut suspension, now) = (suspension(), Instant::now());
    suspended(&mut suspension, 1, now);
    assert!(suspension.is_suspended(1) && suspension.next_deadline().is_none());
    assert_eq!(suspension.on_message(1, Said::Busy, now), Some(Effect::StartMove(1, Move::Back)));
    suspension.move_started(1, Move::Back, 8, now);
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
    suspension.on_message(1, Said::Suspended, now);
    suspension.move_started(1, Move::Out, 7, now);
    assert_eq!(suspension.on_message(1, Said::Busy, now), None);
    let back = vec![Effect::StartMove(1, Move::Back)];
    assert_eq!(suspension.move_ended(1, Outcome::Done, now), Some((Moved::Suspended, back)));
}

#[test]
fn a_worker_that_lies_moves_nobody() {
    let (mut suspension, now) = (suspension(), Instant::now());
    assert_eq!(suspension.on_message(1, Said::Suspended, now), Some(Effect::Resume(1)));
    assert_eq!(suspension.on_message(1, Said::Busy, now), None);
    assert_eq!(idle(&mut suspension, &[1], now + AFTER + SECOND), [], "and is not asked for a while");
    assert_eq!(suspension.move_ended(1, Outcome::Done, now), None);
    // One of the last broker's may say it once.
    suspension.adopt(2, now);
    assert_eq!(suspension.on_message(2, Said::Suspended, now), Some(Effect::StartMove(2, Move::Back)));
    suspension.move_started(2, Move::Back, 7, now);
    suspension.move_ended(2, Outcome::Done, now);
    assert_eq!(suspension.on_message(2, Said::Suspended, now), Some(Effect::Resume(2)));
}

#[test]
fn the_longest_idle_makes_room() {
    let (mut suspension, now) = (suspension(), Instant::now());
    suspended(&mut suspension, 1, now);
    idle(&mut suspension, &[3], now);
    idle(&mut suspension, &[2], now + SECOND);
    idle(&mut suspension, &[4], now + 5 * SECOND);
    suspension.on_message(1, Said::Busy, now);
    suspension.move_started(1, Move::Back, 7, now);
    let later = now + 5 * SECOND;
    let ended = suspension.move_ended(1, Outcome::NoRoom, later);
    assert_eq!(ended, Some((Moved::Stranded, vec![Effect::AskFirst(vec![3, 2])])));
    assert_eq!((suspension.next_deadline(), suspension.tick(later)), (Some(later + RETRY), vec![]));
    // As soon as somebody has gone, it need not wait any longer.
    suspended(&mut suspension, 3, later);
    assert_eq!(suspension.tick(later), [Effect::StartMove(1, Move::Back)]);
    suspension.move_started(1, Move::Back, 8, later);
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
        assert_eq!(suspension.move_not_started(1, Move::Back, now), None);
        pauses.push((suspension.next_deadline().unwrap() - now).as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
}

#[test]
fn what_cannot_go_stays_and_what_hangs_is_ended() {
    let (mut suspension, now) = (suspension(), Instant::now());
    idle(&mut suspension, &[1, 2], now);
    suspension.asked(1, now);
    assert_eq!(suspension.move_not_started(1, Move::Out, now), Some(Effect::Resume(1)));
    assert!(!suspension.is_suspended(1));
    suspension.asked(2, now);
    suspension.move_started(2, Move::Out, 7, now);
    assert_eq!(suspension.tick(now + MOVE_TIMEOUT), [Effect::KillMover(2)]);
    assert_eq!(suspension.tick(now + MOVE_TIMEOUT), [], "once is enough");
    let back = vec![Effect::StartMove(2, Move::Back)];
    assert_eq!(suspension.move_ended(2, Outcome::Killed, now), Some((Moved::Interrupted, back)));
    suspension.move_started(2, Move::Back, 8, now);
    suspension.worker_gone(2);
    assert_eq!(suspension.mover(2), Some(&8), "a move under way ends by itself");
    suspension.forget(2);
    suspension.worker_gone(1);
    assert!(!suspension.is_suspended(2) && suspension.workers.is_empty());
}
