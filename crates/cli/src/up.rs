//! `fleetwright up`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fleetwright_apiserver::{Config, Server};

use crate::home::{Home, Opened};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that holds everything: keys, kubeconfig. [default: ~/.fleetwright]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_HOME")]
    home: Option<PathBuf>,

    /// The address of the API server; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,
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
        let config = Config {
            listen: Some(args.listen),
            authority: Some(home.authority()?),
            service_account_key: Some(home.service_account_key()?),
            ..Config::default()
        };
        let server = Server::start(config).await?;
        let kubeconfig = Home::kubeconfig(&path);
        fleetwright_pki::write_private(&kubeconfig, server.admin_kubeconfig()?)
            .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        println!("Fleetwright is up: a Kubernetes API at {}. Ctrl-C stops it.", server.url());
        what_next(&path);
        crate::until_stopped().await?;
        println!("\nStopping.");
        server.stop().await;
        Ok(())
    })
}

/// What to type next.
fn what_next(home: &Path) {
    println!("In another terminal:");
    println!("  export KUBECONFIG={}", Home::kubeconfig(home).display());
    println!("  kubectl get namespaces");
    println!("  kubectl api-resources");
}
