//! Kernels that mean harm, or are merely wrong: each must end in a fault of its grid, and the next grid must run.

mod kernels;

use std::sync::atomic::Ordering;
use std::time::Duration;

use kernels::{Device, Params, alloc, download, upload};
use ptx_exec::window;
use ptx_exec::{Fault, FaultKind, Module};

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

/// A kernel `k(u64 p, u64 q)` with its parameters in %rd1 and %rd2.
fn kernel(body: &str) -> Device {
    Device::load(&format!(
        "{HEAD}.visible .entry k(.param .u64 p, .param .u64 q) {{
            .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>;
            .local .align 16 .b8 depot[32];
            .shared .align 16 .b8 tile[64];
            ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];
            {body}
            ret;
        }}"
    ))
}

fn run(device: &Device, threads: u32, p: u64, q: u64) -> Result<(), Fault> {
    device.launch("k", [1, 1, 1], [threads, 1, 1], 0, Params::new().add(p).add(q))
}

fn fault(body: &str, p: u64, q: u64) -> Fault {
    let device = kernel(body);
    let fault = run(&device, 1, p, q).expect_err("must not go well");
    still_alive();
    fault
}

/// The process and its pool have survived.
fn still_alive() {
    let out = alloc(4096);
    let device = kernel(
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd3, %rd1; st.global.u32 [%rd3], %r1; bar.sync 0;",
    );
    run(&device, 64, out, 0).unwrap();
    assert_eq!(download::<u32>(out, 64), (0..64).collect::<Vec<_>>());
}

fn wild_addresses() -> Vec<u64> {
    let unmapped = alloc(4096) + 8192;
    vec![
        0,
        8,
        unmapped,
        window::BASE - 4,
        window::BASE,
        window::BASE + window::SIZE - 4,
        window::FUNCTION_APERTURE,
        window::PARAM_APERTURE,
        window::SHARED_APERTURE + 64,
        window::SHARED_APERTURE - 4,
        window::LOCAL_APERTURE + (1 << 30),
        0x7fff_ffff_f000,
        u64::MAX - 3,
        &still_alive as *const _ as u64 & !3,
        1 << 63,
    ]
}

#[test]
fn wild_pointers() {
    for address in wild_addresses() {
        for access in [
            "st.global.u32 [%rd1], 7;",
            "st.u32 [%rd1], 7;",
            "red.global.add.u32 [%rd1], 7;",
            "red.add.f32 [%rd1], %f1;",
        ] {
            let fault = fault(access, address, 0);
            assert_eq!(fault.kind, FaultKind::IllegalAddress, "{access} {address:#x} {fault}");
            assert_eq!(fault.address, Some(address), "{fault}");
        }
        if address != window::PARAM_APERTURE {
            for access in ["ld.global.f32 %f1, [%rd1];", "ld.f32 %f1, [%rd1];", "ld.const.u32 %r1, [%rd1];"] {
                assert_eq!(fault(access, address, 0).kind, FaultKind::IllegalAddress, "{access} {address:#x}");
            }
        }
    }
}

#[test]
fn an_offset_does_not_help() {
    let memory = alloc(4096);
    let body = "st.global.u32 [%rd1+1073741824], 7;";
    assert_eq!(fault(body, window::BASE + window::SIZE - 64, 0).kind, FaultKind::IllegalAddress);
    let fault = fault("st.global.v4.u32 [%rd1+4092], {%r1, %r1, %r1, %r1};", memory, 0);
    assert_eq!(fault.kind, FaultKind::Misaligned);
}

#[test]
fn misaligned_accesses() {
    let memory = alloc(4096);
    let accesses = [
        ("st.global.u16 [%rd1], %h1;", 1),
        ("st.global.u32 [%rd1], %r1;", 2),
        ("st.u64 [%rd1], %rd1;", 4),
        ("ld.global.v2.u32 {%r1, %r2}, [%rd1];", 4),
        ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", 8),
        ("atom.global.add.u32 %r1, [%rd1], 1;", 2),
        ("ld.shared.u32 %r1, [tile+2];", 0),
        ("ld.shared.u32 %r1, [%rd2+1];", 0),
        ("ld.local.u64 %rd3, [%rd2+4];", 0),
    ];
    for (access, shift) in accesses {
        let fault = fault(access, memory + shift, 0);
        assert_eq!(fault.kind, FaultKind::Misaligned, "{access} {fault}");
    }
}

