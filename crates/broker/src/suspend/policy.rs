//! Who is suspended so that another has memory.
//!
//! The lowest priority goes first, and of that the longest idle. Nobody goes who works, and nobody who has just come back: with three clients of which two fit, each would else be moved at every call of
//! another. Who came back keeps the GPU for some times as long as it took to have it moved, so that most of the time is spent
//! on work and not on moving.

use std::time::Duration;

/// Who makes room must have been idle this long.
pub(super) const MIN_IDLE: Duration = Duration::from_secs(1);
/// Who has come back stays at least so long, and as many times longer than the move took.
const MIN_STAY: Duration = Duration::from_secs(2);
const STAY_TIMES: u32 = 4;

/// Somebody whose memory is on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub id: u64,
    pub priority: u32,
    /// For so long it has done nothing.
    pub idle: Duration,
    /// For so long its memory has been back; none if it was never away.
    pub here: Option<Duration>,
    /// What moving it took the last time, there and back.
    pub cost: Duration,
}

impl Candidate {
    fn may_go(&self) -> bool {
        let stayed = self.here.is_none_or(|here| here >= MIN_STAY.max(self.cost * STAY_TIMES));
        self.idle >= MIN_IDLE && stayed
    }
}

/// Those that may go, the best first. One that is idle makes room for anybody, whatever the priorities: what it does not use
/// it does not miss.
pub(super) fn who_makes_room(candidates: impl Iterator<Item = Candidate>) -> Vec<u64> {
    let mut fit: Vec<Candidate> = candidates.filter(Candidate::may_go).collect();
    fit.sort_by_key(|candidate| (candidate.priority, std::cmp::Reverse(candidate.idle), candidate.id));
    fit.into_iter().map(|candidate| candidate.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn candidate(id: u64, priority: u32, idle: u32) -> Candidate {
        Candidate { id, priority, idle: SECOND * idle, here: None, cost: Duration::ZERO }
    }

    #[test]
    fn the_lowest_priority_goes_first_and_then_the_longest_idle() {
        let all =
            [candidate(1, 5, 100), candidate(2, 0, 3), candidate(3, 0, 7), candidate(4, 0, 7), candidate(5, 0, 0)];
        assert_eq!(who_makes_room(all.into_iter()), [3, 4, 2, 1], "and who works stays");
    }

    #[test]
    fn who_has_just_come_back_stays() {
        let back = |here, cost| Candidate { here: Some(SECOND * here), cost: SECOND * cost, ..candidate(1, 0, 50) };
        let goes = |candidate: Candidate| !who_makes_room([candidate].into_iter()).is_empty();
        assert!(!goes(back(1, 0)) && goes(back(2, 0)));
        assert!(!goes(back(39, 10)) && goes(back(40, 10)), "the longer a move takes, the longer it stays");
    }

    /// Three clients of which two fit on the GPU, working in turns of ten seconds each, a move of one second either way.
    /// Each turn costs one move out and one back, and nobody is moved within its turn.
    #[test]
    fn three_of_which_two_fit_do_not_thrash() {
        const TURN: u64 = 10;
        const COST: Duration = Duration::from_secs(2);
        let mut away = [false, false, true];
        let (mut back_at, mut worked_at) = ([None::<u64>; 3], [0u64; 3]);
        let mut moves = 0;
        for second in 0..300 {
            let active = (second / TURN % 3) as usize;
            if away[active] {
                let candidates = (0..3).filter(|id| !away[*id]).map(|id| Candidate {
                    id: id as u64,
                    priority: 0,
                    idle: SECOND * u32::try_from(second - worked_at[id]).unwrap(),
                    here: back_at[id].map(|at| SECOND * u32::try_from(second - at).unwrap()),
                    cost: COST,
                });
                if let Some(victim) = who_makes_room(candidates).first() {
                    away[*victim as usize] = true;
                    (away[active], back_at[active]) = (false, Some(second));
                    moves += 1;
                }
            }
            if !away[active] {
                worked_at[active] = second;
            }
        }
        assert!(moves <= 30, "{moves} moves in 30 turns");
        assert!(worked_at.iter().all(|at| *at > 250), "everybody had turns to the end: {worked_at:?}");
    }
}
