//! Mistakes that a GPU hides: each planted one is found, and the same kernel without it is not accused.

mod cases;
#[path = "../kernels/mod.rs"]
mod kernels;

use cases::{Case, EPILOGUE, PROLOGUE};
use kernels::{Device, Params, alloc, upload};
use ptx_exec::sanitize::{Where, init};
use ptx_exec::{Check, Checks, Fault, FaultKind, Finding};

/// A line for each statement, so that findings have lines.
fn lines(text: &str) -> String {
    text.replace("; ", ";\n").replace(": ", ":\n")
}

fn source(case: &Case, how: &str) -> String {
    // A guard is written with the same sign.
    let text = case.text.replace("@%", "\u{1}").replace('@', how).replace('\u{1}', "@%");
    format!("{PROLOGUE}{}{EPILOGUE}", lines(&text))
}

/// Runs a kernel with all checks.
fn run(text: &str, checks: &str, (blocks, threads): (u32, u32)) -> (Result<(), Fault>, Vec<Finding>) {
    let device = Device::sanitized(text, Checks::parse(checks).unwrap());
    let data = upload(&[0u32; 1024]);
    let raw = alloc(4096);
    init::begin(raw, 4096);
    init::wrote(raw, 256);
    let result = device.launch("kernel", [blocks, 1, 1], [threads, 1, 1], 0, Params::new().add(data).add(raw));
    init::end(raw);
    let found = device.printed.1.lock().unwrap().clone();
    (result, found)
}

#[test]
fn planted_mistakes_are_found() {
    let missed: Vec<&str> = cases::all()
        .filter(|case| {
            let (_, found) = run(&source(case, case.bug), "all", (case.blocks, case.threads));
            !found.iter().any(|finding| finding.check == case.check && finding.here.line.is_some())
        })
        .map(|case| case.name)
        .collect();
    assert_eq!(missed, [""; 0]);
}

#[test]
fn the_same_without_a_mistake_is_not_accused() {
    for case in cases::all() {
        let (result, found) = run(&source(case, case.good), "all", (case.blocks, case.threads));
        assert!(result.is_ok(), "{}: {result:?}", case.name);
        assert!(found.is_empty(), "{}: {}", case.name, found[0]);
    }
}

#[test]
fn every_check_has_cases_of_its_own() {
    for check in [Check::Races, Check::Init, Check::Sync] {
        assert!(cases::all().filter(|case| case.check == check).count() > 5, "{}", check.name());
    }
    let mut names: Vec<&str> = cases::all().map(|case| case.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}

/// What is switched off is not looked for.
#[test]
fn only_what_was_asked_for_is_reported() {
    for case in cases::all() {
        let others = Check::ALL.iter().filter(|check| **check != case.check && **check != Check::Memory);
        let others: Vec<&str> = others.map(|check| check.name()).collect();
        let (_, found) = run(&source(case, case.bug), &others.join(","), (case.blocks, case.threads));
        assert!(found.iter().all(|finding| finding.check != case.check), "{}", case.name);
    }
}

#[test]
fn a_finding_names_both_threads_and_the_place() {
    let text = source(
        &Case {
            name: "",
            check: Check::Races,
            blocks: 2,
            threads: 64,
            text: "bar.sync 0;\n.loc 1 7 0\nst.shared.u32 [%mine], %t;\n.loc 1 8 0\n@ ld.shared.u32 %r5, [%far];",
            bug: "",
            good: "",
        },
        "",
    );
    let text = text.replacen(".address_size 64", ".address_size 64\n.file 1 \"/src/race.cu\"", 1);
    let (_, found) = run(&text, "races", (2, 64));
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!(finding.what, "race between threads of one block");
    let there = finding.there.as_ref().unwrap();
    assert_eq!((finding.here.block, there.block), ([0, 0, 0], [0, 0, 0]));
    let (reader, writer) = if finding.here.does == "read of 4 bytes" {
        (finding.here.thread[0], there.thread[0])
    } else {
        (there.thread[0], finding.here.thread[0])
    };
    assert_eq!((reader + 32) % 64, writer);
    assert_eq!(finding.place, Some(Where::Shared(u64::from(writer) * 4)));
    let lines: Vec<u32> = [&finding.here, there].iter().filter_map(|site| Some(site.source.as_ref()?.line)).collect();
    assert_eq!(lines.len(), 2);
    let said = finding.to_string();
    assert!(said.starts_with("races: race between threads of one block in kernel kernel: "), "{said}");
    assert!(said.contains("/src/race.cu:7") && said.contains("/src/race.cu:8"), "{said}");
    assert!(said.contains(&format!("block 0,0,0 thread {writer},0,0")), "{said}");
    assert!(said.contains(&format!("shared memory at offset {:#x}", writer * 4)), "{said}");
    assert!(finding.count > 1, "of both blocks, and said once");
}

/// The last steps of a reduction as they were written before Volta: no barrier, one warp.
const SYNCHRONOUS: &str = "st.shared.u32 [%mine], 1; setp.ge.u32 %p2, %t, 16; ld.shared.u32 %r5, [%next]; \
                           @%p2 bra DONE; ld.shared.u32 %r5, [%mine]; ld.shared.u32 %r6, [%mine+64]; \
                           add.u32 %r5, %r5, %r6; st.shared.u32 [%mine], %r5; setp.ge.u32 %p2, %t, 8; @%p2 bra DONE; \
                           ld.shared.u32 %r5, [%mine]; ld.shared.u32 %r6, [%mine+32]; add.u32 %r5, %r5, %r6; \
                           st.global.u32 [%g], %r5;";

#[test]
fn lockstep_runs_what_relies_on_it() {
    let text = format!("{PROLOGUE}{}{EPILOGUE}", lines(SYNCHRONOUS));
    let (_, found) = run(&text, "races", (1, 32));
    assert!(!found.is_empty());
    assert!(found.iter().all(|finding| finding.hint.is_some_and(|hint| hint.contains("--lockstep"))), "{found:?}");
    let (result, found) = run(&text, "races,lockstep", (1, 32));
    assert!(result.is_ok() && found.is_empty(), "{found:?}");
    // And the result is that of such a GPU.
    let device = Device::sanitized(&text, Checks::parse("lockstep").unwrap());
    let data = upload(&[0u32; 64]);
    let params = Params::new().add(data).add(data);
    device.launch("kernel", [1, 1, 1], [32, 1, 1], 0, params).unwrap();
    assert_eq!(kernels::download::<u32>(data, 8), [4; 8]);
}

#[test]
fn threads_that_wait_for_ever_are_a_finding_and_a_fault() {
    let case = cases::all().find(|case| case.name == "threads at different barriers").unwrap();
    let (result, found) = run(&source(case, case.bug), "sync", (1, 64));
    assert_eq!(result.unwrap_err().kind, FaultKind::Deadlock);
    assert!(found.iter().any(|finding| finding.what.contains("never arrive")), "{found:?}");
}

#[test]
fn what_several_threads_set_alike_is_no_race() {
    let text = format!("{PROLOGUE}{}{EPILOGUE}", lines("st.global.u32 [%data], 1;"));
    let (_, found) = run(&text, "races", (4, 64));
    assert!(found.is_empty(), "{found:?}");
}
