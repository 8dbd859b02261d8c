//! `fleetwright apiserver`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use fleetwright_apiserver::{Config, Server};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Listen address; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Keep all objects in memory; they are lost when the server stops. Required, because no other storage is supported.
    #[arg(long, required = true)]
    memory: bool,

    /// File for the administrator's kubeconfig (mode 0600), written when the server is ready.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,

    /// Additional DNS name or IP address of the serving certificate; can be repeated.
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,

    /// CIDR of the cluster IPs of Services.
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/16")]
    service_cidr: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let runtime = crate::runtime()?;
    let served = runtime.block_on(async {
        let stop = crate::stop_signal()?;
        let config = Config {
            listen: Some(args.listen),
            names: args.names,
            service_cidr: args.service_cidr,
            ..Config::default()
        };
        let server = Server::start(config).await?;
        // Written last and by a rename: when the file exists, the server answers.
        fleetwright_pki::write_private(&args.kubeconfig, server.admin_kubeconfig()?)
            .with_context(|| format!("cannot write the kubeconfig to {}", args.kubeconfig.display()))?;
        println!("serving on {}, kubeconfig in {}", server.url(), args.kubeconfig.display());
        stop.await;
        server.stop().await;
        Ok(())
    });
    // The exit of the process does not wait for a task that never yields.
    runtime.shutdown_background();
    served
}
