//! `fleetwright lab`: a real fleet on this machine, for experiments.

mod workers;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use fleetwright_lab::Process;
use fleetwright_lab::hosts::{self, EmulatedMachine, Host, HostDescription, Kernels, Site};
use fleetwright_lab::meta::{Meta, Options, Workers};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::home::{Home, OpenedHome};
use crate::{FLEET_NAMESPACE, install};

/// The start timeout. The first start fetches and builds Debian's and Kubernetes' packages.
const START: Duration = Duration::from_secs(30 * 60);
const STOP: Duration = Duration::from_secs(120);

/// An example Cluster: small, and reachable from this machine.
const EXAMPLE: &str = "cluster.yaml";
const CLUSTER: &str = "apiVersion: fleetwright.io/v1alpha1
kind: Cluster
metadata: {name: pay-01, namespace: @NAMESPACE@}
spec:
  packageVersion: k8s-1.36.4
  replicas: 1
  datastore: {etcd: {members: 1, storage: {size: 1Gi}}}
  network: {pods: 10.245.0.0/16, services: 10.97.0.0/16}
  endpoint: {type: NodePort, port: 30443}
  deletionProtection: false
";

#[derive(Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: Lab,
}

#[derive(Subcommand)]
enum Lab {
    /// Start real hosts, a real control plane and the operators on this machine, in the background.
    ///
    /// Hosts run Debian with systemd and sshd, each with its own address. Requires Linux and root.
    #[command(after_help = "Examples:
  fleetwright lab up --machines 3
  fleetwright lab up --machines 1 --emulated --kubelet 1.36.4
  fleetwright lab up --meta
  fleetwright lab status
  fleetwright lab down")]
    Up(Up),
    /// Show whether a lab is running, and which commands to try.
    Status(LabFolder),
    /// Stop the lab, and remove its processes, mounts and networks.
    Down(LabFolder),
    /// Run the lab in the foreground; `up` starts this process.
    #[command(hide = true)]
    Run(Up),
}

#[derive(Args, Clone)]
struct LabFolder {
    /// Directory of the lab's kubeconfig and logs. [default: ~/.fleetwright/lab]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_LAB")]
    home: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct Up {
    /// Number of hosts. [default: 3; with --meta: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=50))]
    machines: Option<u8>,

    /// Start a meta cluster: a node that runs pods, with volumes, DNS and the images of control planes.
    ///
    /// Other hosts stay bare, to become workers of a business cluster: apply workers.yaml and machines.yaml, which are beside the kubeconfig.
    #[arg(long)]
    meta: bool,

    /// Add an emulated machine with its own kernel: slow, but its kernel can be replaced.
    #[arg(long, conflicts_with = "meta")]
    emulated: bool,

    /// Initial kubelet version of the hosts.
    #[arg(long, value_name = "VERSION", default_value = "1.36.4")]
    kubelet: String,

    /// Start hosts, control plane and objects without the operators.
    #[arg(long)]
    no_operators: bool,

    /// Directory with the helper for hosts. [default: as for `fleetwright operators`]
    #[arg(long, value_name = "DIR")]
    helpers: Option<PathBuf>,

    #[command(flatten)]
    place: LabFolder,
}

/// The recorded state of a running lab.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    process: u32,
    server: String,
    meta: Option<MetaState>,
    packages: String,
    key: PathBuf,
    logs: Vec<PathBuf>,
    machines: Vec<(String, String)>,
    kernel: Option<String>,
}

/// The recorded state of a meta cluster.
#[derive(Debug, Serialize, Deserialize)]
struct MetaState {
    node: String,
    pods: String,
    images: Vec<String>,
}

pub(crate) fn run(args: LabArgs, log: &str) -> Result<()> {
    match args.command {
        Lab::Up(args) => up(&args, log),
        Lab::Status(place) => status(&place.path()?),
        Lab::Down(place) => down(&place.path()?),
        Lab::Run(args) => crate::runtime()?.block_on(stay(&args, log)),
    }
}

impl LabFolder {
    fn path(&self) -> Result<PathBuf> {
        match &self.home {
            Some(path) => Ok(std::path::absolute(path)?),
            None => Ok(Home::default_path()?.join("lab")),
        }
    }
}

