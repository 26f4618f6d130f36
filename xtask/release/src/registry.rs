//! A registry that serves one OCI layout to those who pull from it: to see that what a release holds can be pulled.

use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

/// Serves an unpacked layout on this machine until the process ends.
pub(crate) fn serve(layout: &Path) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot serve the layout")?;
    let address = listener.local_addr()?;
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let digest = index["manifests"][0]["digest"].as_str().context("the layout has no manifest")?.to_owned();
    let blobs = layout.join("blobs/sha256");
    std::thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            // Who hangs up early has what he wants.
            let _ = answer(peer, &blobs, &digest);
        }
    });
    Ok(address)
}

fn answer(peer: TcpStream, blobs: &Path, manifest: &str) -> Result<()> {
    let mut lines = BufReader::new(peer.try_clone()?).lines();
    let request = lines.next().context("no request")??;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body, digest) = match found(path, blobs, manifest) {
        Some((kind, digest, body)) => ("200 OK", kind, body, digest),
        None => ("404 Not Found", "text/plain", Vec::new(), String::new()),
    };
    let mut peer = peer;
    let length = body.len();
    write!(
        peer,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nDocker-Content-Digest: {digest}\r\n\
         Docker-Distribution-Api-Version: registry/2.0\r\nConnection: close\r\n\r\n"
    )?;
    if method == "GET" {
        peer.write_all(&body)?;
    }
    Ok(())
}

/// What a path of the distribution's interface means here: type, digest, bytes.
fn found(path: &str, blobs: &Path, manifest: &str) -> Option<(&'static str, String, Vec<u8>)> {
    if path == "/v2/" {
        return Some(("application/json", String::new(), b"{}".to_vec()));
    }
    let (kind, digest) = match path.rsplit_once('/')? {
        (start, name) if start.ends_with("/blobs") => ("application/octet-stream", name),
        (start, name) if start.ends_with("/manifests") && name.starts_with("sha256:") => (MANIFEST, name),
        // Whatever the tag: there is one.
        (start, _) if start.ends_with("/manifests") => (MANIFEST, manifest),
        _ => return None,
    };
    let hash = digest.strip_prefix("sha256:").filter(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some((kind, digest.to_owned(), fs::read(blobs.join(hash)).ok()?))
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
