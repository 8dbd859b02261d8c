use std::collections::BTreeMap;

use fleetwright_api::{Facts, Machine, MachinePackageVersion};
use fleetwright_wire as wire;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::package::{Lookup, RenderError, RenderErrorKind, Rendered, SecretUnavailable, Values, render};

struct Objects(BTreeMap<(&'static str, String, String), Vec<u8>>);

impl Objects {
    fn none() -> Self {
        Self(BTreeMap::new())
    }

    fn with(mut self, kind: &'static str, name: &str, key: &str, bytes: &[u8]) -> Self {
        self.0.insert((kind, name.into(), key.into()), bytes.to_vec());
        self
    }
}

impl Lookup for Objects {
    fn secret(&self, _: &str, name: &str, key: &str) -> Result<Vec<u8>, SecretUnavailable> {
        if name == "unshared" {
            return Err(SecretUnavailable::NotShared);
        }
        self.0.get(&("Secret", name.into(), key.into())).cloned().ok_or(SecretUnavailable::Missing)
    }

    fn config_map(&self, name: &str, key: &str) -> Option<Vec<u8>> {
        self.0.get(&("ConfigMap", name.into(), key.into())).cloned()
    }
}

fn machine() -> Machine {
    serde_json::from_value(json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "host-17", "labels": {"rack": "r3", "fleetwright.io/pod-cidr": "10.1.17.0/24"}},
        "spec": {
            "addresses": ["198.18.0.17", "host-17.example"],
            "hardware": {"zone": "z1"},
            "nodeLabels": {"pool": "online", "a": "b"},
            "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        },
    }))
    .unwrap()
}

fn facts() -> Facts {
    Facts { os: Some("debian-12".into()), arch: Some("amd64".into()), cpus: Some(64), ..Facts::default() }
}

fn cluster() -> BTreeMap<String, String> {
    BTreeMap::from([("dnsAddress".to_owned(), "10.96.0.10".to_owned())])
}

fn package(spec: Value) -> MachinePackageVersion {
    let mut whole = json!({"component": "kubelet", "version": "1.37.1"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion",
        "metadata": {"name": "kubelet-1.37.1"}, "spec": whole,
    }))
    .unwrap()
}

fn rendered(spec: Value, objects: &Objects) -> Result<Rendered, RenderError> {
    render(&package(spec), &Values { machine: &machine(), facts: Some(&facts()), cluster: &cluster() }, objects)
}

/// The text of a file with that template.
fn text(template: &str) -> Result<String, RenderError> {
    let spec = json!({"config": {}, "files": [{"path": "/etc/x.conf", "template": template}]});
    let done = rendered(spec, &Objects::none())?;
    Ok(String::from_utf8(done.package.files[0].content.bytes().to_vec()).unwrap())
}

fn error(template: &str) -> RenderError {
    text(template).expect_err("it cannot be rendered")
}

