//! `bulkhead driver-calls`: a table of what workers asked of NVIDIA's kernel driver, from their records.

use std::io::Write;
use std::process::ExitCode;

use backend::calls::{Line, table};
use sandbox::driver::Branch;

use crate::args::DriverCallsArgs;
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &DriverCallsArgs) -> Result<ExitCode, Failure> {
    let branch = Branch::of(&args.driver).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let mut lines = Vec::new();
    for path in &args.files {
        let unreadable =
            |error: std::io::Error| Failure::system(Exit::Usage, &format!("cannot read {}", path.display()), &error);
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        for (number, text) in text.lines().enumerate() {
            let place = |error| Failure::new(Exit::Usage, format!("{}:{}: {error}", path.display(), number + 1));
            lines.push(text.parse::<Line>().map_err(place)?);
        }
    }
    // The reader may have gone.
    let _ = std::io::stdout().write_all(table(&lines, branch).as_bytes());
    Ok(ExitCode::SUCCESS)
}
