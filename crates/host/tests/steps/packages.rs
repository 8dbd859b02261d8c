//! Packages of the operating system and kernels, on hosts in memory: installation, kept versions, repair, removal, and interruptions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::*;
use fleetwright_host::system::DebState;
use fleetwright_host::system::memory::{Faults, Web};
use fleetwright_host::{Host, Memory};
use fleetwright_wire::*;

/// A host whose repositories have these versions, with their dependencies.
fn host_with(repository: &[(&str, &[&str])], depends: &[(&str, &[&str])]) -> Host<Memory> {
    let host = host();
    {
        let table = |of: &[(&str, &[&str])]| -> BTreeMap<String, Vec<String>> {
            of.iter()
                .map(|(name, list)| ((*name).to_owned(), list.iter().map(|it| (*it).to_owned()).collect()))
                .collect()
        };
        let mut machine = host.system().host();
        machine.packages.repository = Arc::new(table(repository));
        machine.packages.depends = Arc::new(table(depends));
    }
    host
}

fn map(packages: &[(&str, &str)]) -> BTreeMap<String, String> {
    packages.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
}

fn package(component: &str, version: &str, method: Method) -> Package {
    Package {
        component: component.to_owned(),
        version: version.to_owned(),
        reference: format!("{component}-{version}"),
        method,
        keep: 1,
        ..Package::default()
    }
}

fn deb(component: &str, packages: &[(&str, &str)]) -> Package {
    let deb = Deb { packages: map(packages), sources: Vec::new(), hold: true };
    package(component, packages[0].1, Method::Deb(deb))
}

/// A package file, as hosts in memory parse it.
fn file(name: &str, version: &str) -> Source {
    let bytes = format!("Package: {name}\nVersion: {version}\n").into_bytes();
    Source { urls: Vec::new(), sha256: fleetwright_host::text::sha256(&bytes), inline: Some(Bytes(bytes)) }
}

fn rpm(component: &str, packages: &[(&str, &str)]) -> Package {
    let rpm = Rpm { packages: map(packages), sources: Vec::new(), hold: true };
    package(component, packages[0].1, Method::Rpm(rpm))
}

fn debs(host: &Host<Memory>) -> BTreeMap<String, DebState> {
    host.system().host().packages.debs.clone()
}

fn held(version: &str) -> DebState {
    DebState { version: version.to_owned(), held: true }
}

fn told(host: &mut Host<Memory>, package: &Package) -> Vec<String> {
    let seen = observe(host, std::slice::from_ref(package));
    seen.components[0].deviations.iter().map(|it| format!("{}: {} / {}", it.what, it.found, it.wanted)).collect()
}

fn install(host: &mut Host<Memory>, id: &str, package: &Package) {
    done(&apply(host, id, Step::Install(package.clone())));
}

fn remove(host: &mut Host<Memory>, id: &str, component: &str) {
    done(&apply(host, id, Step::Remove { component: component.to_owned() }));
}

const TWO: &[(&str, &[&str])] = &[("tool", &["1", "2"]), ("lib", &["1"])];
const NEEDS: &[(&str, &[&str])] = &[("tool", &["lib"])];

#[test]
fn packages_come_with_what_they_need_are_held_and_leave_nothing() {
    let mut host = host_with(TWO, NEEDS);
    let before = host.system().host().tree();
    let package = deb("tool", &[("tool", "1")]);
    install(&mut host, "a", &package);
    assert_eq!(
        debs(&host),
        BTreeMap::from([
            ("tool".to_owned(), held("1")),
            ("lib".to_owned(), DebState { version: "1".to_owned(), held: false })
        ])
    );
    assert_eq!(told(&mut host, &package), [""; 0]);
    remove(&mut host, "b", "tool");
    assert!(debs(&host).is_empty());
    assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
    assert_eq!(host.system().host().tree(), before);
}