#[test]
fn templates_see_the_machine_its_facts_and_the_clusters_values() {
    for (template, wanted) in [
        ("{{ machine.name }} {{ machine.nodeName }} {{ machine.role }}", "host-17 host-17 Worker"),
        ("{{ machine.address }} {{ machine.addresses | join(',') }}", "198.18.0.17 198.18.0.17,host-17.example"),
        ("{{ machine.labels.rack }} {{ machine.labels['fleetwright.io/pod-cidr'] }}", "r3 10.1.17.0/24"),
        ("{{ machine.hardware.zone }}", "z1"),
        ("{{ machine.taints | json }}", r#"[{"key":"gpu","value":"yes","effect":"NoSchedule"}]"#),
        ("{{ machine.nodeLabels | json }}", r#"{"a":"b","pool":"online"}"#),
        ("{% for key, value in machine.nodeLabels | items %}{{ key }}={{ value }};{% endfor %}", "a=b;pool=online;"),
        ("{% for taint in machine.taints %}{{ taint.key }}{% endfor %}", "gpu"),
        ("{{ facts.os }} {{ facts.cpus * 2 }}", "debian-12 128"),
        ("{{ cluster.dnsAddress }} {{ cluster.other | default('x') }}", "10.96.0.10 x"),
        ("{% if machine.providerID is defined %}id{% else %}none{% endif %}", "none"),
        ("{% if cluster.a is defined and cluster.a == 'b' %}yes{% else %}no{% endif %}", "no"),
    ] {
        assert_eq!(text(template).as_deref(), Ok(wanted), "{template}");
    }
}

#[test]
fn text_outside_of_braces_stays_as_it_is() {
    for plain in ["a: 'b' & <c>\n", "\n\nx\n\n", "${HOME} $(x) %h { } }} \\n", "no newline at the end"] {
        assert_eq!(text(plain).as_deref(), Ok(plain));
    }
    assert_eq!(text("<{{ '<&>' }}>\n\n").as_deref(), Ok("<<&>>\n\n"), "nothing is escaped and no newline is lost");
    let lines = "a\n  {% if machine.name == 'host-17' %}\n  b\n  {% endif %}\nc\n";
    assert_eq!(text(lines).as_deref(), Ok("a\n  b\nc\n"), "a line with a block alone leaves no trace");
}

#[test]
fn an_undefined_name_is_named_with_its_file_its_line_and_what_there_is() {
    let wrong = error("a\nb\nc {{ machine.nodName }}\n");
    assert_eq!(wrong.kind, RenderErrorKind::Invalid);
    let text = wrong.to_string();
    let place = ["kubelet-1.37.1", "spec.files[0].template", "/etc/x.conf", "line 3", "machine.nodName "];
    let names = fleetwright_api::templates::MACHINE.map(|name| format!("machine.{name}"));
    let parts = place.into_iter().chain(names.iter().map(String::as_str));
    parts.for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    for (template, name, kind) in [
        ("{{ nosuch.thing }}", "nosuch", RenderErrorKind::Invalid),
        ("{{ facts.uptime }}", "facts.uptime", RenderErrorKind::Invalid),
        ("{{ machine.hardware.color }}", "machine.hardware.color", RenderErrorKind::Invalid),
        ("{{ machine.hardware.serial }}", "spec.hardware.serial", RenderErrorKind::Missing),
        ("{{ machine.providerID }}", "spec.providerID", RenderErrorKind::Missing),
        ("{{ facts.memory }}", "facts.memory", RenderErrorKind::Missing),
        ("{{ cluster.dnsAdress }}", "cluster.dnsAddress)", RenderErrorKind::Missing),
        ("{{ machine.labels['a/b'] }}", "set a/b in ", RenderErrorKind::Missing),
        ("{{ cluster.a | upper }}", "cluster.a ", RenderErrorKind::Missing),
        ("{% if cluster.a == 'x' %}{% endif %}", "cluster.a ", RenderErrorKind::Missing),
        ("{% for x in cluster.list %}{% endfor %}", "cluster.list ", RenderErrorKind::Missing),
        (
            "{{ cluster.a | default('') }}\n{% for t in machine.taints %}{{ t.color }}{% endfor %}",
            "line 2: t.color ",
            RenderErrorKind::Invalid,
        ),
    ] {
        let wrong = error(template);
        assert!(wrong.message.contains(name), "{template}: {}", wrong.message);
        assert_eq!(wrong.kind, kind, "{template}: {}", wrong.message);
    }
}

#[test]
fn nothing_that_changes_by_itself_or_reads_elsewhere_can_be_used() {
    for (template, said) in [
        ("{{ now() }}", "now"),
        ("{{ range(3) }}", "range"),
        ("{% include '/etc/shadow' %}", "invalid template"),
        ("{% import 'x' as y %}", "invalid template"),
        ("{{ machine.name | random }}", "random"),
        ("{% if machine.name", "line 1: "),
        ("{{ machine.labels.keys() }}", "keys"),
    ] {
        let wrong = error(template);
        assert!(wrong.message.contains(said), "{template}: {}", wrong.message);
        assert_eq!(wrong.kind, RenderErrorKind::Invalid);
    }
}

#[test]
fn a_template_of_loops_in_loops_ends_with_an_error() {
    let list = "[1,2,3,4,5,6,7,8,9,0]";
    let open: String = (0..9).map(|at| format!("{{% for a{at} in {list} %}}")).collect();
    let wrong = error(&format!("{open}x{}", "{% endfor %}".repeat(9)));
    assert!(wrong.message.contains("nested loops"), "{}", wrong.message);
}

#[test]
fn a_package_that_uses_facts_waits_for_them_even_where_it_has_a_default() {
    let (machine, cluster) = (machine(), cluster());
    let values = Values { machine: &machine, facts: None, cluster: &cluster };
    for template in [
        "{{ facts.arch }}",
        "{{ facts.arch | default('amd64') }}",
        "{{ facts | json }}",
        "{% if facts.os is defined %}a{% endif %}",
    ] {
        let package = package(json!({"config": {}, "units": [{"name": "x.service", "content": template}]}));
        let waits = render(&package, &values, &Objects::none()).expect_err("it waits");
        assert_eq!(waits.kind, RenderErrorKind::WaitsForFacts, "{template}");
        assert!(waits.message.contains("facts"), "{}", waits.message);
    }
    let package = package(json!({"config": {}, "files": [{"path": "/etc/x", "template": "{{ machine.name }}"}]}));
    assert!(render(&package, &values, &Objects::none()).is_ok(), "what uses none does not wait");
}

#[test]
fn secrets_are_marked_and_a_bootstrap_credential_is_left_to_be_filled_in() {
    let objects = Objects::none().with("Secret", "tls", "key", b"private").with("ConfigMap", "ca", "crt", &[0xff, 0]);
    let done = rendered(
        json!({"config": {}, "files": [
            {"path": "/etc/key", "mode": "0600", "secret": {"name": "tls", "key": "key"}},
            {"path": "/etc/ca", "configMap": {"name": "ca", "key": "crt"}},
            {"path": "/etc/bootstrap", "bootstrapKubeconfig": true},
        ]}),
        &objects,
    )
    .unwrap();
    let [key, ca, bootstrap] = done.package.files.as_slice() else { panic!("three files") };
    assert!(key.secret && !key.once && key.mode == 0o600 && key.content.bytes() == b"private");
    assert!(!ca.secret && ca.content == wire::Content::Bytes(wire::Bytes(vec![0xff, 0])));
    assert!(bootstrap.secret && bootstrap.once && bootstrap.content.bytes().is_empty());
    assert!(done.needs_credential);
    assert!(!format!("{done:?}").contains("private"), "a secret is never shown");
}

#[test]
fn what_a_package_refers_to_must_be_there_and_be_what_was_meant() {
    let spec = json!({"config": {}, "files": [{"path": "/etc/key", "secret": {"name": "tls", "key": "key"}}]});
    let missing = rendered(spec, &Objects::none()).unwrap_err();
    assert_eq!(missing.field, "spec.files[0].secret");
    assert_eq!(missing.kind, RenderErrorKind::Missing);
    assert!(missing.message.contains("Secret tls ") && missing.message.contains("\"key\""), "{}", missing.message);
    let digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    let secret = json!({"name": "unshared", "key": "key"});
    let source = json!({"secret": secret, "sha256": digest});
    let packages = json!({"packages": {"runc": "1.1"}, "sources": [source]});
    for (spec, field) in [
        (json!({"config": {}, "files": [{"path": "/etc/key", "secret": secret}]}), "spec.files[0].secret"),
        (json!({"tarball": {"source": source}}), "spec.tarball.source.secret"),
        (json!({"deb": packages}), "spec.deb.sources[0].secret"),
        (json!({"rpm": packages}), "spec.rpm.sources[0].secret"),
        (json!({"kernel": {"deb": packages}}), "spec.kernel.deb.sources[0].secret"),
        (json!({"kernel": {"rpm": packages}}), "spec.kernel.rpm.sources[0].secret"),
    ] {
        let unshared = rendered(spec, &Objects::none()).unwrap_err();
        assert_eq!((unshared.field.as_str(), unshared.kind), (field, RenderErrorKind::NotShared));
        assert!(unshared.message.contains("fleetwright.io/allowed-machines"), "{}", unshared.message);
        assert!(unshared.message.contains("host-17"), "{}", unshared.message);
    }

    let spec = json!({"tarball": {"source": {"configMap": {"name": "a", "key": "b"}, "sha256": digest}}});
    let fits = rendered(spec.clone(), &Objects::none().with("ConfigMap", "a", "b", b"foo")).unwrap();
    let wire::Method::Tarball(tarball) = fits.package.method else { panic!("a tarball") };
    assert_eq!(tarball.source.inline, Some(wire::Bytes(b"foo".to_vec())));
    let other = rendered(spec, &Objects::none().with("ConfigMap", "a", "b", b"bar")).unwrap_err();
    assert!(other.message.contains("fcde2b2edba5"), "the digest that was found is told: {}", other.message);
}

#[test]
fn every_method_reaches_the_host_as_declared() {
    let none = Objects::none();
    let method = |spec| rendered(spec, &none).unwrap().package.method;
    let wire::Method::Deb(deb) = method(json!({"deb": {"packages": {"runc": "1.1"}}})) else { panic!("deb") };
    assert!(deb.hold && deb.sources.is_empty() && deb.packages["runc"] == "1.1");
    let wire::Method::Rpm(rpm) = method(json!({"rpm": {"packages": {"runc": "1.1-1"}, "hold": false}})) else {
        panic!("rpm")
    };
    assert!(!rpm.hold);
    assert_eq!(method(json!({"config": {}})), wire::Method::Config);
    assert_eq!(method(json!({"reboot": {}})), wire::Method::Reboot);
    let settings = BTreeMap::from([("vm.swappiness".to_owned(), "0".to_owned())]);
    assert_eq!(method(json!({"sysctl": settings})), wire::Method::Sysctl(settings.clone()));
    let kernel = method(json!({"kernel": {"release": "6.1.0", "boot": "Links", "modules": {"br_netfilter": ""}}}));
    let wire::Method::Kernel(kernel) = kernel else { panic!("kernel") };
    assert_eq!((kernel.boot, kernel.release.as_deref()), (wire::Boot::Links, Some("6.1.0")));
    let script = method(json!({"script": {"check": "test -e /x", "apply": "touch /{{ machine.name }}"}}));
    let wire::Method::Script(script) = script else { panic!("script") };
    assert_eq!(script.apply, "touch /host-17");
}

#[test]
fn a_package_without_exactly_one_method_is_refused() {
    for spec in [json!({}), json!({"config": {}, "reboot": {}})] {
        let wrong = rendered(spec, &Objects::none()).unwrap_err();
        assert!(wrong.message.contains("deb, rpm, tarball"), "{}", wrong.message);
    }
}

#[test]
fn checks_of_the_node_are_not_sent_to_the_host() {
    let checks = json!([{"unit": "kubelet.service"}, {"nodeCondition": "Ready"}, {"tcp": "127.0.0.1:10250"}]);
    let done =
        rendered(json!({"config": {}, "health": {"checks": checks, "within": "90s"}}), &Objects::none()).unwrap();
    assert_eq!(done.node_conditions, ["Ready"]);
    assert_eq!(done.package.health.checks.len(), 2);
    assert_eq!(done.times.healthy_within.as_secs(), 90);
}

#[test]
fn what_the_operator_alone_decides_does_not_change_the_digest() {
    let spec = json!({"config": {}, "files": [{"path": "/a", "content": "x"}]});
    let same = json!({"config": {}, "files": [{"path": "/a", "content": "x"}], "timeouts": {"drain": "1s"}, "disruption": "Drain"});
    let other = json!({"config": {}, "files": [{"path": "/a", "content": "y"}]});
    let digest = |spec| rendered(spec, &Objects::none()).unwrap().digest;
    assert_eq!(digest(spec.clone()), digest(same));
    assert_ne!(digest(spec), digest(other));
}

fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{{ machine.name }}".to_owned()),
        Just("{{ machine.labels | json }}".to_owned()),
        Just("{% for k, v in machine.labels | items %}{{ k }}:{{ v }}\n{% endfor %}".to_owned()),
        Just("{{ cluster | json }}".to_owned()),
        Just("{{ machine.taints | json }}".to_owned()),
        Just("{{ cluster.a | default('none') }}".to_owned()),
        Just("{{ facts.arch }}".to_owned()),
        "[ -z|~\\n]{0,12}",
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn the_same_inputs_give_the_same_bytes(
        template in pieces(),
        labels in proptest::collection::btree_map("[a-z]{1,4}", "[a-z0-9]{0,4}", 0..6),
        values in proptest::collection::btree_map("[a-c]", "[ -~]{0,8}", 0..4),
    ) {
        let package = package(json!({"config": {}, "files": [{"path": "/a", "template": template}]}));
        let mut machine = machine();
        machine.metadata.labels = Some(labels);
        let facts = facts();
        let once = |package: &MachinePackageVersion, machine: &Machine| {
            let done = render(package, &Values { machine, facts: Some(&facts), cluster: &values }, &Objects::none())?;
            Ok::<_, RenderError>((serde_json::to_vec(&done.package).unwrap(), done.digest))
        };
        let first = once(&package, &machine);
        // The objects as an API server returns them.
        let again: Machine = serde_json::from_slice(&serde_json::to_vec(&machine).unwrap()).unwrap();
        let same: MachinePackageVersion = serde_json::from_slice(&serde_json::to_vec(&package).unwrap()).unwrap();
        prop_assert_eq!(once(&same, &again), first);
    }

    #[test]
    fn no_template_makes_it_panic(template in "[ -~\\n]{0,40}|(\\{\\{|\\{%|\\}\\}|%\\}|machine|\\.|cluster| |if|for|in|x|\\||default|json|'|\\(|\\)){0,12}") {
        let _ = text(&template);
    }
}

#[test]
fn a_value_in_a_script_is_one_word_whatever_it_holds() {
    let mut machine = machine();
    let evil = "a'; rm -rf / #$(id)`id`\"\n";
    machine.metadata.labels.as_mut().unwrap().insert("team".into(), evil.into());
    let (facts, cluster) = (facts(), cluster());
    let values = Values { machine: &machine, facts: Some(&facts), cluster: &cluster };
    let apply = |text: &str| {
        let script = json!({"check": "false", "apply": text, "remove": ":"});
        render(&package(json!({"script": script})), &values, &Objects::none()).map(|done| match done.package.method {
            wire::Method::Script(script) => script.apply,
            other => panic!("{other:?}"),
        })
    };
    let script = apply("printf %s {{ machine.labels.team | sh }}").unwrap();
    let said = std::process::Command::new("/bin/sh").args(["-euc", &script]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8(said.stdout).unwrap(), evil);
    assert_eq!(apply("echo {{ facts.cpus | sh }}").unwrap(), "echo '64'");
    for wrong in ["{{ machine.addresses | sh }}", "{{ machine.labels.nobody | sh }}"] {
        assert!(apply(wrong).is_err(), "{wrong}");
    }
}
