use super::*;
use sha2::{Digest, Sha256};

/// A tar with these files; a name with a slash at its end is a directory, `a -> b` a link, `a == b` another name of b.
fn tar(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = ::tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(8);
        let (name, kind, target) = if let Some((name, target)) = name.split_once(" -> ") {
            (name, ::tar::EntryType::Symlink, Some(target))
        } else if let Some((name, target)) = name.split_once(" == ") {
            (name, ::tar::EntryType::Link, Some(target))
        } else if name.ends_with('/') {
            (*name, ::tar::EntryType::Directory, None)
        } else {
            (*name, ::tar::EntryType::Regular, None)
        };
        header.set_entry_type(kind);
        header.set_size(if kind == ::tar::EntryType::Regular { content.len() as u64 } else { 0 });
        if let Some(target) = target {
            header.set_link_name(target).unwrap();
        }
        // As bytes: the builder would refuse the names that matter here.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn text(tree: &Tree, path: &str) -> Option<String> {
    tree.read(path).map(|content| String::from_utf8_lossy(content).into_owned())
}

fn laid(layers: &[&[(&str, &str)]]) -> Tree {
    let mut tree = Tree::default();
    for layer in layers {
        layers::apply(&tar(layer)[..], &mut tree, &mut 1000).unwrap();
    }
    tree
}

#[test]
fn layers_replace_and_remove_what_is_below() {
    let tree = laid(&[
        &[("a", "1"), ("d/x", "x"), ("d/y", "y"), ("e/z", "z"), ("b == a", "")],
        &[("a", "2"), ("d/.wh.x", ""), ("e/new", "n"), ("e/.wh..wh..opq", "")],
    ]);
    assert_eq!(text(&tree, "a").as_deref(), Some("2"));
    assert_eq!(text(&tree, "b").as_deref(), Some("1"), "another name of what was there");
    assert_eq!(text(&tree, "d/x"), None);
    assert_eq!(text(&tree, "d/y").as_deref(), Some("y"));
    assert_eq!(text(&tree, "e/z"), None);
    assert_eq!(text(&tree, "e/new").as_deref(), Some("n"), "what the same layer brings stays");
    assert_eq!((tree.get("a").unwrap().uid, tree.get("a").unwrap().gid), (7, 8));
}

#[test]
fn no_path_leads_out_of_the_tenants_dir() {
    let tree = laid(&[
        &[("../out", "1"), ("a/../../out", "2"), ("/abs", "3"), ("up -> ../../..", ""), ("lib -> /usr/lib", "")],
        &[("up/init", "4"), ("lib/x", "5"), ("up/.wh.abs", ""), ("lie == ../../etc/shadow", "")],
    ]);
    let names: Vec<&str> = tree.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["init", "lib", "up", "usr", "usr/lib", "usr/lib/x"]);
    let placed = placed(&tree, &Manner::default());
    assert!(placed.iter().all(|(name, _)| name.starts_with("tenant")));
}

#[test]
fn what_is_too_large_is_refused() {
    let layer = tar(&[("a", "0123456789")]);
    assert!(matches!(layers::apply(&layer[..], &mut Tree::default(), &mut 9), Err(TenantError::TooLarge)));
    assert!(layers::apply(&layer[..], &mut Tree::default(), &mut 10).is_ok());
}

/// An image as a directory.
struct ImageDir(testkit::Directory);

impl ImageDir {
    fn blob(&self, bytes: &[u8]) -> String {
        let sum = hex::encode(Sha256::digest(bytes));
        self.0.write(format!("blobs/sha256/{sum}"), bytes);
        format!("sha256:{sum}")
    }
}

fn image() -> ImageDir {
    let dir = ImageDir(testkit::directory());
    let layer = dir.blob(&gzip(&tar(&[("bin/app", "app"), ("etc/", "")])));
    let config =
        dir.blob(br#"{"config":{"Env":["A=1"],"Entrypoint":["/bin/app"],"Cmd":["x y"],"WorkingDir":"/etc"}}"#);
    let manifest =
        dir.blob(format!(r#"{{"config":{{"digest":"{config}"}},"layers":[{{"digest":"{layer}"}}]}}"#).as_bytes());
    let index = format!(
        r#"{{"manifests":[{{"digest":"sha256:{}","platform":{{"architecture":"arm64","os":"linux"}}}},
            {{"digest":"{manifest}","platform":{{"architecture":"amd64","os":"linux"}}}}]}}"#,
        "0".repeat(64)
    );
    std::fs::write(dir.0.join("index.json"), index).unwrap();
    std::fs::write(dir.0.join("oci-layout"), "{}").unwrap();
    dir
}

#[test]
fn an_oci_image_becomes_a_tree_and_says_how_it_is_run() {
    let dir = image();
    let (tree, manner) = read(&dir.0).unwrap();
    assert_eq!(text(&tree, "bin/app").as_deref(), Some("app"));
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(manner.command, words(&["/bin/app", "x y"]));
    assert_eq!(manner.environment, words(&["A=1"]));
    let placed = placed(&tree, &manner);
    assert_eq!(text(&placed, COMMAND).as_deref(), Some("/bin/app\0x y\0"));
    assert_eq!(text(&placed, "tenant/bin/app").as_deref(), Some("app"));
    assert_eq!(archive(&dir.0, false).unwrap(), archive(&dir.0, false).unwrap());
}

#[test]
fn a_tar_of_an_image_is_the_same_as_the_image() {
    let dir = image();
    let mut builder = ::tar::Builder::new(Vec::new());
    builder.append_dir_all("", &dir.0).unwrap();
    let file = dir.0.join("image.tar");
    std::fs::write(&file, builder.into_inner().unwrap()).unwrap();
    assert_eq!(read(&file).unwrap(), read(&dir.0).unwrap());
}

#[test]
fn parts_that_are_not_what_they_should_be_are_refused() {
    let dir = image();
    for entry in std::fs::read_dir(dir.0.join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert!(matches!(read(&dir.0), Err(TenantError::Digest(_))));
        std::fs::write(&path, good).unwrap();
    }
    let file = dir.0.join("text");
    std::fs::write(&file, "neither").unwrap();
    assert!(matches!(read(&file), Err(TenantError::Unknown(_))));
}
