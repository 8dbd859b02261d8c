//! Certificates and authorities, and their ends.

use super::certificates::Held;
use super::*;

#[test]
fn certificates_are_replaced_after_two_thirds_of_their_life_or_when_names_are_missing() {
    let names = Names::of("fleet", "pay");
    let spec = ClusterSpec::of("v1.36");
    let wanted = certificates::wanted(&names, &spec, &[]).remove(0);
    let day = SignedDuration::from_hours(24);
    let held = Held {
        not_before: NOW,
        not_after: NOW + day * 90,
        dns_names: wanted.dns_names.clone(),
        ips: wanted.ips.clone(),
        common_name: wanted.common_name.clone(),
        organizations: wanted.organizations.clone(),
        key_matches: true,
    };
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 90, NOW + day * 59), None);
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 90, NOW + day * 61), Some(Due::Old));
    // One that was made to last longer than they do now is no exception; one that was made to last shorter ends as it says.
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 30, NOW + day * 19), None);
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 30, NOW + day * 21), Some(Due::Old));
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 365, NOW + day * 61), Some(Due::Old));
    // It begins some minutes before it is made, and does not last longer for it.
    let begins = SignedDuration::from_mins(5);
    let made = Held { not_before: NOW - begins, ..held.clone() };
    assert_eq!(certificates::replace_at(&made, day * 90), NOW - begins + (day * 90 + begins) / 3 * 2);
    assert_eq!(certificates::due(&wanted, Some(&held), false, day * 90, NOW), Some(Due::OtherAuthority));
    assert_eq!(certificates::due(&wanted, None, false, day * 90, NOW), Some(Due::Missing));
    let more = certificates::wanted(&names, &spec, &["192.0.2.7".to_owned(), "api.example".to_owned()]).remove(0);
    assert_eq!(certificates::due(&more, Some(&held), true, day * 90, NOW), Some(Due::OtherNames));
    assert!(
        wanted.ips.contains(&"10.96.0.1".parse().unwrap())
            && wanted.dns_names.contains(&"kube-apiserver.fleet-pay.svc".to_owned())
    );
}

#[test]
fn authorities_are_replaced_in_phases_and_everybody_begins_anew_in_each() {
    let mut world = World::new();
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
    let mut world = World::new();
    world.spec.snapshots =
        Some(fleetwright_api::Snapshots { every: fleetwright_api::Span::seconds(0), ..Default::default() });
    world.extensions.ca_bundle = Some("old".to_owned());
    world.settle();
    world.spec.certificates.rotate_authorities = Some("2026-11".to_owned());
    world.settle();
    world.extensions.ca_bundle = Some("old\nnew".to_owned());
    let of = crate::join::trusts("old\nnew");
    assert!(world.decide().follow.is_none(), "nobody is asked before its time");

    world.now = NOW + SignedDuration::from_hours(24);
    let decision = world.decide();
    assert_eq!(decision.follow.as_ref().unwrap().of, of);
    assert!(!decision.follow.unwrap().servers.is_empty() && decision.next.is_some());
    let says =
        |world: &World| condition(&world.status().conditions, names::CERTIFICATES_VALID).unwrap().message.clone();

    let behind = (1..=7).map(|number| format!("host-{number}")).collect();
    world.followers = Some(Followers { at: world.now, of: of.clone(), behind: Ok(behind) });
    let decision = world.decide();
    assert!(decision.follow.is_none() && decision.next.is_some(), "they are asked again in a while");
    assert!(says(&world).contains("host-4, host-5 and 2 more"), "{}", says(&world));
    world.followers = Some(Followers { at: world.now, of: of.clone(), behind: Err("it is silent".to_owned()) });
    assert!(says(&world).contains("it is silent"), "{}", says(&world));
    // An answer to another question is none.
    world.followers = Some(Followers { at: world.now, of: crate::join::trusts("old"), behind: Ok(Vec::new()) });
    assert!(world.decide().follow.is_some());
    world.settle();
    assert_eq!(world.status.rotation.clone().unwrap().phase, fleetwright_api::RotationPhase::Trusting);

    world.followers = Some(Followers { at: world.now, of, behind: Ok(Vec::new()) });
    world.settle();
    assert_eq!(world.status.rotation.clone().unwrap().phase, fleetwright_api::RotationPhase::Signing);
}
