//! The end of a soak.

use fleetwright_api::{FinishingUpgrade, Span};

use super::changing::args;
use super::survey::{RemovedApi, Survey};
use super::*;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

impl TestCluster {
    /// One that has a new minor, which emulates the old one.
    fn soaking() -> Self {
        let mut world = Self::new();
        // None by a schedule.
        world.spec.snapshots = Some(fleetwright_api::Snapshots { every: Span::seconds(0), ..Default::default() });
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        world.settle();
        assert_eq!((world.status.phase, world.status.emulates.as_deref()), (Some(ClusterPhase::Soaking), Some("1.36")));
        world
    }

    /// The same, when the time of its soak is over, and all is proven again.
    fn soaked() -> Self {
        let mut world = Self::soaking();
        world.now = world.status.soak_until.unwrap() + HOUR;
        world.proven();
        world
    }

    /// Every API server is proven now.
    fn proven(&mut self) {
        let decision = self.decide();
        self.applied(&Decision { prove: decision.prove, ..Decision::default() });
        self.status = self.status();
    }

    /// What is found out for the end of the soak.
    fn surveyed(&mut self, change: impl FnOnce(&mut Survey)) {
        self.known.survey = None;
        let ask = self.decide().soak.ask.expect("it is asked");
        assert_eq!(ask.servers.len(), 2);
        let (apis, quotas, kubelets) = (Ok(Default::default()), Ok(Vec::new()), Ok(Default::default()));
        let mut survey = Survey { of: ask.of, at: self.now, apis, quotas, kubelets };
        change(&mut survey);
        self.known.survey = Some(survey);
    }

    fn finishable(&self) -> (Status, String, String) {
        let status = self.status();
        let one = condition(&status.conditions, names::UPGRADE_COMPLETABLE).expect("the condition is there").clone();
        (one.status, one.reason, one.message)
    }

    /// One pass.
    fn goes_on(&mut self) -> Decision {
        let decision = self.decide();
        let status = self.status();
        self.status = status;
        self.applied(&decision);
        decision
    }

    fn versions(&self) -> [bool; 3] {
        ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
            .map(|name| args(self, name).contains("--emulated-version=1.36"))
    }
}

fn removed() -> RemovedApi {
    let text = |text: &str| text.to_owned();
    RemovedApi {
        group: text("flow.example"),
        version: text("v1beta1"),
        resource: text("schemas"),
        removed_release: text("1.37"),
    }
}

#[test]
fn a_soak_ends_step_by_step_and_is_proven_afterwards() {
    let mut world = TestCluster::soaking();
    assert_eq!(world.versions(), [true; 3]);
    let (since, until) = (world.status.soak_since.unwrap(), world.status.soak_until.unwrap());
    assert_eq!((since, until), (NOW, NOW + HOUR * 24));
    let (status, reason, message) = world.finishable();
    assert_eq!((status, reason.as_str()), (Status::Unknown, names::reasons::SOAKING));
    assert!(message.contains(&until.to_string()), "{message}");
    assert!(world.decide().soak.ask.is_none(), "nothing is asked a day ahead");

    // What stands against it is reported an hour before.
    world.now = until - HOUR;
    world.proven();
    world.surveyed(|survey| survey.apis = Ok([removed()].into()));
    let (status, reason, _) = world.finishable();
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::REMOVED_APIS_IN_USE));
    world.surveyed(|_| {});
    assert_eq!((world.finishable().0, world.finishable().1.as_str()), (Status::True, names::reasons::SOAKING));
    assert!(world.decide().soak.ends.is_none() && world.decide().snapshot.is_none());

    // What was found then does not count when the time is over.
    world.now = until;
    world.proven();
    assert_eq!(world.finishable().1, names::reasons::PREFLIGHT_CHECKS_RUNNING);
    world.surveyed(|_| {});
    let (_, reason, _) = world.finishable();
    assert_eq!(reason, names::reasons::SNAPSHOT_REQUIRED);
    let purpose = format!("soak/v1.37/{until}");
    let taking = world.decide().snapshot.unwrap();
    assert_eq!(taking.wanted.purpose.as_ref(), Some(&purpose));
    assert_eq!(taking.pod["metadata"]["annotations"]["fleetwright.io/purpose"], purpose);
    assert_eq!(world.status().emulates.as_deref(), Some("1.36"), "not before it is taken");
    world.goes_on();
    while world.status.last_snapshot.as_ref().and_then(|last| last.purpose.as_ref()) != Some(&purpose) {
        world.goes_on();
    }
    // That it ends is written down first, and only then something is done about it.
    while world.status.emulates.is_some() {
        let decision = world.goes_on();
        assert!(decision.apply.is_empty() && decision.emulates.as_deref() == Some("1.36"));
    }
    let finishing = FinishingUpgrade { package_version: "v1.37".into(), emulated: "1.36".into(), since: until };
    assert_eq!((&world.status.finishing, world.status.soak_until), (&Some(finishing), None));
    assert_eq!(world.versions(), [true; 3]);
    let reversible = condition(&world.status.conditions, names::ROLLBACK_POSSIBLE).unwrap();
    assert_eq!((reversible.status, reversible.reason.as_str()), (Status::False, names::reasons::SOAK_ENDED));
    assert_eq!(world.finishable().1, names::reasons::COMPLETING_UPGRADE);
    assert_eq!(world.status().phase, Some(ClusterPhase::Upgrading));
    world.settle();
    assert_eq!((world.status.phase, &world.status.finishing), (Some(ClusterPhase::Ready), &None));
    assert_eq!(world.versions(), [false; 3]);
    assert!(condition(&world.status.conditions, names::UPGRADE_COMPLETABLE).is_none());

    // There is no way back any more, and nothing is touched.
    world.spec.package_version = "v1.36".to_owned();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.refused.is_some());
    let status = world.status();
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::SOAK_ENDED));
    assert_eq!(status.package_version.as_deref(), Some("v1.37"));
}

