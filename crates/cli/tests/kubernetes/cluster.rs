//! An API server: as much of one as the verbs ask for. It keeps JSON objects by their paths.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

/// What there is, and what became of it.
#[derive(Default)]
struct Inside {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// The events of GpuShareGrants, as a watch shows them.
    events: Vec<(u64, String)>,
    /// Versions before this one are forgotten: who watches from there must list again.
    forgotten: u64,
    /// Bytes of annotations, which the server makes up as it answers, of each object in lists.
    padding: usize,
    /// Objects in the largest list that was answered.
    largest_page: usize,
    lists: usize,
    /// Reads of the node's slice.
    slice_reads: usize,
    /// Claims cannot be read.
    without_claims: bool,
}

type Shared = Arc<(Mutex<Inside>, Condvar)>;

pub struct Cluster {
    shared: Shared,
    address: std::net::SocketAddr,
}

/// Where GpuShareGrants of all namespaces are listed and watched.
const GRANTS: &str = "/apis/bulkhead.dev/v1alpha1/gpusharegrants";

impl Cluster {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared::default();
        let inside = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inside = inside.clone();
                std::thread::spawn(move || while serve(&stream, &inside).is_some() {});
            }
        });
        Self { shared, address }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.shared.0.lock().unwrap()
    }

    pub fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let path = dir.join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", self.address) } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": {} }],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    pub fn put(&self, path: &str, object: Value) {
        self.inside().objects.insert(path.to_owned(), object);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.inside().objects.get(path).cloned()
    }

    pub fn remove(&self, path: &str) {
        self.inside().objects.remove(path);
    }

    /// From now on nobody can read a claim.
    pub fn refuse_claims(&self) {
        self.inside().without_claims = true;
    }

    /// How often a slice was read.
    pub fn slice_reads(&self) -> usize {
        self.inside().slice_reads
    }

    /// Objects below a path.
    pub fn below(&self, path: &str) -> Vec<Value> {
        let prefix = format!("{path}/");
        let inside = self.inside();
        inside.objects.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(_, object)| object.clone()).collect()
    }

    /// Creates a GpuShareGrant, or changes it.
    pub fn grant(&self, namespace: &str, name: &str, spec: Value) {
        let metadata = json!({ "name": name, "namespace": namespace, "uid": format!("uid-of-{name}") });
        let object = json!({ "apiVersion": "bulkhead.dev/v1alpha1", "kind": "GpuShareGrant",
            "metadata": metadata, "spec": spec });
        self.inside().change(grant_path(namespace, name), Some(object));
        self.shared.1.notify_all();
    }

    pub fn revoke(&self, namespace: &str, name: &str) {
        self.inside().change(grant_path(namespace, name), None);
        self.shared.1.notify_all();
    }

    /// From now on each object that is listed or watched has annotations and managed fields of so many bytes.
    pub fn pad(&self, bytes: usize) {
        self.inside().padding = bytes;
    }

    /// Forgets what happened until now, as etcd does when it is compacted; watches end.
    pub fn compact(&self) {
        let mut inside = self.inside();
        inside.version += 1;
        inside.forgotten = inside.version;
        inside.events.clear();
        self.shared.1.notify_all();
    }

    /// Lists of GpuShareGrants that were answered, and the objects of the largest page among them.
    pub fn lists(&self) -> (usize, usize) {
        let inside = self.inside();
        (inside.lists, inside.largest_page)
    }

    /// A claim that the scheduler has given parts of this node's first GPU.
    pub fn allocate_claim(&self, namespace: &str, name: &str, uid: &str, memory: &str, share: &str) {
        self.allocate_claim_of(namespace, name, uid, &["gpu-0"], (memory, share));
    }

    /// So much of each of these devices.
    pub fn allocate_claim_of(&self, namespace: &str, name: &str, uid: &str, devices: &[&str], much: (&str, &str)) {
        let result = |device: &&str| result("gpu", device, uid, much);
        self.allocate_claim_as(namespace, name, uid, devices.iter().map(result).collect(), json!([]));
    }

    /// With these results, and with parameters of classes and of the claim.
    pub fn allocate_claim_as(&self, namespace: &str, name: &str, uid: &str, results: Vec<Value>, config: Value) {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let devices = json!({ "results": results, "config": config });
        self.put(
            &path,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": { "name": name, "namespace": namespace, "uid": uid },
                "spec": {}, "status": { "allocation": { "devices": devices } },
            }),
        );
    }
}

/// So much memory and share of a device of this node, for a request of a claim.
pub fn result(request: &str, device: &str, uid: &str, much: (&str, &str)) -> Value {
    json!({
        "driver": "gpu.bulkhead.dev", "pool": "node-1", "device": device, "request": request,
        "shareID": format!("share-of-{uid}"), "consumedCapacity": { "memory": much.0, "share": much.1 },
    })
}

fn grant_path(namespace: &str, name: &str) -> String {
    format!("{GRANTS}/{namespace}/{name}")
}

impl Inside {
    fn stamp(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object
    }

    /// Of a GpuShareGrant, which those who watch hear of.
    fn change(&mut self, path: String, object: Option<Value>) {
        let (kind, object) = match object {
            Some(object) => {
                let object = self.stamp(object);
                let known = self.objects.insert(path, object.clone()).is_some();
                (if known { "MODIFIED" } else { "ADDED" }, object)
            }
            None => {
                let object = self.objects.remove(&path).unwrap();
                ("DELETED", self.stamp(object))
            }
        };
        let object = self.padded(&object);
        self.events.push((self.version, json!({ "type": kind, "object": object }).to_string()));
    }

