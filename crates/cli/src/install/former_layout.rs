//! Migrates an installation of the former layout: one account, one Deployment and one Lease for all operators, and keys of clusters beside machines.

use std::time::Instant;

use anyhow::{anyhow, bail};
use fleetwright_api::{Span, names};
use fleetwright_plan::cluster::keys::{SEAL, SEALED_KEYS};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{
    DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy,
};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::manifest::{self, MANAGER, ManifestOptions, NAME, Object};
use super::{LOOK, is_ours};
use crate::cluster::{Cluster, is_already_there};

/// The earlier name of the label [`names::CLUSTER_NAMESPACE`]. The label was renamed after the former layout was replaced, so all Secrets of a former
/// installation have the earlier name.
const FORMER_CLUSTER_NAMESPACE: &str = "fleetwright.io/fleet";

/// The migration of a former installation.
pub(super) struct FormerInstallation<'a> {
    cluster: &'a Cluster,
    choices: &'a ManifestOptions,
    timeout: Span,
}

impl<'a> FormerInstallation<'a> {
    pub(super) fn new(cluster: &'a Cluster, choices: &'a ManifestOptions, timeout: Span) -> Self {
        Self { cluster, choices, timeout }
    }

    /// Prints what would be removed and moved.
    pub(super) async fn foresee(&self) -> anyhow::Result<()> {
        for object in manifest::former(self.choices) {
            if self.found(&object).await?.is_some() {
                println!("{} deleted (dry run; former layout)", object.display());
            }
        }
        for secret in self.keys().await? {
            println!("secret/{} moved to namespace {} (dry run)", secret.name_any(), self.choices.namespace);
        }
        Ok(())
    }

    /// Removes the operators first, and waits until their pods are deleted; then moves keys to the namespace whose Secrets only the
    /// Cluster-Operator reads.
    pub(super) async fn remove(&self) -> anyhow::Result<()> {
        for object in manifest::former(self.choices) {
            let Some(found) = self.found(&object).await? else { continue };
            self.delete(&object, &found).await?;
            if object.is_deployment() {
                self.pods_gone().await?;
            }
        }
        for secret in self.keys().await? {
            self.carry(secret).await?;
        }
        Ok(())
    }

    /// The object, if it exists and an installation created it. The operators created the Lease.
    async fn found(&self, object: &Object) -> anyhow::Result<Option<DynamicObject>> {
        let found = object.api(&self.cluster.client).get_opt(object.name()).await;
        let found = found.map_err(|error| self.cluster.explain(error))?;
        Ok(found.filter(|found| is_ours(&found.metadata) || object.resource.kind == "Lease"))
    }

    async fn delete(&self, object: &Object, found: &DynamicObject) -> anyhow::Result<()> {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: found.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        let (api, display) = (object.api(&self.cluster.client), object.display());
        let deleted = api.delete(object.name(), &params).await;
        deleted.map_err(|error| anyhow!("{display}: {:#}", self.cluster.explain(error)))?;
        let deadline = Instant::now() + self.timeout.0;
        while self.found(object).await?.is_some_and(|left| left.metadata.uid == found.metadata.uid) {
            if Instant::now() > deadline {
                bail!("{display} still exists after {}: run the command again to continue", self.timeout);
            }
            tokio::time::sleep(LOOK).await;
        }
        println!("{display} deleted (former layout)");
        Ok(())
    }

    /// Until the pods are deleted, they may lead.
    async fn pods_gone(&self) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.choices.namespace);
        let params =
            ListParams::default().labels(&format!("app.kubernetes.io/name={NAME},!app.kubernetes.io/component"));
        let deadline = Instant::now() + self.timeout.0;
        loop {
            let left = pods.list_metadata(&params).await.map_err(|error| self.cluster.explain(error))?.items;
            let Some(first) = left.first() else { return Ok(()) };
            if Instant::now() > deadline {
                bail!(
                    "pod/{} of the former operators still exists after {}; delete it and run the command again: only one process may lead",
                    first.name_any(),
                    self.timeout
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The sealed copies of keys, and the sealing key, in the namespace of the fleet.
    async fn keys(&self) -> anyhow::Result<Vec<Secret>> {
        let fleet = &self.choices.fleet_namespace;
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client.clone(), fleet);
        let params = ListParams::default().labels(&format!("{FORMER_CLUSTER_NAMESPACE}={fleet}"));
        let all = secrets.list(&params).await.map_err(|error| self.cluster.explain(error))?;
        let is_key = |secret: &Secret| secret.name_any() == SEAL || secret.name_any().ends_with(SEALED_KEYS);
        Ok(all.items.into_iter().filter(is_key).collect())
    }

    /// Creates the copy before the original is deleted. The copy gets the present label, by which the Cluster-Operator selects Secrets. An existing copy
    /// with the same content is kept: operators created it, or an interrupted run of this command, and an earlier version of it kept the former label.
    async fn carry(&self, secret: Secret) -> anyhow::Result<()> {
        let (name, client) = (secret.name_any(), &self.cluster.client);
        let fleet = &self.choices.fleet_namespace;
        let mut labels = secret.metadata.labels.clone().unwrap_or_default();
        labels.remove(FORMER_CLUSTER_NAMESPACE);
        labels.insert(names::CLUSTER_NAMESPACE.to_owned(), fleet.clone());
        let copy = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels),
                annotations: secret.metadata.annotations.clone(),
                ..ObjectMeta::default()
            },
            type_: secret.type_.clone(),
            data: secret.data.clone(),
            ..Secret::default()
        };
        let to: Api<Secret> = Api::namespaced(client.clone(), &self.choices.namespace);
        match to.create(&PostParams::default(), &copy).await {
            Ok(_) => {}
            Err(error) if is_already_there(&error) => {
                let there = to.get(&name).await.map_err(|error| self.cluster.explain(error))?;
                if there.data != copy.data {
                    eprintln!(
                        "note: secret/{name} in namespace {} differs from the one in {fleet}, which is kept: delete the one that no cluster uses",
                        self.choices.namespace
                    );
                    return Ok(());
                }
                let labels = json!({ FORMER_CLUSTER_NAMESPACE: null, names::CLUSTER_NAMESPACE: fleet });
                let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
                let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                to.patch(&name, &params, &patch).await.map_err(|error| self.cluster.explain(error))?;
            }
            Err(error) => return Err(anyhow!("secret/{name}: {:#}", self.cluster.explain(error))),
        }
        let from: Api<Secret> = Api::namespaced(client.clone(), fleet);
        let preconditions = Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        from.delete(&name, &params).await.map_err(|error| self.cluster.explain(error))?;
        println!("secret/{name} moved to namespace {}", self.choices.namespace);
        Ok(())
    }
}
