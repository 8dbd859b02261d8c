//! `fleetwright uninstall`: removes the objects of `install`, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{anyhow, bail};
use fleetwright_api::{Span, names};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Preconditions, PropagationPolicy};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, Client, ResourceExt as _};

use super::manifest::{self, ManifestOptions, NAME, Object};
use super::{InstallationArgs, LOOK, is_ours, served_until_now};
use crate::cluster::{Cluster, ClusterArgs, is_not_found};
use crate::operators::OperatorSelection;

#[derive(clap::Args)]
#[command(
    after_help = "The command is refused while objects of Fleetwright's kinds exist, because removing a CustomResourceDefinition removes its \
objects. Namespaces are removed only if `install` created them and they contain nothing else.

Examples:
  fleetwright uninstall --dry-run
  fleetwright uninstall --namespace blue-system --fleet-namespace blue"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: InstallationArgs,

    /// Print what would be removed, without changing anything.
    #[arg(long)]
    dry_run: bool,

    /// Maximum time to wait until the removed objects are gone.
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    timeout: Span,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        Uninstall { args: &args, cluster: &cluster, deadline: Instant::now() + args.timeout.0 }.run().await
    })
}

struct Uninstall<'a> {
    args: &'a Args,
    cluster: &'a Cluster,
    deadline: Instant,
}

