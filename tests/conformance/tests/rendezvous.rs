//! Programs that hand buffers over by name: from a shell, from Python and from C, between processes and zones.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use conformance::harness::{self, Node, until};
use control::rendezvous::{RendezvousClient, RendezvousError, RendezvousMessage, code, kind};

const TIMED_OUT: i32 = 79;
const PEER_LOST: i32 = 80;

fn on_node(zones: &[&str], body: impl FnOnce(&mut Node<'_>)) {
    harness::on_node(env!("CARGO_BIN_EXE_conformance"), zones, body);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `bulkhead ipc …` in a zone.
fn ipc(node: &Node<'_>, zone: &str, arguments: &[&str]) -> Command {
    let mut command = node.place.bulkhead(&["ipc"]);
    command.args(arguments).env("BULKHEAD_SOCKET", node.socket(zone));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn started(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

fn ended(child: Child) -> (Option<i32>, String) {
    said(&child.wait_with_output().expect("our child"))
}

fn said(output: &Output) -> (Option<i32>, String) {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&all).into_owned())
}

fn name(text: &str) -> control::ZoneName {
    text.parse().expect("a name")
}

fn bytes(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    hex::decode_to_slice(text, &mut bytes).expect("128 hexadecimal digits");
    bytes
}

/// Until so many programs wait for a name.
fn until_waiting(node: &Node<'_>, count: usize) {
    until("they wait", || node.try_status().is_some_and(|status| status.sharing.waiting == count));
}

#[test]
fn a_consumer_may_come_first_and_both_learn_of_the_other() {
    on_node(&["a"], |node| {
        let mut producer = node.sharer("a");
        producer.expect(&[("alloc 4194304", "ok"), ("fill 7", "ok")]);
        let handle = producer.ask("handle");
        let consumer =
            started(ipc(node, "a", &["wait", "x", "--timeout", "60", "--", "sh", "-c", "echo $BULKHEAD_IPC_HANDLE"]));
        until_waiting(node, 1);
        let publisher = started(ipc(node, "a", &["publish", "x", "--handle", &handle, "--bytes", "4194304"]));
        let (status, text) = ended(consumer);
        assert_eq!((status, text.trim()), (Some(0), handle.as_str()));
        let (status, text) = ended(publisher);
        assert_eq!(status, Some(0), "{text}");
        assert!(
            text.contains("consumer 1 in zone a connected\n") && text.contains("consumer 1 in zone a finished\n"),
            "{text}"
        );
        // One that fails is not done.
        let publisher = started(ipc(node, "a", &["publish", "x", "--handle", &handle]));
        assert_eq!(said(&ipc(node, "a", &["wait", "x", "--", "false"]).output().expect("it runs")).0, Some(1));
        let (status, text) = ended(publisher);
        assert!(status == Some(PEER_LOST) && text.contains("died"), "{text}");
        producer.quit();
    });
}

#[test]
fn what_does_not_come_in_time_is_said_so() {
    on_node(&["a", "b"], |node| {
        let wait = |zone: &str| said(&ipc(node, zone, &["wait", "x", "--timeout", "0.2"]).output().expect("it runs"));
        let (status, text) = wait("a");
        assert!(status == Some(TIMED_OUT) && text.contains("timed out"), "{text}");
        // Of another zone, without a grant: it looks as if there were nothing.
        let _publication =
            RendezvousClient::publish(&node.socket("a"), &RendezvousMessage::new(kind::PUBLISH).named(&name("x")))
                .expect("published");
        assert_eq!(wait("b").0, Some(TIMED_OUT));
        assert_eq!(wait("a").0, Some(0));
        let listed = |zone: &str| said(&ipc(node, zone, &["list", "--json"]).output().expect("it runs")).1;
        assert!(listed("a").contains("\"x\"") && listed("b").trim() == "[]");
        let publish = ipc(node, "a", &["publish", "y", "--timeout", "0.2"]).output().expect("it runs");
        assert_eq!(said(&publish).0, Some(TIMED_OUT));
        // No zone at all.
        let mut nowhere = ipc(node, "a", &["list", "--zone-socket", "/nowhere"]);
        assert_eq!(said(&nowhere.output().expect("it runs")).0, Some(69));
    });
}

#[test]
fn stale_handles_are_refused_and_never_handed_out() {
    on_node(&["a"], |node| {
        let mut producer = node.sharer("a");
        producer.expect(&[("alloc 4194304", "ok")]);
        let handle = producer.ask("handle");
        let mut offer = RendezvousMessage::new(kind::PUBLISH).named(&name("x"));
        offer.memory = bytes(&handle);
        let socket = node.socket("a");
        let publication = RendezvousClient::publish(&socket, &offer).expect("published");
        assert!(matches!(
            RendezvousClient::publish(&socket, &offer),
            Err(RendezvousError::Refused(code::NAME_TAKEN))
        ));
        producer.expect(&[("free", "ok")]);
        let soon = || Some(Instant::now() + Duration::from_millis(100));
        let request = RendezvousMessage::new(kind::WAIT).named(&name("x"));
        assert!(matches!(RendezvousClient::wait(&socket, &request, soon()), Err(RendezvousError::TimedOut)));
        assert!(
            matches!(RendezvousClient::publish(&socket, &offer), Err(RendezvousError::Refused(code::STALE))),
            "freed"
        );
        // Another one takes the name, and who had it is told.
        producer.expect(&[("alloc 4194304", "ok")]);
        offer.memory = bytes(&producer.ask("handle"));
        let again = RendezvousClient::publish(&socket, &offer).expect("published");
        let told = publication.hear(Some(Instant::now() + harness::TIMEOUT)).expect("an answer").expect("one");
        assert_eq!((told.kind, told.code), (kind::REFUSED, code::STALE));
        // With the broker goes what it knew, and publishers learn of it.
        node.kill();
        assert!(again.hear(Some(Instant::now() + harness::TIMEOUT)).is_err());
        node.restart();
        assert!(
            matches!(RendezvousClient::publish(&socket, &offer), Err(RendezvousError::Refused(code::STALE))),
            "from before"
        );
        until("the worker has joined", || producer.ask("handle") != hex::encode(offer.memory));
        offer.memory = bytes(&producer.ask("handle"));
        drop(RendezvousClient::publish(&socket, &offer).expect("published"));
        producer.quit();
    });
}

#[test]
fn a_killed_producer_is_missed_at_once() {
    on_node(&["a"], |node| {
        let publisher = started(ipc(node, "a", &["publish", "x"]));
        let consumer_socket = node.socket("a");
        let request = RendezvousMessage::new(kind::WAIT).named(&name("x"));
        let (consumer, _) =
            RendezvousClient::wait(&consumer_socket, &request, Some(Instant::now() + harness::TIMEOUT))
                .expect("found");
        let mut publisher = publisher;
        publisher.kill().expect("our child");
        publisher.wait().expect("our child");
        let told = consumer.hear(Some(Instant::now() + harness::TIMEOUT)).expect("an answer").expect("one");
        assert_eq!((told.kind, told.code), (kind::GONE, code::DIED));
    });
}

fn python(node: &Node<'_>, zone: &str, script: &Path) -> Command {
    let mut command = node.place.program("python3", &node.socket(zone));
    command.arg(script).env("PYTHONPATH", root().join("bindings/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn python_programs_share_with_nothing_but_ctypes_also_between_zones() {
    on_node(&["a", "b"], |node| {
        node.grants(&["allow", "a", "b"]);
        let examples = root().join("examples/publish");
        for zone in ["a", "b"] {
            let consumer = started(python(node, zone, &examples.join("consume.py")));
            until_waiting(node, 1);
            let producer = started(python(node, "a", &examples.join("produce.py")));
            let (status, text) = ended(consumer);
            assert!(
                status == Some(0) && text.contains("1000000 bytes of zone a") && text.contains("forty-two"),
                "{text}"
            );
            let (status, text) = ended(producer);
            assert!(status == Some(0) && text.contains("is done with it"), "{text}");
        }
    });
}

#[test]
fn the_python_module_says_what_is_wrong() {
    on_node(&["a"], |node| {
        let script = node.place.path().join("wrong.py");
        std::fs::write(&script, WRONG).expect("a file");
        let (status, text) = said(&python(node, "a", &script).output().expect("python3 runs"));
        assert!(status == Some(0) && text.trim() == "all as expected", "{text}");
    });
}

const WRONG: &str = r#"
import bulkhead, os

def fails(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise SystemExit(f"{call} did not fail with {kind}")

fails(bulkhead.TimedOut, bulkhead.wait, "x", timeout=0.05)
fails(bulkhead.Refused, bulkhead.publish, "no name")
fails(ValueError, bulkhead.publish, "x" * 64)
fails(OSError, bulkhead.wait, "x", socket="/nowhere")

buffer = bulkhead.DeviceBuffer.of(bytes(range(256)) * 32768)
with bulkhead.publish("x", buffer, note=[1, "two"]) as publication:
    assert fails(bulkhead.Refused, bulkhead.publish, "x").code == 2
    [entry] = bulkhead.listing()
    assert (entry.name, entry.nbytes, entry.note) == ("x", 8 << 20, [1, "two"]), entry
    # A handle opens in another process, as natively.
    assert fails(bulkhead.CudaError, bulkhead.wait, "x").code == 201
    fails(bulkhead.Gone, publication.wait_done, timeout=5)
    child = os.fork()
    if child == 0:
        # A piece of it, by another way of saying what it is.
        os.execlp("python3", "python3", "-c", '''
import bulkhead
with bulkhead.wait("x", timeout=20) as shared:
    assert shared.tobytes() == bytes(range(256)) * 32768
    assert shared.__cuda_array_interface__["shape"] == (8 << 20,)
    assert not shared.publisher_is_gone(0.01)
with bulkhead.wait("piece", timeout=20) as shared:
    assert shared.tobytes() == bytes(range(16)), shared.tobytes()
''')
    publication.wait_done(timeout=30)
    with bulkhead.publish("piece", (buffer.address + 512, 16)) as piece:
        assert [event[0] for event in piece.events(timeout=1)] == ["taken", "finished"]
    assert os.waitpid(child, 0)[1] == 0
assert bulkhead.listing() == []
class Tensor:
    "Looks like one of PyTorch's, of a type that has no name elsewhere."
    is_cuda, dtype, shape = True, "torch.bfloat16", (2, 8)
    data_ptr = lambda self: buffer.address + 1024
    numel = lambda self: 16
    element_size = lambda self: 2
    is_contiguous = lambda self: self.shape == (2, 8)
    @property
    def __cuda_array_interface__(self):
        raise TypeError("bfloat16")

odd = Tensor()
odd.shape = (8, 2)
fails(ValueError, bulkhead.publish, "tensor", odd)
with bulkhead.publish("tensor", Tensor()) as publication:
    child = os.fork()
    if child == 0:
        os.execlp("python3", "python3", "-c", '''
import bulkhead
with bulkhead.wait("tensor", timeout=20) as shared:
    assert (shared.dtype, shared.shape, shared.nbytes) == ("bfloat16", (2, 8), 32)
    assert shared.tobytes() == bytes(range(32))
    assert shared.__cuda_array_interface__["shape"] == (32,)
''')
    publication.wait_done(timeout=30)
    assert os.waitpid(child, 0)[1] == 0
buffer.free()
with bulkhead.publish("signal") as publication:
    with bulkhead.wait("signal") as shared:
        assert shared.nbytes == 0
    publication.wait_done(timeout=5)
print("all as expected")
"#;

/// CUDA's header comes with the compiler that `cargo xtask toolchain` fetches.
fn cuda_headers() -> Option<PathBuf> {
    let cache = std::env::var_os("BULKHEAD_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from);
    let places = [cache.join("cuda/nvcc/include"), PathBuf::from("/usr/local/cuda/include")];
    places.into_iter().find(|place| place.join("cuda.h").is_file())
}

#[test]
fn c_programs_share_by_including_one_file() {
    let Some(headers) = cuda_headers() else {
        testkit::not_tried("there is no cuda.h (cargo xtask toolchain fetches it)");
        return;
    };
    on_node(&["a", "b"], |node| {
        node.grants(&["allow", "a", "b", "--read-write"]);
        let build = |name: &str| {
            let program = node.place.path().join(name);
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root().join("bindings/c"));
            cc.arg("-isystem").arg(&headers).arg(root().join("examples/publish").join(format!("{name}.c")));
            cc.arg("-L").arg(node.place.path().join("lib")).arg("-l:libcuda.so.1");
            assert!(cc.arg("-o").arg(&program).status().expect("a C compiler").success());
            program
        };
        let (produce, consume) = (build("produce"), build("consume"));
        let program = |path: &Path, zone: &str| node.place.program(path, &node.socket(zone));
        for zone in ["a", "b"] {
            let consumer = started(program(&consume, zone));
            until_waiting(node, 1);
            let producer = started(program(&produce, "a"));
            let (status, text) = ended(consumer);
            assert!(status == Some(0) && text.contains("4194304 bytes of zone a, and 42"), "{text}");
            let (status, text) = ended(producer);
            assert!(status == Some(0) && text.contains("left 43"), "{text}");
        }
        // A consumer that dies is told of.
        let mut producer = started(program(&produce, "a"));
        let mut line = [0; 10];
        producer.stdout.as_mut().expect("piped").read_exact(&mut line).expect("it publishes");
        assert_eq!(said(&ipc(node, "a", &["wait", "weights", "--", "false"]).output().expect("it runs")).0, Some(1));
        let (status, text) = ended(producer);
        assert!(status == Some(1) && text.contains("the consumer died"), "{text}");
    });
}
