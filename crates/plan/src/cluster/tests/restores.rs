//! Restores: stage by stage, from wherever they were left.

use fleetwright_api::{Restore, RestoreStage};

use super::snapshots::{Job, Report, State, Task};
use super::*;

/// The pod of a restore as it looks when it has done its work.
fn done(pod: &Value) -> Task {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    let job = Job::of(pod["metadata"]["labels"][names::COMPONENT].as_str().unwrap()).unwrap();
    let (at, kept) = (NOW - SignedDuration::from_hours(1), Vec::new());
    let report = Report { name: "good".to_owned(), at, bytes: 1, revision: 7, keys: 3, kept, key_id: None };
    let source = job == Job::Source;
    Task {
        uid: format!("uid-{name}"),
        pod: name,
        version: "1".to_owned(),
        job,
        state: if source { State::Runs(String::new()) } else { State::Succeeded(String::new()) },
        created: NOW,
        asked: None,
        generation: None,
        purpose: None,
        ending: false,
        serves: source.then(|| "10.0.0.9".to_owned()),
        said: source.then(|| serde_json::to_string(&report).unwrap()),
    }
}

impl World {
    fn stage(&self) -> Option<RestoreStage> {
        self.status.restoring.as_ref().map(|restoring| restoring.stage)
    }

    /// One pass: everything that was decided is done, and what is said of it is written.
    fn pass(&mut self) -> Decision {
        let decision = self.decide();
        self.status = self.status();
        self.applied(&decision);
        self.tasks.extend(decision.pods.iter().map(done));
        for (component, workload) in &mut self.workloads {
            let kind = if *component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
            let live = &self.live[&(kind, component.binary().to_owned())];
            match live["spec"]["replicas"].as_u64().unwrap() {
                0 => workload.replicas.clear(),
                count if workload.replicas.is_empty() => {
                    let template = live["spec"]["template"]["metadata"]["annotations"][names::APPLIED].as_str();
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

    fn restore(&mut self, snapshot: &str) {
        self.spec.restore = Some(Restore { snapshot: snapshot.to_owned(), ..Restore::default() });
    }
}

#[test]
fn a_restore_goes_through_all_stages_and_is_done_once() {
    let mut world = World::new();
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
    assert_eq!((restored.snapshot.as_str(), restored.data_of), ("good", NOW - SignedDuration::from_hours(1)));
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
    assert!(world.tasks.is_empty(), "{:?}", world.tasks);
    // To have it once more, it is taken out before.
    world.spec.restore = None;
    world.pass();
    world.restore("good");
    world.pass();
    assert_eq!(world.stage(), Some(Checking));
}

#[test]
fn nothing_is_stopped_before_the_snapshot_is_seen_to_be_good() {
    let mut world = World::new();
    world.settle();
    world.restore("bad");
    world.pass();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.pods.len() == 1);
    let mut source = done(&decision.pods[0]);
    (source.serves, source.said) = (None, None);
    source.state = State::Failed(NOW, "fetch: error: there is no snapshot bad; there are: good".to_owned());
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
fn with_the_data_of_a_snapshot_it_goes_back_though_the_soak_is_over() {
    let mut world = World::past_the_soak();
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
fn a_quorum_that_is_lost_does_not_stand_against_a_restore() {
    let mut world = World::new();
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
    let mut world = World::new();
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
    let mut world = World::past_the_soak();
    world.spec.package_version = "v1.36".to_owned();
    world.restore("good");
    let newer = |world: &mut World, version: &str| {
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
    let mut world = World::new();
    world.settle();
    world.restore = restore::Started { running: false, waits: Some("no OperationPolicy names Restore".to_owned()) };
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

    // A paused cluster goes on with nothing, though its Operation was started: members that are declared meanwhile change nothing.
    let record = world.status.etcd.clone();
    world.restore = restore::Started { running: true, waits: None };
    (world.spec.paused, world.spec.datastore.etcd.as_mut().unwrap().members) = (true, 1);
    world.status = world.status_while_paused();
    assert_eq!((world.stage(), &world.status.etcd), (Some(RestoreStage::Checking), &record));
    (world.spec.paused, world.spec.datastore.etcd.as_mut().unwrap().members) = (false, 3);

    // Withdrawn before it began, it leaves nothing behind.
    world.restore = restore::Started::default();
    world.spec.restore = None;
    world.pass();
    assert_eq!((world.stage(), world.decide().restore), (None, None));
    world.now = NOW + SignedDuration::from_secs(60);
    world.restore("good");
    world.restore = restore::Started { running: true, waits: None };
    let mut driven = Vec::new();
    for _ in 0..40 {
        driven.extend(world.pass().restore.map(|restore| restore.id));
    }
    driven.dedup();
    assert_eq!(driven.len(), 1, "one Operation from the first stage to the last");
    assert_ne!(driven[0], asked.id, "another restore of the same snapshot is another Operation");
    assert_eq!((world.status.phase, world.stage()), (Some(ClusterPhase::Ready), None));
}
