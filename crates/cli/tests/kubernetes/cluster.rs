//! An API server: as much of one as the verbs ask for. It keeps JSON objects by their paths.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

pub struct Cluster {
    objects: Objects,
    address: std::net::SocketAddr,
    version: Arc<Mutex<u64>>,
}

impl Cluster {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cluster = Self { objects: Objects::default(), address, version: Arc::default() };
        let (objects, version) = (cluster.objects.clone(), cluster.version.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (objects, version) = (objects.clone(), version.clone());
                std::thread::spawn(move || while serve(&stream, &objects, &version).is_some() {});
            }
        });
        cluster
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
        self.objects.lock().unwrap().insert(path.to_owned(), object);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(path).cloned()
    }

    pub fn remove(&self, path: &str) {
        self.objects.lock().unwrap().remove(path);
    }

    /// A claim that the scheduler has given parts of this node's first GPU.
    pub fn allocate_claim(&self, namespace: &str, name: &str, uid: &str, memory: &str, share: &str) {
        self.allocate_claim_of(namespace, name, uid, &["gpu-0"], (memory, share));
    }

    /// So much of each of these devices.
    pub fn allocate_claim_of(&self, namespace: &str, name: &str, uid: &str, devices: &[&str], much: (&str, &str)) {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let result = |device: &&str| {
            json!({
                "driver": "gpu.bulkhead.dev", "pool": "node-1", "device": device, "request": "gpu",
                "shareID": format!("share-of-{uid}"), "consumedCapacity": { "memory": much.0, "share": much.1 },
            })
        };
        let results: Vec<_> = devices.iter().map(result).collect();
        self.put(
            &path,
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": { "name": name, "namespace": namespace, "uid": uid },
                "spec": {}, "status": { "allocation": { "devices": { "results": results } } },
            }),
        );
    }
}

/// One request of a connection; none when there is no more.
fn serve(stream: &TcpStream, objects: &Objects, version: &Mutex<u64>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let path = target.split('?').next()?.trim_end_matches('/').to_owned();
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
    let (code, answer) = answer(&method, &path, &body, objects, version);
    let answer = answer.to_string();
    let head =
        format!("HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
    let mut stream = stream;
    stream.write_all((head + &answer).as_bytes()).ok()
}

fn answer(method: &str, path: &str, body: &[u8], objects: &Objects, version: &Mutex<u64>) -> (u16, Value) {
    let mut objects = objects.lock().unwrap();
    let failure = |code: u16, reason: &str| {
        let text = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": format!("{path}: {reason}") });
        (code, text)
    };
    let stamp = |mut object: Value| {
        let mut version = version.lock().unwrap();
        *version += 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    };
    match method {
        "GET" => match objects.get(path) {
            Some(object) => (200, object.clone()),
            None if objects.keys().any(|key| key.starts_with(&format!("{path}/"))) || is_list(path) => {
                let prefix = format!("{path}/");
                let items: Vec<Value> =
                    objects.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(_, o)| o.clone()).collect();
                (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }))
            }
            None => failure(404, "NotFound"),
        },
        "POST" => {
            let object = stamp(serde_json::from_slice(body).unwrap());
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            objects.insert(format!("{path}/{name}"), object.clone());
            (201, object)
        }
        "PUT" => {
            let object: Value = serde_json::from_slice(body).unwrap();
            let there = objects.get(path).map(|there| there["metadata"]["resourceVersion"].clone());
            match there {
                Some(version) if version != object["metadata"]["resourceVersion"] => failure(409, "Conflict"),
                Some(_) => {
                    let object = stamp(object);
                    objects.insert(path.to_owned(), object.clone());
                    (200, object)
                }
                None => failure(404, "NotFound"),
            }
        }
        "DELETE" => match objects.remove(path) {
            Some(object) => (200, object),
            None => failure(404, "NotFound"),
        },
        _ => failure(405, "MethodNotAllowed"),
    }
}

fn is_list(path: &str) -> bool {
    path.ends_with("/resourceslices") || path.ends_with("/gpusharegrants")
}
