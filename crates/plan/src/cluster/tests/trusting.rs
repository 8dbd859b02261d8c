//! Certificates and authorities, and their ends.

use super::certificates::ExistingCertificate;
use super::*;

#[test]
fn certificates_are_replaced_after_two_thirds_of_their_life_or_when_names_are_missing() {
    let names = Names::of("fleet", "pay");
    let spec = ClusterSpec::of("v1.36");
    let wanted = certificates::required_certificates(&names, &spec, &[]).remove(0);
    let day = SignedDuration::from_hours(24);
    let held = ExistingCertificate {
        not_before: NOW,
        not_after: NOW + day * 90,
        dns_names: wanted.dns_names.clone(),
        ips: wanted.ips.clone(),
        common_name: wanted.common_name.clone(),
        organizations: wanted.organizations.clone(),
        key_matches: true,
    };
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 90, NOW + day * 59), None);
    assert_eq!(
        certificates::due(&wanted, Some(&held), true, day * 90, NOW + day * 61),
        Some(RenewalReason::RenewalDue)
    );
    // One that was made to last longer than they do now is no exception; one that was made to last shorter ends as it says.
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 30, NOW + day * 19), None);
    assert_eq!(
        certificates::due(&wanted, Some(&held), true, day * 30, NOW + day * 21),
        Some(RenewalReason::RenewalDue)
    );
    assert_eq!(
        certificates::due(&wanted, Some(&held), true, day * 365, NOW + day * 61),
        Some(RenewalReason::RenewalDue)
    );
    // Its validity starts some minutes before its issue, which does not extend its life.
    let begins = SignedDuration::from_mins(5);
    let made = ExistingCertificate { not_before: NOW - begins, ..held.clone() };
    assert_eq!(certificates::renew_at(&made, day * 90), NOW - begins + (day * 90 + begins) / 3 * 2);
    assert_eq!(certificates::due(&wanted, Some(&held), false, day * 90, NOW), Some(RenewalReason::AuthorityMismatch));
    assert_eq!(certificates::due(&wanted, None, false, day * 90, NOW), Some(RenewalReason::Missing));
    let more = certificates::required_certificates(&names, &spec, &["192.0.2.7".to_owned(), "api.example".to_owned()])
        .remove(0);
    assert_eq!(certificates::due(&more, Some(&held), true, day * 90, NOW), Some(RenewalReason::NamesMismatch));
    assert!(
        wanted.ips.contains(&"10.96.0.1".parse().unwrap())
            && wanted.dns_names.contains(&"kube-apiserver.fleet-pay.svc".to_owned())
    );
}

#[test]
fn authorities_are_replaced_in_phases_and_all_components_restart_in_each() {
    let mut world = TestCluster::new();
    world.spec.snapshots =
        Some(fleetwright_api::Snapshots { every: fleetwright_api::Span::seconds(0), ..Default::default() });
    world.spec.certificates.rotate_authorities = Some("first".to_owned());
    world.settle();
    assert_eq!((&world.status.rotation, world.status.authorities.as_deref()), (&None, Some("first")), "it is new");
    let before = world.decide().templates;

    world.spec.certificates.rotate_authorities = Some("2026-11".to_owned());
    let decision = world.decide();
    assert!(decision.rotate.is_empty(), "it is written down before anything is done");
    world.settle();
    let trusting = world.status.rotation.clone().unwrap();
    assert_eq!((trusting.phase, trusting.since), (fleetwright_api::RotationPhase::Trusting, NOW));
    assert!(world.anchors.iter().all(|anchor| anchor.next && anchor.trusted == 2));
    let during = world.decide().templates;
    assert!(before.iter().all(|(component, template)| during[component] != *template), "they read it when they start");
    let valid = condition(&world.status.conditions, names::CERTIFICATES_VALID).unwrap();
    assert_eq!((valid.status, valid.reason.as_str()), (Status::True, names::reasons::ROTATING));
    assert_eq!(world.status(), world.status, "nothing goes on before its time");

    world.now = NOW + SignedDuration::from_hours(24);
    world.settle();
    assert!(world.anchors.iter().all(|anchor| !anchor.next && anchor.trusted == 2));
    assert_eq!(world.status.rotation.clone().unwrap().phase, fleetwright_api::RotationPhase::Signing);
    world.now = NOW + SignedDuration::from_hours(48);
    world.settle();
    assert!(world.anchors.iter().all(|anchor| !anchor.next && anchor.trusted == 1));
    assert_eq!((&world.status.rotation, world.status.authorities.as_deref()), (&None, Some("2026-11")));
}

