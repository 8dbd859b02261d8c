//! What is looked at before a change.

use super::preflight::PreflightFinding;
use super::survey::{Quota, RemovedApi, Survey};
use super::*;

impl TestCluster {
    /// A cluster without other changes for which the next minor is declared.
    fn asked() -> Self {
        let mut world = Self::new();
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        world.snapshotted();
        world
    }

    /// What was found out for the change that is about to begin.
    fn told(&mut self, change: impl FnOnce(&mut Survey)) {
        self.known.survey = None;
        let ask = self.decide().preflight.ask.unwrap();
        let (apis, quotas, kubelets) = (Ok(Default::default()), Ok(Vec::new()), Ok(Default::default()));
        let mut survey = Survey { of: ask.of, at: self.now, apis, quotas, kubelets };
        change(&mut survey);
        self.known.survey = Some(survey);
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.decide().preflight.findings.iter().map(|finding| finding.reason).collect()
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
fn nothing_is_touched_before_it_is_known_what_callers_use() {
    let mut world = TestCluster::asked();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.preflight.ask.as_ref().unwrap().servers.len() == 2);
    let status = world.status();
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!(
        (upgradable.status, upgradable.reason.as_str()),
        (Status::Unknown, names::reasons::PREFLIGHT_CHECKS_RUNNING)
    );
    assert_eq!(status.package_version.as_deref(), Some("v1.36"));
    world.told(|_| {});
    assert!(!world.decide().apply.is_empty(), "{:?}", world.decide());
}

#[test]
fn an_api_that_goes_and_is_used_holds_the_change_back_until_somebody_overrides_it_for_this_change() {
    let mut world = TestCluster::asked();
    world.told(|survey| survey.apis = Ok([removed()].into()));
    assert!(world.decide().apply.is_empty());
    let status = world.status();
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::REMOVED_APIS_IN_USE));
    for part in ["schemas of flow.example/v1beta1", "v1.37 is blocked", "RemovedAPIsInUse@v1.37", "rollout restart"] {
        assert!(upgradable.message.contains(part), "{part} in {}", upgradable.message);
    }
    for (annotation, goes) in [
        ("RemovedAPIsInUse", false),
        ("RemovedAPIsInUse@v1.36", false),
        ("InsufficientResources@v1.37", false),
        ("InsufficientResources@v1.37, RemovedAPIsInUse@v1.37", true),
    ] {
        world.known.overrides = Some(annotation.to_owned());
        assert_eq!(!world.decide().apply.is_empty(), goes, "{annotation}");
    }
    // The same API goes later than the minor that is asked for.
    world.known.overrides = None;
    world.told(|survey| survey.apis = Ok([RemovedApi { removed_release: "1.38".to_owned(), ..removed() }].into()));
    assert!(!world.decide().apply.is_empty());
}

fn kubelets(versions: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    versions.iter().map(|(node, version)| ((*node).to_owned(), (*version).to_owned())).collect()
}

#[test]
fn kubelets_that_would_be_too_old_hold_an_upgrade_back_and_are_named() {
    let mut world = TestCluster::asked();
    world.told(|survey| survey.kubelets = Ok(kubelets(&[("n1", "v1.33.9"), ("n2", "v1.34.0"), ("n3", "v1.36.4")])));
    assert!(world.decide().apply.is_empty());
    assert_eq!(world.reasons(), [names::reasons::KUBELET_TOO_OLD]);
    let message = world.decide().preflight.findings[0].message.clone();
    assert!(message.contains("n1 (v1.33.9)") && !message.contains("n2"), "{message}");
    // Nodes say their versions themselves: a person can override one that lies.
    world.known.overrides = Some("KubeletTooOld@v1.37".to_owned());
    assert!(!world.decide().apply.is_empty());
    world.known.overrides = None;
    world.told(|survey| survey.kubelets = Err("no answer".to_owned()));
    assert_eq!(world.reasons(), [names::reasons::KUBELET_VERSIONS_UNKNOWN]);
    let many: Vec<(String, String)> = (0..50).map(|n| (format!("n{n:02}"), "v1.30.0".to_owned())).collect();
    world.told(|survey| survey.kubelets = Ok(many.into_iter().collect()));
    let message = world.decide().preflight.findings[0].message.clone();
    assert!(message.contains("45 others"), "{message}");
}

