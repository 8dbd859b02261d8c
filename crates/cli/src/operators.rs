//! `fleetwright operators`: the operators as a separate process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use fleetwright_api::Span;
use fleetwright_clusters::Account;
use fleetwright_kit::leader::{self, Lease};
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::serve::{Endpoint, Health};
use fleetwright_kit::telemetry::{self, Format, Logging, Traces};
use fleetwright_kit::{Clock, Operator, Settings};
use fleetwright_plan::cluster::networks::MetaNetworks;
#[cfg(feature = "embedded")]
use fleetwright_sim::meta::Container;
use fleetwright_transport::{Helpers, Ssh, Transport};
use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::rbac::v1::PolicyRule;
use tokio::sync::{oneshot, watch};

use crate::cluster::{Cluster, ClusterArgs};
use crate::networks::NetworkArgs;
#[cfg(feature = "embedded")]
use crate::simulated;
use crate::{FLEET_NAMESPACE, preflight};

/// The name of the operators: user agent, and reporter of events.
pub(crate) const NAME: &str = "fleetwright";

#[derive(clap::Args)]
#[command(
    after_help = "In a pod, the operators use its service account, which `fleetwright install` sets up. The process exits with status 1 \
when a lease is lost, so that its supervisor restarts it. Each operator has its own lease.

Examples:
  fleetwright operators --kubeconfig ~/.kube/config --log info
  fleetwright operators --namespace blue --no-leader-election --listen 127.0.0.1:0
  curl -s http://127.0.0.1:9440/readyz"
)]
pub(crate) struct Args {
    /// Namespace to serve, with its machines, clusters, gates and reports.
    #[arg(long, value_name = "NAME", default_value = FLEET_NAMESPACE, value_parser = crate::install::namespace)]
    namespace: String,

    /// Operators to run; can be repeated or comma-separated. [default: all]
    #[arg(long, value_enum, value_name = "OPERATOR", value_delimiter = ',')]
    only: Vec<OperatorSelection>,

    /// Run without leases. Use this only for a namespace that no other process serves.
    #[arg(long, conflicts_with_all = ["lease_duration", "lease_namespace", "identity"])]
    no_leader_election: bool,

    /// Time for which other processes respect a lease that is not renewed.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = lease_duration)]
    lease_duration: Span,

    /// Namespace of the leases, one per operator. All processes that serve the same namespace must use the same. [default: the served namespace]
    #[arg(long, value_name = "NAME", value_parser = crate::install::namespace)]
    lease_namespace: Option<String>,

    /// Identity of this process in the leases; must be unique. [default: the host name and a random part]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,

    /// ServiceAccount that the Cluster-Operator runs as. The operator binds it to its role in the namespace of each control plane, and keeps the
    /// sealed copies of keys in the ServiceAccount's namespace. [default: none, for a kubeconfig of an administrator, who has all rights]
    #[arg(long = "service-account", value_name = "NAMESPACE/NAME", value_parser = account)]
    account: Option<Account>,

    /// Listen address of /metrics, /healthz and /readyz, over plain HTTP; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9440")]
    listen: SocketAddr,

    /// Log format.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,

    /// OTLP/HTTP endpoint for traces of passes and calls, such as http://collector:4318.
    #[arg(long, value_name = "URL", value_parser = otlp_endpoint)]
    otlp_endpoint: Option<String>,

    #[command(flatten)]
    networks: NetworkArgs,

    #[command(flatten)]
    hosts: HostArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// How hosts are worked on.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Directory with the helpers that run on hosts, one per architecture: fleetwright-host-amd64, fleetwright-host-arm64.
    /// [default: the directory of this program, `helpers` in or beside it, or /usr/local/share/fleetwright]
    #[arg(long, value_name = "DIR", env = "FLEETWRIGHT_HELPERS")]
    helpers: Option<PathBuf>,

    /// Maximum number of hosts that are worked on at the same time.
    #[arg(long, value_name = "COUNT", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,

