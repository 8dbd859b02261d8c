//! Hosts in memory: steps, their records, and observations.

use std::sync::Arc;

use crate::common::*;
use fleetwright_host::system::UnitVerb;
use fleetwright_host::system::memory::{BrokenUnit, Faults, Web};
use fleetwright_host::{Host, Memory, System as _};
use fleetwright_wire::*;

#[test]
fn a_package_is_installed_seen_and_removed_again() {
    let mut host = host();
    let before = host.system().host().tree();
    let package = kubelet("1");
    done(&apply(&mut host, "a", Step::Install(package.clone())));

    let seen = observe(&mut host, std::slice::from_ref(&package));
    assert_eq!(seen.components.len(), 1);
    assert_eq!(seen.components[0].deviations, []);
    assert_eq!(seen.components[0].version.as_deref(), Some("1"));
    assert_eq!(seen.components[0].installed.as_ref().map(|installed| installed.digest.clone()), Some(package.digest()));
    assert!(seen.components[0].health.iter().all(|check| check.holds));
    assert_eq!(host.system().host().unit("kubelet.service").active, "active");

    done(&apply(&mut host, "b", Step::Remove { component: "kubelet".to_owned() }));
    assert!(observe(&mut host, &[]).components.is_empty());
    assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
    assert_eq!(host.system().host().tree(), before);
    assert!(!host.system().host().unit("kubelet.service").exists);
}

#[test]
fn a_folder_goes_only_if_it_is_empty_when_it_is_removed() {
    let host = host();
    let mut system = host.system().process();
    host.system().host().put("/opt/ours/conf", b"ours", 0o644);
    assert!(!system.remove_empty("/opt/ours").unwrap());
    assert_eq!(host.system().host().read("/opt/ours/conf", 9).unwrap().as_deref(), Some(&b"ours"[..]));
    assert!(system.remove("/opt/ours/conf").unwrap());
    assert!(system.remove_empty("/opt/ours").unwrap());
    assert_eq!(system.stat("/opt/ours").unwrap(), None);
    assert!(system.remove_empty("/opt/ours").unwrap(), "nothing is there");
    host.system().host().put("/opt/file", b"", 0o644);
    assert!(system.remove_empty("/opt/file").unwrap());
    assert!(system.stat("/opt/file").unwrap().is_some(), "a file is no folder");
}

#[test]
fn a_step_is_never_run_twice() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let calls = host.system().host().calls;
    // Another package under the same id: only the id counts.
    let again = apply(&mut host, "a", Step::Install(kubelet("2")));
    assert_eq!(again.digest, Some(kubelet("1").digest()));
    assert_eq!(version(&mut host), Some("1".to_owned()));
    // The id does not run in another process either.
    let mut other = Host::new(host.system().process());
    assert_eq!(apply(&mut other, "a", Step::Install(kubelet("2"))), again);
    // Locks are taken to read the journal; nothing else changes.
    assert!(host.system().host().calls <= calls + 4);
}

#[test]
fn drift_is_reported_by_what_was_found_and_repaired() {
    let mut host = host();
    let package = kubelet("1");
    done(&apply(&mut host, "a", Step::Install(package.clone())));
    {
        let mut machine = host.system().host();
        machine.put("/etc/kubernetes/kubelet.yaml", b"version: 1\nhacked: true\n", 0o666);
        machine.unit_do("kubelet.service", UnitVerb::Stop).unwrap();
        machine.unit_do("kubelet.service", UnitVerb::Disable).unwrap();
    }
    let seen = observe(&mut host, std::slice::from_ref(&package));
    let told: Vec<String> =
        seen.components[0].deviations.iter().map(|it| format!("{}: {} / {}", it.what, it.found, it.wanted)).collect();
    assert_eq!(told.len(), 4, "{told:#?}");
    assert!(told[0].starts_with("file /etc/kubernetes/kubelet.yaml content: 24 bytes"), "{told:#?}");
    assert!(told[0].ends_with("1 different line"), "{told:#?}");
    assert_eq!(told[1], "file /etc/kubernetes/kubelet.yaml mode: 0666 / 0640");
    assert_eq!(told[2], "unit kubelet.service at boot: disabled / enabled");
    assert_eq!(told[3], "unit kubelet.service: inactive / active");
    assert!(!format!("{seen:?}").contains("hacked"), "the content of a file is never told");

    let record = apply(&mut host, "b", Step::Repair(package.clone()));
    done(&record);
    assert!(record.message.contains("was 0666") && record.message.contains("0640"), "{}", record.message);
    assert_eq!(observe(&mut host, &[package]).components[0].deviations, []);
}

