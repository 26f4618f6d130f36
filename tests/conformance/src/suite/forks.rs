//! Fork: as natively, a child of a process that has started the driver has none, and its parent notices nothing.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;

use crate::calls::{answers, code, context, download, ok, upload};

super::tests! {
    "forks":
    a_child_has_no_driver,
    a_child_forked_before_init_has_its_own,
    a_child_may_execute_something_else,
}

/// Runs something in a forked child and answers with its exit status.
fn in_child(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only calls the driver and ends; it takes no lock that another thread may hold.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child without running what belongs to the parent.
        0 => unsafe { libc::_exit(run()) },
        child => {
            assert!(child > 0, "fork failed");
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was killed: status {status}");
            libc::WEXITSTATUS(status)
        }
    }
}

fn a_child_has_no_driver(gpu: &Driver) {
    context(gpu);
    let data = upload(gpu, &[1u32, 2, 3]);
    let status = in_child(|| {
        let calls = [
            code!(gpu, cuInit(0)),
            code!(gpu, cuCtxSynchronize()),
            code!(gpu, cuMemAlloc_v2(&mut 0, 16)),
            code!(gpu, cuMemsetD8_v2(data, 0, 12)),
        ];
        i32::from(calls.iter().any(|code| *code != CUDA_ERROR_NOT_INITIALIZED))
    });
    assert_eq!(status, 0, "a call in the child did not answer NOT_INITIALIZED");
    assert_eq!(download::<u32>(gpu, data, 3), [1, 2, 3]);
    ok!(gpu, cuCtxSynchronize());
}

fn a_child_forked_before_init_has_its_own(gpu: &Driver) {
    ok!(gpu, cuDriverGetVersion(&mut 0));
    let status = in_child(|| {
        let (mut made, mut data) = (std::ptr::null_mut(), 0);
        let codes = [
            code!(gpu, cuInit(0)),
            code!(gpu, cuCtxCreate_v2(&mut made, 0, 0)),
            code!(gpu, cuMemAlloc_v2(&mut data, 4096)),
            code!(gpu, cuMemsetD8_v2(data, 1, 4096)),
            code!(gpu, cuCtxSynchronize()),
        ];
        i32::from(codes != [0; 5])
    });
    assert_eq!(status, 0);
    context(gpu);
    assert_eq!(download::<u32>(gpu, upload(gpu, &[5u32]), 1), [5]);
}

fn a_child_may_execute_something_else(gpu: &Driver) {
    context(gpu);
    let data = upload(gpu, &[4u32]);
    for _ in 0..3 {
        assert!(std::process::Command::new("true").status().expect("true runs").success());
    }
    assert_eq!(download::<u32>(gpu, data, 1), [4]);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&mut 0, 0));
}
