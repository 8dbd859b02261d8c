//! What is done next with extensions.

use fleetwright_api::{Extension, ExtensionChoice, ExtensionPlacement};
use serde_json::{Value, json};

use super::extensions::{ExtensionOutcome, ExtensionReport, ExtensionWork, OrphanedObject, PruneInMeta, Removal};
use super::*;

fn extension(name: &str, order: u32, placement: ExtensionPlacement) -> Extension {
    let template = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: NAMESPACE}}\n");
    let namespace = if placement == ExtensionPlacement::Cluster { "default" } else { "fleet-pay" };
    let template = template.replace("NAMESPACE", namespace);
    Extension { name: name.to_owned(), order, placement, template, ..Extension::default() }
}

/// A cluster that works, with these extensions in its package version.
fn world(extensions: Vec<Extension>) -> TestCluster {
    let mut world = TestCluster::new();
    for package in world.packages.values_mut() {
        package.extensions = extensions.clone();
    }
    world.extensions.ca_bundle = Some("trusted".to_owned());
    world.extensions.since = Some(NOW);
    world.settle();
    world
}

/// What the operator does with a choice: writes down, applies, and hears back from the business cluster.
pub(super) fn done(
    world: &mut TestCluster,
    outcome: &dyn Fn(&ExtensionWork) -> ExtensionOutcome,
) -> extensions::ExtensionDecision {
    let choice = world.decide().extensions;
    for object in choice.inventory.iter().chain(choice.apply.iter().map(|(object, _)| object)) {
        world.live.insert((object.kind, object.name.clone()), object.body.clone());
    }
    for one in choice.prune.iter().flat_map(|removal| &removal.objects) {
        world.live.remove(&(one.object.kind_in_meta().unwrap(), one.object.name.clone()));
    }
    if let Some(removal) = &choice.remove {
        let report = world.extensions.reports.get_mut(&removal.extension).unwrap();
        report.surplus.retain(|one| !removal.objects.contains(one));
        report.pruned.extend(removal.objects.iter().map(|one| one.object.clone()));
    }
    for work in &choice.work {
        let outcome = outcome(work);
        let found = work.surplus.iter().filter(|_| !matches!(outcome, ExtensionOutcome::Failed(_)));
        let report = ExtensionReport {
            digest: work.digest.clone(),
            at: world.now,
            since: world.now,
            surplus: found
                .map(|object| OrphanedObject { object: object.clone(), uid: format!("uid of {object}") })
                .collect(),
            pruned: Vec::new(),
            skipped: Vec::new(),
            waits: None,
            look_at: None,
            outcome,
        };
        world.extensions.reports.insert(work.extension.clone(), report);
    }
    world.status = world.status();
    choice
}

fn works(choice: &extensions::ExtensionDecision) -> Vec<&str> {
    choice.work.iter().map(|work| work.extension.as_str()).collect()
}

fn reason(world: &TestCluster) -> String {
    condition(&world.status.conditions, names::EXTENSIONS_READY).unwrap().reason.clone()
}

#[test]
fn each_number_comes_when_those_before_it_work_and_is_written_down_before() {
    let cluster = ExtensionPlacement::Cluster;
    let mut world = world(vec![extension("first", 10, cluster), extension("second", 20, cluster)]);
    let healthy = |_: &ExtensionWork| ExtensionOutcome::Healthy;
    let waits = |_: &ExtensionWork| ExtensionOutcome::Waits("no pod yet".to_owned());
    let choice = done(&mut world, &waits);
    let inventory = choice.inventory.as_ref().unwrap().body["data"].to_string();
    assert!(inventory.contains("first") && inventory.contains("second"), "{inventory}");
    assert!(choice.work.iter().all(|work| work.extension != "second"), "{:?}", works(&choice));
    assert_eq!(reason(&world), names::reasons::APPLYING);
    // Waited for, it is looked at and not written again.
    world.now = NOW + SignedDuration::from_secs(10);
    let choice = done(&mut world, &healthy);
    let again = choice.work.iter().find(|work| work.extension == "first").unwrap();
    assert!(again.objects.is_empty() && choice.inventory.is_none(), "{again:?}");
    let choice = done(&mut world, &healthy);
    assert_eq!(works(&choice), ["second"]);
    let choice = done(&mut world, &healthy);
    assert!(choice.work.is_empty() && choice.next.is_some_and(|next| next > world.now), "it rests: {choice:?}");
    assert_eq!(reason(&world), names::reasons::ALL_READY);
}

#[test]
fn what_cannot_be_rendered_is_reported_and_holds_back_what_comes_after_it() {
    let cluster = ExtensionPlacement::Cluster;
    let mut broken = extension("broken", 10, cluster);
    broken.template = "{{ nobody.knows }}".to_owned();
    let mut world = world(vec![extension("before", 5, cluster), broken, extension("after", 20, cluster)]);
    let healthy = |_: &ExtensionWork| ExtensionOutcome::Healthy;
    for _ in 0..4 {
        let choice = done(&mut world, &healthy);
        assert!(!works(&choice).contains(&"after") && !works(&choice).contains(&"broken"), "{:?}", works(&choice));
    }
    assert_eq!(reason(&world), names::reasons::INVALID_EXTENSION);
}

