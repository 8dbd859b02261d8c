//! Package versions: what is allowed, what is not, and what is filled in.

use serde_json::{Value, json};

use crate::cases::object;

pub const SHA: &str = "6f1c3f0a5a0e2c7c4b8d9e0f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d";

/// A package version of the method config with one file, and what else is given.
pub fn package(more: Value) -> Value {
    let mut spec = json!({
        "component": "kubelet", "version": "1.37.1", "config": {},
        "files": [{"path": "/etc/kubelet.yaml", "content": "a: b"}],
    });
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    object("MachinePackageVersion", "kubelet-1.37.1", spec)
}

/// With that method instead.
fn method(method: Value) -> Value {
    let mut package = package(method);
    package["spec"].as_object_mut().expect("fields").remove("config");
    package
}

fn booting(kernel: Value) -> Value {
    let mut package = method(json!({"kernel": kernel}));
    package["spec"]["disruption"] = "Reboot".into();
    package
}

fn file(more: Value) -> Value {
    let mut file = json!({"path": "/etc/kubelet.yaml"});
    for (field, value) in more.as_object().expect("fields") {
        file[field] = value.clone();
    }
    package(json!({"files": [file]}))
}

fn template(text: &str) -> Value {
    file(json!({"template": text}))
}

fn unit(more: Value) -> Value {
    let mut unit = json!({"name": "kubelet.service"});
    for (field, value) in more.as_object().expect("fields") {
        unit[field] = value.clone();
    }
    package(json!({"units": [unit]}))
}

fn check(check: Value) -> Value {
    package(json!({"health": {"checks": [check]}}))
}

fn tarball(more: Value) -> Value {
    let mut tarball = json!({"source": source(json!({}))});
    for (field, value) in more.as_object().expect("fields") {
        tarball[field] = value.clone();
    }
    method(json!({"tarball": tarball}))
}

fn source(more: Value) -> Value {
    let mut source = json!({"urls": ["https://packages.example.com/a.tar.zst"], "sha256": SHA});
    for (field, value) in more.as_object().expect("fields") {
        source[field] = value.clone();
    }
    source
}

fn fetched(more: Value) -> Value {
    tarball(json!({"source": source(more)}))
}

fn deb(packages: Value) -> Value {
    method(json!({"deb": {"packages": packages}}))
}

