//! Our operator as a whole: it runs in a process of its own, with an API server in another, and drives Machines to their packages.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fleetwright_api::{Machine, Status, crds, names};
use fleetwright_kit::{Key, Operator, Settings};
use fleetwright_lab::measure::process;
use fleetwright_lab::{Target, define};
use fleetwright_machines::Options;
use fleetwright_machines::hosts::Hosts;
use fleetwright_transport::{Helpers, Ssh};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::Run;
use crate::hosts::{Keys, PORT};
use crate::work::Work;

const NAMESPACE: &str = "fleet";
/// Interval between observations of a host, for the row of an observation. The operator spreads them.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// For this long observations are counted.
const LOOKING: Duration = Duration::from_secs(20);
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The measurements.
pub struct Measured {
    /// From the start of the operator until all machines report that their packages are installed.
    pub cold: Run,
    /// From the start of another operator until it observed every host, because a person requests it.
    pub anew: Run,
    /// The CPU seconds of one observation of each host, over open connections.
    pub look: f64,
}

/// Measures one round on bare hosts.
pub async fn measure(
    folder: &Path,
    addresses: &[Ipv4Addr],
    keys: &Keys,
    work: &Work,
    helpers: &Path,
    at_once: usize,
) -> Result<Measured> {
    let target = Target::embedded().await?;
    declare(&target.admin(), addresses, keys, work).await?;
    let kubeconfig = folder.join("kubeconfig");
    fs::write(&kubeconfig, target.kubeconfig()?)?;
    let task = folder.join("operator.json");
    fs::write(
        &task,
        json!({"kubeconfig": kubeconfig, "helpers": helpers, "hosts": addresses.len(), "atOnce": at_once}).to_string(),
    )?;

    let first = Process::start(&task)?;
    let machines: Api<Machine> = Api::namespaced(target.admin(), NAMESPACE);
    loop {
        let all = machines.list(&ListParams::default()).await?.items;
        let ready = |machine: &Machine| {
            let status = machine.status.as_ref();
            status.is_some_and(|status| {
                status
                    .conditions
                    .iter()
                    .any(|condition| condition.type_ == "PackagesReady" && condition.status == Status::True)
            })
        };
        if all.iter().all(ready) {
            break;
        }
        if first.started.elapsed() > WAIT_TIMEOUT {
            let late = all.iter().find(|machine| !ready(machine)).context("nobody is late")?;
            bail!("{} is not ready: {}", late.name_any(), serde_json::to_string(&late.status)?);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let cold = first.used()?;
    drop(first);

    // A restarted operator observes unchanged machines at their usual time; a request of a person makes it observe them now.
    for machine in machines.list(&ListParams::default()).await?.items {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {names::RETRY: "bench"}}}));
        machines.patch(&machine.name_any(), &PatchParams::default(), &patch).await?;
    }
    let mut second = Process::start(&task)?;
    second.hear("seen")?;
    let anew = second.used()?;
    let told = second.hear("looks")?;
    let look = told["cpu"].as_f64().context("no number")? / told["looks"].as_f64().context("no number")?;
    drop(second);
    target.stop(false).await;
    Ok(Measured { cold, anew, look })
}

/// An operator process.
struct Process {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    started: Instant,
}

