//! What a zone sees of itself: the broker's answer to a client that asks without wanting a worker (NVML does).
//!
//! One payload of bounded size, written by the broker and read by the client. It speaks of the zone that asks and of
//! nobody else.

pub mod fields;

use super::definition::message;
use super::{Decode, Field, List, Malformed, Reader, Writer};
use fields::{CardFields, CardList, CardUseFields, CardsFields, NONE, ViewFields};

/// Changes with the payload; another one is not read.
const VERSION: u64 = 2;

/// Eight GPUs, each in seven instances.
pub const MAX_CARDS: usize = 56;
/// As many processes as one zone can have.
pub const MAX_PROCESSES: usize = 1024;
/// The longest text in a view.
pub const MAX_TEXT: usize = 96;
/// No view is longer.
pub const MAX_VIEW: usize = 32 << 10;

/// A zone, as its clients may know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneView {
    /// Bytes of the first card's memory over all of the zone's processes; none: what the card has.
    pub limit: Option<u64>,
    /// Bytes of it that its processes hold.
    pub used: u64,
    /// The CUDA version that the zone's programs see.
    pub cuda_version: u32,
    /// Of the node's kernel driver, as people write it.
    pub driver_version: String,
    /// How much of the last second or so the zone kept its GPU busy, in percent, where that is measured.
    pub busy: Option<u32>,
    /// The GPUs that it may use.
    pub cards: Vec<Card>,
    /// Its clients.
    pub processes: Vec<Process>,
    /// What holds for each of the cards, in their order; empty where a broker of an earlier version does not tell.
    pub card_use: Vec<CardUse>,
    /// What clients hold of each card, as far as there is room to tell.
    pub holdings: Vec<Holding>,
}

/// A zone on one of its cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardUse {
    /// Bytes of its memory; none: what the card has.
    pub limit: Option<u64>,
    /// Bytes that the zone's processes hold.
    pub used: u64,
    /// How much of the last second or so the zone kept it busy, in percent, where that is measured.
    pub busy: Option<u32>,
}

