//! What the Writer makes of what the servers answer. Both must mean the same.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use fleetwright_kit::write::Writer;
use fleetwright_kit::{Cache, Key, Operator, Options, Source, View, WriteError};
use fleetwright_lab::Target;
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::postman::{BeforeActHook, PostmanServer, Running, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn writes_mean_the_same_on_embedded() -> Result<()> {
    all(&PostmanServer::embedded().await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_mean_the_same_on_real() -> Result<()> {
    let server = Arc::new(Target::real().await?);
    let result = all(&PostmanServer::on(server.clone(), "writes").await?).await;
    Arc::into_inner(server).context("somebody still holds the server")?.stop(result.is_err()).await;
    result
}

async fn all(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    world.parcel("one", "anna").await?;
    let release = Arc::new(Notify::new());
    let (writer, running) = writer(world, release.clone()).await?;
    patches(world, &writer, &running).await.context("JSON patches")?;
    statuses(world, &writer, &running).await.context("status")?;
    creates_and_deletes(world, &writer, &running).await.context("create and delete")?;
    release.notify_one();
    running.stop().await
}

/// The postman's own, after it has done its work. It does not come to the parcel `held` until it is released.
async fn writer(world: &PostmanServer, release: Arc<Notify>) -> Result<(Writer, Running)> {
    let found: Arc<Mutex<Option<Writer>>> = Arc::default();
    let give = found.clone();
    let before_act: BeforeActHook = Arc::new(move |pass| {
        *give.lock().unwrap() = Some(pass.writer().clone());
        let held = (&*pass.key().name == "held").then(|| release.clone());
        async move {
            if let Some(release) = held {
                release.notified().await;
            }
        }
        .boxed()
    });
    let running = world.run_with(world.settings(), Options::default(), Some(before_act));
    eventually("it is delivered", async || Ok(world.status("one").await?.address.is_some())).await?;
    running.settle().await?;
    let writer = found.lock().unwrap().take().context("no pass was made")?;
    Ok((writer, running))
}

async fn patches(world: &PostmanServer, writer: &Writer, running: &Running) -> Result<()> {
    let (key, cache) = (world.key("anna"), &running.addresses);
    let patch = async |patch: Value| writer.json_patch(cache, &key, patch).await;
    let replace = |address: &str| json!({"op": "replace", "path": "/data/address", "value": address});

    patch(json!([{"op": "test", "path": "/data/address", "value": "Main Street 1"}, replace("Park Lane 2")])).await?;
    let address = cache.get(&key).and_then(|address| address.address.clone());
    ensure!(address.as_deref() == Some("Park Lane 2"), "the cache has it at once: {address:?}");

    let stale = patch(json!([{"op": "test", "path": "/data/address", "value": "Main Street 1"}, replace("X")])).await;
    ensure!(matches!(stale, Err(WriteError::Conflict { .. })), "a value that is another: {stale:?}");
    let stale = patch(json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}, replace("X")])).await;
    ensure!(matches!(stale, Err(WriteError::Conflict { .. })), "a version that is another: {stale:?}");
    let stale = patch(json!([{"op": "test", "path": "/data/telephone", "value": "1"}, replace("X")])).await;
    ensure!(matches!(stale, Err(WriteError::Conflict { .. })), "a field that is not there: {stale:?}");
    let wrong = patch(json!([{"op": "replace", "path": "/data/address", "value": {"street": 1}}])).await;
    ensure!(matches!(wrong, Err(WriteError::Refused { .. })), "not a ConfigMap: {wrong:?}");
    let wrong = patch(json!([{"op": "add", "path": "/data/a~1b", "value": "x"}])).await;
    ensure!(matches!(wrong, Err(WriteError::Refused { code: 422, .. })), "not a valid ConfigMap: {wrong:?}");
    let gone = writer.json_patch(cache, &world.key("nobody"), json!([replace("X")])).await;
    ensure!(matches!(gone, Err(WriteError::Gone(_))), "{gone:?}");
    let words = gone.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(words.starts_with(&format!("ConfigMap {}/nobody ", world.namespace)), "{words}");
    patch(json!([])).await?;
    Ok(())
}

async fn statuses(world: &PostmanServer, writer: &Writer, running: &Running) -> Result<()> {
    world.parcel("held", "anna").await?;
    let (key, cache) = (world.key("held"), &running.parcels);
    let remark = Patch::Merge(json!({"status": {"remark": "fragile"}}));
    world.parcels().patch_status("held", &PatchParams::default(), &remark).await?;
    eventually("it is seen", async || Ok(cache.get(&key).is_some())).await?;
    let version =
        async || Ok::<_, kube::Error>(world.parcels().get("held").await?.resource_version().unwrap_or_default());
    let now = version().await?;

    let current = json!({"address": null, "problem": null});
    let written = writer.apply_status(cache, &key, &now, &current, json!({})).await?;
    ensure!(!written && version().await? == now, "nothing differs, nothing is sent");
    let written = writer.apply_status(cache, &key, &now, &current, json!({"address": "Elm Street"})).await?;
    let held = cache.get(&key).context("it is gone")?;
    ensure!(written && held.status["address"] == "Elm Street", "the cache has it at once: {held:?}");
    ensure!(world.status("held").await?.remark.as_deref() == Some("fragile"), "what others say is kept");
    let stale = writer.apply_status(cache, &key, &now, &current, json!({"address": "Oak Street"})).await;
    ensure!(matches!(stale, Err(WriteError::Conflict { .. })), "decided on what was before: {stale:?}");
    let wrong = writer.apply_status(cache, &key, &version().await?, &current, json!({"address": 7})).await;
    ensure!(matches!(wrong, Err(WriteError::Refused { .. })), "not what the schema says: {wrong:?}");
    let gone = writer.apply_status(cache, &world.key("nothing"), &now, &current, json!({"address": "x"})).await;
    ensure!(
        matches!(gone, Err(WriteError::Gone(_) | WriteError::Conflict { .. })),
        "never created by a status: {gone:?}"
    );
    ensure!(world.parcels().get_opt("nothing").await?.is_none());

    let stale = writer.merge_status(cache, &key, &now, json!({"remark": "heavy"})).await;
    ensure!(matches!(stale, Err(WriteError::Conflict { .. })), "decided on what was before: {stale:?}");
    writer.merge_status(cache, &key, &version().await?, json!({"remark": "heavy"})).await?;
    ensure!(world.status("held").await?.remark.as_deref() == Some("heavy"));
    Ok(())
}

