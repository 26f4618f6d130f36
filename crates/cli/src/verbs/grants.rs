//! `bulkhead grants`: which zone may open memory and events of another zone.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use control::admin::{Answer, Request};
use control::grant::{Access, Grant};

use crate::admin;
use crate::args::{GrantsAction, GrantsArgs};
use crate::exit::Failure;
use crate::text::{counted, roughly};

pub(crate) fn run(args: GrantsArgs) -> Result<ExitCode, Failure> {
    let json = args.admin.json;
    let request = match args.action {
        GrantsAction::List => Request::Grants,
        GrantsAction::Allow { from, to, read_write, expires } => {
            let access = if read_write { Access::ReadWrite } else { Access::ReadOnly };
            let expires = expires.map(|seconds| now().saturating_add(seconds));
            Request::Allow { grant: Grant { from, to, access, expires, configured: false } }
        }
        GrantsAction::Revoke { from, to } => Request::Revoke { from, to },
    };
    let client = admin::connect(&args.admin.socket)?;
    match admin::ask(&client, &request)? {
        Answer::Grants { grants } if json => super::status::print_json(&grants),
        Answer::Grants { grants } => super::man::print(table(&grants).as_bytes()),
        Answer::Revoked { workers } if json => super::status::print_json(&serde_json::json!({ "ended": workers })),
        Answer::Revoked { workers } => {
            super::man::print(format!("revoked; ended {}\n", counted(workers as u64, "worker")).as_bytes())
        }
        other => {
            let about = match &request {
                Request::Allow { grant } => vec![&grant.from, &grant.to],
                Request::Revoke { from, to } => vec![from, to],
                _ => Vec::new(),
            };
            Err(admin::unexpected_about(other, &client, &about))
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn table(grants: &[Grant]) -> String {
    let mut text = format!("{:<20} {:<20} {:<10}  {}\n", "FROM", "TO", "ACCESS", "EXPIRES IN");
    for grant in grants {
        let left = grant.expires.map_or("-".to_owned(), |expires| roughly(expires.saturating_sub(now())));
        let (from, to) = (grant.from.as_str(), grant.to.as_str());
        let _ = writeln!(text, "{from:<20} {to:<20} {:<10}  {left}", grant.access.name());
    }
    text
}
