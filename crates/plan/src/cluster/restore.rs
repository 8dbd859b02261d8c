//! Brings a datastore back to a snapshot, stage by stage. The status says which stage it is in, so that whoever goes on after a crash knows.
//!
//! Checking: a source restores the snapshot and runs an etcd of it; nothing else is touched, and if that does not work nothing is lost. When the source serves, the
//! Operation of the restore asks the gate, and nothing is stopped before that Operation was started. Stopping: all
//! components go down. Restoring: each member's volume gets the data of the source, beside what it has. Starting: all begin again and are proven.
//! Cleaning: what the members had before goes.

use fleetwright_api::{
    ClusterPhase, ClusterStatus, ControlPlaneComponent, EtcdStatus, RestoreStage, Restored, Restoring,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::objects::Kind;
use super::observed::Observed;
use super::snapshots::pods::Ground;
use super::snapshots::{Job, Report, State, Task};

/// The type of the Operation of a restore.
pub const RESTORE: &str = "Restore";
/// A pod that failed is made anew after this long: until then it can be looked at.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// A restore that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The snapshot.
    pub snapshot: String,
    /// The Cluster that it was taken of, if that is another one.
    pub cluster: Option<String>,
    /// What tells it from others, also of the same snapshot.
    pub id: String,
}

/// What is known of the Operation of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// It passed the gate and was started.
    pub running: bool,
    /// Why it was not yet.
    pub waits: Option<String>,
}

impl Restore {
    /// The one that is under way.
    pub fn of(restoring: &Restoring) -> Self {
        let id = super::digest(&format!("{} {}", restoring.snapshot, restoring.began), 4);
        match restoring.snapshot.split_once('/') {
            Some((cluster, snapshot)) => Self { snapshot: snapshot.to_owned(), cluster: Some(cluster.to_owned()), id },
            None => Self { snapshot: restoring.snapshot.clone(), cluster: None, id },
        }
    }

    /// The pod that has the snapshot as an etcd.
    pub fn source(&self) -> String {
        format!("restore-{}", self.id)
    }

    /// The pod that restores a member's volume.
    pub fn member(&self, number: u32) -> String {
        format!("restore-{}-{number}", self.id)
    }

    /// The pod that removes what a member had before.
    pub fn clean(&self, number: u32) -> String {
        format!("clean-{}-{number}", self.id)
    }
}

/// The stage that it is in; none if nothing is restored.
pub(super) fn stage(seen: &Observed) -> Option<RestoreStage> {
    seen.status.restoring.as_ref().map(|restoring| restoring.stage)
}

/// No component may run now.
pub(super) fn down(seen: &Observed) -> bool {
    matches!(stage(seen), Some(RestoreStage::Stopping | RestoreStage::Restoring))
}

/// The data is that of a snapshot, or will be: components begin with what the cluster refers to, whatever they were of.
pub(super) fn replaces(seen: &Observed) -> bool {
    down(seen) || stage(seen) == Some(RestoreStage::Starting)
}

/// The snapshot that is asked for and not followed yet: its name, or `CLUSTER/NAME` of another Cluster's.
fn wanted(seen: &Observed) -> Option<String> {
    seen.spec.datastore.etcd.as_ref()?;
    let restore = seen.spec.restore.as_ref()?;
    let asked = match &restore.cluster {
        Some(cluster) if *cluster != seen.names.name => format!("{cluster}/{}", restore.snapshot),
        _ => restore.snapshot.clone(),
    };
    (seen.status.restore_followed.as_ref() != Some(&asked)).then_some(asked)
}

fn tasks(seen: &Observed, job: Job) -> impl Iterator<Item = &Task> {
    seen.backup.tasks.iter().filter(move |task| task.job == job)
}

fn task<'a>(seen: &'a Observed, pod: &str) -> Option<&'a Task> {
    seen.backup.tasks.iter().find(|task| task.pod == pod)
}

fn members(seen: &Observed) -> u32 {
    super::datastore::record(seen).members
}

/// What the source says of the snapshot, once it serves it.
fn checked(source: Option<&Task>) -> Option<Report> {
    let said = source.filter(|source| source.serves.is_some())?.said.as_deref()?;
    serde_json::from_str(said).ok()
}