/// A GPU, as the client library shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The product's name.
    pub name: String,
    /// Of the GPU, or of the MIG instance.
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`, in hexadecimal.
    pub bus_id: String,
    /// Bytes that it has.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Device and vendor, as NVML writes them: device in the upper half.
    pub pci_device: u32,
    /// As `pci_device`, of the board's maker.
    pub pci_subsystem: u32,
    /// What it is a part of, if it is a MIG instance.
    pub mig: Option<Instance>,
}

/// What is known of a card that is a part of a GPU, which its hardware keeps apart from the others (MIG).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// The UUID of the GPU.
    pub gpu: [u8; 16],
    /// Its size, like `1g.18gb`.
    pub profile: String,
    /// By which zones name it.
    pub number: u32,
}

impl Card {
    /// Its UUID, as people and programs write it.
    pub fn uuid_text(&self) -> String {
        uuid_text(if self.mig.is_some() { "MIG" } else { "GPU" }, &self.uuid)
    }
}

impl Instance {
    /// The GPU's UUID, as people and programs write it.
    pub fn gpu_uuid_text(&self) -> String {
        uuid_text("GPU", &self.gpu)
    }
}

/// A UUID as people and programs write it: `GPU-` or `MIG-`, and the digits in five groups.
pub fn uuid_text(kind: &str, uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

message! {
    /// A process of the zone.
    #[derive(Default, PartialEq, Eq)]
    Process {
        /// In the pid namespace of the asking process.
        pid: u32,
        /// Bytes of GPU memory that it holds.
        used: u64,
    }
}

message! {
    /// What a process holds of a card.
    #[derive(Default, PartialEq, Eq)]
    Holding {
        /// As in [`Process`].
        pid: u32,
        /// The card's place in the view.
        card: u32,
        /// Bytes.
        used: u64,
    }
}

impl ZoneView {
    /// The length of the view in `buffer`; what is too much is left out.
    pub fn write(&self, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let cards: Vec<CardFields<'_>> = self.cards.iter().take(MAX_CARDS).map(CardFields::from).collect();
        let view = ViewFields {
            version: VERSION,
            limit: self.limit.unwrap_or(NONE),
            used: self.used,
            cuda_version: self.cuda_version,
            driver_version: fields::label(&self.driver_version),
            busy: self.busy.map_or(NONE, u64::from),
            cards: List::new(&cards),
            processes: List::new(&self.processes[..self.processes.len().min(MAX_PROCESSES)]),
        };
        let length = view.size();
        let mut writer = Writer::new(buffer);
        view.encode(&mut writer);
        // Behind what the first versions read; who holds what is the first to be left out.
        let uses: Vec<CardUseFields> = self.card_use.iter().take(MAX_CARDS).map(CardUseFields::from).collect();
        let cards = CardsFields { uses: List::new(&uses), holdings: List::new(&[]) };
        let room = (MAX_VIEW.saturating_sub(length + cards.size())) / Holding::LEAST;
        let holdings = &self.holdings[..self.holdings.len().min(MAX_PROCESSES).min(room)];
        if !uses.is_empty() && length + cards.size() <= MAX_VIEW {
            CardsFields { holdings: List::new(holdings), ..cards }.encode(&mut writer);
        }
        writer.finish()
    }

    /// What a client holds of a card, by its place.
    pub fn held(&self, process: &Process, card: usize) -> u64 {
        if self.card_use.len() < 2 || self.holdings.is_empty() {
            return process.used;
        }
        let is_it = |holding: &&Holding| holding.pid == process.pid && holding.card as usize == card;
        self.holdings.iter().find(is_it).map_or(0, |holding| holding.used)
    }

    /// What holds for a card, by its place.
    pub fn on_card(&self, card: usize) -> CardUse {
        let all = CardUse { limit: self.limit, used: self.used, busy: self.busy };
        self.card_use.get(card).copied().unwrap_or(all)
    }

    /// The view in a buffer, whose rest means nothing.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let view = ViewFields::decode(&mut reader)?;
        if view.version != VERSION {
            return Err(Malformed);
        }
        let mut view = ZoneView::from(view);
        if let Ok(cards) = CardsFields::decode(&mut reader) {
            view.card_use = cards.uses.iter().map(CardUse::from).collect();
            view.holdings = cards.holdings.iter().collect();
        }
        Ok(view)
    }
}

/// Appends cards, as [`read_cards`] reads them: at most [`MAX_CARDS`].
pub fn write_cards(cards: &[Card], writer: &mut Writer<'_>) {
    let cards: Vec<CardFields<'_>> = cards.iter().map(CardFields::from).collect();
    CardList::new(&cards).encode(writer);
}

/// At most [`MAX_CARDS`] cards.
pub fn read_cards(reader: &mut Reader<'_>) -> Result<Vec<Card>, Malformed> {
    Ok(CardList::decode(reader)?.iter().map(Card::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> ZoneView {
        let card = Card {
            name: "Some GPU".into(),
            uuid: [7; 16],
            bus_id: "0000:18:00.0".into(),
            memory: 1 << 40,
            capability: (9, 0),
            multiprocessors: 132,
            pci_device: 0x2335_10de,
            pci_subsystem: 1,
            mig: Some(Instance { gpu: [8; 16], profile: "1c.3g.40gb+me".into(), number: 73 }),
        };
        ZoneView {
            limit: Some(2 << 30),
            used: 5,
            cuda_version: 13000,
            driver_version: "580.1".into(),
            busy: Some(42),
            cards: vec![card; MAX_CARDS],
            processes: vec![Process { pid: 9, used: 1 << 35 }; MAX_PROCESSES],
            card_use: vec![CardUse { limit: Some(9), used: 8, busy: Some(7) }; MAX_CARDS],
            holdings: Vec::new(),
        }
    }

    #[test]
    fn a_zone_is_told_of_each_card_and_an_old_broker_of_one() {
        let mut told = view();
        told.cards.truncate(2);
        told.card_use.truncate(2);
        told.processes.truncate(1);
        told.card_use[1] = CardUse { limit: None, used: 3, busy: None };
        told.holdings = vec![Holding { pid: 9, card: 1, used: 3 }];
        let mut buffer = vec![0; MAX_VIEW];
        let len = told.write(&mut buffer).unwrap();
        let read = ZoneView::read(&buffer[..len]).unwrap();
        assert_eq!(read, told);
        assert_eq!(
            (read.on_card(1).used, read.held(&read.processes[0], 1), read.held(&read.processes[0], 0)),
            (3, 3, 0)
        );
        let old = ZoneView { card_use: Vec::new(), holdings: Vec::new(), ..told };
        assert_eq!((old.on_card(1).limit, old.held(&old.processes[0], 1)), (old.limit, old.processes[0].used));
    }

    #[test]
    fn the_fullest_view_fits_and_survives() {
        let mut full = view();
        full.cards.iter_mut().for_each(|card| card.name = "x".repeat(MAX_TEXT));
        let mut buffer = vec![0; MAX_VIEW];
        let len = full.write(&mut buffer).unwrap();
        assert_eq!(ZoneView::read(&buffer[..len]), Ok(full));
        // The rest of a message of fixed size means nothing.
        assert!(ZoneView::read(&buffer).is_ok());
    }

    /// Brokers and client libraries of one version may be of different builds.
    #[test]
    fn the_encoding_is_that_of_its_version() {
        let mig = Some(Instance { gpu: [2; 16], profile: "1g".into(), number: 70 });
        let card =
            Card { name: "GPU".into(), uuid: [1; 16], bus_id: "0:1".into(), memory: 3, mig, ..Card::default() };
        let process = Process { pid: 4, used: 5 };
        let (cards, processes) = (vec![card], vec![process]);
        let view = ZoneView {
            used: 6,
            cuda_version: 7,
            driver_version: "58".into(),
            cards,
            processes,
            ..ZoneView::default()
        };
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let string = |text: &[u8]| {
            let mut bytes = words(&[text.len() as u64]);
            bytes.extend(text);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        let expected = [
            words(&[2, u64::MAX, 6, 7]),
            string(b"58"),
            words(&[u64::MAX, 1]),
            [string(b"GPU"), string(&[1; 16]), string(b"0:1")].concat(),
            words(&[3, 0, 0, 0, 0, 0, 1]),
            [string(&[2; 16]), string(b"1g")].concat(),
            words(&[70, 1, 4, 5]),
        ]
        .concat();
        let mut buffer = vec![0; MAX_VIEW];
        let len = view.write(&mut buffer).unwrap();
        assert_eq!(buffer[..len], expected);
    }

    #[test]
    fn uuids_are_written_as_the_driver_does() {
        let uuid = std::array::from_fn(|index| index as u8 * 17);
        let card = Card { uuid, ..Card::default() };
        assert_eq!(card.uuid_text(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        let mig = Some(Instance { gpu: uuid, ..Instance::default() });
        let instance = Card { uuid, mig, ..Card::default() };
        assert_eq!(instance.uuid_text(), "MIG-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(instance.mig.unwrap().gpu_uuid_text(), card.uuid_text());
    }

    #[test]
    fn what_is_too_much_is_left_out() {
        let mut much = view();
        much.processes.push(Process { pid: 10, used: 1 });
        much.cards[0].name = "é".repeat(MAX_TEXT);
        let mut buffer = vec![0; MAX_VIEW];
        let len = much.write(&mut buffer).unwrap();
        let read = ZoneView::read(&buffer[..len]).unwrap();
        assert_eq!(read.processes.len(), MAX_PROCESSES);
        assert_eq!(read.cards[0].name, "é".repeat(MAX_TEXT / 2));
    }

    #[test]
    fn views_that_lie_are_refused() {
        let mut buffer = vec![0; MAX_VIEW];
        // What follows for each card may be missing.
        let len = ZoneView { card_use: Vec::new(), ..view() }.write(&mut buffer).unwrap();
        for end in [0, 7, 8, 100, len - 1] {
            assert!(ZoneView::read(&buffer[..end]) == Err(Malformed), "{end}");
        }
        let mut other = buffer.clone();
        other[0] = 1;
        assert_eq!(ZoneView::read(&other), Err(Malformed));
        // The count of cards follows version, limit, use, CUDA version, the driver's version (two words) and busy.
        let count = 7 * 8;
        buffer[count..count + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(ZoneView::read(&buffer), Err(Malformed));
    }
}
