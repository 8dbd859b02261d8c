//! Restores: stage by stage, from wherever they were left.

use fleetwright_api::{Restore, RestoreStage};

use super::snapshots::pods::ETCD;
use super::snapshots::{SnapshotPod, SnapshotPodJob, SnapshotPodState, SnapshotReport};
use super::*;
use crate::cluster::members::{NextMemberStep, VolumeClaim};

/// The pod of a restore as it looks when it has done its work. The snapshot `newer` is of etcd 3.7, all others are of etcd 3.6.
fn done(pod: &Value) -> SnapshotPod {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    let job = SnapshotPodJob::of(pod["metadata"]["labels"][names::COMPONENT].as_str().unwrap()).unwrap();
    let (at, kept) = (NOW - SignedDuration::from_hours(1), Vec::new());
    let etcd = if pod.to_string().contains("--name=newer") { "3.7.0" } else { "3.6.0" };
    let etcd = Some(etcd.to_owned());
    let report =
        SnapshotReport { name: "good".to_owned(), at, bytes: 1, revision: 7, keys: 3, kept, key_id: None, etcd };
    let source = job == SnapshotPodJob::Source;
    SnapshotPod {
        uid: format!("uid-{name}"),
        pod: name,
        version: "1".to_owned(),
        job,
        state: if source { SnapshotPodState::Runs(String::new()) } else { SnapshotPodState::Succeeded(String::new()) },
        created: NOW,
        asked: None,
        generation: None,
        purpose: None,
        ending: false,
        serves: source.then(|| "10.0.0.9".to_owned()),
        said: source.then(|| serde_json::to_string(&report).unwrap()),
        etcd: pod["metadata"]["annotations"][ETCD].as_str().map(str::to_owned),
    }
}

impl TestCluster {
    fn stage(&self) -> Option<RestoreStage> {
        self.status.restoring.as_ref().map(|restoring| restoring.stage)
    }

    /// One pass: everything that was decided is done, and what is said of it is written.
    fn pass(&mut self) -> Decision {
        let decision = self.decide();
        self.status = self.status();
        self.applied(&decision);
        self.tasks.extend(decision.pods.iter().map(done));
        for claim in &decision.claims {
            let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
            assert!(self.claims.iter().all(|known| known.name != name), "{name} exists");
            self.claims.push(VolumeClaim { name, ..VolumeClaim::default() });
        }
        for (component, workload) in &mut self.workloads {
            let kind = if *component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
            let live = &self.live[&(kind, component.binary().to_owned())];
            match live["spec"]["replicas"].as_u64().unwrap() {
                0 => workload.replicas.clear(),
                count if workload.replicas.is_empty() => {
                    let template = live["spec"]["template"]["metadata"]["annotations"][names::APPLIED_HASH].as_str();
                    let template = template.map(str::to_owned);
                    let replicas = (0..count).map(|number| replica(*component, number, template.clone()));
                    workload.replicas = replicas.collect();
                    workload.replicas.iter_mut().for_each(|one| one.uid += "-again");
                }
                _ => {}
            }
        }
        decision
    }

    /// Until a restore is in that stage.
    fn reach(&mut self, stage: RestoreStage) {
        for _ in 0..40 {
            if self.stage() == Some(stage) {
                return;
            }
            self.pass();
        }
        panic!("it is in {:?}", self.stage());
    }

    /// Until the cluster works with the data of the snapshot.
    fn restored(&mut self) {
        for _ in 0..40 {
            self.pass();
        }
        assert_eq!((self.status.phase, self.stage()), (Some(ClusterPhase::Ready), None));
        assert!(self.status.restored.is_some(), "{:?}", self.status);
    }

    fn restore(&mut self, snapshot: &str) {
        self.spec.restore = Some(Restore { snapshot: snapshot.to_owned(), ..Restore::default() });
    }
}

#[test]
fn a_restore_goes_through_all_stages_and_is_done_once() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("good");
    let mut stages = Vec::new();
    for _ in 0..40 {
        let decision = world.pass();
        let (pods, claims) = (decision.pods.len(), decision.claims.len());
        if claims > 0 {
            assert_eq!((pods, claims), (3, 3), "a volume may be gone");
        }
        stages.extend(world.stage());
        stages.dedup();
    }
    use RestoreStage::{Checking, Cleaning, Restoring, Starting, Stopping};
    assert_eq!(stages, [Checking, Stopping, Restoring, Starting, Cleaning]);
    let restored = world.status.restored.clone().unwrap();
    assert_eq!((restored.snapshot.as_str(), restored.data_time), ("good", NOW - SignedDuration::from_hours(1)));
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
    assert!(world.tasks.is_empty(), "{:?}", world.tasks);
    // To have it once more, it is taken out before.
    world.spec.restore = None;
    world.pass();
    world.restore("good");
    world.pass();
    assert_eq!(world.stage(), Some(Checking));
}