fn many(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

fn named(count: usize, item: impl Fn(usize) -> (String, Value)) -> Value {
    (0..count).map(item).collect::<serde_json::Map<_, _>>().into()
}

#[rustfmt::skip]
pub fn allowed() -> Vec<(&'static str, Value)> {
    vec![
        ("files alone", package(json!({}))),
        ("units alone", object("MachinePackageVersion", "units", json!({"component": "a", "version": "1", "config": {}, "units": [{"name": "ssh@a\\x2db.service", "running": false}]}))),
        ("Debian packages from repositories", deb(json!({"libstdc++6": "12.2.0-14+deb12u1", "libc6:amd64": "2:2.36-9~x"}))),
        ("RPM packages from files", method(json!({"rpm": {"packages": {"NetworkManager": "1.44.0-3.el9"}, "sources": [source(json!({})), source(json!({"urls": ["http://a/b", "http://[::1]:8080/c?d=e"]}))], "hold": false}}))),
        ("an archive from a ConfigMap", tarball(json!({"source": {"configMap": {"name": "archives", "key": "a.tar_1"}, "sha256": SHA}, "strip": 1, "links": {"/usr/local/bin/kubelet": "bin/kubelet", "/opt/cni/bin": "cni"}}))),
        ("an archive from a Secret", tarball(json!({"source": {"secret": {"name": "archives", "key": "a"}, "sha256": SHA}}))),
        ("kernel settings", method(json!({"sysctl": {"vm.swappiness": "10", "net.ipv4.tcp_rmem": "4096\t87380 6291456"}}))),
        ("a kernel", booting(json!({"deb": {"packages": {"linux-image-6.1.0-54-amd64": "6.1.170-1"}}, "release": "6.1.0-54-amd64", "modules": {"br_netfilter": "", "nf_conntrack": "hashsize=1000"}, "parameters": ["quiet", "console=ttyS0,115200n8", "isolcpus=2-5"], "boot": "Links"}))),
        ("scripts", method(json!({"script": {"check": "test -e /x-{{ machine.name }}", "apply": "touch /x-{{ machine.name }}", "remove": ""}}))),
        ("a boot", { let mut boot = method(json!({"reboot": {}})); boot["spec"]["disruption"] = "Reboot".into(); boot }),
        ("files of every kind", package(json!({"files": [
            {"path": "/etc/a", "content": ""}, {"path": "/etc/b", "template": "{{ machine.name }}", "mode": "4755", "owner": "kube", "group": "_kube"},
            {"path": "/etc/c", "secret": {"name": "s", "key": "k"}}, {"path": "/etc/..d", "configMap": {"name": "s", "key": "k"}},
            {"path": "/etc/kubernetes/e", "bootstrapKubeconfig": true, "mode": "0600"},
        ]}))),
        ("units with everything", package(json!({"units": [{"name": "kubelet.service", "enabled": true, "running": true, "content": "[Service]\nSlice=machine.slice\nExecStart=/bin/x ${A} {{ machine.nodeName }}", "dropIns": {"10-limits.conf": "[Service]\nLimitNOFILE={{ cluster.files }}"}, "restartOn": ["/etc/kubelet.yaml"]}]}))),
        ("checks of every kind", package(json!({"health": {"within": "5m", "every": "500ms", "times": 3, "checks": [{"unit": "a.socket"}, {"tcp": "[::1]:65535"}, {"tcp": "localhost:1"}, {"http": "http://127.0.0.1:10248/healthz"}, {"command": "true"}, {"nodeCondition": "example.com/DiskHealthy"}]}}))),
        ("what goes with it", package(json!({"remove": {"before": "systemctl stop x", "paths": ["/var/lib/kubelet", "/etc/cni"]}}))),
        ("components around it", package(json!({"dependsOn": ["containerd", "cni"], "conflictsWith": ["dockerd"]}))),
        ("every name that templates know", template("{{ machine.name }}{{machine.nodeName}}{{- machine.role -}} {{ machine.address }} {{ machine.addresses[0] }} {{ machine.labels.zone }} {{ machine.labels['a/b'] }} {{ machine['name'] }} {{ machine.hardware.rack|default('x') }} {{ machine.taints }} {{ machine.nodeLabels }} {{ machine.providerID }} {{ facts.os }} {{ facts.kernel }} {{ facts.arch }} {{ facts.cpus }} {{ facts.memory }} {{ cluster.anything }}")),
        ("names of a loop", template("{% for address in machine.addresses %}{{ address }}{% endfor %}")),
        ("names of an assignment", template("{% set zone = machine.hardware.zone %}{{ zone }}")),
        ("templates of others, left raw", template("{% raw %}{{ .Names }} {{ name }}{% endraw %}")),
        ("values and groups", template("{{ 'text' }} {{ (machine.name) }} {{ 1 }} { { name }")),
        ("no expression at all", template("machine.slice facts.nothing {machine.x} }} {")),
        ("as much as is allowed", package(json!({"files": many(16, |n| json!({"path": format!("/etc/{n}"), "template": format!("{}{}", "x".repeat(16000), "{{ machine.name }}")}))}))),
    ]
}

/// The object, the field that is wrong, and a part of the message.
#[rustfmt::skip]
pub fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let one_method = "exactly one of deb";
    let one_content = "exactly one of content";
    let one_place = "exactly one of urls";
    let one_question = "exactly one of unit";
    let (file_template, file_path) = ("spec.files[0].template", "spec.files[0].path");
    let mut cases = vec![
        (package(json!({"component": "Kubelet"})), "spec.component", "lower-case letters"),
        (package(json!({"version": ""})), "spec.version", "must be a version"),
        (package(json!({"version": "../1"})), "spec.version", "must be a version"),
        (package(json!({"version": "1 2"})), "spec.version", "must be a version"),
        (method(json!({})), "spec", one_method),
        (package(json!({"sysctl": {"vm.swappiness": "10"}})), "spec", one_method),
        (package(json!({"files": []})), "spec.config", "files or units"),
        (package(json!({"keep": 6})), "spec.keep", "less than or equal to 5"),
        (package(json!({"onFailure": "Panic"})), "spec.onFailure", "\"RollBack\", \"Hold\""),
        (package(json!({"timeouts": {"apply": "0s"}})), "spec.timeouts.apply", "longer than nothing"),
        (package(json!({"health": {"within": "0s"}})), "spec.health.within", "longer than nothing"),
        (package(json!({"health": {"times": 0}})), "spec.health.times", "greater than or equal to 1"),
        // What it does to others
        (package(json!({"dependsOn": ["kubelet"]})), "spec.dependsOn", "cannot wait for itself"),
        (package(json!({"conflictsWith": ["kubelet"]})), "spec.conflictsWith", "cannot conflict with itself"),
        (package(json!({"dependsOn": ["a", "b"], "conflictsWith": ["b"]})), "spec.conflictsWith", "may not be there"),
        (package(json!({"dependsOn": ["a", "a"]})), "spec.dependsOn[1]", "Duplicate"),
        (package(json!({"dependsOn": ["A"]})), "spec.dependsOn[0]", "lower-case letters"),
        (package(json!({"disruption": "Some"})), "spec.disruption", "\"None\", \"Restart\", \"Drain\", \"Reboot\""),
        (method(json!({"reboot": {}})), "spec.disruption", "set disruption to Reboot"),
        (method(json!({"kernel": {"parameters": ["quiet"]}, "disruption": "Drain"})), "spec.disruption", "set disruption to Reboot"),
        // Methods
        (deb(json!({})), "spec.deb.packages", "at least 1"),
        (deb(json!({"-o": "1"})), "spec.deb.packages", "that of a package"),
        (deb(json!({"curl": "latest version"})), "spec.deb.packages[curl]", "exact version"),
        (deb(json!({"curl": "-1"})), "spec.deb.packages[curl]", "exact version"),
        (deb(named(33, |n| (format!("p{n}"), json!("1")))), "spec.deb.packages", "at most 32"),
        (fetched(json!({"sha256": SHA.to_uppercase()})), "spec.tarball.source.sha256", "lower-case hex"),
        (fetched(json!({"sha256": &SHA[1..]})), "spec.tarball.source.sha256", "lower-case hex"),
        (fetched(json!({"urls": []})), "spec.tarball.source", one_place),
        (fetched(json!({"secret": {"name": "s", "key": "k"}})), "spec.tarball.source", one_place),
        (fetched(json!({"urls": ["ftp://a/b"]})), "spec.tarball.source.urls[0]", "http or https"),
        (fetched(json!({"urls": ["packages/a"]})), "spec.tarball.source.urls[0]", "http or https"),
        (fetched(json!({"urls": ["http:///a"]})), "spec.tarball.source.urls[0]", "and a host"),
        (fetched(json!({"urls": ["http://a", "http://a"]})), "spec.tarball.source.urls[1]", "Duplicate"),
        (tarball(json!({"source": {"secret": {"name": "s", "key": "a/b"}, "sha256": SHA}})), "spec.tarball.source.secret.key", "key of a ConfigMap"),
        (tarball(json!({"links": {"usr/bin/x": "x"}})), "spec.tarball.links", "absolute path"),
        (tarball(json!({"links": {"/dev/x": "x"}})), "spec.tarball.links", "not in /proc"),
        (tarball(json!({"links": {"/usr/bin/x": "/x"}})), "spec.tarball.links[/usr/bin/x]", "a path in the archive"),
        (tarball(json!({"links": {"/usr/bin/x": "a/../../x"}})), "spec.tarball.links[/usr/bin/x]", "without .."),
        (tarball(json!({"links": {"/etc/kubelet.yaml": "x"}})), "spec.files", "not both"),
        (tarball(json!({"strip": 17})), "spec.tarball.strip", "less than or equal to 16"),
        (method(json!({"sysctl": {}})), "spec.sysctl", "at least 1"),
        (method(json!({"sysctl": {"vm swappiness": "1"}})), "spec.sysctl", "as sysctl prints it"),
        (method(json!({"sysctl": {"../x": "1"}})), "spec.sysctl", "as sysctl prints it"),
        (method(json!({"sysctl": {"vm.swappiness": "1\n2"}})), "spec.sysctl[vm.swappiness]", "one line"),
        (booting(json!({})), "spec.kernel", "at least one of deb"),
        (booting(json!({"deb": {"packages": {"linux-image": "6.1"}}})), "spec.kernel.release", "uname -r"),
        (booting(json!({"parameters": ["a b"]})), "spec.kernel.parameters[0]", "without spaces and quotes"),
        (booting(json!({"parameters": ["a=\"b\""]})), "spec.kernel.parameters[0]", "without spaces and quotes"),
        (booting(json!({"modules": {"a b": ""}})), "spec.kernel.modules", "as lsmod prints it"),
        (booting(json!({"parameters": ["quiet"], "boot": "Lilo"})), "spec.kernel.boot", "\"Grub\", \"Links\""),
        (method(json!({"script": {"check": "", "apply": "true"}})), "spec.script.check", "at least 1 chars"),
        (method(json!({"script": {"check": "true", "apply": "echo {{ host }}"}})), "spec.script.apply", "no others"),
        (method(json!({"script": {"check": "true"}})), "spec.script.apply", "Required"),
        // Files
        (file(json!({})), "spec.files[0]", one_content),
        (file(json!({"content": "", "template": ""})), "spec.files[0]", one_content),
        (file(json!({"content": "", "bootstrapKubeconfig": true, "mode": "0600"})), "spec.files[0]", one_content),
        (file(json!({"bootstrapKubeconfig": false})), "spec.files[0]", one_content),
        (file(json!({"bootstrapKubeconfig": true})), "spec.files[0].mode", "set mode to \"0600\""),
        (file(json!({"content": "", "mode": "0888"})), "spec.files[0].mode", "in octal"),
        (file(json!({"content": "", "mode": "rw"})), "spec.files[0].mode", "in octal"),
        (file(json!({"content": "", "owner": "Root"})), "spec.files[0].owner", "name of a user"),
        (file(json!({"content": "", "group": "a:b"})), "spec.files[0].group", "name of a user"),
        (file(json!({"content": "x".repeat(65537)})), "spec.files[0].content", "65536"),
        (file(json!({"secret": {"name": "S", "key": "k"}})), "spec.files[0].secret.name", "the name of an object"),
        (package(json!({"files": [{"path": "/a", "content": ""}, {"path": "/a", "content": "b"}]})), "spec.files[1]", "Duplicate"),
        (package(json!({"files": many(33, |n| json!({"path": format!("/etc/{n}"), "content": ""}))})), "spec.files", "at most 32"),
        (package(json!({"files": many(5, |n| json!({"path": format!("/etc/{n}"), "content": "x".repeat(60000)}))})), "spec", "into a ConfigMap"),
        // Units
        (unit(json!({"name": "kubelet"})), "spec.units[0].name", "systemd unit"),
        (unit(json!({"name": "a/b.service"})), "spec.units[0].name", "systemd unit"),
        (unit(json!({"name": "--force.service"})), "spec.units[0].name", "systemd unit"),
        (unit(json!({"dropIns": {"10-limits": ""}})), "spec.units[0].dropIns", "ending in .conf"),
        (unit(json!({"dropIns": {"../x.conf": ""}})), "spec.units[0].dropIns", "ending in .conf"),
        (unit(json!({"dropIns": {"a.conf": "{{ name }}"}})), "spec.units[0].dropIns[a.conf]", "no others"),
        (unit(json!({"content": "{{ machine.nodename }}"})), "spec.units[0].content", "of a machine"),
        (unit(json!({"restartOn": ["/etc/other"]})), "spec.units", "this package version"),
        (package(json!({"units": [{"name": "a.service"}, {"name": "a.service"}]})), "spec.units[1]", "Duplicate"),
        // Checks
        (check(json!({})), "spec.health.checks[0]", one_question),
        (check(json!({"unit": "a.service", "tcp": "a:1"})), "spec.health.checks[0]", one_question),
        (check(json!({"unit": "a"})), "spec.health.checks[0].unit", "systemd unit"),
        (check(json!({"tcp": "localhost"})), "spec.health.checks[0].tcp", "a host and a port"),
        (check(json!({"tcp": "localhost:65536"})), "spec.health.checks[0].tcp", "1 to 65535"),
        (check(json!({"http": "localhost/healthz"})), "spec.health.checks[0].http", "http or https"),
        (check(json!({"command": ""})), "spec.health.checks[0].command", "at least 1 chars"),
        (check(json!({"nodeCondition": "not one"})), "spec.health.checks[0].nodeCondition", "condition of a Node"),
        // Templates
        (template("a {{ host }}"), file_template, "machine, facts, cluster"),
        (template("{{ machine.name }} {{machines.name}}"), file_template, "and no others"),
        (template("{{- env.PATH }}"), file_template, "and no others"),
        (template("{{ machine }}"), file_template, "of a machine"),
        (template("{{ machine.name }} {{ machine.hostname }}"), file_template, "name, nodeName, role"),
        (template("{{ machine.name_ }}"), file_template, "name, nodeName, role"),
        (template("{{ facts.bootId }}"), file_template, "os, kernel, arch, cpus, memory"),
        (template(&"x".repeat(16385)), file_template, "16384"),
        // Removal
        (package(json!({"remove": {"paths": ["/etc"]}})), "spec.remove.paths[0]", "more than a component"),
        (package(json!({"remove": {"paths": ["/var/lib"]}})), "spec.remove.paths[0]", "more than a component"),
        (package(json!({"remove": {"paths": ["/usr/bin"]}})), "spec.remove.paths[0]", "more than a component"),
        (package(json!({"remove": {"paths": ["/var/lib/a/../b"]}})), "spec.remove.paths[0]", "absolute path"),
    ];
    for path in ["", "/", "etc/x", "/etc/", "/etc//x", "/etc/../x", "/etc/..", "/./x", "/a\nb", "/proc/x", "/sys/x", "/dev/x", "/var/lib/fleetwright/x", "/opt/fleetwright"] {
        cases.push((package(json!({"files": [{"path": path, "content": ""}]})), file_path, "absolute path"));
    }
    cases
}

/// What is filled in where nothing is said.
pub fn defaults() -> Vec<(Value, Value)> {
    vec![(
        package(json!({"units": [{"name": "a.service"}]})),
        json!({
            "component": "kubelet", "version": "1.37.1", "config": {}, "disruption": "None", "onFailure": "RollBack", "keep": 1,
            "files": [{"path": "/etc/kubelet.yaml", "mode": "0644", "owner": "root", "group": "root", "content": "a: b"}],
            "units": [{"name": "a.service"}],
            "timeouts": {"apply": "10m", "drain": "30m", "reboot": "15m"},
            "health": {"within": "3m", "every": "2s", "times": 1},
            "remove": {},
        }),
    )]
}
