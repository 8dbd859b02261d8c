//! Runs the suite on both servers and prints the table.
//!
//! `cargo test -p fleetwright-conformance --test conformance [-- [--embedded|--real] FILTER…]`. A run of everything must
//! agree with the table in `docs/conformance.md`; `CONFORMANCE_REPORT=FILE` writes it instead.

use std::process::ExitCode;

use fleetwright_conformance::{Options, ServerKind, cases, run};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/conformance.md");

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let (flags, filters): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut servers = vec![ServerKind::Embedded, ServerKind::Real];
    for flag in &flags {
        match flag.as_str() {
            "--embedded" => servers.retain(|kind| *kind == ServerKind::Embedded),
            "--real" => servers.retain(|kind| *kind == ServerKind::Real),
            "--list" => {
                cases::all().iter().for_each(|case| println!("{}::{}: test", case.area, case.name));
                return Ok(ExitCode::SUCCESS);
            }
            // Flags of the usual test harness, which come along when all of the workspace's tests are run.
            _ => {}
        }
    }
    let everything = servers.len() == 2 && filters.is_empty();
    let report = run(cases::all(), &Options { servers, filters }).await?;
    println!("{}", report.table());
    eprintln!("the slowest:\n{}", report.slowest(5));
    let (passed, mut failed) = report.counts();
    if let Some(path) = std::env::var_os("CONFORMANCE_REPORT") {
        std::fs::write(path, report.document())?;
    } else if everything && std::fs::read_to_string(KEPT).unwrap_or_default() != report.document() {
        eprintln!("docs/conformance.md is stale: run make generate and commit the result");
        failed += 1;
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
