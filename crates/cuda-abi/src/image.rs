//! How large a kernel image is. The driver API passes images as bare pointers; their headers say where they end.

/// `__fatBinC_Wrapper_t`: what nvcc's registration code passes.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// A fat binary's container.
pub const CONTAINER_MAGIC: u32 = 0xba55_ed50;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Longest PTX text that is looked at.
const MAX_TEXT: usize = crate::wire::MAX_IMAGE;

const SECTION_WITHOUT_BYTES: u32 = 8;

/// Memory that can be read at an offset; `None` beyond its end.
trait Source {
    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]>;

    fn u16(&self, at: u64) -> Option<u64> {
        Some(u64::from(u16::from_le_bytes(self.read(at)?)))
    }

    fn u32(&self, at: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.read(at)?))
    }

    fn u64(&self, at: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.read(at)?))
    }
}

impl Source for &[u8] {
    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let rest = self.get(usize::try_from(at).ok()?..)?;
        rest.first_chunk().copied()
    }
}

/// Memory of this process, of which the caller vouches that it holds a whole image.
struct Trusted(*const u8);

impl Source for Trusted {
    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        // SAFETY: the caller of `size` vouches for a whole image, and offsets come from its own headers.
        Some(unsafe { std::ptr::read_unaligned(self.0.add(usize::try_from(at).ok()?).cast()) })
    }
}

/// Bytes of a container or ELF image; `None` if it is neither, or lies.
fn sized(source: &impl Source) -> Option<u64> {
    match source.u32(0)? {
        CONTAINER_MAGIC => source.u16(6)?.checked_add(source.u64(8)?),
        ELF_MAGIC => elf(source),
        _ => None,
    }
}

/// The end of the last thing that the headers speak of. Section headers may come before program headers and after.
fn elf(source: &impl Source) -> Option<u64> {
    let table = |offset: u64, size: u64, count: u64| offset.checked_add(size.checked_mul(count)?);
    let (programs, sections) = (source.u64(32)?, source.u64(40)?);
    let (program_size, program_count) = (source.u16(54)?, source.u16(56)?);
    let (section_size, section_count) = (source.u16(58)?, source.u16(60)?);
    let mut end =
        64.max(table(programs, program_size, program_count)?).max(table(sections, section_size, section_count)?);
    for index in 0..program_count {
        let at = programs.checked_add(index * program_size)?;
        end = end.max(source.u64(at.checked_add(8)?)?.checked_add(source.u64(at.checked_add(32)?)?)?);
    }
    for index in 0..section_count {
        let at = sections.checked_add(index * section_size)?;
        if source.u32(at.checked_add(4)?)? != SECTION_WITHOUT_BYTES {
            end = end.max(source.u64(at.checked_add(24)?)?.checked_add(source.u64(at.checked_add(32)?)?)?);
        }
    }
    Some(end)
}

/// Does this hold a whole image? PTX must be NUL-terminated text.
pub fn is_whole(bytes: &[u8]) -> bool {
    match bytes.first_chunk().map(|magic| u32::from_le_bytes(*magic)) {
        Some(CONTAINER_MAGIC | ELF_MAGIC) => sized(&bytes).is_some_and(|size| size <= bytes.len() as u64),
        Some(WRAPPER_MAGIC) | None => false,
        Some(_) => bytes.contains(&0) && looks_like_ptx(&bytes[..bytes.iter().position(|byte| *byte == 0).unwrap()]),
    }
}

fn looks_like_ptx(text: &[u8]) -> bool {
    text.windows(b".version".len()).any(|window| window == b".version")
}

/// What a pointer to an image leads to.
#[derive(Debug, PartialEq, Eq)]
pub struct Image<'a> {
    /// What is to be loaded: a container, PTX text without its NUL, or machine code.
    pub main: &'a [u8],
    /// The containers that `main` was linked from, where the program was linked with `-rdc=true`. If `main` has nothing
    /// for a GPU, and it has nothing but machine code, the driver links these.
    pub parts: Vec<&'a [u8]>,
}

/// A wrapper whose last word leads to the containers that were linked, with a NULL behind them.
const LINKED: u32 = 2;

/// `__fatBinC_Wrapper_t`, with what it leads to.
pub struct Wrapper<'a> {
    parts: Vec<*const u8>,
    images: std::marker::PhantomData<&'a [u8]>,
    words: [u64; 3],
}

