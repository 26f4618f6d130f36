//! Executable memory: written once, then executable and never writable again.

use std::ptr;

use super::context::{EntryPoint, FunctionEntry};

/// A kernel and all functions that it may call, as machine code without addresses in it.
pub struct Compiled {
    pub entry: EntryPoint,
    /// For indirect calls: one entry for each function of the module.
    pub functions: Vec<FunctionEntry>,
    /// Bytes of each thread's frame, where threads are interleaved.
    pub frame_bytes: u32,
    lines: Vec<Line>,
    /// Where the code lies.
    pub range: (u64, u64),
    _memory: Memory,
}

/// Code that was made of one line of the text: start, end and line.
pub(crate) type Line = (u32, u32, u32);

impl Compiled {
    /// The line of the text that an instruction was made of, or 0.
    pub fn line_of(&self, pc: u64) -> u32 {
        let Some(offset) = pc.checked_sub(self.range.0) else { return 0 };
        let at = self.lines.partition_point(|(start, ..)| u64::from(*start) <= offset);
        let found = self.lines[..at].last().filter(|(_, end, _)| offset < u64::from(*end));
        found.map_or(0, |(_, _, line)| *line)
    }

    /// As `line_of`; at the beginning of a function, before anything has a line, its first one.
    pub fn line_near(&self, pc: u64) -> u32 {
        let next = || {
            let offset = pc.checked_sub(self.range.0)?;
            let at = self.lines.partition_point(|(start, ..)| u64::from(*start) <= offset);
            self.lines.get(at).map(|(_, _, line)| *line)
        };
        match self.line_of(pc) {
            0 => next().unwrap_or(0),
            line => line,
        }
    }
}

/// Position-independent code, ready to be placed (or kept on disk).
pub struct Image {
    pub bytes: Vec<u8>,
    pub entry: usize,
    /// Bytes of each thread's frame, where threads are interleaved.
    pub frame_bytes: u32,
    /// In the order of the code.
    pub lines: Vec<Line>,
    /// Offset and signature number of each function of the module that is in the code.
    pub functions: Vec<Option<(usize, u64)>>,
}

struct Memory {
    base: *mut libc::c_void,
    size: usize,
}

// SAFETY: the code is not written to once it is placed.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: grids borrow the code they run, so it is not being executed now.
        unsafe { libc::munmap(self.base, self.size) };
    }
}

impl Image {
    /// Copies the code to executable memory.
    pub fn place(&self) -> std::io::Result<Compiled> {
        let size = self.bytes.len().max(1).next_multiple_of(4096);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping, as large as what is copied into it.
        let memory = unsafe {
            let base = libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            let memory = Memory { base, size };
            ptr::copy_nonoverlapping(self.bytes.as_ptr(), base.cast(), self.bytes.len());
            if libc::mprotect(base, size, libc::PROT_READ | libc::PROT_EXEC) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            memory
        };
        let start = memory.base as u64;
        let at = |offset: usize| (memory.base as usize + offset) as *const ();
        let entry = |function: &Option<(usize, u64)>| match function {
            Some((offset, signature)) => FunctionEntry { code: at(*offset), signature: *signature },
            None => FunctionEntry { code: ptr::null(), signature: 0 },
        };
        Ok(Compiled {
            // SAFETY: the code generator put a function of this type there.
            entry: unsafe { std::mem::transmute::<*const (), EntryPoint>(at(self.entry)) },
            functions: self.functions.iter().map(entry).collect(),
            frame_bytes: self.frame_bytes,
            lines: self.lines.clone(),
            range: (start, start + size as u64),
            _memory: memory,
        })
    }
}