#[test]
fn a_rollback_that_was_asked_for_in_the_soak_is_never_turned_around_by_time() {
    for passes in 0..12 {
        let mut world = TestCluster::soaking();
        let until = world.status.soak_until.unwrap();
        world.now = until - SignedDuration::from_secs(60);
        world.spec.package_version = "v1.36".to_owned();
        for _ in 0..passes {
            world.goes_on();
        }
        world.now = until + HOUR * 100;
        for _ in 0..40 {
            world.goes_on();
            assert!(world.status.finishing.is_none(), "after {passes} passes");
        }
        assert_eq!(world.status.package_version.as_deref(), Some("v1.36"), "after {passes} passes");
        assert!(world.workloads.values().all(|workload| workload.package.as_deref() == Some("v1.36")));
        assert_eq!((&world.status.emulates, world.status.soak_until), (&None, None));
    }
}

#[test]
fn a_rollback_that_is_held_back_keeps_the_soak_from_ending() {
    let mut world = TestCluster::soaked();
    world.spec.package_version = "v1.36".to_owned();
    let kubelets = |world: &mut TestCluster| {
        let (apis, quotas) = (Ok(Default::default()), Ok(Vec::new()));
        let kubelets = Ok([("n1".to_owned(), "v1.37.1".to_owned())].into());
        let of = "back to v1.36".to_owned();
        world.known.survey = Some(Survey { of, at: world.now, apis, quotas, kubelets });
    };
    for _ in 0..10 {
        kubelets(&mut world);
        world.goes_on();
    }
    assert_eq!((world.status.emulates.as_deref(), world.versions()), (Some("1.36"), [true; 3]));
    let (status, reason, message) = world.finishable();
    assert_eq!((status, reason.as_str()), (Status::Unknown, names::reasons::CHANGE_IN_PROGRESS));
    assert!(message.contains("spec.packageVersion") && message.contains("v1.36"), "{message}");
    world.known.overrides = Some("KubeletTooNew@v1.36".to_owned());
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
}

#[test]
fn what_is_found_holds_the_end_of_a_soak_until_it_is_overridden_for_exactly_that() {
    let kubelets = |version: &str| Ok([("n1".to_owned(), version.to_owned())].into());
    for (reason, found) in [
        (names::reasons::REMOVED_APIS_IN_USE, Ok([removed()].into())),
        (names::reasons::API_USAGE_UNKNOWN, Err("no answer".to_owned())),
    ] {
        let mut world = TestCluster::soaked();
        world.surveyed(|survey| survey.apis = found);
        held(world, reason);
    }
    for (reason, found) in [
        (names::reasons::KUBELET_TOO_OLD, kubelets("v1.33.2")),
        (names::reasons::KUBELET_VERSIONS_UNKNOWN, Err("no answer".to_owned())),
    ] {
        let mut world = TestCluster::soaked();
        world.surveyed(|survey| survey.kubelets = found);
        held(world, reason);
    }
    // A kubelet that the emulated minor supports, and the new one too.
    let mut world = TestCluster::soaked();
    world.surveyed(|survey| survey.kubelets = kubelets("v1.34.0"));
    assert_eq!(world.finishable().1, names::reasons::SNAPSHOT_REQUIRED);
}

