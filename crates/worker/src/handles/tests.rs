use std::cell::Cell;

use super::*;

thread_local! {
    /// How many places of the table were looked at in search of something.
    pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn what_goes_with_a_module_is_not_searched_for() {
    let handles = handles();
    let mut modules = Vec::new();
    for number in 0..1000 {
        let library = handles.open(Kind::Library, 10 * number + 1, 0).unwrap();
        let parent = handles.pin(Kind::Library, library).unwrap();
        let module = handles.open_child(Kind::Module, 10 * number + 2, 1, Some(parent), None).unwrap();
        let parent = handles.pin(Kind::Module, module).unwrap();
        let function = handles.open_child(Kind::Function, 10 * number + 3, 1, Some(parent), None).unwrap();
        modules.push((module, function));
    }
    let looked = LOOKED_AT.get();
    for (module, function) in modules.iter().rev() {
        handles.close(Kind::Module, *module).unwrap();
        assert!(handles.pin(Kind::Function, *function).is_err());
    }
    assert_eq!(LOOKED_AT.get() - looked, 0);
    assert!(handles.read().children.is_empty());
}

#[test]
fn what_is_named_again_goes_with_what_it_came_from() {
    let handles = handles();
    let library = handles.open(Kind::Library, 1, 0).unwrap();
    let parent = handles.pin(Kind::Library, library).unwrap();
    let kernel = handles.open(Kind::Kernel, 2, 0).unwrap();
    assert_eq!(handles.open_child(Kind::Kernel, 2, 0, Some(parent), None), Ok(kernel));
    handles.forget(library);
    assert!(handles.pin(Kind::Kernel, kernel).is_err());
    assert!(handles.read().children.is_empty());
}

#[test]
fn an_object_pays_until_it_is_gone() {
    use control::BrokerLink;
    let (broker, worker) = control::packet::pair().unwrap();
    let link = Arc::new(BrokerLink::from_fd(worker));
    let backend = control::backend::Backend::Soft { devices: 1, memory: 1, instances: 0, only: Vec::new() };
    let gpus = crate::gpus::Gpus::new(&backend, Vec::new());
    // Nothing is asked of the broker for nothing, and nothing is given back.
    let memory = crate::memory::Memory::new(Arc::new(Driver::missing()), Arc::new(gpus), link);
    let charge = memory.charge(0, 0).unwrap();
    let handles = handles();
    let word = handles.open(Kind::Module, 0x1000, 1).unwrap();
    handles.pays(word, charge);
    let paying = Arc::downgrade(handles.get(word).unwrap().charge.get().unwrap());
    // The driver names the same object again.
    assert_eq!(handles.open(Kind::Module, 0x1000, 1), Ok(word));
    assert!(paying.upgrade().is_some());
    let user = handles.get(word).unwrap();
    handles.close_context(1);
    assert!(paying.upgrade().is_some(), "somebody still uses it");
    // The driver of this test is missing, so nobody may call it.
    user.doomed.store(false, Ordering::Release);
    drop(user);
    assert!(paying.upgrade().is_none());
    drop(broker);
}

fn handles() -> Handles {
    Handles::new(Arc::new(Driver::missing()), 2)
}

#[test]
fn stale_foreign_and_wrong_kind_handles_are_refused() {
    let handles = handles();
    let event = handles.open(Kind::Event, 0x1000, 1).unwrap();
    assert_eq!(handles.pin(Kind::Event, event).unwrap().raw, 0x1000);
    assert!(handles.pin(Kind::Stream, event).is_err());
    assert!(handles.close(Kind::Stream, event).is_err());
    handles.close(Kind::Event, event).unwrap();
    assert!(handles.close(Kind::Event, event).is_err());
    assert!(handles.pin(Kind::Event, event).is_err());
    let reused = handles.open(Kind::Event, 0x2000, 1).unwrap();
    assert_ne!(event, reused);
    assert!(handles.pin(Kind::Event, event).is_err());
    for word in [0, 2, 3, 0xdead_beef, u64::MAX, event ^ (1 << 48), reused + 16, reused + (1 << 32)] {
        assert!(handles.pin(Kind::Event, word).is_err(), "{word:#x}");
    }
}

#[test]
fn what_is_named_again_stays_what_others_came_from() {
    let handles = handles();
    let library = handles.open(Kind::Library, 1, 0).unwrap();
    let parent = handles.pin(Kind::Library, library).unwrap();
    let kernel = handles.open_child(Kind::Kernel, 2, 0, Some(parent), None).unwrap();
    let kernels_parameters = || handles.pin(Kind::Kernel, kernel).unwrap().parameters().is_some();
    assert!(!kernels_parameters());
    // The driver is asked for a kernel's library, and for what a kernel takes.
    assert_eq!(handles.open(Kind::Library, 1, 0), Ok(library));
    let layout = Parameters { offsets: Vec::new(), sizes: Vec::new(), bytes: 0 };
    assert_eq!(handles.open_child(Kind::Kernel, 2, 0, None, Some(layout)), Ok(kernel));
    assert!(kernels_parameters());
    handles.close(Kind::Library, library).unwrap();
    assert!(handles.pin(Kind::Kernel, kernel).is_err(), "a kernel outlives its library");
}

#[test]
fn what_is_lent_stays_until_all_are_done_with_it() {
    let handles = handles();
    let graph = handles.open(Kind::Graph, 1, 1).unwrap();
    let object = handles.pin(Kind::Graph, graph).unwrap();
    let (one, other) = (Lent::new(&object), Lent::new(&object));
    drop(object);
    drop(one);
    assert_eq!(handles.close(Kind::Graph, graph), Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE)));
    drop(other);
    assert!(handles.close(Kind::Graph, graph).is_ok());
}