#[test]
fn what_is_turned_off_goes_the_last_first_and_is_forgotten_when_it_is_gone() {
    let (cluster, meta) = (ExtensionPlacement::Cluster, ExtensionPlacement::Meta);
    let mut world = world(vec![extension("near", 10, meta), extension("far", 20, cluster)]);
    let healthy = |_: &ExtensionWork| ExtensionOutcome::Healthy;
    for _ in 0..6 {
        done(&mut world, &healthy);
    }
    assert_eq!(reason(&world), names::reasons::ALL_READY);
    assert!(world.live.contains_key(&(Kind::ConfigMap, "near".to_owned())));
    let off =
        |name: &str| serde_json::from_value::<ExtensionChoice>(json!({ "name": name, "enabled": false })).unwrap();
    world.spec.extensions = vec![off("near"), off("far")];
    world.extensions.reports.clear();
    let choice = done(&mut world, &|_| ExtensionOutcome::Failed("nobody answers".to_owned()));
    assert_eq!(works(&choice), ["far"]);
    assert!(choice.work[0].objects.is_empty() && choice.work[0].surplus.len() == 1 && choice.prune.is_none());
    assert_eq!(reason(&world), names::reasons::REMOVING);
    assert!(!choice.all_removed);
    // No API server is proven: that says nothing of what is left there.
    let proven = world.workloads.clone();
    for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
        replica.ready = false;
    }
    let choice = world.decide().extensions;
    assert!(choice.servers.is_empty() && choice.work.is_empty() && !choice.all_removed, "{choice:?}");
    world.workloads = proven;
    // It is looked up, and an Operation deletes it by its uid. Then the other goes.
    world.now = NOW + SignedDuration::from_secs(10);
    let choice = done(&mut world, &healthy);
    assert!(choice.remove.is_none() && choice.work.len() == 1, "{choice:?}");
    let removal = done(&mut world, &healthy).remove.unwrap();
    assert_eq!((removal.extension.as_str(), removal.objects.len()), ("far", 1));
    assert_eq!(removal.objects[0].uid, "uid of ConfigMap default/far");
    let choice = done(&mut world, &healthy);
    assert!(choice.prune.is_none() && choice.all_removed && !choice.all_pruned, "{choice:?}");
    let near = world.decide().extensions.prune.unwrap();
    assert_eq!((near.extension.as_str(), near.placement, near.objects.len()), ("near", meta, 1));
    for (fingerprint, placement) in [(near.fingerprint(), meta), (removal.fingerprint(), cluster)] {
        assert_eq!(Removal::placement_of(&format!("{fingerprint}-1")), placement);
    }
    // Why it waits is reported, and what is deleted is not deleted again while the caches still have it.
    world.extensions.in_meta.waits.insert("near".to_owned(), "no OperationPolicy names it".to_owned());
    let left = world.status().extensions;
    assert!(left.iter().any(|one| one.name == "near" && one.message.contains("no OperationPolicy")), "{left:?}");
    world.extensions.in_meta.deleted.extend(near.objects.iter().map(|one| one.uid.clone()));
    let choice = world.decide().extensions;
    assert!(choice.prune.is_none() && !choice.all_pruned, "{choice:?}");
    // An object whose deletion failed, or that somebody recreated, is deleted again after a pause.
    let again = world.now + SignedDuration::from_secs(30);
    let not_before = [(near.objects[0].object.clone(), again)].into();
    world.extensions.in_meta = PruneInMeta { not_before, ..PruneInMeta::default() };
    let choice = world.decide().extensions;
    assert!(choice.prune.is_none() && !choice.all_pruned, "{choice:?}");
    assert!(choice.next.is_some_and(|next| next <= again), "{choice:?}");
    world.now = again;
    assert_eq!(world.decide().extensions.prune, Some(near));
    world.extensions.in_meta = PruneInMeta::default();
    for _ in 0..2 {
        let choice = done(&mut world, &healthy);
        assert!(choice.remove.is_none() && choice.all_removed, "{choice:?}");
    }
    assert!(world.decide().extensions.all_pruned);
    assert!(!world.live.contains_key(&(Kind::ConfigMap, "near".to_owned())));
    assert!(
        world.status.extensions.iter().all(|one| one.name != "near" && one.name != "far"),
        "{:?}",
        world.status.extensions
    );
}

#[test]
fn somebody_elses_object_beside_the_control_plane_is_not_taken() {
    let mut world = world(vec![extension("kube-scheduler-config", 10, ExtensionPlacement::Meta)]);
    let choice = done(&mut world, &|_| ExtensionOutcome::Healthy);
    assert!(choice.apply.is_empty(), "{:?}", choice.apply);
    assert!([names::reasons::APPLY_FAILED, names::reasons::INVALID_EXTENSION].contains(&reason(&world).as_str()));
}