fn volumes(world: &mut TestCluster) {
    world.claims =
        (0..3).map(|number| VolumeClaim { name: format!("data-etcd-{number}"), ..VolumeClaim::default() }).collect();
}

fn named(objects: &[Value]) -> Vec<String> {
    objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_restore_waits_until_a_volume_claim_that_is_being_deleted_is_gone() {
    let mut world = TestCluster::new();
    world.settle();
    volumes(&mut world);
    world.restore("good");
    world.reach(RestoreStage::Restoring);
    world.claims[1].ending = true;
    let id = restore::Restore::of(world.status.restoring.as_ref().unwrap()).id;
    let decision = world.pass();
    // A pod with that claim is never scheduled: the claim would be gone, and nothing would make another.
    assert_eq!(named(&decision.pods), [format!("restore-{id}-0"), format!("restore-{id}-2")]);
    assert!(decision.claims.is_empty(), "{:?}", decision.claims);
    for _ in 0..3 {
        let decision = world.pass();
        assert_eq!((decision.pods.len(), decision.claims.len(), decision.tidy.len()), (0, 0, 0));
    }
    assert_eq!(world.stage(), Some(RestoreStage::Restoring));
    let waits = world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("2 of 3") && waits.contains("data-etcd-1"), "{waits}");
    world.claims.remove(1);
    let decision = world.pass();
    assert_eq!(named(&decision.claims), ["data-etcd-1"]);
    assert_eq!(named(&decision.pods), [format!("restore-{id}-1")]);
    world.restored();
}

#[test]
fn a_volume_that_is_deleted_after_it_was_restored_is_restored_again() {
    let mut world = TestCluster::new();
    world.settle();
    volumes(&mut world);
    world.restore("good");
    world.reach(RestoreStage::Restoring);
    let id = restore::Restore::of(world.status.restoring.as_ref().unwrap()).id;
    assert_eq!(world.pass().pods.len(), 3);
    for ending in [true, false] {
        world.claims[1].ending = ending;
        if !ending {
            world.claims.remove(1);
        }
        assert_eq!(world.status().restoring.map(|one| one.stage), Some(RestoreStage::Restoring));
        let tidy: Vec<_> = world.decide().tidy.into_iter().map(|task| task.pod).collect();
        assert_eq!(tidy, [format!("restore-{id}-1")]);
    }
    // A claim that was gone while its pod waits for it is created for that pod.
    let pod = world.tasks.iter_mut().find(|task| task.pod == format!("restore-{id}-1")).unwrap();
    let state = std::mem::replace(&mut pod.state, SnapshotPodState::Runs("its claim is not found".to_owned()));
    let decision = world.pass();
    assert_eq!((named(&decision.claims), decision.tidy.len()), (vec!["data-etcd-1".to_owned()], 0));
    // The pod that worked on the volume before does not count for this one.
    let pod = world.tasks.iter_mut().find(|task| task.pod == format!("restore-{id}-1")).unwrap();
    (pod.state, pod.ending) = (state, true);
    assert_eq!(world.status().restoring.map(|one| one.stage), Some(RestoreStage::Restoring));
    world.tasks.retain(|task| !task.ending);
    world.restored();
}

#[test]
fn a_restore_ends_though_the_claim_of_a_member_that_runs_is_being_deleted() {
    let mut world = TestCluster::new();
    world.settle();
    volumes(&mut world);
    world.restore("good");
    world.reach(RestoreStage::Cleaning);
    world.claims[2].ending = true;
    let cleans = world.pass().pods;
    assert_eq!(cleans.len(), 2, "no pod starts with that claim: {cleans:?}");
    world.pass();
    assert_eq!(world.stage(), None, "{:?}", world.tasks);
}

#[test]
fn nothing_is_stopped_before_the_snapshot_is_seen_to_be_good() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("bad");
    world.pass();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.pods.len() == 1);
    let mut source = done(&decision.pods[0]);
    (source.serves, source.said) = (None, None);
    source.state = SnapshotPodState::Failed(NOW, "fetch: error: there is no snapshot bad; there are: good".to_owned());
    world.tasks.push(source);
    world.status = world.status();
    assert_eq!((world.stage(), world.status.phase), (Some(RestoreStage::Checking), Some(ClusterPhase::Ready)));
    assert!(world.status.waiting_for.as_ref().unwrap().contains("there is no snapshot bad"));
    assert!(world.decide().apply.is_empty());
    world.spec.restore = None;
    world.status = world.status();
    assert_eq!(world.stage(), None);
    assert_eq!(world.decide().tidy.len(), 1);
}

