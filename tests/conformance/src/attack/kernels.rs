//! Kernels that store where they have no business: the memory of the worker itself.

use cuda_abi::wire::ops::Synchronize;

use super::session::{Back, Session, launch, module_of, words};
use super::{Dice, Tally};
use crate::calls::KERNELS;

pub(super) fn attack(dice: &mut Dice, sessions: u64) -> Tally {
    let mut tally = Tally::default();
    for number in 0..sessions {
        let mut session = Session::start();
        tally.sessions += 1;
        let Back::Answer { status: 0, payload } = session.load(KERNELS.as_bytes()) else {
            tally.stuck += 1;
            continue;
        };
        let function = session.function(module_of(&payload), b"store");
        let address = match number % 4 {
            // Where programs, libraries, heaps and stacks are.
            0 => 0x5555_5555_4000 + (dice.roll() % (1 << 36)),
            1 => 0x7f00_0000_0000 + (dice.roll() % (1 << 40)),
            2 => dice.boundary(),
            _ => cuda_abi::plan::DEVICE_BASE + (dice.roll() % cuda_abi::plan::DEVICE_SIZE),
        } & !3;
        session.tell(&launch(function, 0, 1, 1, &words(&[address, 0x4141_4141])));
        tally.messages += 1;
        match session.try_ask(&Synchronize { context: None }) {
            Back::Answer { status, .. } => {
                tally.answered += 1;
                assert_ne!(status, 0, "a kernel stored to {address:#x}");
            }
            Back::Nothing => tally.stuck += 1,
            Back::Ended => tally.ended += 1,
        }
    }
    tally
}
