//! Reaching a machine's host from where a person sits, as the operator does: the same SSH, the same keys, the same trust.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use fleetwright_api::{HostKeyPolicy, Machine};
use fleetwright_transport::{Helpers, Hop, Limits, Link, Login, Route, Ssh, Transport as _, Trust};
use fleetwright_wire::{Answer, Observation, Observe, Request};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::cluster::{Cluster, is_not_found};

/// The keys of a Secret with a login.
const PRIVATE_KEY: &str = "ssh-privatekey";
const CERTIFICATE: &str = "ssh-certificate";

/// How hosts are reached from here.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ReachArgs {
    /// The folder with the helpers that are put on hosts. [default: beside this program]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_HELPERS", help_heading = "Hosts")]
    helpers: Option<PathBuf>,

    /// How long a host may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "20s", help_heading = "Hosts")]
    timeout: fleetwright_api::Span,
}

impl ReachArgs {
    /// A way to hosts.
    ///
    /// # Errors
    /// There are no helpers; says where they were looked for.
    pub(super) fn ssh(&self) -> anyhow::Result<Ssh> {
        let folder = match &self.helpers {
            Some(folder) => folder.clone(),
            None => beside()?,
        };
        let helpers = Helpers::find(&folder).with_context(|| {
            format!(
                "no helpers for hosts in {}; name their folder with --helpers (`make helper` builds them)",
                folder.display()
            )
        })?;
        Ok(Ssh::new(helpers))
    }

    pub(super) fn limits(&self) -> Limits {
        let patient = self.timeout.0;
        Limits { connect: patient, login: patient, ..Limits::default() }
    }

    pub(super) fn within(&self) -> Duration {
        self.timeout.0.max(Duration::from_secs(1)) * 3
    }
}

/// The folder with helpers that is nearest to this program: its own, `helpers` in it, or `helpers` beside it, where cargo's targets have it.
fn beside() -> anyhow::Result<PathBuf> {
    let program =
        std::env::current_exe().context("cannot tell where this program is; name the folder with --helpers")?;
    let own = program.parent().unwrap_or(Path::new(".")).to_owned();
    let others = [own.join("helpers"), own.join("../helpers")];
    Ok(others.into_iter().find(|folder| Helpers::find(folder).is_ok()).unwrap_or(own))
}

/// The way to a machine's host, with the logins from the cluster's Secrets.
///
/// # Errors
/// The machine is not reached by SSH, a Secret is missing, or its host was never trusted.
pub(super) async fn route(cluster: &Cluster, machine: &Machine, limits: Limits) -> anyhow::Result<Arc<Route>> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &machine.spec;
    let Some(ssh) = &spec.ssh else { bail!("machine {name} has no spec.ssh: it is observed only") };
    let address = spec.addresses.first().or(spec.hostname.as_ref()).map_or(name, String::as_str);
    let own = login(cluster, namespace, &ssh.key_ref.name).await?;
    let mut jumps = Vec::new();
    for jump in &ssh.jumps {
        let login = match &jump.key_ref {
            Some(secret) => login(cluster, namespace, &secret.name).await?,
            None => own.clone(),
        };
        let trust = Trust::Keys(jump.host_keys.clone());
        jumps.push(Hop { address: jump.address.clone(), port: jump.port, user: jump.user.clone(), login, trust });
    }
    let pinned = match ssh.host_keys.policy {
        HostKeyPolicy::Pinned => ssh.host_keys.keys.clone(),
        HostKeyPolicy::TrustOnFirstUse => {
            machine.status.as_ref().map(|status| status.host_keys.clone()).unwrap_or_default()
        }
    };
    if pinned.is_empty() {
        // The first use is the operator's: it pins what it sees. Nobody would know what was seen here.
        bail!("the host key of machine {name} is not known yet; the operator pins it when it first reaches the host");
    }
    let trust = Trust::Keys(pinned);
    let host = Hop { address: address.to_owned(), port: ssh.port, user: ssh.user.clone(), login: own, trust };
    Ok(Arc::new(Route { machine: name.to_owned(), host, jumps, limits }))
}

/// A login out of a Secret.
pub(super) async fn login(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<Login> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let secret = match api.get(name).await {
        Ok(secret) => secret,
        Err(error) if is_not_found(&error) => bail!(
            "there is no Secret {name} in namespace {namespace} to log in with; make it: kubectl create secret generic {name} -n {namespace} --from-file={PRIVATE_KEY}=FILE"
        ),
        Err(error) => return Err(cluster.explain(error)),
    };
    let text = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        String::from_utf8(bytes.0.clone()).ok()
    };
    let key = text(PRIVATE_KEY).ok_or_else(|| {
        anyhow!("the Secret {name} in namespace {namespace} has no text under {PRIVATE_KEY}: put the private key there")
    })?;
    Ok(Login { key: key.into(), certificate: text(CERTIFICATE).map(Into::into) })
}

/// A login out of a file.
pub(super) fn login_from(path: &Path) -> anyhow::Result<Login> {
    let key =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the private key {}", path.display()))?;
    Ok(Login { key: key.into(), certificate: None })
}

/// Connects, and looks at everything.
///
/// # Errors
/// Why the host is not reached, or what it answered instead.
pub(super) async fn observe(
    ssh: &Ssh,
    route: Arc<Route>,
    observe: Observe,
    within: Duration,
) -> anyhow::Result<(Observation, Box<dyn Link>)> {
    let link = ssh.connect(route).await?;
    let request = Request::Observe(Box::new(observe));
    match link.ask(&request, within, &|_| {}).await? {
        Answer::Observed(observation) => Ok((*observation, link)),
        Answer::Failed(failure) => bail!("the host says no: {}", failure.message),
        _ => bail!("the host answers something else than it was asked"),
    }
}