    /// Interval at which each host is checked even if nothing changed, from 10s to 24h.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = check_every)]
    check_every: Span,
}

impl HostArgs {
    /// The options of the Machine-Operator.
    pub(crate) fn options(&self) -> fleetwright_machines::Options {
        let mut options = fleetwright_machines::Options { check_every: self.check_every.0, ..Default::default() };
        let overall = usize::try_from(self.concurrency).unwrap_or(usize::MAX);
        options.limits.overall = overall;
        // At most half of the limit is used in one zone or rack.
        options.limits.zone = overall.div_ceil(2);
        options.limits.rack = overall.div_ceil(4);
        options
    }

    /// The SSH transport. It works without helpers: a namespace without SSH hosts needs none, and a machine that needs one reports it.
    ///
    /// # Errors
    /// The configured folder contains no helper.
    pub(crate) fn transport(&self) -> anyhow::Result<Arc<dyn Transport>> {
        Ok(Arc::new(Ssh::new(self.helpers()?.unwrap_or_default())))
    }

    /// Like [`Self::transport`], with a warning if there are no helpers.
    ///
    /// # Errors
    /// The configured folder contains no helper.
    fn transport_loudly(&self) -> anyhow::Result<Arc<dyn Transport>> {
        let helpers = self.helpers()?.unwrap_or_else(|| {
            tracing::warn!("host helpers not found: machines with spec.ssh cannot be managed; see --helpers");
            Helpers::default()
        });
        Ok(Arc::new(Ssh::new(helpers)))
    }

    fn helpers(&self) -> anyhow::Result<Option<Helpers>> {
        if let Some(folder) = &self.helpers {
            return Ok(Some(Helpers::find(folder)?));
        }
        Ok(helpers_folder().and_then(|folder| Helpers::find(&folder).ok()))
    }
}

/// The default folder of helpers: the folder of this program, `helpers` in it, `helpers` beside it (where `make helper` puts
/// them), or the folder in an image.
pub(crate) fn helpers_folder() -> Option<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    let near = own.map(|own| [own.clone(), own.join("helpers"), own.join("../helpers")]);
    let mut folders = near.into_iter().flatten().chain([PathBuf::from(HELPERS)]);
    folders.find(|folder| Helpers::find(folder).is_ok())
}

/// The folder of helpers in an image.
const HELPERS: &str = "/usr/local/share/fleetwright";

fn check_every(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    match (Span::seconds(10)..=Span::minutes(24 * 60)).contains(&span) {
        true => Ok(span),
        false => Err("must be between 10s and 24h: each check connects to every host".into()),
    }
}

/// The operators that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OperatorSelection {
    /// Decide which machines are schedulable.
    Readiness,
    /// Bring hosts to their declared packages over SSH, and keep them there.
    Machines,
    /// Create and maintain clusters whose control planes run as pods of this cluster.
    Clusters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Human-readable lines.
    Text,
    /// One JSON object per line.
    Json,
}

impl OperatorSelection {
    pub(crate) const ALL: [Self; 3] = [Self::Readiness, Self::Machines, Self::Clusters];

    /// As `--only` names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Readiness => "readiness",
            Self::Machines => "machines",
            Self::Clusters => "clusters",
        }
    }

    /// The name of its ServiceAccount, Deployment and Lease. Every process that runs the operator, alone or with others, uses the same Lease in the
    /// namespace that it serves: so no two processes lead the same operator.
    pub(crate) const fn object(self) -> &'static str {
        match self {
            Self::Readiness => "fleetwright-readiness",
            Self::Machines => "fleetwright-machines",
            Self::Clusters => "fleetwright-clusters",
        }
    }

    /// The selected operators; all if none is selected.
    fn wanted(only: &[Self]) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |which| only.is_empty() || only.contains(which))
    }
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

fn lease_duration(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    match (Span::seconds(1)..=Span::minutes(60)).contains(&span) {
        true => Ok(span),
        false => Err("must be between 1s and 1h: after a crash, the next leader waits that long".into()),
    }
}

