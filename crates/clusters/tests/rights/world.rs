//! A cluster, and what can happen to it.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fleetwright_api::{
    Cluster, ClusterSpec, ClusterStatus, EtcdDatastore, Machine, MachineSpec, Operation, OperationPolicy, crds,
    is_true, names,
};
use fleetwright_lab::{Target, define};
use fleetwright_rig::rights::Right;
use fleetwright_rig::{Call, Recorder};
use fleetwright_sim::meta::Meta;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::place::{Installation, create, is_want, until};

/// What happens to a cluster that is ready.
#[derive(Clone, Copy, Debug)]
pub enum Episode {
    /// It loses objects, a disk and a label, and people write what they should not.
    Mishaps,
    /// A snapshot is taken and restored.
    Restore,
    /// Its authorities are replaced.
    Rotation,
    /// Its volumes grow, and it gets fewer members and more again.
    Resizing,
    /// It is upgraded, its machine is released, and it is deleted.
    End,
}

impl Episode {
    /// In an order in which one cluster can have them all.
    pub const ALL: [Self; 5] = [Self::Mishaps, Self::Restore, Self::Rotation, Self::Resizing, Self::End];
}

/// The Cluster `pay` of a place, and what its operator called.
pub struct ClusterRun<'a> {
    pub admin: Client,
    meta: &'a Meta,
    recorder: &'a Recorder,
    place: Installation,
    clusters: Api<Cluster>,
    /// Where its control plane is.
    namespace: String,
}

impl<'a> ClusterRun<'a> {
    pub fn new(target: &Target, meta: &'a Meta, recorder: &'a Recorder, place: Installation) -> Self {
        let clusters = Api::namespaced(target.admin(), place.fleet);
        Self { admin: target.admin(), meta, recorder, place, clusters, namespace: format!("{}-pay", place.fleet) }
    }

