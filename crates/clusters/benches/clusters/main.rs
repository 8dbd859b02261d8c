//! Thousands of clusters under one operator: all made and proven, one more, all brought to another version, nothing, all certificates issued again.
//!
//! Three processes: the meta cluster (an API server, and the simulated nodes whose pods really listen and answer), the operator, and the bench that
//! requests changes and watches. Therefore CPU time and memory of the operator's process are those of the operator alone.

/// As the operators' own program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod fleet;
mod meta;
mod operator;
mod subject;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_lab::measure::{Calls, Rows, machine, write};
use serde_json::json;

use crate::fleet::Fleet;
use crate::subject::{MetaCluster, Subject};

const USAGE: &str = "usage: cargo bench -p fleetwright-clusters --bench clusters -- [--quick] [--clusters N [--alone]] [--idle SECONDS] [--json FILE]

  --quick         300 clusters, compared with 30
  --clusters N    number of clusters [default: 3000]; a tenth of it is measured before and after for comparison
  --alone         measure only this number, without the comparison
  --idle SECONDS  time without changes [default: 600]; a tenth of it for the comparison
  --json FILE     output file [default: target/bench-clusters.json]";

/// So many clusters are added to each fleet, one after the other.
const ADDED: usize = 10;

struct Options {
    clusters: usize,
    alone: bool,
    idle: Duration,
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
        // The bench runs itself so, to have each part as a process of its own.
        ["meta", kubeconfig] => runtime.block_on(meta::run(kubeconfig.as_ref())),
        ["operator", kubeconfig, listen] => runtime.block_on(operator::run(kubeconfig.as_ref(), listen.parse()?)),
        _ => runtime.block_on(run(&options(&arguments)?)),
    }
}

fn options(arguments: &[String]) -> Result<Options> {
    let json = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench-clusters.json");
    let mut options = Options { clusters: 3_000, alone: false, idle: Duration::from_secs(600), json: json.into() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => (options.clusters, options.idle) = (300, Duration::from_secs(120)),
            "--clusters" => options.clusters = rest.next().context("--clusters needs a number")?.parse()?,
            "--alone" => options.alone = true,
            "--idle" => options.idle = Duration::from_secs(rest.next().context("--idle needs a number")?.parse()?),
            "--json" => options.json = rest.next().context("--json needs a file")?.into(),
            _ => bail!("unknown argument {argument:?}\n{USAGE}"),
        }
    }
    Ok(options)
}

async fn run(options: &Options) -> Result<()> {
    let about = machine::describe("cargo bench -p fleetwright-clusters --bench clusters")?;
    println!("{}\n", machine::line(&about));
    // The few come before and after the many: where those two differ, it is the machine that does.
    let (few, many) = (options.clusters / 10, options.clusters);
    let sizes = if options.alone { vec![many] } else { vec![few, many, few] };
    let mut columns = Vec::new();
    for size in &sizes {
        let idle = if *size < options.clusters { options.idle / 10 } else { options.idle };
        columns.push(measure(*size, idle).await?);
    }
    let heads: Vec<String> = sizes.iter().map(|size| format!(" {size} clusters |")).collect();
    println!("| what |{}\n|---|{}", heads.concat(), "--:|".repeat(sizes.len()));
    for (number, row) in columns[0].iter().enumerate() {
        let told: Vec<String> =
            columns.iter().filter_map(|rows| rows.iter().nth(number)).map(|row| format!(" {} |", row.told())).collect();
        println!("| {} |{}", row.name, told.concat());
    }
    let runs = columns.iter().zip(sizes).map(|(rows, size)| json!({ "clusters": size, "rows": rows.json() }));
    write(&options.json, &json!({ "machine": about, "runs": runs.collect::<Vec<_>>() }))
}

const MIB: f64 = 1024.0 * 1024.0;

/// What the operator spent between two moments, and the simulated meta cluster.
struct Spent {
    began: Instant,
    machine: machine::Time,
    cpu: Duration,
    of_meta: Duration,
    calls: Calls,
}

impl Spent {
    async fn from((subject, meta): Parts<'_>) -> Result<Self> {
        let (cpu, of_meta) = (subject.cpu()?, meta.cpu()?);
        let calls = subject.calls().await?;
        Ok(Self { began: Instant::now(), machine: machine::Time::now()?, cpu, of_meta, calls })
    }

