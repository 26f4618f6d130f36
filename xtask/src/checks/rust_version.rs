//! The oldest Rust that we promise (`rust-version` in Cargo.toml) is enough for everything that we build on.
//!
//! Of our own code clippy's `incompatible_msrv` knows which functions of the standard library came later.

use super::metadata::Package;
use anyhow::{Context, Result, bail};

pub(crate) fn check(packages: &[Package]) -> Result<()> {
    let ours = packages.iter().find(|package| package.room.is_some()).and_then(|own| own.rust_version.as_deref());
    let ours = ours.context("our crates name no rust-version")?;
    let wrong = too_new(ours, packages);
    if !wrong.is_empty() {
        bail!("we promise Rust {ours}, and need more:\n{}", wrong.join("\n"));
    }
    println!("Rust {ours} is enough for {} crates", packages.len());
    Ok(())
}

fn too_new(ours: &str, packages: &[Package]) -> Vec<String> {
    let later = |package: &&Package| package.rust_version.as_deref().is_some_and(|its| parse(its) > parse(ours));
    let line = |package: &Package| {
        format!("{} {}: Rust {}", package.name, package.version, package.rust_version.as_deref().unwrap_or_default())
    };
    packages.iter().filter(later).map(line).collect()
}

/// Numbers in order of their weight; `1.88` is the same as `1.88.0`.
fn parse(version: &str) -> [u32; 3] {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, rust_version: Option<&str>) -> Package {
        let rust_version = rust_version.map(String::from);
        Package { name: name.into(), version: "1.0.0".into(), rust_version, room: None, dependencies: Vec::new() }
    }

    #[test]
    fn only_what_needs_a_later_one_is_named() {
        let packages =
            [package("a", Some("1.88")), package("b", Some("1.88.1")), package("c", Some("1.9")), package("d", None)];
        assert_eq!(too_new("1.88", &packages), ["b 1.0.0: Rust 1.88.1"]);
        assert_eq!(too_new("2.0", &packages), [""; 0]);
    }
}
