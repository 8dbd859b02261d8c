//! The number of members of etcd changes while a client writes.

use super::*;

/// Writes one object after the other until it is stopped; answers the names of those that were acknowledged.
async fn write(maps: Api<ConfigMap>, mut stopped: tokio::sync::oneshot::Receiver<()>) -> Vec<String> {
    let mut written = Vec::new();
    while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
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

/// Each number is reached, with one pod and one volume for each member, and nothing that was acknowledged is lost.
pub async fn resize(world: &World, maps: &Api<ConfigMap>, numbers: &[u32]) -> Result<()> {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let writing = tokio::spawn(write(maps.clone(), stopped));
    for members in numbers {
        let begun = Instant::now();
        let patch = serde_json::json!({ "spec": { "datastore": { "etcd": { "members": members } } } });
        world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(patch)).await?;
        eventually(&format!("{members} members"), async || {
            let status = world.clusters().get("pay").await?.status.unwrap_or_default();
            let there = status
                .etcd
                .as_ref()
                .is_some_and(|etcd| etcd.members == *members && etcd.serving == *members && etcd.change.is_none());
            Ok(if there { Ok(()) } else { Err(format!("{status:#?}")) })
        })
        .await?;
        let status = world.ready("pay").await?;
        eprintln!("etcd has {members} members after {:?}", begun.elapsed());
        ensure!(fleetwright_api::is_true(&status.conditions, names::DATASTORE_HEALTHY), "{status:#?}");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), "fleet-pay");
        let claims = claims.list(&Default::default()).await?.items;
        let data = claims.iter().filter(|claim| claim.name_any().starts_with("data-etcd-")).count();
        ensure!(data == *members as usize, "{data} volumes of {members} members are left");
    }
    drop(stop);
    let written = writing.await?;
    ensure!(written.len() > 20, "the client wrote {} times", written.len());
    let there: Vec<_> = maps.list(&Default::default()).await?.into_iter().map(|map| map.name_any()).collect();
    let lost: Vec<_> = written.iter().filter(|name| !there.contains(name)).collect();
    ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    Ok(())
}
