//! Device `printf` and `assert`.
//!
//! The format and its arguments lie in memory of the kernel: each byte is checked and read once. A signal may end the
//! fiber at any read, so what is collected lives in the context's scratch buffer, not on the fiber's stack.

use std::io::Write;

use super::context::{Context, RawFault, fail};
use super::fault::FaultKind;
use super::helpers::aperture;
use crate::window;

/// Longest text that is read from a kernel: a format, a `%s`, a file name.
const MAX_TEXT: u64 = 4096;
/// Longest message that is written.
const MAX_MESSAGE: usize = 16 << 10;
/// Widest field and highest precision.
const MAX_WIDTH: usize = 1024;

/// Reads a word of 1, 4 or 8 bytes from kernel memory; a bad address ends the fiber.
///
/// # Safety
/// Must run on the fiber of `context`, with nothing alive that needs dropping.
unsafe fn read(context: *mut Context, address: u64, size: u64) -> u64 {
    // SAFETY: as promised; the pointer is in the window, where a bad page raises a signal that is ours, or in the
    // block's own memory, where the bounds were checked.
    unsafe {
        let inside = (window::BASE..window::BASE + window::SIZE).contains(&address) && address.is_multiple_of(size);
        let pointer = if inside { Some(address as *mut u8) } else { aperture(&*context, address, size) };
        match pointer {
            Some(pointer) => match size {
                1 => u64::from(pointer.read_volatile()),
                4 => u64::from(pointer.cast::<u32>().read_unaligned()),
                _ => pointer.cast::<u64>().read_unaligned(),
            },
            None => {
                let message = String::from("argument of printf or assert");
                fail(context, RawFault { kind: FaultKind::IllegalAddress, address: Some(address), message })
            }
        }
    }
}

/// Appends a text of the kernel to the scratch buffer.
///
/// # Safety
/// As for `read`.
unsafe fn text(context: *mut Context, address: u64, limit: u64) {
    for offset in 0..limit.min(MAX_TEXT) {
        // SAFETY: as promised by the caller.
        unsafe {
            let byte = read(context, address.wrapping_add(offset), 1) as u8;
            if byte == 0 {
                return;
            }
            (*context).scratch.push(byte);
        }
    }
}

/// Hands over the scratch buffer from `start` on. The receiver may need more stack than a fiber has.
///
/// # Safety
/// As for `read`.
unsafe fn write(context: *mut Context, start: usize) {
    // SAFETY: the grid and the yielder outlive the fiber's run.
    unsafe {
        let (grid, scratch) = (&*(*context).grid, &(*context).scratch);
        (*(*context).yielder).on_parent_stack(|| grid.launch.output.write(&scratch[start..]));
    }
}

/// A `%` directive.
#[derive(Default)]
struct Directive {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
    wide: bool,
}

