//! What the user has chosen to see, and the keys for it.

/// By what zones are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Name,
    Memory,
    Gpu,
    Calls,
    Launches,
    Copied,
    Denied,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Help,
    Sort(Sort),
    Reverse,
    /// So many lines, up where it is negative.
    Lines(isize),
    /// So many screens.
    Pages(isize),
    First,
    Last,
}

/// For `?`.
pub(super) const HELP: &str = "\
Keys of bulkhead top

  q               quit
  ?               this page; any key leaves it
  n m g c l b d   sort by name, memory, GPU, calls, launches, copies, denials
  r               reverse the order
  j k, arrows     scroll by a line
  space, PgDn     scroll by a screen; PgUp goes back
  Home, End       to the first or last line

MEM     GPU memory held; amber from 85 % of the limit, red from 95 %
GPU     part of the time that the GPU worked for it, where that is measured
CALL/s  calls of clients; LNCH/s kernels launched; COPY/s bytes copied
QUE     calls in progress
DENY    requests refused since the zone exists; FLT faults of its clients";

/// Keys in what the terminal sent. Control-C and control-D arrive as keys, too.
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        let sequences: [(&[u8], Key); 10] = [
            (b"\x1b[A", Key::Lines(-1)),
            (b"\x1b[B", Key::Lines(1)),
            (b"\x1bOA", Key::Lines(-1)),
            (b"\x1bOB", Key::Lines(1)),
            (b"\x1b[5~", Key::Pages(-1)),
            (b"\x1b[6~", Key::Pages(1)),
            (b"\x1b[H", Key::First),
            (b"\x1b[F", Key::Last),
            (b"\x1b[1~", Key::First),
            (b"\x1b[4~", Key::Last),
        ];
        if let Some((sequence, key)) = sequences.iter().find(|(sequence, _)| rest.starts_with(sequence)) {
            keys.push(*key);
            rest = &rest[sequence.len()..];
            continue;
        }
        keys.extend(match first {
            b'q' | b'Q' | 3 | 4 => Some(Key::Quit),
            b'?' | b'h' => Some(Key::Help),
            b'n' => Some(Key::Sort(Sort::Name)),
            b'm' => Some(Key::Sort(Sort::Memory)),
            b'g' => Some(Key::Sort(Sort::Gpu)),
            b'c' => Some(Key::Sort(Sort::Calls)),
            b'l' => Some(Key::Sort(Sort::Launches)),
            b'b' => Some(Key::Sort(Sort::Copied)),
            b'd' => Some(Key::Sort(Sort::Denied)),
            b'r' => Some(Key::Reverse),
            b'j' => Some(Key::Lines(1)),
            b'k' => Some(Key::Lines(-1)),
            b' ' => Some(Key::Pages(1)),
            _ => None,
        });
        rest = tail;
    }
    keys
}

#[derive(Debug, Default)]
pub(super) struct View {
    pub sort: Sort,
    pub reverse: bool,
    pub help: bool,
    /// Lines that are scrolled past.
    pub top: usize,
}

impl View {
    /// Takes a key; true if the user quits. `page`: lines of a screen; `lines`: all that there are.
    pub(super) fn take(&mut self, key: Key, page: usize, lines: usize) -> bool {
        if self.help && key != Key::Quit {
            self.help = false;
            return false;
        }
        let last = lines.saturating_sub(page);
        let moved = |by: isize| self.top.saturating_add_signed(by);
        match key {
            Key::Quit => return true,
            Key::Help => self.help = true,
            Key::Sort(sort) => (self.sort, self.top) = (sort, 0),
            Key::Reverse => self.reverse = !self.reverse,
            Key::Lines(by) => self.top = moved(by),
            Key::Pages(by) => self.top = moved(by.saturating_mul(isize::try_from(page).unwrap_or(isize::MAX))),
            Key::First => self.top = 0,
            Key::Last => self.top = last,
        }
        self.top = self.top.min(last);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_what_terminals_send() {
        assert_eq!(keys(b"xm\x1b[A\x1bOBq"), [Key::Sort(Sort::Memory), Key::Lines(-1), Key::Lines(1), Key::Quit]);
        assert_eq!(keys(b"\x1b[6~\x1b[5~\x1b[H\x1b[4~"), [Key::Pages(1), Key::Pages(-1), Key::First, Key::Last]);
        assert_eq!(keys(b"\x03"), [Key::Quit]);
        assert_eq!(keys(b"\x1b\x1b[\xff"), []);
    }

    #[test]
    fn scrolling_ends_at_the_first_and_the_last_line() {
        let mut view = View::default();
        let mut after = |key| {
            assert!(!view.take(key, 10, 25));
            view.top
        };
        assert_eq!(after(Key::Lines(-1)), 0);
        assert_eq!(after(Key::Pages(1)), 10);
        assert_eq!(after(Key::Pages(1)), 15, "the last screen is full");
        assert_eq!(after(Key::Lines(-2)), 13);
        assert_eq!(after(Key::Last), 15);
        assert_eq!(after(Key::Sort(Sort::Calls)), 0, "another order begins at its first line");
        let mut short = View::default();
        assert!(!short.take(Key::Last, 10, 3) && short.top == 0);
        assert!(short.take(Key::Quit, 10, 3));
    }

    #[test]
    fn any_key_leaves_the_help_and_only_q_the_program() {
        let mut view = View::default();
        assert!(!view.take(Key::Help, 1, 1) && view.help);
        assert!(!view.take(Key::Sort(Sort::Memory), 1, 1) && !view.help && view.sort == Sort::Name);
        view.take(Key::Help, 1, 1);
        assert!(view.take(Key::Quit, 1, 1));
        assert!(HELP.lines().all(|line| line.chars().count() <= 80), "it fits a small terminal, too");
    }
}
