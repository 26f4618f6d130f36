//! Threads of a client that work on the same graph.

use std::sync::mpsc;

use cuda_abi::wire::ops::{
    CaptureUpdate, ExecNodeSet, GraphChild, GraphDependencies, GraphFindInClone, GraphList, NodeAdd, NodeAttribute,
    NodeGet, NodeParams, NodeSet, NodeType,
};
use cuda_abi::wire::{Array, Writer, graph_list};
use idm::region::Placement;

use super::*;
use crate::Gpus;
use control::BrokerLink;
use control::backend::Backend;
use control::messages::{ToWorker, to_worker};

/// A worker before a driver that does nothing.
fn worker() -> Worker {
    let link = BrokerLink::in_process(Box::new(|_| (ToWorker::new(to_worker::REPLY), Vec::new())));
    let gpus = Gpus::new(&Backend::Nvidia { library: "".into(), devices: Vec::new() }, Vec::new());
    let region = control::region::make().unwrap();
    let server = idm::Server::attach(region, control::region::layout(), Placement::Anywhere).unwrap();
    let driver = crate::test_driver::driver();
    let worker = Worker::new(Arc::new(driver), Arc::new(gpus), Arc::new(link), &server);
    // The region stays: the worker knows where it is.
    std::mem::forget(server);
    worker
}

/// What a client can name.
#[derive(Clone, Copy)]
struct Words {
    graph: u64,
    clone: u64,
    exec: u64,
    node: u64,
}

/// Until a thread sleeps, which it has no reason for but a lock, or has ended.
fn until_it_waits(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let state = || Some(std::fs::read_to_string(&path).ok()?.rsplit_once(") ")?.1.starts_with('S'));
    while state() == Some(false) {
        std::thread::yield_now();
    }
}

type Use = fn(&Worker, Words, &mut Writer<'_>) -> Outcome;

const USES: &[(&str, Use)] = &[
    ("add", |worker, words, writer| {
        let dependencies = [Typed(words.node)];
        let params = NodeParams::Empty {};
        let request = NodeAdd {
            graph: Typed(words.graph),
            dependencies: Array::new(&dependencies),
            edges: Array::new(&[]),
            params,
        };
        nodes::add(worker, request, Reply::new(writer))
    }),
    ("set", |worker, words, _| nodes::set(worker, NodeSet { node: Typed(words.node), params: NodeParams::Empty {} })),
    ("exec_set", |worker, words, _| {
        let (exec, node) = (Typed(words.exec), Typed(words.node));
        nodes::exec_set(worker, ExecNodeSet { exec, node, params: NodeParams::Empty {} })
    }),
    ("get", |worker, words, writer| nodes::get(worker, NodeGet { node: Typed(words.node) }, Reply::new(writer))),
    ("kind", |worker, words, writer| nodes::kind(worker, NodeType { node: Typed(words.node) }, Reply::new(writer))),
    ("attribute", |worker, words, writer| {
        let request = NodeAttribute { node: Typed(words.node), attribute: 1, value: Default::default(), set: true };
        nodes::attribute(worker, request, Reply::new(writer))
    }),
    ("dependencies", |worker, words, _| {
        let nodes = [Typed(words.node)];
        let (from, to, edges) = (Array::new(&nodes), Array::new(&nodes), Array::new(&[]));
        dependencies(worker, GraphDependencies { graph: Typed(words.graph), add: true, from, to, edges })
    }),
    ("list", |worker, words, writer| {
        let request = GraphList { what: graph_list::DEPENDENCIES, of: Typed(words.node), skip: 0 };
        lists::list(worker, request, Reply::new(writer))
    }),
    ("find_in_clone", |worker, words, writer| {
        let request = GraphFindInClone { node: Typed(words.node), clone: Typed(words.clone) };
        find_in_clone(worker, request, Reply::new(writer))
    }),
    ("child", |worker, words, writer| child(worker, GraphChild { node: Typed(words.node) }, Reply::new(writer))),
    ("update", |worker, words, _| {
        let nodes = [Typed(words.node)];
        let (nodes, edges) = (Array::new(&nodes), Array::new(&[]));
        capture::update(worker, CaptureUpdate { stream: Typed(0), flags: 0, nodes, edges })
    }),
];

/// Whoever had looked a node up before it was destroyed would keep it in its graph without a handle: it would be listed under another
/// one, and go under that.
#[test]
fn a_node_that_somebody_destroys_is_known_to_nobody_else() {
    let worker = worker();
    for (name, work) in USES {
        let graph = worker.handles.open(Kind::Graph, 1, 0).unwrap();
        let clone = worker.handles.open(Kind::Graph, 2, 0).unwrap();
        let exec = worker.handles.open(Kind::GraphExec, 3, 0).unwrap();
        let parent = worker.handles.pin(Kind::Graph, graph).unwrap();
        let node = worker.handles.open_child(Kind::GraphNode, 4, 0, Some(parent), None).unwrap();
        let known = Arc::downgrade(&worker.handles.pin(Kind::GraphNode, node).unwrap());
        let words = Words { graph, clone, exec, node };
        std::thread::scope(|scope| {
            let (began, begins) = mpsc::channel();
            // As whoever destroys it holds it.
            let graphs = worker.graphs.at_work();
            let worker = &worker;
            let user = scope.spawn(move || {
                let mut buffer = [0; 1024];
                began.send(rustix::thread::gettid()).unwrap();
                work(worker, words, &mut Writer::new(&mut buffer))
            });
            until_it_waits(begins.recv().unwrap());
            assert_eq!(known.strong_count(), 1, "{name} has the node before it is its turn");
            worker.close(Kind::GraphNode, node).unwrap();
            assert_eq!(known.strong_count(), 0, "{name}: the driver has destroyed it");
            drop(graphs);
            assert_eq!(user.join().unwrap(), Err(invalid()), "{name}");
        });
        for (kind, word) in [(Kind::Graph, graph), (Kind::Graph, clone), (Kind::GraphExec, exec)] {
            worker.close(kind, word).unwrap();
        }
    }
}
