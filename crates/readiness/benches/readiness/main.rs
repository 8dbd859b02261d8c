//! Readiness at ten thousand machines: the latency from a report to the verdict on the Node, the cost of the operator, and the cost of one more
//! machine. The operator is a process of its own, beside the API server's.
//!
//! The floor is a program that watches the reports and sets or removes the taint at once, without gates, status or memory: it shows the cost of two
//! round trips to that API server on that machine in the same run. Ratios are against it.

mod fleet;
mod floor;
mod load;
mod subject;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use fleetwright_lab::ServerKind;
use fleetwright_lab::measure::{MeasuredServer, Rows, machine, write};
use serde_json::json;

use crate::fleet::Fleet;
use crate::load::Latency;
use crate::subject::Subject;

const USAGE: &str = "usage: cargo bench -p fleetwright-readiness -- [--quick] [--embedded | --real] [--json FILE]

  --quick      1,000 machines and short loads
  --embedded   only on the embedded API server
  --real       only on kube-apiserver and etcd
  --json FILE  file for the results (default target/bench-readiness.json)";

struct Options {
    machines: usize,
    seconds: u64,
    kinds: Vec<ServerKind>,
    json: PathBuf,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        // The bench starts itself with this argument, so that the floor is a process of its own.
        ["floor", kubeconfig] => runtime.block_on(floor::run(kubeconfig.as_ref())),
        _ => runtime.block_on(run(&options(&arguments)?)),
    }
}

fn options(arguments: &[String]) -> Result<Options> {
    let json = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench-readiness.json");
    let kinds = vec![ServerKind::Embedded, ServerKind::Real];
    let mut options = Options { machines: 10_000, seconds: 60, kinds, json: json.into() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => (options.machines, options.seconds) = (1_000, 10),
            "--embedded" => options.kinds = vec![ServerKind::Embedded],
            "--real" => options.kinds = vec![ServerKind::Real],
            "--json" => options.json = rest.next().context("--json needs a file")?.into(),
            _ => bail!("unknown argument {argument:?}\n{USAGE}"),
        }
    }
    Ok(options)
}

async fn run(options: &Options) -> Result<()> {
    let about = machine::describe("cargo bench -p fleetwright-readiness")?;
    println!("{}\n", machine::line(&about));
    let mut all = Vec::new();
    for &kind in &options.kinds {
        let rows = measure(kind, options).await.with_context(|| format!("measuring on the {kind} server"))?;
        println!("On the {kind} API server, {} machines, 5 gates and 3 reports each:\n", options.machines);
        rows.print();
        println!();
        all.push(json!({ "server": kind.to_string(), "rows": rows.json() }));
    }
    write(&options.json, &json!({ "machine": about, "machines": options.machines, "runs": all }))
}

/// Adds the two percentiles of a latency.
fn add(rows: &mut Rows, name: &str, latency: &Latency) {
    rows.add(format!("{name}, median"), latency.percentile(50.0), "ms");
    rows.add(format!("{name}, 99th of a hundred"), latency.percentile(99.0), "ms");
}

