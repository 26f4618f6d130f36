//! A terminal in raw mode on the alternate screen, restored afterwards.

use std::io::{self, IsTerminal, Write};

use rustix::termios::{self, OptionalActions, Termios};

pub(crate) struct Terminal {
    before: Option<Termios>,
}

impl Terminal {
    pub(crate) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = if stdin.is_terminal() {
            let before = termios::tcgetattr(&stdin)?;
            let mut raw = before.clone();
            raw.make_raw();
            termios::tcsetattr(&stdin, OptionalActions::Now, &raw)?;
            Some(before)
        } else {
            None
        };
        let terminal = Self { before };
        // The alternate screen, without a cursor.
        say("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(terminal)
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        match termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => (24, 80),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = say("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