impl Uninstall<'_> {
    async fn run(&self) -> anyhow::Result<()> {
        let (place, client) = (&self.args.place, &self.cluster.client);
        if let Some(served) = served_until_now(self.cluster, place).await?
            && served != place.fleet_namespace
        {
            bail!(
                "the operators in namespace {} serve the namespace {served}, not {}; pass --fleet-namespace {served}",
                place.namespace,
                place.fleet_namespace
            );
        }
        let others = self.other_installations().await?;
        self.refuse_while_objects_exist(&others).await?;

        let choices = ManifestOptions {
            namespace: place.namespace.clone(),
            fleet_namespace: place.fleet_namespace.clone(),
            image: String::new(),
            replicas: 1,
            priority_class: None,
        };
        let objects = manifest::objects(&choices);
        let mut removed = 0;
        // The operators are removed first, with a wait: they release their leases while they still have the right to.
        for object in objects.iter().rev().filter(|object| !object.is_crd() && !object.is_namespace()) {
            removed += u32::from(self.remove(object).await?);
        }
        for name in leases() {
            removed += u32::from(self.remove_lease(name).await?);
        }
        if others.is_empty() {
            // Objects may have been created in the meantime.
            self.refuse_while_objects_exist(&others).await?;
            for object in objects.iter().rev().filter(|object| object.is_crd()) {
                removed += u32::from(self.remove(object).await?);
            }
        } else {
            println!("CustomResourceDefinitions kept: operators also run in {}.", others.join(", "));
        }
        for object in objects.iter().rev().filter(|object| object.is_namespace()) {
            removed += u32::from(self.remove_namespace(object, &objects).await?);
        }
        if removed == 0 {
            println!("No objects of Fleetwright found; nothing to remove.");
        }
        self.tell_of_tainted_nodes(client).await
    }

    /// The namespaces of other installations.
    async fn other_installations(&self) -> anyhow::Result<Vec<String>> {
        let api: Api<Deployment> = Api::all(self.cluster.client.clone());
        let selector = format!("app.kubernetes.io/name={NAME}");
        let found = api.list_metadata(&ListParams::default().labels(&selector)).await;
        let found = found.map_err(|error| self.cluster.explain(error))?;
        let namespaces =
            found.items.into_iter().filter(|found| is_ours(&found.metadata)).filter_map(|found| found.namespace());
        let others: BTreeSet<_> = namespaces.filter(|namespace| *namespace != self.args.place.namespace).collect();
        Ok(others.into_iter().collect())
    }

    /// Refuses while objects exist that would lose their kinds or their operators.
    async fn refuse_while_objects_exist(&self, others: &[String]) -> anyhow::Result<()> {
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for crd in fleetwright_api::crds() {
            let resource = ApiResource {
                group: crd.spec.group.clone(),
                version: fleetwright_api::VERSION.into(),
                api_version: format!("{}/{}", crd.spec.group, fleetwright_api::VERSION),
                kind: crd.spec.names.kind.clone(),
                plural: crd.spec.names.plural.clone(),
            };
            let api: Api<DynamicObject> = match others {
                [] => Api::all_with(self.cluster.client.clone(), &resource),
                // Other installations serve their own namespaces.
                _ => Api::namespaced_with(self.cluster.client.clone(), &self.args.place.fleet_namespace, &resource),
            };
            let mut page = ListParams::default().limit(500);
            loop {
                let list = match api.list_metadata(&page).await {
                    Ok(list) => list,
                    Err(error) if is_not_found(&error) => break,
                    Err(error) => return Err(self.cluster.explain(error)),
                };
                for item in list.items {
                    let namespace = item.namespace().unwrap_or_default();
                    *counts.entry((namespace, crd.spec.names.plural.clone())).or_default() += 1;
                }
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
        match counts.is_empty() {
            true => Ok(()),
            false => Err(objects_exist(&counts)),
        }
    }

    /// Removes an object of ours and waits until it is deleted; returns whether it existed.
    async fn remove(&self, object: &Object) -> anyhow::Result<bool> {
        let api = object.api(&self.cluster.client);
        let found = match api.get(object.name()).await {
            Ok(found) => found,
            // The object or its kind does not exist: not every API server has all of them.
            Err(error) if is_not_found(&error) => return Ok(false),
            Err(error) => return Err(self.cluster.explain(error)),
        };
        if !is_ours(&found.metadata) {
            println!("{} kept: it was not created by `fleetwright install`", object.display());
            return Ok(false);
        }
        self.delete(&api, &found, &object.display()).await?;
        Ok(true)
    }

    async fn delete(&self, api: &Api<DynamicObject>, found: &DynamicObject, display: &str) -> anyhow::Result<()> {
        let (name, uid) = (found.name_any(), found.metadata.uid.clone());
        let params = DeleteParams {
            dry_run: self.args.dry_run,
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&name, &params).await {
            Ok(_) => {}
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(anyhow!("{display}: {:#}", self.cluster.explain(error))),
        }
        if self.args.dry_run {
            println!("{display} deleted (server dry run)");
            return Ok(());
        }
        loop {
            let left = api.get_opt(&name).await.map_err(|error| self.cluster.explain(error))?;
            let Some(left) = left.filter(|left| left.metadata.uid == uid) else { break };
            if Instant::now() > self.deadline {
                let finalizers = left.metadata.finalizers.unwrap_or_default().join(", ");
                bail!(
                    "{display} still exists after {}: waiting for {}; run the command again to continue",
                    self.args.timeout,
                    if finalizers.is_empty() { "its dependents" } else { finalizers.as_str() }
                );
            }
            tokio::time::sleep(LOOK).await;
        }
        println!("{display} deleted");
        Ok(())
    }

    /// Removes the lease that an operator created for itself.
    async fn remove_lease(&self, name: &str) -> anyhow::Result<bool> {
        let resource = ApiResource::erase::<k8s_openapi::api::coordination::v1::Lease>(&());
        let namespace = &self.args.place.fleet_namespace;
        let api: Api<DynamicObject> = Api::namespaced_with(self.cluster.client.clone(), namespace, &resource);
        let found = api.get_opt(name).await.map_err(|error| self.cluster.explain(error))?;
        let Some(found) = found else { return Ok(false) };
        self.delete(&api, &found, &manifest::display(&resource, name)).await?;
        Ok(true)
    }

    /// Removes a namespace that the installation created, if it contains nothing else.
    async fn remove_namespace(&self, object: &Object, ours: &[Object]) -> anyhow::Result<bool> {
        let api = object.api(&self.cluster.client);
        let found = api.get_opt(object.name()).await.map_err(|error| self.cluster.explain(error))?;
        let Some(found) = found else { return Ok(false) };
        if !is_ours(&found.metadata) {
            println!("{} kept: it existed before the installation", object.display());
            return Ok(false);
        }
        let others = match self.foreign(object.name(), ours).await {
            Ok(others) => others,
            Err(error) => {
                println!("{} kept: cannot list its objects: {error:#}", object.display());
                return Ok(false);
            }
        };
        if let Some(first) = others.first() {
            let more = if others.len() > 1 { format!(" and {} more", others.len() - 1) } else { String::new() };
            println!("{} kept: it contains {first}{more}", object.display());
            return Ok(false);
        }
        self.delete(&api, &found, &object.display()).await?;
        Ok(true)
    }

    /// The objects in a namespace that neither the installation nor Kubernetes itself created.
    async fn foreign(&self, namespace: &str, ours: &[Object]) -> anyhow::Result<Vec<String>> {
        let client = &self.cluster.client;
        let discovery = loop {
            match Discovery::new(client.clone()).run().await {
                // Discovery may still list a group whose last kind was just removed.
                Err(error) if is_not_found(&error) && Instant::now() < self.deadline => tokio::time::sleep(LOOK).await,
                found => break found.map_err(|error| self.cluster.explain(error))?,
            }
        };
        let mut others = vec![];
        for group in discovery.groups() {
            for (resource, capabilities) in group.recommended_resources() {
                let events = resource.kind == "Event";
                if capabilities.scope != Scope::Namespaced || !capabilities.supports_operation(verbs::LIST) || events {
                    continue;
                }
                let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
                let list = match api.list_metadata(&ListParams::default()).await {
                    // Discovery lags behind: a kind that was just removed is still listed, and has no objects.
                    Err(error) if is_not_found(&error) => continue,
                    list => list,
                };
                let list = list.map_err(|error| anyhow!("{}: {:#}", resource.plural, self.cluster.explain(error)))?;
                let known = |name: &str| {
                    let same = |object: &Object| {
                        object.resource.kind == resource.kind
                            && object.name() == name
                            && object.namespace() == Some(namespace)
                    };
                    ours.iter().any(same) || by_itself(&resource.kind, name)
                };
                let found = list.items.into_iter().filter(|item| item.owner_references().is_empty());
                let found = found.map(|item| item.name_any()).filter(|name| !known(name));
                others.extend(found.map(|name| manifest::display(&resource, &name)));
            }
        }
        Ok(others)
    }

    /// Warns about taints that no operator will remove any more.
    async fn tell_of_tainted_nodes(&self, client: &Client) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes.list(&ListParams::default()).await.map_err(|error| self.cluster.explain(error))?;
        let tainted = nodes.items.into_iter().filter(|node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == names::UNREADY_TAINT))
        });
        let tainted: Vec<_> = tainted.map(|node| node.name_any()).collect();
        if let Some(words) = tainted_nodes(&tainted) {
            println!("{words}");
        }
        Ok(())
    }
}