#[test]
fn going_back_works_without_a_network_whether_from_files_or_from_a_repository() {
    for from_files in [false, true] {
        let mut host = host_with(TWO, &[]);
        let version = |version: &str| {
            let mut package = deb("tool", &[("tool", version)]);
            if let (true, Method::Deb(deb)) = (from_files, &mut package.method) {
                deb.sources.push(file("tool", version));
            }
            package
        };
        install(&mut host, "a", &version("1"));
        install(&mut host, "b", &version("2"));
        {
            let mut machine = host.system().host();
            machine.packages.repository = Arc::new(BTreeMap::from([("other".to_owned(), Vec::new())]));
            machine.set_faults(Faults { web: Web::Nothing, ..Faults::default() });
        }
        done(&apply(&mut host, "c", Step::Back { component: "tool".to_owned(), to: version("1").digest() }));
        assert_eq!(debs(&host)["tool"], held("1"), "from files: {from_files}");
    }
}

#[test]
fn what_others_did_to_a_package_is_reported_and_repaired() {
    let mut host = host_with(TWO, NEEDS);
    let package = deb("tool", &[("tool", "1")]);
    install(&mut host, "a", &package);
    host.system().host().packages.debs.remove("tool");
    assert_eq!(told(&mut host, &package), ["package tool: absent / 1"]);
    done(&apply(&mut host, "b", Step::Repair(package.clone())));
    host.system().host().packages.debs.insert("tool".to_owned(), DebState { version: "2".to_owned(), held: false });
    assert_eq!(told(&mut host, &package), ["package tool: 2 / 1", "package tool hold: not held / held"]);
    done(&apply(&mut host, "c", Step::Repair(package.clone())));
    assert_eq!(debs(&host)["tool"], held("1"));
}

#[test]
fn what_was_there_before_us_is_put_back() {
    let mut host = host_with(TWO, NEEDS);
    for (name, version) in [("tool", "1"), ("lib", "1")] {
        let state = DebState { version: version.to_owned(), held: name == "tool" };
        host.system().host().packages.debs.insert(name.to_owned(), state);
    }
    let before = debs(&host);
    install(&mut host, "a", &deb("tool", &[("tool", "2")]));
    assert_eq!(debs(&host)["tool"], held("2"));
    // The repository no longer has the version; the host kept its file.
    host.system().host().packages.repository = Arc::new(BTreeMap::from([("tool".to_owned(), vec!["2".to_owned()])]));
    remove(&mut host, "b", "tool");
    assert_eq!(debs(&host), before);
}

#[test]
fn what_another_component_or_a_person_needs_stays() {
    let mut host = host_with(
        &[("tool", &["1"]), ("lib", &["1"]), ("deep", &["1"]), ("other", &["1"]), ("mine", &["1"])],
        &[("tool", &["lib"]), ("other", &["lib"]), ("lib", &["deep"]), ("mine", &["deep"])],
    );
    install(&mut host, "a", &deb("tool", &[("tool", "1")]));
    install(&mut host, "b", &deb("other", &[("other", "1")]));
    remove(&mut host, "c", "tool");
    assert_eq!(debs(&host).keys().collect::<Vec<_>>(), ["deep", "lib", "other"]);
    // A person installs a package that needs one of them.
    host.system().host().packages.debs.insert("mine".to_owned(), DebState::default());
    remove(&mut host, "d", "other");
    assert_eq!(debs(&host).keys().collect::<Vec<_>>(), ["deep", "mine"]);
}

#[test]
fn a_package_that_others_need_is_not_taken_from_under_them() {
    let mut host = host_with(TWO, &[("mine", &["tool"])]);
    install(&mut host, "a", &deb("tool", &[("tool", "1")]));
    host.system().host().packages.debs.insert("mine".to_owned(), DebState::default());
    let record = apply(&mut host, "b", Step::Remove { component: "tool".to_owned() });
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("tool") && record.message.contains("mine"), "{}", record.message);
    assert!(debs(&host).contains_key("mine"));
}

#[test]
fn a_package_that_a_later_version_does_not_have_goes_with_it() {
    let mut host = host_with(&[("tool", &["1", "2"]), ("extra", &["1"])], &[]);
    install(&mut host, "a", &deb("tool", &[("tool", "1"), ("extra", "1")]));
    install(&mut host, "b", &deb("tool", &[("tool", "2")]));
    assert_eq!(debs(&host).keys().collect::<Vec<_>>(), ["tool"]);
}