/// The restore whose Operation is driven on: from when its snapshot is known to be good until the cluster works with that data.
fn driven(seen: &Observed, restoring: &Restoring) -> Option<Restore> {
    let restore = Restore::of(restoring);
    let begins =
        || checked(task(seen, &restore.source())).is_some() && wanted(seen).as_ref() == Some(&restoring.snapshot);
    let under_way = match restoring.stage {
        RestoreStage::Checking => begins(),
        RestoreStage::Stopping | RestoreStage::Restoring | RestoreStage::Starting => true,
        RestoreStage::Cleaning => false,
    };
    under_way.then_some(restore)
}

/// What is done about a restore.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RestoreSteps {
    /// Drive the Operation of this restore on.
    pub restore: Option<Restore>,
    /// Create these claims, unless they exist.
    pub claims: Vec<Value>,
    /// Create these pods.
    pub pods: Vec<Value>,
    /// Delete these pods, which have done their work or failed.
    pub tidy: Vec<Task>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

impl RestoreSteps {
    /// Creates that pod if it does not exist. One that failed is deleted after a while, so that it is created again.
    fn pod(&mut self, seen: &Observed, name: &str, body: impl FnOnce() -> Option<Value>, now: Timestamp) {
        match task(seen, name) {
            None => self.pods.extend(body()),
            Some(task) => match &task.state {
                State::Failed(at, _) if !task.ending => match at.checked_add(AGAIN) {
                    Ok(again) if again > now => self.next = self.next.into_iter().chain([again]).min(),
                    _ => self.tidy.push(task.clone()),
                },
                _ => {}
            },
        }
    }
}

/// What is to be done in the stage that a restore is in. One that is `held` back asks the gate for nothing while its snapshot is checked.
pub(super) fn keep(seen: &Observed, held: bool, now: Timestamp) -> RestoreSteps {
    let mut steps = RestoreSteps::default();
    let left = |jobs: &[Job]| -> Vec<Task> {
        let all = jobs.iter().flat_map(|job| tasks(seen, *job));
        all.filter(|task| !task.ending).cloned().collect()
    };
    let Some(restoring) = &seen.status.restoring else {
        return RestoreSteps { tidy: left(&[Job::Source, Job::Member, Job::Clean]), ..steps };
    };
    let restore = Restore::of(restoring);
    let held = restoring.stage == RestoreStage::Checking && held;
    steps.restore = driven(seen, restoring).filter(|_| !held);
    let (names, spec, package, image) = (&seen.names, &seen.spec, seen.target().1, &*seen.backup.image);
    let ground = Ground { names, spec, package, image, members: members(seen) };
    let source = || Some(ground.source(&restore));
    match restoring.stage {
        RestoreStage::Checking => steps.pod(seen, &restore.source(), source, now),
        RestoreStage::Stopping => {}
        RestoreStage::Restoring => {
            let serves = task(seen, &restore.source()).and_then(|source| source.serves.clone());
            // One that went away meanwhile comes back.
            steps.pod(seen, &restore.source(), source, now);
            for number in 0..members(seen) {
                let body = || Some(ground.member(&restore, number, serves.as_deref()?));
                steps.pod(seen, &restore.member(number), body, now);
            }
            if !steps.pods.is_empty() {
                steps.claims = (0..members(seen)).filter_map(|number| claim(seen, number)).collect();
            }
        }
        RestoreStage::Starting => steps.tidy = left(&[Job::Source, Job::Member]),
        RestoreStage::Cleaning => {
            let replicas = seen.workloads.get(&ControlPlaneComponent::Etcd).map(|one| &one.replicas[..]);
            for number in 0..members(seen) {
                let name = format!("etcd-{number}");
                let member = replicas.unwrap_or_default().iter().find(|replica| replica.name == name);
                let node = member.and_then(|member| member.node.clone());
                let body = || Some(ground.clean(&restore, number, node.as_deref()?));
                steps.pod(seen, &restore.clean(number), body, now);
            }
        }
    }
    steps
}

/// The claim of a member, as its StatefulSet has it: it may be gone.
fn claim(seen: &Observed, number: u32) -> Option<Value> {
    let set = seen.object(Kind::StatefulSet, ControlPlaneComponent::Etcd.binary())?;
    let template = &set["spec"]["volumeClaimTemplates"][0];
    let labels = &template["metadata"]["labels"];
    let name = super::members::claim(&format!("etcd-{number}"));
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": seen.names.namespace, "labels": labels },
    });
    claim["spec"] = template["spec"].clone();
    Some(claim)
}

/// Nobody makes a pod of it.
fn scaled_down(seen: &Observed, component: ControlPlaneComponent) -> bool {
    let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
    seen.object(kind, component.binary()).is_none_or(|object| object["spec"]["replicas"] == 0)
}