#[test]
fn a_snapshot_that_cannot_be_restored_stops_neither_snapshots_nor_healing_nor_members_and_is_reported() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("bad");
    world.pass();
    let good = done(&world.decide().pods[0]);
    let why = "fetch: error: there is no snapshot bad; there are: good".to_owned();
    world.tasks =
        vec![SnapshotPod { serves: None, said: None, state: SnapshotPodState::Failed(NOW, why), ..good.clone() }];
    world.status = world.status();
    let accepted = |world: &TestCluster| {
        let status = world.status();
        let accepted = condition(&status.conditions, names::ACCEPTED).unwrap();
        (accepted.status, accepted.reason.clone(), accepted.message.clone())
    };
    let (status, reason, message) = accepted(&world);
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::SNAPSHOT_UNUSABLE));
    assert!(message.contains("spec.restore") && message.contains("there is no snapshot bad"), "{message}");
    // It is said also while it is tried again.
    world.tasks.clear();
    assert_eq!(accepted(&world).2, message);

    world.asked = Some("now".to_owned());
    world.spec.package_version = "v1.37".to_owned();
    let wanted = world.decide().snapshot.expect("a person asked for it").wanted;
    assert_eq!(wanted.generation, None, "no upgrade begins with it");
    (world.asked, world.spec.package_version) = (None, "v1.36".to_owned());

    let scheduler = &mut world.workloads.get_mut(&ControlPlaneComponent::Scheduler).unwrap().replicas[0];
    (scheduler.ready, scheduler.looping, scheduler.restarts) = (false, true, 3);
    assert!(world.decide().heal.announce.is_some(), "a replica that does not work is made anew");
    let member = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[2];
    (member.ready, member.lost, member.restarts) = (false, true, 1);
    assert_eq!(world.decide().members, NextMemberStep::QueryMembers, "a member that lost its data is replaced");

    // So it is while the Operation of one that is good waits, and no longer when that is started.
    world.tasks = vec![good];
    world.restore = restore::RestoreOperation { running: false, waits: Some("OperationPolicy restores".to_owned()) };
    assert_eq!((world.decide().members, accepted(&world).0), (NextMemberStep::QueryMembers, Status::True));
    world.restore = restore::RestoreOperation { running: true, waits: None };
    let decision = world.decide();
    assert_eq!((decision.members, decision.heal.announce), (NextMemberStep::Nothing, None));
}

#[test]
fn with_the_data_of_a_snapshot_it_goes_back_though_the_soak_is_over() {
    let mut world = TestCluster::past_the_soak();
    assert_eq!((world.status.package_version.as_deref(), world.status.emulates.as_deref()), (Some("v1.37"), None));
    world.spec.package_version = "v1.36".to_owned();
    world.restore("good");
    for _ in 0..40 {
        world.pass();
        let down = [Some(RestoreStage::Checking), None].contains(&world.stage());
        let old = world.workloads.values().filter(|workload| workload.package.as_deref() == Some("v1.37")).count();
        assert!(down || old == 0 || world.stage() == Some(RestoreStage::Stopping), "{:?}", world.workloads);
    }
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
}

#[test]
fn with_the_data_of_a_snapshot_an_older_etcd_starts_and_is_recorded() {
    let mut world = TestCluster::rolled_back();
    world.restore("good");
    for _ in 0..40 {
        world.pass();
    }
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
    assert!(world.etcd_image().ends_with("etcd:v3.6.16"), "{}", world.etcd_image());
    assert_eq!(world.opened(), (Some("3.6.16"), Some("v1.36")));
}

#[test]
fn a_snapshot_of_a_newer_etcd_is_refused_until_a_package_version_with_that_etcd_is_named() {
    // Whether the etcd of the source ends, as it does, or starts.
    for starts in [false, true] {
        let mut world = TestCluster::rolled_back();
        world.restore("newer");
        world.pass();
        world.pass();
        if !starts {
            let source = &mut world.tasks[0];
            source.serves = None;
            source.state = SnapshotPodState::Failed(NOW, "scratch: version \"3.7.0\" is not supported".to_owned());
        }
        world.now += SignedDuration::from_mins(1);
        for _ in 0..5 {
            let decision = world.pass();
            assert!(decision.pods.is_empty() && decision.tidy.is_empty(), "another attempt would say the same");
            assert_eq!((world.stage(), decision.restore), (Some(RestoreStage::Checking), None));
            assert_eq!(world.status.phase, Some(ClusterPhase::Ready), "nothing is stopped");
        }
        assert!(world.etcd_image().ends_with("etcd:v3.7.0"), "{}", world.etcd_image());
        let (status, reason, message) = world.condition(names::ACCEPTED);
        assert_eq!((status, reason.as_str()), (Status::False, names::reasons::SNAPSHOT_UNUSABLE));
        let waits = world.status.waiting_for.clone().unwrap();
        for said in [&message, &waits] {
            for part in ["snapshot newer", "from etcd 3.7", "etcd 3.6.16", "v1.36", "3.7 or newer"] {
                assert!(said.contains(part), "{part} in {said}");
            }
        }
        world.spec.package_version = "v1.37".to_owned();
        world.restored();
        assert!(world.etcd_image().ends_with("etcd:v3.7.0"), "{}", world.etcd_image());
        assert_eq!(world.opened(), (Some("3.7.0"), Some("v1.37")));
    }
}

