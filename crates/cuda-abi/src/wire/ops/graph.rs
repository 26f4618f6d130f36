//! Graphs, their nodes, and what is made of them.

use crate::constants::node_type;
use crate::types::{CUDA_MEMCPY3D, CUgraphEdgeData, CUkernelNodeAttrValue};
use crate::wire::definition::{choice, message, operations};
use crate::wire::{
    Array, Block, EventHandle, FunctionOrKernel, GraphExecHandle, GraphHandle, GraphNodeHandle, GraphOrNode,
    GraphOrStream, MAX_PARAMS, Rest, StreamHandle, UserObjectHandle,
};

/// The most nodes that one message names.
pub const MAX_NODES: usize = 8 << 10;
/// A conditional node has one graph for each branch; more than this nobody has.
pub const MAX_BRANCHES: usize = 1024;

/// Nodes of a graph.
pub type Nodes<'a> = Array<'a, GraphNodeHandle, MAX_NODES>;
/// One for each node that it goes with, or none: then they are as usual.
pub type Edges<'a> = Array<'a, CUgraphEdgeData, MAX_NODES>;

choice! {
    /// What a node does.
    NodeParams<'a> {
        Kernel = node_type::KERNEL {
            function: FunctionOrKernel,
            grid: [u32; 3],
            block: [u32; 3],
            shared_bytes: u32,
            parameters: Block<'a, MAX_PARAMS>,
        }
        Memcpy = node_type::MEMCPY { copy: CUDA_MEMCPY3D }
        Memset = node_type::MEMSET {
            destination: u64,
            pitch: usize,
            value: u32,
            element_size: u32,
            width: usize,
            height: usize,
        }
        /// The number of the client's function.
        Host = node_type::HOST { id: u64 }
        Graph = node_type::GRAPH { graph: GraphHandle }
        Empty = node_type::EMPTY {}
        EventWait = node_type::WAIT_EVENT { event: EventHandle }
        EventRecord = node_type::EVENT_RECORD { event: EventHandle }
        /// `size` is how many graphs it has.
        Conditional = node_type::CONDITIONAL { handle: u64, kind: u32, size: u32 }
    }
}

message! {
    /// A row of a listing: a node, or an edge between two. What the question does not ask for is none, and zeros.
    GraphRow {
        node: GraphNodeHandle,
        to: GraphNodeHandle,
        edge: CUgraphEdgeData,
    }
}

operations! {
    /// Its nodes go with it.
    GraphDestroy = 0xf090 { graph: GraphHandle }
    /// A copy, whose nodes [`GraphFindInClone`] finds.
    GraphClone = 0xf091 { graph: GraphHandle } -> GraphCloned { graph: GraphHandle }
    /// `what` is one of [`graph_list`](crate::wire::graph_list).
    GraphList = 0xf092 { what: u64, of: GraphOrNode, skip: usize }
        -> GraphListed<'a> { total: usize, rows: Rest<'a, GraphRow> }
    /// Adds edges, or takes them away.
    GraphDependencies<'a> = 0xf093 {
        graph: GraphHandle,
        add: bool,
        from: Nodes<'a>,
        to: Nodes<'a>,
        edges: Edges<'a>,
    }
    /// The node of a copy that was made of a node.
    GraphFindInClone = 0xf094 { node: GraphNodeHandle, clone: GraphHandle } -> NodeFound { node: GraphNodeHandle }
    /// The graph inside a child graph node.
    GraphChild = 0xf095 { node: GraphNodeHandle } -> ChildFound { graph: GraphHandle }
    /// The client is told when the graph is gone.
    GraphKeep = 0xf0a1 { holder: GraphOrStream, id: u64 }

    /// Adds a node; a conditional one comes with the graphs of its branches.
    NodeAdd<'a> = 0xf096 { graph: GraphHandle, dependencies: Nodes<'a>, edges: Edges<'a>, params: NodeParams<'a> }
        -> NodeAdded<'a> { node: GraphNodeHandle, branches: Array<'a, GraphHandle, MAX_BRANCHES> }
    /// Changes what a node does.
    NodeSet<'a> = 0xf097 { node: GraphNodeHandle, params: NodeParams<'a> }
    /// The graph that the node goes with, and what it does, if that can be said.
    NodeGet = 0xf098 { node: GraphNodeHandle }
        -> NodeDescribed<'a> { graph: GraphHandle, kind: u32, params: Option<NodeParams<'a>> }
    /// The kind of a node, one of [`node_type`].
    NodeType = 0xf0a2 { node: GraphNodeHandle } -> NodeTyped { kind: u32 }
    /// Its edges go with it.
    NodeDestroy = 0xf099 { node: GraphNodeHandle }
    /// Sets an attribute, or asks for it.
    NodeAttribute = 0xf09a { node: GraphNodeHandle, attribute: u32, value: CUkernelNodeAttrValue, set: bool }
        -> NodeAttributeFound { value: CUkernelNodeAttrValue }

    /// `code` is the driver's result, and `result` what it says besides.
    ExecCreate = 0xf09c { graph: GraphHandle, flags: u64, upload: Option<StreamHandle> }
        -> ExecCreated { code: u32, result: u32, node: GraphNodeHandle, exec: GraphExecHandle }
    /// Changes a graph that can be launched into one of the same shape.
    ExecUpdate = 0xf09d { exec: GraphExecHandle, graph: GraphHandle }
        -> ExecUpdated { code: u32, result: u32, node: GraphNodeHandle, from: GraphNodeHandle }
    /// Changes what a node does, in a graph that can be launched.
    ExecNodeSet<'a> = 0xf09b { exec: GraphExecHandle, node: GraphNodeHandle, params: NodeParams<'a> }

    /// `destructor` is the number of the client's function.
    UserObjectCreate = 0xf09e { destructor: u64, references: u32 } -> UserObjectCreated { object: UserObjectHandle }
    /// More references of the client's own or of a graph's, or fewer.
    UserObjectCount = 0xf09f {
        object: UserObjectHandle,
        references: u32,
        graph: Option<GraphHandle>,
        flags: u32,
        release: bool,
    }
    /// `value` is that at the start of each launch.
    ConditionalHandle = 0xf0a0 { graph: GraphHandle, value: u32, flags: u32 } -> ConditionalCreated { handle: u64 }
}
