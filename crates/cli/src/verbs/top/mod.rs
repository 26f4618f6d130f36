//! `bulkhead top`: monitors zones and their clients.

mod sample;
mod table;
mod view;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::admin;
use crate::args::TopArgs;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use sample::Sample;
use table::{Line, Style, Table};
use view::{Key, View};

/// Where it is set, and not empty, nothing is coloured (no-color.org).
const NO_COLOR: &str = "NO_COLOR";

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let client = admin::connect(&args.admin.socket)?;
    let interval = args.interval;
    let mut before = Sample::new(admin::status(&client)?);
    if args.once || args.admin.json || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let now = Sample::new(admin::status(&client)?);
        if args.admin.json {
            return super::status::print_json(&sample::json(&now, &before));
        }
        return super::man::print(once(&now, &before).as_bytes());
    }
    let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot use the terminal", &error);
    let colours = std::env::var_os(NO_COLOR).is_none_or(|value| value.is_empty());
    let terminal = Terminal::enter().map_err(failure)?;
    let mut view = View::default();
    let mut now = Sample::new(admin::status(&client)?);
    loop {
        let until = Instant::now() + interval;
        // What a key changes is seen at once, of the same figures.
        loop {
            let (rows, columns) = terminal.size();
            let table = table::table(&now, &before, &view, columns);
            let page = page(&table, rows);
            view.top = view.top.min(table.body.len().saturating_sub(page));
            draw(&frame(&table, &view, page), columns, colours).map_err(failure)?;
            match keys_until(until).map_err(failure)? {
                Some(keys) if keys.is_empty() => {}
                Some(keys) => {
                    for key in keys {
                        if view.take(key, page, table.body.len()) {
                            return Ok(ExitCode::SUCCESS);
                        }
                    }
                }
                None => break,
            }
        }
        before = now;
        now = Sample::new(admin::status(&client)?);
    }
}

/// For files and pipes: all of it, as wide as it needs to be.
fn once(now: &Sample, before: &Sample) -> String {
    let Table { head, body, foot } = table::table(now, before, &View::default(), usize::MAX);
    head.iter().chain(&body).chain([&foot]).map(|line| line.plain() + "\n").collect()
}

/// Lines of the screen that scroll. The last row stays empty: what is written there would move all others.
fn page(table: &Table, rows: usize) -> usize {
    rows.saturating_sub(table.head.len() + 2).max(1)
}

/// The lines of the screen.
fn frame(table: &Table, view: &View, page: usize) -> Vec<Line> {
    if view.help {
        return view::HELP.lines().map(|line| Line::of(line, Style::Plain)).collect();
    }
    let mut lines = table.head.clone();
    lines.extend(table.body.iter().skip(view.top).take(page).cloned());
    lines.push(table.foot.clone());
    lines
}

/// Redraws in place, without flicker.
fn draw(lines: &[Line], columns: usize, colours: bool) -> io::Result<()> {
    let mut frame = String::from("\x1b[H");
    for line in lines {
        // Clear the rest of the line.
        let _ = write!(frame, "{}\x1b[K\r\n", line.shown(columns, colours));
    }
    frame.push_str("\x1b[J");
    let mut out = io::stdout().lock();
    out.write_all(frame.as_bytes())?;
    out.flush()
}

/// Waits for keys; none when it is time for the next look. After a resize there are no keys, and the screen is drawn again.
fn keys_until(until: Instant) -> io::Result<Option<Vec<Key>>> {
    let left = until.saturating_duration_since(Instant::now());
    if left == Duration::ZERO {
        return Ok(None);
    }
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut fds, Some(&time)) {
        Ok(0) => return Ok(None),
        Err(rustix::io::Errno::INTR) => return Ok(Some(Vec::new())),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut bytes = [0; 64];
    let count = rustix::io::read(&stdin, &mut bytes)?;
    // The end of input quits, too.
    Ok(Some(if count == 0 { vec![Key::Quit] } else { view::keys(&bytes[..count]) }))
}