#[test]
fn units_restart_when_what_they_depend_on_changes_and_not_otherwise() {
    let mut host = host();
    let since = |host: &Host<Memory>| host.system().host().unit("kubelet.service").active_since;
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let first = since(&host);
    host.system().host().advance(std::time::Duration::from_secs(60));
    let mut other = kubelet("1");
    other.files[1].content = Content::Text("nobody restarts for this".to_owned());
    done(&apply(&mut host, "b", Step::Install(other.clone())));
    assert_eq!(since(&host), first);
    other.files[0].content = Content::Text("for this it does".to_owned());
    done(&apply(&mut host, "c", Step::Install(other)));
    assert_ne!(since(&host), first);
}

#[test]
fn what_was_there_before_us_is_kept_and_put_back() {
    let mut host = host();
    {
        let mut machine = host.system().host();
        machine.put("/etc/kubernetes/kubelet.yaml", b"by hand", 0o604);
        machine.bring_unit("kubelet.service", false, true);
    }
    let before = host.system().host().tree();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    done(&apply(&mut host, "b", Step::Install(kubelet("2"))));
    done(&apply(&mut host, "c", Step::Remove { component: "kubelet".to_owned() }));
    let unit = host.system().host().unit("kubelet.service");
    assert_eq!((unit.enabled.as_str(), unit.active.as_str()), ("disabled", "active"));
    assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
    assert_eq!(host.system().host().tree(), before);
}

#[test]
fn a_bad_version_fails_and_the_host_goes_back_by_what_it_keeps() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let spoilt = BrokenUnit {
        unit: "kubelet.service".to_owned(),
        path: "/etc/kubernetes/kubelet.yaml".to_owned(),
        contains: "version: 2".to_owned(),
    };
    host.system().host().faults.spoilt = Arc::new([spoilt]);
    let record = apply(&mut host, "b", Step::Install(kubelet("2")));
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(
        record.message.contains("unit kubelet.service") && record.message.contains("restarted"),
        "{}",
        record.message
    );
    let seen = observe(&mut host, &[kubelet("2")]);
    assert!(!seen.components[0].health[0].holds);
    assert_eq!(seen.components[0].installed.as_ref().map(|it| it.version.as_str()), Some("1"));

    done(&apply(&mut host, "c", Step::Back { component: "kubelet".to_owned(), to: kubelet("1").digest() }));
    let seen = observe(&mut host, &[kubelet("1")]);
    assert_eq!(seen.components[0].deviations, []);
    assert!(seen.components[0].health[0].holds);
}

#[test]
fn what_is_installed_is_compared_with_what_the_host_keeps_of_it() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    done(&apply(&mut host, "b", Step::Install(kubelet("2"))));
    done(&apply(&mut host, "c", Step::Back { component: "kubelet".to_owned(), to: kubelet("1").digest() }));
    let look = |host: &mut Host<Memory>| {
        let installed = vec!["kubelet".to_owned(), "absent".to_owned(), "../../etc".to_owned()];
        match ask(host, Request::Observe(Box::new(Observe { installed, health: true, ..Observe::default() }))) {
            Answer::Observed(seen) => seen.components,
            other => panic!("{other:?}"),
        }
    };
    let seen = look(&mut host);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].deviations, []);
    assert!(!seen[0].health.is_empty() && seen[0].health.iter().all(|check| check.holds), "{seen:?}");
    host.system().host().put("/etc/kubernetes/kubelet.yaml", b"by hand", 0o644);
    let seen = look(&mut host);
    assert!(seen[0].deviations.iter().any(|found| found.what.contains("/etc/kubernetes/kubelet.yaml")), "{seen:?}");
    // Going back to the installed version repairs it.
    done(&apply(&mut host, "d", Step::Back { component: "kubelet".to_owned(), to: kubelet("1").digest() }));
    let seen = look(&mut host);
    assert_eq!(seen[0].deviations, []);
    assert_eq!(seen[0].installed.as_ref().map(|installed| installed.version.as_str()), Some("1"));
}

