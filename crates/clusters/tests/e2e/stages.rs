//! A stage of a change that does not work is taken back.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event;

use super::*;

/// A package version whose scheduler exits when it starts.
const BAD: &str = "no-scheduler";
/// What that scheduler does not know.
const GATE: &str = "NoSuchGate";

/// Refers a cluster at v1.36 to a package version that cannot work, and waits until it is what it was: it says why, and serves all along.
pub(super) async fn taken_back(world: &MetaFixture, name: &str, client: Client) -> Result<()> {
    let packages: Api<ClusterPackageVersion> = Api::namespaced(world.client.clone(), FLEET);
    let mut spec = packages.get("v1.36").await?.spec;
    spec.components.scheduler.args.insert("feature-gates".to_owned(), format!("{GATE}=true"));
    packages.create(&PostParams::default(), &ClusterPackageVersion::new(BAD, spec)).await?;

    let (before, busy, begun) = (pods(world, name).await?, LoadGenerator::start(client), Instant::now());
    let patience = world.clusters().get(name).await?.spec.upgrade.stage_timeout;
    let change = json!({ "spec": { "packageVersion": BAD, "upgrade": { "stageTimeout": "30s" } } });
    world.clusters().patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
    let status = eventually(&format!("{name} to be taken back"), async || {
        let status = world.clusters().get(name).await?.status.unwrap_or_default();
        ensure!(fleetwright_api::is_true(&status.conditions, names::READY), "the old ones are proven: {status:#?}");
        let back = status.phase == Some(ClusterPhase::Ready) && status.failed.is_some();
        Ok(if back { Ok(status) } else { Err(format!("{status:#?}")) })
    })
    .await?;
    let why = status.failed.as_ref().map(|failed| failed.message.as_str());
    eprintln!("a stage that does not work taken back after {:?}: {why:?}", begun.elapsed());
    let (written, failed) = busy.end().await?;
    ensure!(failed.is_empty() && written > 10, "{} of {written} writes failed: {failed:#?}", failed.len());

    ensure!(status.package_version.as_deref() == Some("v1.36"), "{status:#?}");
    let failed = status.failed.as_ref().context("it was seen")?;
    let why = &failed.message;
    ensure!(failed.package_version == BAD && why.contains("kube-scheduler") && why.contains(GATE), "{failed:?}");
    let upgradable = fleetwright_api::condition(&status.conditions, names::UPGRADABLE);
    ensure!(upgradable.is_some_and(|one| one.reason == names::reasons::UPGRADE_FAILED), "{upgradable:?}");
    let events: Api<Event> = Api::namespaced(world.client.clone(), FLEET);
    eventually("an event that tells why", async || {
        let all = events.list(&Default::default()).await?.items;
        let mut told = all.iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        let so = |event: &Event| {
            event.reason.as_deref() == Some("UpgradeRolledBack")
                && event.message.as_deref().is_some_and(|text| text.contains(GATE))
        };
        Ok(if told.any(so) { Ok(()) } else { Err(format!("{all:#?}")) })
    })
    .await?;
    let now = pods(world, name).await?;
    ensure!(now == before, "the pods are not those of before: {before:?} became {now:?}");
    let patient = json!({ "spec": { "upgrade": { "stageTimeout": patience } } });
    world.clusters().patch(name, &PatchParams::default(), &Patch::Merge(patient)).await?;
    Ok(())
}

/// Its pods that are to stay, and which ones these are.
async fn pods(world: &MetaFixture, name: &str) -> Result<BTreeMap<String, Option<String>>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &format!("{FLEET}-{name}"));
    let mut all = pods.list(&Default::default()).await?.items;
    all.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(all.into_iter().map(|pod| (pod.name_any(), pod.uid())).collect())
}