    async fn tell(self, rows: &mut Rows, what: &str, until: &str, count: f64, parts: Parts<'_>) -> Result<()> {
        let (subject, meta) = parts;
        let (took, cpu) = (self.began.elapsed().as_secs_f64(), (subject.cpu()? - self.cpu).as_secs_f64());
        let of_meta = (meta.cpu()? - self.of_meta).as_secs_f64();
        let calls = subject.calls().await?.since(&self.calls);
        rows.add(format!("{what}: until {until}"), took, "s");
        let stolen = machine::Time::stolen_since(self.machine)?;
        rows.add(format!("{what}: time of the machine that others had"), stolen, "%");
        rows.add(format!("{what}: CPU of the operator for a cluster"), 1000.0 * cpu / count, "ms");
        rows.add(format!("{what}: CPU of the simulated meta cluster for a cluster"), 1000.0 * of_meta / count, "ms");
        rows.add(format!("{what}: writes for a cluster"), calls.writes / count, "");
        rows.add(format!("{what}: reads for a cluster"), calls.reads / count, "");
        rows.add(format!("{what}: passes for a cluster"), calls.passes / count, "");
        Ok(())
    }
}

type Parts<'a> = (&'a Subject, &'a MetaCluster);

async fn measure(size: usize, idle: Duration) -> Result<Rows> {
    eprintln!("bench: {size} clusters");
    let (mut rows, count) = (Rows::default(), size as f64);
    let meta = MetaCluster::start().await?;
    let mut fleet = Fleet::new(meta.client().await?).await?;
    let subject = Subject::start(&meta).await?;
    subject.ready().await?;
    let parts = (&subject, &meta);
    let empty = subject.memory()?;
    rows.add("memory of the operator, without a cluster", empty / MIB, "MiB");

    let spent = Spent::from(parts).await?;
    fleet.grow_to(size).await?;
    fleet.all_ready().await?;
    spent.tell(&mut rows, "made", "the last is proven", count, parts).await?;
    subject.settled().await?;
    let memory = subject.memory()?;
    rows.add("memory of the operator", memory / MIB, "MiB");
    rows.add("memory of the operator for a cluster", (memory - empty) / MIB / count, "MiB");

    let (calls, cpu) = (subject.settled().await?, subject.cpu()?);
    let mut times = Vec::new();
    for _ in 0..ADDED {
        let began = Instant::now();
        fleet.grow_to(fleet.size() + 1).await?;
        fleet.all_ready().await?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let cost = subject.settled().await?.since(&calls);
    times.sort_by(f64::total_cmp);
    rows.add("one more: until it is proven, median", times[ADDED / 2], "ms");
    rows.add("one more: writes", cost.writes / ADDED as f64, "");
    rows.add("one more: CPU of the operator", (subject.cpu()? - cpu).as_secs_f64() * 1000.0 / ADDED as f64, "ms");

    let (spent, count) = (Spent::from(parts).await?, fleet.size() as f64);
    fleet.upgrade().await?;
    spent.tell(&mut rows, "another version", "the last is proven", count, parts).await?;
    subject.settled().await?;

    let spent = Spent::from(parts).await?;
    tokio::time::sleep(idle).await;
    let cpu = (subject.cpu()? - spent.cpu).as_secs_f64();
    let of_meta = (meta.cpu()? - spent.of_meta).as_secs_f64();
    let calls = subject.calls().await?.since(&spent.calls);
    rows.add("nothing happens: CPU of the operator, of one core", 100.0 * cpu / idle.as_secs_f64(), "%");
    let share = 100.0 * of_meta / idle.as_secs_f64();
    rows.add("nothing happens: CPU of the simulated meta cluster, of one core", share, "%");
    rows.add("nothing happens: writes in a minute", calls.writes * 60.0 / idle.as_secs_f64(), "");

    fleet.until_due().await;
    let spent = Spent::from(parts).await?;
    fleet.rotate().await?;
    spent.tell(&mut rows, "certificates issued again", "all of all are", count, parts).await?;
    subject.settled().await?;
    let memory = subject.memory()?;
    rows.add("memory of the operator for a cluster, after all that", (memory - empty) / MIB / count, "MiB");

    let latency = subject.latency().await?;
    rows.add("a pass, median", latency.pass.0, "ms");
    rows.add("a pass, 99 of 100", latency.pass.1, "ms");
    rows.add("a cluster that waits for its pass, median", latency.wait.0, "ms");
    rows.add("a cluster that waits for its pass, 99 of 100", latency.wait.1, "ms");
    rows.add("a proof, median", latency.proof.0, "ms");
    rows.add("a proof, 99 of 100", latency.proof.1, "ms");
    rows.add("memory of the simulated meta cluster for a cluster", meta.memory()? / MIB / count, "MiB");
    Ok(rows)
}