#[test]
fn authorities_are_not_taken_further_before_all_machines_have_what_is_trusted() {
    let mut world = TestCluster::new();
    world.spec.snapshots =
        Some(fleetwright_api::Snapshots { every: fleetwright_api::Span::seconds(0), ..Default::default() });
    world.extensions.ca_bundle = Some("old".to_owned());
    world.settle();
    world.spec.certificates.rotate_authorities = Some("2026-11".to_owned());
    world.settle();
    world.extensions.ca_bundle = Some("old\nnew".to_owned());
    let of = crate::join::bundle_digest("old\nnew");
    assert!(world.decide().follow.is_none(), "nobody is asked before its time");

    world.now = NOW + SignedDuration::from_hours(24);
    let decision = world.decide();
    assert_eq!(decision.follow.as_ref().unwrap().of, of);
    assert!(!decision.follow.unwrap().servers.is_empty() && decision.next.is_some());
    let says =
        |world: &TestCluster| condition(&world.status().conditions, names::CERTIFICATES_VALID).unwrap().message.clone();

    let behind = (1..=7).map(|number| format!("host-{number}")).collect();
    world.followers = Some(TrustDistribution { at: world.now, of: of.clone(), behind: Ok(behind) });
    let decision = world.decide();
    assert!(decision.follow.is_none() && decision.next.is_some(), "they are asked again in a while");
    assert!(says(&world).contains("host-5 and 2 more"), "{}", says(&world));
    world.followers = Some(TrustDistribution { at: world.now, of: of.clone(), behind: Err("it is silent".to_owned()) });
    assert!(says(&world).contains("it is silent"), "{}", says(&world));
    // An answer to another question does not count.
    world.followers =
        Some(TrustDistribution { at: world.now, of: crate::join::bundle_digest("old"), behind: Ok(Vec::new()) });
    assert!(world.decide().follow.is_some());
    world.settle();
    assert_eq!(world.status.rotation.clone().unwrap().phase, fleetwright_api::RotationPhase::Trusting);

    world.followers = Some(TrustDistribution { at: world.now, of, behind: Ok(Vec::new()) });
    world.settle();
    assert_eq!(world.status.rotation.clone().unwrap().phase, fleetwright_api::RotationPhase::Signing);
}

/// A cluster that takes no snapshots.
fn without_snapshots() -> TestCluster {
    let mut world = TestCluster::new();
    world.spec.snapshots =
        Some(fleetwright_api::Snapshots { every: fleetwright_api::Span::seconds(0), ..Default::default() });
    world
}

impl TestCluster {
    fn valid(&self) -> (Status, String, String) {
        let status = self.status();
        let valid = condition(&status.conditions, names::CERTIFICATES_VALID).unwrap();
        (valid.status, valid.reason.clone(), valid.message.clone())
    }

    /// One pass of the operator.
    fn one_pass(&mut self) {
        let (decision, status) = (self.decide(), self.status());
        self.applied(&decision);
        self.status = status;
    }
}

#[test]
fn people_are_warned_half_a_year_before_an_authority_expires() {
    let (day, minute) = (SignedDuration::from_hours(24), SignedDuration::from_mins(1));
    let mut world = without_snapshots();
    let end = NOW + AUTHORITY_LASTS;
    world.now = end - day * 180 - minute;
    world.settle();
    assert_eq!(world.valid().1, names::reasons::ALL_VALID);
    assert_eq!(world.decide().next, Some(end - day * 180), "it looks again at that moment");

    world.now = end - day * 180;
    let (status, reason, message) = world.valid();
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::AUTHORITY_EXPIRING));
    for part in ["ca expires", "etcd-ca", "front-proxy-ca", "kubelet-ca", "rotateAuthorities", &end.to_string()] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    world.settle();
    let later = TestCluster { now: end - day, ..world };
    assert_eq!(later.valid().2, message, "nothing is written while nothing changes");

    let mut expired = TestCluster { now: end - minute, ..later };
    expired.settle();
    assert_eq!(expired.decide().next, Some(end));
    expired.now = end;
    let (status, reason, message) = expired.valid();
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::AUTHORITY_EXPIRED));
    assert!(message.contains("ca expired"), "{message}");

    // One that lasts a year is no matter for nine months.
    let mut short = without_snapshots();
    for anchor in &mut short.anchors {
        anchor.ends = NOW + day * 365;
    }
    short.now = NOW + day * 291;
    short.settle();
    assert_eq!(short.valid().1, names::reasons::ALL_VALID);
    short.now = NOW + day * 292;
    assert_eq!(short.valid().1, names::reasons::AUTHORITY_EXPIRING);
}

