//! The soak, as short as it makes sense: so many kills, the same ones each time, at moments that are not.

use conformance::harness::Place;
use conformance::soak::{Options, soak};

#[test]
fn nothing_is_left_after_kills_at_random() {
    let options = Options { seed: 7, kills: Some(60), ..Options::default() };
    println!("{}", soak(&options, &Place::new(env!("CARGO_BIN_EXE_conformance"))));
}
