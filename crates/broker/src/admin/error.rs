//! Why an operator's request fails, and the answer that says so.

use std::io;

use crate::sharing::GrantError;
use crate::zones::BudgetError;
use control::ZoneName;
use control::admin::Answer;
use control::size::Size;
use control::zone::BadSettings;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("this socket is read-only; use admin.sock")]
    ReadOnly,
    #[error("unknown or malformed request: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("no such zone")]
    UnknownZone { known: Vec<ZoneName> },
    #[error("zone {:?} already exists", .0.as_str())]
    ZoneExists(ZoneName),
    #[error("zone {zone} exists with {} and share {share}; omit the limits, or change them first", size(*memory))]
    OtherLimits { zone: ZoneName, memory: Option<u64>, share: u32 },
    #[error("zone {zone} has {}; use --force to end their workers", plural(*clients, "client"))]
    ZoneInUse { zone: ZoneName, clients: usize },
    #[error("zone {0} was removed meanwhile")]
    ZoneGone(ZoneName),
    #[error("zone {zone}: {source}")]
    Settings { zone: ZoneName, source: BadSettings },
    #[error("zone {zone}: {source}")]
    Misfit { zone: ZoneName, source: Misfit },
    #[error("zone {zone}: {source}")]
    Zone { zone: ZoneName, source: io::Error },
    #[error("preemption is not in force: {0}")]
    NoPreemption(String),
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

/// Settings that this node cannot satisfy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("there is no GPU {gpu}; this node has {}", list(there))]
    NoSuchGpu { gpu: u32, there: Vec<u32> },
    #[error("{} is more memory than GPU {gpu} has ({})", Size(*wanted), Size(*has))]
    TooMuch { gpu: u32, wanted: u64, has: u64 },
}

fn size(memory: Option<u64>) -> String {
    memory.map_or("unlimited memory".to_owned(), |memory| Size(memory).to_string())
}

fn list(gpus: &[u32]) -> String {
    gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

impl RequestError {
    /// Whether the disk is full, which an operator can do something about.
    fn is_out_of_space(&self) -> bool {
        let (Self::Zone { source, .. }
        | Self::Grant(GrantError::Write(source))
        | Self::Budget(BudgetError::Write(source))) = self
        else {
            return false;
        };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

impl From<RequestError> for Answer {
    fn from(error: RequestError) -> Self {
        let no_space = error.is_out_of_space();
        match error {
            RequestError::UnknownZone { known } => Self::UnknownZone { zones: known },
            other => Self::Failed { reason: other.to_string(), no_space },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_told_why_and_whether_space_is_missing() {
        let zone: ZoneName = "a".parse().unwrap();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let cases = [
            (RequestError::ZoneExists(zone.clone()), "zone \"a\" already exists", false),
            (
                RequestError::OtherLimits { zone: zone.clone(), memory: Some(1 << 30), share: 50 },
                "zone a exists with 1 GiB and share 50;",
                false,
            ),
            (
                RequestError::ZoneInUse { zone: zone.clone(), clients: 1 },
                "zone a has 1 client; use --force to end their workers",
                false,
            ),
            (RequestError::Settings { zone: zone.clone(), source: BadSettings::Cap }, "zone a: a cap is", false),
            (
                RequestError::Misfit { zone: zone.clone(), source: Misfit::NoSuchGpu { gpu: 5, there: vec![0, 3] } },
                "zone a: there is no GPU 5; this node has 0, 3",
                false,
            ),
            (
                RequestError::Misfit {
                    zone: zone.clone(),
                    source: Misfit::TooMuch { gpu: 0, wanted: 2 << 40, has: 1 << 30 },
                },
                "zone a: 2 TiB is more memory than GPU 0 has (1 GiB)",
                false,
            ),
            (RequestError::Zone { zone: zone.clone(), source: full() }, "zone a: ", true),
            (GrantError::Write(full()).into(), "cannot save the grant: ", true),
            (BudgetError::Write(full()).into(), "cannot save the budget: ", true),
            (GrantError::Expired.into(), "expiry is in the past", false),
        ];
        for (error, text, out_of_space) in cases {
            let Answer::Failed { reason, no_space } = Answer::from(error) else { panic!("{text}") };
            assert!(reason.starts_with(text) && no_space == out_of_space, "{reason}");
        }
        let unknown = RequestError::UnknownZone { known: vec![zone.clone()] };
        assert_eq!(Answer::from(unknown), Answer::UnknownZone { zones: vec![zone] });
    }
}
