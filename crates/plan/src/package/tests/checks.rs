use fleetwright_api::MachinePackageVersionSpec;
use serde_json::{Value, json};

use crate::package::{Finding, PackageMember, check, check_set};

fn spec(given: Value) -> MachinePackageVersionSpec {
    let mut whole = json!({"component": "agent", "version": "1"});
    whole.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
    serde_json::from_value(whole).unwrap()
}

fn findings(given: Value) -> Vec<Finding> {
    check(&spec(given))
}

/// A package without findings.
fn good() -> Value {
    json!({
        "tarball": {
            "source": {"urls": ["http://packages/agent.tar.gz"], "sha256": "00"},
            "links": {"/usr/local/bin/agent": "bin/agent"},
        },
        "files": [{"path": "/etc/agent.conf", "template": "name={{ machine.name }}\n"}],
        "units": [{
            "name": "agent.service", "enabled": true, "running": true, "restartOn": ["/etc/agent.conf"],
            "content": "[Unit]\nDescription=Agent\n\n[Service]\nExecStart=/usr/local/bin/agent \\\n  --config /etc/agent.conf\nRestart=always\n\n[Install]\nWantedBy=multi-user.target\n",
        }],
        "health": {"checks": [{"unit": "agent.service"}, {"tcp": "127.0.0.1:80"}]},
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut spec = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = spec.pointer_mut(parent).unwrap();
    match parent {
        Value::Object(map) => drop(map.insert(key.to_owned(), value)),
        list => list[key.parse::<usize>().unwrap()] = value,
    }
    spec
}

#[test]
fn nothing_is_said_of_a_good_package() {
    assert_eq!(findings(good()), []);
}

#[test]
fn what_cannot_work_is_an_error_with_its_field_and_its_line() {
    let unit = |text: &str| with("/units/0/content", text.into());
    let service = "[Service]\nExecStart=/usr/local/bin/agent --config /etc/agent.conf\n";
    for (given, field, line, said) in [
        (with("/files/0/template", "a\n{{ machine.nam }}".into()), "spec.files[0].template", Some(2), "machine.nam "),
        (with("/files/0/template", "a\n\n{% if x".into()), "spec.files[0].template", Some(3), "template"),
        (with("/files/0/template", "a\n{{ cluster.x | nosuch }}".into()), "spec.files[0].template", Some(2), "nosuch"),
        (with("/files/0/template", "{{ now() }}".into()), "spec.files[0].template", Some(1), "now"),
        (unit("[Service]\nExecStart=/usr/local/bin/agent {{ nosuch }}\n"), "spec.units[0].content", Some(2), "nosuch "),
        (
            with("/units/0/dropIns", json!({"a.conf": "{{ facts.x }}"})),
            "spec.units[0].dropIns[a.conf]",
            Some(1),
            "facts.x",
        ),
        (with("/files/0/path", "/proc/x".into()), "spec.files[0].path", None, "kernel"),
        (with("/files/0/path", "/sys/x".into()), "spec.files[0].path", None, "kernel"),
        (with("/files/0/path", "/var/lib/fleetwright/x".into()), "spec.files[0].path", None, "/var/lib/fleetwright;"),
        (with("/files/0/path", "/opt/fleetwright/x".into()), "spec.files[0].path", None, "/opt/fleetwright;"),
        (with("/files/0/path", "/usr/local/bin/agent".into()), "spec.files[0].path", None, "spec.tarball.links"),
        (with("/files/0/path", "/usr/local/bin/agent/x".into()), "spec.files[0].path", None, "/usr/local/bin/agent,"),
        (
            with("/files/0/path", "/etc/systemd/system/agent.service".into()),
            "spec.files[0].path",
            None,
            "agent.service",
        ),
        (
            with("/tarball/links", json!({"/usr/local/bin/agent": "../agent"})),
            "spec.tarball.links[/usr/local/bin/agent]",
            None,
            "../agent",
        ),
        (with("/units/0/restartOn", json!(["/etc/other"])), "spec.units[0].restartOn[0]", None, "/etc/other"),
        (unit(service), "spec.units[0].content", None, "[Install]"),
        (unit("[Service]\nExecStart=agent\n[Install]\n"), "spec.units[0].content", Some(2), "absolute path"),
        (unit("[Service]\nnonsense\n"), "spec.units[0].content", Some(2), "nonsense"),
        (unit("[Service]\nType=simple\n[Install]\nWantedBy=a\n"), "spec.units[0].content", None, "ExecStart"),
        (
            unit(&format!("{service}Type=oneshot\n[Install]\nWantedBy=a\n")),
            "spec.units[0].running",
            None,
            "RemainAfterExit=yes",
        ),
        (with("/dependsOn", json!(["agent"])), "spec.dependsOn[0]", None, "itself"),
        (with("/health/checks", json!([{"tcp": "80"}])), "spec.health.checks[0].tcp", None, "HOST:PORT"),
        (with("/health/checks", json!([{"http": "localhost"}])), "spec.health.checks[0].http", None, "localhost"),
        (with("/health/within", "3s".into()), "", None, ""),
        (with("/remove", json!({"paths": ["/etc"]})), "spec.remove.paths[0]", None, "/etc/agent"),
        (
            json!({"kernel": {"deb": {"packages": {"linux-image": "1"}}}, "disruption": "Reboot"}),
            "spec.kernel.release",
            None,
            "uname -r",
        ),
        (json!({"kernel": {"modules": {"a": ""}}, "disruption": "Drain"}), "spec.disruption", None, "Reboot"),
        (json!({"reboot": {}}), "spec.disruption", None, "Reboot"),
        (json!({"kernel": {"parameters": ["a b"]}, "disruption": "Reboot"}), "spec.kernel.parameters[0]", None, "a b"),
        (json!({"deb": {"packages": {"a": "1.*"}}}), "spec.deb.packages[a]", None, "exact version"),
        (json!({"script": {"check": "", "apply": "x", "remove": ":"}}), "spec.script.check", None, "test -e"),
    ] {
        let found = findings(given.clone());
        if field.is_empty() {
            assert_eq!(found, [], "{given}");
            continue;
        }
        let one = found.iter().find(|one| one.error && one.field == field && one.message.contains(said));
        let one = one.unwrap_or_else(|| panic!("no error at {field} of {given}: {found:#?}"));
        assert_eq!(one.line, line, "{}", one.message);
    }
}

#[test]
fn a_value_in_a_command_of_sh_is_an_error_however_its_lines_are_broken() {
    let unit = |lines: &str| format!("[Service]\n{lines}\nRestart=always\n\n[Install]\nWantedBy=multi-user.target\n");
    for (lines, line) in [
        ("ExecStart=/bin/sh -c 'echo {{ machine.name }}'", 2),
        ("ExecStart=/bin/sh  -c 'echo {{ machine.name }}'", 2),
        ("ExecStart=/bin/sh\t-c 'echo {{ machine.name }}'", 2),
        ("ExecStart=/bin/sh -c \\\n  'echo {{ machine.name }}'", 2),
        ("Type=exec\n ExecStart = /bin/bash \\\n  -c \\\n  # text\n  'echo \\\n{{ machine.name }}'", 3),
        ("ExecStart=/bin/sh -c \\\n{% if true %}\n{# text #}\n  'echo {{ machine.name }}' \\{% endif %}\n  x", 2),
        ("ExecStart=/bin/sh -c \\\n  {% if true %}'echo' \\{% endif %}\n  '{{ machine.name }}'", 2),
    ] {
        for (given, field) in [
            (with("/units/0/content", unit(lines).into()), "spec.units[0].content"),
            (with("/units/0/dropIns", json!({"a.conf": unit(lines)})), "spec.units[0].dropIns[a.conf]"),
        ] {
            let mut found = findings(given);
            found.retain(|one| one.error && one.message.contains("a command of sh"));
            let found: Vec<_> = found.iter().map(|one| (one.field.as_str(), one.line)).collect();
            assert_eq!(found, [(field, Some(line))], "{lines}");
        }
    }
    for lines in [
        "ExecStart=/usr/local/bin/agent --name {{ machine.name }}\nExecStartPre=/bin/sh -c true",
        "ExecStartPre=/bin/sh -c \\\n  true\nExecStart=/usr/local/bin/agent \\\n  --name {{ machine.name }}",
        "ExecStart=/bin/sh -c true\nEnvironment=NAME={{ machine.name }}",
        "ExecStart=/usr/bin/ssh -N {{ machine.name }}",
    ] {
        assert_eq!(findings(with("/units/0/content", unit(lines).into())), [], "{lines}");
    }
}

#[test]
fn checks_that_cannot_fit_into_their_time_are_an_error() {
    let mut given = good();
    given["health"]["within"] = "3s".into();
    given["health"]["times"] = 3.into();
    let found = findings(given);
    assert!(found[0].error && found[0].field == "spec.health.within", "{found:?}");
}

#[test]
fn what_is_doubtful_is_a_warning() {
    for (given, field, said) in [
        (json!({"config": {}, "files": [{"path": "/run/a", "content": ""}]}), "spec.files[0].path", "boot"),
        (with("/files/0/mode", "0666".into()), "spec.files[0].mode", "0644"),
        (with("/units/0/restartOn", json!([])), "spec.units[0].restartOn", "/etc/agent.conf"),
        (with("/units/0/enabled", false.into()), "spec.units[0].enabled", "boot"),
        (with("/health/checks", json!([])), "spec.health.checks", "rolled back"),
        (with("/health/checks", json!([{"unit": "other.service"}])), "spec.health.checks[0].unit", "other.service"),
        (with("/keep", 0.into()), "spec.keep", "rolled back"),
        (with("/tarball/links", json!({})), "spec.units[0].content", "/usr/local/bin/agent"),
        (json!({"script": {"check": "test -e /x", "apply": "touch /x"}}), "spec.script.remove", "undo"),
        (json!({"config": {}}), "spec.config", "does nothing"),
        (
            json!({"config": {}, "files": [{"path": "/etc/k", "secret": {"name": "a", "key": "b"}}]}),
            "spec.files[0].mode",
            "0600",
        ),
        (
            json!({"config": {}, "files": [{"path": "/etc/k", "content": "{{ machine.name }}"}]}),
            "spec.files[0].content",
            "template",
        ),
        (
            json!({"config": {}, "files": [{"path": "/etc/systemd/system/a.service", "content": ""}]}),
            "spec.files[0].path",
            "spec.units",
        ),
    ] {
        let found = findings(given.clone());
        let one = found.iter().find(|one| !one.error && one.field == field && one.message.contains(said));
        assert!(one.is_some(), "no warning at {field} of {given}: {found:#?}");
        assert!(!found.iter().any(|finding| finding.error), "{found:#?}");
    }
}

fn together(specs: &[Value]) -> Vec<String> {
    let specs: Vec<_> = specs.iter().cloned().map(spec).collect();
    let members: Vec<_> = specs.iter().map(PackageMember::from).collect();
    check_set(&members).into_iter().map(|finding| finding.message).collect()
}

#[test]
fn packages_that_cannot_be_on_one_machine_are_reported() {
    let one = |component: &str, rest: Value| {
        let mut spec = json!({"component": component, "config": {}});
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        spec
    };
    let file = json!({"files": [{"path": "/etc/x", "content": ""}]});
    for (specs, said) in [
        (vec![one("a", json!({"dependsOn": ["b"]}))], &["a depends on b"][..]),
        (vec![one("a", json!({"conflictsWith": ["b"]})), one("b", json!({}))], &["a conflicts with b"][..]),
        (vec![one("b", json!({"dependsOn": ["a"]})), one("a", json!({"dependsOn": ["b"]}))], &["a → b → a"][..]),
        (vec![one("a", file.clone()), one("b", file)], &["b and a ", "/etc/x"][..]),
        (
            vec![
                one("a", json!({"units": [{"name": "x.service", "content": ""}]})),
                one("b", json!({"files": [{"path": "/etc/systemd/system/x.service", "content": ""}]})),
            ],
            &["/etc/systemd/system/x.service"][..],
        ),
        (
            vec![
                json!({"component": "a", "sysctl": {"vm.x": "1"}}),
                json!({"component": "b", "sysctl": {"vm.x": "2"}}),
            ],
            &["b and a ", "vm.x"][..],
        ),
        (
            vec![
                json!({"component": "a", "deb": {"packages": {"runc": "1"}}}),
                json!({"component": "b", "deb": {"packages": {"runc": "2"}}}),
            ],
            &["b and a ", "package runc"][..],
        ),
        (
            vec![
                one("containerd", json!({"health": {"checks": [{"nodeCondition": "Ready"}]}})),
                one("cni", json!({"dependsOn": ["containerd"]})),
                one("kubelet", json!({"dependsOn": ["cni"], "files": [{"path": "/b", "bootstrapKubeconfig": true}]})),
            ],
            &["nodeCondition to kubelet"][..],
        ),
    ] {
        let found = together(&specs);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(said.iter().all(|word| found[0].contains(word)), "{}", found[0]);
    }
}

#[test]
fn packages_that_stand_beside_each_other_are_fine() {
    let found = together(&[
        json!({"component": "kubelet", "config": {}, "dependsOn": ["runc", "containerd"], "health": {"checks": [{"nodeCondition": "Ready"}]}}),
        json!({"component": "containerd", "config": {}, "dependsOn": ["runc"]}),
        json!({"component": "runc", "config": {}, "conflictsWith": ["crun"]}),
    ]);
    assert_eq!(found, Vec::<String>::new());
}
