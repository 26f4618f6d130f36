//! What a guest's client leaves for the driver domain: one page that says everything, and the pages that it lists.
//!
//! The client writes a node in its own part of xenstore: version, reference of the card, port of the event channel. The
//! card holds idm's first message and layout, and references of pages full of references: those of the region. So what
//! xenstore carries is short however large the region is, and all of it is the guest's word alone: the driver domain
//! copies it once and checks the copy.

use std::sync::atomic::Ordering;

use idm::bootstrap::{Message, Opening, Welcome};
use idm::region::Layout;
use thiserror::Error;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::PAGE;
use crate::sys::Mapping;

/// Version of the node, the card and the words that the transport uses in the region.
pub const VERSION: u32 = 1;

/// Where in the guest's home its clients leave their nodes.
pub const CLIENTS: &str = "data/bulkhead";
/// Where in the guest's home the driver domain says that it is there. The guest can read it.
pub const SERVICE: &str = "bulkhead";

const MAGIC: u32 = u32::from_le_bytes(*b"BkXc");
const REFS_PER_PAGE: usize = PAGE / 4;
/// As many pages of references as the card has room for.
const MAX_LISTS: usize = 512;
/// The largest region: 256 MiB, which is also what one request may map by default.
pub const MAX_PAGES: usize = 1 << 16;
const REPLY: usize = 3072;
const ANSWERED: u32 = 1;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum CardError {
    #[error("invalid xenstore node")]
    Node,
    #[error("unsupported version {0}; expected {VERSION}")]
    Version(u32),
    #[error("invalid card")]
    Card,
}

/// What the node says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    pub card: u32,
    pub port: u32,
}

impl Node {
    pub fn text(&self) -> String {
        format!("{VERSION} {} {}", self.card, self.port)
    }

    pub fn parse(text: &[u8]) -> Result<Self, CardError> {
        // Three decimal numbers; anything longer is not one of ours.
        let text = str::from_utf8(text).ok().filter(|text| text.len() <= 40).ok_or(CardError::Node)?;
        let mut words = text.split(' ');
        let mut number = || {
            let word = words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
            word.and_then(|word| word.parse::<u32>().ok()).ok_or(CardError::Node)
        };
        match number()? {
            VERSION => {}
            other => return Err(CardError::Version(other)),
        }
        let node = Node { card: number()?, port: number()? };
        if words.next().is_some() { Err(CardError::Node) } else { Ok(node) }
    }
}

/// The card's beginning; the rest of the page up to the reply is references of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: u32,
    version: u32,
    opening: Opening,
    layout: Layout,
    /// Pages of the region, or for the answer to a question.
    pages: u32,
    reserved: u32,
}

const LISTS: usize = 256;
const _: () = assert!(size_of::<Head>() <= LISTS && LISTS + 4 * MAX_LISTS <= REPLY);
const _: () = assert!(MAX_PAGES.div_ceil(REFS_PER_PAGE) <= MAX_LISTS);
const _: () = assert!(REPLY + 64 + size_of::<Welcome>() <= PAGE);

/// How many pages a card for so many pages takes, itself included.
pub fn pages_for(pages: usize) -> usize {
    1 + pages.div_ceil(REFS_PER_PAGE)
}

/// The client fills its card; `mapping` has as many pages as `pages_for` says, and `own` their references.
pub fn fill(mapping: &Mapping, own: &[u32], opening: &impl Message, layout: &Layout, refs: &[u32]) {
    let opening = Opening::read_from_bytes(opening.as_bytes()).unwrap_or_else(|_| Opening::new_zeroed());
    let head =
        Head { magic: MAGIC, version: VERSION, opening, layout: *layout, pages: refs.len() as u32, reserved: 0 };
    mapping.copy_in(0, head.as_bytes());
    mapping.copy_in(LISTS, own[1..].as_bytes());
    mapping.copy_in(PAGE, refs.as_bytes());
}

/// What a card says, copied and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    pub opening: Opening,
    pub layout: Layout,
    pub pages: usize,
}

/// The driver domain reads a card, and the references of its lists.
pub fn read(card: &Mapping) -> Result<(Said, Vec<u32>), CardError> {
    let mut head = Head::new_zeroed();
    card.copy_out(0, head.as_mut_bytes());
    if head.magic != MAGIC {
        return Err(CardError::Card);
    }
    if head.version != VERSION {
        return Err(CardError::Version(head.version));
    }
    let pages = head.pages as usize;
    if pages == 0 || pages > MAX_PAGES || head.reserved != 0 || head.opening.first().is_none() {
        return Err(CardError::Card);
    }
    let mut lists = vec![0u32; pages.div_ceil(REFS_PER_PAGE)];
    card.copy_out(LISTS, lists.as_mut_bytes());
    Ok((Said { opening: head.opening, layout: head.layout, pages }, lists))
}

