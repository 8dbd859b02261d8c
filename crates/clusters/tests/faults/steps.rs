//! The steps of scenarios about clusters.

use anyhow::{Context, Result, ensure};
use fleetwright_api::{
    Cluster, ClusterPhase, ClusterSpec, ClusterStatus, EtcdDatastore, Operation, OperationPhase, is_true, names,
};
use fleetwright_rig::Harness;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::{objects, of_component, outline, site};

/// The steps of a scenario about a cluster.
pub trait ClusterSteps {
    fn within<K>(&self, cluster: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>;
    async fn declare(&self, cluster: &str) -> Result<()>;
    async fn refer(&self, cluster: &str, package: &str) -> Result<()>;
    async fn resize(&self, cluster: &str, members: u32) -> Result<()>;
    async fn change(&self, cluster: &str, patch: Value) -> Result<()>;
    async fn reaches(
        &self,
        cluster: &str,
        what: &str,
        so: impl Fn(&ClusterStatus) -> bool + Send + Sync,
    ) -> Result<ClusterStatus>;
    async fn business(&self, cluster: &str) -> Result<Client>;
    async fn operated(&self, cluster: &str, type_: &str) -> Result<usize>;
    async fn remove(&self, cluster: &str) -> Result<()>;
    async fn ready(&self, cluster: &str) -> Result<()>;
    async fn finished(&self, cluster: &str) -> Result<()>;
    async fn gone(&self, cluster: &str) -> Result<()>;
    async fn told(&self, cluster: &str) -> Result<Value>;
    async fn of(&self, cluster: &str) -> Result<Value>;
}

impl ClusterSteps for Harness {
    /// Of the control plane of that cluster.
    fn within<K>(&self, cluster: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.admin(), &format!("{}-{cluster}", self.namespace()))
    }

    async fn declare(&self, cluster: &str) -> Result<()> {
        let shape = site(self)?.shape;
        let mut spec = ClusterSpec::of(shape.package);
        spec.replicas = shape.replicas;
        let mut etcd = EtcdDatastore { members: shape.members, ..EtcdDatastore::default() };
        etcd.storage.class = shape.class.map(str::to_owned);
        spec.datastore.etcd = Some(etcd);
        spec.upgrade.soak.0 = shape.soak;
        spec.deletion_protection = false;
        self.api::<Cluster>().create(&PostParams::default(), &Cluster::new(cluster, spec)).await?;
        Ok(())
    }

    async fn refer(&self, cluster: &str, package: &str) -> Result<()> {
        self.change(cluster, json!({ "spec": { "packageVersion": package } })).await
    }

    async fn resize(&self, cluster: &str, members: u32) -> Result<()> {
        self.change(cluster, json!({ "spec": { "datastore": { "etcd": { "members": members } } } })).await
    }

