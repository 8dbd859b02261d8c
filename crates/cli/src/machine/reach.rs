//! Connects to a machine's host from the user's computer as the operator does: the same SSH, the same keys, the same trust.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use fleetwright_api::Machine;
use fleetwright_kit::View as _;
use fleetwright_machines::{SecretView, route};
use fleetwright_transport::{Helpers, Link, Login, ReachError, Route, Ssh, Transport, TransportLimits, Trust};
use fleetwright_wire::{Answer, Observation, Observe, Request};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::cluster::Cluster;
use crate::door::Door;
use crate::operators::helpers_folder;

/// How hosts are reached from here.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ReachArgs {
    /// Directory with the helpers that are copied to hosts.
    /// [default: the directory of this program, `helpers` in or beside it, or /usr/local/share/fleetwright]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_HELPERS", help_heading = "Hosts")]
    helpers: Option<PathBuf>,

    /// Maximum time to wait for the answer of a host.
    #[arg(long, value_name = "DURATION", default_value = "20s", help_heading = "Hosts")]
    timeout: fleetwright_api::Span,
}

impl ReachArgs {
    /// A connector for the hosts of a cluster's machines.
    ///
    /// # Errors
    /// The helpers, which every host needs, were not found; the error lists the searched folders.
    pub(super) fn way(&self, cluster: &Cluster) -> anyhow::Result<HostConnector> {
        match (&cluster.door, self.ssh()) {
            (None, ssh) => Ok(HostConnector { door: None, ssh: Ok(ssh?) }),
            (Some(door), ssh) => {
                Ok(HostConnector { door: Some(door.clone()), ssh: ssh.map_err(|error| format!("{error:#}")) })
            }
        }
    }

    fn ssh(&self) -> anyhow::Result<Ssh> {
        let folder = self.helpers.clone().or_else(helpers_folder).context(
            "host helpers not found beside this program or in /usr/local/share/fleetwright; build them with make helper, or pass their directory with --helpers",
        )?;
        let helpers = Helpers::find(&folder).with_context(|| {
            format!(
                "host helpers not found in {}; build them with make helper, or pass their directory with --helpers",
                folder.display()
            )
        })?;
        Ok(Ssh::new(helpers))
    }

    pub(super) fn limits(&self) -> TransportLimits {
        let patient = self.timeout.0;
        TransportLimits { connect: patient, login: patient, ..TransportLimits::default() }
    }

    pub(super) fn within(&self) -> Duration {
        self.timeout.0.max(Duration::from_secs(1)) * 3
    }
}

/// A connector for hosts: SSH, or the socket of the `fleetwright up` that simulates them.
#[derive(Clone)]
pub(super) struct HostConnector {
    door: Option<Door>,
    /// The SSH transport, or the reason why it is not available.
    ssh: Result<Ssh, String>,
}

impl Transport for HostConnector {
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>> {
        Box::pin(async move {
            if let Some(door) = &self.door
                && let Some(link) = door.connect(&route).await
            {
                return Ok(link);
            }
            match &self.ssh {
                Ok(ssh) => ssh.connect(route).await,
                Err(why) => Err(ReachError::NoHelper(why.clone())),
            }
        })
    }
}

/// The route to a machine's host, as the operator computes it, with the logins from the cluster's Secrets.
///
/// # Errors
/// The machine is not reached by SSH, a Secret is missing, or its host was never trusted.
pub(super) async fn route(cluster: &Cluster, machine: &Machine, limits: TransportLimits) -> anyhow::Result<Arc<Route>> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    if machine.spec.ssh.is_none() {
        bail!("machine {name} has no spec.ssh: it is observed only");
    }
    let mut secrets = HashMap::new();
    for secret in route::secrets(machine) {
        if let Some(found) = secret_view(cluster, namespace, &secret).await? {
            secrets.insert(secret, Arc::new(found));
        }
    }
    let mut route = route::route(machine, |secret| secrets.get(secret).cloned())
        .map_err(|why| anyhow!("machine {name} in namespace {namespace}: {why}"))?;
    // Only the operator trusts on first use: it pins the key. A key that this command sees would not be recorded.
    if matches!(&route.host.trust, Trust::FirstUse) {
        bail!(
            "the host key of machine {name} is not known yet; the operator pins it when it first connects to the host"
        );
    }
    route.limits = limits;
    Ok(Arc::new(route))
}

pub(super) async fn secret_view(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<Option<SecretView>> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let secret = api.get_opt(name).await.map_err(|error| cluster.explain(error))?;
    Ok(secret.map(SecretView::of))
}

/// Reads a login from a Secret.
pub(super) async fn login(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<Login> {
    let secret = secret_view(cluster, namespace, name).await?;
    route::login(name, secret.as_ref()).map_err(|why| anyhow!("namespace {namespace}: {why}"))
}

/// Reads a login from a file.
pub(super) fn login_from(path: &Path) -> anyhow::Result<Login> {
    let key =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the private key {}", path.display()))?;
    Ok(Login { key: key.into(), certificate: None })
}

/// Connects, and observes the whole host.
///
/// # Errors
/// The reason why the host is not reached, or its unexpected answer.
pub(super) async fn observe(
    way: &HostConnector,
    route: Arc<Route>,
    observe: Observe,
    within: Duration,
) -> anyhow::Result<(Observation, Box<dyn Link>)> {
    let link = way.connect(route).await?;
    let request = Request::Observe(Box::new(observe));
    match link.ask(&request, within, &|_| {}).await? {
        Answer::Observed(observation) => Ok((*observation, link)),
        Answer::Failed(failure) => bail!("host rejected the request: {}", failure.message),
        _ => bail!("unexpected answer from the host"),
    }
}