#[test]
fn the_message_about_a_snapshot_follows_the_etcd_of_a_package_version_that_is_recreated() {
    let recreate = |world: &mut TestCluster, etcd: &str| {
        let spec = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", etcd);
        world.packages.insert("v1.36".to_owned(), spec);
    };
    let with_etcd = |world: &mut TestCluster, etcd: &str| {
        recreate(world, etcd);
        world.status = world.status();
        world.condition(names::ACCEPTED)
    };
    let mut world = TestCluster::new();
    recreate(&mut world, "3.7.0");
    world.settle();
    world.restore("newer");
    world.pass();
    world.pass();
    let source = &mut world.tasks[0];
    source.serves = None;
    source.state = SnapshotPodState::Failed(NOW, "scratch: no space left on device".to_owned());
    let (_, reason, message) = with_etcd(&mut world, "3.7.0");
    assert_eq!(reason, names::reasons::SNAPSHOT_UNUSABLE);
    assert!(message.contains("no space left"), "{message}");
    // The description of the snapshot is known before another source is created.
    let (_, reason, message) = with_etcd(&mut world, "3.6.16");
    assert_eq!(reason, names::reasons::SNAPSHOT_UNUSABLE);
    assert!(message.contains("taken from etcd 3.7, and etcd 3.6.16 of v1.36 cannot read it"), "{message}");
    let waits = world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("taken from etcd 3.7") && !waits.contains("no space left"), "{waits}");
    // A source with the older etcd finds the same. It does not hold for a newer etcd, and is not repeated.
    world.pass();
    world.pass();
    assert_eq!(world.tasks[0].etcd.as_deref(), Some("3.6.16"));
    assert!(world.condition(names::ACCEPTED).2.contains("taken from etcd 3.7"));
    let (status, reason, message) = with_etcd(&mut world, "3.7.0");
    assert_eq!((status, reason.as_str()), (Status::True, names::reasons::ACCEPTED), "{message}");
}

#[test]
fn a_source_with_a_newer_etcd_gives_its_data_to_no_older_one() {
    let mut world = TestCluster::rolled_back();
    world.restore =
        restore::RestoreOperation { running: false, waits: Some("no OperationPolicy names Restore".to_owned()) };
    world.restore("good");
    world.pass();
    world.spec.package_version = "v1.37".to_owned();
    world.pass();
    let runs = |world: &TestCluster| world.tasks.iter().map(|task| task.etcd.clone()).collect::<Vec<_>>();
    assert_eq!(runs(&world), [Some("3.7.0".to_owned())]);
    // It passed its check, and has raised the version of the data since.
    world.spec.package_version = "v1.36".to_owned();
    world.restore = restore::RestoreOperation { running: true, waits: None };
    let decision = world.pass();
    assert_eq!((world.stage(), decision.tidy.len()), (Some(RestoreStage::Checking), 1));
    world.pass();
    assert_eq!(runs(&world), [Some("3.6.16".to_owned())]);
    world.restored();
    assert!(world.etcd_image().ends_with("etcd:v3.6.16"), "{}", world.etcd_image());
}

#[test]
fn a_quorum_that_is_lost_does_not_stand_against_a_restore() {
    let mut world = TestCluster::new();
    world.settle();
    for member in &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas {
        (member.ready, member.lost, member.restarts) = (false, true, 3);
    }
    world.proofs.clear();
    world.restore("good");
    for _ in 0..40 {
        world.pass();
    }
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
    assert!(fleetwright_api::is_true(&world.status.conditions, names::DATASTORE_HEALTHY));
}

#[test]
fn the_number_of_members_is_not_changed_by_a_restore_of_a_paused_cluster() {
    let mut world = TestCluster::new();
    world.settle();
    let recorded = world.status.etcd.clone();
    assert_eq!(recorded.as_ref().map(|etcd| etcd.members), Some(3));
    world.restore("good");
    world.pass();
    world.pass();
    assert_eq!(
        (world.stage(), world.tasks.len()),
        (Some(RestoreStage::Checking), 1),
        "the snapshot is seen to be good"
    );
    // Paused, and while it is, another number of members is declared.
    world.spec.paused = true;
    world.spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    let status = world.status_while_paused();
    assert_eq!((status.restoring.map(|one| one.stage), status.etcd), (Some(RestoreStage::Checking), recorded.clone()));
    // The restore is withdrawn: the members that run stay until each is removed from etcd.
    world.spec.restore = None;
    world.status = world.status_while_paused();
    world.spec.paused = false;
    let decision = world.decide();
    assert_eq!(world.status.etcd, recorded);
    let set = decision.apply.iter().find(|(object, _)| object.kind == Kind::StatefulSet);
    assert!(set.is_none_or(|(object, _)| object.body["spec"]["replicas"] == 3), "{set:?}");
}

