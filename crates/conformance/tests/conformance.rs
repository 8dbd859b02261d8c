//! Runs the suite on both servers and prints the table.
//!
//! `cargo test -p fleetwright-conformance [-- [--embedded|--real] FILTER…]`; `CONFORMANCE_REPORT=FILE` keeps the table.

use std::process::ExitCode;

use fleetwright_conformance::{Kind, Options, cases, run};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let (flags, filters): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut servers = vec![Kind::Embedded, Kind::Real];
    for flag in &flags {
        match flag.as_str() {
            "--embedded" => servers.retain(|kind| *kind == Kind::Embedded),
            "--real" => servers.retain(|kind| *kind == Kind::Real),
            "--list" => {
                cases::all().iter().for_each(|case| println!("{}::{}: test", case.area, case.name));
                return Ok(ExitCode::SUCCESS);
            }
            // Flags of the usual test harness, which come along when all of the workspace's tests are run.
            _ => {}
        }
    }
    let report = run(cases::all(), &Options { servers, filters }).await?;
    println!("{}", report.table());
    eprintln!("the slowest:\n{}", report.slowest(5));
    if let Some(path) = std::env::var_os("CONFORMANCE_REPORT") {
        std::fs::write(path, report.table())?;
    }
    let (passed, failed) = report.counts();
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