async fn measure(kind: ServerKind, options: &Options) -> Result<Rows> {
    let mut rows = Rows::default();
    let server = MeasuredServer::start(kind).await?;
    let mut fleet = Fleet::new(&server).await?;
    eprintln!("bench: {kind}: a fleet of 10 machines");
    fleet.grow_to(10).await?;
    let small = {
        let subject = Subject::operator(&server).await?;
        subject.steady(&fleet).await?;
        one_more(&mut fleet, &subject).await?
    };
    eprintln!("bench: {kind}: growing it to {} machines, with {} reports", options.machines, options.machines * 3);
    fleet.grow_to(options.machines).await?;
    {
        let subject = Subject::operator(&server).await?;
        let (_, cold) = (subject.steady(&fleet).await?, subject.age());
        rows.add("start with all Nodes to open: until the last is open", cold.as_secs_f64(), "s");
    }
    let subject = Subject::operator(&server).await?;
    subject.steady(&fleet).await?;
    rows.add("start with nothing to do: until all machines were looked at", subject.age().as_secs_f64(), "s");
    rows.add("memory of the operator, steady", subject.memory()? / 1024.0 / 1024.0, "MiB");
    rows.add("CPU of the operator to start", subject.cpu()?.as_secs_f64(), "s");

    let (calls, cpu) = (subject.calls().await?, subject.cpu()?);
    let (rate, began) = (rate(kind), std::time::Instant::now());
    let (ours, changes) = load::flips(&fleet, rate, options.seconds).await?;
    let lasted = began.elapsed().as_secs_f64();
    let (spent, used) = (subject.calls().await?.since(&calls), subject.cpu()? - cpu);
    add(&mut rows, &format!("{rate} reports/s, each a new verdict: report to Node"), &ours);
    rows.add("writes for a new verdict", spent.writes / changes as f64, "");
    rows.add("reads for a new verdict", spent.reads / changes as f64, "");
    rows.add("CPU of the operator, of one core", 100.0 * used.as_secs_f64() / lasted, "%");
    rows.add("memory of the operator, after it", subject.memory()? / 1024.0 / 1024.0, "MiB");

    let (calls, cpu) = (subject.calls().await?, subject.cpu()?);
    let reports = load::heartbeats(&fleet, rate, options.seconds).await?;
    let (spent, used) = (subject.calls().await?.since(&calls), subject.cpu()? - cpu);
    rows.add(format!("{rate} reports/s, none a new verdict: writes for a report"), spent.writes / reports as f64, "");
    rows.add("CPU of the operator, of one core, then", 100.0 * used.as_secs_f64() / options.seconds as f64, "%");

    let large = one_more(&mut fleet, &subject).await?;
    rows.add("one more machine to 10: calls", small.calls, "");
    rows.add(format!("one more machine to {}: calls", options.machines), large.calls, "");
    rows.add("one more machine to 10: CPU of the operator", small.cpu_millis, "ms");
    rows.add(format!("one more machine to {}: CPU of the operator", options.machines), large.cpu_millis, "ms");
    rows.add("one more machine to 10: until its Node is open, median", small.latency.percentile(50.0), "ms");
    rows.add(
        format!("one more machine to {}: until its Node is open, median", options.machines),
        large.latency.percentile(50.0),
        "ms",
    );
    drop(subject);

    let floor = Subject::floor(&server).await?;
    let (least, _) = load::flips(&fleet, rate, options.seconds).await?;
    add(&mut rows, "the floor: report to Node", &least);
    rows.add("memory of the floor", floor.memory()? / 1024.0 / 1024.0, "MiB");
    rows.add("ours / floor, median", ours.percentile(50.0) / least.percentile(50.0), "×");
    rows.add("ours / floor, 99th of a hundred", ours.percentile(99.0) / least.percentile(99.0), "×");
    Ok(rows)
}

/// Reports per second. Each new verdict is three writes, one of them the report's: more than kube-apiserver and etcd can handle on two cores that
/// they share with the operator and the bench, where opening 10,000 Nodes has some 300 writes per second.
fn rate(kind: ServerKind) -> u64 {
    match kind {
        ServerKind::Embedded => 200,
        ServerKind::Real => 50,
    }
}

/// The cost of one more machine.
struct OneMore {
    calls: f64,
    cpu_millis: f64,
    latency: Latency,
}

async fn one_more(fleet: &mut Fleet, subject: &Subject) -> Result<OneMore> {
    const ADDED: usize = 50;
    let (calls, cpu) = (subject.calls().await?, subject.cpu()?);
    let latency = load::join(fleet, ADDED).await?;
    let spent = subject.calls().await?.since(&calls);
    Ok(OneMore {
        calls: (spent.reads + spent.writes) / ADDED as f64,
        cpu_millis: (subject.cpu()? - cpu).as_secs_f64() * 1000.0 / ADDED as f64,
        latency,
    })
}
