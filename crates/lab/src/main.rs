//! Runs a real control plane until Ctrl-C, or until standard input's owner kills it: for trying things by hand.

use fleetwright_lab::ControlPlane;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let plane = ControlPlane::builder().controller_manager(["*"]).scheduler(true).start().await?;
    println!("export KUBECONFIG={}", plane.kubeconfig_path().display());
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
