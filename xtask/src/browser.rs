//! `cargo xtask browser`: the status page as a browser shows it.
//!
//! Debian's Chromium runs the page without a window and prints what has become of the document. The page must have
//! looked several times, and show every zone in the table and in both charts.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use xtask::{paths, sh};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const ZONES: [&str; 2] = ["first-zone", "second-zone"];
/// Seconds that pass for the page; it looks once in each.
const SECONDS: usize = 5;

/// The browser of this machine, if it has one.
pub(crate) fn find() -> Option<&'static str> {
    BROWSERS.into_iter().find(|name| sh::exists(name))
}

/// Installs one where there is none.
pub(crate) fn install() -> Result<()> {
    if find().is_some() { Ok(()) } else { sh::install("chromium", "chromium") }
}

/// Needs the staged tree.
pub(crate) fn check() -> Result<()> {
    let browser = find().context("there is no Chromium on this machine")?;
    let node = Node::start()?;
    node.wait_for_history()?;
    let document = sh::output(Command::new(browser).args([
        "--headless",
        // Inside of a container, as root, it has no other way; what it opens is our own page.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        &format!("--user-data-dir={}", node.dir.join("browser").display()),
        &format!("--virtual-time-budget={}", SECONDS * 1000),
        "--dump-dom",
        &format!("http://{}/", node.address),
    ]))?;
    let looks: usize = between(&document, "data-looks=\"", "\"").unwrap_or_default().parse().unwrap_or(0);
    ensure!(looks >= 2, "the page has looked {looks} times\n{document}");
    let kept: usize = between(&document, "data-kept=\"", "\"").unwrap_or_default().parse().unwrap_or(0);
    ensure!(kept >= 1, "the page has nothing from before it was opened\n{document}");
    let host = between(&document, "<span id=\"host\">", "</span>").unwrap_or_default();
    let title = between(&document, "<title>", "</title>").unwrap_or_default();
    ensure!(!host.is_empty() && title == format!("{host} · Bulkhead"), "the title is {title:?}, the host {host:?}");
    ensure!(
        document.contains("data-limit=\"1073741824\""),
        "there is no line at the limits of both zones\n{document}"
    );
    ensure!(document.contains("data-state=\"ok\""), "the bars have no state\n{document}");
    ensure!(document.contains("soft · CUDA "), "the page does not name the backend\n{document}");
    let table = between(&document, "<tbody id=\"zones\">", "</tbody>").unwrap_or_default();
    for zone in ZONES {
        ensure!(table.contains(zone), "{zone} is not in the table\n{document}");
        for chart in ["memory", "time"] {
            let drawn = between(&document, &format!("<svg id=\"{chart}\""), "</svg>").unwrap_or_default();
            let shape = format!("data-zone=\"{zone}\"");
            ensure!(drawn.contains(&shape), "{zone} is not in the chart of {chart}\n{document}");
        }
    }
    ensure!(table.contains("512 MiB"), "the limit is not shown\n{document}");
    let trouble = between(&document, "role=\"status\">", "<").unwrap_or_default();
    ensure!(!trouble.contains("no answer"), "the page complains: {trouble}");
    println!("{browser}: {looks} looks, {} zones in table and charts", ZONES.len());
    Ok(())
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

/// A proxy on the software GPU that serves the page.
struct Node {
    proxy: Child,
    dir: PathBuf,
    address: String,
}

impl Node {
    /// The service looks at the zones every few seconds; the page is to show what was before it was opened.
    fn wait_for_history(&self) -> Result<()> {
        for _ in 0..600 {
            let mut stream = TcpStream::connect(&self.address)?;
            write!(stream, "GET /api/history HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            if answer.contains("age_ms") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the service keeps no history")
    }

    fn start() -> Result<Node> {
        let dir = std::env::temp_dir().join(format!("bulkhead-browser-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut command = Command::new(paths::stage().join("bin/bulkhead"));
        command.args(["proxy", "--backend", "soft", "--jail", "best-effort", "--http", "127.0.0.1:0"]);
        command.args(ZONES.iter().flat_map(|zone| ["--zone".to_owned(), format!("{zone}:memory=512MiB")]));
        command.arg("--state-dir").arg(dir.join("state")).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut proxy = command.spawn().context("cannot start the staged proxy")?;
        let output = proxy.stderr.take().context("no stderr")?;
        let mut node = Node { proxy, dir, address: String::new() };
        let mut lines = BufReader::new(output).lines();
        let mut serves = false;
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some((_, address)) = line.split_once("status page address=") {
                node.address = address.trim().to_owned();
            }
            serves |= line.contains(" serving ");
            // The page is another process's, whose line may come first or last.
            if serves && !node.address.is_empty() {
                // It must not wait for somebody to read what it says.
                std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
                return Ok(node);
            }
        }
        bail!("the staged proxy did not start")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
