//! `fleetwright up`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fleetwright_apiserver::{Config, Server};
use fleetwright_kit::Settings;
use fleetwright_sim::demo;
use fleetwright_sim::meta::service_network;

use crate::home::{Home, OpenedHome};
use crate::operators::{self, Operators};
use crate::simulated::{self, Clusters, Simulated, Workers};
use crate::{FLEET_NAMESPACE, install};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright up
  fleetwright up --home ./fleet --listen 127.0.0.1:0 --metrics 127.0.0.1:0")]
pub(crate) struct Args {
    /// Directory of all files, such as keys and the kubeconfig. [default: ~/.fleetwright]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_HOME")]
    home: Option<PathBuf>,

    /// Listen address of the API server; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,

    /// Listen address of the operators' metrics; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7444")]
    metrics: SocketAddr,

    /// Number of simulated machines: hosts in memory that the real operator manages. Some converge, one drifts, one gets a version that does
    /// not work, one is off. Unless 0, every host is checked every 10 seconds.
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u16).range(0..=10_000))]
    machines: u16,

    /// Number of example clusters: the real operator writes their control planes, and simulated nodes run them. Each has its own API server,
    /// which kubectl can connect to.
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=100))]
    clusters: u8,

    /// Number of simulated machines per example cluster. The Machine-Operator of the cluster, in its pod beside the control plane, joins them
    /// as nodes.
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u8).range(0..=100))]
    workers: u8,

    #[command(flatten)]
    hosts: operators::HostArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let path = match args.home {
        Some(path) => std::path::absolute(path)?,
        None => Home::default_path()?,
    };
    let home = match Home::open(&path)? {
        OpenedHome::Ours(home) => home,
        OpenedHome::Running => {
            println!("Fleetwright is already running; its home is {}.", path.display());
            what_next(&path, 0, 0, 0);
            return Ok(());
        }
    };
    crate::runtime()?.block_on(async {
        let stop = crate::stop_signal()?;
        let clusters = usize::from(args.clusters);
        let network = (clusters > 0).then(service_network).flatten();
        if clusters > 0 && network.is_none() {
            anyhow::bail!(
                "no addresses for the pods of simulated clusters: they need all of 127.0.0.0/8, as on Linux; pass --clusters 0 to start without them"
            );
        }
        let service_cidr = network.unwrap_or_else(|| Config::default().service_cidr);
        let config = Config {
            service_cidr,
            listen: Some(args.listen),
            authority: Some(home.authority()?),
            service_account_key: Some(home.service_account_key()?),
            ..Config::default()
        };
        let server = Server::start(config).await?;
        install::kinds_and_namespace(&server.client()).await?;
        // No other process serves this API server, so no lease is needed.
        let settings = Settings::new(operators::NAME, server.client());
        let (mut transport, mut options) = (args.hosts.transport()?, args.hosts.options());
        let machines = usize::from(args.machines);
        let mut simulated =
            (machines > 0).then(|| Simulated::start(&server.client(), &server.url(), server.ca_pem(), machines));
        let workers = Workers::new(clusters, usize::from(args.workers));
        if let Some(simulated) = &mut simulated {
            simulated.open_door(&path, workers.fleets())?;
            transport = simulated.transport(transport);
            options.check_every = options.check_every.min(simulated::CHECK_EVERY);
        }
        let planes = match clusters {
            0 => None,
            _ => Some(Clusters::start(&server.client(), clusters, workers).await?),
        };
        // The control planes are simulated, and have no networks to protect.
        let networks = &fleetwright_plan::cluster::networks::UNKNOWN_NETWORKS;
        let operators =
            Operators::new(settings, FLEET_NAMESPACE, &[], None, args.metrics, (transport, options), networks).await?;
        let kubeconfig = Home::kubeconfig(&path);
        fleetwright_pki::write_private(&kubeconfig, server.admin_kubeconfig()?)
            .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        println!("Fleetwright is up: a Kubernetes API at {}, and its operators. Ctrl-C stops it.", server.url());
        what_next(&path, machines, clusters, args.workers);
        println!("Metrics of the operators: http://{}/metrics", operators.address());
        let ended = operators.run(stop).await;
        drop((simulated, planes));
        println!("\nStopping.");
        server.stop().await;
        ended
    })
}

