//! The plan of a change equals what is carried out.

use std::collections::BTreeSet;

use fleetwright_api::{CertificateStatus, Rotation, RotationPhase, SnapshotStatus};

use super::cluster_plan::{ClusterPlan, MemberPlan, SoakPlan, rehearse};
use super::*;
use crate::cluster::members::VolumeClaim;

impl TestCluster {
    fn rehearsed(&self) -> ClusterPlan {
        self.look(|seen| rehearse(seen, NOW))
    }

    fn etcd(&mut self) -> &mut EtcdDatastore {
        self.spec.datastore.etcd.as_mut().unwrap()
    }
}

#[test]
fn a_plan_has_the_stages_in_their_order_with_what_restarts_and_in_which_way() {
    let mut world = TestCluster::new();
    world.settle();
    assert!(world.rehearsed().stages.iter().all(|stage| stage.objects.is_empty() && stage.restarts == 0));
    world.spec.package_version = "v1.37".to_owned();
    let plan = world.rehearsed();
    assert!(plan.refused.is_none() && plan.findings.is_empty(), "{plan:#?}");
    let order: Vec<_> = plan.stages.iter().map(|stage| (stage.component, stage.restarts)).collect();
    assert_eq!(order.iter().map(|(component, _)| *component).collect::<Vec<_>>(), ControlPlaneComponent::ALL);
    assert_eq!(order.iter().map(|(_, restarts)| *restarts).collect::<Vec<_>>(), [0, 2, 2, 2], "etcd is the same");
    let server = &plan.stages[1];
    assert_eq!((server.from.as_deref(), server.to.as_str()), (Some("1.36.4"), "1.37.1"));
    assert!(server.how.contains("emulating 1.36"), "{}", server.how);
    let diff = &server.objects.iter().find(|object| object.kind == "Deployment").unwrap().diff;
    for line in [
        "-registry.example/kube-apiserver:v1.36.4",
        "+registry.example/kube-apiserver:v1.37.1",
        "+--emulated-version=1.36",
    ] {
        assert!(diff.lines().any(|own| own == line), "{line} in {diff}");
    }
    assert!(plan.back.keeps_writes && plan.back.message.contains("spec.upgrade.soak"), "{:?}", plan.back);
    assert!(plan.later.iter().any(|later| later.contains("APIs")), "{:?}", plan.later);
}

#[test]
fn what_is_planned_is_what_is_done() {
    let mut world = TestCluster::new();
    world.settle();
    for package in ["v1.37", "v1.36"] {
        world.spec.package_version = package.to_owned();
        let plan = world.rehearsed();
        let told: BTreeSet<_> = plan
            .stages
            .iter()
            .flat_map(|stage| &stage.objects)
            .map(|object| (object.kind.to_owned(), object.name.clone()))
            .collect();
        let steps = world.settle();
        let applied = steps.iter().flat_map(|step| &step.apply);
        let done: BTreeSet<_> =
            applied.map(|(object, _)| (object.kind.as_str().to_owned(), object.name.clone())).collect();
        assert_eq!(told, done, "to {package}");
        assert!(!done.is_empty());
    }
}

#[test]
fn a_plan_names_what_blocks_the_change() {
    let mut world = TestCluster::new();
    world.settle();
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[0].ready = false;
    world.spec.package_version = "v1.37".to_owned();
    let plan = world.rehearsed();
    assert_eq!(plan.findings[0].reason, names::reasons::MEMBERS_MISSING);
    assert_eq!(plan.stages.len(), 4, "and what would be done without it");
}

#[test]
fn past_the_soak_a_snapshot_is_offered_with_the_time_of_its_data() {
    let mut world = TestCluster::past_the_soak();
    world.spec.package_version = "v1.36".to_owned();
    world.status.last_snapshot = None;
    let plan = world.rehearsed();
    assert_eq!(plan.refused.as_ref().unwrap().reason, names::reasons::SOAK_ENDED);
    assert!(plan.restore.is_none() && plan.stages.is_empty());
    world.status.last_snapshot = Some(SnapshotStatus {
        name: "s-7".to_owned(),
        at: NOW,
        size: None,
        checked: true,
        generation: None,
        purpose: None,
        revision: None,
        key_id: None,
        etcd: None,
    });
    let restore = world.rehearsed().restore.unwrap();
    assert_eq!((restore.snapshot.as_str(), restore.data_time, restore.checked), ("s-7", NOW, true));
    assert_eq!(
        restore.patch["spec"],
        serde_json::json!({ "packageVersion": "v1.36", "restore": { "cluster": null, "allowUnencrypted": null, "snapshot": "s-7" } }),
        "a merge patch keeps fields of an earlier restore unless they are null"
    );
    // The patch is printed as an argument in single quotes.
    for name in ["s-7'; evil; '", "$(evil)", ""] {
        world.status.last_snapshot.as_mut().unwrap().name = name.to_owned();
        assert_eq!(world.rehearsed().restore, None, "{name:?}");
    }
    world.status.last_snapshot.as_mut().unwrap().name = "s-7".to_owned();
    assert!(world.rehearsed().restore.is_some());
    // Its etcd could not read one of a newer etcd.
    world.status.last_snapshot.as_mut().unwrap().etcd = Some("3.7.0".to_owned());
    assert!(world.rehearsed().restore.is_none());
}