    fn padded(&self, object: &Value) -> Value {
        let mut object = object.clone();
        if self.padding > 0 {
            let half = "x".repeat(self.padding / 2);
            object["metadata"]["annotations"] = json!({ "large": half });
            object["metadata"]["managedFields"] = json!([{ "manager": half, "fieldsV1": { "f:spec": {} } }]);
        }
        object
    }

    /// A page of what is below a path: so many objects, after the one that `continue` names.
    fn page(&mut self, path: &str, limit: Option<usize>, after: Option<&String>) -> Value {
        let prefix = format!("{path}/");
        let mut keys = self.objects.keys().filter(|key| key.starts_with(&prefix));
        let after = after.map_or("", String::as_str);
        let mut keys: Vec<&String> = keys.by_ref().filter(|key| key.as_str() > after).collect();
        let more = limit.is_some_and(|limit| keys.len() > limit);
        keys.truncate(limit.unwrap_or(usize::MAX));
        let next = keys.last().filter(|_| more).map_or("", |key| key.as_str()).to_owned();
        let items: Vec<Value> = keys.iter().map(|key| self.padded(&self.objects[*key])).collect();
        if path == GRANTS {
            self.lists += 1;
            self.largest_page = self.largest_page.max(items.len());
        }
        let metadata = json!({ "resourceVersion": self.version.to_string(), "continue": next });
        json!({ "kind": "List", "apiVersion": "v1", "items": items, "metadata": metadata })
    }
}

/// One request of a connection; none when there is no more.
fn serve(stream: &TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.trim_end_matches('/').to_owned();
    let unquoted = |value: &str| value.replace("%2F", "/");
    let query: BTreeMap<String, String> = query
        .split('&')
        .filter_map(|pair| Some((pair.split_once('=')?.0.into(), unquoted(pair.split_once('=')?.1))))
        .collect();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    if method == "GET" && query.get("watch").is_some_and(|watch| watch == "true") {
        return watch(stream, shared, query.get("resourceVersion")?.parse().ok()?);
    }
    let (code, answer) = answer(&method, &path, &query, &body, &mut shared.0.lock().unwrap());
    let answer = answer.to_string();
    let head =
        format!("HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
    let mut stream = stream;
    stream.write_all((head + &answer).as_bytes()).ok()
}

/// Shows what happens to GpuShareGrants from a version on, until the other side is gone.
fn watch(mut stream: &TcpStream, shared: &Shared, from: u64) -> Option<()> {
    stream
        .write_all(b"HTTP/1.1 200 x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .ok()?;
    let mut seen = from;
    let mut inside = shared.0.lock().unwrap();
    loop {
        let expired = seen < inside.forgotten;
        let lines: String = if expired {
            let status =
                json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" });
            json!({ "type": "ERROR", "object": status }).to_string() + "\n"
        } else {
            let new =
                inside.events.iter().filter(|(version, _)| *version > seen).map(|(_, line)| format!("{line}\n"));
            let new = new.collect::<String>();
            seen = seen.max(inside.events.last().map_or(0, |(version, _)| *version));
            let bookmark = json!({ "type": "BOOKMARK",
                "object": { "metadata": { "resourceVersion": seen.to_string() } } });
            format!("{new}{bookmark}\n")
        };
        drop(inside);
        stream.write_all(format!("{:x}\r\n{lines}\r\n", lines.len()).as_bytes()).ok()?;
        if expired {
            return stream.write_all(b"0\r\n\r\n").ok();
        }
        // Now and then, so that a watch whose other side is gone ends.
        inside = shared.1.wait_timeout(shared.0.lock().unwrap(), Duration::from_millis(500)).unwrap().0;
    }
}

type Query = BTreeMap<String, String>;

fn answer(method: &str, path: &str, query: &Query, body: &[u8], inside: &mut Inside) -> (u16, Value) {
    let failure = |code: u16, reason: &str| {
        let text = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": format!("{path}: {reason}") });
        (code, text)
    };
    if inside.without_claims && path.contains("/resourceclaims/") {
        return failure(503, "ServiceUnavailable");
    }
    inside.slice_reads += usize::from(method == "GET" && path.contains("/resourceslices/"));
    match method {
        "GET" => match inside.objects.get(path) {
            Some(object) => (200, object.clone()),
            None if inside.objects.keys().any(|key| key.starts_with(&format!("{path}/"))) || is_list(path) => {
                let limit = query.get("limit").and_then(|limit| limit.parse().ok());
                (200, inside.page(path, limit, query.get("continue")))
            }
            None => failure(404, "NotFound"),
        },
        "POST" => {
            let mut object = inside.stamp(serde_json::from_slice(body).unwrap());
            let about = &mut object["metadata"];
            if let (None, Some(begin)) = (about["name"].as_str(), about["generateName"].as_str()) {
                about["name"] = format!("{begin}{}", inside.version).into();
            }
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            inside.objects.insert(format!("{path}/{name}"), object.clone());
            (201, object)
        }
        "PUT" => {
            let object: Value = serde_json::from_slice(body).unwrap();
            let there = inside.objects.get(path).map(|there| there["metadata"]["resourceVersion"].clone());
            match there {
                Some(version) if version != object["metadata"]["resourceVersion"] => failure(409, "Conflict"),
                Some(_) => {
                    let object = inside.stamp(object);
                    inside.objects.insert(path.to_owned(), object.clone());
                    (200, object)
                }
                None => failure(404, "NotFound"),
            }
        }
        "DELETE" => match inside.objects.remove(path) {
            Some(object) => (200, object),
            None => failure(404, "NotFound"),
        },
        _ => failure(405, "MethodNotAllowed"),
    }
}

fn is_list(path: &str) -> bool {
    path.ends_with("/resourceslices") || path == GRANTS
}
