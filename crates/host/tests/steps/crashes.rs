//! The helper is killed at every call that changes something, and the next request still ends as declared.

use std::collections::BTreeMap;

use crate::common::*;
use fleetwright_host::system::memory::Faults;
use fleetwright_host::{Host, Memory};
use fleetwright_wire::*;
use proptest::prelude::*;

/// A host with files and units of every kind from before our first change.
fn host_with_history() -> Host<Memory> {
    let host = host();
    {
        let mut machine = host.system().host();
        machine.put("/etc/kubernetes/kubelet.yaml", b"by hand", 0o604);
        machine.put("/usr/local/bin/tool", b"an older one", 0o755);
        machine.set_sysctl("vm.swappiness", "60");
        machine.bring_unit("other.service", true, true);
    }
    host
}

/// One version of a component, for every method that works without package managers.
fn package(component: &str, version: u32) -> Package {
    let text = version.to_string();
    let mut package = match component {
        "kubelet" => kubelet(&text),
        "tool" => Package { files: kubelet(&text).files.split_off(2), ..archive(&text) },
        "settings" => {
            let mut package = settings(&[("vm.swappiness", &text), (&format!("net.core.only_in_{text}"), "1")]);
            package.units = vec![Unit {
                name: "other.service".to_owned(),
                running: Some(version.is_multiple_of(2)),
                ..Unit::default()
            }];
            package
        }
        // Another method with each version.
        "mixed" if version.is_multiple_of(2) => Package { component: "mixed".to_owned(), ..archive(&text) },
        "mixed" => {
            let script = Script {
                check: "test -e /etc/one\ntest -e /etc/two".to_owned(),
                apply: "touch /etc/one\ntouch /etc/two".to_owned(),
                remove: "rm -f /etc/one\nrm -f /etc/two".to_owned(),
            };
            Package { component: "mixed".to_owned(), method: Method::Script(script), ..Package::default() }
        }
        other => panic!("{other}"),
    };
    package.version = text.clone();
    package.reference = format!("{component}-{text}");
    // Two components may not have the same link and files.
    if component == "mixed"
        && let Method::Tarball(tarball) = &mut package.method
    {
        tarball.links = BTreeMap::from([("/usr/local/bin/mixed".to_owned(), "bin/mixed".to_owned())]);
    }
    for file in &mut package.files {
        file.path = file.path.replace("/var/lib/kubelet", &format!("/var/lib/{component}"));
    }
    package.keep = 1;
    package
}

/// The whole state of a host, except our own files.
fn shown(host: &Host<Memory>) -> (BTreeMap<String, String>, Option<String>, String) {
    let machine = host.system().host();
    let mut tree = machine.tree();
    tree.retain(|path, _| !path.starts_with(HOME));
    (tree, machine.sysctl("vm.swappiness"), format!("{:?}", machine.unit("other.service").active))
}

/// A new helper process on the same host.
fn again(host: &Host<Memory>) -> Host<Memory> {
    host.system().host().set_faults(Faults::default());
    Host::new(host.system().process())
}

/// Runs a step that is killed at that call. Returns whether it was killed.
fn crashing(host: &mut Host<Memory>, id: &str, step: Step, faults: Faults) -> bool {
    host.system().host().set_faults(faults);
    ask(host, request(id, 1, step));
    host.system().gone()
}

/// The last request of a test, and how its effect is observed.
#[derive(Clone, Copy, Debug)]
enum Then {
    Again,
    Back,
    Remove,
}

