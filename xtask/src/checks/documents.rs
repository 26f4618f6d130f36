//! Links between our pages lead to pages and headings that exist.

use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::{paths, sh};

pub(crate) fn check() -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(paths::root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]);
    let mut wrong = Vec::new();
    for page in sh::output(&mut git)?.lines() {
        let Ok(text) = std::fs::read_to_string(paths::root().join(page)) else { continue };
        let dir = paths::root().join(page).parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let text = without_code(&text);
        for link in links(&text) {
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { paths::root().join(page) } else { dir.join(path) };
            if !target.exists() {
                wrong.push(format!("{page}: {path} does not exist"));
            } else if !section.is_empty() && path_is_page(&target) {
                let there = std::fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(section));
                wrong.extend((!there).then(|| format!("{page}: {link}: there is no such heading")));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// A page without its blocks of code, in which brackets mean something else.
fn without_code(text: &str) -> String {
    let mut code = false;
    let outside = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !fence && !code
    });
    outside.collect::<Vec<_>>().join("\n")
}

/// What `[text](path#section)` leads to within the repository; the path is empty within a page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| {
        !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") && !target.contains(' ')
    })
}

fn path_is_page(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "md")
}

/// The names by which GitHub knows a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for heading in without_code(page).lines().filter_map(heading) {
        let name: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        // Of headings that are the same, later ones get a number.
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

/// The text of a heading; of a link in it, what is shown.
fn heading(line: &str) -> Option<String> {
    let text = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    Some(parts.fold(first, |shown, part| shown + part.split_once(')').map_or("", |(_, rest)| rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_headings_as_github_names_them() {
        let page = "# A page\n\n## `[zones.NAME]`\n\n### A zone's [memory](x.md), and why\n\n```sh\n# no heading\n```\n## Twice\n## Twice\n";
        let expected = ["a-page", "a-zones-memory-and-why", "twice", "twice-1", "zonesname"];
        assert!(anchors(page).iter().eq(expected), "{:?}", anchors(page));
    }

    /// Figures on the front page are measured ones, with everything that is to be said of them on the page of figures.
    #[test]
    fn the_front_pages_figures_are_those_that_were_measured() {
        let read = |page: &str| std::fs::read_to_string(xtask::paths::root().join(page)).unwrap();
        let (front, measured) = (read("README.md"), read("docs/performance.md"));
        let (_, table) = front.split_once("| | native | Bulkhead | ratio |\n|---|---:|---:|---:|\n").unwrap();
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 3);
        // The front page spells units out: the name up to them, and the figures, must be the same.
        let parts = |row: &str| {
            let cells: Vec<String> = row.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect();
            let name: String = cells[0].chars().take_while(|c| *c != ',').collect();
            (name, cells.get(1..4).map(<[String]>::to_vec))
        };
        for row in rows {
            let (name, figures) = parts(row);
            let same = |line: &str| line.starts_with(&format!("| {name}")) && parts(line).1 == figures;
            assert!(measured.lines().any(same), "not in docs/performance.md: {row}");
        }
        let shares = front.split_once("equal shares got ").and_then(|(_, rest)| rest.split_once("% of an H200"));
        let shares = shares.unwrap().0.replace("% and ", " : ");
        assert!(measured.contains(&format!("| 50 : 50 | {shares} |")), "{shares}");
    }

    #[test]
    fn code_has_no_links() {
        let text = "[a](b.md)\n```sh\nsaxpy[1, 1](x)\n```\n  ```\n[c](d.md)\n  ```\n[e](f.md)\n";
        let text = super::without_code(text);
        assert_eq!(super::links(&text).collect::<Vec<_>>(), ["b.md", "f.md"]);
    }

    #[test]
    fn only_paths_within_the_repository_count() {
        let text = "[a](b.md) [c](https://d.e/f) [g](#h) ![i](j/k.svg#l)";
        assert_eq!(super::links(text).collect::<Vec<_>>(), ["b.md", "#h", "j/k.svg#l"]);
    }
}
