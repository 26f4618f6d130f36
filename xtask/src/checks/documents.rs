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
        let dead = links(&text).filter(|link| !dir.join(link).exists());
        wrong.extend(dead.map(|link| format!("{page}: {link} does not exist")));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
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
    #[test]
    fn only_paths_within_the_repository_count() {
        let text = "[a](b.md) [c](https://d.e/f) [g](#h) ![i](j/k.svg#l)";
        assert_eq!(super::links(text).collect::<Vec<_>>(), ["b.md", "j/k.svg"]);
    }
}
