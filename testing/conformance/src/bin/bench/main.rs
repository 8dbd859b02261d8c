//! Speed and memory of the embedded and the real API server, measured one after the other in one run.
//!
//! Both are other processes, reached over TLS by the same client with the same concurrency, so that memory and CPU are the
//! server's own. The table goes to standard output, the numbers to a JSON file, progress to standard error.

mod idle;
mod load;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use fleetwright_conformance::ServerKind;
use fleetwright_lab::measure::{self, machine};

use crate::load::Sizes;
use crate::report::Report;

const USAGE: &str = "usage: bench [--quick] [--embedded | --real] [--json FILE]

  --quick      smaller numbers, under 90 seconds
  --embedded   only the embedded server
  --real       only kube-apiserver on etcd
  --json FILE  where the numbers go (default target/bench.json)";

struct Options {
    quick: bool,
    kinds: Vec<ServerKind>,
    json: PathBuf,
}

fn options(arguments: &[String]) -> Result<Options> {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench.json");
    let mut options =
        Options { quick: false, kinds: vec![ServerKind::Embedded, ServerKind::Real], json: target.into() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => options.quick = true,
            "--embedded" => options.kinds = vec![ServerKind::Embedded],
            "--real" => options.kinds = vec![ServerKind::Real],
            "--json" => options.json = rest.next().context("--json needs a file")?.into(),
            _ => bail!("unknown argument {argument:?}\n{USAGE}"),
        }
    }
    Ok(options)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.first().map(String::as_str) {
        Some("--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        // The bench runs itself with this argument, to have a process that contains only servers.
        Some("idle") => runtime.block_on(idle::child(&arguments[1..])),
        _ => runtime.block_on(run(&options(&arguments)?)),
    }
}

async fn run(options: &Options) -> Result<()> {
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    let command = if options.quick { "make bench, quick" } else { "make bench" };
    let mut report = Report::new(machine::describe(command)?);
    if options.kinds.contains(&ServerKind::Embedded) {
        idle::measure(&mut report, sizes.idle).await?;
    }
    for &kind in &options.kinds {
        report.begin(kind);
        load::measure(&mut report, kind, &sizes).await.with_context(|| format!("measuring the {kind} server"))?;
    }
    print!("{}", report.markdown());
    measure::write(&options.json, &report.json())
}