    /// Objects beside the Cluster.
    fn beside<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.admin.clone(), self.place.fleet)
    }

    /// Objects of its control plane.
    fn within<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// Everything that an operator ever does to the API server.
    pub async fn live(&self) -> Result<()> {
        self.begin().await?;
        for episode in Episode::ALL {
            self.play(episode).await.with_context(|| format!("{episode:?}"))?;
        }
        Ok(())
    }

    pub async fn begin(&self) -> Result<()> {
        let mut spec = ClusterSpec::of("v1.36");
        spec.replicas = 1;
        let mut etcd = EtcdDatastore { members: 3, ..EtcdDatastore::default() };
        etcd.storage.class = Some("elastic".to_owned());
        spec.datastore.etcd = Some(etcd);
        spec.certificates.overlap.0 = Duration::from_secs(1);
        spec.deletion_protection = false;
        self.clusters.create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
        self.ready().await
    }

    pub async fn play(&self, episode: Episode) -> Result<()> {
        match episode {
            Episode::Mishaps => {
                self.lost_objects().await?;
                self.lost_disk().await?;
                self.secret_of_others().await?;
                self.lost_label().await?;
                self.edited_journal().await
            }
            Episode::Restore => self.restore().await,
            Episode::Rotation => self.rotation().await,
            Episode::Resizing => self.resizing().await,
            Episode::End => self.end().await,
        }
    }

    async fn ready(&self) -> Result<()> {
        until("pay is ready", async || {
            let cluster = self.clusters.get("pay").await?;
            let status = cluster.status.unwrap_or_default();
            let there = status.observed_generation == cluster.metadata.generation
                && status.package_version.as_ref() == Some(&cluster.spec.package_version)
                && is_true(&status.conditions, names::READY)
                && is_true(&status.conditions, names::DATASTORE_HEALTHY)
                && is_true(&status.conditions, names::EXTENSIONS_READY)
                && status.waiting_for.is_none();
            Ok(if there { Ok(()) } else { Err(format!("{status:#?}")) })
        })
        .await
    }

    async fn change(&self, patch: Value) -> Result<()> {
        self.clusters.patch("pay", &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until its status is so.
    async fn reached(&self, what: &str, so: impl Fn(&ClusterStatus) -> bool) -> Result<ClusterStatus> {
        until(what, async || {
            let status = self.clusters.get("pay").await?.status.unwrap_or_default();
            Ok(if so(&status) { Ok(()) } else { Err(format!("{status:#?}")) })
        })
        .await?;
        Ok(self.clusters.get("pay").await?.status.unwrap_or_default())
    }

    async fn lost_objects(&self) -> Result<()> {
        let (secrets, services): (Api<Secret>, Api<Service>) = (self.within(), self.within());
        secrets.delete("front-proxy-client", &DeleteParams::default()).await?;
        let broken = json!({ "stringData": { "tls.key": "nothing" } });
        secrets.patch("scheduler-kubeconfig", &PatchParams::default(), &Patch::Merge(broken)).await?;
        services.delete("kube-apiserver", &DeleteParams::default()).await?;
        until("what was removed is back", async || {
            let (secret, service) =
                (secrets.get_opt("front-proxy-client").await?, services.get_opt("kube-apiserver").await?);
            Ok(if secret.is_some() && service.is_some() { Ok(()) } else { Err(format!("{secret:?} {service:?}")) })
        })
        .await?;
        self.ready().await
    }

    /// A member that lost its disk is replaced.
    async fn lost_disk(&self) -> Result<()> {
        ensure!(self.meta.wipe(&self.namespace, "data-etcd-2"), "there is no such volume");
        self.reached("its loss is seen", |status| !is_true(&status.conditions, names::DATASTORE_HEALTHY)).await?;
        self.ready().await
    }

    /// Who may write Clusters refers to the SSH key of the fleet: it says that the Secret is not shared, and nothing of it is copied.
    async fn secret_of_others(&self) -> Result<()> {
        let key = json!({
            "metadata": { "name": "fleet-ssh" }, "type": "kubernetes.io/ssh-auth",
            "stringData": { "ssh-privatekey": "the key of all hosts" },
        });
        create::<Secret>(self.beside(), key).await?;
        let mut spec = ClusterSpec::of("v1.36");
        spec.deletion_protection = false;
        let file = json!({ "config": [
            { "name": "notes", "secret": { "name": "fleet-ssh", "key": "ssh-privatekey" } },
        ] });
        spec.components.apiserver = Some(serde_json::from_value(file)?);
        self.clusters.create(&PostParams::default(), &Cluster::new("eve", spec)).await?;
        until("the Secret is refused", async || {
            let status = self.clusters.get("eve").await?.status.unwrap_or_default();
            let accepted = fleetwright_api::condition(&status.conditions, names::ACCEPTED).cloned();
            let refused = accepted.as_ref().is_some_and(|one| one.reason == names::reasons::SECRET_NOT_SHARED);
            Ok(if refused { Ok(()) } else { Err(format!("{accepted:?}")) })
        })
        .await?;
        let within: Api<Secret> = Api::namespaced(self.admin.clone(), &format!("{}-eve", self.place.fleet));
        let secrets = within.list(&Default::default()).await?.items;
        let mut values = secrets.iter().flat_map(|secret| secret.data.iter().flatten());
        ensure!(!values.any(|(_, value)| value.0.starts_with(b"the key of all hosts")), "it was copied");
        self.clusters.delete("eve", &DeleteParams::default()).await?;
        until("it is gone", async || {
            let left = self.clusters.get_opt("eve").await?.map(|one| one.status);
            Ok(if left.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
        })
        .await
    }

    /// The label by which the Service finds an API server comes back: the operator patches the pod.
    async fn lost_label(&self) -> Result<()> {
        let pods: Api<Pod> = self.within();
        let servers = ListParams::default().labels(&format!("{}=kube-apiserver", names::COMPONENT));
        let mut servers = pods.list(&servers).await?.items;
        servers.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        let name = servers.first().context("an API server")?.name_any();
        let lost = Patch::Merge(json!({ "metadata": { "labels": { names::SERVING: null } } }));
        pods.patch(&name, &PatchParams::default(), &lost).await?;
        until("its label is back", async || {
            let labels = pods.get(&name).await?.metadata.labels.unwrap_or_default();
            let back = labels.get(names::SERVING).is_some_and(|serves| serves == "true");
            Ok(if back { Ok(()) } else { Err(format!("{labels:?}")) })
        })
        .await
    }

    /// An Operation without its finalizer gets it back, and is deleted when it ended. A policy is freed of Operations that do not exist, also if it changes all the time.
    async fn edited_journal(&self) -> Result<()> {
        let (operations, params): (Api<Operation>, _) = (self.beside(), PatchParams::default());
        let spec = json!({
            "type": "Notes", "target": { "kind": "Notes", "name": "notes" }, "requestedBy": "fleetwright",
            "fingerprint": "1", "keepFor": "0s",
        });
        let operation = Operation::new("notes", serde_json::from_value(spec)?);
        operations.create(&PostParams::default(), &operation).await?;
        until("its finalizer is back", async || {
            let finalizers = operations.get("notes").await?.metadata.finalizers.unwrap_or_default();
            Ok(if finalizers.is_empty() { Err("it has none".to_owned()) } else { Ok(()) })
        })
        .await?;
        let ended = json!({ "status": { "phase": "Succeeded", "endedAt": "2020-01-01T00:00:00Z" } });
        operations.patch_status("notes", &params, &Patch::Merge(ended)).await?;
        until("it is deleted", async || {
            let left = operations.get_opt("notes").await?;
            Ok(if left.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
        })
        .await?;
        let policies: Api<OperationPolicy> = self.beside();
        let spec = serde_json::from_value(json!({ "operations": ["Notes"], "max": 1 }))?;
        policies.create(&PostParams::default(), &OperationPolicy::new("notes", spec)).await?;
        let mut number = 0;
        // One of many changes comes between what the operator knows of the policy and what it writes: then it reads the policy again.
        until("a conflict", async || {
            for _ in 0..20 {
                number += 1;
                let holders = json!({ "status": { "holders": [{ "operation": format!("none-{number}") }] } });
                policies.patch_status("notes", &params, &Patch::Merge(holders)).await?;
            }
            let read = |call: &Call| (call.verb, call.resource.as_str()) == ("get", "operationpolicies.fleetwright.io");
            let read = self.recorder.calls().iter().any(|record| read(&record.call));
            Ok(if read { Ok(()) } else { Err("the policy was not read again".to_owned()) })
        })
        .await?;
        until("nothing holds a place", async || {
            let holders = policies.get("notes").await?.status.unwrap_or_default().holders;
            Ok(if holders.is_empty() { Ok(()) } else { Err(format!("{holders:?}")) })
        })
        .await
    }

    async fn restore(&self) -> Result<()> {
        self.change(json!({ "metadata": { "annotations": { names::SNAPSHOT: "now" } } })).await?;
        let taken = self
            .reached("a snapshot is taken", |status| status.observed_snapshot_request.as_deref() == Some("now"))
            .await?;
        let name = taken.last_snapshot.context("a snapshot")?.name;
        self.change(json!({ "spec": { "restore": { "snapshot": name } } })).await?;
        self.reached("it is restored", |status| {
            status.restored.as_ref().is_some_and(|one| one.snapshot == name) && status.restoring.is_none()
        })
        .await?;
        self.ready().await
    }

    async fn rotation(&self) -> Result<()> {
        self.change(json!({ "spec": { "certificates": { "rotateAuthorities": "now" } } })).await?;
        self.reached("its authorities are replaced", |status| {
            status.authorities.as_deref() == Some("now") && status.rotation.is_none()
        })
        .await?;
        self.ready().await
    }

    async fn resizing(&self) -> Result<()> {
        self.change(json!({ "spec": { "datastore": { "etcd": { "storage": { "size": "20Gi" } } } } })).await?;
        let (claims, sets): (Api<PersistentVolumeClaim>, Api<StatefulSet>) = (self.within(), self.within());
        until("its volumes are larger", async || {
            let mut all = claims.list(&ListParams::default()).await?.items;
            all.retain(|claim| claim.name_any().starts_with("data-etcd-"));
            let set = sets.get_opt("etcd").await?.map(|set| set.spec);
            all.extend(set.and_then(|spec| spec.volume_claim_templates).unwrap_or_default());
            let sizes: Vec<Value> =
                all.iter().map(|claim| json!(claim)["spec"]["resources"]["requests"]["storage"].clone()).collect();
            let grown = sizes.len() == 4 && sizes.iter().all(|size| size == "20Gi");
            Ok(if grown { Ok(()) } else { Err(format!("{sizes:?}")) })
        })
        .await?;
        self.ready().await?;
        for members in [1, 3] {
            self.change(json!({ "spec": { "datastore": { "etcd": { "members": members } } } })).await?;
            self.reached("its members are as many", |status| {
                let etcd = status.etcd.as_ref();
                etcd.is_some_and(|etcd| (etcd.members, etcd.serving) == (members, members) && etcd.change.is_none())
            })
            .await?;
            self.ready().await?;
        }
        Ok(())
    }

    async fn end(&self) -> Result<()> {
        // Quotas that could not be listed hold an upgrade back for five minutes. This test gives the right back after a moment.
        let room = format!("{}@v1.37", names::reasons::INSUFFICIENT_RESOURCES);
        let patch = json!({
            "metadata": { "annotations": { names::OVERRIDE: room } }, "spec": { "packageVersion": "v1.37" },
        });
        self.change(patch).await?;
        self.ready().await?;
        let business = self.meta.administrator(&self.namespace);
        let kinds: Vec<_> = crds().into_iter().filter(|one| one.spec.names.kind == "Machine").collect();
        define(&business, &kinds).await?;
        let machines: Api<Machine> = Api::namespaced(business, "default");
        let mut machine =
            Machine::new("host-17", MachineSpec { addresses: vec!["192.0.2.1".into()], ..MachineSpec::default() });
        machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
        machines.create(&PostParams::default(), &machine).await?;
        let policies: Api<OperationPolicy> = self.beside();
        let spec = serde_json::from_value(json!({ "operations": ["ReleaseMachines"], "max": 1 }))?;
        policies.create(&PostParams::default(), &OperationPolicy::new("releases", spec)).await?;
        self.change(json!({ "spec": { "onDelete": "ReleaseMachines" } })).await?;
        self.clusters.delete("pay", &DeleteParams::default()).await?;
        until("its machine is released", async || {
            let released = machines.get("host-17").await?.metadata.deletion_timestamp.is_some();
            Ok(if released { Ok(()) } else { Err("it is not".to_owned()) })
        })
        .await?;
        // What the Machine-Operator does when it has cleaned the host.
        let free = json!({ "metadata": { "finalizers": null } });
        machines.patch("host-17", &PatchParams::default(), &Patch::Merge(&free)).await?;
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        until("everything is gone", async || {
            let cluster = self.clusters.get_opt("pay").await?.map(|one| one.status);
            let left = (cluster, namespaces.get_opt(&self.namespace).await?);
            Ok(if left.0.is_none() && left.1.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
        })
        .await
    }

    /// Those of these rights for want of which a call was refused, and the others.
    pub fn missed(&self, missing: &[Right]) -> (Vec<Right>, Vec<Right>) {
        let refused = self.recorder.calls().into_iter().filter(|record| record.code == Some(403));
        let refused: Vec<_> = refused.map(|record| record.call).collect();
        missing.iter().cloned().partition(|right| refused.iter().any(|call| is_want(right, call, &self.place)))
    }

    /// Gives each of these rights back as soon as a call was refused for want of it. Never ends.
    pub async fn give_back(&self, missing: &[Right]) -> Result<()> {
        let mut left = missing.len();
        loop {
            let (_, others) = self.missed(missing);
            if others.len() < left {
                left = others.len();
                self.place.change_rights(&self.admin, &others).await?;
                self.wake::<Cluster>(left).await?;
                self.wake::<Operation>(left).await?;
                self.wake::<OperationPolicy>(left).await?;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Changes all objects of that kind: after a refusal the operator looks at one again when it changes, or half a minute later.
    async fn wake<K>(&self, left: usize) -> Result<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = self.beside();
        let woken = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/left": left.to_string() } } }));
        for one in api.list(&ListParams::default()).await? {
            // It may be gone since.
            drop(api.patch(&one.name_any(), &PatchParams::default(), &woken).await);
        }
        Ok(())
    }
}
