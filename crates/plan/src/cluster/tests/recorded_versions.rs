//! Package versions, or the StatefulSet of etcd, that somebody deletes: what runs is known from the record.

use super::changing::args;
use super::*;

const ETCD: ControlPlaneComponent = ControlPlaneComponent::Etcd;

fn with_etcd(kubernetes: &str, etcd: &str) -> ClusterPackageVersionSpec {
    ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd)
}

impl TestCluster {
    /// One that soaks with the next minor, which has a newer etcd.
    fn with_newer_etcd() -> Self {
        let mut world = Self::new();
        world.packages.insert("v1.37".to_owned(), with_etcd("1.37.1", "3.7.0"));
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        world.settle();
        assert_eq!(world.opened(), (Some("3.7.0"), Some("v1.37")));
        world
    }

    /// One that came back from there. Its etcd stays newer.
    pub(super) fn rolled_back() -> Self {
        let mut world = Self::with_newer_etcd();
        world.spec.package_version = "v1.36".to_owned();
        world.settle();
        assert_eq!(
            (world.status.package_version.as_deref(), world.status.phase),
            (Some("v1.36"), Some(ClusterPhase::Ready))
        );
        assert!(world.etcd_image().ends_with("etcd:v3.7.0"), "{}", world.etcd_image());
        world
    }

    /// The version of etcd that is recorded, and the package version that it was made from.
    pub(super) fn opened(&self) -> (Option<&str>, Option<&str>) {
        let etcd = self.status.etcd.as_ref().unwrap();
        (etcd.version.as_deref(), etcd.package_version.as_deref())
    }

    /// As a status was written that knows nothing of versions.
    fn unrecorded(&mut self) {
        let etcd = self.status.etcd.as_mut().unwrap();
        (etcd.version, etcd.package_version, self.status.kubernetes) = (None, None, None);
    }

    pub(super) fn etcd_image(&self) -> String {
        let set = &self.live[&(Kind::StatefulSet, "etcd".to_owned())];
        set["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
    }

    /// As after `kubectl delete statefulset etcd --cascade=orphan`, by a person or by the operator.
    fn delete_set(&mut self) {
        self.live.remove(&(Kind::StatefulSet, "etcd".to_owned())).unwrap();
        self.workloads.get_mut(&ETCD).unwrap().package = None;
    }

    fn delete_package(&mut self, name: &str) -> ClusterPackageVersionSpec {
        self.packages.remove(name).unwrap()
    }

    pub(super) fn condition(&self, type_: &str) -> (Status, String, String) {
        let status = self.status();
        let one = condition(&status.conditions, type_).unwrap();
        (one.status, one.reason.clone(), one.message.clone())
    }
}

fn makes_etcd(decision: &Decision) -> bool {
    kinds(decision).iter().any(|(kind, _)| *kind == Kind::StatefulSet) || decision.replace.is_some()
}

/// One that has that many members and is on the way to a newer minor of etcd, with which the container of one member does not work.
struct BrokenEtcdUpgrade {
    world: TestCluster,
    member: &'static str,
    /// Its container starts and ends again; otherwise its image cannot be pulled.
    starts: bool,
}

impl BrokenEtcdUpgrade {
    fn new(members: u32, member: &'static str, starts: bool) -> Self {
        let mut world = TestCluster::new();
        world.packages.insert("v1.37".to_owned(), with_etcd("1.37.1", "3.7.0"));
        world.spec.datastore.etcd.as_mut().unwrap().members = members;
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        let mut broken = Self { world, member, starts };
        broken.passes();
        assert!(broken.world.etcd_image().ends_with("etcd:v3.7.0"), "{}", broken.world.etcd_image());
        assert!(!broken.member().ready);
        broken
    }

    fn member(&mut self) -> &mut Replica {
        let members = &mut self.world.workloads.get_mut(&ETCD).unwrap().replicas;
        members.iter_mut().find(|member| member.name == self.member).unwrap()
    }