#[test]
fn going_back_needs_no_network_and_forgets_what_did_not_do() {
    let mut host = host();
    for (id, version) in [("a", "1"), ("b", "2"), ("c", "3")] {
        done(&apply(&mut host, id, Step::Install(archive(version))));
    }
    host.system().host().faults.web = Web::Nothing;
    let seen = observe(&mut host, &[archive("3")]);
    let previous: Vec<&str> = seen.components[0].previous.iter().map(|it| it.version.as_str()).collect();
    assert_eq!(previous, ["2", "1"]);
    done(&apply(&mut host, "d", Step::Back { component: "tool".to_owned(), to: archive("2").digest() }));
    let seen = observe(&mut host, &[archive("2")]);
    assert_eq!(seen.components[0].deviations, []);
    assert_eq!(seen.components[0].version.as_deref(), Some("2"));
    let record = apply(&mut host, "e", Step::Back { component: "tool".to_owned(), to: archive("3").digest() });
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("tool-2, tool-1"), "{}", record.message);
    // Versions that no rollback can reach use no space.
    assert_eq!(host.system().host().list(&format!("{HOME}/cache")).len(), 2);
    assert_eq!(host.system().host().list(&format!("{OPT}/tool")).len(), 3);
}

#[test]
fn what_has_not_proven_itself_is_not_kept_in_place_of_what_has() {
    let keeps_one = |version: &str| Package { keep: 1, ..kubelet(version) };
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(keeps_one("1"))));
    done(&apply(&mut host, "b", Step::Install(keeps_one("2"))));
    let Request::Apply(mut third) = request("c", 1, Step::Install(keeps_one("3"))) else { panic!("a step") };
    third.unproven = true;
    assert!(matches!(ask(&mut host, Request::Apply(third)), Answer::Ended(record) if record.outcome == Outcome::Done));
    let seen = observe(&mut host, &[keeps_one("3")]);
    let previous: Vec<&str> = seen.components[0].previous.iter().map(|it| it.version.as_str()).collect();
    assert_eq!(previous, ["1"], "2 never worked");
    done(&apply(&mut host, "d", Step::Back { component: "kubelet".to_owned(), to: keeps_one("1").digest() }));
    assert_eq!(version(&mut host), Some("1".to_owned()));
}

#[test]
fn a_step_of_an_earlier_operator_keeps_what_was_there() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let mut second = serde_json::to_value(request("b", 1, Step::Install(kubelet("2")))).unwrap();
    assert!(second["apply"].as_object_mut().unwrap().remove("unproven").is_some());
    assert!(matches!(ask(&mut host, serde_json::from_value(second).unwrap()), Answer::Ended(_)));
    let seen = observe(&mut host, &[kubelet("2")]);
    assert_eq!(seen.components[0].previous.len(), 1, "{:?}", seen.components[0]);
}

#[test]
fn nothing_begins_without_a_journal() {
    for faults in [Faults { full: true, ..Faults::default() }, Faults { read_only: true, ..Faults::default() }] {
        let mut host = host();
        host.system().host().set_faults(faults);
        let before = host.system().host().tree();
        let answer = ask(&mut host, request("a", 1, Step::Install(kubelet("1"))));
        let Answer::Failed(failure) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.kind, FailureKind::NoJournal);
        assert_eq!(host.system().host().tree(), before);
        // The same id may run once there is space.
        host.system().host().set_faults(Faults::default());
        done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    }
}

#[test]
fn an_older_leader_is_not_heard() {
    let mut host = host();
    assert!(matches!(ask(&mut host, request("a", 7, Step::Install(kubelet("1")))), Answer::Ended(_)));
    for asked in [
        request("b", 6, Step::Install(kubelet("2"))),
        Request::Refuse { id: "c".to_owned(), claim: claim(6) },
        Request::Clean { claim: claim(6) },
    ] {
        let answer = ask(&mut Host::new(host.system().process()), asked);
        let Answer::Failed(failure) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.kind, FailureKind::Fenced);
    }
    assert_eq!(version(&mut host), Some("1".to_owned()));
    assert_eq!(recall(&mut host, "b"), None);
}

/// A claim of that Machine, in that epoch.
fn claims(uid: &str, epoch: u64, fence: u64) -> Claim {
    Claim { owner: owner(uid), epoch, fence }
}

fn step(id: &str, claim: Claim, step: Step) -> Request {
    Request::Apply(Box::new(Apply { id: id.to_owned(), claim, step, within: 60, unproven: false }))
}

#[track_caller]
fn refused(host: &mut Host<Memory>, asked: Request, kind: FailureKind) {
    let answer = ask(host, asked.clone());
    let Answer::Failed(failure) = answer else { panic!("{asked:?}: {answer:?}") };
    assert_eq!(failure.kind, kind, "{asked:?}: {}", failure.message);
}

