//! `fleetwright apiserver`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use fleetwright_apiserver::{Config, Server};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Keep all objects in memory: they are gone when the server stops. The only kind of store there is.
    #[arg(long, required = true)]
    memory: bool,

    /// Where to write the administrator's kubeconfig (mode 0600), once the server is ready.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,

    /// A further name or address for the serving certificate; may be repeated.
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,

    /// Where the cluster IPs of services come from.
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
        // Written last and by a rename: who finds the file finds a server that answers.
        fleetwright_pki::write_private(&args.kubeconfig, server.admin_kubeconfig()?)
            .with_context(|| format!("cannot write the kubeconfig to {}", args.kubeconfig.display()))?;
        println!("serving on {}, kubeconfig in {}", server.url(), args.kubeconfig.display());
        stop.await;
        server.stop().await;
        Ok(())
    });
    // The end of the process does not wait for a task that never yields.
    runtime.shutdown_background();
    served
}