    fn passes(&mut self) {
        for _ in 0..30 {
            let (decision, status) = (self.world.decide(), self.world.status());
            self.world.applied(&decision);
            self.world.status = status;
            if decision.replace.is_some_and(|pod| pod.name == self.member) {
                let works = decision.desired[&ETCD] != "3.7.0";
                let has_run = works || self.starts;
                let member = self.member();
                (member.ready, member.has_run) = (works, has_run);
                member.message = if works { String::new() } else { "it does not work".to_owned() };
            }
        }
    }
}

#[test]
fn a_newer_etcd_that_one_member_never_started_with_is_taken_back() {
    for (members, member) in [(1, "etcd-0"), (3, "etcd-2"), (3, "etcd-0")] {
        for by_hand in [false, true] {
            let mut broken = BrokenEtcdUpgrade::new(members, member, false);
            assert_eq!(broken.world.opened(), (Some("3.6.16"), Some("v1.36")));
            match by_hand {
                true => "v1.36".clone_into(&mut broken.world.spec.package_version),
                false => broken.world.now += SignedDuration::from_mins(10),
            }
            broken.passes();
            let mut world = broken.world;
            world.settle();
            let case = format!("{member} of {members}, by hand: {by_hand}");
            assert_eq!(world.status.failed.is_some(), !by_hand, "{case}");
            assert!(world.etcd_image().ends_with("etcd:v3.6.16"), "{case}: {}", world.etcd_image());
            assert_eq!(world.opened(), (Some("3.6.16"), Some("v1.36")), "{case}");
            assert_eq!(world.status.phase, Some(ClusterPhase::Ready), "{case}");
        }
    }
}

#[test]
fn a_newer_etcd_that_all_members_started_with_stays_and_it_says_so() {
    for (members, member) in [(1, "etcd-0"), (3, "etcd-0")] {
        let mut broken = BrokenEtcdUpgrade::new(members, member, true);
        assert_eq!(broken.world.opened(), (Some("3.7.0"), Some("v1.37")));
        "v1.36".clone_into(&mut broken.world.spec.package_version);
        broken.passes();
        assert!(broken.world.etcd_image().ends_with("etcd:v3.7.0"), "{}", broken.world.etcd_image());
        let waits = broken.world.status.waiting_for.clone().unwrap();
        assert!(waits.contains("stays at v1.37") && waits.contains("3.6.16"), "{waits}");
    }
    // With one that still has the old etcd, also a container that started changed nothing.
    let mut broken = BrokenEtcdUpgrade::new(3, "etcd-2", true);
    assert_eq!(broken.world.opened(), (Some("3.6.16"), Some("v1.36")));
    "v1.36".clone_into(&mut broken.world.spec.package_version);
    broken.passes();
    assert!(broken.world.etcd_image().ends_with("etcd:v3.6.16"), "{}", broken.world.etcd_image());
}

#[test]
fn a_newer_etcd_that_all_members_started_with_stays_though_its_arguments_change_meanwhile() {
    let mut broken = BrokenEtcdUpgrade::new(3, "etcd-0", false);
    for member in &mut broken.world.workloads.get_mut(&ETCD).unwrap().replicas {
        (member.has_run, member.runs) = (true, Some("3.7.0".to_owned()));
    }
    let args = [("snapshot-count".to_owned(), "5000".to_owned())].into();
    broken.world.spec.components.etcd = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    let decision = broken.world.decide();
    broken.world.applied(&Decision { replace: None, ..decision });
    broken.world.status = broken.world.status();
    assert_eq!(broken.world.opened(), (Some("3.7.0"), Some("v1.37")));
}

#[test]
fn a_newer_etcd_stays_as_it_is_when_its_package_version_is_deleted() {
    let mut world = TestCluster::rolled_back();
    let deleted = world.delete_package("v1.37");
    let decision = world.decide();
    assert!(!makes_etcd(&decision) && decision.orphan.is_none(), "{:?}", kinds(&decision));
    let (status, reason, message) = world.condition(names::MEMBERS_UP_TO_DATE);
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::PACKAGE_VERSION_NOT_FOUND));
    for part in ["etcd 3.7.0", "etcd 3.6.16", "v1.36", "ClusterPackageVersion v1.37", "create it again"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    // Volumes that are to grow wait for it too: their StatefulSet could not be made again.
    world.spec.datastore.etcd.as_mut().unwrap().storage.size.0 = "20Gi".to_owned();
    let steps = world.settle();
    assert!(steps.iter().all(|step| !makes_etcd(step) && step.orphan.is_none()));
    assert!(world.status.waiting_for.as_ref().unwrap().contains("v1.37"), "{:?}", world.status.waiting_for);
    assert_eq!(world.opened(), (Some("3.7.0"), Some("v1.37")));
    // It is as declared again when the package version is back.
    world.packages.insert("v1.37".to_owned(), deleted);
    assert!(world.decide().orphan.is_some());
    world.delete_set();
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
    assert!(world.etcd_image().ends_with("etcd:v3.7.0"), "{}", world.etcd_image());
}

