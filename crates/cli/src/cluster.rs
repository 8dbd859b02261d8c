//! The cluster that a command talks to, and what is said when it does not answer.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::door::Door;

/// How long the first answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Which cluster, as kubectl has it.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ClusterArgs {
    /// Path to the kubeconfig file. [default: $KUBECONFIG, then ~/.kube/config, then the pod's service account]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig. [default: its current context]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
}

/// A cluster that answered.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Where it is, for messages.
    pub(crate) url: String,
    /// The namespace of the context, or `default`.
    pub(crate) namespace: String,
    /// The way to its hosts, if they are simulated.
    pub(crate) door: Option<Door>,
}

impl ClusterArgs {
    /// A client for commands that a person waits for: a server that does not answer is given up.
    ///
    /// # Errors
    /// No cluster is named, or it does not answer.
    pub(crate) async fn connect(&self) -> anyhow::Result<Cluster> {
        self.connect_with(|config| config.read_timeout = Some(Duration::from_secs(30))).await
    }

    /// A client for a process that stays: watches may be quiet for long, and the kit decides on every retry.
    ///
    /// # Errors
    /// No cluster is named, or it does not answer.
    pub(crate) async fn connect_to_stay(&self) -> anyhow::Result<Cluster> {
        self.connect_with(stay).await
    }

    /// The file that was named.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    async fn connect_with(&self, change: impl FnOnce(&mut Config)) -> anyhow::Result<Cluster> {
        let mut config = self.config().await?;
        change(&mut config);
        let door = self.path().and_then(|path| Door::beside(&path));
        Cluster::at(config, door).await
    }

    /// The kubeconfig file, as far as a person named it.
    fn path(&self) -> Option<PathBuf> {
        let first =
            || std::env::split_paths(&std::env::var_os("KUBECONFIG")?).find(|path| !path.as_os_str().is_empty());
        self.kubeconfig.clone().or_else(first)
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let kubeconfig = Kubeconfig::read_from(path)
                    .map_err(|error| anyhow!("cannot read the kubeconfig {}: {}", path.display(), innermost(&error)))?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .with_context(|| format!("cannot use the kubeconfig {}", path.display()))
            }
            (None, Some(context)) => Config::from_kubeconfig(&options)
                .await
                .with_context(|| format!("cannot use the context {context:?}; pass a kubeconfig with --kubeconfig")),
            (None, None) => Config::infer().await.map_err(|error| {
                let why = error.source().map_or_else(String::new, |source| format!(": {}", innermost(source)));
                anyhow!(
                    "no usable kubeconfig{why}; pass one with --kubeconfig or KUBECONFIG \
                     (`fleetwright up` writes ~/.fleetwright/kubeconfig)"
                )
            }),
        }
    }
}

/// As a process that stays wants its client.
fn stay(config: &mut Config) {
    config.default_retry = false;
}

impl Cluster {
    /// The cluster of a kubeconfig, for a process that stays.
    ///
    /// # Errors
    /// It cannot be used, or the cluster does not answer.
    pub(crate) async fn of(kubeconfig: Kubeconfig) -> anyhow::Result<Self> {
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        stay(&mut config);
        Self::at(config, None).await
    }

    async fn at(mut config: Config, door: Option<Door>) -> anyhow::Result<Self> {
        config.connect_timeout = Some(Duration::from_secs(10));
        let (url, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| anyhow!("cannot use this kubeconfig: {error}"))?;
        let cluster = Self { client, url, namespace, door };
        match tokio::time::timeout(ANSWER, cluster.client.apiserver_version()).await {
            Ok(Ok(_)) => Ok(cluster),
            Ok(Err(error)) => Err(cluster.explain(error)),
            Err(_) => {
                Err(anyhow!("timed out after {}s: the API server at {} did not answer", ANSWER.as_secs(), cluster.url))
            }
        }
    }

    /// The namespace to look in when none is named: the context's, else that of the fleet. A context that names `default` cannot be
    /// told from one that names none.
    pub(crate) fn namespace_or<'a>(&'a self, named: Option<&'a str>) -> &'a str {
        match (named, self.namespace.as_str()) {
            (Some(named), _) => named,
            (None, "default") => crate::FLEET_NAMESPACE,
            (None, context) => context,
        }
    }

    /// An error of a call, in words for a person.
    pub(crate) fn explain(&self, error: kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) => anyhow!(words(&status)),
            kube::Error::SerdeError(error) => {
                anyhow!("the server at {} is not a Kubernetes API server: {error}", self.url)
            }
            kube::Error::Auth(error) => anyhow!("cannot authenticate to {}: {}", self.url, innermost(&error)),
            other => anyhow!(
                "cannot reach the API server at {}: {}; check that it is running, and check --kubeconfig and --context",
                self.url,
                innermost(&other)
            ),
        }
    }
}

/// What the server said, and what to do about it where that is known.
pub(crate) fn words(status: &kube::core::Status) -> String {
    let said = if status.message.is_empty() { &status.reason } else { &status.message };
    match status.code {
        401 => "unauthorized (401): the API server rejected the certificate or token of the kubeconfig".into(),
        403 => format!("not allowed: {said}"),
        _ => said.clone(),
    }
}

/// The cause of the causes: the layers of an HTTP client say little.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Whether the server said that there is such a thing already.
pub(crate) fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// Whether the server said that there is no such thing.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