fn held(mut world: TestCluster, reason: &str) {
    let (status, said, message) = world.finishable();
    assert_eq!((status, said.as_str()), (Status::False, reason));
    assert!(message.contains(&format!("{reason}@v1.37/soak")), "{message}");
    for (annotation, goes) in [
        (format!("{reason}@v1.37"), false),
        (format!("{reason}@v1.36/soak"), false),
        ("SnapshotRequired@v1.37/soak".to_owned(), false),
        (format!("{reason}@v1.37/soak, SnapshotRequired@v1.37/soak"), true),
    ] {
        world.known.overrides = Some(annotation.clone());
        let decision = world.decide();
        assert_eq!(decision.soak.snapshot.is_some(), goes, "{annotation}");
        assert!(decision.soak.ends.is_none(), "the snapshot cannot be overridden");
    }
    let again = SignedDuration::from_mins(5);
    world.known.overrides = None;
    let later = world.look(|seen| decide(seen, world.now + again));
    assert!(later.soak.ask.is_some() && later.soak.ends.is_none(), "it is asked again");
}

#[test]
fn the_snapshot_is_taken_for_this_end_and_is_fresh() {
    let mut world = TestCluster::soaked();
    world.surveyed(|_| {});
    world.snapshotted();
    let ends = |world: &TestCluster| world.decide().soak.ends.is_some();
    let until = world.status.soak_until.unwrap();
    let now = world.now;
    let taken = |world: &mut TestCluster, purpose: &str, at: Timestamp| {
        let last = world.status.last_snapshot.as_mut().unwrap();
        (last.purpose, last.at) = (Some(purpose.to_owned()), at);
    };
    assert!(!ends(&world), "one that was taken for something else");
    taken(&mut world, &format!("soak/v1.36/{until}"), now);
    assert!(!ends(&world), "one of another package version");
    taken(&mut world, &format!("soak/v1.37/{}", until - HOUR), now);
    assert!(!ends(&world), "one of another end");
    taken(&mut world, &format!("soak/v1.37/{until}"), now - HOUR);
    assert!(!ends(&world), "an old one");
    taken(&mut world, &format!("soak/v1.37/{until}"), now);
    assert!(ends(&world));
    // A snapshot that failed is reported, and nothing ends.
    world.status.last_snapshot = None;
    let recent = world.status.conditions.iter_mut().find(|one| one.type_ == names::SNAPSHOTS_RECENT).unwrap();
    (recent.reason, recent.message) = (names::reasons::SNAPSHOT_FAILED.to_owned(), "no room".to_owned());
    let (status, reason, message) = world.finishable();
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::SNAPSHOT_REQUIRED));
    assert!(message.contains("no room"), "{message}");
    // Whoever runs an external etcd takes snapshots of it.
    world.spec.datastore.etcd = None;
    world.workloads.remove(&ControlPlaneComponent::Etcd);
    for _ in 0..20 {
        world.goes_on();
    }
    assert_eq!(world.status.emulates, None);
}

#[test]
fn a_soak_is_made_longer_or_shorter_while_it_is_under_way() {
    let mut world = TestCluster::soaking();
    let since = world.status.soak_since.unwrap();
    world.spec.upgrade.soak = Span::minutes(48 * 60);
    world.status = world.status();
    assert_eq!((world.status.soak_since, world.status.soak_until), (Some(since), Some(since + HOUR * 48)));
    world.now = since + HOUR * 25;
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Soaking), "the old end does not count");
    assert_eq!(world.status.soak_until, Some(since + HOUR * 48));
    world.spec.upgrade.soak = Span::minutes(60);
    assert_eq!(world.status().soak_until, Some(since + HOUR));
    world.settle();
    assert_eq!((world.status.phase, world.status.emulates.as_deref()), (Some(ClusterPhase::Ready), None));

    // One that is longer than there is time.
    let mut world = TestCluster::soaking();
    world.spec.upgrade.soak = Span(std::time::Duration::from_secs(u64::MAX / 4));
    assert_eq!(world.status().soak_until, Some(Timestamp::MAX));
    // Of a status that was written before its beginning was recorded.
    let mut world = TestCluster::soaking();
    (world.status.soak_since, world.status.soak_until) = (None, Some(NOW + HOUR * 3));
    let status = world.status();
    assert_eq!((status.soak_since, status.soak_until), (Some(NOW - HOUR * 21), Some(NOW + HOUR * 3)));
}

