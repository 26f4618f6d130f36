//! Zones on several GPUs: memory and time of each are a matter of its own, however a program names its devices.

use conformance::harness::{Honest, Place, Proxy, until};
use control::ZoneSettings;
use control::admin::{AdminClient, Answer, Request, ZoneGpuStatus};
use control::zone::{Change, ZoneChange};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_conformance"))
}

/// A program that shares memory, on the device that it calls `device` where it sees `visible`.
fn sharer(place: &Place, proxy: &Proxy<'_>, zone: &str, visible: &str, device: u32) -> Honest {
    let mut command = place.player(&["sharer", &device.to_string()], &proxy.socket(zone));
    command.env("CUDA_VISIBLE_DEVICES", visible);
    Honest::from_command(command)
}

/// A program that keeps one GPU busy.
fn saturating(place: &Place, proxy: &Proxy<'_>, zone: &str, gpu: usize) -> Honest {
    let mut command = place.player(&["client"], &proxy.socket(zone));
    command.env("CUDA_VISIBLE_DEVICES", gpu.to_string());
    let mut client = Honest::from_command(command);
    assert_eq!(client.ask("saturate"), "ok");
    client
}

fn zone_on(place: &Place, name: &str, gpus: &[u32]) {
    let mut settings = ZoneSettings::default();
    settings.bindings.gpus = gpus.to_vec();
    let client = AdminClient::connect(&place.state().join("admin.sock")).expect("the broker is there");
    let made = client.ask(&Request::CreateZone { name: name.parse().unwrap(), settings });
    assert!(matches!(made, Ok(Answer::Zone { .. })), "{made:?}");
}

fn remove(place: &Place, name: &str) {
    let client = AdminClient::connect(&place.state().join("admin.sock")).expect("the broker is there");
    let gone = client.ask(&Request::RemoveZone { name: name.parse().unwrap(), force: true });
    assert!(matches!(gone, Ok(Answer::Removed)), "{gone:?}");
}

fn on_gpu(proxy: &Proxy<'_>, zone: &str, gpu: u32) -> ZoneGpuStatus {
    proxy.zone(zone).gpus.into_iter().find(|status| status.gpu == gpu).expect("the zone has it")
}

fn memory(gpu: Option<u32>, bytes: u64) -> ZoneChange {
    ZoneChange { gpu, memory: Change::Set(bytes), ..ZoneChange::default() }
}

#[test]
fn memory_is_limited_on_each_gpu_whatever_programs_call_it() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["a"], &["--soft-devices", "8"]);
    proxy.change("a", memory(None, 200 * MIB));
    proxy.change("a", memory(Some(5), 40 * MIB));
    // Its first device is the node's sixth GPU, its second one the third.
    let mut fifth = sharer(&place, &proxy, "a", "5,2", 0);
    let mut second = sharer(&place, &proxy, "a", "5,2", 1);
    let mut plain = sharer(&place, &proxy, "a", "0,1,2,3,4,5,6,7", 7);
    let too_much = format!("alloc {}", 60 * MIB);
    assert_eq!(fifth.ask(&too_much), OUT_OF_MEMORY);
    fifth.expect(&[(&format!("alloc {}", 20 * MIB), "ok")]);
    second.expect(&[(&format!("alloc {}", 100 * MIB), "ok"), ("fill 3", "ok"), ("read", "3")]);
    plain.expect(&[(&format!("alloc {}", 150 * MIB), "ok"), ("fill 4", "ok"), ("read", "4")]);
    let used = |gpu| on_gpu(&proxy, "a", gpu).used;
    assert!((20 * MIB..40 * MIB).contains(&used(5)), "{}", used(5));
    assert!((100 * MIB..110 * MIB).contains(&used(2)), "{}", used(2));
    assert!((150 * MIB..160 * MIB).contains(&used(7)), "{}", used(7));
    assert_eq!(used(1), 0);
    // What is left is told of the GPU that asks.
    let free = |client: &mut Honest| client.ask("free-bytes").parse::<u64>().expect("a number");
    assert_eq!(free(&mut fifth), 40 * MIB - used(5));
    assert_eq!(free(&mut second), 200 * MIB - used(2));
    // Memory of one GPU that is opened in another process counts where it is, once.
    let handle = second.ask("handle");
    plain.expect(&[("free", "ok")]);
    plain.opens(&handle);
    let mut other = sharer(&place, &proxy, "a", "2", 0);
    other.opens(&handle);
    assert!((100 * MIB..115 * MIB).contains(&used(2)), "{}", used(2));
    for client in [fifth, second, plain, other] {
        client.quit();
    }
    until("all is given back", || proxy.zone("a").gpus.iter().all(|gpu| gpu.used == 0));
    proxy.stop();
    place.nothing_is_left();
}

