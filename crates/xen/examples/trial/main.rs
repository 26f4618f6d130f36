//! Tries this crate in a real guest and its driver domain. Each part prints what it found; the last line of each is
//! `TRIAL <part> PASS` or a panic.
//!
//! In the driver domain: `trial pages-host DOMID`, `trial far-side DOMID`. In the guest: `trial pages-guest`,
//! `trial limits`, `trial suite`, `trial counts`; `trial done` ends the far side.

mod counts;
mod far_side;
mod limits;
mod pages;
mod suite;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let domain = |text: &str| text.parse().expect("a domain's number");
    match arguments[..] {
        ["pages-guest"] => pages::guest(),
        ["pages-host", domid] => pages::host(domain(domid)),
        ["pages-host-child"] => pages::host_child(),
        ["counts"] => counts::run(),
        ["done"] => suite::done(),
        ["limits"] => limits::limits(),
        ["far-side", domid] => far_side::run(domain(domid)),
        ["far-side-child"] => far_side::child(),
        ["suite"] => suite::run(""),
        ["suite", filter] => suite::run(filter),
        _ => panic!("unknown part {arguments:?}"),
    }
    println!("TRIAL {} PASS", arguments.join(" "));
}