impl Process {
    fn start(task: &Path) -> Result<Self> {
        let started = Instant::now();
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--operate")
            .arg(task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, out, started })
    }

    /// Waits for a line that starts with that word, and returns its value.
    fn hear(&mut self, word: &str) -> Result<Value> {
        let mut line = String::new();
        if self.out.read_line(&mut line)? == 0 {
            bail!("the operator ended");
        }
        let value: Value = serde_json::from_str(&line)?;
        if value["word"] != word {
            bail!("the operator says {line}");
        }
        Ok(value)
    }

    fn used(&self) -> Result<Run> {
        let seconds = self.started.elapsed().as_secs_f64();
        let pid = self.child.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse()?;
        Ok(Run { seconds, cpu: process::cpu(pid)?.as_secs_f64(), peak: peak * 1024 })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates the CRDs, the key, the packages and the machines.
async fn declare(client: &Client, addresses: &[Ipv4Addr], keys: &Keys, work: &Work) -> Result<()> {
    define(client, &crds()).await?;
    create(client, "v1", "Namespace", json!({"metadata": {"name": NAMESPACE}})).await?;
    let key = fs::read_to_string(keys.user())?;
    create(client, "v1", "Secret", json!({"metadata": {"name": "key"}, "stringData": {"ssh-privatekey": key}})).await?;
    let (archive, packages) = work.manifests();
    create(client, "v1", "ConfigMap", archive).await?;
    let mut references = Vec::new();
    for package in packages {
        references.push(json!({"component": package["spec"]["component"], "ref": package["metadata"]["name"]}));
        create(client, "fleetwright.io/v1alpha1", "MachinePackageVersion", package).await?;
    }
    let host_key = keys.host_line()?;
    for (number, address) in addresses.iter().enumerate() {
        let machine = json!({
            "metadata": {"name": format!("bench-{number}")},
            "spec": {
                "addresses": [address],
                "ssh": {"port": PORT, "keyRef": {"name": "key"}, "hostKeys": {"keys": [host_key]}},
                "packages": references,
            },
        });
        create(client, "fleetwright.io/v1alpha1", "Machine", machine).await?;
    }
    Ok(())
}

async fn create(client: &Client, version: &str, kind: &str, object: Value) -> Result<()> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = kube::core::ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = if kind == "Namespace" {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    };
    let mut object = object;
    object["apiVersion"] = if group.is_empty() { version.into() } else { format!("{group}/{version}").into() };
    object["kind"] = kind.into();
    let object: DynamicObject = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await.with_context(|| format!("{kind} {}", object.name_any()))?;
    Ok(())
}

/// The main function of the other process: an operator that reports when it observed all hosts, and then the cost of observations.
pub async fn operate(file: &Path) -> Result<()> {
    let task: Value = serde_json::from_slice(&fs::read(file)?)?;
    let text = |name: &str| task[name].as_str().with_context(|| format!("no {name}"));
    let number =
        |name: &str| task[name].as_u64().and_then(|n| usize::try_from(n).ok()).with_context(|| format!("no {name}"));
    let kubeconfig = kube::config::Kubeconfig::read_from(text("kubeconfig")?)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    let ssh = Ssh::new(Helpers::find(Path::new(text("helpers")?))?);
    let mut operator = Operator::new(Settings::new("bench", Client::try_from(config)?));
    let mut options = Options { check_every: CHECK_EVERY, ..Options::default() };
    options.limits.overall = number("atOnce")?;
    options.limits.zone = number("atOnce")?;
    options.limits.rack = number("atOnce")?;
    let hosts = fleetwright_machines::add(&mut operator, NAMESPACE, Arc::new(ssh), options);
    let all: Vec<Key> = (0..number("hosts")?).map(|number| Key::new(NAMESPACE, &format!("bench-{number}"))).collect();
    tokio::select! {
        ended = operator.run(std::future::pending()) => Ok(ended?),
        told = tell(&hosts, &all) => told,
    }
}

async fn tell(hosts: &Hosts, all: &[Key]) -> Result<()> {
    let say = |value: Value| -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{value}")?;
        Ok(out.flush()?)
    };
    while !all.iter().all(|key| hosts.state(key).seen.is_some()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    say(json!({"word": "seen"}))?;
    let (from, cpu) = (Instant::now(), process::cpu(std::process::id())?);
    let at = |key: &Key| hosts.state(key).seen.map(|(at, _)| at);
    let mut last: Vec<_> = all.iter().map(at).collect();
    let mut looks = 0_u64;
    while from.elapsed() < LOOKING {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for (key, last) in all.iter().zip(&mut last) {
            let now = at(key);
            looks += u64::from(now != *last);
            *last = now;
        }
    }
    let cpu = process::cpu(std::process::id())? - cpu;
    say(json!({"word": "looks", "looks": looks, "cpu": cpu.as_secs_f64()}))?;
    std::future::pending().await
}