#[test]
fn a_host_belongs_to_who_changed_it_first_and_others_change_nothing() {
    let mut host = host();
    assert_eq!(observe(&mut host, &[]).owner, None);
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let mark = observe(&mut host, &[]).owner.unwrap();
    assert_eq!(mark, Mark { owner: owner("machine-1"), epoch: 1, fence: 1 });
    let before = host.system().host().tree();
    let mut other_cluster = claims("machine-1", 1, 9);
    other_cluster.owner.cluster = "cluster-2".to_owned();
    for claim in [claims("machine-2", 0, 9), claims("machine-2", 1, 9), other_cluster, claims("machine-1", 2, 9)] {
        for asked in [
            step("b", claim.clone(), Step::Install(kubelet("2"))),
            step("b", claim.clone(), Step::Remove { component: "kubelet".to_owned() }),
            step("b", claim.clone(), Step::Reboot),
            Request::Refuse { id: "b".to_owned(), claim: claim.clone() },
            Request::Clean { claim: claim.clone() },
            Request::Release { claim: claim.clone() },
            // An adoption from a Machine that is not the owner, and one in an epoch that is not the present one.
            Request::Adopt { claim: claim.clone(), from: owner("machine-3") },
            Request::Adopt { claim: Claim { epoch: 7, ..claim.clone() }, from: owner("machine-1") },
        ] {
            refused(&mut host, asked, FailureKind::NotOwner);
        }
    }
    assert_eq!(host.system().host().tree(), before, "not even a record is written for others");
    assert_eq!(recall(&mut host, "b"), None);
}

#[test]
fn an_adoption_takes_the_host_from_exactly_one_owner_and_begins_another_epoch() {
    let mut host = host();
    assert!(matches!(ask(&mut host, request("a", 500, Step::Install(kubelet("1")))), Answer::Ended(_)));
    let adopt = Request::Adopt { claim: claims("machine-2", 1, 3), from: owner("machine-1") };
    let adopted = Mark { owner: owner("machine-2"), epoch: 2, fence: 3 };
    assert_eq!(ask(&mut host, adopt.clone()), Answer::Adopted(adopted.clone()));
    // The answer was lost: the repeated request has the same answer.
    assert_eq!(ask(&mut host, adopt), Answer::Adopted(adopted.clone()));
    refused(&mut host, step("b", claims("machine-1", 1, 501), Step::Reboot), FailureKind::NotOwner);
    // The fencing tokens of another API server may be lower: they count from the adoption.
    let record = ask(&mut host, step("c", claims("machine-2", 2, 3), Step::Install(kubelet("2"))));
    assert!(matches!(record, Answer::Ended(record) if record.outcome == Outcome::Done));
    refused(&mut host, step("d", claims("machine-2", 2, 2), Step::Reboot), FailureKind::Fenced);
    // The adoption back is a third epoch; a request of the first epoch is refused.
    let back = Request::Adopt { claim: claims("machine-1", 2, 502), from: owner("machine-2") };
    assert!(matches!(ask(&mut host, back), Answer::Adopted(mark) if mark.epoch == 3));
    refused(&mut host, step("e", claims("machine-1", 1, 502), Step::Reboot), FailureKind::NotOwner);
}

#[test]
fn a_released_host_keeps_everything_and_belongs_to_the_next_who_asks() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    assert_eq!(ask(&mut host, Request::Release { claim: claims("machine-1", 1, 1) }), Answer::Released);
    assert_eq!(observe(&mut host, &[]).owner, None);
    assert_eq!(version(&mut host), Some("1".to_owned()));
    // A Machine that still believes to be the owner must observe the host first.
    refused(&mut host, step("b", claims("machine-1", 1, 1), Step::Install(kubelet("2"))), FailureKind::NotOwner);
    let answer = ask(&mut host, step("b", claims("machine-2", 0, 1), Step::Install(kubelet("2"))));
    assert!(matches!(answer, Answer::Ended(_)), "{answer:?}");
    assert_eq!(observe(&mut host, &[]).owner.unwrap().owner, owner("machine-2"));
}

#[test]
fn a_claim_writes_the_mark_and_nothing_else() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    // The host as an earlier version left it, which wrote no mark and compared fencing tokens of its own.
    {
        let mut machine = host.system().host();
        machine.remove(&format!("{HOME}/owner.json"));
        machine.put(&format!("{HOME}/journal/fence"), b"1794963600\n", 0o600);
    }
    let before = host.system().host().tree();
    let seen = observe(&mut host, &[]);
    assert!(seen.owner.is_none() && seen.never_owned);
    let mark = Mark { owner: owner("machine-1"), epoch: 1, fence: 7 };
    let claim = Request::Claim { claim: claims("machine-1", 0, 7) };
    assert_eq!(ask(&mut host, claim.clone()), Answer::Claimed(mark.clone()));
    assert_eq!(ask(&mut host, claim), Answer::Claimed(mark.clone()), "the answer was lost");
    refused(&mut host, Request::Claim { claim: claims("machine-2", 0, 9) }, FailureKind::NotOwner);
    refused(&mut host, step("b", claims("machine-2", 0, 9), Step::Reboot), FailureKind::NotOwner);
    let seen = observe(&mut host, &[]);
    assert!(seen.owner == Some(mark) && !seen.never_owned);
    let mut after = host.system().host().tree();
    assert!(after.remove(&format!("{HOME}/owner.json")).is_some());
    let changed: Vec<_> =
        after.iter().filter(|(path, file)| before.get(*path) != Some(file)).map(|(path, _)| path).collect();
    assert_eq!(changed, [&format!("{HOME}/journal/fence")], "and the fence of earlier versions is shut");
    // A released host can be claimed by any Machine.
    assert_eq!(ask(&mut host, Request::Release { claim: claims("machine-1", 1, 7) }), Answer::Released);
    assert!(!observe(&mut host, &[]).never_owned);
}