fn objects_exist(counts: &BTreeMap<(String, String), usize>) -> anyhow::Error {
    let mut text = String::from(
        "objects of Fleetwright exist; removing the CustomResourceDefinitions would delete them without cleanup:\n",
    );
    let mut namespaces: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for ((namespace, plural), count) in counts {
        text.push_str(&format!("  {count:>5} {plural} in namespace {namespace}\n"));
        namespaces.entry(namespace).or_default().push(format!("{plural}.{}", fleetwright_api::GROUP));
    }
    text.push_str("Delete them while the operators still run, and uninstall again:\n");
    for (namespace, kinds) in namespaces {
        text.push_str(&format!("  kubectl -n {namespace} delete {} --all\n", kinds.join(",")));
    }
    text.push_str("Nothing was removed.");
    anyhow!(text)
}

/// Whether Kubernetes itself creates this object in every namespace.
fn by_itself(kind: &str, name: &str) -> bool {
    matches!((kind, name), ("ServiceAccount", "default") | ("ConfigMap", "kube-root-ca.crt"))
        || kind == "Lease" && leases().any(|lease| lease == name)
}

/// The leases of all operators.
fn leases() -> impl Iterator<Item = &'static str> {
    OperatorSelection::ALL.into_iter().map(OperatorSelection::object)
}

fn tainted_nodes(names: &[String]) -> Option<String> {
    const SHOWN: usize = 10;
    let taint = names::UNREADY_TAINT;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" ");
    let more = if names.len() > SHOWN { format!(" (and {} more)", names.len() - SHOWN) } else { String::new() };
    let nodes =
        if names.len() == 1 { "1 Node still has".to_owned() } else { format!("{} Nodes still have", names.len()) };
    (!names.is_empty()).then(|| {
        format!(
            "{nodes} the taint {taint}: no pods are scheduled there until it is removed:\n  \
             kubectl taint node {shown} {taint}-{more}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_the_objects_and_says_how_to_go_on() {
        let counts = BTreeMap::from([
            (("blue".to_owned(), "machines".to_owned()), 1),
            (("fleet".to_owned(), "machines".to_owned()), 12),
            (("fleet".to_owned(), "operations".to_owned()), 3),
        ]);
        let text = objects_exist(&counts).to_string();
        assert!(text.contains("12 machines"), "{text}");
        assert!(
            text.contains("kubectl -n fleet delete machines.fleetwright.io,operations.fleetwright.io --all"),
            "{text}"
        );
        assert!(text.contains("kubectl -n blue delete machines.fleetwright.io --all"), "{text}");
    }

    #[test]
    fn tainted_nodes_are_named_up_to_a_screenful() {
        assert_eq!(tainted_nodes(&[]), None);
        let many: Vec<_> = (0..12).map(|n| format!("n{n}")).collect();
        let text = tainted_nodes(&many).expect("words");
        assert!(text.starts_with("12 Nodes") && text.contains("n9 ") && !text.contains("n10"), "{text}");
        assert!(text.contains(" 2 more"), "{text}");
    }
}