#[test]
fn an_expired_authority_is_replaced_though_nothing_works() {
    use fleetwright_api::RotationPhase;

    let mut world = without_snapshots();
    world.spec.datastore.etcd.as_mut().unwrap().members = 3;
    world.settle();
    world.now = NOW + AUTHORITY_LASTS;
    for replica in world.workloads.values_mut().flat_map(|workload| &mut workload.replicas) {
        (replica.ready, replica.restarts) = (false, 9);
    }
    world.spec.certificates.rotate_authorities = Some("late".to_owned());
    world.one_pass();
    assert_eq!(world.status.rotation.as_ref().map(|one| one.phase), Some(RotationPhase::Trusting));
    assert!(!fleetwright_api::is_true(&world.status.conditions, names::READY));
    assert_eq!((world.valid().0, world.valid().1.as_str()), (Status::False, names::reasons::ROTATING));

    for _ in 0..12 {
        world.one_pass();
    }
    assert_eq!(world.status.rotation.as_ref().map(|one| one.phase), Some(RotationPhase::Signing), "without overlap");
    assert!(world.anchors.iter().all(|anchor| !anchor.next && anchor.trusted == 2));
    let template = world.decide().templates[&ControlPlaneComponent::Etcd].clone();
    let members = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
    assert!(
        members.iter().all(|member| member.template.as_ref() == Some(&template)),
        "members that have the new authority do not wait for those that cannot connect to them: {members:#?}"
    );

    // Now they can.
    for member in members {
        member.ready = true;
    }
    world.settle();
    assert!(fleetwright_api::is_true(&world.status.conditions, names::READY));
    assert_eq!(world.status.rotation.as_ref().map(|one| one.phase), Some(RotationPhase::Signing), "the overlap counts");
    world.now += SignedDuration::from_hours(24);
    world.settle();
    assert_eq!((&world.status.rotation, world.status.authorities.as_deref()), (&None, Some("late")));
    assert_eq!(world.valid().1, names::reasons::ALL_VALID);
}

#[test]
fn the_overlap_is_kept_where_the_expired_authority_is_not_needed_to_work() {
    let mut world = without_snapshots();
    world.settle();
    for anchor in &mut world.anchors {
        if matches!(anchor.authority, Authority::FrontProxy | Authority::Kubelet) {
            (anchor.ends, anchor.first_end) = (NOW, NOW);
        }
    }
    assert_eq!(world.valid().1, names::reasons::AUTHORITY_EXPIRED);
    world.spec.certificates.rotate_authorities = Some("late".to_owned());
    world.settle();
    let rotation = world.status.rotation.clone().unwrap();
    assert_eq!(rotation.phase, fleetwright_api::RotationPhase::Trusting);
}

#[test]
fn an_authority_that_expired_and_was_replaced_lets_no_bad_edit_take_all_members_down() {
    let mut world = without_snapshots();
    world.spec.datastore.etcd.as_mut().unwrap().members = 3;
    world.settle();
    // A new authority signs, and the old one is trusted until the overlap is over.
    world.anchors.iter_mut().for_each(|anchor| anchor.first_end = NOW);
    let trusted = super::super::rotation::trust_digest(&world.anchors);
    let args = [("snapshot-count".to_owned(), "none".to_owned())].into();
    world.spec.components.etcd = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    let decision = world.decide();
    world.applied(&decision);
    let members = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
    members.iter_mut().for_each(|member| member.trusts = Some(trusted.clone()));
    members[2].ready = false;
    assert_eq!(world.decide().replace, None);
    let members = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
    members.iter_mut().for_each(|member| member.trusts = None);
    assert!(world.decide().replace.is_some(), "one that does not trust the new authority yet");
    // All restarted for the new authority with the bad edit: it is taken back.
    let members = &mut world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
    for member in members {
        (member.ready, member.looping, member.trusts) = (false, true, Some(trusted.clone()));
        member.template = Some("bad".to_owned());
    }
    world.spec.components.etcd = None;
    assert!(world.decide().replace.is_some(), "none works, and each waits for a corrected template");
}
