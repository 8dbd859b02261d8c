//! Operators on the kit, run against the embedded server and the real one.

mod postman;

use anyhow::Result;
use postman::{World, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_declared_is_reached() -> Result<()> {
    reaches(&World::embedded().await?).await
}

async fn reaches(world: &World) -> Result<()> {
    world.parcel("early", "anna").await?;
    world.address("anna", "Main Street 1").await?;
    let running = world.run();
    let is = async |name: &str, address: &str| Ok(world.status(name).await?.address.as_deref() == Some(address));
    eventually("what was there before is delivered", async || is("early", "Main Street 1").await).await?;
    world.parcel("late", "anna").await?;
    eventually("what came later is delivered", async || is("late", "Main Street 1").await).await?;
    running.stop().await
}
