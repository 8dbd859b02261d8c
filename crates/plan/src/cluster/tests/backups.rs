//! Snapshots: when they are taken, and what is said of them.

use fleetwright_api::Span;

use super::snapshots::pods::PodInputs;
use super::snapshots::{DueSnapshot, NewSnapshot, SnapshotPod, SnapshotPodJob, SnapshotPodState, SnapshotReport};
use super::*;
use crate::cluster::members::VolumeClaim;

/// The pod of a snapshot, as it looks when it has taken it.
pub(super) fn done(taking: &NewSnapshot, at: Timestamp) -> SnapshotPod {
    let report = SnapshotReport {
        name: taking.wanted.name.clone(),
        at,
        bytes: 20_480,
        revision: 7,
        keys: 3,
        kept: vec![taking.wanted.name.clone()],
        key_id: Some("0011223344556677".to_owned()),
        etcd: Some("3.6.0".to_owned()),
    };
    task(taking, SnapshotPodState::Succeeded(serde_json::to_string(&report).unwrap()))
}

fn task(taking: &NewSnapshot, state: SnapshotPodState) -> SnapshotPod {
    let (asked, generation, purpose) =
        (taking.wanted.asked.clone(), taking.wanted.generation, taking.wanted.purpose.clone());
    let (pod, uid, version) = (taking.wanted.pod(), "uid".to_owned(), "1".to_owned());
    SnapshotPod {
        pod,
        uid,
        version,
        job: SnapshotPodJob::Snapshot,
        state,
        created: NOW,
        asked,
        generation,
        purpose,
        ending: false,
        serves: None,
        said: None,
        etcd: None,
    }
}

impl TestCluster {
    fn at(&self, now: Timestamp) -> Decision {
        self.look(|seen| decide(seen, now))
    }

    /// The snapshot for the change that is asked for is there.
    pub(super) fn snapshotted(&mut self) {
        let generation = self.look(|seen| seen.backup.generation);
        let name = "20000101-000000".to_owned();
        self.status.last_snapshot = Some(fleetwright_api::SnapshotStatus {
            name,
            at: NOW,
            size: None,
            revision: None,
            generation,
            purpose: None,
            checked: true,
            key_id: None,
            etcd: None,
        });
    }

    fn status_at(&self, now: Timestamp) -> ClusterStatus {
        let outlook = StatusInputs { generation: Some(1), ..StatusInputs::default() };
        self.look(|seen| status(seen, &decide(seen, now), &outlook, now))
    }
}

fn reason(status: &ClusterStatus) -> String {
    condition(&status.conditions, names::SNAPSHOTS_RECENT).unwrap().reason.clone()
}

#[test]
fn snapshots_are_taken_on_a_schedule_and_reported_before_their_pod_goes() {
    let mut world = TestCluster::new();
    world.settle();
    let decision = world.decide();
    assert!(decision.snapshot.is_none(), "none at once");
    let hour = SignedDuration::from_hours(1);
    assert!(world.at(NOW + hour * 2).snapshot.is_none());
    let then = NOW + hour * 7;
    let taking = world.at(then).snapshot.unwrap();
    assert_eq!(taking.wanted.pod(), format!("snapshot-{}", taking.wanted.name));
    world.tasks.push(task(&taking, SnapshotPodState::Runs(String::new())));
    assert!(world.at(then).snapshot.is_none(), "one at a time");
    world.tasks = vec![done(&taking, NOW)];
    assert!(world.at(then).tidy.is_empty(), "it is told first");
    world.status = world.status_at(then);
    let last = world.status.last_snapshot.clone().unwrap();
    assert_eq!((last.name.as_str(), last.revision, last.checked), (taking.wanted.name.as_str(), Some(7), true));
    assert_eq!(last.etcd.as_deref(), Some("3.6.0"));
    assert_eq!((world.status.snapshots.len(), reason(&world.status).as_str()), (1, names::reasons::ON_SCHEDULE));
    assert_eq!(world.at(then).tidy.len(), 1);
    world.tasks.clear();
    assert_eq!(world.status_at(NOW + hour * 20).conditions.len(), world.status.conditions.len());
    assert_eq!(reason(&world.status_at(NOW + hour * 20)), names::reasons::OVERDUE);
}

