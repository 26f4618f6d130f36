//! What a zone sees of itself: the broker's answer to a client that asks without wanting a worker (NVML does).
//!
//! One payload of bounded size, written by the broker and read by the client. It speaks of the zone that asks and of
//! nobody else.

use super::{Malformed, Reader, Writer};

/// Changes with the payload; another one is not read.
const VERSION: u64 = 2;
const NONE: u64 = u64::MAX;

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
    /// Bytes of GPU memory over all of the zone's processes; none: what a card has.
    pub limit: Option<u64>,
    /// Bytes that its processes hold.
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

/// A process of the zone, by the number that it has where the asking process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// In the pid namespace of the asking process.
    pub pid: u32,
    /// Bytes of GPU memory that it holds.
    pub used: u64,
}

impl ZoneView {
    /// The length of the view in `buffer`; what is too much is left out.
    pub fn write(&self, buffer: &mut [u8]) -> Result<usize, Malformed> {
        let mut writer = Writer::new(buffer);
        writer.word(VERSION);
        writer.word(self.limit.unwrap_or(NONE));
        writer.word(self.used);
        writer.word(u64::from(self.cuda_version));
        writer.bytes(text(&self.driver_version));
        writer.word(self.busy.map_or(NONE, u64::from));
        let cards = &self.cards[..self.cards.len().min(MAX_CARDS)];
        write_cards(cards, &mut writer);
        let processes = &self.processes[..self.processes.len().min(MAX_PROCESSES)];
        writer.word(processes.len() as u64);
        for process in processes {
            writer.words(&[u64::from(process.pid), process.used]);
        }
        writer.finish()
    }

    /// The view in a buffer, whose rest means nothing.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.word()? != VERSION {
            return Err(Malformed);
        }
        let limit = Some(reader.word()?).filter(|limit| *limit != NONE);
        let used = reader.word()?;
        let cuda_version = reader.narrow()?;
        let driver_version = read_text(&mut reader)?;
        let busy = match reader.word()? {
            NONE => None,
            percent => Some(u32::try_from(percent.min(100)).unwrap_or(100)),
        };
        let cards = read_cards(&mut reader)?;
        let count = bounded(&mut reader, MAX_PROCESSES)?;
        let mut processes = Vec::with_capacity(count);
        for _ in 0..count {
            processes.push(Process { pid: reader.narrow()?, used: reader.word()? });
        }
        Ok(Self { limit, used, cuda_version, driver_version, busy, cards, processes })
    }
}

/// Appends cards, as [`read_cards`] reads them.
pub fn write_cards(cards: &[Card], writer: &mut Writer<'_>) {
    writer.word(cards.len() as u64);
    for card in cards {
        writer.bytes(text(&card.name));
        writer.bytes(&card.uuid);
        writer.bytes(text(&card.bus_id));
        writer.word(card.memory);
        writer.words(&[card.capability.0, card.capability.1, card.multiprocessors].map(u64::from));
        writer.words(&[card.pci_device, card.pci_subsystem].map(u64::from));
        writer.word(u64::from(card.mig.is_some()));
        if let Some(instance) = &card.mig {
            writer.bytes(&instance.gpu);
            writer.bytes(text(&instance.profile));
            writer.word(u64::from(instance.number));
        }
    }
}

/// At most [`MAX_CARDS`] cards.
pub fn read_cards(reader: &mut Reader<'_>) -> Result<Vec<Card>, Malformed> {
    let count = bounded(reader, MAX_CARDS)?;
    let mut cards = Vec::with_capacity(count);
    for _ in 0..count {
        cards.push(Card {
            name: read_text(reader)?,
            uuid: reader.bytes()?.try_into().map_err(|_| Malformed)?,
            bus_id: read_text(reader)?,
            memory: reader.word()?,
            capability: (reader.narrow()?, reader.narrow()?),
            multiprocessors: reader.narrow()?,
            pci_device: reader.narrow()?,
            pci_subsystem: reader.narrow()?,
            mig: match reader.word()? {
                0 => None,
                1 => Some(read_instance(reader)?),
                _ => return Err(Malformed),
            },
        });
    }
    Ok(cards)
}

fn read_instance(reader: &mut Reader<'_>) -> Result<Instance, Malformed> {
    Ok(Instance {
        gpu: reader.bytes()?.try_into().map_err(|_| Malformed)?,
        profile: read_text(reader)?,
        number: reader.narrow()?,
    })
}

fn bounded(reader: &mut Reader<'_>, most: usize) -> Result<usize, Malformed> {
    usize::try_from(reader.word()?).ok().filter(|count| *count <= most).ok_or(Malformed)
}

fn text(text: &str) -> &[u8] {
    let ends = (0..=text.len().min(MAX_TEXT)).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text.as_bytes()[..end]
}

/// Text for programs and people: without control characters, of bounded length.
fn read_text(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let bytes = reader.bytes()?;
    if bytes.len() > MAX_TEXT {
        return Err(Malformed);
    }
    Ok(String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect())
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
        }
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
        let len = view().write(&mut buffer).unwrap();
        for end in [0, 7, 8, 100, len - 1] {
            assert_eq!(ZoneView::read(&buffer[..end]), Err(Malformed), "{end}");
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
