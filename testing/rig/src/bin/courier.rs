//! The courier as a process of its own, to be killed and paused by tests.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fleetwright_kit::leader::Lease;
use fleetwright_kit::{Clock, Settings};
use fleetwright_rig::courier::{self, DeliveryLog};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Deliver parcels until stopped.
#[derive(Parser)]
struct Arguments {
    /// Path to the kubeconfig file.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Namespace of the parcels.
    #[arg(long)]
    namespace: String,
    /// Identity of this process in the lease.
    #[arg(long)]
    identity: String,
    /// Duration of the lease, in milliseconds.
    #[arg(long, default_value = "2000")]
    lease: u64,
    /// File that records the deliveries.
    #[arg(long)]
    file: PathBuf,
    /// Duration of a delivery, in milliseconds.
    #[arg(long, default_value = "0")]
    takes: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    // The parent holds the other end of the pipe, and the kernel closes it when the parent is killed.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let lease = Lease {
        namespace: arguments.namespace.clone(),
        name: "courier".into(),
        identity: arguments.identity,
        duration: Duration::from_millis(arguments.lease),
    };
    let settings = Settings { lease: Some(lease), ..Settings::new("courier", kube::Client::try_from(config)?) };
    let place = DeliveryLog::new(&arguments.file, Duration::from_millis(arguments.takes), Clock::system());
    let operator = courier::operator(settings, &arguments.namespace, place);
    operator.run(async move { stop.recv().await.map_or((), drop) }).await?;
    Ok(())
}