#[test]
fn a_version_whose_script_fails_is_gone_back_from() {
    let mut host = host_with(TWO, &[]);
    host.system().host().packages.broken = Arc::new(BTreeSet::from(["tool 2".to_owned()]));
    let good = deb("tool", &[("tool", "1")]);
    install(&mut host, "a", &good);
    let record = apply(&mut host, "b", Step::Install(deb("tool", &[("tool", "2")])));
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("script failed"), "{}", record.message);
    done(&apply(&mut host, "c", Step::Back { component: "tool".to_owned(), to: good.digest() }));
    assert_eq!(debs(&host)["tool"], held("1"));
    assert_eq!(told(&mut host, &good), [""; 0]);
}

#[test]
fn mistakes_say_what_to_do() {
    let mut host = host_with(TWO, &[("tool", &["nowhere"])]);
    let fails = |host: &mut Host<Memory>, id: &str, package: Package| {
        let record = apply(host, id, Step::Install(package));
        assert_eq!(record.outcome, Outcome::Failed);
        record.message
    };
    let message = fails(&mut host, "a", deb("tool", &[("tool", "9")]));
    assert!(message.contains("correct the version"), "{message}");
    let message = fails(&mut host, "b", deb("tool", &[("tool", "1")]));
    assert!(message.contains("dependencies"), "{message}");
    let mut wrong = deb("tool", &[("tool", "1")]);
    if let Method::Deb(deb) = &mut wrong.method {
        deb.sources.push(file("tool", "2"));
    }
    let message = fails(&mut host, "c", wrong);
    assert!(message.contains("tool 1") && message.contains("tool 2"), "{message}");
    assert!(debs(&host).is_empty());
}

#[test]
fn a_lock_is_waited_for_as_long_as_the_step_has_time() {
    let mut host = host_with(TWO, &[]);
    host.system().host().packages.locked = 5;
    install(&mut host, "a", &deb("tool", &[("tool", "1")]));
    host.system().host().packages.locked = 10_000;
    let record = apply(&mut host, "b", Step::Install(deb("tool", &[("tool", "2")])));
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.message.contains("held"), "{}", record.message);
}

#[test]
fn rpm_packages_are_installed_held_repaired_and_leave_nothing() {
    for plugin in [true, false] {
        let mut host = host_with(&[("tool", &["1-1", "2-1"]), ("lib", &["1-1"])], NEEDS);
        {
            let mut machine = host.system().host();
            machine.put("/usr/bin/dnf", b"", 0o755);
            machine.put("/etc/dnf/dnf.conf", b"[main]\ngpgcheck=1\n", 0o644);
            if plugin {
                machine.put("/etc/dnf/plugins/versionlock.conf", b"[main]\nenabled=1\n", 0o644);
                machine.put("/etc/dnf/plugins/versionlock.list", b"# mine\nvim-0:9-1.*\n", 0o644);
            }
        }
        let before = host.system().host().tree();
        let (one, two) = (rpm("tool", &[("tool", "1-1")]), rpm("tool", &[("tool", "2-1")]));
        install(&mut host, "a", &two);
        install(&mut host, "b", &one);
        assert_eq!(told(&mut host, &one), [""; 0]);
        host.system().host().packages.rpms.insert("tool".to_owned(), BTreeSet::from(["2-1".to_owned()]));
        let lock = if plugin { "/etc/dnf/plugins/versionlock.list" } else { "/etc/dnf/dnf.conf" };
        host.system().host().put(lock, b"", 0o644);
        assert_eq!(told(&mut host, &one), ["package tool: 2-1 / 1-1"]);
        if plugin {
            host.system().host().put(lock, b"# mine\nvim-0:9-1.*\n", 0o644);
        } else {
            host.system().host().put(lock, b"[main]\ngpgcheck=1\n", 0o644);
        }
        done(&apply(&mut host, "c", Step::Repair(one.clone())));
        assert_eq!(told(&mut host, &one), [""; 0]);
        let text = String::from_utf8(host.system().host().read(lock, 1000).unwrap().unwrap()).unwrap();
        assert!(text.contains(if plugin { "tool-1-1.*\n" } else { "excludepkgs=tool\n" }), "{text}");
        remove(&mut host, "d", "tool");
        assert!(host.system().host().packages.rpms.is_empty());
        assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
        assert_eq!(host.system().host().tree(), before);
    }
}

