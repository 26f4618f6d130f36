//! `cargo run --release -p idm --example bench`: what a message costs on this machine.

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
fn main() -> Result<(), idm::bench::BenchError> {
    const FAR_SIDE: &str = "--far-side";
    if std::env::args().nth(1).as_deref() == Some(FAR_SIDE) {
        return idm::bench::peer();
    }
    let myself = std::env::current_exe().map_err(idm::bench::BenchError::Start)?;
    let mut far_side = std::process::Command::new(myself);
    far_side.arg(FAR_SIDE);
    println!("{}", idm::bench::run(idm::bench::Options::new(far_side))?);
    Ok(())
}