#[test]
fn a_rollback_waits_for_kubelets_that_would_be_newer_than_their_api_server() {
    let mut world = TestCluster::asked();
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.37"));
    world.spec.package_version = "v1.36".to_owned();
    world.told(|survey| survey.kubelets = Ok(kubelets(&[("n1", "v1.37.1"), ("n2", "v1.36.4")])));
    assert!(world.decide().apply.is_empty());
    assert_eq!(world.reasons(), [names::reasons::KUBELET_TOO_NEW]);
    let status = world.status();
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert!(upgradable.message.contains("n1 (v1.37.1)"), "{}", upgradable.message);
    world.known.overrides = Some("KubeletTooNew@v1.36".to_owned());
    assert!(!world.decide().apply.is_empty());
    world.known.overrides = None;
    // Kubelets of which nothing is known hold no rollback back, and neither do API servers that do not answer.
    world.told(|survey| survey.kubelets = Err("no answer".to_owned()));
    assert!(!world.decide().apply.is_empty());
    world.known.survey = None;
    for server in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
        server.ready = false;
    }
    let preflight = world.decide().preflight;
    assert!(preflight.checking.is_none() && preflight.findings.is_empty(), "{preflight:?}");
}

#[test]
fn an_answer_counts_for_one_change_at_the_pods_of_then() {
    let mut world = TestCluster::asked();
    world.told(|survey| survey.apis = Ok([removed()].into()));
    assert_eq!(world.reasons(), [names::reasons::REMOVED_APIS_IN_USE]);
    let servers = &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas;
    servers[0].uid = "made anew".to_owned();
    let uid = servers[0].uid.clone();
    world.proofs.insert(uid, Proof { at: NOW, restarts: 0, outcome: Ok(String::new()), emulates: None, failing: None });
    let decision = world.decide();
    assert!(decision.preflight.ask.is_some() && decision.preflight.findings.is_empty());
    // What holds it back is asked again after a while, and holds it back until then.
    world.told(|survey| survey.apis = Ok([removed()].into()));
    assert!(world.decide().preflight.ask.is_none() && world.decide().next.is_some());
    let later = world.look(|seen| decide(seen, NOW + SignedDuration::from_mins(5)));
    assert!(later.preflight.ask.is_some() && later.apply.is_empty());
}

#[test]
fn what_is_not_well_is_not_upgraded() {
    let broken = |spoil: fn(&mut TestCluster)| {
        let mut world = TestCluster::asked();
        spoil(&mut world);
        world.told(|_| {});
        assert!(world.decide().apply.is_empty());
        world.decide().preflight.findings
    };
    let found =
        broken(|world| world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[1].ready = false);
    assert_eq!((found[0].reason, found[0].overridable), (names::reasons::MEMBERS_MISSING, true));
    let mut world = TestCluster::asked();
    let members = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
    members.iter_mut().take(2).for_each(|member| member.ready = false);
    let decision = world.decide();
    assert!(decision.refused.is_some() && !decision.preflight.begins && decision.apply.is_empty(), "no quorum");
    let found = broken(|world| {
        let uid = world.workloads[&ControlPlaneComponent::Apiserver].replicas[0].uid.clone();
        world.proofs.get_mut(&uid).unwrap().outcome = Err("it lies".to_owned());
    });
    assert_eq!(found.iter().map(|one| one.reason).collect::<Vec<_>>(), [names::reasons::NOT_VERIFIED]);
    let found = broken(|world| {
        let scheduler = &mut world.workloads.get_mut(&ControlPlaneComponent::Scheduler).unwrap().replicas[0];
        (scheduler.ready, scheduler.unplaced, scheduler.message) = (false, true, "0/3 nodes are available".to_owned());
    });
    assert_eq!(found[0].reason, names::reasons::INSUFFICIENT_RESOURCES);
    assert!(found[0].message.contains("0/3 nodes are available"));
}