/// Leaked: the account lives as long as the process.
fn account(text: &str) -> Result<Account, String> {
    let wrong =
        || "write a ServiceAccount as NAMESPACE/NAME, such as fleetwright-system/fleetwright-clusters".to_owned();
    let (namespace, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
    let namespace = crate::install::namespace(namespace)?;
    Ok(Account { namespace: namespace.leak(), name: name.to_owned().leak() })
}

fn otlp_endpoint(text: &str) -> Result<String, String> {
    match text.starts_with("http://") || text.starts_with("https://") {
        true => Ok(text.to_owned()),
        false => Err("write a URL such as http://collector:4318".into()),
    }
}

/// Runs the operators; `filter` is the log filter.
pub(crate) fn run(args: &Args, filter: &str) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let mut stop = pin!(crate::stop_signal()?);
        let (metrics, identity) = (Metrics::new(), args.identity.clone().unwrap_or_else(identity));
        let traces = args.otlp_endpoint.as_ref().map(|endpoint| Traces::new(endpoint, NAME, &identity));
        let logging = Logging { format: args.log_format.into(), filter: filter.to_owned(), color: false };
        let exporter = telemetry::init(&logging, traces.as_ref(), &metrics)?;

        let operators = tokio::select! {
            started = args.start(identity, metrics) => started?,
            // A server that does not answer must not delay the stop.
            () = &mut stop => return Ok(()),
        };
        // The exporter of traces stops after the operators, so that the spans of the last passes are exported.
        let (ended, over) = oneshot::channel::<()>();
        let export = async {
            if let Some(exporter) = exporter {
                exporter.run(async { drop(over.await) }).await;
            }
        };
        let run = async {
            let _ended = ended;
            operators.run(stop).await
        };
        tokio::join!(run, export).0
    })
}

impl Args {
    /// Checks the preconditions, and prints the addresses of the probes.
    async fn start(&self, identity: String, metrics: Metrics) -> anyhow::Result<Operators> {
        let cluster = self.cluster.connect_to_stay().await?;
        let hosts = (self.hosts.transport_loudly()?, self.hosts.options());
        let operators = self.start_with(&cluster, hosts, self.listen, identity, metrics).await?;
        let (namespace, url, address) = (&self.namespace, &cluster.url, operators.address());
        println!("serving the namespace {namespace} of {url}; metrics and probes on http://{address}");
        Ok(operators)
    }

    /// Checks the preconditions in this cluster, and creates the operators with this transport.
    async fn start_with(
        &self,
        cluster: &Cluster,
        hosts: (Arc<dyn Transport>, fleetwright_machines::Options),
        listen: SocketAddr,
        identity: String,
        metrics: Metrics,
    ) -> anyhow::Result<Operators> {
        let clusters = self.only.is_empty() || self.only.contains(&OperatorSelection::Clusters);
        preflight::kinds(cluster, clusters).await?;
        let lease = self.lease(identity);
        preflight::rights(cluster, &self.rules(lease.as_ref())).await?;
        let mut settings = Settings::new(NAME, cluster.client.clone());
        settings.lease = lease;
        settings.metrics = metrics;
        if clusters && self.account.is_none() {
            tracing::info!(
                "no --service-account: control planes get no RoleBinding, and this kubeconfig must have the rights of an administrator"
            );
        }
        Operators::new(settings, &self.namespace, &self.only, self.account, listen, hosts, self.networks.known()).await
    }