#[test]
fn outside_of_shared_and_local_memory() {
    for access in [
        "st.shared.u32 [%rd1], 7;",
        "cvt.u32.u64 %r1, %rd1; st.shared.u32 [%r1], 7;",
        "st.shared.u32 [tile+64], 7;",
        "mov.u32 %r1, 0; st.shared.u32 [%r1+-4], 7;",
        "st.local.u32 [%rd2], 7;",
        "ld.param.u32 %r1, [%rd1];",
        "atom.shared.cas.b32 %r1, [%rd1], 0, 1;",
    ] {
        let fault = fault(access, 64, 1 << 20);
        assert_eq!(fault.kind, FaultKind::IllegalAddress, "{access} {fault}");
    }
}

#[test]
fn parameters_cannot_be_written() {
    let body = "cvta.param.u64 %rd3, p; ld.u64 %rd4, [%rd3]; st.u64 [%rd3], %rd4;";
    let fault = fault(body, 1, 2);
    assert_eq!((fault.kind, fault.address), (FaultKind::IllegalAddress, Some(window::PARAM_APERTURE)));
}

#[test]
fn endless_loops_are_stopped() {
    for body in [
        "L: bra L;",
        "L: add.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, %r1; @!%p1 bra L;",
        "L: nanosleep.u32 100; bra L;",
        // Through memory, in which neighbours catch up.
        "L: ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r2, %r1; bra L;",
    ] {
        let device = kernel(body);
        let memory = alloc(4096);
        is_stopped(&device, [64, 1, 1], [128, 1, 1], || Params::new().add(memory).add(0u64));
    }
}

#[test]
fn recursion_without_end_in_sight_is_stopped() {
    let device = Device::load(&format!(
        "{HEAD}.func fib(.param .b32 n) {{ .reg .b32 %r<3>; .reg .pred %p1; ld.param.b32 %r1, [n]; setp.lt.s32 %p1, %r1, 2; @%p1 ret;
         {{ .param .b32 a; add.s32 %r2, %r1, -1; st.param.b32 [a], %r2; call.uni fib, (a); }}
         {{ .param .b32 a; add.s32 %r2, %r1, -2; st.param.b32 [a], %r2; call.uni fib, (a); }} ret; }}
         .entry k() {{ {{ .param .b32 a; st.param.b32 [a], 90; call.uni fib, (a); }} ret; }}"
    ));
    is_stopped(&device, [4, 1, 1], [32, 1, 1], Params::new);
}

/// A kernel that would run for ever ends when it is told to, and nothing else does.
fn is_stopped(device: &Device, grid: [u32; 3], block: [u32; 3], params: impl FnOnce() -> Params + Send) {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| device.launch("k", grid, block, 0, params()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!running.is_finished());
        device.stop.store(true, Ordering::Relaxed);
        assert_eq!(running.join().unwrap().unwrap_err().kind, FaultKind::Stopped);
    });
    still_alive();
}

#[test]
fn a_thread_may_spin_until_another_has_run() {
    let flag = alloc(64);
    let device = kernel(
        "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra SET;
         WAIT: ld.volatile.global.u32 %r2, [%rd1]; setp.ne.u32 %p2, %r2, 31; @%p2 bra WAIT; ret;
         SET: red.global.add.u32 [%rd1], 1;",
    );
    run(&device, 32, flag, 0).unwrap();
}

#[test]
fn endless_recursion() {
    let device = Device::load(&format!(
        "{HEAD}.func deep() {{ .reg .b32 %r<3>; {{ call.uni deep, (); }} ret; }}
         .func hoard() {{ .local .align 4 .b8 l[1000]; {{ call.uni hoard, (); }} ret; }}
         .entry a() {{ {{ call.uni deep, (); }} ret; }} .entry b() {{ {{ call.uni hoard, (); }} ret; }}"
    ));
    for name in ["a", "b"] {
        let fault = device.launch(name, [4, 1, 1], [64, 1, 1], 0, Params::new()).unwrap_err();
        assert_eq!(fault.kind, FaultKind::StackOverflow, "{fault}");
        still_alive();
    }
}