#[test]
fn a_statefulset_that_is_deleted_comes_back_with_the_etcd_that_its_data_is_of() {
    // Growing volumes delete it as well.
    for grows in [false, true] {
        let mut world = TestCluster::rolled_back();
        if grows {
            world.spec.datastore.etcd.as_mut().unwrap().storage.size.0 = "20Gi".to_owned();
            assert!(world.decide().orphan.is_some());
        }
        world.delete_set();
        assert!(makes_etcd(&world.decide()));
        world.settle();
        assert!(world.etcd_image().ends_with("etcd:v3.7.0"), "{}", world.etcd_image());
        assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
        assert_eq!(world.opened(), (Some("3.7.0"), Some("v1.37")));
    }
}

#[test]
fn a_statefulset_is_not_made_again_without_the_package_version_that_its_data_needs() {
    let mut world = TestCluster::rolled_back();
    let deleted = world.delete_package("v1.37");
    world.delete_set();
    let steps = world.settle();
    assert!(steps.iter().all(|step| !makes_etcd(step)));
    assert!(!world.live.contains_key(&(Kind::StatefulSet, "etcd".to_owned())));
    assert!(world.status.waiting_for.as_ref().unwrap().contains("v1.37"), "{:?}", world.status.waiting_for);
    world.packages.insert("v1.37".to_owned(), deleted);
    world.settle();
    assert!(world.etcd_image().ends_with("etcd:v3.7.0"), "{}", world.etcd_image());
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
}

#[test]
fn what_runs_is_recorded_of_a_cluster_of_before_and_nothing_is_deleted_until_then() {
    let mut world = TestCluster::rolled_back();
    world.unrecorded();
    world.spec.datastore.etcd.as_mut().unwrap().storage.size.0 = "20Gi".to_owned();
    assert!(world.decide().orphan.is_none(), "it would not be known what to make again");
    world.status = world.status();
    assert_eq!(world.opened(), (Some("3.7.0"), Some("v1.37")));
    assert_eq!(world.status.kubernetes.as_deref(), Some("1.36.4"));
    assert!(world.decide().orphan.is_some());

    // Its package version is already deleted: the recorded version counts, and without a record etcd is left unchanged.
    let mut world = TestCluster::rolled_back();
    world.unrecorded();
    world.delete_package("v1.37");
    let held = world.decide().held.unwrap();
    assert!(held.contains("etcd 3.7.0") && held.contains("ClusterPackageVersion v1.37"), "{held}");
    world.status.components.clear();
    let decision = world.decide();
    assert!(!makes_etcd(&decision), "{:?}", kinds(&decision));
    assert!(decision.held.unwrap().contains("create v1.37"));
}

#[test]
fn no_statefulset_goes_for_larger_volumes_before_the_newer_etcd_that_it_runs_is_recorded() {
    let mut world = TestCluster::with_newer_etcd();
    let record = world.status.etcd.as_mut().unwrap();
    (record.version, record.package_version) = (Some("3.6.16".to_owned()), Some("v1.36".to_owned()));
    world.spec.datastore.etcd.as_mut().unwrap().storage.size.0 = "20Gi".to_owned();
    assert!(world.decide().orphan.is_none(), "it would come back as the older one");
    world.status = world.status();
    assert_eq!(world.opened(), (Some("3.7.0"), Some("v1.37")));
    assert!(world.decide().orphan.is_some());
}