    /// Runs the operators in a simulated pod, with simulated hosts: except for the transport, like in a real one.
    ///
    /// # Errors
    /// The preconditions are not met, or the lease was lost.
    #[cfg(feature = "embedded")]
    pub(crate) async fn run_in(&self, container: &Container, hosts: Arc<dyn Transport>) -> anyhow::Result<()> {
        let path = self.cluster.kubeconfig().context("--kubeconfig is not given")?;
        let kubeconfig = container.kubeconfig(&path.to_string_lossy()).map_err(anyhow::Error::msg)?;
        let cluster = Cluster::of(kubeconfig).await?;
        let mut options = self.hosts.options();
        options.check_every = options.check_every.min(simulated::CHECK_EVERY);
        let listen = SocketAddr::new(container.ip().into(), self.listen.port());
        let operators = self.start_with(&cluster, (hosts, options), listen, identity(), Metrics::new()).await?;
        let health = operators.health();
        let ready = async {
            while !health.ready().good {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            container.is_ready();
            std::future::pending().await
        };
        tokio::select! {
            ended = operators.run(container.stopped()) => ended,
            () = ready => unreachable!("it never ends"),
        }
    }

    fn lease(&self, identity: String) -> Option<Lease> {
        (!self.no_leader_election).then(|| Lease {
            namespace: self.lease_namespace.clone().unwrap_or_else(|| self.namespace.clone()),
            // Each operator uses its own name.
            name: String::new(),
            identity,
            duration: self.lease_duration.0,
        })
    }

    /// The required rules, with their scope.
    fn rules<'a>(&'a self, lease: Option<&'a Lease>) -> Vec<(Vec<PolicyRule>, Option<&'a str>)> {
        let keys = self.account.map_or(self.namespace.as_str(), |account| account.namespace);
        let mut rights = rights(&self.only, keys);
        if self.account.is_none() {
            // Without an account, no role is bound: the kubeconfig needs these rights in the whole cluster.
            rights.cluster.retain(|rule| rule.api_groups.iter().flatten().all(|group| group != RBAC));
            add_rules(&mut rights.cluster, std::mem::take(&mut rights.control_plane));
        }
        let mut rules = vec![(rights.namespaced, Some(self.namespace.as_str())), (rights.cluster, None)];
        rules.push((rights.tokens, Some(fleetwright_machines::join::TOKENS_NAMESPACE)));
        rules.push((rights.keys, Some(keys)));
        rules.extend(lease.map(|lease| (rights.lease, Some(lease.namespace.as_str()))));
        rules
    }
}

/// Unique for each process: the name of a pod stays when its container is restarted, and the old process may still
/// be running.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// The minimal rights of operators.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorRules {
    /// The rules in the namespace of the machines.
    pub(crate) namespaced: Vec<PolicyRule>,
    /// The rules in the namespace of the lease, which may differ.
    pub(crate) lease: Vec<PolicyRule>,
    /// The rules in kube-system, where bootstrap tokens are.
    pub(crate) tokens: Vec<PolicyRule>,
    /// The rules in the namespace of the Cluster-Operator's account, for the sealed copies of keys.
    pub(crate) keys: Vec<PolicyRule>,
    /// The rules in each control plane's namespace, by a RoleBinding that the Cluster-Operator creates.
    pub(crate) control_plane: Vec<PolicyRule>,
    /// The rules in the whole cluster.
    pub(crate) cluster: Vec<PolicyRule>,
}

/// The API group of roles and bindings.
const RBAC: &str = "rbac.authorization.k8s.io";

/// The rights of these operators, of all if none is named, with accounts in this namespace.
pub(crate) fn rights(only: &[OperatorSelection], account_namespace: &str) -> OperatorRules {
    let wanted = |which| only.is_empty() || only.contains(&which);
    let mut rights = OperatorRules::default();
    for which in OperatorSelection::wanted(only) {
        add_rules(&mut rights.lease, leader::rules(which.object()));
    }
    if wanted(OperatorSelection::Readiness) {
        let readiness = fleetwright_readiness::rules();
        add_rules(&mut rights.namespaced, readiness.namespaced);
        add_rules(&mut rights.cluster, readiness.cluster);
    }
    if wanted(OperatorSelection::Machines) {
        let machines = fleetwright_machines::rules();
        add_rules(&mut rights.namespaced, machines.namespaced);
        add_rules(&mut rights.tokens, machines.tokens);
        add_rules(&mut rights.cluster, machines.cluster);
    }
    if wanted(OperatorSelection::Clusters) {
        let clusters = fleetwright_clusters::rules(account_namespace);
        add_rules(&mut rights.namespaced, clusters.namespaced);
        add_rules(&mut rights.keys, clusters.keys);
        add_rules(&mut rights.control_plane, clusters.control_plane);
        add_rules(&mut rights.cluster, clusters.cluster);
    }
    rights
}

