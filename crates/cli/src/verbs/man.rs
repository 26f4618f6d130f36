//! `bulkhead man`: the man page, from the same definition as `--help`.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::exit::{Exit, Failure};

pub fn run() -> Result<ExitCode, Failure> {
    let text = page().map_err(|error| Failure::system(Exit::Failure, "cannot generate the man page", &error))?;
    print(&text)
}

fn page() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut command = crate::command();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    // One page for all: the synopsis, options and examples of each command follow.
    for verb in command.get_subcommands_mut().filter(|verb| !verb.is_hide_set()) {
        section(&mut text, "bulkhead", verb)?;
    }
    writeln!(text, ".SH ENVIRONMENT")?;
    for (name, meaning) in control::env_vars::ALL {
        writeln!(text, ".TP\n.B {name}\n{meaning}")?;
    }
    writeln!(text, ".SH EXIT STATUS")?;
    for (exit, meaning) in Exit::ALL {
        writeln!(text, ".TP\n.B {}\n{meaning}", *exit as u8)?;
    }
    Ok(text)
}

/// The section of a command, followed by those of its subcommands.
fn section(text: &mut Vec<u8>, before: &str, verb: &clap::Command) -> io::Result<()> {
    let name = format!("{before} {}", verb.get_name());
    writeln!(text, ".SH {}", name.to_uppercase())?;
    let man =
        clap_mangen::Man::new(verb.clone().bin_name(&name).disable_help_flag(true).disable_help_subcommand(true));
    man.render_description_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_options_section(text)?;
    man.render_extra_section(text)?;
    verb.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| section(text, &name, below))
}

/// Prints to stdout; a closed pipe is not an error.
pub fn print(text: &[u8]) -> Result<ExitCode, Failure> {
    match io::stdout().write_all(text).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::system(Exit::Failure, "cannot print", &error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_tells_of_every_verb_variable_and_status() {
        let text = String::from_utf8(super::page().unwrap()).unwrap();
        let verbs = crate::command();
        let verbs = verbs.get_subcommands().filter(|verb| !verb.is_hide_set());
        let headings = verbs.map(|verb| format!(".SH BULKHEAD {}", verb.get_name().to_uppercase()));
        let variables = control::env_vars::ALL.iter().map(|(name, _)| format!(".B {name}"));
        let statuses = crate::exit::Exit::ALL.iter().map(|(exit, _)| format!(".B {}", *exit as u8));
        for word in headings.chain(variables).chain(statuses) {
            assert!(text.contains(&word), "{word}");
        }
        for word in ["BULKHEAD ZONES SET", "saxpy"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(!text.contains("BULKHEAD WORKER"));
    }
}