#[test]
fn a_schedule_of_nought_takes_none_by_itself() {
    let mut world = TestCluster::new();
    world.spec.snapshots = Some(fleetwright_api::Snapshots { every: Span::seconds(0), ..Default::default() });
    world.settle();
    assert!(world.at(NOW + SignedDuration::from_hours(1000)).snapshot.is_none());
    world.asked = Some("now".to_owned());
    let taking = world.decide().snapshot.unwrap();
    assert_eq!(taking.wanted.asked.as_deref(), Some("now"));
    world.settle();
    assert_eq!(world.status.observed_snapshot_request.as_deref(), Some("now"));
    assert!(world.decide().snapshot.is_none() && world.tasks.is_empty());
}

#[test]
fn an_upgrade_begins_when_its_snapshot_is_there_and_going_back_needs_none() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    let asks = world.decide();
    assert!(asks.snapshot.is_none() && asks.preflight.ask.is_some(), "it is taken when nothing else stands against it");
    world.applied(&asks);
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.snapshot.as_ref().unwrap().wanted.generation.is_some());
    let said = world.status();
    let upgradable = condition(&said.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::SNAPSHOT_REQUIRED));
    // One that was taken for something else does not count.
    let mut other = done(decision.snapshot.as_ref().unwrap(), NOW);
    other.generation = None;
    world.tasks.push(other);
    world.status = world.status();
    let decision = world.decide();
    assert!(decision.apply.is_empty());
    world.applied(&decision);
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.37"));
    world.spec.package_version = "v1.36".to_owned();
    // The versions of kubelets are read first.
    let decision = world.decide();
    assert!(decision.snapshot.is_none() && decision.preflight.ask.is_some());
    world.applied(&decision);
    let decision = world.decide();
    assert!(decision.snapshot.is_none() && !decision.apply.is_empty());
}

#[test]
fn an_upgrade_that_is_tried_again_later_takes_another_snapshot_first() {
    let mut world = TestCluster::new();
    world.spec.snapshots = Some(fleetwright_api::Snapshots { every: Span::seconds(0), ..Default::default() });
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.snapshotted();
    let minute = SignedDuration::from_mins(1);
    for (minutes, counts) in [(59, true), (60, false), (5 * 24 * 60, false)] {
        world.now = NOW + minute * minutes;
        // What stands against the change is asked first.
        world.known.survey = None;
        let asks = world.decide();
        assert!(asks.preflight.ask.is_some() && asks.apply.is_empty(), "after {minutes} minutes");
        world.applied(&asks);
        let decision = world.decide();
        assert_eq!(
            (!decision.apply.is_empty(), decision.snapshot.is_none()),
            (counts, counts),
            "after {minutes} minutes"
        );
    }
    let steps = world.settle();
    let taken = steps.iter().position(|step| step.snapshot.is_some()).unwrap();
    assert!(steps[..=taken].iter().all(|step| step.apply.is_empty()));
    assert_eq!(world.status.package_version.as_deref(), Some("v1.37"));
}