#[test]
fn rpm_files_are_installed_where_there_is_no_dnf() {
    let mut host = host_with(&[], &[]);
    let mut package = rpm("tool", &[("tool", "1-1")]);
    let record = apply(&mut host, "a", Step::Install(package.clone()));
    assert!(record.message.contains("install dnf"), "{}", record.message);
    if let Method::Rpm(rpm) = &mut package.method {
        rpm.sources.push(file("tool", "1-1"));
    }
    install(&mut host, "b", &package);
    assert_eq!(told(&mut host, &package), [""; 0]);
    remove(&mut host, "c", "tool");
    assert!(host.system().host().packages.rpms.is_empty());
}

const OLD: &str = "6.1.0-40-amd64";

fn kernel(release: &str, boot: Boot, parameters: &[&str]) -> Package {
    let name = format!("linux-image-{release}");
    let mut package = package(
        "kernel",
        release,
        Method::Kernel(Kernel {
            deb: Some(Deb { packages: map(&[(&name, "1")]), sources: Vec::new(), hold: false }),
            release: Some(release.to_owned()),
            modules: map(&[("br_netfilter", ""), ("nf_conntrack", "hashsize=65536")]),
            parameters: parameters.iter().map(|it| (*it).to_owned()).collect(),
            boot,
            ..Kernel::default()
        }),
    );
    package.keep = 1;
    package
}

/// A host with a kernel of its distribution.
fn booted(boot: Boot) -> Host<Memory> {
    let host = host();
    {
        let mut machine = host.system().host();
        for file in ["vmlinuz", "initrd.img"] {
            machine.put(&format!("/boot/{file}-{OLD}"), b"", 0o644);
        }
        if boot == Boot::Grub {
            machine.put("/usr/sbin/update-grub", b"", 0o755);
            machine.put("/etc/default/grub", b"", 0o644);
        }
    }
    let mut system = host.system().process();
    use fleetwright_host::System as _;
    if boot == Boot::Grub {
        let run = fleetwright_host::system::ProgramRun {
            argv: &["update-grub"],
            input: &[],
            env: &[],
            within: std::time::Duration::from_secs(1),
        };
        assert!(system.run(&run).unwrap().ok());
    } else {
        system.link("/vmlinuz", &format!("boot/vmlinuz-{OLD}")).unwrap();
        system.link("/initrd.img", &format!("boot/initrd.img-{OLD}")).unwrap();
    }
    drop(system);
    host
}

fn boot(host: &mut Host<Memory>) {
    host.system().host().boot();
    *host = Host::new(host.system().process());
}

