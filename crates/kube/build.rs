//! Makes Rust of the messages that we speak with kubelet. No `protoc` is needed.

use std::error::Error;

const FILES: [&str; 4] = ["deviceplugin.proto", "dra.proto", "pluginregistration.proto", "podresources.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let described = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure().compile_fds(described)?;
    Ok(())
}