#[test]
fn room_and_callers_that_are_not_known_hold_it_back() {
    let mut world = TestCluster::asked();
    let full = |what: &str, hard: &str, used: &str| Quota {
        name: "small".to_owned(),
        hard: [(what.to_owned(), hard.to_owned())].into(),
        used: [(what.to_owned(), used.to_owned())].into(),
    };
    world.told(|survey| survey.quotas = Ok(vec![full("pods", "9", "9")]));
    assert_eq!(world.reasons(), [names::reasons::INSUFFICIENT_RESOURCES]);
    world.told(|survey| survey.quotas = Ok(vec![full("requests.memory", "10Gi", "1Gi")]));
    assert!(world.reasons().is_empty());
    world.told(|survey| survey.apis = Err("no answer".to_owned()));
    assert_eq!(world.reasons(), [names::reasons::API_USAGE_UNKNOWN]);
}

#[test]
fn arguments_that_the_next_minor_does_not_know_cannot_be_overridden() {
    let mut world = TestCluster::asked();
    world.told(|_| {});
    let args = [("no-such".to_owned(), "1".to_owned())].into();
    world.spec.components.scheduler = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    world.known.overrides = Some("InvalidArgument@v1.37".to_owned());
    let decision = world.decide();
    let PreflightFinding { reason, message, overridden, .. } = &decision.preflight.findings[0];
    assert_eq!((*reason, *overridden), (names::reasons::INVALID_ARGUMENT, false));
    assert!(message.contains("kube-scheduler") && message.contains("no-such"), "{message}");
    assert_eq!(decision.package, "v1.36");
}

#[test]
fn what_has_begun_and_what_goes_back_is_not_held_back() {
    let mut world = TestCluster::asked();
    world.told(|_| {});
    let decision = world.decide();
    world.applied(&decision);
    world.known.survey = None;
    world.proofs.values_mut().for_each(|proof| proof.outcome = Err("it lies".to_owned()));
    let decision = world.decide();
    assert!(!decision.preflight.begins && decision.package == "v1.37");
    let mut world = TestCluster::asked();
    world.settle();
    world.spec.package_version = "v1.36".to_owned();
    // Nothing but kubelets that are newer holds a rollback back, whatever else is found or cannot be read.
    world.told(|survey| {
        survey.apis = Ok([removed()].into());
        survey.quotas = Err("no answer".to_owned());
    });
    let decision = world.decide();
    assert!(decision.preflight.findings.is_empty(), "{:?}", decision.preflight);
    assert!(decision.package == "v1.36" && !decision.apply.is_empty());
}

#[test]
fn what_was_found_long_ago_does_not_let_a_change_begin() {
    let mut world = TestCluster::asked();
    world.told(|_| {});
    let minute = SignedDuration::from_mins(1);
    for (minutes, begins) in [(0, true), (4, true), (5, false), (59, false)] {
        let decision = world.look(|seen| decide(seen, NOW + minute * minutes));
        assert_eq!(!decision.apply.is_empty(), begins, "after {minutes} minutes");
        assert_eq!(decision.preflight.ask.is_some(), !begins, "after {minutes} minutes");
    }
    // It is asked again, and what is found now counts.
    world.now = NOW + minute * 59;
    let status = world.status();
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!(
        (upgradable.status, upgradable.reason.as_str()),
        (Status::Unknown, names::reasons::PREFLIGHT_CHECKS_RUNNING)
    );
    world.told(|survey| survey.kubelets = Ok(kubelets(&[("n1", "v1.33.9")])));
    assert_eq!(world.reasons(), [names::reasons::KUBELET_TOO_OLD]);
    // While its snapshot is taken nothing starts, and the survey is not repeated again and again.
    world.status.last_snapshot = None;
    world.told(|_| {});
    world.now += minute * 60;
    let decision = world.decide();
    assert!(decision.preflight.ask.is_none() && decision.snapshot.is_some(), "{:?}", decision.preflight);
    // The same for a rollback.
    let mut world = TestCluster::asked();
    world.settle();
    world.spec.package_version = "v1.36".to_owned();
    world.told(|_| {});
    assert!(!world.decide().apply.is_empty());
    world.now += minute * 5;
    assert!(world.decide().apply.is_empty() && world.decide().preflight.ask.is_some());
}
