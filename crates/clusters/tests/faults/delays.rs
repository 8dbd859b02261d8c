//! A member of etcd loses its data, and one step of its replacement is late: a call of the operator, an answer or an act of etcd, its pod, its volume or its container.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_api::{Operation, OperationPhase};
use fleetwright_plan::cluster::members::OPERATIONS;
use fleetwright_rig::{Call, CallMatcher, Harness, Record, Side};
use fleetwright_sim::meta::Step;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::lifecycle::word;
use crate::phases::lose;
use crate::steps::ClusterSteps;
use crate::support::site;

const CLUSTER: &str = "pay";
const MEMBER: &str = "etcd-1";

/// Longer than everything else in a replacement takes, and shorter than a client waits for an answer.
const LATE: Duration = Duration::from_secs(8);
/// Longer than the operator waits for an act on members: it never hears what came of it.
const TOO_LATE: Duration = Duration::from_secs(25);
/// For what happens again and again.
const A_LITTLE_LATE: Duration = Duration::from_secs(3);
/// At most this many calls are held, each in a loss of its own: first those that no replacement can do without, then other writes, then reads.
const MAX_COUNT: usize = 40;
/// How many calls no replacement can do without: the sum of what [`least`] says.
const NEEDED: usize = 24;

/// What is late outside of the operator, for how long, and how often.
const STEPS: &[(Step, Duration, usize)] = &[
    (Step::MemberRemove, LATE, 1),
    (Step::MemberRemove, TOO_LATE, 1),
    (Step::MemberRemoved, LATE, 1),
    (Step::MemberRemoved, TOO_LATE, 1),
    (Step::MemberAdd, LATE, 1),
    (Step::MemberAdd, TOO_LATE, 1),
    (Step::MemberAdded, LATE, 1),
    (Step::MemberAdded, TOO_LATE, 1),
    (Step::MemberPromote, LATE, 1),
    (Step::MemberPromote, TOO_LATE, 1),
    (Step::MemberPromoted, LATE, 1),
    (Step::MemberPromoted, TOO_LATE, 1),
    (Step::MemberList, LATE, 1),
    (Step::MemberList, A_LITTLE_LATE, usize::MAX),
    (Step::ClaimCreate, LATE, 1),
    (Step::PodCreate, LATE, 1),
    (Step::PodStop, LATE, 1),
    (Step::ContainerStart, LATE, 1),
    (Step::ContainerRestart, LATE, 1),
    (Step::ContainerRestart, A_LITTLE_LATE, usize::MAX),
    (Step::ContainerReady, LATE, 1),
    (Step::PodStatus, LATE, 1),
    (Step::PodStatus, A_LITTLE_LATE, usize::MAX),
];

/// Each call of the operator that an undisturbed replacement needs is late once.
pub async fn of_the_operator(harness: &Harness, side: Side) -> Result<()> {
    let mut losses = Losses::begin(harness).await?;
    let mark = harness.recorder().mark();
    losses.lose("nothing is late").await?;
    let points = points(&harness.recorder().since(mark));
    let needed = points.iter().filter(|point| point.needed).count();
    ensure!(needed == NEEDED, "{needed} of {NEEDED} calls that a replacement needs were made: {points:#?}");
    let mut met = 0;
    for Point { word: wanted, number, needed, .. } in &points {
        harness.delay().hold(CallMatcher::nth(side, word(CLUSTER), wanted, *number), LATE);
        losses.lose(&format!("held {side} call {number} of {wanted}")).await?;
        let held = harness.delay().held().len();
        ensure!(held > 0 || !needed, "call {number} of {wanted} was not held");
        met += held;
    }
    harness.delay().end();
    // How many other calls there are depends on the answers of the members, and the policy of acts on members is created once: the last of many is not made every time.
    ensure!(met * 2 > points.len(), "{met} of {} calls were held", points.len());
    eprintln!("clusters: {met} of {} calls were held {side} the server did them", points.len());
    Ok(())
}

/// Each step of etcd, of its pod, its volume and its container is late.
pub async fn of_the_others(harness: &Harness) -> Result<()> {
    let mut losses = Losses::begin(harness).await?;
    let site = site(harness)?;
    for (step, time, times) in STEPS {
        site.meta.delay(*step, *time, *times);
        losses.lose(&format!("{step:?} takes {time:?}")).await?;
        ensure!(site.meta.delayed(*step) > 0, "{step:?} never happened");
        site.meta.end_delays();
    }
    hold_claim(harness).await?;
    tokio::try_join!(losses.lose("its old volume claim ends late"), release_claim(harness)).map(drop)
}