#[test]
fn what_the_host_has_no_copy_of_is_not_taken_for_compared() {
    let mut host = host();
    let package = kubelet("1");
    done(&apply(&mut host, "a", Step::Install(package.clone())));
    let look = |host: &mut Host<Memory>| {
        let asked = Observe { installed: vec!["kubelet".to_owned()], health: true, ..Observe::default() };
        match ask(host, Request::Observe(Box::new(asked))) {
            Answer::Observed(seen) => seen.components[0].clone(),
            other => panic!("{other:?}"),
        }
    };
    let seen = look(&mut host);
    assert!(seen.deviations.is_empty() && !seen.health.is_empty(), "{seen:?}");
    let kept: Vec<String> =
        host.system().host().tree().into_keys().filter(|path| path.contains(&package.digest())).collect();
    assert!(!kept.is_empty());
    for path in kept {
        host.system().host().remove(&path);
    }
    let seen = look(&mut host);
    assert_eq!(seen.installed.map(|installed| installed.digest), Some(package.digest()));
    assert_eq!(seen.deviations.iter().map(|one| one.what.as_str()).collect::<Vec<_>>(), ["observation"]);
}

#[test]
fn a_unit_that_ends_again_and_again_does_not_run() {
    let mut host = host();
    let package = kubelet("1");
    done(&apply(&mut host, "a", Step::Install(package.clone())));
    host.system().host().crash_loop("kubelet.service");
    assert_eq!(host.system().host().unit("kubelet.service").active, "activating");
    let seen = observe(&mut host, std::slice::from_ref(&package)).components.remove(0);
    assert_eq!(seen.down, ["kubelet.service"]);
    assert_eq!(seen.deviations.iter().map(|one| one.what.as_str()).collect::<Vec<_>>(), ["unit kubelet.service"]);
    done(&apply(&mut host, "b", Step::Repair(package.clone())));
    assert_eq!(host.system().host().unit("kubelet.service").active, "active");
    // The unit is stopped with the package that brought it.
    host.system().host().crash_loop("kubelet.service");
    done(&apply(&mut host, "c", Step::Remove { component: "kubelet".to_owned() }));
    assert!(!host.system().host().unit("kubelet.service").restarting);
}

#[test]
fn a_fence_from_the_wall_clock_is_not_compared_and_its_operators_are_refused_from_then_on() {
    let mut host = host();
    let fence = format!("{HOME}/journal/fence");
    host.system().host().put(&fence, b"1794963600\n", 0o600);
    // A young API server has low resourceVersions.
    assert!(matches!(ask(&mut host, request("a", 12, Step::Install(kubelet("1")))), Answer::Ended(_)));
    let kept = host.system().host().read(&fence, 64).unwrap().unwrap();
    assert_eq!(String::from_utf8(kept).unwrap().trim(), u64::MAX.to_string());
}

#[test]
fn a_damaged_mark_refuses_all_owners_until_it_is_adopted() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    host.system().host().put(&format!("{HOME}/owner.json"), b"{", 0o600);
    refused(&mut host, request("b", 2, Step::Reboot), FailureKind::NotOwner);
    let seen = observe(&mut host, &[]).owner.unwrap();
    let adopt = Request::Adopt { claim: claims("machine-1", seen.epoch, 2), from: seen.owner };
    assert!(matches!(ask(&mut host, adopt), Answer::Adopted(mark) if mark.epoch == 1));
    let Answer::Ended(record) = ask(&mut host, request("c", 2, Step::Install(kubelet("2")))) else {
        panic!("its owner is let in")
    };
    done(&record);
}