/// The references of the region, out of the lists.
pub fn read_lists(lists: &Mapping, pages: usize) -> Vec<u32> {
    let mut refs = vec![0u32; pages.min(lists.len() / 4)];
    lists.copy_out(0, refs.as_mut_bytes());
    refs
}

/// The driver domain answers on the card.
pub fn answer(card: &Mapping, welcome: &Welcome) {
    card.copy_in(REPLY + 64, welcome.as_bytes());
    // SYNC POINT: the answer is written before the word that says so (Release), and read after that word was seen.
    card.word(REPLY).store(ANSWERED, Ordering::Release);
}

/// The client looks for the answer.
pub fn answered(card: &Mapping) -> Option<Result<Welcome, CardError>> {
    // SYNC POINT: as in `answer` (Acquire).
    if card.word(REPLY).load(Ordering::Acquire) != ANSWERED {
        return None;
    }
    let mut welcome = Welcome::new_zeroed();
    card.copy_out(REPLY + 64, welcome.as_mut_bytes());
    Some(if welcome.is_valid() { Ok(welcome) } else { Err(CardError::Card) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_three_numbers() {
        let node = Node { card: 9, port: 12 };
        assert_eq!(Node::parse(node.text().as_bytes()), Ok(node));
        assert_eq!(Node::parse(b"2 9 12"), Err(CardError::Version(2)));
        for bad in ["", "1", "1 2", "1 2 3 4", "1 -2 3", "1 +2 3", "1  2 3", "1 2 99999999999", "x 2 3", "1 2 3\0"] {
            assert_eq!(Node::parse(bad.as_bytes()), Err(CardError::Node), "{bad:?}");
        }
        assert_eq!(Node::parse(&[b'1'; 5000]), Err(CardError::Node));
        assert_eq!(Node::parse(b"\xff\xfe"), Err(CardError::Node));
    }

    #[test]
    fn a_card_says_what_was_written_and_brings_back_the_answer() {
        use idm::bootstrap::{First, Hello, WelcomeStatus};
        let refs: Vec<u32> = (100..2600).collect();
        let card = Mapping::of_our_own(pages_for(refs.len()) * PAGE);
        let own: Vec<u32> = (0..pages_for(refs.len()) as u32).collect();
        let (hello, layout) = (Hello::new(7, 0), Layout::default());
        fill(&card, &own, &hello, &layout, &refs);
        let (said, lists) = read(&card).unwrap();
        assert_eq!((said.opening.first(), said.layout, said.pages), (Some(First::Hello(hello)), layout, 2500));
        assert_eq!(lists, own[1..]);
        let first_list = Mapping::of_our_own(lists.len() * PAGE);
        first_list.copy_in(0, refs.as_bytes());
        assert_eq!(read_lists(&first_list, said.pages), refs);
        assert!(answered(&card).is_none());
        let welcome = Welcome::new(WelcomeStatus::ZoneFull, "no");
        answer(&card, &welcome);
        assert_eq!(answered(&card), Some(Ok(welcome)));
    }

    #[test]
    fn a_card_of_noise_is_refused_and_what_is_read_is_bounded() {
        let card = Mapping::of_our_own(PAGE);
        let mut random = testkit::Random::new(0x2545_F491);
        let mut noise = [0; PAGE];
        for round in 0..2000 {
            random.fill(&mut noise);
            if round % 2 == 0 {
                // As if it were one of ours, with noise for the rest.
                noise[..8].copy_from_slice([MAGIC, VERSION].as_bytes());
            }
            card.copy_in(0, &noise);
            if let Ok((said, lists)) = read(&card) {
                assert!(said.pages <= MAX_PAGES && lists.len() <= MAX_LISTS);
            }
            if let Some(answer) = answered(&card) {
                let _ = answer.map(|welcome| welcome.text());
            }
        }
        // Counts that do not fit.
        for pages in [0, MAX_PAGES as u32 + 1, u32::MAX] {
            fill(&card, &[0], &idm::bootstrap::Hello::new(0, 0), &Layout::default(), &[]);
            card.copy_in(std::mem::offset_of!(Head, pages), &pages.to_ne_bytes());
            assert_eq!(read(&card), Err(CardError::Card));
        }
    }
}
