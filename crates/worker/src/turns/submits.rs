//! Which messages give work to the GPU.

use std::sync::LazyLock;

use cuda_abi::wire::{FIRST_OP, Op};

use crate::dispatch::op_name;
use crate::stats::is_copy;

/// How the names of functions begin that have the GPU do something, whatever their version.
const WORK: [&str; 9] = [
    "cuMemset",
    "cuMemcpy",
    "cuLaunch",
    "cuGraphLaunch",
    "cuMemPrefetch",
    "cuMemDiscard",
    "cuMemBatchDecompress",
    "cuStreamBatchMemOp",
    "cuStreamWaitValue",
];

static PLAIN: LazyLock<Vec<bool>> = LazyLock::new(|| {
    let works = |op: u16| WORK.iter().any(|name| op_name(op).starts_with(name));
    (0..FIRST_OP).take_while(|op| op_name(*op) != "?").map(works).collect()
});

/// Does this message give work to the GPU?
#[inline]
pub(crate) fn submits(op: u16) -> bool {
    if op < FIRST_OP {
        return PLAIN.get(usize::from(op)).copied().unwrap_or(false);
    }
    matches!(Op::from_code(op), Some(Op::Launch | Op::HostCallback)) || is_copy(op)
}

/// May the work be for any GPU, whatever stream the message names?
#[inline]
pub(crate) fn spans_gpus(op: u16) -> bool {
    static SPANS: LazyLock<Vec<bool>> = LazyLock::new(|| {
        let spans = |op: u16| op_name(op).starts_with("cuGraphLaunch") || op_name(op).contains("MultiDevice");
        (0..FIRST_OP).take_while(|op| op_name(*op) != "?").map(spans).collect()
    });
    SPANS.get(usize::from(op)).copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use cuda_abi::table::Carry;

    use super::*;

    /// Functions that name a stream and give the GPU nothing to do. An addition to the table says which it is.
    const HARMLESS: [&str; 21] = [
        "cuEventRecord",
        "cuStreamAttachMemAsync",
        "cuStreamBeginCapture",
        "cuStreamCopyAttributes",
        "cuStreamDestroy",
        "cuStreamEndCapture",
        "cuStreamGet",
        "cuStreamIsCapturing",
        "cuStreamQuery",
        "cuStreamSetAttribute",
        "cuStreamSynchronize",
        "cuStreamUpdateCapture",
        "cuStreamWaitEvent",
        "cuStreamWriteValue",
        "cuMemAlloc",
        "cuMemFreeAsync",
        "cuGraphUpload",
        "cuStreamCreate",
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamAddCallback",
        "cuGraph",
    ];

    #[test]
    fn every_function_with_a_stream_is_known_for_what_it_is() {
        let functions = cuda_abi::table::functions();
        let unknown: Vec<&str> = functions
            .iter()
            .filter(|function| function.carry != Carry::Deny)
            .filter(|function| function.args.iter().any(|arg| arg.inner == "CUstream"))
            .map(|function| function.symbol.as_str())
            .filter(|name| !HARMLESS.iter().chain(&WORK).any(|known| name.starts_with(known)))
            .collect();
        assert_eq!(unknown, Vec::<&str>::new());
    }

    #[test]
    fn work_is_told_from_questions() {
        let plain = |name: &str| {
            let op = (0..FIRST_OP).find(|op| op_name(*op) == name).unwrap();
            submits(op)
        };
        assert!(plain("cuMemsetD8Async") && plain("cuGraphLaunch") && submits(Op::Launch as u16));
        let graph = (0..FIRST_OP).find(|op| op_name(*op) == "cuGraphLaunch").unwrap();
        assert!(spans_gpus(graph) && !spans_gpus(Op::Launch as u16));
        assert!(!plain("cuStreamQuery") && !submits(Op::Synchronize as u16) && !submits(Op::Alloc as u16));
    }
}
