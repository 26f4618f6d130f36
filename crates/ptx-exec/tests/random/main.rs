//! Random kernels: interleaved on one fiber, run with a fiber for each thread, and computed here, they must give the same.
//!
//! `RANDOM_KERNELS=10000 cargo test -p softgpu --test random` tries more of them; `RANDOM_SEED=n` tries one and shows it.

#[path = "../kernels/mod.rs"]
mod kernels;
mod program;
mod reference;
mod text;

use kernels::{Device, Params, alloc, download, upload};

const BLOCKS: u32 = 3;

/// Runs the kernel on a device, and gives what its threads had at the end.
fn run(device: &Device, threads: u32, table: u64) -> Result<Vec<[u32; reference::RESULTS]>, String> {
    let count = (BLOCKS * threads) as usize;
    let out = alloc((count * 4 * reference::RESULTS) as u64);
    let params = Params::new().add(out).add(table);
    device.launch("random", [BLOCKS, 1, 1], [threads, 1, 1], 0, params).map_err(|fault| fault.to_string())?;
    Ok(download(out, count))
}

fn check(seed: u64) -> Result<(), String> {
    let program = program::draw(seed);
    let text = text::kernel(&program, "random");
    let words: Vec<u32> = (0..program::TABLE as u32).map(|at| at.wrapping_mul(0x85eb_ca6b) ^ at).collect();
    let table = upload(&words);
    let expected: Vec<_> = (0..BLOCKS).flat_map(|block| reference::block(&program, block, &words)).collect();
    let devices = [("interleaved", Device::load(&text)), ("on fibers", Device::with_fibers(&text))];
    for (how, device) in &devices {
        let got = run(device, program.block, table).map_err(|fault| format!("{how}: {fault}"))?;
        if let Some(at) = (0..got.len()).find(|at| got[*at] != expected[*at]) {
            return Err(format!(
                "{how}, thread {at} of {} in a block:\n{:x?}\n{:x?}",
                program.block, got[at], expected[at]
            ));
        }
    }
    Ok(())
}

#[test]
fn turns_fibers_and_the_reference_agree() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("RANDOM_SEED") {
        let program = program::draw(seed);
        println!("{}\n{:#?}", text::kernel(&program, "random"), program.body);
        check(seed).unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    for seed in 1..=number("RANDOM_KERNELS").unwrap_or(120) {
        check(seed).unwrap_or_else(|error| panic!("RANDOM_SEED={seed}: {error}"));
    }
}