#[test]
fn one_that_failed_is_reported_and_tried_again_later_each_time() {
    let mut world = TestCluster::new();
    world.settle();
    world.asked = Some("now".to_owned());
    let taking = world.decide().snapshot.unwrap();
    world
        .tasks
        .push(task(&taking, SnapshotPodState::Failed(NOW, "keep: it restores to 3 keys, and there are 4".to_owned())));
    world.status = world.status();
    assert_eq!(reason(&world.status), names::reasons::SNAPSHOT_FAILED);
    let failed = condition(&world.status.conditions, names::SNAPSHOTS_RECENT).unwrap();
    assert!(failed.message.contains("it restores to 3 keys"), "{}", failed.message);
    let decision = world.decide();
    assert!(decision.snapshot.is_none() && decision.tidy.is_empty(), "it can be looked at until then");
    assert_eq!(decision.next, Some(NOW + SignedDuration::from_secs(60)));
    let minute = NOW + SignedDuration::from_secs(61);
    assert_eq!(world.at(minute).tidy.len(), 1);
    world.tasks.clear();
    assert!(world.at(minute).snapshot.is_some());
    assert_eq!(reason(&world.status_at(minute)), names::reasons::SNAPSHOT_FAILED, "until one is taken");
    let later = NOW + SignedDuration::from_secs(600);
    world.tasks.push(task(&taking, SnapshotPodState::Failed(later, "again".to_owned())));
    let after = |seconds| later + SignedDuration::from_secs(seconds);
    assert!(world.at(after(599)).tidy.is_empty() && world.at(after(601)).tidy.len() == 1);
    world.tasks = vec![done(&taking, NOW)];
    assert_eq!(reason(&world.status_at(later)), names::reasons::ON_SCHEDULE);
}