/// Keeps the volume claim of the member from going when it is deleted, as storage drivers and people do.
const HOLD: &str = "example.com/detaches-late";

async fn hold_claim(harness: &Harness) -> Result<()> {
    let (claims, name) = (harness.within::<PersistentVolumeClaim>(CLUSTER), format!("data-{MEMBER}"));
    let mut finalizers = claims.get(&name).await?.finalizers().to_vec();
    finalizers.push(HOLD.to_owned());
    let held = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
    claims.patch(&name, &PatchParams::default(), &held).await?;
    Ok(())
}

/// Lets the claim go some time after it was deleted.
async fn release_claim(harness: &Harness) -> Result<()> {
    let (claims, name) = (harness.within::<PersistentVolumeClaim>(CLUSTER), format!("data-{MEMBER}"));
    while claims.get(&name).await?.metadata.deletion_timestamp.is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let due = harness.clock().monotonic() + LATE;
    while harness.clock().monotonic() < due {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut finalizers = claims.get(&name).await?.finalizers().to_vec();
    ensure!(finalizers.iter().any(|one| one == HOLD), "the old volume claim of {MEMBER} was not held");
    finalizers.retain(|one| one != HOLD);
    let free = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
    claims.patch(&name, &PatchParams::default(), &free).await?;
    Ok(())
}

/// A call of a replacement that is held.
#[derive(Debug)]
struct Point {
    word: String,
    /// How many with that word came before.
    number: usize,
    /// No replacement can do without it.
    needed: bool,
    writes: bool,
}

/// How many calls like this one a replacement makes at the least.
fn least(call: &Call) -> usize {
    let plural = call.resource.split('.').next().unwrap_or_default();
    match (call.verb, plural, call.subresource.as_str()) {
        ("create", "operations", "") => OPERATIONS.len(),
        // Each is granted, claimed and ended.
        ("patch", "operations", "status") => 3 * OPERATIONS.len(),
        // Each takes a place.
        ("patch", "operationpolicies", "status") if call.name == "etcd-members" => OPERATIONS.len(),
        // The change starts, and ends.
        ("apply", "clusters", "status") => 2,
        ("delete", "persistentvolumeclaims" | "pods", "") => 1,
        _ => 0,
    }
}

fn points(calls: &[Record]) -> Vec<Point> {
    let word = word(CLUSTER);
    let mut before: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = Vec::new();
    let counts = |record: &&Record| record.call.verb != "watch" && !record.call.resource.starts_with("events");
    for Record { call, .. } in calls.iter().filter(counts) {
        let word = word(call);
        let number = before.entry(word.clone()).or_default();
        all.push(Point { word, number: *number, needed: *number < least(call), writes: call.writes() });
        *number += 1;
    }
    all.sort_by_key(|point| (!point.needed, !point.writes));
    all.truncate(MAX_COUNT);
    all
}

/// One cluster, whose member loses its data again and again.
struct Losses<'a> {
    harness: &'a Harness,
    namespace: String,
    /// How many there were.
    number: usize,
    /// The names of all objects whose creation the business cluster acknowledged.
    acknowledged: Vec<String>,
}

impl<'a> Losses<'a> {
    async fn begin(harness: &'a Harness) -> Result<Self> {
        harness.declare(CLUSTER).await?;
        harness.start().await?;
        harness.ready(CLUSTER).await?;
        let namespace = format!("{}-{CLUSTER}", harness.namespace());
        Ok(Self { harness, namespace, number: 0, acknowledged: Vec::new() })
    }

    async fn lose(&mut self, late: &str) -> Result<()> {
        let began = Instant::now();
        self.number += 1;
        self.lose_once().await.with_context(|| format!("loss {}: {late}", self.number))?;
        eprintln!("clusters: loss {}, {:.1?}: {late}", self.number, began.elapsed());
        Ok(())
    }

