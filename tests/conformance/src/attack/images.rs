//! Images that are not what they say, are never finished, or are too long.

use cuda_abi::wire::ops::{
    ImageLoad, ImageOrder, ImagePart, JitOption, LibraryKernels, LibraryLoad, LibraryLoaded, ModuleFunctions,
    ModuleLoad, Upload,
};
use cuda_abi::wire::{List, Raw, decode, to_vec};

use super::session::{Back, Session, module_of};
use super::{Dice, Tally};
use crate::calls::KERNELS;

fn mutated(dice: &mut Dice) -> Vec<u8> {
    let mut image = KERNELS.as_bytes().to_vec();
    for _ in 0..1 + dice.below(6) {
        let at = dice.below(image.len());
        match dice.below(6) {
            0 => image[at] = dice.roll() as u8,
            1 => image.truncate(at),
            2 => {
                let end = (at + dice.below(200)).min(image.len());
                let piece = image[at..end].to_vec();
                image.splice(at..at, piece);
            }
            3 => {
                image.splice(
                    at..at,
                    dice.pick(&[&b"{"[..], b"}", b"[", b"(((((((", b"99999999999999999999", b"\xff\xfe", b"%"])
                        .to_vec(),
                );
            }
            4 => {
                let digit = image[at..].iter().position(u8::is_ascii_digit);
                if let Some(digit) = digit {
                    image.splice(at + digit..at + digit + 1, b"4294967295".to_vec());
                }
            }
            _ => {
                let end = (at + dice.below(50)).min(image.len());
                image.drain(at..end);
            }
        }
        if image.is_empty() {
            image.push(b' ');
        }
    }
    image
}

/// Containers and files whose sizes lie.
fn binary(dice: &mut Dice) -> Vec<u8> {
    let mut image = match dice.below(3) {
        // A fat binary: magic, version, header size, bytes that follow.
        0 => [&0xba55_ed50u32.to_le_bytes()[..], &[1, 0, 16, 0], &dice.boundary().to_le_bytes()].concat(),
        // An ELF file.
        1 => [&b"\x7fELF\x02\x01\x01"[..], &[0; 9], &[2, 0, 190, 0], &[0; 44]].concat(),
        _ => 0x4662_43b1u32.to_le_bytes().to_vec(),
    };
    let len = dice.below(400);
    let tail: Vec<u8> = if dice.below(2) == 0 {
        dice.bytes(len)
    } else {
        (0..len / 8).flat_map(|_| dice.boundary().to_le_bytes()).collect()
    };
    image.extend(tail);
    image
}

/// An order to load an image that was linked from others, with numbers in it that lie.
fn order(dice: &mut Dice) -> Vec<u8> {
    let images: Vec<Vec<u8>> = (0..1 + dice.below(4)).map(|_| binary(dice)).collect();
    let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    let mut order = to_vec(&ImageOrder {
        into_library: dice.below(2) == 1,
        options: List::new(&[JitOption { option: 7, value: 4 }]),
        images: List::new(&images),
    });
    if dice.below(2) == 0 {
        let at = 8 * dice.below(order.len() / 8);
        order[at..at + 8].copy_from_slice(&dice.boundary().to_le_bytes());
    }
    order
}

pub(super) fn attack(dice: &mut Dice, count: u64) -> Tally {
    let mut tally = Tally { sessions: 1, ..Tally::default() };
    let mut session = Session::start();
    for number in 0..count {
        if session.is_over() {
            session = Session::start();
            tally.sessions += 1;
        }
        let image = if number % 3 == 0 { binary(dice) } else { mutated(dice) };
        tally.messages += 1;
        if number % 5 == 0 {
            let order = order(dice);
            session.upload(&order);
            match session.try_ask(&ImageLoad { order: Upload::new(order.len() as u64) }) {
                Back::Answer { .. } => tally.answered += 1,
                Back::Nothing => tally.stuck += 1,
                Back::Ended => tally.ended += 1,
            }
            continue;
        }
        let back = if number % 2 == 0 {
            session.load(&image)
        } else {
            session.upload(&image);
            session.try_ask(&LibraryLoad { image: Upload::new(image.len() as u64) })
        };
        match back {
            Back::Answer { status: 0, payload } => {
                tally.answered += 1;
                // A mutation that still loads: all its functions are described as well.
                if number % 2 == 0 {
                    session.try_ask(&ModuleFunctions { module: module_of(&payload), skip: 0 });
                } else {
                    let LibraryLoaded { library } = decode(&payload).expect("the reply of a load");
                    session.try_ask(&LibraryKernels { library, skip: 0 });
                }
            }
            Back::Answer { .. } => tally.answered += 1,
            Back::Nothing => tally.stuck += 1,
            Back::Ended => tally.ended += 1,
        }
    }
    // Lengths that lie, and an upload that is never used.
    for (sent, said) in [(100, 99), (100, 101), (0, 1), (100, u64::MAX), (1000, 0)] {
        let mut session = Session::start();
        session.upload(&vec![b' '; sent]);
        tally.ended += u64::from(session.try_ask(&ModuleLoad { image: Upload::new(said) }) == Back::Ended);
        tally.sessions += 1;
    }
    let session = Session::start();
    for lane in 0..64 {
        session.tell(&ImagePart { lane: lane << 20, part: Raw(&vec![0; 500_000]) });
    }
    tally.sessions += 1;
    tally
}