async fn creates_and_deletes(world: &PostmanServer, writer: &Writer, running: &Running) -> Result<()> {
    let cache = &running.addresses;
    let map = |namespace: &str, name: &str| ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let new = map(&world.namespace, "new");
    ensure!(writer.create_in(cache, &new).await?, "created");
    ensure!(cache.get(&world.key("new")).is_some(), "the cache has it at once");
    ensure!(!writer.create(&new).await?, "there is one already");
    let lost = writer.create(&map("nowhere", "new")).await;
    ensure!(matches!(lost, Err(WriteError::Refused { code: 404, .. })), "there is no such namespace: {lost:?}");
    let wrong = writer.create(&map(&world.namespace, "Not A Name")).await;
    ensure!(matches!(wrong, Err(WriteError::Refused { code: 422, .. })), "no such name: {wrong:?}");

    let key = world.key("new");
    let object = world.maps().get("new").await?;
    let (uid, version) = (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
    let other = writer.delete(cache, &key, "00000000-0000-0000-0000-000000000000", &version).await;
    ensure!(matches!(other, Err(WriteError::Conflict { .. })), "another object of that name: {other:?}");
    let stale = writer.delete(cache, &key, &uid, "1").await;
    ensure!(matches!(stale, Err(WriteError::Conflict { .. })), "decided on what was before: {stale:?}");
    writer.delete(cache, &key, &uid, &version).await?;
    ensure!(cache.get(&key).is_none(), "the cache knows at once");
    let again = writer.delete(cache, &key, &uid, &version).await;
    ensure!(matches!(again, Err(WriteError::Gone(_))), "{again:?}");

    ensure!(writer.create_in(cache, &new).await?, "created again");
    let (old, uid) = (uid, world.maps().get("new").await?.uid().unwrap_or_default());
    let policy = kube::api::PropagationPolicy::Background;
    let other = writer.delete_uid::<ConfigMap>(&key, &old, policy.clone()).await;
    ensure!(matches!(other, Err(WriteError::Conflict { .. })), "the one of that uid is deleted long since: {other:?}");
    ensure!(world.maps().get_opt("new").await?.is_some(), "its successor stays");
    ensure!(writer.delete_uid::<ConfigMap>(&key, &uid, policy.clone()).await?, "deleted");
    ensure!(!writer.delete_uid::<ConfigMap>(&key, &uid, policy).await?, "there is none");

    let mut held = map(&world.namespace, "held");
    held.metadata.finalizers = Some(vec!["test.fleetwright.io/hold".into()]);
    ensure!(writer.create_in(cache, &held).await?);
    let object = world.maps().get("held").await?;
    let (uid, version) = (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
    writer.delete(cache, &world.key("held"), &uid, &version).await?;
    let marked = cache.get(&world.key("held")).context("it is only marked")?;
    ensure!(marked.version != version, "and the cache knows");
    Ok(())
}

/// ConfigMaps, read by somebody who insists on an address.
#[derive(Resource, Clone, Debug, Serialize, Deserialize)]
#[resource(inherit = ConfigMap)]
struct Strict {
    metadata: ObjectMeta,
    data: StrictData,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StrictData {
    address: String,
}

#[derive(Debug)]
struct StrictView(String);

impl View for StrictView {
    type Object = Strict;

    fn of(object: Strict) -> Self {
        Self(object.data.address)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_cannot_be_read_does_not_hide_the_others() -> Result<()> {
    let world = PostmanServer::embedded().await?;
    let broken = json!({"data": {"telephone": "1"}});
    world.address("anna", "Main Street 1").await?;
    world.address("early", "x").await?;
    world.maps().patch("early", &PatchParams::default(), &Patch::Merge(json!({"data": null}))).await?;
    let mut operator = Operator::new(world.settings());
    let cache: Cache<StrictView> = operator.cache(Source::new(Api::namespaced(operator.client(), &world.namespace)));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let address = |name: &str| cache.get(&Key::new(&world.namespace, name)).map(|view| view.0.clone());
    eventually("the good one is read", async || Ok(address("anna").as_deref() == Some("Main Street 1"))).await?;
    ensure!(address("early").is_none());
    // One that breaks while it is watched stays as it was known; what comes after it is seen.
    world.maps().patch("anna", &PatchParams::default(), &Patch::Merge(json!({"data": null}))).await?;
    world.maps().patch("early", &PatchParams::default(), &Patch::Merge(broken)).await?;
    world.address("bert", "Park Lane 2").await?;
    eventually("the next is read", async || Ok(address("bert").as_deref() == Some("Park Lane 2"))).await?;
    ensure!(address("anna").as_deref() == Some("Main Street 1"));
    // And once it is corrected, it is read.
    let corrected = Patch::Merge(json!({"data": {"address": "Elm Street"}}));
    world.maps().patch("anna", &PatchParams::default(), &corrected).await?;
    eventually("it is corrected", async || Ok(address("anna").as_deref() == Some("Elm Street"))).await?;
    stop.send(()).ok();
    running.await??;
    Ok(())
}
