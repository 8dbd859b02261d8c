//! Runs the attempts on both servers and prints each with its outcome.
//!
//! `cargo test -p fleetwright-attacks --test attacks [-- [--embedded|--real] [--list|--markdown] FILTER…]`

use std::process::ExitCode;

use fleetwright_attacks::{ServerKind, all, listed, run};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let (flags, filters): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut servers = vec![ServerKind::Embedded, ServerKind::Real];
    for flag in &flags {
        match flag.as_str() {
            "--embedded" => servers.retain(|kind| *kind == ServerKind::Embedded),
            "--real" => servers.retain(|kind| *kind == ServerKind::Real),
            "--list" => {
                all().iter().for_each(|attempt| println!("{}: test", attempt.name));
                return Ok(ExitCode::SUCCESS);
            }
            "--markdown" => {
                print!("{}", listed());
                return Ok(ExitCode::SUCCESS);
            }
            // Flags of the usual test harness, which come along when all of the workspace's tests are run.
            _ => {}
        }
    }
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let attempts = all().into_iter().filter(|attempt| wanted(attempt.name)).collect();
    let report = run(attempts, &servers).await?;
    println!("\n{}", report.table());
    let (held, failed) = report.counts();
    println!("{held} attempts held, {failed} did not");
    Ok(if failed == 0 && held > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
