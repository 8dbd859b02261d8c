//! Authorities and the key of service-account tokens: made once, recorded, sealed, and never replaced by themselves.

use fleetwright_api::KeyStatus;

use super::keys::{Key, KeySecret, ObservedKeys};
use super::*;

fn held(version: &str) -> KeySecret {
    KeySecret::Valid { fingerprint: format!("{version}-fingerprint-0123456789"), digest: format!("{version}-digest") }
}

impl TestCluster {
    fn known(&mut self) -> &mut ObservedKeys {
        self.keys.as_mut().expect("keys are seen")
    }

    fn hold(&mut self, key: Key, version: &str) {
        self.known().held.insert(key, held(version));
    }

    fn seal(&mut self, key: Key, version: &str) {
        self.known().sealed.insert(key.secret().to_owned(), format!("{version}-digest"));
    }

    /// What the operator does with what was decided of keys.
    fn kept(&mut self) -> Decision {
        let decision = self.decide();
        self.status = self.status();
        for key in &decision.keys.generate {
            self.seal(*key, "new");
            self.hold(*key, "new");
        }
        for key in &decision.keys.restore {
            let digest = self.known().sealed[key.secret()].clone();
            self.hold(*key, digest.strip_suffix("-digest").unwrap());
        }
        for (key, digest) in &decision.keys.seal {
            self.known().sealed.insert(key.secret().to_owned(), digest.clone());
        }
        decision
    }

    fn blocked(&self) -> String {
        let status = self.status();
        let valid = condition(&status.conditions, names::CERTIFICATES_VALID).unwrap();
        assert_eq!(valid.status, Status::False);
        assert_eq!(status.phase, Some(ClusterPhase::Degraded));
        valid.reason.clone()
    }

    fn recorded(&self, key: Key) -> Option<&KeyStatus> {
        self.status.keys.iter().find(|record| record.name == key.secret())
    }
}

const CA: Key = Key::Authority(Authority::Cluster);

/// A cluster without changes whose keys are recorded and sealed.
fn kept() -> TestCluster {
    let mut world = TestCluster::new();
    world.settle();
    world.keys = Some(ObservedKeys { sealed_in: "fleetwright-system".to_owned(), ..ObservedKeys::default() });
    for key in Key::all() {
        world.hold(key, "old");
    }
    // It was created before keys were recorded.
    let decision = world.kept();
    assert_eq!(decision.keys.seal.len(), Key::all().count(), "a copy is made first");
    assert!(world.status.keys.is_empty() && decision.keys.generate.is_empty());
    world.kept();
    assert_eq!(world.status.keys.len(), Key::all().count(), "then they are recorded");
    world.settle();
    assert!(world.decide().keys.settled(&world.status.keys));
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
    world
}

#[test]
fn keys_of_a_new_cluster_are_recorded_before_they_are_used() {
    let mut world = TestCluster::new();
    world.keys = Some(ObservedKeys::default());
    let wanted = certificates::required_certificates(&world.names, &world.spec, &[]);
    world.due = wanted.into_iter().map(|one| (one, RenewalReason::Missing)).collect();
    assert_eq!(world.kept().keys.generate.len(), Key::all().count());
    let decision = world.kept();
    assert!(!decision.keys.acts() && decision.certificates.is_empty(), "nothing is signed");
    assert_eq!(world.status.keys.len(), Key::all().count());
    assert!(!world.decide().certificates.is_empty());
}

#[test]
fn a_lost_key_is_restored_and_nothing_else_changes_meanwhile() {
    for key in Key::all() {
        let mut world = kept();
        let before = world.status.clone();
        world.known().held.remove(&key);
        let decision = world.kept();
        assert_eq!(decision.keys.restore, [key]);
        assert!(decision.keys.generate.is_empty() && decision.apply.is_empty() && decision.replace.is_none());
        world.settle();
        assert_eq!(world.status, before);
    }
}

#[test]
fn a_key_that_is_lost_with_its_copy_is_never_generated_by_itself() {
    for key in Key::all() {
        let mut world = kept();
        world.known().held.remove(&key);
        world.known().sealed.clear();
        // The copy that cannot be opened stays: the key that opens it may come back.
        assert!(world.kept().keys.seal.is_empty());
        let decision = world.kept();
        assert!(decision.keys.generate.is_empty() && decision.apply.is_empty() && decision.certificates.is_empty());
        let reason = world.blocked();
        assert!(["AuthorityLost", "ServiceAccountKeyLost"].contains(&&*reason), "{reason}");
        let why = world.decide().keys.blocked.expect("it is blocked").1;
        assert!(why.contains("fleetwright snapshot keys"), "{why}");
        let copy = format!("Secret fleetwright-system/{}", world.names.sealed_keys());
        assert!(why.contains(&copy), "{why}");
        assert!(fleetwright_api::is_true(&world.status.conditions, names::READY), "it is proven all the same");
        // A request for another key than this one does not count; one that names it does.
        world.known().replace = Some(format!("{}@another", key.secret()));
        assert!(world.decide().keys.generate.is_empty());
        world.known().replace = Some(format!("{}@old-fingerprint-", key.secret()));
        // A copy that can be opened wins over a request that somebody forgot.
        world.known().sealed.insert(key.secret().to_owned(), "old-digest".to_owned());
        assert_eq!(world.decide().keys.restore, [key]);
        world.known().sealed.clear();
        assert_eq!(world.kept().keys.generate, [key]);
        world.kept();
        assert_eq!(world.recorded(key).unwrap().digest, "new-digest");
        assert!(world.decide().keys.generate.is_empty(), "once");
    }
}