#[test]
fn a_context_stays_until_nobody_uses_what_lives_in_it() {
    let handles = handles();
    let context = handles.open(Kind::Context, 1, 0).unwrap();
    let index = Handle::from_word(context).unwrap().index;
    let array = handles.open(Kind::Array, 2, index).unwrap();
    let (user, home) = (handles.get(array).unwrap(), Arc::downgrade(&handles.get(context).unwrap()));
    handles.close_context(index);
    handles.close(Kind::Context, context).unwrap();
    assert!(handles.get(array).is_err() && handles.get(context).is_err());
    assert!(home.upgrade().is_some(), "the driver would free what somebody uses");
    drop(user);
    assert!(home.upgrade().is_none());
}

#[test]
fn a_level_goes_with_its_mipmapped_array() {
    let handles = handles();
    let whole = handles.open(Kind::MipmappedArray, 1, 1).unwrap();
    let parent = handles.pin(Kind::MipmappedArray, whole).unwrap();
    let level = handles.open_child(Kind::Array, 2, 1, Some(parent), None).unwrap();
    handles.close(Kind::MipmappedArray, whole).unwrap();
    assert!(handles.pin(Kind::Array, level).is_err());
}

#[test]
fn nothing_outlives_the_context_that_it_came_from() {
    const THIS: u32 = 1;
    const OTHER: u32 = 2;
    let handles = handles();
    let module = handles.open(Kind::Module, 1, THIS).unwrap();
    let parent = handles.pin(Kind::Module, module).unwrap();
    // Asked for in another context.
    let function = handles.open_child(Kind::Function, 2, OTHER, Some(parent), None).unwrap();
    let uses = |word: u64, kind| {
        let graph = handles.pin(kind, word).unwrap();
        graph.hold(&handles.pin(Kind::Function, function).unwrap());
        word
    };
    let graph = uses(handles.open(Kind::Graph, 3, OTHER).unwrap(), Kind::Graph);
    let exec = uses(handles.open(Kind::GraphExec, 4, OTHER).unwrap(), Kind::GraphExec);
    let node = handles.pin(Kind::Graph, graph).unwrap();
    let node = handles.open_child(Kind::GraphNode, 5, OTHER, Some(node), None).unwrap();
    let apart = handles.open(Kind::Graph, 6, OTHER).unwrap();
    handles.close_context(THIS);
    for (kind, word) in
        [(Kind::Function, function), (Kind::Graph, graph), (Kind::GraphExec, exec), (Kind::GraphNode, node)]
    {
        assert!(handles.pin(kind, word).is_err(), "{kind:?}");
    }
    assert!(handles.pin(Kind::Graph, apart).is_ok());
}

#[test]
fn a_module_that_turns_out_to_be_a_librarys_goes_with_it() {
    let handles = handles();
    let library = handles.open(Kind::Library, 1, 0).unwrap();
    let module = handles.open(Kind::Module, 2, 1).unwrap();
    let parent = handles.pin(Kind::Module, module).unwrap();
    let function = handles.open_child(Kind::Function, 3, 1, Some(parent), None).unwrap();
    let parent = handles.pin(Kind::Library, library).unwrap();
    assert_eq!(handles.open_child(Kind::Module, 2, 0, Some(parent), None), Ok(module));
    handles.close(Kind::Library, library).unwrap();
    assert!(handles.pin(Kind::Module, module).is_err() && handles.pin(Kind::Function, function).is_err());
}

#[test]
fn a_library_takes_its_module_and_the_modules_functions_along() {
    let handles = handles();
    let library = handles.open(Kind::Library, 1, 0).unwrap();
    let parent = handles.pin(Kind::Library, library).unwrap();
    let module = handles.open_child(Kind::Module, 2, 0, Some(parent), None).unwrap();
    let parent = handles.pin(Kind::Module, module).unwrap();
    let function = handles.open_child(Kind::Function, 3, 1, Some(parent.clone()), None).unwrap();
    assert_eq!(handles.open_child(Kind::Function, 3, 1, Some(parent), None).unwrap(), function);
    handles.close(Kind::Library, library).unwrap();
    assert!(handles.pin(Kind::Module, module).is_err());
    assert!(handles.pin(Kind::Function, function).is_err());
}

