//! How a cluster is made, and when it is proven.

use super::*;

#[test]
fn a_namespace_comes_first_then_authorities_then_what_they_sign_then_the_rest() {
    let mut world = TestCluster::new();
    world.namespace = false;
    world.keys = Some(keys::ObservedKeys::default());
    let decision = world.decide();
    assert!(decision.namespace && !decision.keys.acts() && decision.apply.is_empty());
    world.namespace = true;
    let decision = world.decide();
    assert!(
        !decision.namespace
            && decision.keys.generate.len() == keys::Key::all().count()
            && decision.certificates.is_empty()
    );
    world.keys = None;
    let wanted = certificates::required_certificates(&world.names, &world.spec, &[]);
    world.due = wanted.into_iter().map(|one| (one, RenewalReason::Missing)).collect();
    let decision = world.decide();
    assert!(decision.certificates.len() >= 10 && decision.apply.is_empty());
    world.due.clear();
    assert!(!world.decide().apply.is_empty());
}

#[test]
fn a_namespace_is_recorded_with_its_uid_when_it_exists_and_known_by_it_then() {
    let mut world = TestCluster::new();
    world.namespace = false;
    world.status = world.status();
    assert_eq!((&world.status.namespace, &world.status.namespace_uid), (&None, &None));
    assert!(!world.names.is_recorded(Some(&world.status), "namespace-uid"));
    world.namespace = true;
    world.status = world.status();
    assert_eq!(world.status.namespace.as_deref(), Some("fleet-pay"));
    assert_eq!(world.status.namespace_uid.as_deref(), Some("namespace-uid"));
    assert!(world.names.is_recorded(Some(&world.status), "namespace-uid"));
    assert!(!world.names.is_recorded(Some(&world.status), "another-uid"));
    // What is recorded of one that is deleted stays: the next one is another.
    world.namespace = false;
    assert_eq!(world.status().namespace_uid.as_deref(), Some("namespace-uid"));
    // An earlier version recorded the name.
    world.status.namespace_uid = None;
    assert!(world.names.is_recorded(Some(&world.status), "any-uid"));
    world.status.namespace = Some("fleet-other".to_owned());
    assert!(!world.names.is_recorded(Some(&world.status), "any-uid"));
    assert!(!world.names.is_recorded(None, "any-uid"));
}

#[test]
fn each_begins_when_it_finds_those_whom_it_needs() {
    let mut world = TestCluster::new();
    let of = |decision: &Decision| -> Vec<String> {
        let all = kinds(decision).into_iter().filter(|(kind, _)| matches!(kind, Kind::StatefulSet | Kind::Deployment));
        all.map(|(_, name)| name.to_owned()).collect()
    };
    let decision = world.decide();
    assert_eq!(of(&decision), ["etcd"]);
    world.applied(&decision);
    for member in &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas {
        (member.node, member.ready) = (None, false);
    }
    assert!(of(&world.decide()).is_empty(), "an API server would look for it too early");
    // A majority, on its nodes: ready or not.
    for member in world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas.iter_mut().skip(1) {
        member.node = Some("meta".to_owned());
    }
    let decision = world.decide();
    assert_eq!(of(&decision), ["kube-apiserver"]);
    world.applied(&decision);
    assert_eq!(of(&world.decide()), ["kube-controller-manager", "kube-scheduler"]);
    for member in &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas {
        (member.node, member.ready) = (Some("meta".to_owned()), true);
    }
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
}

#[test]
fn a_new_cluster_is_proven_when_those_run_whom_its_proof_waits_for() {
    let mut world = TestCluster::new();
    for _ in 0..3 {
        let decision = world.decide();
        assert!(decision.prove.is_empty(), "nobody would act on what is made");
        world.applied(&decision);
    }
    let scheduler = |world: &mut TestCluster, ready: bool, message: &str| {
        for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Scheduler).unwrap().replicas {
            (replica.ready, replica.message) = (ready, message.to_owned());
        }
    };
    scheduler(&mut world, false, "ContainerCreating");
    assert!(world.decide().prove.is_empty());
    // Whether it works, the proof will tell.
    scheduler(&mut world, false, "");
    assert_eq!(world.decide().prove.len(), 2);
    scheduler(&mut world, true, "");
    world.settle();
    // Later they are missed.
    scheduler(&mut world, false, "CrashLoopBackOff");
    world.proofs.clear();
    world.status.components.clear();
    assert_eq!(world.decide().prove.len(), 2);
}

#[test]
fn a_cluster_is_ready_only_when_every_api_server_is_proven() {
    let mut world = TestCluster::new();
    world.settle();
    let uid = world.proofs.keys().next().unwrap().clone();
    world.status = ClusterStatus::default();
    world.proofs.get_mut(&uid).unwrap().outcome = Err("it lies".to_owned());
    let status = world.status();
    let ready = condition(&status.conditions, names::READY).unwrap();
    assert_eq!((ready.status, status.phase), (Status::False, Some(ClusterPhase::Creating)));
    assert!(status.waiting_for.unwrap().contains("it lies"));
}

#[test]
fn what_was_proven_of_a_container_says_nothing_of_the_one_after_it() {
    let mut world = TestCluster::new();
    world.settle();
    assert!(world.decide().prove.is_empty());
    let servers = &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas;
    servers[0].restarts = 1;
    let name = servers[0].name.clone();
    let decision = world.decide();
    assert_eq!(decision.prove.len(), 1);
    assert_eq!(decision.waiting[0].0, ControlPlaneComponent::Apiserver);
    assert!(decision.waiting[0].1.contains(&name), "{:?}", decision.waiting);
}

#[test]
fn what_was_proven_before_a_restart_of_the_operator_counts_in_its_time() {
    let mut world = TestCluster::new();
    world.settle();
    world.proofs.clear();
    assert!(world.decide().prove.is_empty() && world.decide().waiting.is_empty());
    for component in &mut world.status.components {
        for replica in &mut component.replicas {
            replica.verified_at = replica.verified_at.map(|at| at - SignedDuration::from_hours(4));
        }
    }
    assert_eq!(world.decide().prove.len(), 2);
}

#[test]
fn one_member_is_enough_where_one_is_asked_for() {
    let mut world = TestCluster::new();
    world.spec.replicas = 1;
    world.spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
}

#[test]
fn what_is_as_it_should_be_is_remembered_until_something_of_it_changes() {
    let mut world = TestCluster::new();
    world.settle();
    let all: Vec<_> = world.decide().rested.into_keys().collect();
    assert_eq!(all, ControlPlaneComponent::ALL);
    let deployment = (Kind::Deployment, "kube-scheduler".to_owned());
    world.live.get_mut(&deployment).unwrap()["spec"]["replicas"] = 7.into();
    let decision = world.decide();
    assert_eq!(decision.apply.len(), 1);
    assert!(!decision.rested.contains_key(&ControlPlaneComponent::Scheduler));
    assert_eq!(decision.rested.len(), 3);
    world.settle();
    world.spec.network.pods = "10.99.0.0/16".to_owned();
    assert!(!world.decide().rested.contains_key(&ControlPlaneComponent::ControllerManager));
}
