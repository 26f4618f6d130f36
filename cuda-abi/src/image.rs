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

/// The bytes of the image that `pointer` leads to: behind a wrapper, the container it wraps. `None` if it is no image.
///
/// # Safety
/// `pointer` must lead to an image that `cuModuleLoadData` accepts, and it must stay as it is for `'a`.
pub unsafe fn at<'a>(pointer: *const u8) -> Option<&'a [u8]> {
    if pointer.is_null() {
        return None;
    }
    let source = Trusted(pointer);
    // SAFETY: the caller's promise, here and below.
    unsafe {
        if *pointer == 0 {
            return None;
        }
        // Text may be shorter than a magic number, so look at one byte after the other.
        let magic = (0..4).map(|at| *pointer.add(at)).take_while(|byte| *byte != 0).collect::<Vec<u8>>();
        let magic = magic.first_chunk().map_or(0, |magic| u32::from_le_bytes(*magic));
        match magic {
            WRAPPER_MAGIC => self::at(source.u64(8)? as *const u8),
            CONTAINER_MAGIC | ELF_MAGIC => {
                let size = usize::try_from(sized(&source)?).ok()?;
                Some(std::slice::from_raw_parts(pointer, size))
            }
            _ => {
                let text = std::ffi::CStr::from_ptr(pointer.cast()).to_bytes();
                (text.len() <= MAX_TEXT && looks_like_ptx(text)).then_some(text)
            }
        }
    }
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
            assert_eq!(at(image.as_ptr()).map(<[u8]>::len), Some(56));
            assert_eq!(at(c"\n  .version 8.0".as_ptr().cast()).map(<[u8]>::len), Some(15));
            assert_eq!(at(c"no".as_ptr().cast()), None);
            let wrapper = [u64::from(WRAPPER_MAGIC) | 1 << 32, image.as_ptr() as u64, 0];
            assert_eq!(at(wrapper.as_ptr().cast()).map(<[u8]>::len), Some(56));
        }
        assert!(is_whole(&image));
        assert!(!is_whole(&image[..55]));
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