/// Prints the next commands.
fn what_next(home: &Path, machines: usize, clusters: usize, workers: u8) {
    println!("In another terminal:");
    println!("  export KUBECONFIG={}", Home::kubeconfig(home).display());
    if let Some(folder) = unknown_folder() {
        println!("  export PATH=$PATH:{}", folder.display());
    }
    println!("  kubectl get clusters,machines,readinessgates -n {FLEET_NAMESPACE}");
    println!("  kubectl api-resources");
    if clusters > 0 {
        clusters_next(clusters, workers);
    }
    if machines > 0 {
        machines_next(machines);
    }
}

/// Prints commands for clusters.
fn clusters_next(clusters: usize, workers: u8) {
    use simulated::clusters::{BAD, NEW, name};
    let first = name(0);
    let last = name(clusters - 1);
    let count = if clusters == 1 { "1 cluster".to_owned() } else { format!("{clusters} clusters") };
    println!("Creating {count}; each control plane is up within seconds. Try:");
    let mut lines = vec![
        ("fleetwright cluster tree".to_owned(), "the clusters and their parts, problems first"),
        (format!("fleetwright cluster kubeconfig {first} --merge"), "a client certificate, valid for 8 hours"),
        (format!("kubectl --context {first} create configmap before"), "kubectl works as with any cluster"),
        (format!("fleetwright cluster upgrade {first} {NEW} --wait"), "one component after the other, each verified"),
        (format!("fleetwright cluster rollback {first} --wait"), "rolls back, possible until the soak ends"),
        (format!("kubectl --context {first} get configmap before"), "no write is lost"),
        (
            format!("fleetwright cluster upgrade {last} {BAD}"),
            "its API server never becomes ready: rolled back after 20 seconds",
        ),
        (format!("fleetwright why cluster/{last}"), "shows why"),
    ];
    if workers > 0 {
        let nodes = [
            (format!("kubectl --context {first} get nodes"), "its workers, joined by its own Machine-Operator"),
            (format!("fleetwright machine status --context {first}"), "their status"),
        ];
        lines.splice(3..3, nodes);
    }
    aligned(lines);
}

/// Prints commands for machines.
fn machines_next(machines: usize) {
    println!(
        "Installing {machines} simulated machines with the real Machine-Operator, which takes a minute or two. Try:"
    );
    let mut lines = vec![
        (format!("kubectl get machines -n {FLEET_NAMESPACE} -o wide"), "all of them"),
        ("fleetwright machine status --problems".to_owned(), "machines with a problem; -w follows the changes"),
    ];
    if machines > simulated::BREAKS {
        let name = demo::name(simulated::BREAKS);
        lines.push((format!("fleetwright why machine/{name}"), "its new kubelet did not work and was rolled back"));
        lines.push((format!("fleetwright machine logs {name} --list"), "the steps in the journal of its host"));
    }
    if machines > simulated::DRIFTS {
        let (reports, drifts) = (demo::name(simulated::REPORTS), demo::name(simulated::DRIFTS));
        lines.push((
            format!("fleetwright machine status {drifts}"),
            "its host is changed by hand; the drift is repaired",
        ));
        lines.push((format!("fleetwright machine plan {reports} --observe"), "the same, but drift is only reported"));
    }
    if machines >= simulated::ROLLS.end {
        let rack = simulated::ROLLS.start / 10;
        lines.push((
            format!("fleetwright machine status -l rack=r{rack}"),
            "a rack that is upgraded and downgraded repeatedly",
        ));
    }
    aligned(lines);
    let first = demo::name(0);
    let upgrade = format!(r#"[{{"op":"replace","path":"/spec/packages/2/ref","value":"{}"}}]"#, demo::NEWER_KUBELET);
    println!("An upgrade, with a preview of its steps:");
    println!("  fleetwright machine pause {first}");
    println!("  kubectl patch machine {first} -n {FLEET_NAMESPACE} --type json -p '{upgrade}'");
    println!("  fleetwright machine plan {first}");
    println!("  fleetwright machine resume {first}");
    println!("  fleetwright machine status {first} -w");
}

/// Prints aligned commands with their purpose.
fn aligned(lines: Vec<(String, &str)>) {
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    for (line, what) in lines {
        println!("  {line:width$}  # {what}");
    }
}

/// The folder of this program, if it is not in PATH.
fn unknown_folder() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.to_owned();
    let known = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|one| one == folder));
    (!known).then_some(folder)
}
