//! Loads PTX files and compiles every kernel in them, to see what is missing.
//! `cargo run -p ptx-exec --example check_ptx -- FILE…`

use std::sync::Arc;

use ptx_exec::Module;

fn main() {
    let mut bad = 0;
    for path in std::env::args().skip(1) {
        let module = match std::fs::read_to_string(&path)
            .map_err(|e| e.to_string())
            .and_then(|text| Module::from_ptx(&text).map_err(|error| error.to_string()))
        {
            Ok(module) => Arc::new(module),
            Err(error) => {
                println!("{path}: {error}");
                bad += 1;
                continue;
            }
        };
        // Addresses do not matter: nothing is run.
        let program = module.clone().link(&vec![ptx_exec::window::BASE; module.variables().len()]);
        for (index, kernel) in module.kernels().iter().enumerate() {
            if let Err(fault) = program.compile(index) {
                println!("{path}: {}: {}", kernel.name, fault.message);
                bad += 1;
            }
        }
        println!("{path}: {} kernels", module.kernels().len());
    }
    std::process::exit(i32::from(bad > 0));
}
