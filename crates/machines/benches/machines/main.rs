//! Ten thousand machines: first convergence, an observation of all hosts, a package change to all of them, and the cost of one more machine.
//!
//! Four processes: the API server, the operator, the simulated hosts, and the bench that makes changes and watches. The operator speaks to
//! the hosts in the same lines that go over SSH, so that its CPU time and memory are measured alone; only SSH itself is missing.

/// The allocator of the operators' program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod fleet;
mod hosts;
mod operator;
mod subject;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_lab::ServerKind;
use fleetwright_lab::measure::{MeasuredServer, Rows, machine, write};
use serde_json::json;

use crate::fleet::Fleet;
use crate::subject::{Hosts, Subject};

const USAGE: &str = "usage: cargo bench -p fleetwright-machines -- [--quick] [--machines N] [--json FILE]

  --quick       1,000 machines
  --machines N  number of machines [default: 10000]
  --json FILE   file for the results [default: target/bench-machines.json]";

/// In the sweep, the interval in seconds at which each host is observed.
const SWEEP: u64 = 30;
/// Machines added to the small fleet and to the large one, in turns.
const ADDED: usize = 25;
const TURNS: usize = 8;

struct Options {
    machines: usize,
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
        // The bench starts itself with these arguments, so that each part is a process of its own.
        ["hosts", socket] => runtime.block_on(hosts::run(socket.as_ref())),
        ["operator", kubeconfig, socket, listen, check_every] => {
            let check_every = Duration::from_secs(check_every.parse()?);
            runtime.block_on(operator::run(kubeconfig.as_ref(), socket.as_ref(), listen.parse()?, check_every))
        }
        _ => runtime.block_on(run(&options(&arguments)?)),
    }
}

fn options(arguments: &[String]) -> Result<Options> {
    let json = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench-machines.json");
    let mut options = Options { machines: 10_000, json: json.into() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => options.machines = 1_000,
            "--machines" => options.machines = rest.next().context("--machines needs a number")?.parse()?,
            "--json" => options.json = rest.next().context("--json needs a file")?.into(),
            _ => bail!("unknown argument {argument:?}\n{USAGE}"),
        }
    }
    Ok(options)
}

async fn run(options: &Options) -> Result<()> {
    let about = machine::describe("cargo bench -p fleetwright-machines")?;
    println!("{}\n", machine::line(&about));
    let rows = measure(options).await?;
    println!("{} machines with {} components each:\n", options.machines, fleet::COMPONENTS);
    rows.print();
    write(&options.json, &json!({ "machine": about, "machines": options.machines, "rows": rows.json() }))
}

const MIB: f64 = 1024.0 * 1024.0;
/// Observation interval while something else is measured: in effect never.
const RARELY: u64 = 6 * 3600;