#[test]
fn a_restore_that_leads_back_to_an_older_minor_waits_for_kubelets_that_are_newer() {
    let mut world = TestCluster::past_the_soak();
    world.spec.package_version = "v1.36".to_owned();
    world.restore("good");
    let newer = |world: &mut TestCluster, version: &str| {
        let of = "back to v1.36".to_owned();
        let (apis, quotas) = (Ok(Default::default()), Ok(Vec::new()));
        let kubelets = Ok([("n1".to_owned(), version.to_owned())].into());
        world.known.survey = Some(survey::Survey { of, at: world.now, apis, quotas, kubelets });
    };
    let etcd = world.status.etcd.clone();
    world.pass();
    assert!(world.decide().preflight.ask.is_some(), "kubelets are looked at before anything is stopped");
    for _ in 0..10 {
        newer(&mut world, "v1.37.1");
        world.pass();
    }
    assert_eq!((world.stage(), &world.status.etcd), (Some(RestoreStage::Checking), &etcd), "nothing is stopped");
    assert!(world.workloads.values().all(|workload| !workload.replicas.is_empty()));
    let upgradable = condition(&world.status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::KUBELET_TOO_NEW));
    assert!(world.status.waiting_for.as_ref().unwrap().contains("n1 (v1.37.1)"), "{:?}", world.status.waiting_for);
    world.known.overrides = Some("KubeletTooNew@v1.36".to_owned());
    assert_eq!(world.status().restoring.map(|one| one.stage), Some(RestoreStage::Stopping), "a person knows better");
    world.known.overrides = None;
    newer(&mut world, "v1.36.4");
    for _ in 0..40 {
        world.pass();
    }
    assert_eq!((world.status.package_version.as_deref(), world.stage()), (Some("v1.36"), None));
}

#[test]
fn nothing_is_stopped_before_the_operation_of_the_restore_was_started() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore =
        restore::RestoreOperation { running: false, waits: Some("no OperationPolicy names Restore".to_owned()) };
    world.restore("good");
    world.pass();
    // The snapshot is not known to be good yet: no Operation is asked for.
    assert_eq!((world.stage(), world.decide().restore), (Some(RestoreStage::Checking), None));
    for _ in 0..5 {
        world.pass();
        assert_eq!((world.stage(), world.status.phase), (Some(RestoreStage::Checking), Some(ClusterPhase::Ready)));
    }
    let decision = world.decide();
    let asked = decision.restore.unwrap();
    assert_eq!(Some(asked.id.clone()), world.status.restoring.as_ref().map(|one| restore::Restore::of(one).id));
    assert!(decision.apply.is_empty(), "{:?}", decision.apply);
    let waits = world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("no OperationPolicy names Restore"), "{waits}");

    // In a paused cluster nothing continues, though its Operation was started: members that are declared meanwhile change nothing.
    let record = world.status.etcd.clone();
    world.restore = restore::RestoreOperation { running: true, waits: None };
    (world.spec.paused, world.spec.datastore.etcd.as_mut().unwrap().members) = (true, 1);
    world.status = world.status_while_paused();
    assert_eq!((world.stage(), &world.status.etcd), (Some(RestoreStage::Checking), &record));
    (world.spec.paused, world.spec.datastore.etcd.as_mut().unwrap().members) = (false, 3);

    // Withdrawn before it began, it leaves nothing behind.
    world.restore = restore::RestoreOperation::default();
    world.spec.restore = None;
    world.pass();
    assert_eq!((world.stage(), world.decide().restore), (None, None));
    world.now = NOW + SignedDuration::from_secs(60);
    world.restore("good");
    world.restore = restore::RestoreOperation { running: true, waits: None };
    let mut driven = Vec::new();
    for _ in 0..40 {
        driven.extend(world.pass().restore.map(|restore| restore.id));
    }
    driven.dedup();
    assert_eq!(driven.len(), 1, "one Operation from the first stage to the last");
    assert_ne!(driven[0], asked.id, "another restore of the same snapshot is another Operation");
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
}

#[test]
fn members_that_are_declared_while_a_snapshot_is_restored_come_after_it() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("good");
    world.reach(RestoreStage::Restoring);
    world.spec.datastore.etcd.as_mut().unwrap().members = 5;
    for _ in 0..40 {
        world.pass();
    }
    assert_eq!((world.stage(), world.status.restored.is_some()), (None, true), "{:?}", world.status.waiting_for);
    assert_eq!(
        (world.status.etcd.as_ref().map(|etcd| etcd.members), world.decide().members),
        (Some(3), NextMemberStep::QueryMembers)
    );
}

