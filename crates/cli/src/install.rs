//! `fleetwright install`: installs the definitions and the operators in a cluster.

mod apply;
pub(crate) mod manifest;
pub(crate) mod uninstall;

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use fleetwright_api::{Span, is_digest};
use fleetwright_plan::cluster::networks::Network;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};

use self::apply::{ApplyError, ApplyOptions, Change};
use self::manifest::{MANAGED_BY, MANAGER, ManifestOptions, NAME, Object};
use crate::cluster::{Cluster, ClusterArgs, is_not_found};
use crate::operators::OperatorSelection;

/// The polling interval of waits.
const LOOK: Duration = Duration::from_millis(50);

/// Which installation.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InstallationArgs {
    /// Namespace that the operators run in.
    #[arg(long, value_name = "NAME", default_value = "fleetwright-system", value_parser = namespace)]
    namespace: String,

    /// Namespace that the operators serve, with its machines, clusters, gates and reports.
    #[arg(long, value_name = "NAME", default_value = crate::FLEET_NAMESPACE, value_parser = namespace)]
    fleet_namespace: String,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright install --image registry.example.com/fleetwright@sha256:… --wait
  fleetwright install --dry-run                 # print what would be created or configured
  fleetwright install --print | kubectl diff -f -
  fleetwright install --namespace blue-system --fleet-namespace blue")]
pub(crate) struct Args {
    #[command(flatten)]
    place: InstallationArgs,

    /// Image of the operators. Use a digest (NAME@sha256:…): a tag can be moved to another image.
    #[arg(long, value_name = "IMAGE", default_value = concat!("ghcr.io/fleetwright/fleetwright:v", env!("CARGO_PKG_VERSION")), value_parser = image)]
    image: String,

    /// Number of replicas of each operator: one leads, the others take over.
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=9))]
    replicas: u32,

    /// PriorityClass of the operators' pods, such as `system-cluster-critical`.
    #[arg(long, value_name = "NAME")]
    priority_class: Option<String>,

    /// CIDR of the cluster's pods, Services or nodes: control planes of business clusters may not connect to it. Can be repeated or
    /// comma-separated. [default: the networks of its ServiceCIDRs and Nodes, and those of earlier installs]
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = crate::networks::network)]
    meta_network: Vec<Network>,

    /// Send the requests as a server-side dry run, and print what would change.
    #[arg(long, conflicts_with_all = ["print", "wait"])]
    dry_run: bool,

    /// Print the objects as YAML; needs no cluster.
    #[arg(long, conflicts_with = "wait")]
    print: bool,

    /// Print the RBAC rules of the operators as a table, for the guide.
    #[arg(long, hide = true, conflicts_with_all = ["print", "wait", "dry_run"])]
    print_rights: bool,

    /// Take over fields that another field manager owns.
    #[arg(long)]
    force_conflicts: bool,

    /// Wait until all replicas of the operators are available.
    #[arg(long)]
    wait: bool,

    /// Maximum time to wait until the definitions are served and, with --wait, until the operators are available.
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    timeout: Span,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn namespace(text: &str) -> Result<String, String> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fine = text.len() <= 63
        && text.bytes().all(|byte| good(byte) || byte == b'-')
        && text.bytes().next().is_some_and(good)
        && text.bytes().last().is_some_and(good);
    match fine {
        true => Ok(text.to_owned()),
        false => {
            Err("must be at most 63 lower-case letters, digits and dashes, and start and end with a letter or digit"
                .into())
        }
    }
}

fn image(text: &str) -> Result<String, String> {
    match text.is_empty() || text.chars().any(char::is_whitespace) {
        true => Err("invalid image reference; use one such as registry.example.com/fleetwright:0.1.0".into()),
        false => Ok(text.to_owned()),
    }
}