#[test]
fn certificates_that_are_due_within_a_week_are_reported() {
    let mut world = TestCluster::new();
    world.settle();
    let day = SignedDuration::from_hours(24);
    let of = |name: &str, days: i64| CertificateStatus {
        name: name.to_owned(),
        not_after: NOW + day * i32::try_from(days).unwrap(),
    };
    world.status.certificates = vec![of("ca", 3), of("apiserver-tls", 36), of("etcd-peer-tls", 38)];
    let told = world.rehearsed().certificates;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].name.as_str(), told[0].replaced), ("apiserver-tls", NOW + day * 6));
}

#[test]
fn the_next_member_change_is_planned_with_what_blocks_it() {
    let mut world = TestCluster::new();
    world.etcd().members = 3;
    world.settle();
    let plan = world.rehearsed();
    assert!(plan.members.is_none() && plan.volumes.is_empty(), "{plan:#?}");
    for (to, action, member) in [(1, "Remove", "etcd-2"), (5, "Add", "etcd-3")] {
        world.etcd().members = to;
        let next = MemberPlan { from: 3, to, action, member: member.to_owned(), since: None, blocked: None };
        for paused in [true, false] {
            world.spec.paused = paused;
            let plan = world.rehearsed();
            assert_eq!(plan.members.as_ref(), Some(&next));
            assert!(plan.later.iter().any(|later| later.contains("were not asked")), "{:?}", plan.later);
        }
    }
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[0].ready = false;
    let plan = world.rehearsed();
    assert!(plan.later.iter().all(|later| !later.contains("were not asked")), "{:?}", plan.later);
    let next = plan.members.unwrap();
    assert_eq!(next.blocked.as_deref(), Some("2 of 3 other etcd members are ready; all must be ready"));
    assert_eq!((next.action, next.member.as_str()), ("Add", "etcd-3"), "and what would be done without it");
}

#[test]
fn volumes_that_are_smaller_than_declared_are_planned() {
    let mut world = TestCluster::new();
    world.etcd().members = 3;
    world.settle();
    let claim = |number: u32| VolumeClaim {
        name: format!("data-etcd-{number}"),
        size: "1Gi".to_owned(),
        expandable: true,
        ..VolumeClaim::default()
    };
    world.claims = (0..3).map(claim).collect();
    world.etcd().storage.size.0 = "20Gi".to_owned();
    let plan = world.rehearsed();
    assert!(plan.members.is_none(), "{:?}", plan.members);
    let planned: Vec<_> = plan.volumes.into_iter().map(|one| (one.claim, one.from, one.to)).collect();
    let decided = world.decide().expand.into_iter().map(|(claim, size)| (claim.name, claim.size, size));
    assert_eq!(planned, decided.collect::<Vec<_>>());
    assert_eq!(planned.len(), 3);

    world.claims.iter_mut().for_each(|claim| claim.expandable = false);
    let plan = world.rehearsed();
    assert!(plan.volumes.iter().all(|one| one.message.contains("replaced")), "{:?}", plan.volumes);
    let next = plan.members.unwrap();
    assert_eq!((plan.volumes.len(), next.action, next.member.as_str()), (3, "RecreateVolume", "etcd-2"));

    world.etcd().members = 1;
    let plan = world.rehearsed();
    assert_eq!(plan.volumes.len(), 1, "members that are removed get no larger volume: {:?}", plan.volumes);
    assert_eq!(plan.members.unwrap().action, "Remove");
    world.claims.iter_mut().for_each(|claim| claim.expandable = true);
    let plan = world.rehearsed();
    let planned: Vec<_> = plan.volumes.iter().map(|one| (one.claim.as_str(), one.message)).collect();
    assert_eq!(planned, [("data-etcd-0", "expanded in place")]);
}

#[test]
fn a_rotation_of_authorities_is_planned() {
    let mut world = TestCluster::new();
    world.settle();
    assert_eq!(world.rehearsed().rotation, None);
    let value = "2026-11".to_owned();
    world.spec.certificates.rotate_authorities = Some(value.clone());
    let requested = world.rehearsed().rotation.unwrap();
    assert!(requested.starts_with("requested with the value 2026-11"), "{requested}");
    world.status.rotation = Some(Rotation { value, phase: RotationPhase::Trusting, since: NOW });
    let running = world.rehearsed().rotation.unwrap();
    assert!(running.contains("trusted beside the old ones"), "{running}");
}

#[test]
fn the_end_of_a_soak_is_planned_unless_another_package_version_is_declared() {
    let mut world = TestCluster::new();
    world.settle();
    assert_eq!(world.rehearsed().soak, None);
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    let until = world.status.soak_until.expect("it soaks");
    assert_eq!(world.rehearsed().soak, Some(SoakPlan { emulates: "1.36".to_owned(), until }));
    world.spec.package_version = "v1.36".to_owned();
    assert_eq!(world.rehearsed().soak, None);
}
