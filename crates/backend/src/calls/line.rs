//! One call, as a line of fields that tabs separate.

use std::fmt;
use std::str::FromStr;

/// What a worker had of its client when it made a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Nothing: it has seen no byte of a tenant.
    #[default]
    Spare = 0,
    /// A connection, and perhaps the first request, which starts the driver.
    Attached = 1,
    /// Everything.
    Started = 2,
}

impl Phase {
    /// Each with its name.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Spare, "spare"), (Self::Attached, "attached"), (Self::Started, "started")];

    pub(super) fn of(number: u8) -> Self {
        Self::ALL.into_iter().map(|(phase, _)| phase).find(|phase| *phase as u8 == number).unwrap_or(Self::Started)
    }

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub phase: Phase,
    /// The device node, by its name.
    pub device: String,
    /// What was asked.
    pub request: u32,
    /// Class, control or function, where the request has one.
    pub detail: Option<u32>,
    /// Bytes of the parameters behind the arguments.
    pub parameters: u32,
    /// What the kernel answered: 0 or an error number.
    pub errno: i32,
    /// What the resource manager answered.
    pub status: Option<u32>,
    /// Of the parameters, or of the arguments where there are none, the first bytes.
    pub head: Vec<u8>,
}

/// Not a line of a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a recorded call: {0:?}")]
pub struct Malformed(String);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, device, request, parameters, errno, .. } = self;
        write!(f, "{}\t{device}\t{request:08x}\t", phase.name())?;
        match self.detail {
            Some(detail) => write!(f, "{detail:08x}")?,
            None => f.write_str("-")?,
        }
        write!(f, "\t{parameters}\t{errno}\t")?;
        match self.status {
            Some(status) => write!(f, "{status:x}")?,
            None => f.write_str("-")?,
        }
        write!(f, "\t{}", hex::encode(&self.head))
    }
}

impl FromStr for Line {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed(text.chars().take(80).collect());
        let fields: Vec<&str> = text.split('\t').collect();
        let [phase, device, request, detail, parameters, errno, status, head] = fields[..] else {
            return Err(malformed());
        };
        let hex = |text: &str| u32::from_str_radix(text, 16).map_err(|_| malformed());
        let optional = |text: &str| if text == "-" { Ok(None) } else { hex(text).map(Some) };
        Ok(Self {
            phase: Phase::ALL.iter().find(|(_, name)| *name == phase).ok_or_else(malformed)?.0,
            device: device.to_owned(),
            request: hex(request)?,
            detail: optional(detail)?,
            parameters: parameters.parse().map_err(|_| malformed())?,
            errno: errno.parse().map_err(|_| malformed())?,
            status: optional(status)?,
            head: hex::decode(head).map_err(|_| malformed())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let plain = Line { device: "nvidia-uvm".into(), request: 0x3000_0001, ..Line::default() };
        let full = Line {
            phase: Phase::Started,
            detail: Some(0x2080_110b),
            parameters: 536,
            errno: 1,
            status: Some(0x23),
            head: vec![0, 0xff],
            ..plain.clone()
        };
        for line in [plain, full] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for text in ["", "spare\tx\t1\t-\t0\t0\t-", "never\tx\t1\t-\t0\t0\t-\t", "spare\tx\t1\t-\t0\t0\t-\tabc"] {
            assert!(text.parse::<Line>().is_err(), "{text}");
        }
    }
}