impl Up {
    fn machines(&self) -> u8 {
        self.machines.unwrap_or(if self.meta { 0 } else { 3 })
    }
}

/// Starts the lab as a background process, and shows its output until the lab is up.
fn up(args: &Up, log: &str) -> Result<()> {
    hosts::require()?;
    let path = args.place.path()?;
    match Home::open(&path)? {
        OpenedHome::Ours(home) => drop(home),
        OpenedHome::Running => {
            println!("A lab is running already.");
            return status(&path);
        }
    }
    let _ = fs::remove_file(path.join("state.json"));
    let place = path.join("lab.log");
    let output = File::create(&place)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--log", log, "lab", "run", "--home"]).arg(&path);
    command.args(["--machines", &args.machines().to_string(), "--kubelet", &args.kubelet]);
    command.args(args.meta.then_some("--meta"));
    command.args(args.emulated.then_some("--emulated")).args(args.no_operators.then_some("--no-operators"));
    if let Some(helpers) = &args.helpers {
        command.arg("--helpers").arg(std::path::absolute(helpers)?);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        // In its own process group: Ctrl-C here must not end the lab.
        .process_group(0)
        .spawn()
        .context("cannot start the lab")?;
    let mut shown = LogFollower { file: File::open(&place)?, at: 0 };
    let deadline = Instant::now() + START;
    loop {
        shown.show()?;
        if path.join("state.json").exists() {
            return status(&path);
        }
        if let Some(ended) = child.try_wait()? {
            shown.show()?;
            bail!("the lab did not start ({ended}); see the log {}", place.display());
        }
        if Instant::now() > deadline {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
            bail!("timed out after {START:?}: the lab did not start; see the log {}", place.display());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Follows a file that another process writes.
struct LogFollower {
    file: File,
    at: u64,
}

impl LogFollower {
    fn show(&mut self) -> Result<()> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(self.at))?;
        // An incomplete line is shown the next time.
        if self.file.read_to_string(&mut text).is_ok()
            && let Some(end) = text.rfind('\n')
        {
            print!("{}", &text[..=end]);
            self.at += end as u64 + 1;
        }
        Ok(())
    }
}

fn status(path: &Path) -> Result<()> {
    let Some(state) = running(path)? else {
        println!("No lab is running. Start one with: fleetwright lab up");
        return Ok(());
    };
    let kubeconfig = Home::kubeconfig(path);
    println!("The lab is up: Kubernetes at {}, packages at {}.", state.server, state.packages);
    for (name, address) in &state.machines {
        println!("  {name:<12} ssh -i {} root@{address}", state.key.display());
    }
    if let Some(meta) = &state.meta {
        println!(
            "Pods run on the node meta ({}), have addresses of {}, and can be reached from here. PersistentVolumeClaims are bound, and DNS works.",
            meta.node, meta.pods
        );
        println!("Images: {}.", meta.images.join(", "));
    }
    println!("Try, with export KUBECONFIG={}", kubeconfig.display());
    if state.meta.is_some() {
        println!("  kubectl get nodes,storageclasses,pods -A -o wide");
        println!("  kubectl apply -f {}   # a business cluster", path.join(EXAMPLE).display());
        if !state.machines.is_empty() {
            let file = |name: &str| path.join(name).display().to_string();
            println!("  kubectl apply -f {}   # another cluster, with the hosts as workers", file(workers::CLUSTER));
            println!(
                "  fleetwright cluster kubeconfig {0} --merge && kubectl --context {0} apply -f {1}",
                workers::NAME,
                file(workers::MACHINES)
            );
        }
        println!("  kubectl get clusters,clusterpackageversions,pods -A");
        println!("  kubectl run -it --rm shell --image {}", hosts::images::BUSYBOX);
    }
    println!("  kubectl get machines,nodes -n {FLEET_NAMESPACE} -o wide");
    println!("  kubectl get machinepackageversions -n {FLEET_NAMESPACE}");
    if let Some((name, address)) = state.machines.first().filter(|_| state.meta.is_none()) {
        let other = r#"[{"component":"kubelet","ref":"kubelet-1.37.1"}]"#;
        println!("  # an upgrade:      kubectl edit machine -n {FLEET_NAMESPACE} {name}   # packages: {other}");
        println!(
            "  # drift, repaired: ssh -i {} root@{address} systemctl disable --now node-problem-detector",
            state.key.display()
        );
        println!("  # a removal:       kubectl delete machine -n {FLEET_NAMESPACE} {name}");
    }
    if let Some(kernel) = &state.kernel {
        println!(
            "  # a kernel:        add {{component: kernel, ref: {kernel}}} to the packages of the emulated machine"
        );
    }
    println!("Logs: {}", state.logs.iter().map(|log| log.display().to_string()).collect::<Vec<_>>().join(", "));
    println!("Stop it with: fleetwright lab down");
    Ok(())
}

fn down(path: &Path) -> Result<()> {
    if let OpenedHome::Running = Home::open(path)? {
        let state = running(path)?.context("the lab is starting; wait until it is up, or stop its process")?;
        // The holder of the lock wrote this process id.
        let told = Command::new("kill").args(["-TERM", &state.process.to_string()]).status()?;
        if !told.success() {
            bail!("cannot stop process {}; run the command as its owner", state.process);
        }
        let deadline = Instant::now() + STOP;
        while let OpenedHome::Running = Home::open(path)? {
            if Instant::now() > deadline {
                bail!("process {} did not stop in time; see the log {}", state.process, path.join("lab.log").display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("The lab has stopped.");
    } else {
        println!("No lab is running.");
    }
    fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))
}

/// The lab that runs with this folder, once it is up.
fn running(path: &Path) -> Result<Option<State>> {
    if !path.exists() || matches!(Home::open(path)?, OpenedHome::Ours(_)) {
        return Ok(None);
    }
    match fs::read(path.join("state.json")) {
        Ok(state) => Ok(Some(serde_json::from_slice(&state).context("cannot read state.json")?)),
        Err(_) => Ok(None),
    }
}

/// Runs the lab until it gets a signal.
async fn stay(args: &Up, log: &str) -> Result<()> {
    let path = args.place.path()?;
    let OpenedHome::Ours(_home) = Home::open(&path)? else { bail!("another lab uses {}", path.display()) };
    let stop = crate::stop_signal()?;
    let mut stop = std::pin::pin!(stop);
    let started = tokio::select! {
        started = start(args, &path, log) => started?,
        () = &mut stop => return Ok(()),
    };
    stop.await;
    println!("stopping");
    let _ = fs::remove_file(path.join("state.json"));
    // Ending hosts blocks, and no other task is waiting.
    drop(started);
    Ok(())
}

/// The parts in the order of their drops: operators first, then hosts, then their base.
struct RunningLab {
    _operators: Option<Process>,
    _hosts: Vec<Host>,
    _workers: Option<Workers>,
    _emulated: Option<EmulatedMachine>,
    _ground: LabBase,
}

/// The environment of the hosts.
enum LabBase {
    Site(Box<Site>),
    Meta(Box<Meta>),
}

impl LabBase {
    fn site(&self) -> &Site {
        match self {
            Self::Site(site) => site,
            Self::Meta(meta) => &meta.site,
        }
    }
}

async fn start(args: &Up, path: &Path, log: &str) -> Result<RunningLab> {
    let ground = if args.meta {
        println!("starting a meta cluster");
        LabBase::Meta(Box::new(Meta::start(Options::default()).await?))
    } else {
        println!("starting a control plane and a package server");
        LabBase::Site(Box::new(Site::start().await?))
    };
    let site = ground.site();
    let kubeconfig = Home::kubeconfig(path);
    fleetwright_pki::write_private(&kubeconfig, site.plane.kubeconfig())?;
    let client = site.plane.client();
    install::kinds_and_namespace(&client).await?;
    hosts::apply(&client, &site.objects(FLEET_NAMESPACE)?).await?;
    if let LabBase::Meta(meta) = &ground {
        hosts::apply(&client, &meta.package_versions(FLEET_NAMESPACE)?).await?;
        fs::write(path.join(EXAMPLE), CLUSTER.replace("@NAMESPACE@", FLEET_NAMESPACE))?;
        workers::import(meta, args.helpers.as_deref(), args.machines() > 0).await?;
    }
    let worker = site.worker(&args.kubelet)?;
    if !worker.iter().any(|(component, _)| component == "kubelet") {
        let there: Vec<_> = site.kubelet_versions().collect();
        bail!("kubelet {} not found; available: {}", args.kubelet, there.join(", "));
    }

    if args.machines() > 0 || args.emulated {
        println!(
            "booting {} hosts{}",
            args.machines(),
            if args.emulated { " and an emulated machine (a minute or more)" } else { "" }
        );
    }
    let names: Vec<_> = (1..=args.machines()).map(|number| format!("host-{number}")).collect();
    let booting = async {
        match &ground {
            LabBase::Meta(meta) if !names.is_empty() => {
                let (hosts, workers) = workers::boot(meta, &names, &args.kubelet).await?;
                Ok((hosts, Some(workers)))
            }
            _ => {
                let hosts = futures::future::try_join_all(names.iter().map(|name| site.host(name))).await?;
                site.connect(&hosts.iter().collect::<Vec<_>>()).await?;
                Ok((hosts, None))
            }
        }
    };
    let emulating = async {
        match args.emulated {
            true => {
                let kernels = Kernels::find().await?;
                Ok::<_, anyhow::Error>(Some((EmulatedMachine::start(&site.network, "emulated").await?, kernels)))
            }
            false => Ok(None),
        }
    };
    let ((booted, workers), emulated) = tokio::try_join!(booting, emulating)?;
    if let (LabBase::Meta(meta), Some(workers)) = (&ground, &workers) {
        workers::write(path, meta, workers, &booted, &args.kubelet)?;
    }

    let mut machines: Vec<Value> = Vec::new();
    let mut known = Vec::new();
    for (number, host) in (0..).zip(&booted) {
        // The node of a meta cluster runs control planes; these hosts are for business clusters.
        if !args.meta {
            machines.push(HostDescription::host(host, number).machine(FLEET_NAMESPACE, &worker));
        }
        known.push((host.name(), host.address().to_string()));
    }
    let mut kernel = None;
    if let Some((machine, kernels)) = &emulated {
        let package = site.kernel_package(kernels, &kernels.second, FLEET_NAMESPACE)?;
        kernel = package["metadata"]["name"].as_str().map(str::to_owned);
        machines.push(package);
        let network: Vec<_> = worker.iter().filter(|(component, _)| component == "sysctl-network").cloned().collect();
        machines.push(HostDescription::emulated(machine, args.machines()).machine(FLEET_NAMESPACE, &network));
        known.push((machine.name(), machine.address().to_string()));
    }
    hosts::apply(&client, &machines).await?;

    let mut logs = vec![path.to_owned(), site.plane.logs(), site.network.folder().to_owned()];
    let operators = match args.no_operators {
        true => None,
        false => {
            let config = kubeconfig.to_string_lossy().into_owned();
            let mut arguments = vec!["--log".to_owned(), if log == "warn" { "info" } else { log }.to_owned()];
            arguments.extend(["operators", "--kubeconfig", &config, "--listen", "127.0.0.1:0"].map(str::to_owned));
            if let Some(helpers) = &args.helpers {
                arguments.extend(["--helpers".to_owned(), helpers.display().to_string()]);
            }
            let process = Process::start("operators", &std::env::current_exe()?, arguments, path)?;
            logs.push(process.log().to_owned());
            Some(process)
        }
    };
    let state = State {
        process: std::process::id(),
        server: site.plane.url().to_owned(),
        meta: match &ground {
            LabBase::Site(_) => None,
            LabBase::Meta(meta) => {
                Some(MetaState { node: meta.address().to_string(), pods: meta.pods(), images: meta.images().to_vec() })
            }
        },
        packages: site.packages.url(""),
        key: site.network.ssh_key_path(),
        logs,
        machines: known,
        kernel,
    };
    // Written by a rename: a reader never sees a partial file.
    fs::write(path.join("state.tmp"), serde_json::to_vec_pretty(&state)?)?;
    fs::rename(path.join("state.tmp"), path.join("state.json"))?;
    println!("up");
    let emulated = emulated.map(|(machine, _)| machine);
    Ok(RunningLab { _operators: operators, _hosts: booted, _workers: workers, _emulated: emulated, _ground: ground })
}
