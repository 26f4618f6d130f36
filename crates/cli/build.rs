//! Driver libraries find `ioctl` in the program before the C library's (see `backend::recorder`) only if it is among the
//! program's dynamic symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ioctl");
}
