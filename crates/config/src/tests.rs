use super::*;

fn problems(text: &str) -> Vec<String> {
    let path = PathBuf::from("b.toml");
    let error = ConfigError::Wrong { path, problems: parse(text).unwrap_err() };
    error.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn everything_can_be_said() {
    let file = parse(
        r#"
[proxy]
state_dir = "/run/b"
backend = "soft"
soft_memory = "1GiB"
spare_workers = 0
gpus = [0, 3]
jail = "off"

[http]
listen = "127.0.0.1:9470"
names = ["node1.example", "n1"]

[log]
format = "json"

[defaults]
memory = "2GiB"
share = 10
cap = 50

[zones.a]
pod = "trainer-0"
mode = "0660"
gid = 7

[zones."b.c"]
memory = "unlimited"
cap = "unlimited"
priority = 5
readable_by = ["a", "d"]
writable_by = ["d"]
"#,
    )
    .unwrap();
    assert_eq!((file.backend, file.soft_memory, file.spare_workers), (Some(Choice::Soft), Some(1 << 30), Some(0)));
    assert_eq!((file.gpus, file.http.unwrap().port(), file.log_json), (Some(vec![0, 3]), 9470, Some(true)));
    assert_eq!(file.http_names, ["node1.example", "n1"]);
    let (name, a) = &file.zones[0];
    assert_eq!((name.as_str(), a.limits.memory, a.limits.share, a.limits.cap), ("a", Some(2 << 30), 10, Some(50)));
    assert_eq!((a.labels.pod.as_str(), a.access), ("trainer-0", Access { uid: None, gid: Some(7), mode: 0o660 }));
    let (name, b) = &file.zones[1];
    assert_eq!((name.as_str(), b.limits.memory, b.limits.cap, b.limits.priority), ("b.c", None, None, 5));
    let grants: Vec<_> =
        file.grants.iter().map(|grant| (grant.from.as_str(), grant.to.as_str(), grant.access)).collect();
    assert_eq!(grants, [("b.c", "d", grant::Access::ReadWrite), ("b.c", "a", grant::Access::ReadOnly)]);
    assert!(problems("[zones.a]\nreadable_by = [\"../x\"]\n")[0].contains("is not a valid zone name"));
    assert!(problems("[zones.a]\nreadable_by = \"b\"\n")[0].contains("a list of zones"));
    assert_eq!(parse("").unwrap(), File::default());
}

#[test]
fn every_problem_is_told_with_its_place() {
    let text = "[proxy]\nspare_wrokers = 1\nbackend = \"softt\"\n\n[zones.a]\nmemory = \"much\"\nshare = 0\n  cap = 101\n\
                [zones.\"../x\"]\n[htp]\n";
    assert_eq!(
        problems(text),
        [
            "b.toml:2:1: unknown key \"spare_wrokers\" in [proxy] (did you mean \"spare_workers\"?)",
            "b.toml:3:11: \"backend\" is one of \"auto\", \"nvidia\", \"soft\" (did you mean \"soft\"?)",
            "b.toml:6:10: \"memory\": \"much\" is not a memory size (write it like 2GiB, 512MiB or 1073741824)",
            "b.toml:7:9: \"share\" must be a number from 1 to 10000",
            "b.toml:8:9: \"cap\" must be a number from 1 to 100, or \"unlimited\"",
            "b.toml:9:8: \"../x\" is not a valid zone name (1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit)",
            "b.toml:10:2: unknown table \"htp\" (did you mean \"http\"?)",
        ]
    );
}

#[test]
fn what_is_no_toml_is_told_with_its_place() {
    let told = problems("[proxy]\nspare_workers = \n");
    assert!(told[0].starts_with("b.toml:2:"), "{told:?}");
    let told = problems("[zones.a]\n[zones.a]\n");
    assert!(told[0].starts_with("b.toml:2:") && told[0].contains("duplicate"), "{told:?}");
    // Labels are of one zone.
    assert!(problems("[defaults]\npod = \"x\"\n")[0].contains("unknown key \"pod\""));
    assert!(problems("proxy = 3\nzones = 4\n")[1].contains("[zones.NAME]"));
}

#[test]
fn wrong_values_are_refused() {
    for line in [
        "state_dir = \"relative\"",
        "gpus = []",
        "gpus = [1, 1]",
        "gpus = [\"0\"]",
        "soft_memory = 0",
        "soft_memory = -5",
        "max_clients = 1.5",
        "worker_uids = 5",
        "jail = true",
    ] {
        assert_eq!(problems(&format!("[proxy]\n{line}\n")).len(), 1, "{line}");
    }
    for line in ["mode = \"999\"", "mode = 438", "mode = \"4755\"", "uid = -1", "pod = \"a\\nb\""] {
        assert_eq!(problems(&format!("[zones.a]\n{line}\n")).len(), 1, "{line}");
    }
    assert_eq!(problems("[http]\nlisten = \"localhost\"\n").len(), 1);
    for names in ["\"a\"", "[1]", "[\"a:1\"]", "[\"\"]"] {
        assert_eq!(problems(&format!("[http]\nnames = {names}\n")).len(), 1, "{names}");
    }
}

#[test]
fn a_zone_has_limits_for_each_gpu() {
    let text = "[zones.a]\nmemory = \"2GiB\"\ngpus = [0, 3]\n[zones.a.gpu.3]\nmemory = \"unlimited\"\npriority = 4\n";
    let file = parse(text).unwrap();
    let (_, settings) = &file.zones[0];
    assert_eq!((settings.on_gpu(0).memory, settings.on_gpu(0).priority), (Some(2 << 30), 0));
    assert_eq!((settings.on_gpu(3).memory, settings.on_gpu(3).priority), (None, 4));
    assert_eq!(settings.bindings.gpus, [0, 3]);
    assert_eq!(
        problems("[zones.a]\ngpus = [0]\n[zones.a.gpu.1]\nshare = 5\n"),
        ["b.toml:1:8: zone a: a limit is set for GPU 1, which the zone does not have"]
    );
    assert_eq!(problems("[zones.a.gpu.x]\nshare = 5\n"), ["b.toml:1:14: \"x\" is not the number of a GPU"]);
    let unknown = "unknown key \"shares\" in [zones.NAME.gpu.N] (did you mean \"share\"?)";
    assert_eq!(problems("[zones.a.gpu.0]\nshares = 5\n"), [format!("b.toml:2:1: {unknown}")]);
    assert_eq!(problems("[zones.a]\ngpu = 5\n"), ["b.toml:2:7: GPUs are tables: write [zones.NAME.gpu.N]"]);
}

#[test]
fn limits_of_the_host_are_lifted_by_name() {
    let text = "[proxy]\nhost_memory = \"unlimited\"\n[defaults]\nhost_memory = \"3GiB\"\nworkers = 9\n[zones.a]\n\
                pinned_memory = \"unlimited\"\ngraph_nodes = 5\n[zones.b]\nhost_memory = \"unlimited\"\nworkers = 0\n\
                graph_nodes = \"unlimited\"\n";
    let file = parse(text).unwrap();
    let [(_, a), (_, b)] = &file.zones[..] else { panic!("two zones") };
    let said = |zone: &ZoneSettings| {
        let ZoneLimits { host_memory, pinned, graph_nodes, workers, .. } = zone.limits;
        (host_memory, pinned, graph_nodes, workers)
    };
    assert_eq!(said(a), (Some(3 << 30), Some(UNLIMITED), Some(5), Some(9)));
    assert_eq!(said(b), (Some(UNLIMITED), None, Some(UNLIMITED), Some(0)));
    assert_eq!((file.host_memory, parse("").unwrap().host_memory), (Some(UNLIMITED), None));
    assert_eq!(problems("[zones.a]\ngraph_nodes = 0\n").len(), 1);
    assert_eq!(problems("[zones.a]\nworkers = 1025\n").len(), 1);
}

/// `BULKHEAD_BLESS=1` rewrites it.
#[test]
fn the_reference_is_fresh() {
    const BEGIN: &str = "<!-- keys: made from crates/config/src/keys.rs -->\n";
    const END: &str = "<!-- end of keys -->\n";
    testkit::fresh_part("docs/operations.md", BEGIN, END, &format!("\n{}", keys::reference()));
}

/// The file that is installed is an example, too.
#[test]
fn the_installed_file_is_right() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/bulkhead.toml");
    let text = std::fs::read_to_string(path).unwrap();
    parse(&text).unwrap();
    // What is commented out must be right as well.
    let uncommented: String = text
        .lines()
        .map(|line| line.strip_prefix("#").filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
        .collect();
    let file = parse(&uncommented).unwrap();
    assert_eq!(file.zones.len(), 2);
    assert!(file.http.is_some());
}