#[test]
fn no_soak_starts_or_ends_while_a_cluster_is_paused() {
    let mut world = TestCluster::soaked();
    world.surveyed(|_| {});
    world.spec.paused = true;
    let status = world.status_while_paused();
    assert_eq!((status.emulates.as_deref(), status.soak_until), (Some("1.36"), world.status.soak_until));
    assert_eq!(status.phase, Some(ClusterPhase::Soaking));
    let finishable = condition(&status.conditions, names::UPGRADE_COMPLETABLE).unwrap();
    assert_eq!((finishable.status, finishable.reason.as_str()), (Status::Unknown, names::reasons::PAUSED));
    // Not at once when it is resumed: everything is looked at first.
    world.spec.paused = false;
    world.now += HOUR;
    world.proven();
    assert_eq!(world.status().emulates.as_deref(), Some("1.36"));
    assert!(world.decide().soak.ask.is_some());
    world.settle();
    assert_eq!((world.status.phase, world.status.emulates.as_deref()), (Some(ClusterPhase::Ready), None));
    // One that arrives while it is paused soaks from the moment on at which it is not.
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    while world.status().package_version.as_deref() != Some("v1.37") {
        world.goes_on();
    }
    world.spec.paused = true;
    let status = world.status_while_paused();
    assert_eq!((status.package_version.as_deref(), status.soak_until), (Some("v1.36"), None));
    world.spec.paused = false;
    assert_eq!(world.status().soak_until, Some(NOW + HOUR * 24));
    // Nor is the restart without emulation taken for done while it is paused.
    let mut world = TestCluster::past_the_soak();
    let (package_version, emulated) = ("v1.37".to_owned(), "1.36".to_owned());
    world.status.finishing = Some(FinishingUpgrade { package_version, emulated, since: world.now });
    world.spec.paused = true;
    assert!(world.status_while_paused().finishing.is_some());
    world.spec.paused = false;
    assert!(world.status().finishing.is_none());
}

#[test]
fn nothing_else_is_under_way_when_a_soak_ends() {
    let ready = || {
        let mut world = TestCluster::soaked();
        world.surveyed(|_| {});
        world.snapshotted();
        let (now, until) = (world.now, world.status.soak_until.unwrap());
        let last = world.status.last_snapshot.as_mut().unwrap();
        (last.purpose, last.at) = (Some(format!("soak/v1.37/{until}")), now);
        assert!(world.decide().soak.ends.is_some());
        world
    };
    let stays = |reason: &str, spoil: &dyn Fn(&mut TestCluster)| {
        let mut world = ready();
        spoil(&mut world);
        let decision = world.decide();
        assert!(decision.soak.ends.is_none() && decision.soak.snapshot.is_none(), "{reason}");
        assert_eq!(decision.soak.condition.as_ref().map(|one| one.1), Some(reason));
        let status = world.status();
        assert_eq!((status.emulates.as_deref(), status.finishing), (Some("1.36"), None), "{reason}");
    };
    use names::reasons::{CHANGE_IN_PROGRESS, NOT_VERIFIED, QUORUM_LOST};
    let etcd = ControlPlaneComponent::Etcd;
    stays(CHANGE_IN_PROGRESS, &|world| world.workloads.get_mut(&etcd).unwrap().replicas[0].ready = false);
    stays(QUORUM_LOST, &|world| {
        world.workloads.get_mut(&etcd).unwrap().replicas.iter_mut().take(2).for_each(|one| one.ready = false);
    });
    stays(CHANGE_IN_PROGRESS, &|world| {
        let servers = &world.workloads[&ControlPlaneComponent::Apiserver].replicas;
        world.proofs.get_mut(&servers[0].uid).unwrap().outcome = Err("it lies".to_owned());
    });
    stays(NOT_VERIFIED, &|world| {
        let servers = &world.workloads[&ControlPlaneComponent::Apiserver].replicas;
        world.proofs.get_mut(&servers[0].uid).unwrap().at = world.now - HOUR;
    });
    stays(CHANGE_IN_PROGRESS, &|world| {
        world.status.restoring = Some(fleetwright_api::Restoring {
            snapshot: "good".to_owned(),
            stage: fleetwright_api::RestoreStage::Checking,
            started_at: world.now,
            data_time: None,
            package_version: None,
            kubernetes: None,
            etcd: None,
        });
    });
    stays(CHANGE_IN_PROGRESS, &|world| {
        let (value, phase) = ("1".to_owned(), fleetwright_api::RotationPhase::Trusting);
        world.status.rotation = Some(fleetwright_api::Rotation { value, phase, since: world.now });
    });
    stays(CHANGE_IN_PROGRESS, &|world| {
        world.live.get_mut(&(Kind::Deployment, "kube-scheduler".to_owned())).unwrap()["spec"]["replicas"] = 7.into();
    });
    // Another package of the same minor comes first; the next minor comes after it.
    stays(CHANGE_IN_PROGRESS, &|world| {
        world.packages.insert("v1.37.2".to_owned(), package("1.37.2"));
        world.spec.package_version = "v1.37.2".to_owned();
    });
    let mut world = ready();
    world.packages.insert("v1.38".to_owned(), package("1.38.0"));
    world.spec.package_version = "v1.38".to_owned();
    assert!(world.decide().soak.ends.is_some());
}