pub(crate) extern "C" fn printf(context: *mut Context, format: u64, arguments: u64) -> i32 {
    // SAFETY: called by compiled code on the running fiber. The scratch buffer belongs to the context, and nothing on
    // this stack needs dropping while kernel memory is read.
    unsafe {
        (*context).scratch.clear();
        text(context, format, MAX_TEXT);
        let format_end = (*context).scratch.len();
        let mut at = 0;
        let mut cursor = arguments;
        let mut count = 0;
        while at < format_end && (*context).scratch.len() < MAX_MESSAGE {
            let byte = (&(*context).scratch)[at];
            at += 1;
            if byte != b'%' {
                (*context).scratch.push(byte);
                continue;
            }
            let mut next = || {
                let byte = if at < format_end { (&(*context).scratch)[at] } else { 0 };
                at += 1;
                byte
            };
            let mut directive = Directive::default();
            let mut byte = next();
            loop {
                match byte {
                    b'-' => directive.left = true,
                    b'+' => directive.plus = true,
                    b' ' => directive.space = true,
                    b'#' => directive.alternate = true,
                    b'0' => directive.zero = true,
                    _ => break,
                }
                byte = next();
            }
            let mut argument = |size: u64| {
                cursor = cursor.next_multiple_of(size);
                let value = read(context, cursor, size);
                cursor = cursor.wrapping_add(size);
                value
            };
            if byte == b'*' {
                let width = argument(4) as i32;
                directive.left |= width < 0;
                directive.width = Some((width.unsigned_abs() as usize).min(MAX_WIDTH));
                byte = next();
            }
            while byte.is_ascii_digit() {
                let width = directive.width.unwrap_or(0) * 10 + usize::from(byte - b'0');
                directive.width = Some(width.min(MAX_WIDTH));
                byte = next();
            }
            if byte == b'.' {
                directive.precision = Some(0);
                byte = next();
                if byte == b'*' {
                    let precision = argument(4) as i32;
                    directive.precision = usize::try_from(precision).ok().map(|p| p.min(MAX_WIDTH));
                    byte = next();
                }
                while byte.is_ascii_digit() {
                    let precision = directive.precision.unwrap_or(0) * 10 + usize::from(byte - b'0');
                    directive.precision = Some(precision.min(MAX_WIDTH));
                    byte = next();
                }
            }
            while matches!(byte, b'h' | b'l' | b'L' | b'j' | b'z' | b't') {
                directive.wide |= byte != b'h';
                byte = next();
            }
            count += 1;
            match byte {
                b'd' | b'i' | b'u' | b'x' | b'X' | b'o' | b'c' => {
                    let value = argument(if directive.wide && byte != b'c' { 8 } else { 4 });
                    integer(&mut (*context).scratch, &directive, byte, value);
                }
                b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                    let value = f64::from_bits(argument(8));
                    float(&mut (*context).scratch, &directive, byte, value);
                }
                b'p' => {
                    let value = argument(8);
                    pad(&mut (*context).scratch, &directive, format_args!("{value:#x}"));
                }
                b's' => {
                    let address = argument(8);
                    let start = (*context).scratch.len();
                    text(context, address, directive.precision.map_or(MAX_TEXT, |p| p as u64));
                    let end = (*context).scratch.len();
                    pad_last(&mut (*context).scratch, &directive, start, end, b' ');
                }
                b'%' => {
                    count -= 1;
                    (*context).scratch.push(b'%');
                }
                // As the hardware does: what is not understood is written as it is.
                other => {
                    (*context).scratch.push(b'%');
                    if other != 0 {
                        (*context).scratch.push(other);
                    }
                }
            }
        }
        write(context, format_end);
        count
    }
}

/// Pads what was written since `start` to the width.
fn pad_last(out: &mut Vec<u8>, directive: &Directive, start: usize, end: usize, fill: u8) {
    let missing = directive.width.unwrap_or(0).saturating_sub(end - start);
    if directive.left {
        out.extend(std::iter::repeat_n(b' ', missing));
        return;
    }
    // Zeros go after the sign and the 0x.
    let mut place = start;
    if fill == b'0' {
        if matches!(out.get(place), Some(b'-' | b'+' | b' ')) {
            place += 1;
        }
        if out[place..].starts_with(b"0x") || out[place..].starts_with(b"0X") {
            place += 2;
        }
    }
    out.splice(place..place, std::iter::repeat_n(fill, missing));
}

fn pad(out: &mut Vec<u8>, directive: &Directive, text: std::fmt::Arguments) {
    let start = out.len();
    let _ = out.write_fmt(text);
    let end = out.len();
    pad_last(out, directive, start, end, b' ');
}

fn integer(out: &mut Vec<u8>, directive: &Directive, kind: u8, value: u64) {
    let start = out.len();
    if kind == b'c' {
        out.push(value as u8);
        pad_last(out, directive, start, start + 1, b' ');
        return;
    }
    let value = if directive.wide { value } else { u64::from(value as u32) };
    let signed = if directive.wide { value as i64 } else { i64::from(value as u32 as i32) };
    let decimal = matches!(kind, b'd' | b'i');
    if decimal {
        sign(out, directive, signed < 0);
    }
    let prefix: &[u8] = match kind {
        b'x' if directive.alternate && value != 0 => b"0x",
        b'X' if directive.alternate && value != 0 => b"0X",
        b'o' if directive.alternate => b"0",
        _ => b"",
    };
    out.extend_from_slice(prefix);
    let digits = out.len();
    let _ = match kind {
        b'x' => write!(out, "{value:x}"),
        b'X' => write!(out, "{value:X}"),
        b'o' => write!(out, "{value:o}"),
        b'u' => write!(out, "{value}"),
        _ => write!(out, "{}", signed.unsigned_abs()),
    };
    let missing = directive.precision.unwrap_or(1).saturating_sub(out.len() - digits);
    out.splice(digits..digits, std::iter::repeat_n(b'0', missing));
    let end = out.len();
    let fill = if directive.zero && directive.precision.is_none() { b'0' } else { b' ' };
    pad_last(out, directive, start, end, fill);
}

