//! `fleetwright machine`: lists become machines, and the output shows the status so that a person can act on it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use fleetwright_api::{Machine, NodeBinding, names};
use fleetwright_lab::Target;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::AsyncBufReadExt as _;

use crate::support::{CliServer, alone};

const INVENTORY: &str = "\
[web]
web[1:2] ansible_host=192.0.2.1 rack=r1 ansible_ssh_pass=hunter2
[prod:children]
web
[prod:vars]
site=east
motto=not a label
";

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("it can be written");
    path
}

#[test]
fn an_inventory_is_shown_as_machines_without_any_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(&folder, "hosts.ini", INVENTORY);
    let path = path.to_str().expect("text");
    let ran = alone(&[
        "machine",
        "import",
        path,
        "--trust-on-first-use",
        "--dry-run",
        "-o",
        "json",
        "-n",
        "blue",
        "--label",
        "pool=online",
        "--package",
        "kubelet=kubelet-1.37.1",
    ]);
    assert!(
        ran.err
            .lines()
            .any(|line| ["hosts.ini:2 and 1 ", "ansible_ssh_pass", "dropped"].iter().all(|part| line.contains(part))),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("variable motto"), "{}", ran.err);
    assert!(!ran.err.contains("hunter2"), "{}", ran.err);
    let list: Value = serde_json::from_str(&ran.ok()).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        list["items"][0],
        json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "web1", "namespace": "blue", "labels": {
                "group.fleetwright.io/prod": "true", "group.fleetwright.io/web": "true",
                "pool": "online", "rack": "r1", "site": "east",
            }},
            "spec": {
                "role": "Worker",
                "addresses": ["192.0.2.1"],
                "hardware": {"rack": "r1"},
                "packages": [{"component": "kubelet", "ref": "kubelet-1.37.1"}],
                "ssh": {"hostKeys": {"policy": "TrustOnFirstUse"}, "keyRef": {"name": "fleet-ssh"}, "port": 22, "user": "root"},
            },
        })
    );
}

#[test]
fn hosts_with_an_unknown_key_are_refused_with_the_ways_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(&folder, "hosts.csv", "name,address\na,192.0.2.1\nb,192.0.2.2\n");
    let known = file(&folder, "known", "192.0.2.1 ssh-ed25519 AAAA\n");
    let ran = alone(&[
        "machine",
        "import",
        path.to_str().expect("text"),
        "--known-hosts",
        known.to_str().expect("text"),
        "--dry-run",
        "-o",
        "yaml",
    ]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("name: a") && !ran.out.contains("name: b"), "{}", ran.out);
    assert!(ran.out.contains("ssh-ed25519 AAAA"), "{}", ran.out);
    assert!(ran.err.contains("host key of b") && ran.err.contains("--trust-on-first-use"), "{}", ran.err);
    let empty = file(&folder, "empty.ini", "# nothing\n");
    let refused = alone(&["machine", "import", empty.to_str().expect("text"), "--dry-run", "-o", "yaml"]).refused();
    assert!(refused.contains("empty.ini"), "{refused}");
}

/// A running `machine status -w` with its output.
struct Watching {
    process: tokio::process::Child,
    lines: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>,
}

impl Watching {
    fn start(place: &CliServer, args: &[&str]) -> Self {
        let mut command = tokio::process::Command::from(place.command(&[&["machine", "status", "-w"], args].concat()));
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let lines = tokio::io::BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Self { process, lines }
    }

    /// The next line, without its time.
    async fn next(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(60), self.lines.next_line()).await;
        let line = line.expect("a line within a minute").expect("text").expect("it goes on");
        let clock =
            line.split_whitespace().next().is_some_and(|word| word.len() == 8 && word.matches(':').count() == 2);
        if clock { line[8..].trim_start().to_owned() } else { line }
    }

    /// Waits for a message on standard error.
    async fn hears(&mut self, said: &str) {
        let stderr = self.process.stderr.take().expect("it is piped, and was not read before");
        let line = tokio::io::BufReader::new(stderr).lines().next_line().await;
        assert!(line.expect("text").is_some_and(|line| line.contains(said)), "not {said}");
    }

    /// Sends Ctrl-C, and checks that no output is left.
    async fn stop(mut self) {
        let id = self.process.id().expect("it runs").to_string();
        let killed = std::process::Command::new("kill").args(["-INT", &id]).status();
        assert!(killed.expect("kill runs").success());
        assert!(self.process.wait().await.expect("it ends").success());
        assert_eq!(self.lines.next_line().await.expect("text"), None);
    }
}