#[test]
fn a_rollback_goes_on_without_the_package_version_that_it_leaves_and_etcd_stays() {
    let mut world = TestCluster::with_newer_etcd();
    let deleted = world.delete_package("v1.37");
    world.spec.package_version = "v1.36".to_owned();
    let steps = world.settle();
    assert!(steps.iter().all(|step| !makes_etcd(step)));
    for (component, workload) in &world.workloads {
        let expected = if *component == ETCD { "v1.37" } else { "v1.36" };
        assert_eq!(workload.package.as_deref(), Some(expected), "{component}");
    }
    assert!(world.status.waiting_for.as_ref().unwrap().contains("v1.37"), "{:?}", world.status.waiting_for);
    world.packages.insert("v1.37".to_owned(), deleted);
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
}

#[test]
fn another_package_version_must_have_the_etcd_that_the_data_needs_if_the_one_before_is_deleted() {
    let mut world = TestCluster::rolled_back();
    world.delete_package("v1.37");
    world.packages.insert("v1.36b".to_owned(), with_etcd("1.36.5", "3.6.17"));
    world.packages.insert("v1.36c".to_owned(), with_etcd("1.36.5", "3.7.1"));
    world.spec.package_version = "v1.36b".to_owned();
    let decision = world.decide();
    assert_eq!((decision.package.as_str(), decision.apply.len()), ("v1.36", 0));
    assert_eq!(decision.refused.unwrap().0, names::reasons::PACKAGE_VERSION_NOT_FOUND);
    world.spec.package_version = "v1.36c".to_owned();
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36c"));
    assert_eq!(world.opened(), (Some("3.7.1"), Some("v1.36c")));
}

#[test]
fn two_minors_stay_too_far_when_the_package_version_that_it_has_is_deleted() {
    let mut world = TestCluster::new();
    world.settle();
    assert_eq!(world.status.kubernetes.as_deref(), Some("1.36.4"));
    world.packages.insert("v1.38".to_owned(), package("1.38.0"));
    world.spec.package_version = "v1.38".to_owned();
    let deleted = world.delete_package("v1.36");
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.package == "v1.36", "{:?}", kinds(&decision));
    let (status, reason, message) = world.condition(names::UPGRADABLE);
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::UNSUPPORTED_UPGRADE_PATH));
    for part in ["1.37 first", "ClusterPackageVersion v1.36"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let plan = world.look(|seen| cluster_plan::rehearse(seen, NOW));
    assert_eq!(plan.from.map(|from| from.kubernetes).as_deref(), Some("1.36.4"));
    assert_eq!(plan.refused.unwrap().reason, names::reasons::UNSUPPORTED_UPGRADE_PATH);
    assert!(world.settle().iter().all(|step| step.apply.is_empty()));
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
    world.packages.insert("v1.36".to_owned(), deleted);
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
}

#[test]
fn an_upgrade_from_a_deleted_package_version_has_its_checks_its_snapshot_and_its_emulation() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.delete_package("v1.36");
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.preflight.ask.is_some(), "{:?}", decision.preflight);
    let steps = world.settle();
    let snapshot = steps.iter().position(|step| step.snapshot.is_some()).unwrap();
    let first = steps.iter().position(|step| !step.apply.is_empty()).unwrap();
    assert!(snapshot < first, "{snapshot} {first}");
    let status = &world.status;
    assert_eq!((status.package_version.as_deref(), status.emulates.as_deref()), (Some("v1.37"), Some("1.36")));
    assert_eq!((status.kubernetes.as_deref(), status.phase), (Some("1.37.1"), Some(ClusterPhase::Soaking)));
    assert!(args(&world, "kube-apiserver").contains("emulated-version=1.36"));
}