#[test]
fn an_end_that_does_not_work_is_reported_and_not_taken_back() {
    let mut world = TestCluster::soaked();
    world.surveyed(|_| {});
    while world.status.finishing.is_none() {
        world.goes_on();
    }
    // The API servers never become ready without emulation.
    let broken = |world: &mut TestCluster| {
        world.goes_on();
        for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
            replica.ready = false;
        }
    };
    (0..5).for_each(|_| broken(&mut world));
    let progress = world.status.progress.clone().unwrap();
    assert_eq!((progress.id.as_deref(), progress.since), (Some("v1.37/soak"), world.now));
    assert_eq!(
        (world.status.phase, world.finishable().1.as_str()),
        (Some(ClusterPhase::Upgrading), names::reasons::COMPLETING_UPGRADE)
    );
    let until = world.now + SignedDuration::from_mins(10);
    assert!(world.decide().next.is_some_and(|next| next <= until), "it is looked at in time");
    world.now = until;
    broken(&mut world);
    assert_eq!(
        (world.finishable().0, world.finishable().1.as_str()),
        (Status::False, names::reasons::UPGRADE_COMPLETION_FAILED)
    );
    assert_eq!((world.status.phase, &world.status.failed), (Some(ClusterPhase::Degraded), &None));
    assert!(!world.versions()[0], "it is not taken back");
    // Another minor has to wait; another package of this one may be the cure.
    for (name, kubernetes, goes) in [("v1.38", "1.38.0", false), ("v1.37.2", "1.37.2", true)] {
        world.packages.insert(name.to_owned(), package(kubernetes));
        world.spec.package_version = name.to_owned();
        let refused = world.decide().refused.map(|(reason, _)| reason);
        assert_eq!(refused != Some(names::reasons::UNSUPPORTED_UPGRADE_PATH), goes, "{name}: {refused:?}");
    }
    world.spec.package_version = "v1.37".to_owned();
    for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
        replica.ready = true;
    }
    world.settle();
    assert_eq!((world.status.phase, &world.status.finishing), (Some(ClusterPhase::Ready), &None));
}

#[test]
fn an_end_is_done_when_no_api_server_says_that_it_emulates() {
    let mut world = TestCluster::soaked();
    world.surveyed(|_| {});
    while world.status.finishing.is_none() {
        world.goes_on();
    }
    for _ in 0..10 {
        world.goes_on();
        world.proofs.values_mut().for_each(|proof| proof.emulates = Some("1.36".to_owned()));
    }
    assert!(world.status.finishing.is_some());
    assert!(
        world.status.waiting_for.as_ref().unwrap().contains("still emulates 1.36"),
        "{:?}",
        world.status.waiting_for
    );
    // Whoever takes over proves it again: what the status says of proofs does not tell what is emulated.
    world.proofs.clear();
    assert_eq!(world.decide().prove.len(), 2);
    assert!(world.status().finishing.is_some());
    world.settle();
    assert_eq!((world.status.phase, &world.status.finishing), (Some(ClusterPhase::Ready), &None));
}