async fn every_change_of_a_machine_is_reported(target: Target) {
    let place = CliServer::new(target);
    place.run(&["install"]).await.ok();
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(&folder, "hosts.csv", "name,address\na,192.0.2.1\nb,192.0.2.2\n");
    place.run(&["machine", "import", path.to_str().expect("text"), "--trust-on-first-use"]).await.ok();
    let api: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    let say = async |name: &str, status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &patch).await.expect("it has a status");
    };
    let broken = |message: &str| {
        json!({"phase": "Degraded", "components": [
            {"component": "kubelet", "desired": "2", "observed": "1", "state": "RolledBack", "since": "2026-11-16T08:00:00Z", "message": message},
        ]})
    };
    say("a", json!({"phase": "Ready"})).await;
    say("b", json!({"phase": "Ready"})).await;

    let mut all = Watching::start(&place, &[]);
    let mut one = Watching::start(&place, &["b"]);
    let mut problems = Watching::start(&place, &["--problems", "-l", "fleetwright.io/none!=x"]);
    problems.hears("namespace fleet").await;
    // First the present state, as without -w.
    assert!(all.next().await.starts_with("NAME"));
    assert!(all.next().await.starts_with("a ") && all.next().await.starts_with("b "));
    assert!(one.next().await.starts_with("machine/b is Ready, 0/0 "));
    while !one.next().await.starts_with("  address") {}

    // Then a line for each change, only of the selected machines.
    say("a", json!({"phase": "Converging", "progress": {"step": "install kubelet 2", "since": "2026-11-16T08:00:00Z", "message": "40 %"}})).await;
    assert_eq!(all.next().await, "a  Converging 0/0 install kubelet 2: 40 %");
    // The Node is not part of the output, so that its change prints nothing.
    say("a", json!({"nodeRef": {"name": "a"}})).await;
    say("a", json!({"phase": "Ready", "progress": null})).await;
    assert_eq!(all.next().await, "a  Ready 0/0");
    say("b", broken(&format!("it \u{1b}[31mbroke\n{}", "x".repeat(500)))).await;
    for watching in [&mut all, &mut one, &mut problems] {
        let line = watching.next().await;
        assert!(line.starts_with("b  Degraded 0/1 kubelet RolledBack: it"), "{line}");
        assert!(line.len() < 200 && !line.contains('\u{1b}'), "a line for a terminal: {line:?}");
    }
    say("b", json!({"phase": "Ready", "components": []})).await;
    for watching in [&mut all, &mut one, &mut problems] {
        assert_eq!(watching.next().await, "b  Ready 0/0");
    }
    api.delete("b", &DeleteParams::default()).await.expect("it is deleted");
    assert_eq!(all.next().await, "b  deleted");
    assert_eq!(one.next().await, "b  deleted");
    for watching in [all, one, problems] {
        watching.stop().await;
    }
    let refused = place.run(&["machine", "status", "-w", "-o", "json"]).await.refused();
    assert!(refused.contains("--watch"), "{refused}");
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_a_machine_is_reported_while_one_watches() {
    every_change_of_a_machine_is_reported(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_a_machine_is_reported_while_one_watches_on_real() {
    every_change_of_a_machine_is_reported(Target::real().await.expect("the real server starts")).await;
}

async fn machines_are_imported_reported_and_steered(target: Target) {
    let place = CliServer::new(target);
    place.run(&["install"]).await.ok();
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(
        &folder,
        "hosts.csv",
        "name,address,rack,label:tier\na,192.0.2.1,r1,front\nb,192.0.2.2,r1,back\nc,192.0.2.3,r2,back\n",
    );
    let path = path.to_str().expect("text");
    let import = ["machine", "import", path, "--trust-on-first-use"];

    // A dry run changes nothing; neither does the same list; a changed list changes only the differences.
    let out = place.run(&[&import[..], &["--dry-run"]].concat()).await.ok();
    assert!(out.contains("machine.fleetwright.io/a created (dry run)"), "{out}");
    let api: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    assert_eq!(api.list(&Default::default()).await.expect("a list").items.len(), 0);
    let out = place.run(&import).await.ok();
    assert_eq!(out.lines().filter(|line| line.ends_with(" created")).count(), 3, "{out}");
    let out = place.run(&import).await.ok();
    assert_eq!(out.lines().filter(|line| line.ends_with(" unchanged")).count(), 3, "{out}");
    let out = place.run(&[&import[..], &["--label", "pool=x"]].concat()).await.ok();
    assert_eq!(out.lines().filter(|line| line.ends_with(" configured")).count(), 3, "{out}");

    let status = json!({"status": {
        "phase": "Degraded",
        "facts": {"os": "debian-12", "kernel": "6.1.0", "arch": "amd64", "cpus": 4, "memory": "8Gi"},
        "components": [
            {"component": "containerd", "desired": "2.0", "observed": "2.0", "state": "Ready", "since": "2026-11-16T08:00:00Z"},
            {"component": "kubelet", "desired": "1.37.1", "observed": "1.36.4", "state": "RolledBack", "since": "2026-11-16T08:00:00Z",
             "message": "kubelet 1.37.1 was not healthy\nwithin \u{1b}[31m3m", "failed": "00"},
        ],
        "conditions": [
            {"type": "PackagesReady", "status": "False", "reason": "RolledBack", "message": "kubelet", "lastTransitionTime": "2026-11-16T08:00:00Z"},
            {"type": "Reachable", "status": "True", "reason": "Connected", "message": "", "lastTransitionTime": "2026-11-16T08:00:00Z"},
        ],
        "lastDrift": {"at": "2026-11-16T08:00:00Z", "repaired": true, "items": [
            {"component": "containerd", "what": "file /etc/x mode", "found": "0666", "wanted": "0644"},
        ]},
    }});
    api.patch_status("b", &PatchParams::default(), &Patch::Merge(&status)).await.expect("it has a status");
    let ready = json!({"status": {"phase": "Ready"}});
    api.patch_status("a", &PatchParams::default(), &Patch::Merge(&ready)).await.expect("it has a status");

    let out = place.run(&["machine", "status"]).await.ok();
    let names: Vec<_> = out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["b", "c", "a"], "problems first, then what is not known, then what is well:\n{out}");
    assert!(out.contains("kubelet RolledBack: kubelet 1.37.1 was not healthy within"), "{out}");
    assert!(!out.contains('\u{1b}'), "nothing but text reaches the terminal: {out:?}");
    let out = place.run(&["machine", "status", "--problems", "-o", "wide"]).await.ok();
    assert!(out.contains("192.0.2.2") && out.contains("debian-12") && !out.contains("192.0.2.1"), "{out}");
    let out = place.run(&["machine", "status", "machine/b"]).await.ok();
    for said in [
        "machine/b is Degraded",
        "1/2 packages",
        "✗ kubelet",
        "1.36.4 → 1.37.1",
        "✓ containerd",
        "was 0666",
        "should be 0644",
        "debian-12, kernel 6.1.0, amd64",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let out = place.run(&["machine", "status", "-l", "tier=back", "-o", "json"]).await.ok();
    let list: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    let out = place.run(&["why", "machine/b"]).await.ok();
    assert!(
        out.contains("Packages:") && out.contains("kubelet") && out.contains("fleetwright machine retry b -n fleet"),
        "{out}"
    );

    place.run(&["machine", "pause", "-l", "rack!=nowhere,tier=back"]).await.ok();
    assert!(api.get("c").await.expect("it is there").spec.paused);
    assert!(!api.get("a").await.expect("it is there").spec.paused);
    let out = place.run(&["machine", "pause", "b"]).await.ok();
    assert!(out.contains("b paused (unchanged)"), "{out}");
    place.run(&["machine", "resume", "--all"]).await.ok();
    assert!(!api.get("b").await.expect("it is there").spec.paused);
    place.run(&["machine", "retry", "b"]).await.ok();
    let annotations = api.get("b").await.expect("it is there").metadata.annotations.unwrap_or_default();
    assert!(annotations.contains_key(names::RETRY), "{annotations:?}");

    // A host is taken over only from exactly the Machine that owns it.
    let asked = async || api.get("c").await.ok()?.metadata.annotations?.get(names::ADOPT_HOST).cloned();
    let owned = async |owner: Value, reason: &str| {
        let said = json!({
            "type": names::HOST_OWNED, "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-11-16T08:00:00Z",
        });
        let status = json!({"status": {"hostOwner": owner, "conditions": [said]}});
        api.patch_status("c", &PatchParams::default(), &Patch::Merge(&status)).await.expect("it has a status");
    };
    let error = place.run(&["machine", "adopt", "c"]).await.refused();
    assert!(error.contains("nothing to adopt"), "{error}");
    let owner = |uid: &str| json!({"cluster": "another", "namespace": "fleet", "name": "z", "uid": uid, "epoch": 3});
    owned(owner("uid-9"), "HostOwnedByAnother").await;
    for args in [&["machine", "adopt", "c"][..], &["machine", "adopt", "c", "--from", "uid-8"]] {
        let error = place.run(args).await.refused();
        assert!(error.contains("--from uid-9") && error.contains("another"), "{error}");
    }
    assert_eq!(asked().await, None, "nothing was asked for");
    let out = place.run(&["machine", "adopt", "c", "--from", "uid-9"]).await.ok();
    assert!(out.contains("adopting") && out.contains("uid-9"), "{out}");
    let first = asked().await.unwrap_or_default();
    assert!(first.starts_with("another/uid-9/3/"), "{first}");
    place.run(&["machine", "adopt", "c", "--from", "uid-9"]).await.ok();
    assert_ne!(asked().await.unwrap_or_default(), first, "it is another request, as after the host was wiped");
    let own = api.get("c").await.expect("it is there").metadata.uid.unwrap_or_default();
    owned(owner(&own), "Owned").await;
    let out = place.run(&["machine", "adopt", "c"]).await.ok();
    assert!(out.contains("already owns"), "{out}");
    owned(Value::Null, "HostNotClaimed").await;
    let error = place.run(&["machine", "adopt", "c"]).await.refused();
    assert!(error.contains("--from unclaimed"), "{error}");
    place.run(&["machine", "adopt", "c", "--from", "unclaimed"]).await.ok();
    assert!(asked().await.unwrap_or_default().starts_with("unclaimed/"));

    let refused = place.run(&["machine", "force-release", "a"]).await.refused();
    assert!(refused.contains("kubectl delete machine a "), "{refused}");
    let hold = json!({"metadata": {"finalizers": [names::MACHINE_FINALIZER]}});
    api.patch("a", &PatchParams::default(), &Patch::Merge(&hold)).await.expect("it is held");
    api.delete("a", &DeleteParams::default()).await.expect("it is deleted");
    place.run(&["machine", "force-release", "a"]).await.ok();
    let annotations = api.get("a").await.expect("it is there").metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get(names::FORCE_RELEASE).map(String::as_str), Some("true"));

    for (args, said) in [
        (&["machine", "status", "nobody"][..], "\"nobody\" not found"),
        (&["machine", "retry", "-l", "tier=none"], "tier=none"),
        (&["machine", "plan", "nobody"], "not found"),
        (&["machine", "pause", "x", "-n", "elsewhere"], "namespace elsewhere"),
    ] {
        let refused = place.run(args).await.refused();
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_imported_and_reported() {
    machines_are_imported_reported_and_steered(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_imported_and_reported_on_real() {
    machines_are_imported_reported_and_steered(Target::real().await.expect("the server starts")).await;
}

async fn plans_are_reported(target: Target) {
    let place = CliServer::new(target);
    place.run(&["install"]).await.ok();
    let packages: String = [
        ("runc", "1.1"),
        ("containerd", "1.6"),
        ("containerd", "1.7"),
        ("sysctl-network", "1"),
        ("kernel", "6.1.0-9-amd64"),
    ]
    .iter()
    .map(|(name, version)| format!("---\n{}", alone(&["package", "new", name, "--version", version]).ok()))
    .collect();
    place.kubectl(&["apply", "-n", "fleet", "-f", "-"], Some(&packages)).await.ok();
    let machine = |name: &str, refs: &[(&str, &str)]| {
        json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": name},
            "spec": {"packages": refs.iter().map(|(component, name)| json!({"component": component, "ref": name})).collect::<Vec<_>>()},
        })
        .to_string()
    };
    let new = machine("new", &[("containerd", "containerd-1.6"), ("runc", "runc-1.1")]);
    let old =
        machine("old", &[("runc", "runc-1.1"), ("containerd", "containerd-1.7"), ("kernel", "kernel-6.1.0-9-amd64")]);
    let broken = machine("broken", &[("kubelet", "kubelet-9")]);
    for object in [&new, &old, &broken] {
        place.kubectl(&["apply", "-n", "fleet", "-f", "-"], Some(object)).await.ok();
    }
    let api: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    let entry = |component: &str, version: &str| json!({"component": component, "desired": version, "observed": version, "state": "Ready", "since": "2026-11-16T08:00:00Z"});
    let status = json!({"status": {"components": [entry("runc", "1.1"), entry("containerd", "1.6"), entry("sysctl-network", "1")]}});
    api.patch_status("old", &PatchParams::default(), &Patch::Merge(&status)).await.expect("it has a status");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "old"}}).to_string();
    place.kubectl(&["apply", "-f", "-"], Some(&node)).await.ok();

    // The Node is not known to belong to this machine: a person confirms it, with a right that differs from writing Machines.
    let ran = place.run(&["machine", "plan", "old"]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("fleetwright machine bind-node old"), "{}", ran.out);
    let bound = async || api.get("old").await.expect("it is there").status.and_then(|status| status.node_ref);
    let out = place.run(&["machine", "bind-node", "old", "--dry-run"]).await.ok();
    assert!(out.contains("would be bound to Node old"), "{out}");
    assert_eq!(bound().await, None);
    let out = place.run(&["machine", "bind-node", "old"]).await.ok();
    assert!(out.contains("machine.fleetwright.io/old bound"), "{out}");
    assert_eq!(bound().await.and_then(|node| node.binding), Some(NodeBinding::Adopted));
    let out = place.run(&["machine", "bind-node", "old"]).await.ok();
    assert!(out.contains("already bound"), "{out}");
    let error = place.run(&["machine", "bind-node", "new"]).await.refused();
    assert!(error.contains("Node new not found"), "{error}");

    let out = place.run(&["machine", "plan", "new"]).await.ok();
    let steps: Vec<_> = out.lines().filter(|line| line.contains(". ")).map(|line| line.trim().to_owned()).collect();
    assert!(out.starts_with("machine/new: 2 steps"), "{out}");
    assert!(
        steps[0].contains("install runc 1.1") && steps[1].contains("install containerd 1.6"),
        "what it needs comes first: {out}"
    );

    // The effects of a drain on pods: one without a controller blocks it, one that tolerates maintenance stays.
    place.kubectl(&["create", "serviceaccount", "default", "-n", "fleet"], None).await;
    let pod = |name: &str, tolerations: Value| {
        let spec = json!({"nodeName": "old", "tolerations": tolerations, "containers": [{"name": "main", "image": "busybox"}]});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "fleet"}, "spec": spec})
            .to_string()
    };
    let tolerates = json!([{"key": names::MAINTENANCE_TAINT, "operator": "Exists"}]);
    for pod in [pod("bare", json!([])), pod("guard", tolerates)] {
        place.kubectl(&["apply", "-f", "-"], Some(&pod)).await.ok();
    }
    let out = place.run(&["machine", "plan", "old"]).await.ok();
    assert!(out.contains("Blocks the drain: pod fleet/bare: ") && !out.contains("fleet/guard"), "{out}");
    for said in [
        "upgrade containerd 1.6 → 1.7",
        "install kernel",
        "remove sysctl-network",
        "reboot",
        "Node old is closed and drained",
        "the host reboots",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let out = place.run(&["machine", "plan", "old", "-o", "json"]).await.ok();
    let planned: Value = serde_json::from_str(&out).expect("JSON");
    let plan = ["apiVersion", "kind"].map(|field| planned[0][field].as_str());
    assert_eq!(plan, [Some("fleetwright.io/v1alpha1"), Some("Plan")]);
    assert_eq!(planned[0]["object"], json!({"kind": "Machine", "namespace": "fleet", "name": "old"}));
    assert_eq!(planned[0]["machine"]["node"], "old");
    let blockers = planned[0]["blockers"].as_array().cloned().unwrap_or_default();
    let blocker = blockers.first().map(|first| (first["subject"].as_str(), first["reason"].as_str()));
    assert_eq!(blocker, Some((Some("pod fleet/bare"), Some("DrainBlocked"))), "{out}");
    assert!(
        planned[0]["steps"]
            .as_array()
            .is_some_and(|steps| steps.iter().any(|step| step["action"] == "upgrade" && step["disruption"] == "Drain")),
        "{out}"
    );

    let ran = place.run(&["machine", "plan", "--all"]).await;
    assert_eq!(ran.code, 1, "one cannot be told");
    assert!(
        ran.out.contains("machine/broken: ") && ran.out.contains("MachinePackageVersion kubelet-9 not found"),
        "{}",
        ran.out
    );
    // The same version with other content, as after a change of the cluster's values; and a kubelet that its API server does not support.
    let agent = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion", "metadata": {"name": "agent-1"},
        "spec": {"component": "agent", "version": "1", "config": {}, "disruption": "Restart", "files": [
            {"path": "/etc/agent.conf", "template": "server {{ cluster.server }}\n"},
            {"path": "/etc/agent.token", "secret": {"name": "agent", "key": "token"}, "mode": "0600"},
        ]},
    });
    let kubelet = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion", "metadata": {"name": "kubelet-1.99.0"},
        "spec": {"component": "kubelet", "version": "1.99.0", "config": {}, "files": [{"path": "/etc/kubelet.conf", "content": "x"}]},
    });
    let values = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names::CLUSTER_VALUES}, "data": {"server": "https://new:6443"},
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": "hunter2"},
        "metadata": {"name": "agent", "annotations": {names::ALLOWED_MACHINES: "edited"}},
    });
    let edited = machine("edited", &[("agent", "agent-1"), ("kubelet", "kubelet-1.99.0")]);
    for object in [agent.to_string(), kubelet.to_string(), values.to_string(), secret.to_string(), edited] {
        place.kubectl(&["apply", "-n", "fleet", "-f", "-"], Some(&object)).await.ok();
    }
    let out = place.run(&["machine", "plan", "edited"]).await.ok();
    assert!(out.contains("install agent 1") && !out.contains("install kubelet"), "{out}");
    assert!(out.contains("Refused: KubeletTooNew: kubelet 1.99.0"), "{out}");
    let mut written = entry("agent", "1");
    written["inputs"] = json!({"file /etc/agent.conf": "000000000000"});
    let status = json!({"status": {"components": [written]}});
    api.patch_status("edited", &PatchParams::default(), &Patch::Merge(&status)).await.expect("it has a status");
    let out = place.run(&["machine", "plan", "edited"]).await.ok();
    for said in [
        "machine/edited: 1 step",
        "change agent 1",
        "agent: file /etc/agent.conf changes: 000000000000 → ",
        "Secret: agent: /etc/agent.token",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(!out.contains("hunter2"), "a secret is shown: {out}");
    let out = place.run(&["machine", "plan", "edited", "-o", "json"]).await.ok();
    let planned: Value = serde_json::from_str(&out).expect("JSON");
    let changes = planned[0]["steps"][0]["changes"].as_array().cloned().unwrap_or_default();
    assert!(changes.iter().any(|change| change["what"] == "file /etc/agent.conf"), "{out}");
    assert_eq!(planned[0]["blockers"][0]["reason"], "KubeletTooNew", "{out}");
    // Recorded by an operator without inputs: an edit cannot be distinguished from no edit.
    let status = json!({"status": {"components": [entry("agent", "1")]}});
    api.patch_status("edited", &PatchParams::default(), &Patch::Merge(&status)).await.expect("it has a status");
    let out = place.run(&["machine", "plan", "edited"]).await.ok();
    assert!(out.contains("version only") && out.contains(": agent;"), "{out}");

    let before = api.get("old").await.expect("it is there").metadata.resource_version;
    place.run(&["machine", "plan", "old"]).await.ok();
    assert_eq!(api.get("old").await.expect("it is there").metadata.resource_version, before, "nothing is touched");
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_ahead_are_reported_without_touching_anything() {
    plans_are_reported(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_ahead_are_reported_without_touching_anything_on_real() {
    plans_are_reported(Target::real().await.expect("the real server starts")).await;
}