impl<'a> Wrapper<'a> {
    /// Leads to the image and its parts, which it borrows.
    pub fn new(image: &Image<'a>) -> Self {
        let parts: Vec<*const u8> = image.parts.iter().map(|part| part.as_ptr()).chain([std::ptr::null()]).collect();
        let words =
            [u64::from(WRAPPER_MAGIC) | u64::from(LINKED) << 32, image.main.as_ptr() as u64, parts.as_ptr() as u64];
        Self { parts, images: std::marker::PhantomData, words }
    }

    /// What `cuModuleLoadData` takes for an image, as long as this lives.
    pub fn as_ptr(&self) -> *const u8 {
        debug_assert_eq!(self.words[2], self.parts.as_ptr() as u64);
        self.words.as_ptr().cast()
    }
}

/// The image that `pointer` leads to: behind a wrapper, what it wraps. `None` if it is no image.
///
/// # Safety
/// `pointer` must lead to an image that `cuModuleLoadData` accepts, and it must stay as it is for `'a`.
pub unsafe fn at<'a>(pointer: *const u8) -> Option<Image<'a>> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    if unsafe { magic(pointer) } != WRAPPER_MAGIC {
        // SAFETY: the caller's promise.
        return unsafe { bare(pointer) }.map(|main| Image { main, parts: Vec::new() });
    }
    let wrapper = Trusted(pointer);
    // SAFETY: a wrapper leads to a container.
    let main = unsafe { bare(wrapper.u64(8)? as *const u8)? };
    let list = wrapper.u64(16)?;
    let mut parts = Vec::new();
    if wrapper.u32(4)? == LINKED && list != 0 {
        let list = Trusted(list as *const u8);
        while let Some(part) = list.u64(8 * parts.len() as u64).filter(|part| *part != 0) {
            // SAFETY: so do the words that such a wrapper leads to.
            parts.push(unsafe { bare(part as *const u8)? });
        }
    }
    Some(Image { main, parts })
}

/// # Safety
/// As `at`.
unsafe fn magic(pointer: *const u8) -> u32 {
    // Text may be shorter than a magic number, so look at one byte after the other.
    // SAFETY: the caller's promise.
    let bytes = (0..4).map(|at| unsafe { *pointer.add(at) }).take_while(|byte| *byte != 0).collect::<Vec<u8>>();
    bytes.first_chunk().map_or(0, |magic| u32::from_le_bytes(*magic))
}

/// An image without a wrapper.
///
/// # Safety
/// As `at`, or NULL.
unsafe fn bare<'a>(pointer: *const u8) -> Option<&'a [u8]> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; sizes come from the image's own headers.
    unsafe {
        match magic(pointer) {
            WRAPPER_MAGIC => None,
            CONTAINER_MAGIC | ELF_MAGIC => {
                let size = usize::try_from(sized(&Trusted(pointer))?).ok()?;
                Some(std::slice::from_raw_parts(pointer, size))
            }
            _ => {
                let text = std::ffi::CStr::from_ptr(pointer.cast()).to_bytes();
                (text.len() <= MAX_TEXT && looks_like_ptx(text)).then_some(text)
            }
        }
    }
}

/// Machine code, as the kind of a container's entry.
const MACHINE_CODE: u64 = 2;
/// Smallest header that has all fields of an entry.
const ENTRY_HEADER: u64 = 64;

