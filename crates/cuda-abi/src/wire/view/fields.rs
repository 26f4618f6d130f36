//! The view as it travels: messages made of fields, as operations have them.

use super::{Card, CardUse, Holding, Instance, MAX_CARDS, MAX_PROCESSES, MAX_TEXT, Process, ZoneView};
use crate::wire::definition::{codec, message};
use crate::wire::{Codec, Decode, Field, List, Malformed, Reader, Source, Text, Writer};

/// In place of a number: there is none.
pub const NONE: u64 = u64::MAX;

/// Text for programs and people.
pub type Label<'a> = Text<'a, MAX_TEXT>;

/// A UUID as a byte string, which has 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Uuid(pub [u8; 16]);

impl Field for Uuid {
    const LEAST: usize = 24;

    fn shape(text: &mut String) {
        text.push_str("uuid");
    }

    fn size(&self) -> usize {
        24
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.bytes(&self.0);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        out.extend(16u64.to_le_bytes());
        source.fill(16, out);
    }
}

impl Decode<'_> for Uuid {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.bytes()?.try_into().map(Uuid).map_err(|_| Malformed)
    }
}

message! {
    /// An [`Instance`].
    InstanceFields<'a> {
        gpu: Uuid,
        profile: Label<'a>,
        number: u32,
    }
}

message! {
    /// A [`Card`].
    CardFields<'a> {
        name: Label<'a>,
        uuid: Uuid,
        bus_id: Label<'a>,
        memory: u64,
        capability: [u32; 2],
        multiprocessors: u32,
        pci_device: u32,
        pci_subsystem: u32,
        mig: Option<InstanceFields<'a>>,
    }
}

/// Cards of a node, or of a zone.
pub type CardList<'a> = List<'a, CardFields<'a>, MAX_CARDS>;

message! {
    /// A [`ZoneView`].
    ViewFields<'a> {
        /// Changes with the fields.
        version: u64,
        /// Or [`NONE`].
        limit: u64,
        used: u64,
        cuda_version: u32,
        driver_version: Label<'a>,
        /// Or [`NONE`].
        busy: u64,
        cards: CardList<'a>,
        processes: List<'a, Process, MAX_PROCESSES>,
    }
}

message! {
    /// A [`CardUse`].
    CardUseFields {
        /// Or [`NONE`].
        limit: u64,
        used: u64,
        /// Or [`NONE`].
        busy: u64,
    }
}

message! {
    /// What holds for each card; it follows a view, and is read where it is there.
    CardsFields<'a> {
        uses: List<'a, CardUseFields, MAX_CARDS>,
        holdings: List<'a, Holding, MAX_PROCESSES>,
    }
}

impl From<&CardUse> for CardUseFields {
    fn from(card: &CardUse) -> Self {
        Self { limit: card.limit.unwrap_or(NONE), used: card.used, busy: card.busy.map_or(NONE, u64::from) }
    }
}

impl From<CardUseFields> for CardUse {
    fn from(fields: CardUseFields) -> Self {
        let number = |value: u64| Some(value).filter(|value| *value != NONE);
        let busy = number(fields.busy).map(|percent| u32::try_from(percent.min(100)).unwrap_or(100));
        Self { limit: number(fields.limit), used: fields.used, busy }
    }
}

/// A whole view, for what holds for all messages.
pub const CODEC: (&str, Codec) = ("ZoneView", codec!(ViewFields));

/// As much of a text as may be sent.
pub fn label(text: &str) -> Label<'_> {
    let ends = (0..=text.len().min(MAX_TEXT)).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Text(&text.as_bytes()[..end])
}

/// What was sent, without control characters.
fn text(label: Label<'_>) -> String {
    String::from_utf8_lossy(label.0).chars().filter(|c| !c.is_control()).collect()
}

impl<'a> From<&'a Card> for CardFields<'a> {
    fn from(card: &'a Card) -> Self {
        CardFields {
            name: label(&card.name),
            uuid: Uuid(card.uuid),
            bus_id: label(&card.bus_id),
            memory: card.memory,
            capability: card.capability.into(),
            multiprocessors: card.multiprocessors,
            pci_device: card.pci_device,
            pci_subsystem: card.pci_subsystem,
            mig: card.mig.as_ref().map(|instance| InstanceFields {
                gpu: Uuid(instance.gpu),
                profile: label(&instance.profile),
                number: instance.number,
            }),
        }
    }
}

impl From<CardFields<'_>> for Card {
    fn from(fields: CardFields<'_>) -> Self {
        Card {
            name: text(fields.name),
            uuid: fields.uuid.0,
            bus_id: text(fields.bus_id),
            memory: fields.memory,
            capability: fields.capability.into(),
            multiprocessors: fields.multiprocessors,
            pci_device: fields.pci_device,
            pci_subsystem: fields.pci_subsystem,
            mig: fields.mig.map(|instance| Instance {
                gpu: instance.gpu.0,
                profile: text(instance.profile),
                number: instance.number,
            }),
        }
    }
}

impl From<ViewFields<'_>> for ZoneView {
    fn from(fields: ViewFields<'_>) -> Self {
        let busy = Some(fields.busy).filter(|busy| *busy != NONE);
        ZoneView {
            limit: Some(fields.limit).filter(|limit| *limit != NONE),
            used: fields.used,
            cuda_version: fields.cuda_version,
            driver_version: text(fields.driver_version),
            busy: busy.map(|percent| u32::try_from(percent.min(100)).unwrap_or(100)),
            cards: fields.cards.iter().map(Card::from).collect(),
            processes: fields.processes.iter().collect(),
            card_use: Vec::new(),
            holdings: Vec::new(),
        }
    }
}