/// Whether an installation created the object.
pub(crate) fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|value| value == MANAGER)
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let choices = args.choices();
    if args.print_rights {
        return crate::print(&manifest::rights_table(&choices));
    }
    if choices.namespace == choices.fleet_namespace {
        bail!(
            "--namespace and --fleet-namespace are both {} and must differ: the Machine-Operator reads all Secrets in the fleet's namespace, and the keys of clusters are in the operators' namespace",
            choices.namespace
        );
    }
    let mut objects = manifest::objects(&choices);
    if args.print {
        manifest::confine(&mut objects, &args.meta_network);
        let values: Vec<_> = objects.into_iter().map(|object| object.value).collect();
        let head = "# Generated by `fleetwright install --print`. Apply it with `kubectl apply --server-side -f`.\n";
        let unknown = "# The networks of the cluster are not known here: control planes can connect to its pods, Services and nodes until the operators have the\n\
                       # argument --meta-network=CIDR[,CIDR...]. `fleetwright install` detects the networks; with --print, pass --meta-network.\n";
        let unknown = if args.meta_network.is_empty() { unknown } else { "" };
        return crate::print(&(head.to_owned() + unknown + &crate::yaml::documents(&values)?));
    }
    crate::runtime()?.block_on(args.install(objects))
}

impl Args {
    fn choices(&self) -> ManifestOptions {
        ManifestOptions {
            namespace: self.place.namespace.clone(),
            fleet_namespace: self.place.fleet_namespace.clone(),
            image: self.image.clone(),
            replicas: self.replicas,
            priority_class: self.priority_class.clone(),
        }
    }

    async fn install(&self, mut objects: Vec<Object>) -> anyhow::Result<()> {
        let cluster = self.cluster.connect().await?;
        let served = served_until_now(&cluster, &self.place).await?;
        if !serves_policies(&cluster).await? {
            objects.retain(|object| !object.is_policy());
            eprintln!(
                "note: this API server has no ValidatingAdmissionPolicies: only its roles confine the Cluster-Operator, and they allow it to create RoleBindings in any namespace and Secrets that hold tokens of the other operators; the Machine-Operator may create and delete any Secret in kube-system; and the right to patch machines/status, which readiness has, is enough to bind Nodes to Machines"
            );
        }
        if !is_digest(&self.image) {
            eprintln!(
                "note: the image {} is referenced by a tag, which can point to another image later; pin it with --image NAME@sha256:…",
                self.image
            );
        }
        manifest::confine(&mut objects, &self.networks(&cluster).await?);
        let objects = &objects[..];
        // All checks come before the first change: an installation that cannot be finished is not started.
        let foreseen = self.foresee(&cluster, objects).await?;
        if self.dry_run {
            for (object, (change, checked)) in objects.iter().zip(foreseen) {
                let how =
                    if checked { "server dry run" } else { "dry run; not checked: its namespace does not exist yet" };
                println!("{} {change} ({how})", object.display());
            }
        } else {
            self.apply_all(&cluster, objects).await?;
        }
        if let Some(served) = served.filter(|served| *served != self.place.fleet_namespace) {
            eprintln!(
                "note: these operators served the namespace {served} until now. Its objects are no longer managed, and the operators' rights \
                 there still exist; to remove them:\n  kubectl -n {served} delete role,rolebinding {}",
                OperatorSelection::ALL.map(OperatorSelection::object).join(" ")
            );
        }
        if self.wait {
            available(&cluster, &self.place.namespace, self.timeout).await?;
        }
        Ok(())
    }

    /// The networks that control planes must not reach: those of the flags, or else those of the existing Deployment and those that the cluster
    /// reports. Unknown networks are printed.
    async fn networks(&self, cluster: &Cluster) -> anyhow::Result<Vec<Network>> {
        let given = Network::merged(self.meta_network.iter().copied());
        if !given.is_empty() {
            return Ok(given);
        }
        let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), &self.place.namespace);
        let before =
            deployments.get_opt(OperatorSelection::Clusters.object()).await.map_err(|error| cluster.explain(error))?;
        let before = before.map(serde_json::to_value).transpose()?.map(|one| manifest::confined_by(&one));
        let found = crate::networks::discover(&cluster.client).await;
        let networks = Network::merged(before.into_iter().flatten().chain(found.networks));
        let names: Vec<_> = networks.iter().map(Network::to_string).collect();
        match names.is_empty() {
            true => eprintln!(
                "note: the networks of the cluster are not known: control planes can connect to its pods, Services and nodes; pass --meta-network"
            ),
            false => eprintln!("control planes may not connect to {}", names.join(", ")),
        }
        for note in &found.notes {
            eprintln!("note: {note}; pass all networks of the cluster with --meta-network");
        }
        Ok(networks)
    }

    /// The change of each object by a dry run, and whether the server could answer.
    async fn foresee(&self, cluster: &Cluster, objects: &[Object]) -> anyhow::Result<Vec<(Change, bool)>> {
        let how = ApplyOptions { dry_run: true, force: self.force_conflicts };
        let (mut foreseen, mut refusals) = (vec![], vec![]);
        for object in objects {
            match apply::apply(&cluster.client, object, how).await {
                Ok(change) => foreseen.push((change, true)),
                // The installation creates the namespace.
                Err(ApplyError::NoNamespace) => foreseen.push((Change::Created, false)),
                Err(refused) => refusals.push(explain(cluster, object, refused)),
            }
        }
        match refusals.as_slice() {
            [] => Ok(foreseen),
            [one] => bail!("{one}\nNothing was changed."),
            many => bail!("{} objects cannot be applied; nothing was changed:\n{}", many.len(), many.join("\n")),
        }
    }

    async fn apply_all(&self, cluster: &Cluster, objects: &[Object]) -> anyhow::Result<()> {
        let how = ApplyOptions { dry_run: false, force: self.force_conflicts };
        let definitions = objects.iter().filter(|object| object.is_crd()).count();
        for (index, object) in objects.iter().enumerate() {
            let change = apply::apply(&cluster.client, object, how).await;
            let change = change.map_err(|refused| anyhow!(explain(cluster, object, refused)))?;
            println!("{} {change}", object.display());
            if index + 1 == definitions {
                established(cluster, &objects[..definitions], self.timeout).await?;
            }
        }
        Ok(())
    }
}