/// Merges rules: one rule per resource, with the verbs of all.
fn add_rules(all: &mut Vec<PolicyRule>, more: Vec<PolicyRule>) {
    for rule in more {
        for resource in rule.resources.iter().flatten() {
            let one = PolicyRule { resources: Some(vec![resource.clone()]), ..rule.clone() };
            let same = |known: &&mut PolicyRule| {
                (&known.api_groups, &known.resources, &known.resource_names)
                    == (&one.api_groups, &one.resources, &one.resource_names)
            };
            match all.iter_mut().find(same) {
                Some(known) => {
                    for verb in &one.verbs {
                        if !known.verbs.contains(verb) {
                            known.verbs.push(verb.clone());
                        }
                    }
                }
                None => all.push(one),
            }
        }
    }
}

/// The image of this process, as the manifest passes it: pods that take snapshots use the same.
fn image() -> &'static str {
    match std::env::var("FLEETWRIGHT_IMAGE") {
        // Leaked once for the life of the process.
        Ok(image) if !image.is_empty() => Box::leak(image.into_boxed_str()),
        _ => fleetwright_clusters::IMAGE,
    }
}

/// Configured operators with their probes.
pub(crate) struct Operators {
    /// One operator without leases, one per lease with leases.
    operators: Vec<Operator>,
    endpoint: Endpoint,
}

impl Operators {
    /// Creates these operators, or all if none is named. `networks` are those that control planes must not reach.
    /// With a lease in the settings, each operator has its own.
    ///
    /// # Errors
    /// The listen address is in use.
    pub(crate) async fn new(
        settings: Settings,
        namespace: &str,
        only: &[OperatorSelection],
        account: Option<Account>,
        listen: SocketAddr,
        (transport, options): (Arc<dyn Transport>, fleetwright_machines::Options),
        networks: &'static MetaNetworks,
    ) -> anyhow::Result<Self> {
        let endpoint = Endpoint::bind(listen).await?;
        let add = |operator: &mut Operator, which: OperatorSelection| match which {
            OperatorSelection::Readiness => fleetwright_readiness::add(operator, namespace),
            OperatorSelection::Machines => {
                drop(fleetwright_machines::add(operator, namespace, transport.clone(), options))
            }
            OperatorSelection::Clusters => {
                let options = fleetwright_clusters::Options { image: image(), account, networks, ..Default::default() };
                fleetwright_clusters::add(operator, namespace, options);
            }
        };
        let operators = match &settings.lease {
            None => {
                let mut operator = Operator::new(settings);
                OperatorSelection::wanted(only).for_each(|which| add(&mut operator, which));
                vec![operator]
            }
            Some(lease) => {
                let each = |which: OperatorSelection| {
                    let lease = Some(Lease { name: which.object().to_owned(), ..lease.clone() });
                    let mut operator = Operator::new(Settings { lease, ..settings.clone() });
                    add(&mut operator, which);
                    operator
                };
                OperatorSelection::wanted(only).map(each).collect()
            }
        };
        Ok(Self { operators, endpoint })
    }

    /// The combined health of all operators.
    pub(crate) fn health(&self) -> Health {
        let all = self.operators.iter().map(|operator| operator.health().clone());
        all.reduce(Health::with).unwrap_or_else(|| Health::new(Clock::system()))
    }

    /// The address of the metrics and probes.
    pub(crate) fn address(&self) -> SocketAddr {
        self.endpoint.address()
    }

