//! Our side of the comparison, in a process of its own: the transport and the helper, driven as the operator drives them.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fleetwright_lab::measure::process;
use fleetwright_transport::{Helpers, Hop, Link, Login, Route, Ssh, Transport as _, TransportLimits, Trust};
use fleetwright_wire::{Answer, Apply, Claim, Observe, Outcome, Package, Request, Step};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use crate::Run;
use crate::hosts::{Keys, PORT};
use crate::work::Work;

/// Observations of all hosts that are measured as one, over open connections: a single one is too short for the clock of `/proc`.
const SWEEPS: u32 = 20;

/// The measurements of the other process.
pub struct Measured {
    pub cold: Run,
    /// Runs over open connections.
    pub kept: Vec<Run>,
    /// Runs over new connections.
    pub anew: Vec<Run>,
}

/// Measures in a process of its own, which has nothing of the bench in it.
pub fn measure(
    folder: &Path,
    addresses: &[Ipv4Addr],
    keys: &Keys,
    work: &Work,
    helpers: &Path,
    (at_once, repeats): (usize, usize),
) -> Result<Measured> {
    let task = json!({
        "addresses": addresses,
        "key": fs::read_to_string(keys.user())?,
        "hostKey": keys.host_line()?,
        "helpers": helpers,
        "atOnce": at_once,
        "repeats": repeats,
        "work": work.to_json(),
    });
    let file = folder.join("task.json");
    fs::write(&file, task.to_string())?;
    let out = Command::new(std::env::current_exe()?)
        .arg("--drive")
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !out.status.success() {
        bail!("our side failed: {}", out.status);
    }
    let told: Value = serde_json::from_slice(&out.stdout)?;
    let peak = told["peak"].as_u64().context("no peak")?;
    let run = |value: &Value| -> Result<Run> {
        let number = |name: &str| value[name].as_f64().context("no number");
        Ok(Run { seconds: number("seconds")?, cpu: number("cpu")?, peak })
    };
    let all = |name: &str| told[name].as_array().context("no runs")?.iter().map(run).collect::<Result<Vec<_>>>();
    Ok(Measured { cold: run(&told["cold"])?, kept: all("kept")?, anew: all("anew")? })
}

/// A host and its route.
struct Target {
    number: usize,
    route: Arc<Route>,
    packages: Vec<Package>,
}

/// The main function of the other process.
pub async fn drive(file: &Path) -> Result<()> {
    let task: Value = serde_json::from_slice(&fs::read(file)?)?;
    let work = Work::from_json(&task["work"])?;
    let text = |name: &str| task[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
    let number =
        |name: &str| task[name].as_u64().and_then(|n| usize::try_from(n).ok()).with_context(|| format!("no {name}"));
    let login = Login { key: text("key")?.into(), certificate: None };
    let trust = Trust::Keys(vec![text("hostKey")?]);
    let addresses: Vec<Ipv4Addr> = serde_json::from_value(task["addresses"].clone())?;
    let (at_once, repeats) = (number("atOnce")?, number("repeats")?);
    let targets: Vec<Target> = addresses
        .iter()
        .enumerate()
        .map(|(number, address)| {
            let host = Hop {
                address: address.to_string(),
                port: PORT,
                user: "root".into(),
                login: login.clone(),
                trust: trust.clone(),
            };
            let route = Route {
                machine: format!("bench-{number}"),
                host,
                jumps: vec![],
                limits: TransportLimits { login: Duration::from_secs(60), ..TransportLimits::default() },
            };
            Target { number, route: Arc::new(route), packages: work.packages(&format!("bench-{number}")) }
        })
        .collect();
    let ssh = Ssh::new(Helpers::find(Path::new(&text("helpers")?))?);

    let meter = Meter::start()?;
    let mut links: Vec<(usize, Box<dyn Link>)> =
        stream::iter(&targets).map(|target| converge(&ssh, target)).buffer_unordered(at_once).try_collect().await?;
    let cold = meter.stop(1)?;
    links.sort_by_key(|(number, _)| *number);

    let mut kept = Vec::new();
    for _ in 0..repeats {
        let meter = Meter::start()?;
        for _ in 0..SWEEPS {
            stream::iter(targets.iter().zip(&links))
                .map(|(target, (_, link))| unchanged(&**link, target))
                .buffer_unordered(at_once)
                .try_collect::<Vec<()>>()
                .await?;
        }
        kept.push(meter.stop(SWEEPS)?);
    }
    drop(links);

    let mut anew = Vec::new();
    for _ in 0..repeats {
        let meter = Meter::start()?;
        stream::iter(&targets)
            .map(async |target| {
                let link = ssh.connect(target.route.clone()).await?;
                unchanged(&*link, target).await
            })
            .buffer_unordered(at_once)
            .try_collect::<Vec<()>>()
            .await?;
        anew.push(meter.stop(1)?);
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!("{}", json!({"cold": cold, "kept": kept, "anew": anew, "peak": peak * 1024}));
    Ok(())
}

/// Observes the host, installs missing packages, and observes it again.
async fn converge(ssh: &Ssh, target: &Target) -> Result<(usize, Box<dyn Link>)> {
    let link = ssh.connect(target.route.clone()).await?;
    let seen = observe(&*link, target).await?;
    for (package, component) in target.packages.iter().zip(&seen) {
        if component.installed.is_none() {
            let apply = Apply {
                id: format!("bench-{}-{}", target.number, package.component),
                claim: Claim::default(),
                step: Step::Install(package.clone()),
                within: 60,
                unproven: false,
            };
            match link.ask(&Request::Apply(Box::new(apply)), Duration::from_secs(60), &|_| {}).await? {
                Answer::Ended(record) if record.outcome == Outcome::Done => {}
                other => bail!("{}: {} was not installed: {other:?}", target.route.machine, package.component),
            }
        }
    }
    unchanged(&*link, target).await?;
    Ok((target.number, link))
}

/// Observes the host, and finds no deviation.
async fn unchanged(link: &dyn Link, target: &Target) -> Result<()> {
    for (package, component) in target.packages.iter().zip(observe(link, target).await?) {
        let installed = component.installed.is_some_and(|installed| installed.version == package.version);
        if !installed || !component.deviations.is_empty() {
            bail!("{}: {} differs: {:?}", target.route.machine, component.component, component.deviations);
        }
    }
    Ok(())
}

async fn observe(link: &dyn Link, target: &Target) -> Result<Vec<fleetwright_wire::ComponentSeen>> {
    let request = Request::Observe(Box::new(Observe { packages: target.packages.clone(), ..Observe::default() }));
    match link.ask(&request, Duration::from_secs(60), &|_| {}).await? {
        Answer::Observed(observation) => Ok(observation.components),
        other => bail!("{}: {other:?}", target.route.machine),
    }
}

struct Meter {
    started: Instant,
    cpu: Duration,
}

impl Meter {
    fn start() -> Result<Self> {
        Ok(Self { cpu: process::cpu(std::process::id())?, started: Instant::now() })
    }

    /// The mean of that number of runs.
    fn stop(self, times: u32) -> Result<Value> {
        let seconds = self.started.elapsed().as_secs_f64() / f64::from(times);
        let cpu = (process::cpu(std::process::id())? - self.cpu).as_secs_f64() / f64::from(times);
        Ok(json!({"seconds": seconds, "cpu": cpu}))
    }
}