    /// The member loses its data under a writing client, and is replaced exactly once.
    async fn lose_once(&mut self) -> Result<()> {
        let harness = self.harness;
        let writer = Writer::start(site(harness)?.meta.administrator(&self.namespace), self.number);
        lose(harness, CLUSTER, MEMBER).await?;
        let done = |status: &fleetwright_api::ClusterStatus| {
            status.etcd.as_ref().is_some_and(|etcd| etcd.members == 3 && etcd.change.is_none())
        };
        harness.reaches(CLUSTER, "no member is changed", done).await?;
        harness.ready(CLUSTER).await?;
        let written = writer.end().await?;
        ensure!(!written.is_empty(), "no write was acknowledged during the loss");
        self.acknowledged.extend(written);
        self.operations().await?;
        self.volumes().await?;
        self.starts()?;
        self.writes().await
    }

    /// Each act succeeded once for each loss, in the order that is promised.
    async fn operations(&self) -> Result<()> {
        for type_ in OPERATIONS {
            let succeeded = self.harness.operated(CLUSTER, type_).await?;
            ensure!(succeeded == self.number, "{succeeded} Operations {type_} succeeded for {} losses", self.number);
        }
        let mut last = BTreeMap::new();
        for one in self.harness.api::<Operation>().list(&ListParams::default()).await? {
            let Some(status) = one.status.filter(|status| status.phase == OperationPhase::Succeeded) else { continue };
            let at = last.entry(one.spec.type_).or_insert(status.started_at);
            *at = (*at).max(status.started_at);
        }
        let order = ["EtcdMemberRemove", "EtcdVolumeDelete", "EtcdMemberAdd", "EtcdMemberPromote"];
        let times: Vec<_> = order.iter().map(|type_| last.get(*type_).copied().flatten()).collect();
        ensure!(times.iter().all(Option::is_some) && times.is_sorted(), "{order:?} were started at {times:?}");
        Ok(())
    }

    /// The member had one new volume for each loss.
    async fn volumes(&self) -> Result<()> {
        let (site, claim, expected) = (site(self.harness)?, format!("data-{MEMBER}"), self.number + 1);
        let seen = || async {
            let volumes = site.witness.volumes(&self.namespace, &claim);
            if volumes >= expected { Ok(()) } else { Err(format!("{volumes} of {expected} volumes were seen")) }
        };
        self.harness.settle("the new volume is seen", seen).await?;
        let volumes = site.witness.volumes(&self.namespace, &claim);
        ensure!(volumes == expected, "{MEMBER} had {volumes} volumes, and {expected} are expected");
        Ok(())
    }

    /// Only what lost its data started without it: no container on a new volume as a member that had started before, and none on the old volume as the new member.
    fn starts(&self) -> Result<()> {
        let starts = site(self.harness)?.meta.empty_starts();
        let wrong: Vec<_> = starts.iter().filter(|one| one.wiped != one.started_before).collect();
        ensure!(wrong.is_empty(), "started on a volume that is not its own: {wrong:?}");
        // Each was a member of its own.
        ensure!(
            starts.len() == self.number,
            "not one start without data for each of {} losses: {starts:#?}",
            self.number
        );
        Ok(())
    }

    /// Everything that was acknowledged is there.
    async fn writes(&self) -> Result<()> {
        let maps: Api<ConfigMap> = Api::default_namespaced(site(self.harness)?.meta.administrator(&self.namespace));
        let there = maps.list(&ListParams::default()).await?;
        let there: std::collections::BTreeSet<String> = there.into_iter().map(|map| map.name_any()).collect();
        let lost: Vec<_> = self.acknowledged.iter().filter(|name| !there.contains(*name)).collect();
        ensure!(lost.is_empty(), "acknowledged writes are lost: {lost:?}");
        Ok(())
    }
}

/// A client of a business cluster that writes until it is ended.
struct Writer {
    ends: Arc<AtomicBool>,
    task: JoinHandle<Vec<String>>,
}

impl Writer {
    fn start(client: Client, loss: usize) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let task = tokio::spawn(async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let mut acknowledged = Vec::new();
            let mut number = 0;
            while !ended.load(Ordering::SeqCst) {
                let name = format!("loss-{loss}-{number}");
                number += 1;
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let map = ConfigMap { metadata, ..ConfigMap::default() };
                // One that is refused, or not answered, may be there or not.
                if maps.create(&PostParams::default(), &map).await.is_ok() {
                    acknowledged.push(name);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            acknowledged
        });
        Self { ends, task }
    }

    /// Ends it; answers the names of objects whose creation was acknowledged.
    async fn end(self) -> Result<Vec<String>> {
        self.ends.store(true, Ordering::SeqCst);
        Ok(self.task.await?)
    }
}
