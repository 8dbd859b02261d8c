//! Operators on the kit, run against the embedded server and the real one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fleetwright_kit::leader::Lease;
use fleetwright_kit::{Clock, Ending, Options, Settings};
use fleetwright_lab::Target;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::sync::Notify;

use crate::postman::{BeforeActHook, ConnectionSwitch, PostmanServer, SIGNATURE, eventually, is_watch};

/// The same scenarios, each in a namespace of its own.
type Scenario = for<'a> fn(&'a PostmanServer) -> LocalBoxFuture<'a, Result<()>>;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("reaches", |world| reaches(world).boxed_local()),
    ("follows", |world| follows(world).boxed_local()),
    ("writes-nothing", |world| writes_nothing(world).boxed_local()),
    ("conflicts", |world| conflicts(world).boxed_local()),
    ("relists", |world| relists(world).boxed_local()),
    ("pages", |world| pages(world).boxed_local()),
    ("stops", |world| stops(world).boxed_local()),
    ("stops-dead", |world| stops_dead(world).boxed_local()),
    ("leads", |world| leads(world).boxed_local()),
    ("tells", |world| tells(world).boxed_local()),
    ("outage", |world| outage(world).boxed_local()),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_on_real() -> Result<()> {
    let server = Arc::new(Target::real().await?);
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS {
        let world = PostmanServer::on(server.clone(), name).await?;
        if let Err(error) = scenario(&world).await {
            failed.push(format!("{name}: {error:?}"));
        }
    }
    let server = Arc::into_inner(server).context("somebody still holds the server")?;
    server.stop(!failed.is_empty()).await;
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_declared_is_reached() -> Result<()> {
    reaches(&PostmanServer::embedded().await?).await
}

async fn reaches(world: &PostmanServer) -> Result<()> {
    world.parcel("early", "anna").await?;
    world.address("anna", "Main Street 1").await?;
    let running = world.run();
    arrives(world, "early", "Main Street 1").await?;
    world.parcel("late", "anna").await?;
    arrives(world, "late", "Main Street 1").await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_related_objects_are_followed() -> Result<()> {
    follows(&PostmanServer::embedded().await?).await
}

async fn follows(world: &PostmanServer) -> Result<()> {
    let running = world.run();
    world.parcel("one", "anna").await?;
    eventually("the missing address is reported", async || Ok(world.status("one").await?.problem.is_some())).await?;
    world.address("anna", "Main Street 1").await?;
    arrives(world, "one", "Main Street 1").await?;
    ensure!(world.status("one").await?.problem.is_none(), "the problem is over");
    let moved = Patch::Merge(json!({"data": {"address": "Park Lane 2"}}));
    world.maps().patch("anna", &PatchParams::default(), &moved).await?;
    arrives(world, "one", "Park Lane 2").await?;
    world.maps().delete("anna", &DeleteParams::default()).await?;
    eventually("the address is gone again", async || Ok(world.status("one").await?.address.is_none())).await?;
    world.parcels().delete("one", &DeleteParams::default()).await?;
    eventually("the parcel is forgotten", async || Ok(running.parcels.is_empty())).await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_when_nothing_changed() -> Result<()> {
    writes_nothing(&PostmanServer::embedded().await?).await
}

async fn writes_nothing(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    for n in 0..5 {
        world.parcel(&format!("p{n}"), "anna").await?;
    }
    let running = world.run();
    for n in 0..5 {
        arrives(world, &format!("p{n}"), "Main Street 1").await?;
    }
    running.settle().await?;
    ensure!(running.writes() >= 6, "each parcel and the signature, and some that lost the race for it");
    let (writes, passes) = (running.writes(), running.idle.passes());
    let remark = Patch::Merge(json!({"metadata": {"labels": {"colour": "red"}}}));
    world.maps().patch("anna", &PatchParams::default(), &remark).await?;
    eventually("the address is looked at", async || Ok(running.idle.passes() >= passes + 5)).await?;
    world.parcels().patch("p0", &PatchParams::default(), &remark).await?;
    eventually("the parcel is looked at", async || Ok(running.idle.passes() >= passes + 6)).await?;
    running.settle().await?;
    ensure!(running.writes() == writes, "{} writes for changes that matter to nobody", running.writes() - writes);
    running.stop().await?;
    // A new process looks at everything and finds nothing to do.
    let running = world.run();
    eventually("all are looked at", async || Ok(running.idle.passes() >= 5)).await?;
    running.settle().await?;
    ensure!(running.writes() == 0, "{} writes after a restart", running.writes());
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_conflict_it_is_decided_again() -> Result<()> {
    conflicts(&PostmanServer::embedded().await?).await
}

async fn conflicts(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    world.parcel("one", "anna").await?;
    // In the first pass somebody moves house between the decision and the signature; in the second somebody writes to the parcel.
    let (maps, parcels, count) = (world.maps(), world.parcels(), Arc::new(AtomicU32::new(0)));
    let before_act: BeforeActHook = Arc::new(move |_| {
        let (maps, parcels, count) = (maps.clone(), parcels.clone(), count.clone());
        async move {
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    let moved = Patch::Merge(json!({"data": {"address": "Park Lane 2"}}));
                    maps.patch("anna", &PatchParams::default(), &moved).await.unwrap();
                }
                1 => {
                    let remark = Patch::Merge(json!({"status": {"remark": "fragile"}}));
                    parcels.patch_status("one", &PatchParams::default(), &remark).await.unwrap();
                }
                _ => {}
            }
        }
        .boxed()
    });
    let running = world.run_with(world.settings(), Options::default(), Some(before_act));
    arrives(world, "one", "Park Lane 2").await?;
    running.settle().await?;
    let endings: Vec<_> = running.records.lock().unwrap().iter().map(|record| record.ending).collect();
    ensure!(endings.iter().filter(|ending| **ending == Ending::Conflict).count() >= 2, "{endings:?}");
    let status = world.status("one").await?;
    ensure!(status.remark.as_deref() == Some("fragile"), "what others wrote is kept: {status:?}");
    let map = world.maps().get("anna").await?;
    ensure!(map.metadata.annotations.unwrap_or_default().contains_key(SIGNATURE));
    ensure!(events(world).await?.is_empty(), "a conflict is nobody's trouble");
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_list_reports_only_what_changed_meanwhile() -> Result<()> {
    relists(&PostmanServer::embedded().await?).await
}

async fn relists(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    for name in ["stays", "goes", "changes"] {
        world.parcel(name, "anna").await?;
    }
    let door = ConnectionSwitch::default();
    let clock = Clock::manual(jiff::Timestamp::now());
    let settings = Settings { clock: clock.clone(), client: door.before(world.client.clone()), ..world.settings() };
    // Deep checks, which come with time, would be passes too.
    let running = world.run_with(settings, Options { deep_check: None, ..Options::default() }, None);
    for name in ["stays", "goes", "changes"] {
        arrives(world, name, "Main Street 1").await?;
    }
    running.settle().await?;
    let before = running.idle.passes();
    // The watches fall silent, and cannot be opened again.
    door.refuse(|request| is_watch(request).then_some(503));
    clock.advance(Duration::from_secs(400));
    eventually("both watches are refused", async || Ok(door.refused.load(Ordering::SeqCst) >= 2)).await?;
    world.parcels().delete("goes", &DeleteParams::default()).await?;
    world.parcel("comes", "anna").await?;
    let spec = Patch::Merge(json!({"spec": {"to": "bert"}}));
    world.parcels().patch("changes", &PatchParams::default(), &spec).await?;
    ensure!(running.parcels.len() == 3, "readers see what was");
    world.compact().await?;
    // The server has forgotten where we were. The embedded one has; the real one's memory is longer than a test.
    let expired = Mutex::new(BTreeMap::<String, u32>::new());
    door.refuse(move |request| {
        let mut expired = expired.lock().unwrap();
        let count = expired.entry(request.uri().path().to_owned()).or_default();
        *count += u32::from(is_watch(request));
        (is_watch(request) && *count == 1).then_some(410)
    });
    clock.advance(Duration::from_secs(120));
    arrives(world, "comes", "Main Street 1").await?;
    eventually("the missing address is reported", async || Ok(world.status("changes").await?.problem.is_some()))
        .await?;
    running.settle().await?;
    let after: Vec<_> =
        running.records.lock().unwrap()[before as usize..].iter().map(|r| r.key.name.to_string()).collect();
    for name in ["goes", "comes", "changes"] {
        ensure!(after.iter().any(|key| key == name), "{name} was not looked at: {after:?}");
    }
    ensure!(!after.iter().any(|key| key == "stays"), "nothing happened to it: {after:?}");
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_stream_lists_is_asked_for_pages() -> Result<()> {
    pages(&PostmanServer::embedded().await?).await
}

async fn pages(world: &PostmanServer) -> Result<()> {
    for n in 0..520 {
        world.address(&format!("a{n}"), "Main Street 1").await?;
    }
    let door = ConnectionSwitch::default();
    let streams = |request: &http::Request<_>| {
        request.uri().query().is_some_and(|query| query.contains("sendInitialEvents=true"))
    };
    door.refuse(move |request| streams(request).then_some(422));
    let settings = Settings { client: door.before(world.client.clone()), ..world.settings() };
    let running = world.run_with(settings, Options::default(), None);
    eventually("the caches are full", async || Ok(running.idle.synced())).await?;
    let held = running.addresses.len();
    ensure!(held >= 520, "{held} of 520");
    ensure!(door.refused.load(Ordering::SeqCst) == 2, "each kind is tried once");
    world.parcel("one", "a519").await?;
    arrives(world, "one", "Main Street 1").await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_what_is_under_way_and_begins_nothing_new() -> Result<()> {
    stops(&PostmanServer::embedded().await?).await
}

async fn stops(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    world.parcel("under-way", "anna").await?;
    let (reached, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let before_act: BeforeActHook = {
        let (reached, go) = (reached.clone(), go.clone());
        Arc::new(move |_| {
            let (reached, go) = (reached.clone(), go.clone());
            async move {
                reached.notify_one();
                go.notified().await;
            }
            .boxed()
        })
    };
    let settings = Settings { lease: Some(lease(world, "first")), ..world.settings() };
    let running = world.run_with(settings, Options { workers: 1, ..Options::default() }, Some(before_act));
    reached.notified().await;
    world.parcel("waiting", "anna").await?;
    eventually("the second is seen", async || Ok(running.parcels.len() == 2)).await?;
    running.stop.send(()).ok();
    // It stops when the pass under way is over, not before.
    tokio::task::yield_now().await;
    ensure!(!running.task.is_finished());
    go.notify_one();
    running.task.await??;
    ensure!(world.status("under-way").await?.address.is_some(), "the pass under way was ended");
    ensure!(world.status("waiting").await?.address.is_none(), "no other was begun");
    let leases: Api<LeaseObject> = Api::namespaced(world.client.clone(), &world.namespace);
    let holder = leases.get("postman").await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    ensure!(holder.is_empty(), "the lease was not given back: {holder}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_an_operator_stops_all_of_it() -> Result<()> {
    stops_dead(&PostmanServer::embedded().await?).await
}

async fn stops_dead(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    world.parcel("one", "anna").await?;
    let reached = Arc::new(Notify::new());
    let before_act: BeforeActHook = {
        let reached = reached.clone();
        Arc::new(move |_| {
            let reached = reached.clone();
            async move {
                reached.notify_one();
                futures::future::pending().await
            }
            .boxed()
        })
    };
    // Whatever still runs holds it.
    let held = Arc::downgrade(&before_act);
    let settings = Settings { lease: Some(lease(world, "first")), ..world.settings() };
    let running = world.run_with(settings, Options::default(), Some(before_act));
    reached.notified().await;
    running.task.abort();
    ensure!(running.task.await.is_err());
    eventually("nothing of it is left", async || Ok(held.upgrade().is_none())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_makes_passes() -> Result<()> {
    leads(&PostmanServer::embedded().await?).await
}

async fn leads(world: &PostmanServer) -> Result<()> {
    world.address("anna", "Main Street 1").await?;
    world.parcel("one", "anna").await?;
    let first =
        world.run_with(Settings { lease: Some(lease(world, "first")), ..world.settings() }, Options::default(), None);
    arrives(world, "one", "Main Street 1").await?;
    let second =
        world.run_with(Settings { lease: Some(lease(world, "second")), ..world.settings() }, Options::default(), None);
    eventually("the second has full caches", async || Ok(second.idle.synced())).await?;
    world.parcel("two", "anna").await?;
    arrives(world, "two", "Main Street 1").await?;
    eventually("the second has seen it", async || Ok(second.parcels.len() == 2)).await?;
    ensure!(second.idle.passes() == 0 && second.idle.is_idle(), "it only looks on");
    ensure!(first.idle.leading() && !second.idle.leading());
    first.stop().await?;
    world.parcel("three", "anna").await?;
    arrives(world, "three", "Main Street 1").await?;
    ensure!(second.idle.leading());
    // Somebody takes the lease from it.
    let leases: Api<LeaseObject> = Api::namespaced(world.client.clone(), &world.namespace);
    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "thief"}}));
    leases.patch("postman", &PatchParams::default(), &taken).await?;
    let ended =
        tokio::time::timeout(Duration::from_secs(60), second.task).await.context("goes on without its lease")??;
    ensure!(ended.is_err(), "the lease was lost");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_is_reported_once_also_across_restarts() -> Result<()> {
    tells(&PostmanServer::embedded().await?).await
}

async fn tells(world: &PostmanServer) -> Result<()> {
    world.address("anna", "dog").await?;
    world.parcel("bitten", "anna").await?;
    world.parcel("lost", "nobody").await?;
    let often =
        Options { backoff: Duration::from_millis(5), longest_backoff: Duration::from_millis(20), ..Options::default() };
    for _ in 0..2 {
        let running = world.run_with(world.settings(), often, None);
        let bitten = || running.records.lock().unwrap().iter().filter(|record| record.reason == Some("Bitten")).count();
        eventually("it is bitten ten times", async || Ok(bitten() >= 10)).await?;
        eventually("both are told", async || Ok(events(world).await?.len() >= 2)).await?;
        let page = running.metrics.encode();
        ensure!(page.contains("reason=\"Bitten\""), "{page}");
        ensure!(
            running.records.lock().unwrap().iter().filter(|record| record.reason == Some("UnknownRecipient")).count()
                <= 2
        );
        running.stop().await?;
    }
    let told = events(world).await?;
    let of = |event: &Event| {
        (event.involved_object.name.clone().unwrap_or_default(), event.reason.clone().unwrap_or_default())
    };
    let mut about: Vec<_> = told.iter().map(of).collect();
    about.sort();
    let [bitten, lost] =
        [("bitten", "Bitten"), ("lost", "UnknownRecipient")].map(|(name, reason)| (name.to_owned(), reason.to_owned()));
    ensure!(about == [bitten, lost], "{about:?}");
    ensure!(told.iter().all(|event| event.type_.as_deref() == Some("Warning") && event.involved_object.uid.is_some()));
    let problem = world.status("bitten").await?.problem.unwrap_or_default();
    ensure!(problem.contains("'s dog"), "{problem}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_it_goes_on_by_itself() -> Result<()> {
    outage(&PostmanServer::embedded().await?).await
}

async fn outage(world: &PostmanServer) -> Result<()> {
    let door = ConnectionSwitch::default();
    let clock = Clock::manual(jiff::Timestamp::now());
    let settings = Settings { clock: clock.clone(), client: door.before(world.client.clone()), ..world.settings() };
    door.refuse(|_| Some(503));
    world.address("anna", "Main Street 1").await?;
    world.parcel("one", "anna").await?;
    let running = world.run_with(settings, Options::default(), None);
    // Ten minutes without an API server.
    let end = clock.now() + Duration::from_secs(600);
    while clock.now() < end {
        // In small steps, each long enough for a call: a jump over many timers at once would leave no time to ask in.
        clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let asked = door.refused.load(Ordering::SeqCst);
    ensure!((10..120).contains(&asked), "{asked} calls in ten minutes: neither silent nor a storm");
    ensure!(!running.idle.synced() && running.idle.missing().len() == 2);
    door.open();
    let done = Arc::new(AtomicBool::new(false));
    let time = async {
        while !done.load(Ordering::SeqCst) {
            clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    let arrived = async {
        let result = arrives(world, "one", "Main Street 1").await;
        done.store(true, Ordering::SeqCst);
        result
    };
    tokio::try_join!(time, arrived)?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_over_one_object_does_not_stop_the_others() -> Result<()> {
    let world = PostmanServer::embedded().await?;
    world.address("panic", "anywhere").await?;
    world.address("anna", "Main Street 1").await?;
    world.parcel("heavy", "panic").await?;
    world.parcel("light", "anna").await?;
    let lenient = Settings { strict_budgets: false, ..world.settings() };
    let running = world.run_with(lenient, Options::default(), None);
    arrives(&world, "light", "Main Street 1").await?;
    let panicked = || running.records.lock().unwrap().iter().any(|record| record.ending == Ending::Panicked);
    eventually("the panic is recorded", async || Ok(panicked())).await?;
    ensure!(running.metrics.encode().contains("reason=\"Panicked\""));
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_operator_panics_when_a_pass_makes_more_calls_than_declared() -> Result<()> {
    let world = PostmanServer::embedded().await?;
    world.address("anna", "Main Street 1").await?;
    world.parcel("one", "anna").await?;
    let before_act: BeforeActHook = Arc::new(|pass| {
        let maps: Api<ConfigMap> = Api::namespaced(pass.client(), &pass.key().namespace);
        async move { drop(maps.get("anna").await) }.boxed()
    });
    let running = world.run_with(world.settings(), Options::default(), Some(before_act));
    let ended = tokio::time::timeout(Duration::from_secs(30), running.task).await?;
    let panic = ended.err().context("it goes on")?.into_panic();
    let words = panic.downcast_ref::<String>().context("no words")?;
    ensure!(words.contains("made 1 reads"), "{words}");
    Ok(())
}

async fn arrives(world: &PostmanServer, parcel: &str, address: &str) -> Result<()> {
    let there = async || Ok(world.status(parcel).await?.address.as_deref() == Some(address));
    eventually(&format!("{parcel} arrives at {address}"), there).await
}

async fn events(world: &PostmanServer) -> Result<Vec<Event>> {
    Ok(Api::namespaced(world.client.clone(), &world.namespace).list(&ListParams::default()).await?.items)
}

fn lease(world: &PostmanServer, identity: &str) -> Lease {
    let duration = Duration::from_secs(20);
    Lease { namespace: world.namespace.clone(), name: "postman".into(), identity: identity.into(), duration }
}