#[test]
fn another_package_version_comes_after_the_restore() {
    use RestoreStage::{Restoring, Starting, Stopping};
    for stage in [Stopping, Restoring, Starting] {
        let mut world = TestCluster::past_the_soak();
        world.restore("good");
        world.reach(stage);
        // From Starting on, etcd and the API servers of v1.37 may have written.
        world.spec.package_version = "v1.36".to_owned();
        let decision = world.decide();
        let refused = decision.refused.map(|(reason, _)| reason);
        assert_eq!((&*decision.package, refused), ("v1.37", Some(names::reasons::RESTORING)), "{stage:?}");
        if stage == Restoring {
            let kept = world.packages.remove("v1.37").unwrap();
            assert!(world.decide().pods.is_empty(), "not with an etcd that did not check the snapshot");
            let waits = world.status().waiting_for.unwrap();
            assert!(waits.contains("ClusterPackageVersion v1.37"), "{waits}");
            world.packages.insert("v1.37".to_owned(), kept);
        }
        for _ in 0..40 {
            world.pass();
        }
        let status = &world.status;
        assert_eq!((world.stage(), status.package_version.as_deref()), (None, Some("v1.37")), "{stage:?}");
        let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
        assert_eq!(upgradable.reason, names::reasons::SOAK_ENDED);
    }
}

#[test]
fn a_package_version_of_the_same_minors_corrects_a_restore_that_does_not_start() {
    use RestoreStage::{Restoring, Starting, Stopping};
    for stage in [Stopping, Restoring, Starting] {
        let mut world = TestCluster::new();
        world.settle();
        world.restore("good");
        world.reach(stage);
        // Such as one whose image of kube-apiserver can be pulled.
        let corrected = world.packages["v1.36"].clone();
        world.packages.insert("v1.36-corrected".to_owned(), corrected);
        world.spec.package_version = "v1.36-corrected".to_owned();
        let decision = world.decide();
        assert_eq!((&*decision.package, decision.refused), ("v1.36-corrected", None), "{stage:?}");
        world.restored();
        assert_eq!(world.status.package_version.as_deref(), Some("v1.36-corrected"), "{stage:?}");
    }
}

#[test]
fn a_package_version_that_is_recreated_with_another_minor_does_not_continue_a_restore() {
    use RestoreStage::{Restoring, Starting, Stopping};
    let with =
        |kubernetes: &str, etcd: &str| ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
    let others = [
        ("1.36.4", "3.6.16", "Kubernetes 1.36.4 instead of 1.37.1"),
        ("1.38.0", "3.6.16", "Kubernetes 1.38.0 instead of 1.37.1"),
        ("1.37.1", "3.5.9", "etcd 3.5.9 instead of 3.6.16"),
        ("1.37.1", "3.7.0", "etcd 3.7.0 instead of 3.6.16"),
    ];
    for (stage, (kubernetes, etcd, part)) in
        [Stopping, Restoring, Starting].into_iter().flat_map(|stage| others.map(|one| (stage, one)))
    {
        let mut world = TestCluster::past_the_soak();
        world.restore("good");
        world.reach(stage);
        let recorded = world.status.restoring.as_ref().unwrap();
        assert_eq!((recorded.kubernetes.as_deref(), recorded.etcd.as_deref()), (Some("1.37.1"), Some("3.6.16")));
        let before = world.packages.insert("v1.37".to_owned(), with(kubernetes, etcd)).unwrap();
        for _ in 0..5 {
            let decision = world.pass();
            assert!(decision.apply.is_empty() && decision.pods.is_empty(), "{stage:?}: {:?}", kinds(&decision));
        }
        let waits = world.status.waiting_for.clone().unwrap();
        let (status, reason, message) = world.condition(names::UPGRADABLE);
        assert_eq!(world.stage(), Some(stage), "{waits}");
        assert_eq!((status, reason.as_str()), (Status::False, names::reasons::PACKAGE_VERSION_NOT_FOUND));
        assert!(waits.contains("ClusterPackageVersion v1.37") && waits.contains(part), "{stage:?}: {waits}");
        assert!(message.contains(part), "{stage:?}: {message}");
        // Whether the recorded minor is the older or the newer one.
        assert!(message.contains("one with Kubernetes 1.37 and etcd 3.6"), "{stage:?}: {message}");
        // Its old content, under the old name or another one.
        if etcd == "3.6.16" {
            world.packages.insert("v1.37".to_owned(), before);
        } else {
            world.packages.insert("v1.37-again".to_owned(), before);
            world.spec.package_version = "v1.37-again".to_owned();
        }
        world.restored();
        assert_eq!(world.status.package_version.as_ref(), Some(&world.spec.package_version), "{stage:?}");
    }
}

