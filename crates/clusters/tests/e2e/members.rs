//! Members of etcd and their volumes change while a client writes.

use std::collections::BTreeMap;

use fleetwright_api::{MemberChange, MemberChangeType};
use kube::api::ListParams;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

/// A client that writes one object after the other.
pub(super) struct Writer {
    maps: Api<ConfigMap>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<String>>,
}

impl Writer {
    pub(super) fn start(maps: Api<ConfigMap>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(write(maps.clone(), stopped));
        Self { maps, stop, task }
    }

    /// Stops it: all that was acknowledged is there.
    pub(super) async fn lost_nothing(self) -> Result<()> {
        drop(self.stop);
        let written = self.task.await?;
        ensure!(written.len() > 20, "the client wrote {} times", written.len());
        let there: Vec<_> = self.maps.list(&Default::default()).await?.into_iter().map(|map| map.name_any()).collect();
        let lost: Vec<_> = written.iter().filter(|name| !there.contains(name)).collect();
        ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        Ok(())
    }
}

/// Writes one object after the other until it is stopped; answers the names of those that were acknowledged.
async fn write(maps: Api<ConfigMap>, mut stopped: oneshot::Receiver<()>) -> Vec<String> {
    let mut written = Vec::new();
    while stopped.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
        let name = format!("written-{}", written.len());
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        match maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await {
            Ok(_) => written.push(name),
            // The answer before was lost.
            Err(kube::Error::Api(error)) if error.code == 409 => written.push(name),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    written
}

async fn declare(world: &MetaFixture, name: &str, etcd: Value) -> Result<()> {
    let patch = json!({ "spec": { "datastore": { "etcd": etcd } } });
    world.clusters().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// The volumes of members that are bound: the uids of their claims, and how large they are.
async fn volumes(world: &MetaFixture, name: &str) -> Result<BTreeMap<String, (Option<String>, String)>> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), &format!("{FLEET}-{name}"));
    let mut all = claims.list(&Default::default()).await?.items;
    all.retain(|claim| claim.name_any().starts_with("data-etcd-"));
    let size = |claim: &PersistentVolumeClaim| {
        let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
        capacity.map(|size| size.0.clone()).unwrap_or_default()
    };
    Ok(all.iter().map(|claim| (claim.name_any(), (claim.uid(), size(claim)))).collect())
}

/// Each number is reached, with one volume for each member, and nothing that was acknowledged is lost; also when the opposite is declared half-way.
pub(super) async fn resize(world: &MetaFixture, maps: &Api<ConfigMap>) -> Result<()> {
    let writer = Writer::start(maps.clone());
    for members in [1, 5] {
        declare(world, "pay", json!({ "members": members })).await?;
        reached(world, members).await?;
    }
    declare(world, "pay", json!({ "members": 7 })).await?;
    eventually("a sixth member to be added", async || {
        let change = world.clusters().get("pay").await?.status.and_then(|status| status.etcd?.change);
        let adds = |change: &MemberChange| change.type_ == MemberChangeType::Add && change.member == "etcd-5";
        Ok(if change.as_ref().is_some_and(adds) { Ok(()) } else { Err(format!("{change:?}")) })
    })
    .await?;
    declare(world, "pay", json!({ "members": 5 })).await?;
    reached(world, 5).await?;
    declare(world, "pay", json!({ "members": 7 })).await?;
    reached(world, 7).await?;
    declare(world, "pay", json!({ "members": 3 })).await?;
    eventually("fewer than five members", async || {
        let etcd = world.clusters().get("pay").await?.status.and_then(|status| status.etcd);
        Ok(if etcd.as_ref().is_some_and(|etcd| etcd.members < 5) { Ok(()) } else { Err(format!("{etcd:?}")) })
    })
    .await?;
    declare(world, "pay", json!({ "members": 5 })).await?;
    reached(world, 5).await?;
    writer.lost_nothing().await
}

async fn reached(world: &MetaFixture, members: u32) -> Result<()> {
    let begun = Instant::now();
    eventually(&format!("{members} members"), async || {
        let status = world.clusters().get("pay").await?.status.unwrap_or_default();
        let there = status
            .etcd
            .as_ref()
            .is_some_and(|etcd| etcd.members == members && etcd.serving == members && etcd.change.is_none());
        Ok(if there { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await?;
    let status = world.ready("pay").await?;
    eprintln!("etcd has {members} members after {:?}", begun.elapsed());
    ensure!(fleetwright_api::is_true(&status.conditions, names::DATASTORE_HEALTHY), "{status:#?}");
    let volumes = volumes(world, "pay").await?;
    ensure!(volumes.len() == members as usize, "{members} members have the volumes {volumes:?}");
    Ok(())
}

/// Volumes of a class that lets none of them expand: each member is replaced by one with a larger volume, and nothing that was acknowledged is lost.
pub(super) async fn grow(world: &MetaFixture) -> Result<()> {
    let spec = ClusterSpec { replicas: 1, ..world.spec(3) };
    world.clusters().create(&PostParams::default(), &Cluster::new("shop", spec)).await?;
    let endpoint = world.ready("shop").await?.endpoint.context("it has an endpoint")?;
    let writer = Writer::start(Api::default_namespaced(world.business("shop", &endpoint).await?));
    let before = volumes(world, "shop").await?;
    let begun = Instant::now();
    declare(world, "shop", json!({ "storage": { "size": "20Gi" } })).await?;
    let after = eventually("larger volumes", async || {
        let now = volumes(world, "shop").await?;
        let larger = now.len() == 3 && now.values().all(|(_, size)| size == "20Gi");
        Ok(if larger { Ok(now) } else { Err(format!("{now:?}")) })
    })
    .await?;
    let status = world.ready("shop").await?;
    eprintln!("all members have larger volumes after {:?}", begun.elapsed());
    let others = before.iter().all(|(name, (uid, _))| after.get(name).is_some_and(|(new, _)| new != uid));
    ensure!(before.len() == 3 && others, "{before:?} became {after:?}");
    ensure!(fleetwright_api::is_true(&status.conditions, names::DATASTORE_HEALTHY), "{status:#?}");
    let members = ListParams::default().labels(&format!("{}=etcd", names::COMPONENT));
    let pods = Api::<Pod>::namespaced(world.client.clone(), "fleet-shop").list(&members).await?.items;
    let ready = |pod: &Pod| {
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|one| one.type_ == "Ready" && one.status == "True")
    };
    ensure!(pods.len() == 3 && pods.iter().all(ready), "{pods:#?}");
    writer.lost_nothing().await
}
