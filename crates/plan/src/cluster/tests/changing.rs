//! Other versions: the way there, and the way back.

use super::*;

#[test]
fn an_upgrade_goes_component_by_component_and_etcd_member_by_member() {
    let mut world = TestCluster::new();
    world.settle();
    let newer = ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.7.0");
    world.packages.insert("v1.37".to_owned(), newer);
    world.spec.package_version = "v1.37".to_owned();
    let steps = world.settle();
    let mut order = Vec::new();
    for step in &steps {
        order.extend(
            kinds(step).into_iter().filter(|(kind, _)| *kind != Kind::ConfigMap).map(|(_, name)| name.to_owned()),
        );
        order.extend(step.replace.iter().map(|member| format!("replace {}", member.name)));
    }
    order.dedup();
    let expected = [
        "etcd",
        "replace etcd-2",
        "replace etcd-1",
        "replace etcd-0",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    ];
    assert_eq!(order, expected);
    assert_eq!(
        (world.status.package_version.as_deref(), world.status.previous.as_deref()),
        (Some("v1.37"), Some("v1.36"))
    );
    // And back the same way.
    world.spec.package_version = "v1.36".to_owned();
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
}

pub(super) fn args(world: &TestCluster, deployment: &str) -> String {
    let object = &world.live[&(Kind::Deployment, deployment.to_owned())];
    object["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
}

#[test]
fn within_the_soak_it_goes_back_and_forth_as_often_as_one_likes() {
    let mut world = TestCluster::new();
    world.settle();
    for _ in 0..2 {
        world.spec.package_version = "v1.37".to_owned();
        world.settle();
        let reversible = condition(&world.status.conditions, names::ROLLBACK_POSSIBLE).unwrap();
        assert_eq!(reversible.status, Status::True, "{reversible:?}");
        world.spec.package_version = "v1.36".to_owned();
        world.settle();
        assert_eq!((world.status.package_version.as_deref(), world.status.emulates.as_deref()), (Some("v1.36"), None));
        assert!(!args(&world, "kube-apiserver").contains("emulated-version"));
    }
}

#[test]
fn an_upgrade_that_is_under_way_goes_back_from_any_stage() {
    for stage in 0..12 {
        let mut world = TestCluster::new();
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        for _ in 0..stage {
            let decision = world.decide();
            world.status = world.status();
            world.applied(&decision);
        }
        world.spec.package_version = "v1.36".to_owned();
        world.settle();
        assert_eq!(world.status.package_version.as_deref(), Some("v1.36"), "from stage {stage}");
        assert!(world.workloads.values().all(|workload| workload.package.as_deref() == Some("v1.36")));
    }
}

#[test]
fn etcd_does_not_go_back_to_a_minor_that_cannot_read_its_data() {
    let mut world = TestCluster::new();
    world
        .packages
        .insert("v1.37".to_owned(), ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.7.0"));
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    world.spec.package_version = "v1.36".to_owned();
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
    let etcd = &world.live[&(Kind::StatefulSet, "etcd".to_owned())];
    assert!(etcd.to_string().contains("etcd:v3.7.0"));
}

#[test]
fn no_member_of_etcd_is_replaced_while_another_does_not_work() {
    let mut world = TestCluster::new();
    world.settle();
    world
        .packages
        .insert("v1.37".to_owned(), ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.7.0"));
    world.spec.package_version = "v1.37".to_owned();
    world.snapshotted();
    let asks = world.decide();
    world.applied(&asks);
    let decision = world.decide();
    world.applied(&Decision { replace: None, ..decision });
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[0].ready = false;
    // The pod is old: recreating it with the new version costs nothing.
    assert_eq!(world.decide().replace.map(|member| member.name).as_deref(), Some("etcd-0"));
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[1].ready = false;
    assert_eq!(world.decide().replace, None);
}

#[test]
fn a_stage_that_does_not_work_in_time_is_taken_back_and_not_tried_again_until_somebody_asks() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    // The new API servers never become ready.
    let broken = |world: &mut TestCluster| {
        let decision = world.decide();
        let status = world.status();
        world.applied(&decision);
        world.status = status;
        for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
            replica.ready = decision.package != "v1.37";
        }
        decision
    };
    for _ in 0..10 {
        broken(&mut world);
    }
    let begun = world.status.progress.clone().unwrap();
    assert_eq!((begun.id.as_deref(), begun.since), (Some("v1.37/kube-apiserver"), NOW));
    assert!(begun.step.contains("kube-apiserver") && begun.step.contains("v1.37"), "{begun:?}");
    assert_eq!(world.status.phase, Some(ClusterPhase::Upgrading));
    let until = NOW + SignedDuration::from_mins(10);
    assert!(world.decide().next.is_some_and(|next| next <= until), "it is looked at in time");

    world.now = until;
    let decision = world.decide();
    let failed = decision.failed.clone().unwrap();
    assert!(failed.message.contains("kube-apiserver: 0 of 2"), "{failed:?}");
    assert!(decision.apply.is_empty() && decision.replace.is_none(), "it is written down before anything is done");
    world.status = world.status();
    assert_eq!(world.status.phase, Some(ClusterPhase::RollingBack));
    world.settle();
    let status = world.status.clone();
    assert_eq!((status.package_version.as_deref(), status.phase), (Some("v1.36"), Some(ClusterPhase::Ready)));
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::UPGRADE_FAILED));
    assert_eq!(status.failed, Some(failed));

    world.retry = Some("again".to_owned());
    world.settle();
    assert_eq!((world.status.package_version.as_deref(), &world.status.failed), (Some("v1.37"), &None));
    assert_eq!(world.status.observed_retry.as_deref(), Some("again"));
}

