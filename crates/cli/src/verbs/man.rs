//! `bulkhead man`: the man page, from the same definition as `--help`.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::ManArgs;
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot generate the man page", &error);
    if let Some(dir) = &args.dir {
        for (name, text) in pages().map_err(failure)? {
            let path = dir.join(format!("{name}.1"));
            std::fs::write(&path, text).map_err(|error| {
                Failure::system(Exit::Failure, &format!("cannot write {}", path.display()), &error)
            })?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.verb.is_empty() {
        return print(&page().map_err(failure)?);
    }
    let name = format!("bulkhead-{}", args.verb.join("-"));
    match pages().map_err(failure)?.into_iter().find(|(known, _)| *known == name) {
        Some((_, text)) => print(&text),
        None => {
            let line = format!("there is no command \"bulkhead {}\"; see `bulkhead help`", args.verb.join(" "));
            Err(Failure::new(Exit::Usage, line))
        }
    }
}

/// The page of every command: `bulkhead` with all of them, and one for each verb and each of its actions.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = vec![("bulkhead".to_owned(), page()?)];
    // Options such as --socket are given to a verb's actions when the definition is built.
    let mut command = crate::command();
    command.build();
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        collect("bulkhead", "bulkhead", verb, &mut pages)?;
    }
    Ok(pages)
}

/// `page` is what its page is called, `typed` what is typed.
fn collect(page: &str, typed: &str, verb: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let (page, typed) = (format!("{page}-{}", verb.get_name()), format!("{typed} {}", verb.get_name()));
    let shown = verb.clone().display_name(&page).bin_name(&typed).disable_help_subcommand(true);
    let mut text = Vec::new();
    // Without the version, which is an option of `bulkhead` alone.
    let man = clap_mangen::Man::new(shown).title(&page).source(concat!("bulkhead ", env!("CARGO_PKG_VERSION")));
    man.render(&mut text)?;
    statuses(&mut text)?;
    writeln!(text, ".SH SEE ALSO\n.BR bulkhead (1)")?;
    pages.push((page.clone(), with_notes(text)));
    let below = verb.get_subcommands().filter(|below| !below.is_hide_set());
    below.into_iter().try_for_each(|below| collect(&page, &typed, below, pages))
}

fn page() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut command = crate::command();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    // The synopsis, options and examples of each command follow.
    for verb in command.get_subcommands_mut().filter(|verb| !verb.is_hide_set()) {
        section(&mut text, "bulkhead", verb)?;
    }
    writeln!(text, ".SH ENVIRONMENT")?;
    for (name, meaning) in control::env_vars::ALL {
        writeln!(text, ".TP\n.B {name}\n{meaning}")?;
    }
    statuses(&mut text)?;
    Ok(with_notes(text))
}

/// Manuals have no section EXTRA, which is what the generator calls what follows the options.
fn with_notes(text: Vec<u8>) -> Vec<u8> {
    String::from_utf8_lossy(&text).replace("\n.SH EXTRA\n", "\n.SH NOTES\n").into_bytes()
}

fn statuses(text: &mut Vec<u8>) -> io::Result<()> {
    writeln!(text, ".SH EXIT STATUS")?;
    Exit::ALL.iter().try_for_each(|(exit, meaning)| writeln!(text, ".TP\n.B {}\n{meaning}", *exit as u8))
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
    // It writes the heading where there is nothing below it, too.
    if verb.get_after_help().is_some() {
        man.render_extra_section(text)?;
    }
    verb.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| section(text, &name, below))
}

/// Prints to stdout; a closed pipe is not an error.
pub(crate) fn print(text: &[u8]) -> Result<ExitCode, Failure> {
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
        assert!(!text.contains(".SH NOTES\n.SH "), "no section is empty");
    }

    #[test]
    fn every_command_has_a_page_of_its_own() {
        let pages = super::pages().unwrap();
        let run = pages.iter().find(|(name, _)| name == "bulkhead-run").unwrap();
        assert!(String::from_utf8_lossy(&run.1).contains("\n.SH NOTES\nExamples:"));
        for name in ["bulkhead", "bulkhead-run", "bulkhead-zones", "bulkhead-zones-set", "bulkhead-ipc-wait"] {
            let (_, text) = pages.iter().find(|(known, _)| known == name).unwrap();
            let text = String::from_utf8_lossy(text);
            assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH EXIT STATUS"), "{name}");
            assert!(!text.contains("EXTRA"), "{name}");
        }
        let text = |name: &str| {
            let (_, text) = pages.iter().find(|(known, _)| known == name).unwrap();
            String::from_utf8(text.clone()).unwrap().replace('\\', "")
        };
        for option in ["--socket", "--json"] {
            assert!(text("bulkhead-zones-set").contains(option), "an action has the options of its verb");
        }
        assert!(!text("bulkhead-zones-set").contains("--version"), "it is no option of a verb");
        assert!(text("bulkhead-run").contains(concat!("\"bulkhead ", env!("CARGO_PKG_VERSION"), "\"")));
        assert!(pages.iter().all(|(name, _)| name != "bulkhead-worker"));
    }
}