    /// Runs until `stop` is ready. Probes are answered until the end.
    ///
    /// # Errors
    /// The lease was lost: the process must exit.
    pub(crate) async fn run(self, stop: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
        let health = self.health();
        let metrics = self.operators.first().map(|one| one.metrics().clone()).unwrap_or_default();
        let stopping = watch::Sender::new(false);
        let mut running: FuturesUnordered<_> = self
            .operators
            .into_iter()
            .map(|operator| {
                let mut stopped = stopping.subscribe();
                operator.run(async move { drop(stopped.wait_for(|stop| *stop).await) })
            })
            .collect();
        let all = async {
            let mut stop = pin!(stop.fuse());
            let mut outcome = Ok(());
            loop {
                tokio::select! {
                    () = &mut stop => drop(stopping.send_replace(true)),
                    ended = running.next() => match ended {
                        Some(ended) => {
                            // When one operator lost its lease, the others release theirs, and the process exits.
                            stopping.send_replace(true);
                            outcome = outcome.and(ended);
                        }
                        None => return outcome,
                    },
                }
            }
        };
        tokio::select! {
            ended = all => Ok(ended?),
            () = self.endpoint.serve(health, metrics, std::future::pending()) => unreachable!("it is never asked to stop"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleetwright_plan::cluster::extensions::{IF_SERVED, MACHINE_OPERATOR, shipped};
    use serde_json::{Value, json};

    /// The template of the extension that grants the Machine-Operator its rights.
    fn access() -> String {
        let all = shipped(|name| format!("registry.example/{name}:v1")).unwrap();
        assert!(all.iter().any(|one| one.name == MACHINE_OPERATOR));
        all.into_iter().find(|one| one.name == "machine-access").unwrap().template
    }

    /// The rules that the shipped extension grants the Machine-Operator, by scope.
    fn given() -> Vec<(String, Value)> {
        let text = access().replace("{{ values.namespace | json }}", "\"fleet\"");
        let documents = text.split("\n---\n").filter(|text| !text.contains("{{"));
        let documents = documents.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
        let roles = documents.filter(|one| one["rules"].is_array());
        roles
            .map(|one| (one["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(), one["rules"].clone()))
            .collect()
    }

    #[test]
    fn the_shipped_machine_operator_may_do_what_it_needs_and_nothing_else() {
        let given = given();
        let rights = rights(&[OperatorSelection::Machines, OperatorSelection::Readiness], "fleetwright-system");
        let (mut namespaced, lease) = (rights.namespaced, rights.lease);
        add_rules(&mut namespaced, lease);
        for (place, wanted) in [("", rights.cluster), ("fleet", namespaced), ("kube-system", rights.tokens)] {
            let mut rules = Vec::new();
            let found = given.iter().filter(|(there, _)| there == place);
            for rule in found.flat_map(|(_, rules)| rules.as_array().unwrap()) {
                add_rules(&mut rules, vec![serde_json::from_value(rule.clone()).unwrap()]);
            }
            let sorted = |rules: &[PolicyRule]| {
                let mut all: Vec<_> = rules.iter().map(|rule| json!(rule).to_string()).collect();
                all.sort();
                all
            };
            assert_eq!(sorted(&rules), sorted(&wanted), "in {place:?}");
        }
    }

    #[test]
    fn the_shipped_admission_policies_are_those_of_an_installation_for_another_user() {
        let fleet = "{{ (\"request.namespace == '\" ~ values.namespace ~ \"'\") | json }}";
        let text = access().replace(fleet, "\"request.namespace == 'fleet'\"");
        let documents = text.split("\n---\n").filter(|text| text.contains("\nkind: ValidatingAdmissionPolicy"));
        let given: Vec<Value> = documents.map(|text| serde_saphyr::from_str(text).unwrap()).collect();
        let (policy, user) = ("fleetwright-machine-operator", "fleetwright:machine-operator");
        let mut wanted = fleetwright_machines::admission_policies(policy, user, "fleet");
        for object in &mut wanted {
            object["metadata"]["annotations"] = json!({ IF_SERVED: "true" });
        }
        assert_eq!(given, wanted);
    }
}