#[test]
fn nothing_is_changed_while_it_is_not_known_which_version_a_cluster_has() {
    let mut world = TestCluster::new();
    world.settle();
    world.unrecorded();
    world.spec.package_version = "v1.37".to_owned();
    let deleted = world.delete_package("v1.36");
    // What its API servers said is recorded.
    assert_eq!(world.status().kubernetes.as_deref(), Some("1.36.4"));
    world.status.components.clear();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.emulates.is_none(), "{:?}", kinds(&decision));
    let (status, reason, message) = world.condition(names::UPGRADABLE);
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::PACKAGE_VERSION_NOT_FOUND));
    assert!(message.contains("ClusterPackageVersion v1.36"), "{message}");
    assert_eq!(world.status().package_version.as_deref(), Some("v1.36"));
    world.packages.insert("v1.36".to_owned(), deleted);
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.37"));
}

#[test]
fn an_upgrade_is_no_rollback_when_the_package_version_that_it_leaves_is_deleted() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    // The new API servers never become ready.
    for _ in 0..10 {
        let decision = world.decide();
        let status = world.status();
        world.applied(&decision);
        world.status = status;
        for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
            replica.ready = decision.package != "v1.37";
        }
    }
    assert_eq!(world.status.progress.as_ref().unwrap().since, NOW);
    let deleted = world.delete_package("v1.36");
    let decision = world.decide();
    assert_eq!((decision.package.as_str(), decision.emulates.as_deref()), ("v1.37", Some("1.36")));
    let until = NOW + SignedDuration::from_mins(10);
    assert!(decision.next.is_some_and(|next| next <= until), "it is looked at in time");
    // There is nothing to take it back to, and that is said.
    world.now = until;
    let decision = world.decide();
    assert_eq!(decision.failed, None);
    let message = decision.progress.unwrap().message;
    assert!(message.contains("no automatic rollback") && message.contains("ClusterPackageVersion v1.36"), "{message}");
    world.packages.insert("v1.36".to_owned(), deleted);
    assert!(world.decide().failed.is_some());
}

#[test]
fn an_upgrade_to_the_package_version_that_etcd_stayed_at_has_its_checks_and_its_snapshot_again() {
    let mut world = TestCluster::rolled_back();
    let every = fleetwright_api::Span::seconds(0);
    world.spec.snapshots = Some(fleetwright_api::Snapshots { every, ..Default::default() });
    world.now += SignedDuration::from_hours(48);
    world.known.survey = None;
    world.spec.package_version = "v1.37".to_owned();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.preflight.ask.is_some(), "{:?}", kinds(&decision));
    let steps = world.settle();
    let snapshot = steps.iter().position(|step| step.snapshot.is_some()).unwrap();
    let first = steps.iter().position(|step| !step.apply.is_empty()).unwrap();
    assert!(snapshot < first, "{snapshot} {first}");
    assert_eq!(world.status.package_version.as_deref(), Some("v1.37"));
}

#[test]
fn an_etcd_that_no_member_started_with_is_not_recorded_when_its_package_version_is_created_again() {
    let mut world = TestCluster::new();
    world.spec.datastore.etcd.as_mut().unwrap().members = 1;
    world.settle();
    let kept = world.packages.insert("v1.36".to_owned(), with_etcd("1.36.4", "3.7.0")).unwrap();
    let (decision, status) = (world.decide(), world.status());
    world.applied(&decision);
    world.status = status;
    let member = &mut world.workloads.get_mut(&ETCD).unwrap().replicas[0];
    (member.ready, member.has_run) = (false, false);
    assert_eq!(world.opened(), (Some("3.6.16"), Some("v1.36")));
    world.packages.insert("v1.36".to_owned(), kept);
    let decision = world.decide();
    assert_eq!((&decision.held, decision.replace.map(|one| one.name).as_deref()), (&None, Some("etcd-0")));
}

#[test]
fn a_package_version_that_is_created_again_with_another_minor_is_not_followed() {
    let mut world = TestCluster::new();
    world.settle();
    let kept = world.packages.insert("v1.36".to_owned(), package("1.38.0")).unwrap();
    assert!(world.settle().iter().all(|step| step.apply.is_empty()));
    let (status, reason, message) = world.condition(names::UPGRADABLE);
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::PACKAGE_VERSION_NOT_FOUND));
    assert!(message.contains("1.36.4"), "{message}");
    assert_eq!(world.status.kubernetes.as_deref(), Some("1.36.4"));
    world.packages.insert("v1.36".to_owned(), kept);
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
}
