//! The operations of the hand-written part of the protocol. Each line says what the payload holds and, after the arrow,
//! what the reply holds.

/// Opcodes below this are indices into the table.
pub const FIRST_OP: u16 = 0xf000;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $code:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Op {
            $($(#[$doc])* $name = $code,)*
        }

        /// Everything below as text: what the fingerprint of the protocol is made of.
        pub(super) const TEXT: &[&str] = &[$($(stringify!($doc),)* stringify!($name = $code),)*];

        impl Op {
            pub fn from_code(code: u16) -> Option<Op> {
                match code {
                    $($code => Some(Op::$name),)*
                    _ => None,
                }
            }

            pub fn name(self) -> &'static str {
                match self {
                    $(Op::$name => stringify!($name),)*
                }
            }
        }
    };
}

ops! {
    /// First message of a client: count, then (name, value) of each `CUDA_*` variable → the device snapshot.
    Start = 0xf000

    /// device → nothing; the context's index is `1 + device`.
    ContextRetain = 0xf010
    /// device → is it still active.
    ContextRelease = 0xf011
    /// device → nothing.
    ContextReset = 0xf012
    /// device, flags → nothing.
    ContextSetFlags = 0xf013
    /// flags, device → handle, context id.
    ContextCreate = 0xf014
    /// handle → nothing.
    ContextDestroy = 0xf015
    /// context handle → nothing. Blocks until all its work is done.
    Synchronize = 0xf016
    /// stream → nothing. Blocks until all its work is done.
    SynchronizeStream = 0xf019
    /// stream, completion word, value. Posted: the GPU writes the word when it gets there.
    Mark = 0xf01a
    /// nothing → context id of the current context.
    ContextId = 0xf017
    /// nothing → two byte strings: TPC groups and indices.
    TpcMap = 0xf018

    /// lane, raw bytes: the next part of the image that the lane is about to load. Posted.
    ImagePart = 0xf020
    /// total length → module.
    ModuleLoad = 0xf021
    /// total length → library.
    LibraryLoad = 0xf022
    /// module, name → function, its description.
    GetFunction = 0xf023
    /// library, name → kernel, its description.
    GetKernel = 0xf024
    /// kernel → function, its description.
    KernelFunction = 0xf025
    /// library → module.
    LibraryModule = 0xf026
    /// module, how many to leave out → how many there are, then as many as fit: description and name of each.
    ModuleFunctions = 0xf027
    /// library, how many to leave out → how many there are, then as many as fit: description and name of each.
    LibraryKernels = 0xf028
    /// module or library, name → address, bytes.
    GetGlobal = 0xf029
    /// function or kernel, attribute, value, device (of a kernel's attribute) → nothing.
    SetFunctionAttribute = 0xf02a
    /// function or kernel → its description, now that there is a context.
    Describe = 0xf02b
    /// total length of what was uploaded: options (each with its value), then kind and bytes of each input → code,
    /// error log, information log, length of the result.
    Link = 0xf02c
    /// where to begin → as much of the lane's last link's result as fits; nothing is left of it after its end.
    LinkResult = 0xf02d
    /// total length of what was uploaded: is it for a library, options (each with its value), then the image and what it
    /// was linked from → code, module or library, error log, information log.
    ImageLoad = 0xf02e

    /// function, stream, grid ×3, block ×3, shared bytes, flags, attribute bytes, parameter bytes. Posted.
    Launch = 0xf030
    /// function, grid ×3, block ×3, shared bytes, attribute bytes, which → count.
    ClusterOccupancy = 0xf031
    /// stream, callback id. Posted.
    HostCallback = 0xf032
    /// ticket of the callback that has been run (0 at first) → ticket, id, what to do with it. Blocks.
    NextCallback = 0xf033

    /// bytes → address, bytes really mapped.
    Alloc = 0xf040
    /// address → nothing. Returns when all work posted before is done.
    Free = 0xf041
    /// nothing → free, total.
    MemInfo = 0xf042
    /// address, bytes; the memfd travels on the socket, or grants were named before → nothing.
    HostMap = 0xf043
    /// address, bytes → nothing.
    HostUnmap = 0xf044
    /// address, stream. Posted.
    FreeAsync = 0xf046
    /// address, bytes → nothing. As HostUnmap, of what nobody uses: does not wait.
    HostDrop = 0xf047
    /// raw bytes: references of pages that a client in a guest grants, for the next HostMap or GrowStaging → nothing.
    HostGrants = 0xf048
    /// wait → bytes that kernels have printed. With `wait` it blocks until there are some, and answers none.
    NextOutput = 0xf049
    /// bytes → nothing. The pages that were named lie behind what there was of the staging area.
    GrowStaging = 0xf04a

    /// destination, stream, raw bytes. Posted.
    CopyInline = 0xf050
    /// destination, staging offset, bytes, stream, completion word, value. Posted.
    CopyFromStaging = 0xf051
    /// source, staging offset, bytes, stream, completion word or `NO_WORD`, value. Posted.
    CopyToStaging = 0xf052
    /// destination, source (both in the window), bytes, stream. Posted.
    CopyAsync = 0xf053
    /// destination, source (both in the window), bytes, stream → nothing. Blocks until done.
    CopySync = 0xf054
    /// the 3D copy's description, stream. Posted.
    Copy3dAsync = 0xf055
    /// the 3D copy's description, stream → nothing. Blocks until done.
    Copy3dSync = 0xf056
    /// nothing → nothing; the status is the first error of a posted message that nobody has been told yet.
    TakeError = 0xf058

    /// bytes, alignment, address or 0 → address.
    Reserve = 0xf060
    /// address, bytes → nothing.
    Unreserve = 0xf061
    /// bytes, the allocation's properties, flags → handle.
    Create = 0xf062
    /// handle → nothing.
    Release = 0xf063
    /// address, bytes, offset, handle, flags → nothing.
    Map = 0xf064
    /// address, bytes → nothing.
    Unmap = 0xf065
    /// address, bytes, access descriptions → nothing.
    SetAccess = 0xf066
    /// address, location → access flags.
    GetAccess = 0xf067
    /// properties, option → bytes.
    Granularity = 0xf068
    /// handle → properties.
    Properties = 0xf069
    /// address → handle.
    Retain = 0xf06a

    /// whether it is a surface, resource, texture, whether there is a view, view → object.
    ImageObjectCreate = 0xf070
    /// whether it is a surface, object → nothing.
    ImageObjectDestroy = 0xf071

    /// stream, mode → nothing.
    CaptureBegin = 0xf080
    /// stream, mode, graph, nodes, edge data → nothing.
    CaptureBeginToGraph = 0xf081
    /// stream → graph.
    CaptureEnd = 0xf082
    /// stream → status.
    CaptureStatus = 0xf083
    /// stream → status, id, graph, nodes, edge data.
    CaptureInfo = 0xf084
    /// stream, flags, nodes, edge data → nothing.
    CaptureUpdate = 0xf085
    /// nothing → nothing. Fails, and spoils the capture, where captures forbid this thread to allocate memory.
    CaptureProbe = 0xf086
    /// nothing → nothing. Blocks until all work is done that is not being captured.
    WaitForAll = 0xf087

    /// graph → nothing.
    GraphDestroy = 0xf090
    /// graph → graph.
    GraphClone = 0xf091
    /// what, graph or node, how many to leave out → how many there are, then as many as fit.
    GraphList = 0xf092
    /// graph, whether to add, nodes, nodes, edge data → nothing.
    GraphDependencies = 0xf093
    /// node, graph → node.
    GraphFindInClone = 0xf094
    /// node → graph.
    GraphChild = 0xf095
    /// graph, dependencies, edge data, parameters of a node → node, its graphs if it has any.
    NodeAdd = 0xf096
    /// node, parameters → nothing.
    NodeSet = 0xf097
    /// node → graph it goes with, parameters.
    NodeGet = 0xf098
    /// node → nothing.
    NodeDestroy = 0xf099
    /// node, attribute, value, whether to set → value.
    NodeAttribute = 0xf09a
    /// executable graph, node, parameters → nothing.
    ExecNodeSet = 0xf09b
    /// graph, flags, whether there is a stream, stream → code, result, node, executable graph.
    ExecCreate = 0xf09c
    /// executable graph, graph → code, result, node, other node.
    ExecUpdate = 0xf09d
    /// number of the destructor, references → object.
    UserObjectCreate = 0xf09e
    /// object, references, graph or 0, flags, whether to release → nothing.
    UserObjectCount = 0xf09f
    /// graph, value at the start of each launch, flags → conditional handle.
    ConditionalHandle = 0xf0a0
    /// graph, or stream that is being captured, number → nothing. The client is told when the graph is gone.
    GraphKeep = 0xf0a1
    /// node → what it is.
    NodeType = 0xf0a2

    /// flags → event. One between processes gets words that others can see.
    EventCreate = 0xf0b0
    /// event between processes, stream → nothing.
    SharedRecord = 0xf0b1
    /// event between processes, stream → number of a record that the client must wait for itself, or 0.
    SharedWait = 0xf0b2
    /// event between processes, number of a record or 0 for the last one → whether it has happened, its number.
    SharedQuery = 0xf0b3
    /// event between processes → token (two words).
    EventExport = 0xf0b4
    /// token → event.
    EventImport = 0xf0b5
    /// address of an allocation, bytes, whether it is a pool's → token.
    Export = 0xf0b6
    /// token, whether it is a pool's → address, bytes.
    Import = 0xf0b7
    /// address → nothing. Returns when all work posted before is done.
    CloseImport = 0xf0b8
    /// handle of physical memory → token.
    PhysicalExport = 0xf0b9
    /// token → handle.
    PhysicalImport = 0xf0ba
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_functions_share_the_opcodes_without_overlap() {
        assert!(crate::table::functions().len() < usize::from(FIRST_OP));
        assert_eq!(Op::from_code(Op::Launch as u16), Some(Op::Launch));
        assert_eq!(Op::from_code(0xffff), None);
    }
}
