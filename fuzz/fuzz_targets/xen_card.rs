//! What a guest leaves for the driver domain: the node in xenstore, the card, its lists; and xenstore's own strings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xen::PAGE;
use xen::card::{self, MAX_PAGES, Node};
use xen::store::wire;
use xen::sys::Mapping;

thread_local! {
    static CARD: Mapping = Mapping::of_our_own(PAGE);
}

fuzz_target!(|input: (Vec<u8>, u32, u8)| {
    let (bytes, pages, shape) = input;
    if let Ok(node) = Node::parse(&bytes) {
        assert_eq!(Node::parse(node.text().as_bytes()), Ok(node));
    }
    for text in wire::strings(&bytes) {
        assert!(!text.is_empty() && !text.contains('\0'));
        if wire::is_path(text) {
            assert!(text.len() <= wire::MAX_PATH && !text.contains(' '));
        }
    }
    CARD.with(|card| {
        let mut page = [0; PAGE];
        if shape & 1 == 0 {
            // As if it were one of ours, with what the guest likes in the rest.
            let refs = [7; 16];
            card::fill(card, &[0], &idm::bootstrap::Hello::new(0, 0), &idm::region::Layout::default(), &refs[..0]);
            card.copy_out(0, &mut page);
        }
        for (at, byte) in bytes.iter().enumerate() {
            let place = if shape & 2 == 0 { 8 + at } else { at };
            if let Some(room) = page.get_mut(place) {
                *room = *byte;
            }
        }
        card.copy_in(0, &page);
        if let Ok((said, lists)) = card::read(card) {
            assert!((1..=MAX_PAGES).contains(&said.pages) && lists.len() <= 64);
            assert!(said.opening.first().is_some());
            assert!(card::read_lists(card, said.pages).len() <= PAGE / 4);
        }
        let _ = card::read_lists(card, pages as usize);
        if let Some(Ok(welcome)) = card::answered(card) {
            assert!(!welcome.text().chars().any(char::is_control));
        }
    });
});