/// A zone on all GPUs that does nothing joins nobody: those that have a GPU for themselves never wait for a turn. Those that
/// meet on one do.
#[test]
fn gpus_are_scheduled_apart() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["everywhere"], &["--soft-devices", "4"]);
    let zones = ["on-0", "on-1", "on-2"];
    for (gpu, zone) in zones.iter().enumerate() {
        zone_on(&place, zone, &[gpu as u32]);
    }
    let mut everywhere = sharer(&place, &proxy, "everywhere", "0,1,2,3", 0);
    everywhere.expect(&[(&format!("alloc {MIB}"), "ok"), ("fill 1", "ok")]);
    let mut clients: Vec<Honest> = zones.iter().map(|zone| saturating(&place, &proxy, zone, 0)).collect();
    let rounds = |client: &mut Honest| client.ask("rounds").parse::<u64>().expect("a number");
    let before: Vec<u64> = clients.iter_mut().map(rounds).collect();
    until("all of them get on", || {
        clients.iter_mut().zip(&before).all(|(client, before)| rounds(client) > before + 20)
    });
    // The one that is everywhere worked for a moment when it began, on the first GPU.
    let turns: Vec<u64> = zones.iter().map(|zone| proxy.zone(zone).turns).collect();
    assert_eq!(turns[1..], [0, 0], "they have nobody to wait for");
    // Now it works on the second GPU, and takes turns there.
    let busy = saturating(&place, &proxy, "everywhere", 1);
    until("they take turns on the second", || {
        on_gpu(&proxy, "on-1", 1).turns > 3 && on_gpu(&proxy, "everywhere", 1).turns > 3
    });
    assert_eq!(proxy.zone("on-2").turns, 0, "the third is somebody's alone");
    assert_eq!(on_gpu(&proxy, "everywhere", 3).turns, 0);
    drop((busy, everywhere));
    drop(clients);
    for zone in zones {
        remove(&place, zone);
    }
    proxy.stop();
    place.nothing_is_left();
}

/// The GPU that works is that of the stream, whatever context is current.
#[test]
fn a_stream_of_another_gpu_takes_turns_there() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["a", "b"], &["--soft-devices", "2"]);
    let busy = saturating(&place, &proxy, "a", 1);
    let mut client = Honest::start(&place, &proxy.socket("b"));
    until("it has had turns on the second GPU", || {
        assert_eq!(client.ask("elsewhere"), "ok");
        on_gpu(&proxy, "b", 1).turns > 5
    });
    assert_eq!(on_gpu(&proxy, "b", 0).turns, 0, "nobody else is on the first");
    drop((busy, client));
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn priorities_are_those_of_the_gpu() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["a", "b"], &["--soft-devices", "2"]);
    let above = |gpu| ZoneChange { gpu: Some(gpu), priority: Some(50), ..ZoneChange::default() };
    proxy.change("a", above(0));
    proxy.change("b", above(1));
    let mut clients: Vec<Honest> = [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
        .into_iter()
        .map(|(zone, gpu)| saturating(&place, &proxy, zone, gpu))
        .collect();
    let rounds = |client: &mut Honest| client.ask("rounds").parse::<u64>().expect("a number");
    // On a busy machine who comes first may have nothing to do for a moment, which the other then gets.
    until("each comes first where it is above the other", || {
        let before: Vec<u64> = clients.iter_mut().map(rounds).collect();
        std::thread::sleep(std::time::Duration::from_millis(700));
        let done: Vec<u64> =
            clients.iter_mut().zip(&before).map(|(client, before)| rounds(client) - before).collect();
        done[0] > 2 * done[1] && done[3] > 2 * done[2]
    });
    drop(clients);
    proxy.stop();
    place.nothing_is_left();
}
