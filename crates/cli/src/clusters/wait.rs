//! Waits until a cluster has reached the requested state, and prints the progress.

use std::time::{Duration, Instant};

use anyhow::bail;
use fleetwright_api::names::{self, reasons};
use fleetwright_api::{Cluster, ClusterPhase, FailedChange, Span, Status, condition, is_true};
use kube::{Api, ResourceExt as _};

use super::{called, health};
use crate::cluster::Cluster as Meta;
use crate::terminal_text::{ago, line};

/// The polling interval. It is so short that a watch would make no visible difference.
const LOOK: Duration = Duration::from_millis(200);

/// Whether and how long to wait.
#[derive(clap::Args)]
pub(super) struct WaitArgs {
    /// Wait until the request is complete, and print the progress.
    #[arg(long)]
    pub(super) wait: bool,

    /// With --wait: maximum time to wait. The change continues after a timeout.
    #[arg(long, value_name = "DURATION", default_value = "15m", requires = "wait")]
    pub(super) timeout: Span,
}

pub(super) enum WaitState {
    /// The requested state is reached.
    Done,
    /// The requested state cannot be reached.
    Failed(String),
    /// The change is in progress.
    NotYet,
}

impl WaitArgs {
    /// Polls the cluster until the requested state is reached; returns the time it took.
    ///
    /// # Errors
    /// The state is not reached, or not in time; the error has the present state and what to do.
    pub(super) async fn until(
        &self,
        meta: &Meta,
        cluster: &Cluster,
        wanted: &str,
        look: impl Fn(Option<&Cluster>) -> WaitState,
    ) -> anyhow::Result<String> {
        let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
        let api: Api<Cluster> = Api::namespaced(meta.client.clone(), &namespace);
        let (began, mut said) = (jiff::Timestamp::now(), String::new());
        let deadline = Instant::now() + self.timeout.0;
        loop {
            // A server that does not answer is asked again.
            let told = match api.get_opt(&name).await {
                Ok(found) => {
                    let found = found.filter(|found| found.uid() == cluster.uid());
                    match look(found.as_ref()) {
                        WaitState::Done => return Ok(ago(began, jiff::Timestamp::now())),
                        WaitState::Failed(why) => bail!("cluster {name} is not {wanted}: {why}"),
                        WaitState::NotYet => found.as_ref().map_or("not found".to_owned(), health::summary),
                    }
                }
                Err(error) => format!("{:#}", meta.explain(error)),
            };
            if told != said {
                eprintln!("waiting: {told}");
                said = told;
            }
            if Instant::now() >= deadline {
                bail!(
                    "timed out after {}: cluster {name} is not {wanted}: {said}\nThe operators continue; see\n  fleetwright cluster status {of}\n  fleetwright why cluster {of}",
                    self.timeout,
                    of = called(cluster)
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A requested package version.
pub(super) struct RequestedVersion<'a> {
    pub(super) package: &'a str,
    /// The generation of the Cluster with the request.
    pub(super) generation: Option<i64>,
    /// The failed change that was recorded before the request.
    pub(super) failed_before: Option<FailedChange>,
}

impl RequestedVersion<'_> {
    /// Whether the cluster has the version, and has been proven to work with it.
    pub(super) fn look(&self, cluster: Option<&Cluster>) -> WaitState {
        let Some(cluster) = cluster else { return WaitState::Failed("it was deleted".to_owned()) };
        if cluster.spec.package_version != self.package {
            return WaitState::Failed(format!("spec.packageVersion was changed to {}", cluster.spec.package_version));
        }
        let status = cluster.status.clone().unwrap_or_default();
        let of_now = |generation: Option<i64>| generation >= self.generation;
        let arrived = of_now(status.observed_generation)
            && status.package_version.as_deref() == Some(self.package)
            && matches!(status.phase, Some(ClusterPhase::Ready | ClusterPhase::Soaking))
            && is_true(&status.conditions, names::READY);
        if arrived {
            return WaitState::Done;
        }
        if let Some(failed) = &status.failed
            && failed.package_version == self.package
            && status.failed != self.failed_before
        {
            return WaitState::Failed(format!(
                "{} failed and was rolled back: {}",
                self.package,
                line(&failed.message)
            ));
        }
        let limited = condition(&status.conditions, names::ACCEPTED)
            .filter(|accepted| accepted.status == Status::False && accepted.reason == reasons::LIMIT_EXCEEDED)
            .filter(|accepted| of_now(accepted.observed_generation));
        if let Some(accepted) = limited {
            return WaitState::Failed(line(&accepted.message));
        }
        // Other blockers may disappear by themselves.
        let final_ = [
            reasons::UNSUPPORTED_UPGRADE_PATH,
            reasons::SOAK_ENDED,
            reasons::INVALID_ARGUMENT,
            reasons::REMOVED_APIS_IN_USE,
            reasons::INSUFFICIENT_RESOURCES,
        ];
        let refused = condition(&status.conditions, names::UPGRADABLE)
            .filter(|upgradable| upgradable.status == Status::False && final_.contains(&upgradable.reason.as_str()))
            .filter(|upgradable| of_now(upgradable.observed_generation));
        match refused {
            Some(upgradable) => WaitState::Failed(line(&upgradable.message)),
            None => WaitState::NotYet,
        }
    }
}
