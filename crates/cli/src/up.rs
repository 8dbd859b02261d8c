//! `fleetwright up`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fleetwright_apiserver::{Config, Server};
use fleetwright_kit::Settings;

use crate::home::{Home, Opened};
use crate::operators::{self, Operators};
use crate::{FLEET_NAMESPACE, install};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright up
  fleetwright up --home ./fleet --listen 127.0.0.1:0 --metrics 127.0.0.1:0")]
pub(crate) struct Args {
    /// The folder that holds everything: keys, kubeconfig. [default: ~/.fleetwright]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_HOME")]
    home: Option<PathBuf>,

    /// The address of the API server; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,

    /// The address of the operators' metrics; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7444")]
    metrics: SocketAddr,

    #[command(flatten)]
    hosts: operators::HostArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let path = match args.home {
        Some(path) => std::path::absolute(path)?,
        None => Home::default_path()?,
    };
    let home = match Home::open(&path)? {
        Opened::Ours(home) => home,
        Opened::Running => {
            println!("Fleetwright is running already, with its home in {}.", path.display());
            what_next(&path);
            return Ok(());
        }
    };
    crate::runtime()?.block_on(async {
        let stop = crate::stop_signal()?;
        let config = Config {
            listen: Some(args.listen),
            authority: Some(home.authority()?),
            service_account_key: Some(home.service_account_key()?),
            ..Config::default()
        };
        let server = Server::start(config).await?;
        install::kinds_and_namespace(&server.client()).await?;
        // Nobody else serves this API server, so there is no lease to hold.
        let settings = Settings::new(operators::NAME, server.client());
        let hosts = (args.hosts.transport()?, args.hosts.options());
        let operators = Operators::new(settings, FLEET_NAMESPACE, &[], args.metrics, hosts).await?;
        let kubeconfig = Home::kubeconfig(&path);
        fleetwright_pki::write_private(&kubeconfig, server.admin_kubeconfig()?)
            .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        println!("Fleetwright is up: a Kubernetes API at {}, and its operators. Ctrl-C stops it.", server.url());
        what_next(&path);
        println!("Metrics of the operators: http://{}/metrics", operators.address());
        let ended = operators.run(stop).await;
        println!("\nStopping.");
        server.stop().await;
        ended
    })
}

/// What to type next.
fn what_next(home: &Path) {
    println!("In another terminal:");
    println!("  export KUBECONFIG={}", Home::kubeconfig(home).display());
    println!("  kubectl get machines,readinessgates -n {FLEET_NAMESPACE}");
    println!("  kubectl api-resources");
}