fn explain(cluster: &Cluster, object: &Object, refused: ApplyError) -> String {
    let name = match object.namespace() {
        Some(namespace) => format!("{} in namespace {namespace}", object.display()),
        None => object.display(),
    };
    match refused {
        ApplyError::Owned(fields) => {
            let fields: Vec<_> = fields.iter().map(|(field, owner)| format!("  {field} is set by {owner}")).collect();
            format!(
                "{name}: fields are owned by other field managers:\n{}\n  pass --force-conflicts to take them over, or remove the fields there",
                fields.join("\n")
            )
        }
        ApplyError::Leaving => format!("{name} is being deleted; try again when it is removed"),
        ApplyError::NoNamespace => format!("{name}: its namespace was deleted; try again"),
        ApplyError::Failed(error) => format!("{name}: {:#}", cluster.explain(error)),
    }
}

/// The namespace that the existing Deployment serves.
async fn served_until_now(cluster: &Cluster, place: &InstallationArgs) -> anyhow::Result<Option<String>> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), &place.namespace);
    for name in OperatorSelection::ALL.map(OperatorSelection::object) {
        let found = deployments.get_opt(name).await.map_err(|error| cluster.explain(error))?;
        if let Some(deployment) = found {
            return Ok(manifest::served_by(&serde_json::to_value(deployment)?).map(str::to_owned));
        }
    }
    Ok(None)
}

/// Whether the API server serves the kind of admission policies.
async fn serves_policies(cluster: &Cluster) -> anyhow::Result<bool> {
    let served = format!("{}/v1", manifest::POLICIES);
    match cluster.client.list_api_group_resources(&served).await {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == "validatingadmissionpolicies")),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(cluster.explain(error)),
    }
}

