//! The memory of simulated hosts. Alone in its program: other tests would be counted too.

#[path = "shared/common.rs"]
mod common;

use common::*;
use fleetwright_host::{Host, Memory};
use fleetwright_wire::*;

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn ten_thousand_hosts_fit_into_one_process() {
    let made = |number: usize| {
        let mut host = Host::new(Memory::new(&format!("host-{number}")));
        for (id, package) in [("a", kubelet("1")), ("b", archive("1")), ("c", settings(&[("vm.swappiness", "1")]))] {
            done(&apply(&mut host, id, Step::Install(package)));
        }
        host
    };
    let _first = made(0);
    let before = resident();
    let hosts: Vec<Host<Memory>> = (1..=500).map(made).collect();
    let each = (resident() - before) / hosts.len() as u64;
    println!("{each} bytes a host");
    assert!(each < 24 << 10, "{each} bytes a host");
}