/// An extension with this many ConfigMaps.
fn many(name: &str, count: usize) -> Extension {
    let one =
        |number| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}-{number}, namespace: default}}\n");
    let template = (0..count).map(one).collect::<Vec<_>>().join("---\n");
    Extension { template, ..extension(name, 10, ExtensionPlacement::Cluster) }
}

#[test]
fn what_an_extension_no_longer_has_goes_by_uid_in_batches_after_what_it_has_is_in_place() {
    let mut world = world(vec![many("many", 120), extension("after", 20, ExtensionPlacement::Cluster)]);
    let healthy = |_: &ExtensionWork| ExtensionOutcome::Healthy;
    for _ in 0..6 {
        done(&mut world, &healthy);
    }
    assert_eq!(reason(&world), names::reasons::ALL_READY);
    for package in world.packages.values_mut() {
        package.extensions[0] = many("many", 1);
    }
    let choice = done(&mut world, &|_| ExtensionOutcome::Failed("no answer".to_owned()));
    assert_eq!((choice.work[0].objects.len(), choice.work[0].surplus.len()), (1, 119));
    assert_eq!(done(&mut world, &healthy).remove, None, "what it has is not in place yet");
    world.now = NOW + SignedDuration::from_secs(10);
    assert_eq!(done(&mut world, &healthy).remove, None, "it has to be looked up first");
    let waits = "no OperationPolicy names ExtensionPrune";
    world.extensions.reports.get_mut("many").unwrap().waits = Some(waits.to_owned());
    let mut removed = Vec::new();
    for expected in [50, 50, 19] {
        let removal = done(&mut world, &healthy).remove.unwrap();
        assert_eq!(removal.objects.len(), expected);
        removed.push(removal.fingerprint());
        let many = world.status.extensions.iter().find(|one| one.name == "many").unwrap();
        if expected != 19 {
            assert_eq!(many.reason, names::reasons::REMOVING);
            assert!(many.message.contains(waits), "{}", many.message);
            let after = world.status.extensions.iter().find(|one| one.name == "after").unwrap();
            assert_eq!(after.ready, Status::True, "what goes stands in the way of nothing");
        }
    }
    removed.dedup();
    assert_eq!(removed.len(), 3, "each is an Operation of its own");
    let choice = done(&mut world, &healthy);
    assert_eq!((choice.remove, choice.work.len()), (None, 0));
    assert_eq!(reason(&world), names::reasons::ALL_READY);
}

#[test]
fn what_is_wanted_again_before_it_was_deleted_stays() {
    let mut world = world(vec![many("many", 3)]);
    let healthy = |_: &ExtensionWork| ExtensionOutcome::Healthy;
    for _ in 0..6 {
        done(&mut world, &healthy);
    }
    let shrink = |world: &mut TestCluster, count: usize| {
        for package in world.packages.values_mut() {
            package.extensions[0] = many("many", count);
        }
    };
    shrink(&mut world, 1);
    done(&mut world, &healthy);
    assert_eq!(world.decide().extensions.remove.unwrap().objects.len(), 2);
    // Another extension has one of them now.
    for package in world.packages.values_mut() {
        // What many-0 has stays with it: no object has two extensions.
        let template = many("many", 2).template.split("---\n").last().unwrap_or_default().to_owned();
        package.extensions.push(Extension { template, ..extension("other", 10, ExtensionPlacement::Cluster) });
    }
    let removal = world.decide().extensions.remove.unwrap();
    assert_eq!(removal.objects.iter().map(|one| one.object.name.as_str()).collect::<Vec<_>>(), ["many-2"]);
    shrink(&mut world, 3);
    assert_eq!(world.decide().extensions.remove, None);
}

#[test]
fn what_an_operator_that_was_behind_applied_once_more_is_deleted() {
    let healthy = |_: &ExtensionWork| ExtensionOutcome::Healthy;
    let mut world = world(vec![extension("beside", 10, ExtensionPlacement::Meta)]);
    for _ in 0..5 {
        done(&mut world, &healthy);
    }
    let of_extension = |live: &Value| !live["metadata"]["labels"][extensions::EXTENSION].is_null();
    let applied: Vec<_> = world
        .live
        .iter()
        .filter(|(_, live)| of_extension(live))
        .map(|(key, live)| (key.clone(), live.clone()))
        .collect();
    assert!(!applied.is_empty());
    for package in world.packages.values_mut() {
        package.extensions.clear();
    }
    for again in [false, true] {
        if again {
            world.live.extend(applied.clone());
        }
        for _ in 0..5 {
            done(&mut world, &healthy);
        }
        assert!(!world.live.values().any(of_extension), "{again}");
        assert_eq!(done(&mut world, &healthy).inventory, None);
    }
}