#[test]
fn pointers_to_no_function() {
    let text = format!(
        "{HEAD}.func (.param .b32 r) f(.param .b32 a) {{ .reg .b32 %r<3>; ld.param.b32 %r1, [a]; st.param.b32 [r], %r1; ret; }}
         .func g() {{ ret; }}
         .global .u64 table[2] = {{f, g}};
         .entry k(.param .u64 p) {{
            .reg .b64 %rd<9>; .reg .b32 %r<3>; ld.param.u64 %rd1, [p];
            {{ .param .b32 a; .param .b32 r; st.param.b32 [a], 1;
            proto: .callprototype (.param .b32 _) _ (.param .b32 _);
            call (r), %rd1, (a), proto; ld.param.b32 %r1, [r]; }}
            ret;
         }}"
    );
    let device = Device::load(&text);
    let functions = download::<u64>(device.addresses[0], 2);
    device.run("k", 1, 1, Params::new().add(functions[0]));
    let k = functions[0] + 2 * window::FUNCTION_STRIDE;
    for target in [
        0,
        functions[1],
        k,
        functions[0] + 1,
        functions[0] + 8,
        window::FUNCTION_APERTURE + (1 << 20),
        alloc(64),
        u64::MAX,
    ] {
        let fault = device.launch("k", [1, 1, 1], [1, 1, 1], 0, Params::new().add(target)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::IllegalTarget, "{target:#x} {fault}");
    }
}

#[test]
fn branch_outside_of_its_table() {
    let body = "cvt.u32.u64 %r1, %rd1; ts: .branchtargets A, B; brx.idx %r1, ts; A: st.global.u32 [%rd2], 1; ret; B: st.global.u32 [%rd2], 2;";
    let out = alloc(64);
    run(&kernel(body), 1, 1, out).unwrap();
    assert_eq!(download::<u32>(out, 1), [2]);
    for index in [2, 77, u64::from(u32::MAX)] {
        assert_eq!(fault(body, index, out).kind, FaultKind::IllegalTarget);
    }
}

#[test]
fn waiting_for_those_who_never_come() {
    for body in [
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 1, 64; bar.sync 0;",
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; bar.sync 0;",
    ] {
        assert_eq!(run(&kernel(body), 64, 0, 0).unwrap_err().kind, FaultKind::Deadlock, "{body}");
        still_alive();
    }
    // Those who have ended are not waited for.
    let body = "mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 40; @%p1 exit; bar.sync 0; vote.sync.ballot.b32 %r2, 1, -1; st.global.u32 [%rd1], %r2;";
    run(&kernel(body), 64, alloc(64), 0).unwrap();
    assert_eq!(run(&kernel("bar.sync 16;"), 32, 0, 0).unwrap_err().kind, FaultKind::IllegalTarget);
}

#[test]
fn traps_and_ends_in_functions() {
    assert_eq!(fault("trap;", 0, 0).kind, FaultKind::Trap);
    let device = Device::load(&format!(
        "{HEAD}.func f() {{ .local .b32 l; exit; }}
         .entry k(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p1; ld.param.u64 %rd1, [p];
         mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra GO; {{ call.uni f, (); }}
         GO: mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], 1; ret; }}"
    ));
    let out = alloc(256);
    device.run("k", 1, 8, Params::new().add(out));
    assert_eq!(download::<u32>(out, 8), [1, 0, 1, 0, 1, 0, 1, 0]);
}

#[test]
fn printf_with_bad_pointers() {
    let text = format!(
        "{HEAD}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
         .entry k(.param .u64 p, .param .u64 q) {{ .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];
         {{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd1; st.param.b64 [a], %rd2; call.uni (r), vprintf, (f, a); }} ret; }}"
    );
    let print = |format: &[u8], arguments: u64| {
        let device = Device::load(&text);
        let format = upload(&[format, b"\0"].concat());
        let result = device.launch("k", [1, 1, 1], [1, 1, 1], 0, Params::new().add(format).add(arguments));
        (result.map_err(|fault| fault.kind), device.text())
    };
    assert_eq!(print(b"plain %% text %", 0), (Ok(()), "plain % text %".into()));
    for address in wild_addresses() {
        assert_eq!(print(b"%d", address & !7).0, Err(FaultKind::IllegalAddress), "{address:#x}");
        assert_eq!(print(b"%s", upload(&[address])).0, Err(FaultKind::IllegalAddress), "{address:#x}");
    }
    let (result, text) =
        print(b"%999999999999d|%.99999999f|%*d", upload(&[1u64, 2.0f64.to_bits(), 0x8000_0000_8000_0000]));
    assert_eq!(result, Ok(()));
    assert!(text.len() < 5000, "{}", text.len());
    let endless = upload(&vec![b'x'; 100_000]);
    assert!(print(b"%s%s%s%s%s%s%s%s", upload(&[endless; 8])).1.len() < 50_000);
    assert_eq!(
        print(
            b"%5d|%-5d|%05d|%+d|%x|%#X|%c|%lld|%g|%e|%.3s|%u",
            upload(&[
                7u64 | 7 << 32,
                7 | 7 << 32,
                255 | 255 << 32,
                65,
                u64::MAX,
                0.1f64.to_bits(),
                12345.678f64.to_bits(),
                upload(b"abcdef\0"),
                u64::from(u32::MAX),
            ])
        )
        .1,
        "    7|7    |00007|+7|ff|0XFF|A|-1|0.1|1.234568e+04|abc|4294967295"
    );
}