/// A container without the machine code for GPUs of other generations: code for compute capability 8.x runs on no device
/// but those of 8.x. `majors` are the first numbers of the devices' capabilities. `None` if there is nothing to leave out, or
/// nothing would be left.
pub fn for_generations(container: &[u8], majors: &[u32]) -> Option<Vec<u8>> {
    if container.u32(0)? != CONTAINER_MAGIC {
        return None;
    }
    let head = container.u16(6)?;
    let end = head.checked_add(container.u64(8)?)?;
    let range = |from: u64, to: u64| container.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?);
    let mut kept = range(0, head)?.to_vec();
    let mut at = head;
    while at < end {
        let header = u64::from(container.u32(at.checked_add(4)?)?);
        let next = at.checked_add(header)?.checked_add(container.u64(at.checked_add(8)?)?)?;
        if header < ENTRY_HEADER || next > end {
            return None;
        }
        let major = container.u32(at.checked_add(28)?)? / 10;
        if container.u16(at)? != MACHINE_CODE || majors.contains(&major) {
            kept.extend_from_slice(range(at, next)?);
        }
        at = next;
    }
    let body = kept.len() as u64 - head;
    if body == 0 || kept.len() as u64 == end {
        return None;
    }
    kept.get_mut(8..16)?.copy_from_slice(&body.to_le_bytes());
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(payload: &[u8]) -> Vec<u8> {
        let mut bytes = CONTAINER_MAGIC.to_le_bytes().to_vec();
        bytes.extend(1u16.to_le_bytes());
        bytes.extend(16u16.to_le_bytes());
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn containers_and_text_are_measured() {
        let image = container(&[7; 40]);
        // SAFETY: a whole container, and whole texts.
        unsafe {
            let main = |pointer: *const u8| at(pointer).map(|image| image.main.len());
            assert_eq!(main(image.as_ptr()), Some(56));
            assert_eq!(main(c"\n  .version 8.0".as_ptr().cast()), Some(15));
            assert_eq!(main(c"no".as_ptr().cast()), None);
            let wrapper = [u64::from(WRAPPER_MAGIC) | 1 << 32, image.as_ptr() as u64, 0];
            assert_eq!(main(wrapper.as_ptr().cast()), Some(56));
            let file = [wrapper[0], wrapper[1], c"a name".as_ptr() as u64];
            assert_eq!(at(file.as_ptr().cast()), Some(Image { main: &image, parts: Vec::new() }));
            assert_eq!(main([wrapper[0], wrapper.as_ptr() as u64, 0].as_ptr().cast()), None);
        }
        assert!(is_whole(&image));
        assert!(!is_whole(&image[..55]));
    }

    #[test]
    fn what_was_linked_is_found() {
        let (linked, first, second) = (container(&[]), container(&[1; 8]), container(&[2; 24]));
        let image = Image { main: &linked, parts: vec![&first, &second] };
        let wrapper = Wrapper::new(&image);
        // SAFETY: all that it leads to is here.
        assert_eq!(unsafe { at(wrapper.as_ptr()) }, Some(image));
    }

    /// An entry with a payload of 16 bytes.
    fn entry(kind: u16, architecture: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 16];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&64u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&16u64.to_le_bytes());
        bytes[28..32].copy_from_slice(&architecture.to_le_bytes());
        bytes
    }

    #[test]
    fn code_for_other_generations_is_left_out() {
        const PTX: u16 = 1;
        const CODE: u16 = 2;
        const UNKNOWN: u16 = 0x40;
        let all =
            [(CODE, 75), (CODE, 80), (CODE, 86), (CODE, 90), (CODE, 100), (CODE, 120), (PTX, 120), (UNKNOWN, 75)];
        let of = |list: &[(u16, u32)]| {
            container(&list.iter().flat_map(|(kind, architecture)| entry(*kind, *architecture)).collect::<Vec<_>>())
        };
        let whole = of(&all);
        assert_eq!(for_generations(&whole, &[9]), Some(of(&[(CODE, 90), (PTX, 120), (UNKNOWN, 75)])));
        assert_eq!(for_generations(&whole, &[8]), Some(of(&[(CODE, 80), (CODE, 86), (PTX, 120), (UNKNOWN, 75)])));
        let two = of(&[(CODE, 90), (CODE, 100), (PTX, 120), (UNKNOWN, 75)]);
        assert_eq!(for_generations(&whole, &[9, 10]), Some(two));
        assert!(for_generations(&whole, &[9]).is_some_and(|kept| is_whole(&kept)));
        // Nothing to leave out, nothing left, no container, cut off anywhere.
        assert_eq!(for_generations(&of(&[(CODE, 90), (PTX, 75)]), &[9]), None);
        assert_eq!(for_generations(&of(&[(CODE, 80)]), &[9]), None);
        assert_eq!(for_generations(b".version 8.0", &[9]), None);
        for len in 0..whole.len() {
            assert_eq!(for_generations(&whole[..len], &[9]), None, "{len}");
        }
    }

    #[test]
    fn images_that_lie_are_refused() {
        let mut image = container(&[7; 40]);
        image[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!is_whole(&image));
        let mut elf = vec![0; 64];
        elf[..4].copy_from_slice(b"\x7fELF");
        assert!(is_whole(&elf));
        elf[40..48].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        elf[58] = 64;
        elf[60] = 1;
        assert!(!is_whole(&elf));
        assert!(!is_whole(b".version 8.0"));
        assert!(is_whole(b".version 8.0\0"));
        assert!(!is_whole(b""));
    }
}
