//! `bulkhead bench rendezvous`: the latency from `publish` to the return of `wait` in another thread.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use control::ZoneLimits;
use control::admin::{Answer, Request};
use control::rendezvous::{RendezvousClient, RendezvousError, RendezvousMessage, kind};

use crate::args::{BackendArg, BackendArgs, JailArg};
use crate::exit::{Exit, Failure};
use crate::private_proxy::PrivateProxy;
use crate::progress::Progress;
use crate::{admin, verbs};

const ROUNDS: usize = 2000;
const WARM_UP: usize = 100;
/// Until the waiter sleeps.
const SETTLE: Duration = Duration::from_micros(300);

pub(crate) fn run(json: bool) -> Result<ExitCode, Failure> {
    let backend = BackendArgs { backend: Some(BackendArg::Soft), ..BackendArgs::default() };
    let proxy = PrivateProxy::start(&backend, JailArg::BestEffort, None)?;
    let client = admin::connect(&proxy.admin_socket())?;
    let name = "bench".parse().map_err(|error| Failure::new(Exit::Failure, format!("{error}")))?;
    let request = Request::EnsureZone { name, limits: ZoneLimits::default(), lease: true };
    let socket = match admin::ask(&client, &request)? {
        Answer::Zone { socket, .. } => socket,
        other => return Err(admin::unexpected(other)),
    };
    let progress = Progress::of("measuring rendezvous");
    let mut times = measure(&socket).map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    drop(progress);
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    if json {
        return verbs::status::print_json(&serde_json::json!({
            "rounds": times.len(), "p50_us": at(0.5), "p90_us": at(0.9), "p99_us": at(0.99), "max_us": at(1.0),
        }));
    }
    let text = format!(
        "publish to wake, {} rounds: p50 {:.1} us, p90 {:.1} us, p99 {:.1} us, max {:.1} us\n",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    verbs::man::print(text.as_bytes())
}

/// From the call of `publish`, connection and all, to the return of `wait` in another thread.
fn measure(socket: &Path) -> Result<Vec<Duration>, RendezvousError> {
    let name = "x".parse().map_err(|_| RendezvousError::Nonsense)?;
    let (offer, request) =
        (RendezvousMessage::new(kind::PUBLISH).named(&name), RendezvousMessage::new(kind::WAIT).named(&name));
    let (says_ready, ready) = mpsc::channel();
    let (says_woken, woken) = mpsc::channel();
    let (says_next, next) = mpsc::channel();
    let path = socket.to_owned();
    let waiter = std::thread::spawn(move || {
        for _ in 0..ROUNDS + WARM_UP {
            let client = RendezvousClient::connect(&path)?;
            client.say(&request)?;
            let _ = says_ready.send(());
            client.hear(None)?;
            let _ = says_woken.send(Instant::now());
            // Not before the publication is gone, else it finds that again.
            if next.recv().is_err() {
                break;
            }
        }
        Ok::<(), RendezvousError>(())
    });
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + WARM_UP {
        if ready.recv().is_err() {
            break;
        }
        std::thread::sleep(SETTLE);
        let start = Instant::now();
        let publication = RendezvousClient::publish(socket, &offer)?;
        let Ok(end) = woken.recv() else { break };
        if round >= WARM_UP {
            times.push(end.saturating_duration_since(start));
        }
        publication.say(&RendezvousMessage::new(kind::DONE))?;
        // Its name must be free for the next one.
        while publication.hear(None).is_ok() {}
        let _ = says_next.send(());
    }
    match waiter.join() {
        Ok(Ok(())) => Ok(times),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(RendezvousError::Nonsense),
    }
}