fn ends_as_declared(
    component: &str,
    host: &mut Host<Memory>,
    bare: &(BTreeMap<String, String>, Option<String>, String),
    then: Then,
) {
    let (one, two) = (package(component, 1), package(component, 2));
    match then {
        Then::Again => {
            done(&apply(host, "again", Step::Install(two.clone())));
            let seen = observe(host, std::slice::from_ref(&two));
            assert_eq!(seen.components[0].deviations, []);
            assert_eq!(seen.components[0].installed.as_ref().map(|it| it.version.clone()), Some("2".to_owned()));
        }
        Then::Back => {
            done(&apply(host, "back", Step::Back { component: component.to_owned(), to: one.digest() }));
            let seen = observe(host, std::slice::from_ref(&one));
            assert_eq!(seen.components[0].deviations, []);
            assert_eq!(seen.components[0].installed.as_ref().map(|it| it.version.clone()), Some("1".to_owned()));
        }
        Then::Remove => {}
    }
    if component == "kubelet" && !matches!(then, Then::Remove) {
        // Wherever it was interrupted: the service runs with the present files.
        for path in ["/etc/kubernetes/kubelet.yaml", "/etc/systemd/system/kubelet.service"] {
            assert!(
                host.system().host().unit_knows("kubelet.service", path),
                "not restarted for {path} after {then:?}"
            );
        }
    }
    done(&apply(host, "remove", Step::Remove { component: component.to_owned() }));
    assert_eq!(shown(host), *bare, "after {then:?}");
    assert!(observe(host, &[]).components.is_empty());
    assert_eq!(ask(host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
}

/// Kills the helper at every call of a step from version 1 to 2, and continues in each way from there.
fn at_every_call(component: &str, faults: impl Fn(u64) -> Faults) {
    let (one, two) = (package(component, 1), package(component, 2));
    for then in [Then::Again, Then::Back, Then::Remove] {
        let mut calls = 0;
        loop {
            calls += 1;
            let mut host = host_with_history();
            let bare = shown(&host);
            done(&apply(&mut host, "one", Step::Install(one.clone())));
            let died = crashing(&mut host, "two", Step::Install(two.clone()), faults(calls));
            let reached = host.system().host().faults_reached();
            let mut host = again(&host);
            if died {
                let outcome = recall(&mut host, "two").map(|record| record.outcome);
                assert!(
                    matches!(outcome, None | Some(Outcome::Interrupted | Outcome::Done | Outcome::Failed)),
                    "{outcome:?}"
                );
                // Whatever its outcome: a step that was started is not started again.
                if let Some(outcome) = outcome {
                    assert_eq!(apply(&mut host, "two", Step::Install(two.clone())).outcome, outcome);
                }
            }
            ends_as_declared(component, &mut host, &bare, then);
            if !reached {
                break;
            }
        }
        assert!(calls > 8, "the step was over after {calls} calls");
    }
}

fn dies(at: u64) -> Faults {
    Faults { crash_at: Some(at), ..Faults::default() }
}

fn fails(at: u64) -> Faults {
    Faults { fail_at: Some(at), ..Faults::default() }
}

#[test]
fn files_and_units_survive_a_death_at_every_call() {
    at_every_call("kubelet", dies);
}

#[test]
fn archives_survive_a_death_at_every_call() {
    at_every_call("tool", dies);
}

#[test]
fn settings_survive_a_death_at_every_call() {
    at_every_call("settings", dies);
}

#[test]
fn a_change_of_method_survives_a_death_at_every_call() {
    at_every_call("mixed", dies);
}

#[test]
fn every_call_may_fail() {
    for component in ["kubelet", "tool", "settings", "mixed"] {
        at_every_call(component, fails);
    }
}

#[test]
fn a_removal_that_dies_at_every_call_is_finished_by_whatever_comes_next() {
    for component in ["kubelet", "tool", "settings", "mixed"] {
        for reinstall in [false, true] {
            let mut calls = 0;
            loop {
                calls += 1;
                let mut host = host_with_history();
                let bare = shown(&host);
                done(&apply(&mut host, "one", Step::Install(package(component, 1))));
                crashing(&mut host, "gone", Step::Remove { component: component.to_owned() }, dies(calls));
                let reached = host.system().host().faults_reached();
                let mut host = again(&host);
                if reinstall {
                    done(&apply(&mut host, "new", Step::Install(package(component, 2))));
                    assert_eq!(observe(&mut host, &[package(component, 2)]).components[0].deviations, []);
                }
                done(&apply(&mut host, "remove", Step::Remove { component: component.to_owned() }));
                assert_eq!(shown(&host), bare, "{component} at call {calls}");
                if !reached {
                    break;
                }
            }
            assert!(calls > 8, "{component}: {calls}");
        }
    }
}

/// One request to a host.
#[derive(Clone, Debug)]
enum Act {
    Install(usize, u32),
    Repair(usize, u32),
    Back(usize, u32),
    Remove(usize),
    Boot,
    /// A manual change on the host.
    Drift(usize, u32),
}

const COMPONENTS: [&str; 4] = ["kubelet", "tool", "settings", "mixed"];

fn acts() -> impl Strategy<Value = Vec<(Act, Option<u64>)>> {
    let which = (0..COMPONENTS.len(), 1..4_u32);
    let act = prop_oneof![
        4 => which.clone().prop_map(|(component, version)| Act::Install(component, version)),
        1 => which.clone().prop_map(|(component, version)| Act::Repair(component, version)),
        2 => which.clone().prop_map(|(component, version)| Act::Back(component, version)),
        1 => (0..COMPONENTS.len()).prop_map(Act::Remove),
        1 => Just(Act::Boot),
        1 => which.prop_map(|(component, version)| Act::Drift(component, version)),
    ];
    prop::collection::vec((act, prop::option::of(1..45_u64)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_with_deaths_ends_as_declared_and_leaves_the_host_as_it_was(acts in acts()) {
        let mut host = host_with_history();
        let bare = shown(&host);
        for (number, (act, dies_at)) in acts.iter().enumerate() {
            let step = match *act {
                Act::Install(component, version) => Step::Install(package(COMPONENTS[component], version)),
                Act::Repair(component, version) => Step::Repair(package(COMPONENTS[component], version)),
                Act::Back(component, version) => Step::Back {
                    component: COMPONENTS[component].to_owned(),
                    to: package(COMPONENTS[component], version).digest(),
                },
                Act::Remove(component) => Step::Remove { component: COMPONENTS[component].to_owned() },
                Act::Boot => {
                    host.system().host().boot();
                    host.system().host().set_sysctl("vm.swappiness", "60");
                    host = again(&host);
                    continue;
                }
                Act::Drift(component, version) => {
                    let package = package(COMPONENTS[component], version);
                    let mut machine = host.system().host();
                    for file in &package.files {
                        // Only existing files: a file that a person creates is not ours to remove.
                        if machine.stat(&file.path).is_some() && file.path != "/etc/kubernetes/kubelet.yaml" {
                            machine.put(&file.path, b"drift", 0o777);
                        }
                    }
                    continue;
                }
            };
            crashing(&mut host, &format!("step-{number}"), step, Faults { crash_at: *dies_at, ..Faults::default() });
            host = again(&host);
        }
        for (number, component) in COMPONENTS.iter().enumerate() {
            let package = package(component, 2);
            done(&apply(&mut host, &format!("last-{number}"), Step::Install(package.clone())));
        }
        let declared: Vec<Package> = COMPONENTS.iter().map(|component| package(component, 2)).collect();
        for seen in &observe(&mut host, &declared).components {
            prop_assert_eq!(&seen.deviations, &[]);
        }
        for (number, component) in COMPONENTS.iter().enumerate() {
            done(&apply(&mut host, &format!("gone-{number}"), Step::Remove { component: (*component).to_owned() }));
        }
        prop_assert_eq!(shown(&host).0, bare.0);
        prop_assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
        prop_assert!(!host.system().host().tree().keys().any(|path| path.starts_with(HOME) || path.starts_with(OPT)));
    }
}