#[test]
fn the_mark_is_there_before_anything_else_and_goes_last() {
    for change in 1.. {
        let mut host = host();
        host.system().host().set_faults(Faults { crash_at: Some(change), ..Faults::default() });
        ask(&mut host, request("a", 1, Step::Install(kubelet("1"))));
        ask(&mut host, request("b", 1, Step::Remove { component: "kubelet".to_owned() }));
        ask(&mut host, Request::Clean { claim: claim(1) });
        let tree = host.system().host().tree();
        let mark = format!("{HOME}/owner.json");
        let ours = |path: &&String| {
            path.starts_with(&format!("{HOME}/journal/steps/"))
                || path.starts_with("/etc/kubernetes/")
                || path.starts_with(&format!("{HOME}/packages/"))
        };
        let left: Vec<_> = tree.keys().filter(ours).collect();
        assert!(left.is_empty() || tree.contains_key(&mark), "without an owner at change {change}: {left:?}");
        if !host.system().gone() {
            assert!(!tree.contains_key(HOME), "it was cleaned: {tree:?}");
            return;
        }
    }
}

/// The former owner cleans up, and another Machine adopts the host between the first read of the mark and the lock.
#[test]
fn a_clean_up_does_not_take_the_mark_of_who_adopted_the_host_meanwhile() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    done(&apply(&mut host, "b", Step::Remove { component: "kubelet".to_owned() }));
    let adopted = Mark { owner: owner("machine-2"), epoch: 2, fence: 3 };
    let mark =
        (format!("{HOME}/journal/step.lock"), format!("{HOME}/owner.json"), serde_json::to_vec(&adopted).unwrap());
    host.system().host().set_faults(Faults { before_lock: Some(mark), ..Faults::default() });
    refused(&mut host, Request::Clean { claim: claims("machine-1", 1, 1) }, FailureKind::NotOwner);
    assert_eq!(observe(&mut host, &[]).owner, Some(adopted));
}

#[test]
fn a_refused_step_never_runs_and_one_that_ran_is_reported() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let refuse =
        |host: &mut Host<Memory>, id: &str| match ask(host, Request::Refuse { id: id.to_owned(), claim: claim(1) }) {
            Answer::Recalled(Some(record)) => record.outcome,
            other => panic!("{other:?}"),
        };
    assert_eq!(refuse(&mut host, "a"), Outcome::Done);
    assert_eq!(refuse(&mut host, "b"), Outcome::Refused);
    assert_eq!(apply(&mut host, "b", Step::Install(kubelet("2"))).outcome, Outcome::Refused);
    assert_eq!(version(&mut host), Some("1".to_owned()));
}

#[test]
fn one_that_hangs_is_running_and_one_that_died_is_interrupted() {
    let mut host = host();
    host.system().host().set_faults(Faults { hang_at: Some(12), ..Faults::default() });
    ask(&mut host, request("a", 1, Step::Install(kubelet("1"))));
    assert!(host.system().gone());
    let mut other = Host::new(host.system().process());
    assert_eq!(recall(&mut other, "a").map(|record| record.outcome), Some(Outcome::Running));
    assert_eq!(observe(&mut other, &[]).records.len(), 1);
    let answer = ask(&mut other, request("b", 1, Step::Install(kubelet("1"))));
    assert!(
        matches!(&answer, Answer::Failed(failure) if failure.kind == FailureKind::Busy && failure.message.contains("step a")),
        "{answer:?}"
    );

    other.system().host().kill_hung();
    assert_eq!(recall(&mut other, "a").map(|record| record.outcome), Some(Outcome::Interrupted));
    assert_eq!(apply(&mut other, "a", Step::Install(kubelet("1"))).outcome, Outcome::Interrupted);
    done(&apply(&mut other, "b", Step::Install(kubelet("1"))));
}

#[test]
fn a_boot_is_done_when_the_host_runs_in_another() {
    let mut host = host();
    assert_eq!(apply(&mut host, "boot", Step::Reboot).outcome, Outcome::Running);
    // The step waits for the reboot, and no other step starts.
    let mut other = Host::new(host.system().process());
    drop(host);
    assert_eq!(recall(&mut other, "boot").map(|record| record.outcome), Some(Outcome::Running));
    let answer = ask(&mut other, request("b", 1, Step::Install(kubelet("1"))));
    assert!(matches!(&answer, Answer::Failed(failure) if failure.kind == FailureKind::Busy), "{answer:?}");
    assert!(other.system().host().boot_asked());
    other.system().host().boot();
    let mut other = Host::new(other.system().process());
    let record = recall(&mut other, "boot").unwrap();
    assert_eq!((record.outcome, record.verb), (Outcome::Done, Verb::Reboot));
    assert_eq!(apply(&mut other, "boot", Step::Reboot).outcome, Outcome::Done);
    assert!(!other.system().host().boot_asked());
}