#[test]
fn a_kernel_is_in_place_once_it_runs_and_the_old_one_boots_again_when_it_is_removed() {
    for way in [Boot::Grub, Boot::Links] {
        let mut host = booted(way);
        let before = host.system().host().tree();
        let first = kernel("6.1.0-53-amd64", way, &["panic=10", "quiet"]);
        let seen = observe(&mut host, std::slice::from_ref(&first));
        assert!(!seen.components[0].needs_reboot, "{way:?}: a boot does not help yet");
        install(&mut host, "a", &first);
        let seen = observe(&mut host, std::slice::from_ref(&first));
        assert!(seen.components[0].needs_reboot, "{way:?}");
        assert_eq!(seen.components[0].version.as_deref(), Some(OLD));
        assert_eq!(told(&mut host, &first), [""; 0], "{way:?}");

        boot(&mut host);
        let seen = observe(&mut host, std::slice::from_ref(&first));
        assert!(!seen.components[0].needs_reboot, "{way:?}: {}", host.system().host().command_line);
        assert_eq!(seen.components[0].version.as_deref(), Some("6.1.0-53-amd64"));
        assert_eq!(told(&mut host, &first), [""; 0], "{way:?}");
        assert!(host.system().host().modules.contains("nf_conntrack"));

        // A newer kernel does not remove the running one; the one before is removed once it no longer runs.
        install(&mut host, "b", &kernel("6.1.0-54-amd64", way, &[]));
        assert_eq!(
            debs(&host).keys().collect::<Vec<_>>(),
            ["linux-image-6.1.0-53-amd64", "linux-image-6.1.0-54-amd64"]
        );
        boot(&mut host);
        assert_eq!(host.system().host().facts().kernel, "6.1.0-54-amd64");
        assert_eq!(&*host.system().host().command_line, "root=/dev/vda1 ro", "{way:?}");
        install(&mut host, "c", &kernel("6.1.0-55-amd64", way, &[]));
        assert_eq!(
            debs(&host).keys().collect::<Vec<_>>(),
            ["linux-image-6.1.0-54-amd64", "linux-image-6.1.0-55-amd64"]
        );
        boot(&mut host);

        remove(&mut host, "d", "kernel");
        assert!(debs(&host).is_empty());
        assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
        let mut after = host.system().host().tree();
        let mut before = before;
        if way == Boot::Grub {
            // The bytes of grub.cfg are generated again.
            after.remove("/boot/grub/grub.cfg");
            before.remove("/boot/grub/grub.cfg");
        }
        assert_eq!(after, before, "{way:?}");
        boot(&mut host);
        if way == Boot::Links {
            assert_eq!(host.system().host().facts().kernel, OLD);
        }
        assert!(host.system().host().modules.is_empty());
    }
}

#[test]
fn the_only_kernel_of_a_host_is_not_taken_away() {
    let mut host = booted(Boot::Links);
    install(&mut host, "a", &kernel("6.1.0-53-amd64", Boot::Links, &[]));
    boot(&mut host);
    host.system().host().remove(&format!("/boot/vmlinuz-{OLD}"));
    let record = apply(&mut host, "b", Step::Remove { component: "kernel".to_owned() });
    assert!(record.message.contains("only kernel"), "{}", record.message);
}

#[test]
fn kernel_mistakes_say_what_to_do() {
    let mut host = booted(Boot::Links);
    let record = apply(&mut host, "a", Step::Install(kernel("6.1.0-53-amd64", Boot::Grub, &[])));
    assert!(record.message.contains("/usr/sbin/update-grub"), "{}", record.message);
    let mut wrong = kernel("6.1.0-53-amd64", Boot::Links, &[]);
    if let Method::Kernel(kernel) = &mut wrong.method {
        kernel.release = Some("6.1.0-99-amd64".to_owned());
    }
    let record = apply(&mut host, "b", Step::Install(wrong));
    assert!(record.message.contains("/boot/vmlinuz-6.1.0-99-amd64"), "{}", record.message);
    assert!(record.message.contains("6.1.0-53-amd64"), "{}", record.message);
}