    async fn change(&self, cluster: &str, patch: Value) -> Result<()> {
        self.api::<Cluster>().patch(cluster, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until its status is so.
    async fn reaches(
        &self,
        cluster: &str,
        what: &str,
        so: impl Fn(&ClusterStatus) -> bool + Send + Sync,
    ) -> Result<ClusterStatus> {
        let so = &so;
        let reached = || async move {
            let seen = self.api::<Cluster>().get(cluster).await.map_err(|error| error.to_string())?;
            let status = seen.status.clone().unwrap_or_default();
            if so(&status) { Ok(()) } else { Err(format!("{status:#?}")) }
        };
        self.settle(&format!("{cluster}: {what}"), reached).await?;
        Ok(self.api::<Cluster>().get(cluster).await?.status.unwrap_or_default())
    }

    /// A client of the business cluster, which no disturbance touches.
    async fn business(&self, cluster: &str) -> Result<Client> {
        let namespace = format!("{}-{cluster}", self.namespace());
        let site = site(self)?;
        let pods = self.within::<Pod>(cluster).list(&ListParams::default()).await?;
        let runs = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).map(|pod| pod.name_any());
        let mut servers = runs.filter(|name| name.starts_with("kube-apiserver"));
        servers.find_map(|name| site.meta.client(&namespace, &name)).context("no API server runs")
    }

    /// How many Operations of that type succeeded for it. There must be one, and none may be left that holds a place in a policy.
    ///
    /// An operator that was stopped between an act and its record never heard the outcome: such an Operation may have failed although all of it was done.
    async fn operated(&self, cluster: &str, type_: &str) -> Result<usize> {
        let own = |one: &Operation| one.spec.type_ == type_ && one.spec.target.name == cluster;
        let phase = |one: &Operation| one.status.as_ref().map_or(OperationPhase::Pending, |status| status.phase);
        let reached = || async {
            let all = self.api::<Operation>().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let open: Vec<_> =
                all.iter().filter(|one| own(one) && !phase(one).ended()).map(|one| &one.status).collect();
            if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
        };
        self.settle(&format!("no Operation {type_} of {cluster} is left"), reached).await?;
        let all = self.api::<Operation>().list(&ListParams::default()).await?;
        ensure!(all.iter().any(own), "no Operation {type_} of {cluster} is known");
        Ok(all.iter().filter(|one| own(one) && phase(one) == OperationPhase::Succeeded).count())
    }

    async fn remove(&self, cluster: &str) -> Result<()> {
        site(self)?.witness.allow_removal(&format!("{}-{cluster}", self.namespace()));
        self.api::<Cluster>().delete(cluster, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Proven, at what it refers to, and what is said of its pods is what they are.
    async fn ready(&self, cluster: &str) -> Result<()> {
        let reached = || async {
            let text = |error: kube::Error| error.to_string();
            let seen = self.api::<Cluster>().get(cluster).await.map_err(text)?;
            let status = seen.status.clone().unwrap_or_default();
            let there = status.observed_generation == seen.metadata.generation
                && status.package_version.as_ref() == Some(&seen.spec.package_version)
                && is_true(&status.conditions, names::READY)
                && is_true(&status.conditions, names::CERTIFICATES_VALID)
                && status.waiting_for.is_none();
            if !there {
                return Err(format!("{status:#?}"));
            }
            let mut told: Vec<String> =
                status.components.iter().flat_map(|one| one.replicas.iter().map(|one| one.name.clone())).collect();
            let pods = self.within::<Pod>(cluster).list(&ListParams::default()).await.map_err(text)?;
            let mut pods: Vec<String> = pods.into_iter().filter(of_component).map(|pod| pod.name_any()).collect();
            told.sort();
            pods.sort();
            let sets = self.within::<StatefulSet>(cluster).get_opt("etcd").await.map_err(text)?;
            let services = self.within::<Service>(cluster).get_opt("kube-apiserver").await.map_err(text)?;
            let mut secrets = true;
            for name in ["front-proxy-client", "ca", "service-account"] {
                secrets &= self.within::<Secret>(cluster).get_opt(name).await.map_err(text)?.is_some();
            }
            match sets.is_some() && services.is_some() && secrets && told == pods {
                true => Ok(()),
                false => Err(format!("{told:?} are told, {pods:?} are there")),
            }
        };
        self.settle(&format!("{cluster} is ready"), reached).await
    }

    /// Ready, and its soak is over.
    async fn finished(&self, cluster: &str) -> Result<()> {
        let reached = || async {
            let seen = self.api::<Cluster>().get(cluster).await.map_err(|error| error.to_string())?;
            let status = seen.status.clone().unwrap_or_default();
            let there = status.phase == Some(ClusterPhase::Ready)
                && status.package_version.as_ref() == Some(&seen.spec.package_version)
                && status.emulates.is_none()
                && status.finishing.is_none();
            if there { Ok(()) } else { Err(format!("{status:#?}")) }
        };
        self.settle(&format!("the upgrade of {cluster} is finished"), reached).await?;
        self.ready(cluster).await
    }

    async fn gone(&self, cluster: &str) -> Result<()> {
        let namespace = format!("{}-{cluster}", self.namespace());
        let reached = || async {
            let text = |error: kube::Error| error.to_string();
            let seen = self.api::<Cluster>().get_opt(cluster).await.map_err(text)?;
            let namespace = Api::<Namespace>::all(self.admin()).get_opt(&namespace).await.map_err(text)?;
            match seen.is_none() && namespace.is_none() {
                true => Ok(()),
                false => Err(format!("{:?} {namespace:?}", seen.map(|seen| (seen.metadata, seen.status)))),
            }
        };
        self.settle(&format!("{cluster} is gone"), reached).await
    }

    /// What is said of it.
    async fn told(&self, cluster: &str) -> Result<Value> {
        Ok(outline(&self.api::<Cluster>().get(cluster).await?))
    }

    /// All its objects.
    async fn of(&self, cluster: &str) -> Result<Value> {
        objects(self, &format!("{}={cluster}", names::CLUSTER)).await
    }
}