/// One on the way to v1.37, whose new API servers are not ready.
fn under_way() -> TestCluster {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    for _ in 0..10 {
        let (decision, status) = (world.decide(), world.status());
        world.applied(&decision);
        world.status = status;
        for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
            replica.ready = decision.package != "v1.37";
        }
    }
    assert_eq!(world.status.progress.as_ref().map(|progress| progress.since), Some(NOW));
    world
}

#[test]
fn the_time_in_which_a_cluster_was_paused_does_not_count_against_a_stage() {
    let (mut world, minute) = (under_way(), SignedDuration::from_mins(1));
    world.spec.paused = true;
    world.status = world.status_while_paused();
    world.now += minute * 30;
    world.status = world.status_while_paused();
    world.spec.paused = false;
    assert_eq!(world.decide().failed, None);
    world.status = world.status();
    assert_eq!(world.status.progress.as_ref().map(|progress| progress.since), Some(world.now));
    world.now += minute * 9;
    assert_eq!(world.decide().failed, None);
    world.now += minute;
    assert!(world.decide().failed.is_some());
}

#[test]
fn the_time_before_this_process_knew_a_cluster_does_not_count_against_a_stage() {
    let (mut world, minute) = (under_way(), SignedDuration::from_mins(1));
    world.now += minute * 30;
    world.extensions.since = Some(world.now);
    assert_eq!(world.decide().failed, None);
    world.now += minute * 9;
    assert_eq!(world.decide().failed, None);
    world.now += minute;
    assert!(world.decide().failed.is_some());
}

#[test]
fn what_failed_is_forgotten_when_another_is_asked_for_and_going_back_is_never_given_up() {
    let mut world = TestCluster::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    world.status.failed = Some(fleetwright_api::FailedChange {
        package_version: "v1.38".to_owned(),
        generation: Some(1),
        at: NOW,
        message: "it did not work".to_owned(),
    });
    assert_eq!(world.status().failed, None);

    world.spec.package_version = "v1.36".to_owned();
    let decision = world.decide();
    world.status = world.status();
    world.applied(&decision);
    world.now = NOW + SignedDuration::from_hours(5);
    assert!(world.decide().failed.is_none());
}

impl TestCluster {
    pub(super) fn status_while_paused(&self) -> ClusterStatus {
        let outlook = StatusInputs { generation: Some(1), paused: true, ..StatusInputs::default() };
        self.look(|seen| status(seen, &decide(seen, self.now), &outlook, self.now))
    }
}

#[test]
fn what_a_person_asks_of_a_paused_cluster_is_kept_for_later() {
    let mut world = TestCluster::new();
    world.settle();
    world.retry = Some("again".to_owned());
    world.spec.paused = true;
    world.spec.restore = Some(fleetwright_api::Restore { snapshot: "good".to_owned(), ..Default::default() });
    world.spec.certificates.rotate_authorities = Some("2026-11".to_owned());
    let status = world.status_while_paused();
    assert_eq!((status.observed_retry, status.restoring, status.rotation), (None, None, None));
    world.spec.paused = false;
    assert_eq!(world.status().observed_retry.as_deref(), Some("again"));
}
