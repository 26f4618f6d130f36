//! Stream capture.

use super::{Edges, Nodes};
use crate::wire::definition::operations;
use crate::wire::{GraphHandle, StreamHandle};

operations! {
    /// `cuStreamBeginCapture`.
    CaptureBegin = 0xf080 { stream: StreamHandle, mode: u32 }
    /// `cuStreamBeginCaptureToGraph`: what is captured depends on these nodes first.
    CaptureBeginToGraph<'a> = 0xf081 {
        stream: StreamHandle,
        mode: u32,
        graph: GraphHandle,
        nodes: Nodes<'a>,
        edges: Edges<'a>,
    }
    /// `cuStreamEndCapture`.
    CaptureEnd = 0xf082 { stream: StreamHandle } -> CaptureEnded { graph: GraphHandle }
    /// `cuStreamIsCapturing`.
    CaptureStatus = 0xf083 { stream: StreamHandle } -> CaptureState { status: u32 }
    /// `cuStreamGetCaptureInfo`; the nodes are what the next work depends on.
    CaptureInfo = 0xf084 { stream: StreamHandle }
        -> CaptureDescribed<'a> { status: u32, id: u64, graph: GraphHandle, nodes: Nodes<'a>, edges: Edges<'a> }
    /// `cuStreamUpdateCaptureDependencies`.
    CaptureUpdate<'a> = 0xf085 { stream: StreamHandle, flags: u32, nodes: Nodes<'a>, edges: Edges<'a> }
    /// Fails, and spoils the capture, where captures forbid this thread to allocate memory.
    CaptureProbe = 0xf086 {}
    /// Blocks until all work is done that is not being captured.
    WaitForAll = 0xf087 {}
}
