//! What the kernel says is mapped where in this process (`/proc/self/maps`).

use std::io;
use std::ops::Range;

use super::PAGE;

/// One line: a range of pages that are alike.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub range: Range<u64>,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    pub shared: bool,
    /// Where in the file the range starts.
    pub offset: u64,
    pub file: File,
    pub name: String,
}

/// A file, as the kernel tells files apart. Anonymous memory has inode 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

/// What kind of memory a range is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// Whole pages of ordinary memory, this process's own.
    Private,
    /// Memory, but not that, for this reason.
    Other(&'static str),
    /// Not all of it is memory that can be read.
    Missing,
}

impl Mapped {
    fn parse(line: &str) -> Option<Mapped> {
        let mut rest = line;
        let mut field = || {
            let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after;
            field
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = field().split_once('-')?;
        let [r, w, x, sharing] = field().as_bytes() else { return None };
        let offset = hex(field())?;
        let (major, minor) = field().split_once(':')?;
        let inode = field().parse().ok()?;
        Some(Mapped {
            range: hex(start)?..hex(end)?,
            readable: *r == b'r',
            writable: *w == b'w',
            executable: *x == b'x',
            shared: *sharing == b's',
            offset,
            file: File { major: hex(major)? as u32, minor: hex(minor)? as u32, inode },
            name: rest.trim_start().to_owned(),
        })
    }

    pub(super) fn protection(&self) -> i32 {
        let bit = |is: bool, bit: i32| if is { bit } else { 0 };
        bit(self.readable, libc::PROT_READ)
            | bit(self.writable, libc::PROT_WRITE)
            | bit(self.executable, libc::PROT_EXEC)
    }

    /// Why these pages cannot be swapped for others.
    fn objection(&self) -> Option<&'static str> {
        if self.shared {
            Some("it is a shared mapping")
        } else if self.file.inode != 0 {
            Some("it is a mapped file")
        } else if !self.writable || self.executable {
            Some("it is not plain readable and writable memory")
        } else if !(self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:")) {
            Some("it is special memory, such as a stack")
        } else {
            None
        }
    }
}

/// Everything that is mapped, by rising address.
pub(super) fn read() -> io::Result<Vec<Mapped>> {
    let text = std::fs::read("/proc/self/maps")?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Mapped::parse).collect())
}

/// What `[start, start + len)` is made of.
pub(super) fn backing(mapped: &[Mapped], start: u64, len: u64) -> Backing {
    let end = start + len;
    let mut reach = start;
    let mut objection = None;
    for part in mapped.iter().filter(|part| part.range.end > start && part.range.start < end) {
        if part.range.start > reach || !part.readable {
            return Backing::Missing;
        }
        objection = objection.or(part.objection());
        reach = part.range.end;
    }
    // Swapping the pages under the thread that does it would lose what it writes meanwhile.
    let on_this_stack = &raw const reach as u64;
    if reach < end {
        Backing::Missing
    } else if !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        Backing::Other("it is not whole pages")
    } else if let Some(reason) = objection {
        Backing::Other(reason)
    } else if (start..end).contains(&on_this_stack) {
        Backing::Other("it is this thread's stack")
    } else {
        Backing::Private
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = "7f0000001000-7f0000003000 rw-s 00002000 00:01 1030                       /memfd:a b (deleted)";
        let expected = Mapped {
            range: 0x7f00_0000_1000..0x7f00_0000_3000,
            readable: true,
            writable: true,
            executable: false,
            shared: true,
            offset: 0x2000,
            file: File { major: 0, minor: 1, inode: 1030 },
            name: "/memfd:a b (deleted)".to_owned(),
        };
        assert_eq!(Mapped::parse(line), Some(expected));
        let anonymous = Mapped::parse("1000-2000 r-xp 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.name.as_str(), anonymous.file.inode), ("", 0));
        assert_eq!(anonymous.protection(), libc::PROT_READ | libc::PROT_EXEC);
        assert_eq!(Mapped::parse(""), None);
        assert_eq!(Mapped::parse("1000-2000 rw-p"), None);
    }

    fn judge(lines: &[&str], start: u64, len: u64) -> Backing {
        let mapped: Vec<_> = lines.iter().filter_map(|line| Mapped::parse(line)).collect();
        assert_eq!(mapped.len(), lines.len());
        backing(&mapped, start, len)
    }

    #[test]
    fn only_whole_private_pages_qualify() {
        let plain = "10000-20000 rw-p 00000000 00:00 0 ";
        assert_eq!(judge(&[plain], 0x10000, 0x10000), Backing::Private);
        assert_eq!(judge(&[plain, "20000-30000 rw-p 00000000 00:00 0 [heap]"], 0x1f000, 0x2000), Backing::Private);
        assert!(matches!(judge(&[plain], 0x10010, 0x1000), Backing::Other(_)));
        assert!(matches!(judge(&[plain], 0x10000, 0x1010), Backing::Other(_)));
        assert_eq!(judge(&[plain], 0xf000, 0x2000), Backing::Missing);
        assert_eq!(judge(&[plain], 0x1f000, 0x2000), Backing::Missing);
        assert_eq!(judge(&[plain, "21000-22000 rw-p 00000000 00:00 0 "], 0x1f000, 0x3000), Backing::Missing);
        assert_eq!(judge(&[plain, "20000-30000 ---p 00000000 00:00 0 "], 0x1f000, 0x2000), Backing::Missing);
        for other in [
            "20000-30000 rw-s 00000000 00:01 77 /dev/zero (deleted)",
            "20000-30000 rw-p 00000000 08:01 77 /data",
            "20000-30000 r--p 00000000 00:00 0 ",
            "20000-30000 rwxp 00000000 00:00 0 ",
            "20000-30000 rw-p 00000000 00:00 0 [stack]",
        ] {
            assert!(matches!(judge(&[plain, other], 0x1f000, 0x2000), Backing::Other(_)), "{other}");
        }
    }

    #[test]
    fn this_thread_keeps_its_stack() {
        let here = 0u8;
        let page = &raw const here as u64 & !(PAGE - 1);
        let around = (page - 8 * PAGE, 16 * PAGE);
        // Threads' stacks look like any other memory.
        assert!(matches!(backing(&read().unwrap(), around.0, around.1), Backing::Other(_) | Backing::Missing));
    }
}
