//! The cluster that a command connects to, and the messages when it does not answer.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::door::Door;

/// The timeout of the first answer.
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
    /// The URL, for messages.
    pub(crate) url: String,
    /// The namespace of the context, or `default`.
    pub(crate) namespace: String,
    /// The access to its hosts, if they are simulated.
    pub(crate) door: Option<Door>,
}

impl ClusterArgs {
    /// A client for interactive commands, with timeouts.
    ///
    /// # Errors
    /// No cluster is configured, or it does not answer.
    pub(crate) async fn connect(&self) -> anyhow::Result<Cluster> {
        self.connect_with(|config| config.read_timeout = Some(Duration::from_secs(30))).await
    }

    /// A client for a long-running process: watches may be quiet for long, and the kit decides on every retry.
    ///
    /// # Errors
    /// No cluster is configured, or it does not answer.
    pub(crate) async fn connect_to_stay(&self) -> anyhow::Result<Cluster> {
        self.connect_with(stay).await
    }

    /// The path of the kubeconfig flag.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    async fn connect_with(&self, change: impl FnOnce(&mut Config)) -> anyhow::Result<Cluster> {
        let mut config = self.config().await?;
        change(&mut config);
        let door = self.path().and_then(|path| Door::beside(&path));
        Cluster::at(config, door).await
    }

    /// The kubeconfig file, if a flag or variable names one.
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

/// Configures a client for a long-running process.
fn stay(config: &mut Config) {
    config.default_retry = false;
}

impl Cluster {
    /// The cluster of a kubeconfig, for a long-running process.
    ///
    /// # Errors
    /// The kubeconfig cannot be used, or the cluster does not answer.
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

    /// The default namespace: the context's, else that of the fleet. A context with the namespace `default` cannot be
    /// distinguished from one without a namespace.
    pub(crate) fn namespace_or<'a>(&'a self, named: Option<&'a str>) -> &'a str {
        match (named, self.namespace.as_str()) {
            (Some(named), _) => named,
            (None, "default") => crate::FLEET_NAMESPACE,
            (None, context) => context,
        }
    }

    /// Turns an error of a call into a message for people.
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

/// The server's message, with a remedy where one is known.
pub(crate) fn words(status: &kube::core::Status) -> String {
    let said = if status.message.is_empty() { &status.reason } else { &status.message };
    match status.code {
        401 => "unauthorized (401): the API server rejected the certificate or token of the kubeconfig".into(),
        403 => format!("not allowed: {said}"),
        _ => said.clone(),
    }
}

/// The innermost cause: the outer layers of an HTTP client say little.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Whether the error is NotFound.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