#[test]
fn a_namespace_that_is_deleted_does_not_take_the_record_along() {
    let mut world = kept();
    let recorded = world.status.keys.clone();
    world.namespace = false;
    world.known().held.clear();
    world.kept();
    assert_eq!(world.status.keys, recorded);
    world.namespace = true;
    assert_eq!(world.kept().keys.restore.len(), Key::all().count());
    world.kept();
    assert_eq!(world.status.keys, recorded);
}

#[test]
fn a_cluster_that_ran_before_keys_were_recorded_gets_no_new_key_either() {
    let mut world = TestCluster::new();
    world.settle();
    world.keys = Some(ObservedKeys::default());
    for key in Key::all().skip(1) {
        world.hold(key, "old");
    }
    assert!(world.kept().keys.generate.is_empty());
    assert_eq!(world.blocked(), names::reasons::AUTHORITY_LOST);
}

#[test]
fn a_key_that_somebody_changed_is_neither_used_nor_overwritten() {
    for (there, reason) in [(held("hand-made"), "AuthorityChanged"), (KeySecret::Broken, "AuthorityChanged")] {
        let mut world = kept();
        world.known().held.insert(CA, there.clone());
        // What pods trust would change with it.
        world.anchors[0] = anchor(Authority::Cluster, false, &["other"]);
        let decision = world.kept();
        assert!(!decision.keys.acts() && decision.apply.is_empty() && decision.certificates.is_empty());
        assert_eq!(world.blocked(), reason);
        assert_eq!(world.recorded(CA).unwrap().digest, "old-digest");
        // It is deleted: the copy has what it was.
        world.known().held.remove(&CA);
        assert_eq!(world.kept().keys.restore, [CA]);
        assert_eq!(world.known().held[&CA], held("old"));
    }
    let mut world = kept();
    world.hold(CA, "hand-made");
    world.known().replace = Some("ca@hand-made-finger".to_owned());
    world.kept();
    world.kept();
    assert_eq!(world.recorded(CA).unwrap().digest, "hand-made-digest");
}

#[test]
fn what_a_rotation_made_is_recorded_because_the_copy_has_it() {
    let mut world = kept();
    world.seal(CA, "next");
    world.hold(CA, "next");
    let decision = world.kept();
    assert!(decision.keys.blocked.is_none() && decision.certificates.is_empty(), "it is recorded first");
    assert_eq!(world.recorded(CA).unwrap().digest, "next-digest");
    // The copy is ahead of a Secret whose change was never written: no component has used that key, and it is dropped.
    world.seal(CA, "after-next");
    let decision = world.kept();
    assert_eq!(decision.keys.seal, [(CA, "next-digest".to_owned())]);
    assert!(world.decide().keys.settled(&world.status.keys));
}

#[test]
fn a_copy_that_cannot_be_written_stops_nothing_else() {
    let mut world = kept();
    world.known().sealed.clear();
    let decision = world.decide();
    assert_eq!(decision.keys.seal.len(), Key::all().count());
    assert!(!decision.desired.is_empty(), "everything else is decided, too");
    let status = world.status();
    assert_eq!(status.phase, Some(ClusterPhase::Ready));
    assert!(fleetwright_api::is_true(&status.conditions, names::READY));
}

#[test]
fn a_key_that_cannot_be_created_stops_only_what_restarts_pods() {
    let mut world = kept();
    world.known().held.remove(&CA);
    let decision = world.decide();
    assert!(decision.keys.restore == [CA] && decision.desired.is_empty(), "first it is tried alone");
    let accepted = world.status.conditions.iter_mut().find(|one| one.type_ == names::ACCEPTED).unwrap();
    (accepted.status, accepted.reason) = (Status::False, names::reasons::WRITE_REFUSED.to_owned());
    world.spec.replicas = 3;
    let decision = world.decide();
    assert!(decision.keys.restore == [CA] && !decision.desired.is_empty());
    assert!(decision.apply.is_empty() && decision.replace.is_none() && decision.rotate.is_empty());
    // Its certificates count as signed by another authority meanwhile.
    let all = certificates::required_certificates(&world.names, &world.spec, &[]);
    world.due = all.into_iter().map(|one| (one, RenewalReason::AuthorityMismatch)).collect();
    let issued = world.decide().certificates;
    assert!(!issued.is_empty() && issued.iter().all(|(one, _)| one.authority != Authority::Cluster));
    world.due.clear();
    world.now += SignedDuration::from_hours(24);
    let decision = world.decide();
    assert!(!decision.prove.is_empty() && decision.snapshot.is_some());
}

#[test]
fn a_requested_replacement_is_completed_from_the_copy() {
    let mut world = kept();
    world.known().held.remove(&CA);
    world.known().sealed.clear();
    world.known().replace = Some("ca@old-fingerprint-".to_owned());
    assert_eq!(world.decide().keys.generate, [CA]);
    // The process ended between the copy and the Secret.
    world.seal(CA, "new");
    let keys = world.decide().keys;
    assert_eq!((keys.restore, keys.requested), (vec![CA], vec![CA]));
}

#[test]
fn a_certificate_that_is_missing_stops_neither_proofs_nor_snapshots() {
    let mut world = TestCluster::new();
    world.settle();
    world.now += SignedDuration::from_hours(24);
    let wanted = certificates::required_certificates(&world.names, &world.spec, &[]).remove(0);
    world.due = vec![(wanted, RenewalReason::Missing)];
    let decision = world.decide();
    assert!(decision.certificates.len() == 1 && decision.apply.is_empty(), "{:?}", kinds(&decision));
    assert!(!decision.prove.is_empty() && decision.snapshot.is_some());
}