#[test]
fn a_boot_that_does_not_come_failed() {
    let mut host = host();
    apply(&mut host, "boot", Step::Reboot);
    host.system().host().advance(std::time::Duration::from_secs(600));
    let record = recall(&mut host, "boot").unwrap();
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("boot ID"), "{}", record.message);
    done(&apply(&mut host, "b", Step::Install(kubelet("1"))));
}

#[test]
fn damage_to_a_record_means_interrupted_and_never_unknown() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    for garbage in [&b""[..], b"{\"record\":{\"id\":\"a\",", &[0; 300]] {
        host.system().host().put(&format!("{HOME}/journal/steps/a.json"), garbage, 0o600);
        assert_eq!(recall(&mut host, "a").map(|record| record.outcome), Some(Outcome::Interrupted));
        assert_eq!(apply(&mut host, "a", Step::Install(kubelet("2"))).outcome, Outcome::Interrupted);
        assert_eq!(version(&mut host), Some("1".to_owned()));
    }
    // The last step is also found without the file that names it.
    host.system().host().put(&format!("{HOME}/journal/latest"), b"\0\0", 0o600);
    done(&apply(&mut host, "b", Step::Install(kubelet("2"))));
}

#[test]
fn the_journal_is_bounded_and_knows_old_ids() {
    let mut host = host();
    for number in 0..400 {
        let step = Step::Install(kubelet(if number % 2 == 0 { "1" } else { "2" }));
        done(&apply(&mut host, &format!("step-{number}"), step));
    }
    let kept = host.system().host().list(&format!("{HOME}/journal/steps")).len();
    assert!((fleetwright_host::RECORDS..=2 * fleetwright_host::RECORDS + 1).contains(&kept), "{kept}");
    assert_eq!(recall(&mut host, "step-3").map(|record| record.outcome), Some(Outcome::Done));
    assert_eq!(recall(&mut host, "step-30000"), None);
    assert_eq!(recall(&mut host, "step"), None);
    let calls = host.system().host().unit("kubelet.service");
    apply(&mut host, "step-4", Step::Remove { component: "kubelet".to_owned() });
    assert_eq!(host.system().host().unit("kubelet.service"), calls);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let mut host = host();
    for id in ["", "../a", ".a", "a/b", &"a".repeat(129)] {
        let answer = ask(&mut host, request(id, 1, Step::Reboot));
        assert!(
            matches!(&answer, Answer::Failed(failure) if failure.kind == FailureKind::NotUnderstood),
            "{id}: {answer:?}"
        );
    }
    let mut package = kubelet("1");
    package.files[0].path = "/etc/../shadow".to_owned();
    assert!(apply(&mut host, "a", Step::Install(package)).message.contains("path `/etc/../shadow`"));
    let mut package = kubelet("1");
    package.component = "../x".to_owned();
    assert!(apply(&mut host, "b", Step::Install(package)).message.contains("name `../x`"));
    let mut package = kubelet("1");
    package.files[0].path = format!("{HOME}/journal/fence");
    let fence = format!("path `{HOME}/journal/fence`");
    assert!(apply(&mut host, "c", Step::Install(package)).message.contains(&fence));
}

#[test]
fn a_host_with_components_is_not_cleaned() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let answer = ask(&mut host, Request::Clean { claim: claim(1) });
    assert!(
        matches!(&answer, Answer::Failed(failure) if failure.kind == FailureKind::InUse && failure.message.contains("kubelet"))
    );
}

#[test]
fn a_hung_script_is_killed_when_the_time_is_over_and_what_scripts_print_is_kept() {
    let mut host = host();
    let script = Script {
        check: "test -e /etc/done".to_owned(),
        apply: "echo working\ntouch /etc/done".to_owned(),
        remove: "rm -f /etc/done".to_owned(),
    };
    let package = Package {
        component: "fix".to_owned(),
        version: "1".to_owned(),
        reference: "fix-1".to_owned(),
        method: Method::Script(script),
        ..Package::default()
    };
    host.system().host().faults.hung = vec!["echo working".to_owned()];
    let record = apply(&mut host, "a", Step::Install(package.clone()));
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("killed"), "{}", record.message);
    host.system().host().faults.hung.clear();
    let record = apply(&mut host, "b", Step::Install(package.clone()));
    done(&record);
    assert!(record.tail.contains("working"));
    assert_eq!(observe(&mut host, std::slice::from_ref(&package)).components[0].version.as_deref(), Some("1"));
    let Answer::Log(log) = ask(&mut host, Request::Log { id: "b".to_owned(), bytes: 8 }) else { panic!("no log") };
    assert_eq!(log.0.len(), 8);
    host.system().host().remove("/etc/done");
    assert_eq!(observe(&mut host, std::slice::from_ref(&package)).components[0].deviations.len(), 1);
    done(&apply(&mut host, "c", Step::Repair(package)));
    done(&apply(&mut host, "d", Step::Remove { component: "fix".to_owned() }));
    assert_eq!(host.system().host().stat("/etc/done"), None);
    let asked = Request::Observe(Box::new(Observe { recent: 2, ..Observe::default() }));
    let Answer::Observed(seen) = ask(&mut host, asked) else { panic!("no observation") };
    let ids: Vec<_> = seen.records.iter().map(|record| record.id.as_str()).collect();
    assert_eq!(ids, ["d", "c"], "the last steps are told without knowing their ids");
}