fn sign(out: &mut Vec<u8>, directive: &Directive, negative: bool) {
    if negative {
        out.push(b'-');
    } else if directive.plus {
        out.push(b'+');
    } else if directive.space {
        out.push(b' ');
    }
}

fn float(out: &mut Vec<u8>, directive: &Directive, kind: u8, value: f64) {
    let start = out.len();
    sign(out, directive, value.is_sign_negative());
    let magnitude = value.abs();
    let body = out.len();
    if magnitude.is_finite() {
        let precision = directive.precision.unwrap_or(6);
        match kind.to_ascii_lowercase() {
            b'f' => {
                let _ = write!(out, "{magnitude:.precision$}");
            }
            b'e' => exponent(out, magnitude, precision),
            b'a' => hexadecimal(out, magnitude),
            _ => general(out, magnitude, precision.max(1), directive.alternate),
        }
    } else {
        out.extend_from_slice(if magnitude.is_nan() { b"nan" } else { b"inf" });
    }
    if kind.is_ascii_uppercase() {
        out[body..].make_ascii_uppercase();
    }
    let end = out.len();
    let fill = if directive.zero && magnitude.is_finite() { b'0' } else { b' ' };
    pad_last(out, directive, start, end, fill);
}

/// C writes at least two digits of the exponent, and always its sign.
fn exponent(out: &mut Vec<u8>, magnitude: f64, precision: usize) {
    let start = out.len();
    let _ = write!(out, "{magnitude:.precision$e}");
    let Some(position) = out[start..].iter().position(|b| *b == b'e') else { return };
    let place = start + position + 1;
    let negative = out.get(place) == Some(&b'-');
    if !negative {
        out.insert(place, b'+');
    }
    if out.len() - place < 3 {
        out.insert(place + 1, b'0');
    }
}

fn general(out: &mut Vec<u8>, magnitude: f64, precision: usize, keep_zeros: bool) {
    // The exponent that `%e` would show decides.
    let text = format!("{magnitude:.*e}", precision - 1);
    let power: i32 = text.rsplit('e').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let start = out.len();
    let scientific = power < -4 || power >= precision as i32;
    if scientific {
        exponent(out, magnitude, precision - 1);
    } else {
        let digits = (precision as i32 - 1 - power).max(0) as usize;
        let _ = write!(out, "{magnitude:.digits$}");
    }
    if keep_zeros {
        return;
    }
    let end = out[start..].iter().position(|b| *b == b'e').map_or(out.len(), |position| start + position);
    if out[start..end].contains(&b'.') {
        let kept = out[start..end].iter().rposition(|b| *b != b'0').map_or(start, |position| start + position);
        let kept = if out[kept] == b'.' { kept } else { kept + 1 };
        out.drain(kept..end);
    }
}

fn hexadecimal(out: &mut Vec<u8>, magnitude: f64) {
    let bits = magnitude.to_bits();
    let (power, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let (lead, power) = match (power, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, power - 1023),
    };
    let _ = write!(out, "0x{lead}");
    if fraction != 0 {
        let digits = format!("{fraction:013x}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
    let _ = write!(out, "p{power:+}");
}

pub(crate) extern "C" fn assert_fail(context: *mut Context, message: u64, file: u64, line: u32, function: u64) {
    // SAFETY: as in `printf`.
    unsafe {
        (*context).scratch.clear();
        text(context, file, MAX_TEXT);
        let _ = write!((*context).scratch, ":{line}: ");
        text(context, function, MAX_TEXT);
        let [bx, by, bz] = (*context).block_index;
        let [tx, ty, tz] = (*context).thread;
        let _ = write!((*context).scratch, ": block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `");
        text(context, message, MAX_TEXT);
        let _ = writeln!((*context).scratch, "` failed.");
        write(context, 0);
        let message = String::from_utf8_lossy(&(*context).scratch).trim_end().to_owned();
        fail(context, RawFault { kind: FaultKind::Assert, address: None, message })
    }
}
