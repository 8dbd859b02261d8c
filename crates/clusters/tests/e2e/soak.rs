//! The end of a soak, while a client writes.

use jiff::SignedDuration;

use super::*;

/// A new minor emulates the old one for longer than was declared first, and then for a shorter time. The soak ends with a snapshot of its own and a proof without emulation, and
/// no request fails.
pub(super) async fn ends(world: &MetaFixture) -> Result<()> {
    world.clusters().create(&PostParams::default(), &Cluster::new("shop", world.spec(1))).await?;
    let endpoint = world.ready("shop").await?.endpoint.context("it has an endpoint")?;
    let client = world.business("shop", &endpoint).await?;
    world.refer("shop", "v1.37").await?;
    let before = world.ready("shop").await?;
    // The upgrade restarts the only member of etcd; the end of the soak does not.
    let busy = LoadGenerator::start(client.clone());
    ensure!(before.emulates.as_deref() == Some("1.36"), "{before:#?}");
    let minor = emulated(world, &endpoint).await?;
    ensure!(minor.as_deref() == Some("36"), "it emulates {minor:?}");

    let until = before.soak_since.context("it soaks")? + SignedDuration::from_hours(48);
    last(world, "48h").await?;
    eventually("the soak to be longer", async || {
        let status = world.clusters().get("shop").await?.status.unwrap_or_default();
        let longer = status.soak_until == Some(until) && status.emulates == before.emulates;
        Ok(if longer { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await?;

    let begun = Instant::now();
    last(world, "1s").await?;
    let status = eventually("the soak to end", async || {
        let status = world.clusters().get("shop").await?.status.unwrap_or_default();
        let ended = status.emulates.is_none() && status.finishing.is_none();
        Ok(if ended && status.phase == Some(ClusterPhase::Ready) { Ok(status) } else { Err(format!("{status:#?}")) })
    })
    .await?;
    eprintln!("soak: ended after {:?}", begun.elapsed());
    let minor = emulated(world, &endpoint).await?;
    ensure!(minor.as_deref() == Some("37"), "it emulates {minor:?}");
    let old = before.last_snapshot.context("a snapshot was taken before the upgrade")?;
    let new = status.last_snapshot.context("a snapshot was taken before the end")?;
    let purpose = new.purpose.as_deref().unwrap_or_default();
    ensure!(new.checked && new.at > old.at && purpose.starts_with("soak/v1.37/"), "{new:?} after {old:?}");
    busy.unharmed(client).await
}

/// Declares how long the soak lasts.
async fn last(world: &MetaFixture, soak: &str) -> Result<()> {
    let patch = json!({ "spec": { "upgrade": { "soak": soak } } });
    world.clusters().patch("shop", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// The minor that an API server says it emulates.
async fn emulated(world: &MetaFixture, endpoint: &str) -> Result<Option<String>> {
    Ok(world.business("shop", endpoint).await?.apiserver_version().await?.emulation_minor)
}