#[test]
fn wrong_launches_and_texts() {
    let device = kernel("");
    let launch = |grid, block, shared| {
        device.launch("k", grid, block, shared, Params::new().add(0u64).add(0u64)).map_err(|fault| fault.kind)
    };
    let bad = Err(FaultKind::InvalidLaunch);
    assert_eq!(launch([1, 1, 1], [1025, 1, 1], 0), bad);
    assert_eq!(launch([1, 1, 1], [0, 1, 1], 0), bad);
    assert_eq!(launch([1, 1, 1], [65536, 65536, 1], 0), bad);
    assert_eq!(launch([0, 1, 1], [1, 1, 1], 0), bad);
    assert_eq!(launch([1, 65536, 1], [1, 1, 1], 0), bad);
    assert_eq!(launch([1, 1, 1], [1, 1, 1], 1 << 20), bad);
    assert_eq!(launch([1, 1, 1], [1, 1, 1], u32::MAX), bad);
    assert_eq!(
        device.launch("k", [1, 1, 1], [1, 1, 1], 0, Params::new().add(0u64)).unwrap_err().kind,
        FaultKind::InvalidLaunch
    );
    for body in [
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %r2, %r77;",
        "nonsense %r1;",
        "bra NOWHERE;",
        "ld.param.u32 %r1, [p+16];",
        "ld.param.u32 %r1, [p+-4];",
        "st.param.u32 [p], 1;",
        "mov.b64 {%r1, %r2, %r3}, %rd1;",
        "call.uni nobody, ();",
        "ld.global.v2.u32 %r1, [%rd1];",
        "{ .param .b32 a; ld.param.u64 %rd1, [a]; }",
        "L: L: ret;",
        "@%r1 bra L; L:",
        "and.f32 %f1, %f1, %f1;",
        ".reg .b32 %x<99999999>;",
        ".local .b8 big[99999999];",
        "mul.s32 %r1, %r1, %r1;",
    ] {
        let text = format!(
            "{HEAD}.entry k(.param .u64 p) {{ .reg .b32 %r<5>; .reg .b64 %rd<5>; .reg .f32 %f<3>; {body} ret; }}"
        );
        assert!(Module::from_ptx(&text).is_err(), "{body}");
    }
    let module =
        Module::from_ptx(&format!("{HEAD}.entry k() {{ wgmma.fence.sync.aligned; ret; }} .entry ok() {{ ret; }}"))
            .unwrap();
    assert!(module.kernels()[0].unsupported.as_ref().unwrap().contains("wgmma"), "{:?}", module.kernels()[0]);
    assert!(module.kernels()[1].unsupported.is_none());
}

/// Fragments of shapes that no processor has could reach beyond the registers that hold them.
#[test]
fn products_of_no_known_shape() {
    let registers = |first: u32, count: u32| {
        let names: Vec<String> = (first..first + count).map(|number| format!("%r{number}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let unsupported = |shape: &str, counts: [u32; 3]| {
        let [a, b, c] = [registers(10, counts[0]), registers(20, counts[1]), registers(30, counts[2])];
        let d = registers(40, counts[2]);
        let body = format!("mma.sync.aligned.{shape}.row.col.f32.f16.f16.f32 {d}, {a}, {b}, {c};");
        let text = format!("{HEAD}.entry k() {{ .reg .b32 %r<50>; {body} ret; }}");
        Module::from_ptx(&text).is_ok_and(|module| module.kernels()[0].unsupported.is_some())
    };
    assert!(!unsupported("m16n8k16", [4, 2, 4]), "this one is known");
    for (shape, counts) in [
        ("m32n8k16", [8, 2, 8]),
        ("m16n16k16", [4, 4, 8]),
        ("m16n8k4", [1, 1, 4]),
        ("m16n8k5", [1, 1, 4]),
        ("m8n8k24", [3, 3, 2]),
    ] {
        assert!(unsupported(shape, counts), "{shape}");
    }
}
