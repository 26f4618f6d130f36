//! Links between our pages lead somewhere.

use anyhow::{Result, bail};
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
        let dead = links(&text).filter(|link| !dir.join(link).exists());
        wrong.extend(dead.map(|link| format!("{page}: {link} does not exist")));
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

/// The paths that `[text](path#section)` leads to within the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = targets.map(|target| target.split('#').next().unwrap_or_default());
    paths.filter(|path| {
        !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:") && !path.contains(' ')
    })
}

#[cfg(test)]
mod tests {
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
        assert_eq!(super::links(text).collect::<Vec<_>>(), ["b.md", "j/k.svg"]);
    }
}