/// Interrupts each of these steps at each of its calls, then requests the end, and compares with a host without interruptions.
fn crash_at_every_call(make: &dyn Fn() -> Host<Memory>, steps: &[Step], end: &[Step], packages: bool) {
    let finish = |host: &mut Host<Memory>| {
        for (at, step) in end.iter().enumerate() {
            done(&apply(host, &format!("end-{at}"), step.clone()));
        }
        let machine = host.system().host();
        let mut tree: BTreeMap<String, String> = machine.tree();
        tree.retain(|path, _| !path.starts_with(HOME));
        (tree, machine.packages.debs.clone(), machine.packages.rpms.clone(), machine.packages.half.clone())
    };
    let mut smooth = make();
    let untouched = {
        let machine = smooth.system().host();
        (machine.packages.debs.clone(), machine.packages.rpms.clone())
    };
    for (at, step) in steps.iter().enumerate() {
        done(&apply(&mut smooth, &format!("step-{at}"), step.clone()));
    }
    let wanted = finish(&mut smooth);
    if packages {
        assert_eq!((wanted.1.clone(), wanted.2.clone()), untouched, "nothing is left");
    }
    let mut crashes = 0;
    for last in 0..steps.len() {
        for call in 1.. {
            let mut host = make();
            for (at, step) in steps[..last].iter().enumerate() {
                done(&apply(&mut host, &format!("step-{at}"), step.clone()));
            }
            host.system().host().set_faults(Faults { crash_at: Some(call), ..Faults::default() });
            ask(&mut host, request("crash", 1, steps[last].clone()));
            let crashed = host.system().gone();
            let system = host.system().process();
            system.host().set_faults(Faults::default());
            let mut host = Host::new(system);
            if !crashed {
                break;
            }
            crashes += 1;
            // The next step runs without repeating the interrupted one, except where the remaining packages are compared.
            for (at, step) in steps[last..].iter().enumerate().filter(|_| !packages) {
                done(&apply(&mut host, &format!("again-{at}"), step.clone()));
            }
            assert_eq!(finish(&mut host), wanted, "crashed at call {call} of step {last}");
        }
    }
    assert!(crashes > 10 * steps.len(), "only {crashes} crashes");
}

#[test]
fn an_interruption_anywhere_leaves_a_host_that_can_be_brought_to_its_packages() {
    let versions = |version: &str| deb("tool", &[("tool", version), ("extra", "1")]);
    let make = || {
        let host = host_with(&[("tool", &["1", "2"]), ("extra", &["0", "1"]), ("lib", &["1"])], NEEDS);
        host.system()
            .host()
            .packages
            .debs
            .insert("extra".to_owned(), DebState { version: "0".to_owned(), held: false });
        host
    };
    let steps = [Step::Install(versions("1")), Step::Install(versions("2"))];
    crash_at_every_call(&make, &steps, &[Step::Install(versions("2"))], false);
    let gone = Step::Remove { component: "tool".to_owned() };
    let all = [Step::Install(versions("1")), Step::Install(versions("2")), gone.clone()];
    crash_at_every_call(&make, &all, &[gone], true);
}

#[test]
fn an_interruption_of_rpm_anywhere_leaves_a_host_that_can_be_brought_to_its_packages() {
    let versions = |version: &str| rpm("tool", &[("tool", version), ("extra", "1-1")]);
    let make = || {
        let host = host_with(&[("tool", &["1-1", "2-1"]), ("extra", &["0-1", "1-1"]), ("lib", &["1-1"])], NEEDS);
        host.system().host().put("/usr/bin/dnf", b"", 0o755);
        host.system().host().put("/etc/dnf/dnf.conf", b"[main]\n", 0o644);
        host.system().host().packages.rpms.insert("extra".to_owned(), BTreeSet::from(["0-1".to_owned()]));
        host
    };
    let steps = [Step::Install(versions("1-1")), Step::Install(versions("2-1"))];
    crash_at_every_call(&make, &steps, &[Step::Install(versions("2-1"))], false);
    let gone = Step::Remove { component: "tool".to_owned() };
    let all = [Step::Install(versions("1-1")), Step::Install(versions("2-1")), gone.clone()];
    crash_at_every_call(&make, &all, &[gone], true);
}

#[test]
fn an_interruption_of_a_kernel_anywhere_leaves_a_host_that_can_be_brought_to_it() {
    for way in [Boot::Grub, Boot::Links] {
        let version = |release: &str| kernel(release, way, &["panic=10"]);
        let make = || booted(way);
        let steps = [Step::Install(version("6.1.0-53-amd64")), Step::Install(version("6.1.0-54-amd64"))];
        crash_at_every_call(&make, &steps, &[Step::Install(version("6.1.0-54-amd64"))], false);
        let gone = Step::Remove { component: "kernel".to_owned() };
        let all = [Step::Install(version("6.1.0-53-amd64")), gone.clone()];
        crash_at_every_call(&make, &all, &[gone], true);
    }
}
