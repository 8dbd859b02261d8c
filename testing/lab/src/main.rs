//! Runs a real control plane, or with `host NAME…` bare hosts, or with `meta` a Kubernetes that runs pods, until Ctrl-C or until standard
//! input closes: for manual experiments. With `build` it builds the missing executables.

use fleetwright_lab::ControlPlane;
use fleetwright_lab::hosts::{Host, Network, Template, build_all};
use fleetwright_lab::meta::{Meta, Options};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        None => {
            let plane = ControlPlane::builder().controller_manager(["*"]).scheduler(true).start().await?;
            println!("export KUBECONFIG={}", plane.kubeconfig_path().display());
            stopped().await
        }
        Some("host") => {
            let network = Network::start().await?;
            let template = Template::debian().await?;
            let mut hosts = Vec::new();
            for name in arguments {
                let host = Host::start(&network, &template, &name).await?;
                println!("{} ssh -i {} root@{}", host.link(), network.ssh_key_path().display(), host.address());
                hosts.push(host);
            }
            stopped().await
        }
        Some("meta") => {
            let meta = Meta::start(Options::default()).await?;
            println!("{} {} {}", meta.kubeconfig_path().display(), meta.pods(), meta.site.network.folder().display());
            stopped().await
        }
        // Builds the Go modules for hosts and specs ahead of time.
        Some("build") => build_all(),
        Some(other) => anyhow::bail!("unknown argument {other:?}; pass nothing, host NAME…, meta or build"),
    }
}

async fn stopped() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => Ok(pressed?),
        _ = terminate.recv() => Ok(()),
    }
}
