//! The fat binary container: a header and a row of entries, each machine code or PTX for one architecture.

use super::ImageError;
use super::unpack::unpack;

/// The first bytes of a fat binary.
pub const MAGIC: [u8; 4] = 0xBA55_ED50u32.to_le_bytes();
/// Smallest header that has all fields of an entry.
const ENTRY_HEADER: usize = 64;

const PTX: u16 = 1;
/// The entry uses features of exactly one architecture, or of one family.
const ARCHITECTURE_SPECIFIC: u64 = 0x10_0000;
const FAMILY_SPECIFIC: u64 = 0x20_0000;

/// One entry, as its header describes it.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// 1 for PTX, 2 for machine code.
    pub kind: u16,
    /// 75 for `sm_75`.
    pub architecture: u32,
    /// How it is compressed, and whether it fits one architecture alone.
    pub flags: u64,
    /// Bytes of a compressed payload; 0 if it is stored.
    pub packed: u32,
    /// Bytes of the payload before compression.
    pub unpacked: u64,
    /// The rest of the entry, with padding.
    pub payload: &'a [u8],
}

impl Entry<'_> {
    fn is_portable(&self) -> bool {
        self.flags & (ARCHITECTURE_SPECIFIC | FAMILY_SPECIFIC) == 0
    }

    /// Is it for a device of this capability, or for an older one that it can do without?
    fn fits(&self, capability: u32) -> bool {
        self.architecture <= capability && (self.is_portable() || self.architecture == capability)
    }
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Result<[u8; N], ImageError> {
    let end = at.checked_add(N).ok_or(ImageError::Damaged)?;
    from.get(at..end).and_then(|slice| slice.try_into().ok()).ok_or(ImageError::Damaged)
}

fn u16_at(from: &[u8], at: usize) -> Result<u16, ImageError> {
    bytes(from, at).map(u16::from_le_bytes)
}

fn u32_at(from: &[u8], at: usize) -> Result<u32, ImageError> {
    bytes(from, at).map(u32::from_le_bytes)
}

fn u64_at(from: &[u8], at: usize) -> Result<u64, ImageError> {
    bytes(from, at).map(u64::from_le_bytes)
}

/// Header size and total size of the container that starts with these 16 bytes.
pub fn size(header: &[u8]) -> Result<(usize, usize), ImageError> {
    if !header.starts_with(&MAGIC) {
        return Err(ImageError::Unknown);
    }
    let head = usize::from(u16_at(header, 6)?);
    let body = usize::try_from(u64_at(header, 8)?).map_err(|_| ImageError::Damaged)?;
    let total = head.checked_add(body).ok_or(ImageError::Damaged)?;
    if head < 16 { Err(ImageError::Damaged) } else { Ok((head, total)) }
}

/// All entries of a container.
pub fn entries(container: &[u8]) -> Result<Vec<Entry<'_>>, ImageError> {
    let (head, total) = size(container)?;
    let mut rest = container.get(head..total).ok_or(ImageError::Damaged)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let header = usize::try_from(u32_at(rest, 4)?).map_err(|_| ImageError::Damaged)?;
        let padded = usize::try_from(u64_at(rest, 8)?).map_err(|_| ImageError::Damaged)?;
        let next = header.checked_add(padded).ok_or(ImageError::Damaged)?;
        if header < ENTRY_HEADER {
            return Err(ImageError::Damaged);
        }
        entries.push(Entry {
            kind: u16_at(rest, 0)?,
            architecture: u32_at(rest, 28)?,
            flags: u64_at(rest, 40)?,
            packed: u32_at(rest, 16)?,
            unpacked: u64_at(rest, 56)?,
            payload: rest.get(header..next).ok_or(ImageError::Damaged)?,
        });
        rest = &rest[next..];
    }
    Ok(entries)
}

/// Does a container hold PTX that is not for newer devices alone?
pub fn has_fitting_text(container: &[u8], capability: u32) -> bool {
    let fits = |entry: &Entry| entry.kind == PTX && entry.fits(capability);
    entries(container).is_ok_and(|entries| entries.iter().any(fits))
}

/// The text of the best PTX entry. Of what the device can run, the newest, and a portable one rather than a specific one.
/// Libraries often hold machine code for GPUs that exist and PTX for those to come; then the oldest of that is tried: PTX
/// for a newer GPU mostly says nothing that an older one could not do, and a kernel that does is refused by name.
pub fn text(container: &[u8], capability: u32) -> Result<String, ImageError> {
    let entries = entries(container)?;
    let ptx: Vec<&Entry> = entries.iter().filter(|entry| entry.kind == PTX).collect();
    let fitting = ptx.iter().filter(|entry| entry.fits(capability));
    let fitting = fitting.max_by_key(|entry| (entry.is_portable(), entry.architecture));
    let newer = || ptx.iter().filter(|entry| entry.architecture > capability);
    let lowest = || newer().min_by_key(|entry| (!entry.is_portable(), entry.architecture));
    let best = fitting.or_else(lowest).ok_or(match ptx.first() {
        Some(entry) => ImageError::Specific(entry.architecture, capability),
        None => ImageError::NoPtx,
    })?;
    super::plain(&unpack(best)?).map_err(|_| ImageError::Damaged)
}
