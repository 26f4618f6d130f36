//! Pages that a user pastes from: their commands, in order, and what they must print.
//!
//! A block that begins with ```` ```sh ```` is run. A comment of the page's source says what a test cannot take from the page:
//!
//! ```text
//! <!-- the test …: COMMAND -->   run this in place of the next block
//! <!-- prints: TEXT -->          the last block must have printed this
//! ```

use anyhow::{Context, Result, bail, ensure};

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Run these lines in a shell. `instead`: they stand for those of the page, which are these.
    Run { commands: String, instead: Option<String> },
    /// What ran last must have printed this.
    Printed(String),
}

/// The part of a page below this heading (`## Install it`), up to the next one of its level.
pub fn section<'a>(page: &'a str, heading: &str) -> Result<&'a str> {
    let (_, part) = page.split_once(&format!("{heading}\n")).with_context(|| format!("there is no {heading:?}"))?;
    let level = heading.split(' ').next().unwrap_or_default();
    Ok(part.split_once(&format!("\n{level} ")).map_or(part, |(part, _)| part))
}

/// Takes a page, or a part of it, apart.
pub fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut replacement: Option<String> = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            if let Some(text) = comment.strip_prefix("prints: ") {
                steps.push(Step::Printed(text.to_owned()));
            } else if comment.starts_with("the test ") {
                let (_, command) = comment.split_once(": ").context("a comment for the test has no command")?;
                replacement = Some(command.to_owned());
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n"));
            let block = block.collect::<String>();
            match (language, replacement.take()) {
                ("sh", Some(command)) => steps.push(Step::Run { commands: command, instead: Some(block) }),
                ("sh", None) => steps.push(Step::Run { commands: block, instead: None }),
                (_, Some(command)) => bail!("nothing is replaced by {command:?}"),
                _ => {}
            }
        }
    }
    ensure!(replacement.is_none(), "a comment replaces no block");
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let page = "# Title\n\n## One\na\n### Deeper\nb\n\n## Two\nc\n";
        assert_eq!(section(page, "## One").unwrap(), "a\n### Deeper\nb\n");
        assert_eq!(section(page, "## Two").unwrap(), "c\n");
        assert!(section(page, "## Three").is_err());
    }

    #[test]
    fn a_page_is_what_is_run_and_what_is_printed() {
        let page = "# Title\n\n```sh\na\nb\n```\ntext\n<!-- prints: x -->\n```\nx\n```\n<!-- the test has its own: c -->\n```sh\nd\n```\n";
        let run = |commands: &str, instead: Option<&str>| Step::Run {
            commands: commands.to_owned(),
            instead: instead.map(str::to_owned),
        };
        let expected = [run("a\nb\n", None), Step::Printed("x".to_owned()), run("c", Some("d\n"))];
        assert_eq!(steps(page).unwrap(), expected);
        assert!(steps("<!-- the test waits: c -->\n").is_err());
        assert!(steps("<!-- the test waits: c -->\n```toml\n```\n").is_err());
    }
}
