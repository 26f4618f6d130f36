//! A hostile client does its worst in one zone while an honest one computes in another: each attack of the suite, as short
//! as a test can be. `cargo xtask attack` prints them as a table.

use conformance::attack::suite::{ATTACKS, Options, stage};
use conformance::harness::Place;

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");
/// Set to a number, it makes other attacks of the same kinds, for who wants to look longer.
const OTHER_SEEDS: &str = "CONFORMANCE_SEED";

fn attack(name: &str) {
    let shift = std::env::var(OTHER_SEEDS).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let attack = ATTACKS.iter().find(|attack| attack.name == name).expect("there is such an attack");
    let outcome = stage(attack, &Options { shift, ..Options::default() }, Place::new(PLAYER));
    println!("{name}: {}", attack.tries);
    outcome.happened.iter().for_each(|line| println!("{line}"));
    println!("meanwhile an honest client computed {} times", outcome.rounds);
    println!("{} workers ended; reasons given:", outcome.workers_ended);
    outcome.reasons.iter().take(40).for_each(|reason| println!("  {reason}"));
}

macro_rules! attacks {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            attack($name);
        })*

        #[test]
        fn every_attack_has_a_test() {
            let tested = [$($name),*];
            let missing: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).filter(|name| !tested.contains(name)).collect();
            assert!(missing.is_empty(), "{missing:?}");
        }
    };
}

attacks! {
    random_messages: "random",
    forged_records: "forged",
    right_messages_with_one_wrong_word: "mutations",
    real_programs_messages_spoilt: "replay",
    handles_of_others: "foreign",
    messages_rewritten_while_they_are_read: "rewrite",
    bad_images: "images",
    kernels_that_store_anywhere: "kernels",
    kernels_that_look_for_a_secret: "scan",
    secrets_of_the_dead: "residue",
    lanes_against_each_other: "races",
    pinned_memory_that_comes_and_goes: "pinned",
    scribbling_over_the_region: "scribble",
    connections_that_say_nothing_right: "connections",
    descriptors_that_are_no_memory: "descriptors",
    leaving_after_each_step: "steps",
    asking_without_listening: "slow",
    messages_without_end: "flood",
    streams_without_end: "streams",
    descriptors_mappings_and_threads: "exhaust",
    more_processes_than_a_zone_may_have: "forks",
    tokens_and_doors_of_others: "tokens",
}