async fn measure(options: &Options) -> Result<Rows> {
    let mut rows = Rows::default();
    let count = options.machines as f64;
    let server = MeasuredServer::start(ServerKind::Embedded).await?;
    let hosts = Hosts::start().await?;
    let mut fleet = Fleet::new(&server).await?;

    eprintln!("bench: a fleet of {} machines", options.machines);
    fleet.grow_to(options.machines).await?;
    let subject = Subject::start(&server, &hosts, RARELY).await?;
    fleet.all_ready().await?;
    let (took, cpu, calls) = (subject.age().as_secs_f64(), subject.cpu()?.as_secs_f64(), subject.calls().await?);
    rows.add("first convergence: from the operator's start until the last is Ready", took, "s");
    rows.add("first convergence: machines in a second", count / took, "");
    rows.add("first convergence: CPU of the operator for a machine", 1000.0 * cpu / count, "ms");
    rows.add("first convergence: writes for a machine", calls.writes / count, "");
    rows.add("memory of the operator, steady", subject.memory()? / MIB, "MiB");

    let (calls, cpu, began) = (subject.calls().await?, subject.cpu()?, Instant::now());
    fleet.change().await?;
    let (took, cpu) = (began.elapsed().as_secs_f64(), (subject.cpu()? - cpu).as_secs_f64());
    let calls = subject.calls().await?.since(&calls);
    rows.add("a package change to all: until the last is Ready again", took, "s");
    rows.add("a package change to all: CPU of the operator for a machine", 1000.0 * cpu / count, "ms");
    rows.add("a package change to all: writes for a machine", calls.writes / count, "");
    rows.add("memory of the operator, after it", subject.memory()? / MIB, "MiB");

    drop(subject);

    let (small, large) = {
        eprintln!("bench: a fleet of 10 machines beside it");
        let server_of_ten = MeasuredServer::start(ServerKind::Embedded).await?;
        let hosts_of_ten = Hosts::start().await?;
        let mut ten = Fleet::new(&server_of_ten).await?;
        ten.grow_to(10).await?;
        let of_ten = Subject::start(&server_of_ten, &hosts_of_ten, RARELY).await?;
        let of_all = Subject::start(&server, &hosts, RARELY).await?;
        ten.all_ready().await?;
        of_ten.settled().await?;
        of_all.settled().await?;
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            small.push(one_more(&mut ten, &of_ten).await?);
            large.push(one_more(&mut fleet, &of_all).await?);
        }
        (OneMore::median(small), OneMore::median(large))
    };
    rows.add("one more machine to 10: calls", small.calls, "");
    rows.add(format!("one more machine to {}: calls", options.machines), large.calls, "");
    rows.add("one more machine to 10: CPU of the operator", small.cpu_millis, "ms");
    rows.add(format!("one more machine to {}: CPU of the operator", options.machines), large.cpu_millis, "ms");
    rows.add("one more machine to 10: until it is Ready, median", small.median_millis, "ms");
    rows.add(format!("one more machine to {}: until it is Ready, median", options.machines), large.median_millis, "ms");

    let subject = Subject::start(&server, &hosts, SWEEP).await?;
    subject.ready().await?;
    let before = hosts.mark().await?;
    let (calls, cpu, began) = (subject.calls().await?, subject.cpu()?, Instant::now());
    let mut most: f64 = 0.0;
    let visited = loop {
        most = most.max(subject.memory()?);
        let seen = hosts.stats().await?;
        if seen.visited as usize >= fleet.size() {
            break seen;
        }
        if began.elapsed() > Duration::from_secs(600) {
            bail!("{} of {} hosts were looked at in ten minutes", seen.visited, fleet.size());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let (took, cpu) = (began.elapsed().as_secs_f64(), (subject.cpu()? - cpu).as_secs_f64());
    let looks = (visited.requests - before.requests) as f64;
    let calls = subject.calls().await?.since(&calls);
    rows.add("a sweep: until every host was looked at from end to end", took, "s");
    rows.add("a sweep: CPU of the operator for a look", 1000.0 * cpu / looks, "ms");
    rows.add("a sweep: looks in a second of the operator's CPU", looks / cpu, "");
    rows.add("a sweep: most memory of the operator", most / MIB, "MiB");
    rows.add("a sweep: writes", calls.writes, "");
    Ok(rows)
}

/// The cost of one more machine.
struct OneMore {
    calls: f64,
    cpu_millis: f64,
    median_millis: f64,
}

impl OneMore {
    /// The median of each number.
    fn median(mut all: Vec<Self>) -> Self {
        let mut middle = |of: fn(&Self) -> f64| {
            all.sort_by(|one, other| of(one).total_cmp(&of(other)));
            of(&all[all.len() / 2])
        };
        Self {
            calls: middle(|one| one.calls),
            cpu_millis: middle(|one| one.cpu_millis),
            median_millis: middle(|one| one.median_millis),
        }
    }
}

async fn one_more(fleet: &mut Fleet, subject: &Subject) -> Result<OneMore> {
    let (calls, cpu) = (subject.calls().await?, subject.cpu()?);
    let mut times = Vec::new();
    for _ in 0..ADDED {
        let began = Instant::now();
        fleet.grow_to(fleet.size() + 1).await?;
        fleet.all_ready().await?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    // Events are written a little later; they belong to the machine.
    let spent = subject.settled().await?.since(&calls);
    times.sort_by(f64::total_cmp);
    Ok(OneMore {
        calls: (spent.reads + spent.writes) / ADDED as f64,
        cpu_millis: (subject.cpu()? - cpu).as_secs_f64() * 1000.0 / ADDED as f64,
        median_millis: times[ADDED / 2],
    })
}
