//! `bulkhead xen`: runs programs in Xen domains.

mod run;
mod session;

use std::process::ExitCode;

use crate::exit::Failure;
use crate::xen_args::{XenAction, XenArgs};

pub(crate) fn run(args: XenArgs) -> Result<ExitCode, Failure> {
    match args.action {
        XenAction::Run(args) => run::run(*args),
    }
}