#[test]
fn a_restore_continues_with_a_corrected_package_version_after_its_own_was_deleted() {
    for stage in [RestoreStage::Stopping, RestoreStage::Restoring, RestoreStage::Starting] {
        let mut world = TestCluster::past_the_soak();
        world.restore("good");
        world.reach(stage);
        let deleted = world.packages.remove("v1.37").unwrap();
        world.packages.insert("v1.37-corrected".to_owned(), deleted);
        world.spec.package_version = "v1.37-corrected".to_owned();
        world.restored();
        assert_eq!(world.status.package_version.as_deref(), Some("v1.37-corrected"), "{stage:?}");
    }
}

#[test]
fn a_package_version_that_corrects_a_restore_within_a_soak_ends_no_soak() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    assert_eq!(world.status.emulates.as_deref(), Some("1.36"));
    world.restore("good");
    world.reach(RestoreStage::Starting);
    let corrected = world.packages["v1.37"].clone();
    world.packages.insert("v1.37-corrected".to_owned(), corrected);
    world.spec.package_version = "v1.37-corrected".to_owned();
    let decision = world.decide();
    assert_eq!((&*decision.package, decision.emulates.as_deref()), ("v1.37-corrected", Some("1.36")));
}

#[test]
fn a_restore_to_a_newer_version_that_takes_long_is_no_change_that_failed() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.restore("good");
    world.reach(RestoreStage::Restoring);
    world.now = NOW + SignedDuration::from_hours(1);
    let decision = world.pass();
    assert_eq!((decision.failed, decision.progress, &world.status.failed), (None, None, &None));
    world.restored();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.37"));
}

fn under_way(world: &TestCluster) -> (&str, RestoreStage, restore::Restore) {
    let restoring = world.status.restoring.as_ref().unwrap();
    (restoring.snapshot.as_str(), restoring.stage, restore::Restore::of(restoring))
}

fn pods(tasks: &[SnapshotPod]) -> Vec<&str> {
    tasks.iter().map(|task| task.pod.as_str()).collect()
}

#[test]
fn another_snapshot_takes_the_place_of_one_that_cannot_be_restored() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("good");
    world.reach(RestoreStage::Restoring);
    let (_, _, first) = under_way(&world);
    let fails = |world: &mut TestCluster, pod: &str| {
        let task = world.tasks.iter_mut().find(|task| task.pod == pod).unwrap();
        (task.serves, task.said) = (None, None);
        task.state = SnapshotPodState::Failed(NOW, "fetch: error: the store does not answer".to_owned());
    };
    fails(&mut world, &first.source());
    let waits = world.status().waiting_for.unwrap();
    assert!(waits.contains("the store does not answer") && waits.contains("another snapshot"), "{waits}");

    // It is left for none that cannot be restored either.
    world.restore("bad");
    let decision = world.pass();
    assert_eq!((decision.pods.len(), pods(&decision.tidy)), (1, vec![first.source().as_str()]));
    assert_eq!(decision.restore.as_ref(), Some(&first), "its Operation goes on");
    fails(&mut world, decision.pods[0]["metadata"]["name"].as_str().unwrap());
    for _ in 0..3 {
        world.status = world.status();
        assert_eq!(under_way(&world), ("good", RestoreStage::Restoring, first.clone()));
    }
    let waits = world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("snapshot bad ") && waits.contains("store does not answer"), "{waits}");

    world.now = NOW + SignedDuration::from_mins(1);
    world.restore("other");
    world.restore = restore::RestoreOperation { running: false, waits: Some("OperationPolicy restores".to_owned()) };
    world.pass();
    world.pass();
    let (snapshot, stage, second) = under_way(&world);
    assert_eq!((snapshot, stage), ("other", RestoreStage::Stopping));
    assert_ne!(first.id, second.id, "it is another Operation");
    // A pod of the first one that ends slowly may still write to a volume.
    let slow =
        SnapshotPod { pod: first.member(0), job: SnapshotPodJob::Member, ending: true, ..world.tasks[0].clone() };
    world.tasks.push(slow.clone());
    for _ in 0..3 {
        assert_eq!(world.pass().restore.map(|restore| restore.id), Some(second.id.clone()));
    }
    assert_eq!((under_way(&world).1, pods(&world.tasks)), (RestoreStage::Stopping, vec![slow.pod.as_str()]));
    world.tasks.clear();
    world.pass();
    let waits = world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("snapshot other ") && waits.contains("OperationPolicy restores"), "{waits}");
    world.restore = restore::RestoreOperation { running: true, waits: None };
    world.restored();
    assert_eq!(world.status.restored.as_ref().map(|restored| &*restored.snapshot), Some("other"));
    assert!(world.tasks.is_empty(), "{:?}", world.tasks);
}

#[test]
fn a_snapshot_that_was_restored_before_can_take_the_place_of_one_that_does_not_start() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("good");
    world.restored();
    world.now = NOW + SignedDuration::from_mins(1);
    world.restore("other");
    world.reach(RestoreStage::Starting);
    world.proofs.clear();
    world.restore("good");
    world.pass();
    world.pass();
    assert_eq!((under_way(&world).0, under_way(&world).1), ("good", RestoreStage::Stopping));
    world.restored();
    assert_eq!(world.status.restored.as_ref().map(|restored| &*restored.snapshot), Some("good"));
}