/// Waits until the server serves the kinds.
async fn established(cluster: &Cluster, definitions: &[Object], timeout: Span) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout.0;
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for definition in definitions {
        loop {
            let found = api.get(definition.name()).await.map_err(|error| cluster.explain(error))?;
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            let status = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
            if status("Established").is_some_and(|condition| condition.status == "True") {
                break;
            }
            if let Some(refused) = status("NamesAccepted").filter(|condition| condition.status == "False") {
                let message = refused.message.as_deref().unwrap_or("its names are taken");
                bail!("{}: the server does not accept its names: {message}", definition.display());
            }
            if Instant::now() > deadline {
                bail!(
                    "timed out after {timeout}: {} is not served; see `kubectl describe crd {}`",
                    definition.display(),
                    definition.name()
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

/// Waits until all replicas of the operators are available, and prints the progress.
async fn available(cluster: &Cluster, namespace: &str, timeout: Span) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout.0;
    let mut said = String::new();
    loop {
        let mut rollout = Rollout { wanted: 0, available: 0, complete: true, troubles: String::new() };
        for which in OperatorSelection::ALL {
            let found = deployment(&cluster.client, namespace, which).await;
            rollout.add(Rollout::of(&found.map_err(|error| cluster.explain(error))?));
        }
        let line = format!("{} of {} operators available", rollout.available, rollout.wanted);
        if rollout.complete {
            eprintln!("{line}");
            return Ok(());
        }
        if line != said {
            eprintln!("waiting: {line}");
            said = line;
        }
        if Instant::now() > deadline {
            bail!(
                "timed out after {timeout}: {said}{}\nsee\n  kubectl -n {namespace} get pods\n  \
                 kubectl -n {namespace} logs -l app.kubernetes.io/name={NAME}",
                rollout.troubles
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn deployment(client: &Client, namespace: &str, which: OperatorSelection) -> kube::Result<Deployment> {
    Api::<Deployment>::namespaced(client.clone(), namespace).get(which.object()).await
}

/// The progress of a Deployment.
struct Rollout {
    wanted: i32,
    available: i32,
    complete: bool,
    /// The messages of its failing conditions.
    troubles: String,
}

impl Rollout {
    fn add(&mut self, other: Self) {
        self.wanted += other.wanted;
        self.available += other.available;
        self.complete &= other.complete;
        self.troubles += &other.troubles;
    }

    fn of(deployment: &Deployment) -> Self {
        let wanted = deployment.spec.replicas.unwrap_or(1);
        let status = deployment.status.clone().unwrap_or_default();
        // Replicas of an older generation do not count for this one.
        let seen = status.observed_generation >= deployment.metadata.generation;
        let available = if seen { status.available_replicas.unwrap_or(0) } else { 0 };
        let updated = status.updated_replicas.unwrap_or(0);
        let all = status.replicas.unwrap_or(0);
        let troubles = status.conditions.unwrap_or_default().into_iter().filter_map(|condition| {
            let bad = if condition.type_.as_deref() == Some("ReplicaFailure") { "True" } else { "False" };
            (condition.status.as_deref() == Some(bad))
                .then(|| condition.message.map(|message| format!("; {message}")))
                .flatten()
        });
        Self {
            wanted,
            available: available.min(updated),
            complete: seen && available >= wanted && updated >= wanted && all == wanted,
            troubles: troubles.collect(),
        }
    }
}

/// Creates the kinds and the namespace in the embedded server, for operators in the same process.
#[cfg(feature = "embedded")]
pub(crate) async fn kinds_and_namespace(client: &Client) -> anyhow::Result<()> {
    let choices = ManifestOptions {
        namespace: crate::FLEET_NAMESPACE.into(),
        fleet_namespace: crate::FLEET_NAMESPACE.into(),
        image: String::new(),
        replicas: 1,
        priority_class: None,
    };
    let cluster =
        Cluster { client: client.clone(), url: "this process".into(), namespace: "default".into(), door: None };
    let objects = manifest::objects(&choices);
    let wanted = |object: &Object| object.is_crd() || object.is_namespace() || object.lets_join();
    let needed: Vec<_> = objects.into_iter().filter(wanted).collect();
    for object in &needed {
        let change = apply::apply(client, object, ApplyOptions { dry_run: false, force: true }).await;
        change.map_err(|refused| anyhow!(explain(&cluster, object, refused)))?;
    }
    let definitions: Vec<_> = needed.into_iter().filter(Object::is_crd).collect();
    established(&cluster, &definitions, Span::seconds(30))
        .await
        .context("the embedded server does not serve the CustomResourceDefinitions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_namespaces_are_refused() {
        for bad in ["", "Fleet", "a_b", "-a", "a-", "a.b", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
        for good in ["fleet", "a", "blue-1"] {
            assert!(namespace(good).is_ok(), "{good:?}");
        }
    }

    fn rollout(generation: i64, observed: i64, updated: i32, available: i32, all: i32) -> Rollout {
        let deployment = serde_json::json!({
            "metadata": {"generation": generation},
            "spec": {"replicas": 2, "selector": {}, "template": {}},
            "status": {"observedGeneration": observed, "updatedReplicas": updated, "availableReplicas": available, "replicas": all},
        });
        Rollout::of(&serde_json::from_value(deployment).expect("a Deployment"))
    }

    #[test]
    fn available_replicas_of_an_older_generation_do_not_count() {
        assert!(!rollout(2, 1, 2, 2, 2).complete);
        assert!(!rollout(2, 2, 1, 2, 3).complete);
        assert!(rollout(2, 2, 2, 2, 2).complete);
    }
}