/// Counts what it destroys, in place of a driver.
static DESTROYED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

unsafe extern "C" fn count_destroyed(_: *mut c_void) -> CUresult {
    DESTROYED.fetch_add(1, Ordering::Relaxed);
    CUDA_SUCCESS
}

#[test]
fn the_last_user_destroys_what_was_closed_and_only_once() {
    let driver = Driver { cuStreamDestroy_v2: count_destroyed, ..Driver::missing() };
    let handles = Handles::new(Arc::new(driver), 1);
    let stream = handles.open(Kind::Stream, 7, 1).unwrap();
    let user = handles.pin(Kind::Stream, stream).unwrap();
    assert_eq!(handles.close(Kind::Stream, stream), Ok(CUDA_SUCCESS));
    assert!(handles.pin(Kind::Stream, stream).is_err());
    assert_eq!(DESTROYED.load(Ordering::Relaxed), 0);
    drop(user);
    assert_eq!(DESTROYED.load(Ordering::Relaxed), 1);
    let stream = handles.open(Kind::Stream, 8, 1).unwrap();
    handles.close(Kind::Stream, stream).unwrap();
    assert_eq!(DESTROYED.load(Ordering::Relaxed), 2);
}

#[test]
fn a_graph_takes_its_nodes_along_and_keeps_what_they_use() {
    let destroyed = || DESTROYED_GRAPHS.load(Ordering::Relaxed);
    let driver = Driver {
        cuGraphDestroy: count_destroyed_graphs,
        cuGraphDestroyNode: count_destroyed_graphs,
        ..Driver::missing()
    };
    let handles = Handles::new(Arc::new(driver), 1);
    let word = handles.open(Kind::Graph, 1, 1).unwrap();
    let graph = handles.pin(Kind::Graph, word).unwrap();
    let node = handles.open_child(Kind::GraphNode, 2, 1, Some(graph.clone()), None).unwrap();
    let inner = handles.open_child(Kind::Graph, 3, 1, handles.pin(Kind::GraphNode, node).ok(), None).unwrap();
    handles.pin(Kind::Graph, inner).unwrap().borrowed.store(true, Ordering::Release);
    let function = handles.open(Kind::Function, 4, 1).unwrap();
    let held = Arc::downgrade(&handles.pin(Kind::Function, function).unwrap());
    graph.hold(&handles.pin(Kind::Function, function).unwrap());
    drop(graph);
    assert_eq!(handles.close(Kind::Graph, inner), Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE)));
    handles.close(Kind::Function, function).unwrap();
    assert!(held.upgrade().is_some());
    handles.close(Kind::Graph, word).unwrap();
    assert_eq!(destroyed(), 1);
    assert!(held.upgrade().is_none());
    assert!(handles.pin(Kind::GraphNode, node).is_err() && handles.pin(Kind::Graph, inner).is_err());
    // A context takes its graphs along, each once.
    let word = handles.open(Kind::Graph, 1, 1).unwrap();
    let graph = handles.pin(Kind::Graph, word).unwrap();
    handles.open_child(Kind::GraphNode, 2, 1, Some(graph), None).unwrap();
    handles.close_context(1);
    assert_eq!(destroyed(), 2);
}

static DESTROYED_GRAPHS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

unsafe extern "C" fn count_destroyed_graphs(_: *mut c_void) -> CUresult {
    DESTROYED_GRAPHS.fetch_add(1, Ordering::Relaxed);
    CUDA_SUCCESS
}

#[test]
fn primary_contexts_have_fixed_places() {
    let handles = handles();
    assert!(handles.context(1).is_none());
    handles.set_primary(0, Some(7));
    assert_eq!(handles.context(1).unwrap().raw, 7);
    let word = Handle { kind: Kind::Context, generation: 1, index: 1 }.to_word();
    assert_eq!(handles.pin(Kind::Context, word).unwrap().raw, 7);
    assert!(handles.context(2).is_none());
    assert!(handles.context(99).is_none());
}

#[test]
fn a_flood_ends_in_out_of_memory() {
    let handles = handles();
    for raw in 0..MOST_HANDLES as u64 - 3 {
        handles.open(Kind::Event, raw + 1, 1).unwrap();
    }
    assert!(handles.room().is_err());
    assert!(handles.open(Kind::Event, u64::MAX, 1).is_err());
}

#[test]
fn every_stream_is_found_until_it_is_gone() {
    let handles = handles();
    assert!(handles.streams().is_empty());
    handles.set_primary(1, Some(0x10));
    let stream = handles.open(Kind::Stream, 0x1000, 2).unwrap();
    handles.open(Kind::Event, 0x2000, 2).unwrap();
    let found = || handles.streams().iter().map(|(context, stream)| (*context, stream.raw)).collect::<Vec<_>>();
    assert_eq!(found(), [(2, 0), (2, 0x1000)], "the default stream of each context is one");
    handles.forget(stream);
    assert_eq!(found(), [(2, 0)]);
    handles.set_primary(1, None);
    assert!(found().is_empty());
}
