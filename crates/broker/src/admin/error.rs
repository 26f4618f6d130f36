//! Why an operator's request fails, and the answer that says so.

use std::io;

use crate::sharing::GrantError;
use crate::zones::BudgetError;
use control::ZoneName;
use control::admin::Answer;
use control::zone::BadSettings;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("this socket is read-only; use admin.sock")]
    ReadOnly,
    #[error("unknown or malformed request: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("no such zone")]
    UnknownZone { known: Vec<ZoneName> },
    #[error("zone {0}: already exists")]
    ZoneExists(ZoneName),
    #[error("zone {zone} has {}; use force to end their workers", plural(*clients, "client"))]
    ZoneInUse { zone: ZoneName, clients: usize },
    #[error("zone {0} was removed meanwhile")]
    ZoneGone(ZoneName),
    #[error("zone {zone}: {source}")]
    Settings { zone: ZoneName, source: BadSettings },
    #[error("zone {zone}: {source}")]
    Zone { zone: ZoneName, source: io::Error },
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error(transparent)]
    Budget(#[from] BudgetError),
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
            (RequestError::ZoneExists(zone.clone()), "zone a: already exists", false),
            (
                RequestError::ZoneInUse { zone: zone.clone(), clients: 1 },
                "zone a has 1 client; use force to end their workers",
                false,
            ),
            (RequestError::Settings { zone: zone.clone(), source: BadSettings::Cap }, "zone a: a cap is", false),
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