#[test]
fn a_restore_is_not_left_for_one_that_makes_kubelets_newer_than_their_api_server() {
    let mut world = TestCluster::past_the_soak();
    world.status.restoring = Some(fleetwright_api::Restoring {
        snapshot: "good".to_owned(),
        stage: RestoreStage::Starting,
        started_at: NOW,
        data_time: None,
        package_version: Some("v1.37".to_owned()),
        kubernetes: None,
        etcd: None,
    });
    world.workloads.get_mut(&ControlPlaneComponent::Scheduler).unwrap().replicas[0].ready = false;
    world.spec.package_version = "v1.36".to_owned();
    world.restore("other");
    let decision = world.decide();
    world.tasks.extend(decision.pods.iter().map(done));
    let (apis, quotas) = (Ok(Default::default()), Ok(Vec::new()));
    let kubelets = Ok([("n1".to_owned(), "v1.37.1".to_owned())].into());
    let of = decision.preflight.ask.expect("kubelets are looked at").of;
    world.known.survey = Some(survey::Survey { of, at: world.now, apis, quotas, kubelets });
    let status = world.status();
    assert_eq!(status.restoring, world.status.restoring);
    assert!(status.waiting_for.as_ref().unwrap().contains("n1 (v1.37.1)"), "{:?}", status.waiting_for);
    world.known.overrides = Some("KubeletTooNew@v1.36".to_owned());
    let restoring = world.status().restoring.unwrap();
    assert_eq!((&*restoring.snapshot, restoring.package_version.as_deref()), ("other", Some("v1.36")));
}

#[test]
fn volumes_are_cleaned_beside_everything_else() {
    let mut world = TestCluster::new();
    world.settle();
    volumes(&mut world);
    world.restore("good");
    world.reach(RestoreStage::Cleaning);
    let member = |world: &mut TestCluster, ready: bool| {
        let member = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[1];
        (member.node, member.ready) = (None, ready);
    };
    member(&mut world, false);
    world.asked = Some("now".to_owned());
    assert!(world.decide().snapshot.is_some(), "a person asked for it");
    for _ in 0..3 {
        world.pass();
    }
    let waits = world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("etcd-1") && waits.contains("no node"), "{waits}");

    // A claim is not deleted as long as there is a pod with it.
    world.claims[2].ending = true;
    let (_, stage, restore) = under_way(&world);
    assert_eq!((stage, pods(&world.decide().tidy)), (RestoreStage::Cleaning, vec![restore.clean(2).as_str()]));
    world.claims[2].ending = false;

    // An upgrade is checked, has its snapshot and starts.
    member(&mut world, true);
    world.spec.package_version = "v1.37".to_owned();
    let decision = world.decide();
    assert!(decision.preflight.ask.is_some() && decision.apply.is_empty(), "{:?}", kinds(&decision));
    for _ in 0..40 {
        world.pass();
    }
    let version = world.status.package_version.as_deref();
    assert_eq!((version, world.stage()), (Some("v1.37"), Some(RestoreStage::Cleaning)), "{:?}", world.status);

    // So does another restore, which cleans up for both.
    world.restore("other");
    world.pass();
    world.pass();
    assert_eq!((under_way(&world).0, under_way(&world).1), ("other", RestoreStage::Checking));
}

#[test]
fn no_pod_waits_for_a_claim_while_the_statefulset_is_not_known() {
    let mut world = TestCluster::new();
    world.settle();
    world.restore("good");
    world.reach(RestoreStage::Restoring);
    // Somebody deleted it, or volumes grow.
    world.live.remove(&(Kind::StatefulSet, "etcd".to_owned())).unwrap();
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().package = None;
    let decision = world.pass();
    assert_eq!((decision.pods.len(), decision.claims.len()), (0, 0));
    let decision = world.pass();
    assert_eq!((decision.pods.len(), decision.claims.len()), (3, 3));
    world.restored();
}

#[test]
fn a_member_that_loses_its_data_while_a_restore_starts_is_replaced_and_no_number_is_changed() {
    let mut world = TestCluster::new();
    world.settle();
    volumes(&mut world);
    world.restore("good");
    world.reach(RestoreStage::Starting);
    world.pass();
    let lose = |world: &mut TestCluster, lost: bool| {
        let member = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[2];
        (member.ready, member.lost, member.restarts) = (!lost, lost, 1);
    };
    lose(&mut world, true);
    assert_eq!((world.stage(), world.decide().members), (Some(RestoreStage::Starting), NextMemberStep::QueryMembers));
    lose(&mut world, false);
    world.spec.datastore.etcd.as_mut().unwrap().members = 5;
    assert_eq!(world.decide().members, NextMemberStep::Nothing);
}