/// Goes on to the next stage when the present one is done. `settled` says whether all components are as they should be, and proven.
pub(super) fn tell(seen: &Observed, status: &mut ClusterStatus, settled: bool, now: Timestamp) {
    if seen.spec.restore.is_none() {
        status.restore_followed = None;
    }
    let Some(restoring) = &seen.status.restoring else {
        if let Some(snapshot) = wanted(seen).filter(|_| !seen.spec.paused) {
            status.restoring = Some(Restoring {
                snapshot: snapshot.clone(),
                stage: RestoreStage::Checking,
                began: now,
                data_of: None,
            });
            status.waiting_for = Some(format!("snapshot {snapshot} is looked at before anything is stopped"));
        }
        return;
    };
    let restore = Restore::of(restoring);
    let mut next = restoring.clone();
    let (snapshot, source) = (&restoring.snapshot, task(seen, &restore.source()));
    let why = |task: Option<&Task>| match task.map(|task| &task.state) {
        Some(State::Failed(_, why)) => format!(": {why}"),
        Some(State::Runs(why)) if !why.is_empty() => format!(": {why}"),
        _ => String::new(),
    };
    let waits = match restoring.stage {
        RestoreStage::Checking => {
            if wanted(seen).as_ref() != Some(snapshot) {
                status.restoring = None;
                return;
            }
            match checked(source) {
                // A paused cluster keeps everything as it is, what is recorded of its members included.
                Some(report) if seen.backup.restore.running && !seen.spec.paused => {
                    (next.stage, next.data_of) = (RestoreStage::Stopping, Some(report.at));
                    // All members begin with the snapshot. Their number stays this one until it is restored, whatever is declared meanwhile.
                    let members = seen.spec.datastore.etcd.as_ref().map_or(0, |etcd| etcd.members);
                    status.etcd = Some(EtcdStatus { members, serving: members, change: None });
                    Some(format!("snapshot {snapshot} is checked; all components are stopped for it"))
                }
                Some(_) => {
                    let why = seen.backup.restore.waits.as_deref().unwrap_or("its Operation is not started yet");
                    Some(format!("snapshot {snapshot} is checked, nothing is stopped yet: {why}"))
                }
                None => Some(format!("snapshot {snapshot} is looked at before anything is stopped{}", why(source))),
            }
        }
        RestoreStage::Stopping => {
            let left: usize = seen.workloads.values().map(|workload| workload.replicas.len()).sum();
            if left == 0 && ControlPlaneComponent::ALL.into_iter().all(|component| scaled_down(seen, component)) {
                next.stage = RestoreStage::Restoring;
            }
            Some(format!("{left} pods are to go before snapshot {snapshot} is restored"))
        }
        RestoreStage::Restoring => {
            let pods: Vec<_> = (0..members(seen)).map(|number| task(seen, &restore.member(number))).collect();
            let done = |task: &Option<&Task>| task.is_some_and(|task| matches!(task.state, State::Succeeded(_)));
            let count = pods.iter().filter(|task| done(task)).count();
            if count == pods.len() {
                next.stage = RestoreStage::Starting;
            }
            let reason = pods.iter().copied().chain([source]).map(why).find(|why| !why.is_empty()).unwrap_or_default();
            Some(format!("snapshot {snapshot} is restored to {count} of {} members{reason}", pods.len()))
        }
        RestoreStage::Starting => {
            if settled {
                next.stage = RestoreStage::Cleaning;
                status.restored = Some(Restored {
                    snapshot: snapshot.clone(),
                    at: now,
                    data_of: restoring.data_of.unwrap_or(restoring.began),
                });
                status.restore_followed = Some(snapshot.clone());
                None
            } else {
                let more = status.waiting_for.clone().unwrap_or_default();
                Some(format!("it begins again with the data of snapshot {snapshot}: {more}"))
            }
        }
        RestoreStage::Cleaning => {
            let done = |number| {
                let task = task(seen, &restore.clean(number));
                task.is_some_and(|task| matches!(task.state, State::Succeeded(_)))
            };
            if (0..members(seen)).all(done) {
                status.restoring = None;
                return;
            }
            None
        }
    };
    let cleans = next.stage == RestoreStage::Cleaning;
    if waits.is_some() {
        status.waiting_for = waits;
    }
    if !cleans && next.stage != RestoreStage::Checking {
        status.phase = Some(ClusterPhase::Restoring);
    }
    status.restoring = Some(next);
}