#[test]
fn no_container_of_a_snapshot_has_a_shell_or_a_right() {
    let mut world = TestCluster::new();
    world.settle();
    world.asked = Some("now".to_owned());
    let pod = world.decide().snapshot.unwrap().pod;
    let spec = &pod["spec"];
    assert_eq!(
        (spec["automountServiceAccountToken"].as_bool(), spec["restartPolicy"].as_str()),
        (Some(false), Some("Never"))
    );
    let containers = spec["initContainers"].as_array().unwrap().iter().chain(spec["containers"].as_array().unwrap());
    let names: Vec<_> = containers.clone().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["take", "restore", "scratch", "keep"]);
    for one in containers {
        assert_eq!(one["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(one["securityContext"]["capabilities"]["drop"][0], "ALL");
    }
}

/// The arguments of the last container of the pod that takes a snapshot, with that prefix of a bucket.
fn kept_with(prefix: Option<&str>) -> Vec<String> {
    let mut world = TestCluster::new();
    world.settle();
    let mut s3 =
        serde_json::json!({ "endpoint": "https://s3.example", "bucket": "backups", "secretRef": { "name": "s3" } });
    s3["prefix"] = serde_json::json!(prefix);
    world.spec.snapshots = Some(serde_json::from_value(serde_json::json!({ "s3": s3 })).unwrap());
    let later = NOW + jiff::SignedDuration::from_hours(48);
    let taking = world.at(later).snapshot.expect("one is due");
    let container = &taking.pod["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array().unwrap().iter().map(|mount| mount["name"].as_str().unwrap());
    for wanted in ["snapshot-key", "snapshot-store", "cluster-keys"] {
        assert!(mounts.clone().any(|name| name == wanted), "{wanted}");
    }
    let others = taking.pod["spec"]["initContainers"].as_array().unwrap().iter();
    let mut others = others.flat_map(|one| one["volumeMounts"].as_array().unwrap());
    assert!(others.all(|mount| mount["name"] != "cluster-keys"), "only the container that keeps the snapshot has them");
    serde_json::from_value(container["args"].clone()).unwrap()
}

#[test]
fn names_in_a_bucket_start_with_namespace_and_name_whatever_prefix_is_asked_for() {
    let own = TestCluster::new().look(|seen| format!("{}/{}/", seen.names.fleet, seen.names.name));
    // A prefix that looks like the own directory, or like that of another Cluster, is a directory in the own one.
    for asked in ["", "backups/", &own, &format!("backups/{own}"), "fleet/other/"] {
        let args = kept_with(Some(asked).filter(|asked| !asked.is_empty()));
        assert!(args.contains(&format!("--s3-prefix={own}{asked}")), "{asked:?}: {args:?}");
        assert!(args.contains(&format!("--cluster={}", own.trim_end_matches('/'))), "{args:?}");
        assert!(args.contains(&"--cluster-keys=/etc/fleetwright/cluster-keys/sealed".to_owned()), "{args:?}");
        assert!(!args.contains(&"--s3-insecure".to_owned()));
    }
}

/// The directory in a bucket to which pods of the Cluster `fleet/NAME` with that prefix write, and the one from which they restore a snapshot of `other`.
fn directories(name: &str, prefix: Option<&str>, other: &str) -> (String, String) {
    let mut s3 =
        serde_json::json!({ "endpoint": "https://s3.example", "bucket": "backups", "secretRef": { "name": "s3" } });
    s3["prefix"] = serde_json::json!(prefix);
    let mut spec = ClusterSpec::of("v1.36");
    spec.snapshots = Some(serde_json::from_value(serde_json::json!({ "s3": s3 })).unwrap());
    let (names, package) = (Names::of("fleet", name), package("1.36.4"));
    let (image, members, last) = ("fleetwright:1", 1, None);
    let pods = PodInputs { names: &names, spec: &spec, package: &package, image, members, last };
    let due = DueSnapshot { name: "20260101-000000".to_owned(), asked: None, generation: None, purpose: None };
    let snapshot = due.name.clone();
    let wanted = restore::Restore { snapshot, cluster: Some(other.to_owned()), id: "1".to_owned() };
    let directory = |container: &Value| {
        let mut args = container["args"].as_array().unwrap().iter().filter_map(Value::as_str);
        args.find_map(|arg| arg.strip_prefix("--s3-prefix=")).unwrap().to_owned()
    };
    let (taken, restored) = (pods.snapshot(&due), pods.source(&wanted));
    (directory(&taken["spec"]["containers"][0]), directory(&restored["spec"]["initContainers"][0]))
}

#[test]
fn no_prefix_puts_the_directory_of_one_cluster_into_that_of_another() {
    let prefixes = [
        None,
        Some("fleet/"),
        Some("blue/"),
        Some("fleet/blue/"),
        Some("fleet/blue-2/"),
        Some("fleet/blue/fleet/blue-2/"),
        Some("fleet/blue-2/fleet/blue/"),
    ];
    for one in prefixes {
        for other in prefixes {
            let (blue, second) = (directories("blue", one, "blue-2").0, directories("blue-2", other, "blue").0);
            assert!(!blue.starts_with(&second) && !second.starts_with(&blue), "{blue} and {second}");
        }
        let (blue, _) = directories("blue", one, "blue-2");
        let (_, restored) = directories("blue-2", one, "blue");
        assert_eq!(restored, blue, "with the same prefix, the other one's snapshots are found");
    }
}

#[test]
fn the_volume_of_snapshots_grows_if_its_class_allows_it() {
    let mut world = TestCluster::new();
    world.settle();
    let (name, size) = (snapshots::pods::CLAIM.to_owned(), "20Gi".to_owned());
    let claim = VolumeClaim { name, size, expandable: true, ..VolumeClaim::default() };
    world.claims.push(claim.clone());
    assert!(world.decide().expand.is_empty(), "20Gi is the default");
    let mut volume = fleetwright_api::SnapshotVolume::default();
    volume.size.0 = "30Gi".to_owned();
    world.spec.snapshots = Some(fleetwright_api::Snapshots { volume: Some(volume), ..Default::default() });
    assert_eq!(world.decide().expand, [(claim, "30Gi".to_owned())]);

    world.claims[0].expandable = false;
    assert!(world.decide().expand.is_empty());
    let status = world.status();
    let message = &condition(&status.conditions, names::SNAPSHOTS_RECENT).unwrap().message;
    for part in ["fleet-pay/snapshots", "at 20Gi", "30Gi"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
}