#[test]
fn settings_are_set_now_and_for_the_next_boot_and_put_back() {
    let mut host = host();
    host.system().host().set_sysctl("vm.swappiness", "60");
    let package = settings(&[("vm.swappiness", "1"), ("net.ipv4.tcp_mem", "1 2   3")]);
    done(&apply(&mut host, "a", Step::Install(package.clone())));
    assert_eq!(observe(&mut host, std::slice::from_ref(&package)).components[0].deviations, []);
    host.system().host().boot();
    let mut host = Host::new(host.system().process());
    assert_eq!(observe(&mut host, std::slice::from_ref(&package)).components[0].deviations, []);
    // With one setting less, that sysctl gets its earlier value at once.
    host.system().host().set_sysctl("net.ipv4.tcp_mem", "7 7 7");
    let less = settings(&[("net.ipv4.tcp_mem", "1 2 3")]);
    done(&apply(&mut host, "b", Step::Install(less)));
    assert_eq!(host.system().host().sysctl("vm.swappiness").as_deref(), Some("60"));
    done(&apply(&mut host, "c", Step::Remove { component: "settings".to_owned() }));
    assert_eq!(host.system().host().stat("/etc/sysctl.d"), None);
    let unknown = apply(&mut host, "d", Step::Install(settings(&[("dev.unknown", "1")])));
    assert!(unknown.message.contains("sysctl dev.unknown"), "{}", unknown.message);
}

#[test]
fn one_boot_is_enough_for_a_version_that_wants_one() {
    let mut host = host();
    let package = Package {
        component: "boot".to_owned(),
        version: "2026-11".to_owned(),
        reference: "boot-2026-11".to_owned(),
        method: Method::Reboot,
        ..Package::default()
    };
    assert!(!observe(&mut host, std::slice::from_ref(&package)).components[0].needs_reboot);
    done(&apply(&mut host, "a", Step::Install(package.clone())));
    assert!(observe(&mut host, std::slice::from_ref(&package)).components[0].needs_reboot);
    host.system().host().boot();
    let mut host = Host::new(host.system().process());
    assert!(!observe(&mut host, std::slice::from_ref(&package)).components[0].needs_reboot);
    done(&apply(&mut host, "b", Step::Repair(package.clone())));
    assert!(!observe(&mut host, &[package]).components[0].needs_reboot);
}

#[test]
fn two_components_cannot_have_the_same_file() {
    let mut host = host();
    done(&apply(&mut host, "a", Step::Install(kubelet("1"))));
    let mut other = kubelet("1");
    other.component = "other".to_owned();
    let record = apply(&mut host, "b", Step::Install(other));
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("component kubelet"), "{}", record.message);
}

#[test]
fn a_wrong_digest_names_the_url_and_both_digests() {
    let mut host = host();
    let table = [("http://one/tool-1.tar".to_owned(), b"something else".to_vec())].into();
    host.system().host().faults.web = Web::OnlyUrls(Arc::new(table));
    let record = apply(&mut host, "a", Step::Install(archive("1")));
    assert_eq!(record.outcome, Outcome::Failed);
    for part in ["http://one/tool-1.tar", "http://two/tool-1.tar: status 404", &archive_digest("1")] {
        assert!(record.message.contains(part), "{}", record.message);
    }
    assert_eq!(host.system().host().list(&format!("{HOME}/cache")), [""; 0]);
}

#[test]
fn a_host_that_lies_is_seen_to_differ() {
    let mut host = host();
    host.system().host().faults.lies = true;
    done(&apply(&mut host, "a", Step::Install(Package { units: Vec::new(), ..kubelet("1") })));
    assert!(!observe(&mut host, &[kubelet("1")]).components[0].deviations.is_empty());
}
