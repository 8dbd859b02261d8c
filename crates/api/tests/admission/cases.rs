//! Single objects: what is allowed, what is not, and what is filled in.

use fleetwright_api::{
    Cluster, ClusterLimits, ClusterPackageVersion, Machine, MachinePackageVersion, Operation, OperationPolicy,
    ReadinessGates,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::server::{Server, is_refused};
use crate::{cluster_packages, clusters, limits, packages};

pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "fleetwright.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

pub fn machine(spec: Value) -> Value {
    object("Machine", "host-17", spec)
}

/// Gates with one gate.
fn gate(gate: Value) -> Value {
    object("ReadinessGates", "workers", json!({"selector": {}, "conditions": [gate]}))
}

fn selecting(selector: Value) -> Value {
    object("ReadinessGates", "workers", json!({"selector": selector, "conditions": [{"type": "Reachable"}]}))
}

fn net(net: Value) -> Value {
    object(
        "ReadinessGates",
        "workers",
        json!({"selector": {}, "conditions": [{"type": "Reachable"}], "safetyNet": net}),
    )
}

fn reported(gate: Value) -> Value {
    let mut gates = self::gate(gate);
    gates["spec"]["conditions"][0]["type"] = "LogAgentReady".into();
    gates["spec"]["conditions"][0]["from"] = json!({"reporter": "log-agent"});
    gates
}

pub fn operation(more: Value) -> Value {
    let mut spec = json!({
        "type": "Drain", "target": {"kind": "Machine", "name": "host-17"},
        "requestedBy": "machine-operator", "fingerprint": "7f3a9c",
    });
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    object("Operation", "drain-host-17", spec)
}

fn policy(spec: Value) -> Value {
    object("OperationPolicy", "drains", spec)
}

fn ssh(more: Value) -> Value {
    let mut ssh = json!({"keyRef": {"name": "fleet-ssh"}, "hostKeys": {"policy": "TrustOnFirstUse"}});
    for (field, value) in more.as_object().expect("fields") {
        ssh[field] = value.clone();
    }
    machine(json!({"ssh": ssh}))
}

fn numbered(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0M3Wl0m8aCz1cKq1yJ0c0Qy8rGZ3h1oGxg5c2c1ABC";

#[rustfmt::skip]
fn allowed_ones() -> Vec<(&'static str, Value)> {
    vec![
        ("a machine that says nothing", machine(json!({}))),
        ("addresses of every kind", machine(json!({"addresses": ["198.18.0.17", "2001:db8::17", "host-17.example.com", "10-0-0-1"]}))),
        ("a host name with dots", machine(json!({"hostname": "host-17.example.com"}))),
        ("pinned keys", ssh(json!({"hostKeys": {"policy": "Pinned", "keys": [KEY, format!("{KEY} root@host-17")]}}))),
        ("ecdsa and rsa keys", ssh(json!({"hostKeys": {"keys": ["ecdsa-sha2-nistp256 AAAAE2VjZHNh==", "ssh-rsa AAAAB3Nza+/="]}}))),
        ("a port as a fraction, as some encoders write whole numbers", ssh(json!({"port": 22.0}))),
        ("port and user", ssh(json!({"port": 65535, "user": "_deploy-1"}))),
        ("hardware", machine(json!({"hardware": {"serial": "C02 X/7", "model": "R740 (rév. 2)", "rack": "r3", "zone": "z1", "labels": {"example.com/gpu": "A100", "plain": ""}}}))),
        ("packages", machine(json!({"packages": [{"component": "containerd", "ref": "containerd-2.4.2"}, {"component": "kubelet", "ref": "kubelet-1.37.1"}]}))),
        ("one taint key with two effects", machine(json!({"taints": [{"key": "example.com/gpu", "effect": "NoSchedule"}, {"key": "example.com/gpu", "effect": "NoExecute", "value": "yes"}]}))),
        ("hosts on the way", ssh(json!({"jumps": [{"address": "10.0.0.1", "hostKeys": [KEY]}, {"address": "jump.example.com", "port": 2222, "user": "deploy", "keyRef": {"name": "jump"}, "hostKeys": [KEY]}]}))),
        ("what the Node gets", machine(json!({"nodeLabels": {"node-role.kubernetes.io/worker": "", "example.com/pool": "online"}, "providerID": "bare://rack-3/host-17"}))),
        ("a machine whose name has dots", object("Machine", "host-17.example.com", json!({}))),
        ("64 gates", object("ReadinessGates", "workers", json!({"selector": {}, "conditions": numbered(64, |n| json!({"type": format!("Gate{n}"), "from": {"reporter": "agent"}, "holdFor": "720h", "staleAfter": "1h30m5s10ms"}))}))),
        ("gates from every place", object("ReadinessGates", "workers", json!({"selector": {"matchLabels": {"pool": "online"}}, "conditions": [
            {"type": "PackagesReady"},
            {"type": "NodeReady", "from": {"nodeCondition": "Ready"}, "tolerateFor": "40s", "staleAfter": "5m", "stale": "Keep"},
            {"type": "NoPressure", "from": {"nodeCondition": "example.com/DiskPressure"}, "status": "False"},
            {"type": "Answers", "from": {"machineCondition": "Reachable"}},
            {"type": "LogAgentReady", "from": {"reporter": "log-agent"}, "when": "Bootstrap", "staleAfter": "10m", "missing": "Pass"},
        ]}))),
        ("expressions", selecting(json!({"matchExpressions": [
            {"key": "pool", "operator": "In", "values": ["online", "offline"]},
            {"key": "example.com/zone", "operator": "Exists"},
            {"key": "gone", "operator": "DoesNotExist", "values": []},
        ]}))),
        ("a safety net in numbers", net(json!({"max": 0, "atLeast": 0, "within": "1ms", "by": "example.com/zone"}))),
        ("a safety net in percent", net(json!({"max": "100%"}))),
        ("an operation", operation(json!({"reason": "kubelet 1.36.4 → 1.37.1", "keepFor": "0s"}))),
        ("a policy in percent", policy(json!({"operations": ["Drain", "Reboot"], "scope": {"by": "zone"}, "max": "5%", "atLeast": 1}))),
        ("a policy that stops everything", policy(json!({"operations": ["Drain"], "max": 0}))),
    ]
}

/// The object, the field that is wrong, and a part of the message.
#[rustfmt::skip]
fn refused_ones() -> Vec<(Value, &'static str, &'static str)> {
    let long = "a".repeat(64);
    let mut cases = vec![
        // Machine
        (object("Machine", &long, json!({})), "<nil>", "at most 63"),
        (machine(json!({"hostname": "Host_17"})), "spec.hostname", "host name"),
        (machine(json!({"hostname": ""})), "spec.hostname", "host name"),
        (machine(json!({"hostname": long})), "spec.hostname", "may not be more than 63"),
        (machine(json!({"addresses": ["host 17"]})), "spec.addresses[0]", "IP address"),
        (machine(json!({"addresses": ["10.0.0.1", "10.0.0.256"]})), "spec.addresses[1]", "IP address"),
        (machine(json!({"addresses": ["10.0.0.1:22"]})), "spec.addresses[0]", "without port"),
        (machine(json!({"addresses": ["fe80::1%eth0"]})), "spec.addresses[0]", "or zone"),
        (machine(json!({"addresses": ["10.0.0.1", "10.0.0.1"]})), "spec.addresses[1]", "Duplicate"),
        (machine(json!({"addresses": numbered(17, |n| json!(format!("10.0.0.{n}")))})), "spec.addresses", "must have at most 16 items"),
        (machine(json!({"role": "Boss"})), "spec.role", "\"Worker\", \"ControlPlane\""),
        (machine(json!({"drift": "repair"})), "spec.drift", "\"Repair\", \"Report\""),
        (machine(json!({"onDelete": "Wipe"})), "spec.onDelete", "\"Uninstall\", \"Orphan\""),
        (machine(json!({"hardware": {"serial": "a\tb"}})), "spec.hardware.serial", "one line"),
        (machine(json!({"hardware": {"model": "x".repeat(129)}})), "spec.hardware.model", "may not be more than 128"),
        (machine(json!({"hardware": {"zone": "zone 1"}})), "spec.hardware.zone", "a label's value"),
        (machine(json!({"hardware": {"rack": "-r3"}})), "spec.hardware.rack", "a label's value"),
        (machine(json!({"hardware": {"labels": {"a b": "c"}}})), "spec.hardware.labels", "a label's key"),
        (machine(json!({"hardware": {"labels": {"a": "b c"}}})), "spec.hardware.labels[a]", "a label's value"),
        (ssh(json!({"port": 0})), "spec.ssh.port", "greater than or equal to 1"),
        (ssh(json!({"port": 65536})), "spec.ssh.port", "less than or equal to 65535"),
        (ssh(json!({"user": "Root"})), "spec.ssh.user", "name of a user"),
        (ssh(json!({"user": "root; rm"})), "spec.ssh.user", "name of a user"),
        (ssh(json!({"keyRef": {"name": "Fleet"}})), "spec.ssh.keyRef.name", "the name of an object"),
        (ssh(json!({"keyRef": {}})), "spec.ssh.keyRef.name", "Required"),
        (ssh(json!({"hostKeys": {"policy": "Pinned"}})), "spec.ssh.hostKeys.keys", "ssh-keyscan"),
        (ssh(json!({"hostKeys": {"policy": "Pinned", "keys": []}})), "spec.ssh.hostKeys.keys", "ssh-keyscan"),
        (machine(json!({"ssh": {"keyRef": {"name": "fleet-ssh"}}})), "spec.ssh.hostKeys.keys", "TrustOnFirstUse"),
        (ssh(json!({"hostKeys": {"policy": "TrustOnFirstUse", "keys": [KEY]}})), "spec.ssh.hostKeys.keys", "set policy to Pinned"),
        (ssh(json!({"hostKeys": {"policy": "Pinned", "keys": ["SHA256:abc"]}})), "spec.ssh.hostKeys.keys[0]", "ssh-ed25519 AAAA"),
        (ssh(json!({"hostKeys": {"policy": "Pinned", "keys": [format!("host-17 {KEY}")]}})), "spec.ssh.hostKeys.keys[0]", "without the host"),
        (machine(json!({"packages": [{"component": "Kubelet", "ref": "kubelet-1"}]})), "spec.packages[0].component", "lower-case letters"),
        (machine(json!({"packages": [{"component": "kubelet", "ref": "kubelet 1"}]})), "spec.packages[0].ref", "the name of an object"),
        (machine(json!({"packages": [{"component": "kubelet", "ref": "a"}, {"component": "kubelet", "ref": "b"}]})), "spec.packages[1]", "Duplicate"),
        (machine(json!({"packages": [{"component": "kubelet"}]})), "spec.packages[0].ref", "Required"),
        (machine(json!({"taints": [{"key": "fleetwright.io/unready", "effect": "NoSchedule"}]})), "spec.taints[0].key", "gates alone"),
        (machine(json!({"taints": [{"key": "a/b/c", "effect": "NoSchedule"}]})), "spec.taints[0].key", "a label's key"),
        (machine(json!({"taints": [{"key": "a", "effect": "NoWay"}]})), "spec.taints[0].effect", "\"NoSchedule\""),
        (machine(json!({"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute", "value": "x"}]})), "spec.taints[1]", "Duplicate"),
        (machine(json!({"taints": [{"key": "fleetwright.io/maintenance", "effect": "NoSchedule"}]})), "spec.taints[0].key", "worked on"),
        (machine(json!({"nodeLabels": {"kubernetes.io/hostname": "a"}})), "spec.nodeLabels", "set by the kubelet"),
        (machine(json!({"nodeLabels": {"a b": "c"}})), "spec.nodeLabels", "a label's key"),
        (machine(json!({"providerID": "host-17"})), "spec.providerID", "such as bare://"),
        (machine(json!({"providerID": "bare://a b"})), "spec.providerID", "without spaces"),
        (ssh(json!({"jumps": [{"address": "10.0.0.1"}]})), "spec.ssh.jumps[0].hostKeys", "Required"),
        (ssh(json!({"jumps": [{"address": "10.0.0.1", "hostKeys": []}]})), "spec.ssh.jumps[0].hostKeys", "first use"),
        (ssh(json!({"jumps": [{"address": "10.0.0.1", "hostKeys": ["AAAA"]}]})), "spec.ssh.jumps[0].hostKeys[0]", "ssh-ed25519 AAAA"),
        (ssh(json!({"jumps": [{"address": "10.0.0.256", "hostKeys": [KEY]}]})), "spec.ssh.jumps[0].address", "IP address"),
        (ssh(json!({"jumps": numbered(5, |n| json!({"address": format!("10.0.0.{n}"), "hostKeys": [KEY]}))})), "spec.ssh.jumps", "must have at most 4 items"),
        // ReadinessGates
        (object("ReadinessGates", "workers", json!({"selector": {}, "conditions": []})), "spec.conditions", "at least 1 item"),
        (object("ReadinessGates", "workers", json!({"selector": {}})), "spec.conditions", "Required"),
        (object("ReadinessGates", "workers", json!({"conditions": [{"type": "A"}]})), "spec.selector", "Required"),
        (object("ReadinessGates", "workers", json!({"selector": {}, "conditions": numbered(65, |n| json!({"type": format!("Gate{n}")}))})), "spec.conditions", "must have at most 64 items"),
        (object("ReadinessGates", "workers", json!({"selector": {}, "conditions": [{"type": "A"}, {"type": "A", "status": "False"}]})), "spec.conditions[1]", "Duplicate"),
        (gate(json!({"type": "logAgentReady"})), "spec.conditions[0].type", "CamelCase"),
        (gate(json!({"type": "Schedulable"})), "spec.conditions[0].type", "gates themselves"),
        (gate(json!({"type": "ReportsValid"})), "spec.conditions[0].type", "gates themselves"),
        (gate(json!({"type": "A", "from": {"machineCondition": "Schedulable"}})), "spec.conditions[0].from.machineCondition", "gates themselves"),
        (gate(json!({"type": "Reachable", "from": {"reporter": "agent"}})), "spec.conditions[0].type", "no reporter"),
        (gate(json!({"type": "A", "from": {}})), "spec.conditions[0].from", "exactly one of"),
        (gate(json!({"type": "A", "from": {"reporter": "agent", "nodeCondition": "Ready"}})), "spec.conditions[0].from", "exactly one of"),
        (gate(json!({"type": "A", "from": {"reporter": "Log.Agent"}})), "spec.conditions[0].from.reporter", "lower-case letters"),
        (gate(json!({"type": "A", "from": {"nodeCondition": "not a type"}})), "spec.conditions[0].from.nodeCondition", "condition of a Node"),
        (gate(json!({"type": "A", "status": "Unknown"})), "spec.conditions[0].status", "True or at False"),
        (gate(json!({"type": "A", "status": "Yes"})), "spec.conditions[0].status", "\"True\", \"False\", \"Unknown\""),
        (gate(json!({"type": "A", "when": "Never"})), "spec.conditions[0].when", "\"Always\", \"Bootstrap\""),
        (gate(json!({"type": "A", "staleAfter": "1m"})), "spec.conditions[0].staleAfter", "no heartbeat"),
        (gate(json!({"type": "A", "from": {"machineCondition": "B"}, "staleAfter": "1m"})), "spec.conditions[0].staleAfter", "no heartbeat"),
        (reported(json!({"staleAfter": "0s"})), "spec.conditions[0].staleAfter", "longer than nothing"),
        (reported(json!({"stale": "Pass"})), "spec.conditions[0].stale", "without staleAfter"),
        (reported(json!({"missing": "Maybe"})), "spec.conditions[0].missing", "\"Fail\", \"Pass\", \"Keep\""),
        (selecting(json!({"matchLabels": {"pool": "on line"}})), "spec.selector.matchLabels[pool]", "a label's value"),
        (selecting(json!({"matchLabels": {"po ol": "online"}})), "spec.selector.matchLabels", "a label's key"),
        (selecting(json!({"matchExpressions": [{"key": "pool", "operator": "Like", "values": ["a"]}]})), "spec.selector.matchExpressions[0].operator", "\"In\", \"NotIn\", \"Exists\", \"DoesNotExist\""),
        (selecting(json!({"matchExpressions": [{"key": "pool", "operator": "In"}]})), "spec.selector.matchExpressions[0].values", "list at least one"),
        (selecting(json!({"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": []}]})), "spec.selector.matchExpressions[0].values", "list at least one"),
        (selecting(json!({"matchExpressions": [{"key": "pool", "operator": "Exists", "values": ["a"]}]})), "spec.selector.matchExpressions[0].values", "leave values out"),
        (selecting(json!({"matchExpressions": [{"key": "po ol", "operator": "Exists"}]})), "spec.selector.matchExpressions[0].key", "a label's key"),
        (net(json!({"max": "101%"})), "spec.safetyNet.max", "from 0% to 100%"),
        (net(json!({"max": "5"})), "spec.safetyNet.max", "from 0% to 100%"),
        (net(json!({"max": -1})), "spec.safetyNet.max", "from 0% to 100%"),
        (net(json!({"atLeast": -1})), "spec.safetyNet.atLeast", "greater than or equal to 0"),
        (net(json!({"within": "0h0m"})), "spec.safetyNet.within", "longer than nothing"),
        (net(json!({"by": "a b"})), "spec.safetyNet.by", "a label's key"),
        // Operation
        (operation(json!({"type": "drain"})), "spec.type", "CamelCase"),
        (operation(json!({"target": {"kind": "machine", "name": "host-17"}})), "spec.target.kind", "CamelCase"),
        (operation(json!({"target": {"kind": "Machine", "name": "Host"}})), "spec.target.name", "the name of an object"),
        (operation(json!({"target": {"kind": "Machine"}})), "spec.target.name", "Required"),
        (operation(json!({"fingerprint": ""})), "spec.fingerprint", "without spaces"),
        (operation(json!({"fingerprint": "a b"})), "spec.fingerprint", "without spaces"),
        (operation(json!({"requestedBy": "me & you"})), "spec.requestedBy", "name the operator"),
        (operation(json!({"keepFor": "721h"})), "spec.keepFor", "720h at most"),
        // OperationPolicy
        (policy(json!({"operations": [], "max": 1})), "spec.operations", "at least 1 item"),
        (policy(json!({"operations": ["Drain", "Drain"], "max": 1})), "spec.operations[1]", "Duplicate"),
        (policy(json!({"operations": ["drain"], "max": 1})), "spec.operations[0]", "CamelCase"),
        (policy(json!({"operations": numbered(33, |n| json!(format!("Op{n}"))), "max": 1})), "spec.operations", "must have at most 32 items"),
        (policy(json!({"operations": ["Drain"]})), "spec.max", "Required"),
        (policy(json!({"operations": ["Drain"], "max": "5 %"})), "spec.max", "from 0% to 100%"),
        (policy(json!({"operations": ["Drain"], "max": 1, "scope": {}})), "spec.scope.by", "Required"),
        (policy(json!({"operations": ["Drain"], "max": 1, "scope": {"by": ""}})), "spec.scope.by", "a label's key"),
    ];
    for span in ["", "5", "s", "1d", "1.5h", "-1s", "30m1h", "5 s", "99999h", "720h1ms", "999999999s"] {
        cases.push((gate(json!({"type": "A", "holdFor": span})), "spec.conditions[0].holdFor", "such as 90s"));
    }
    cases
}

/// What is filled in where nothing is said.
fn defaults() -> Vec<(Value, Value)> {
    vec![
        (
            machine(json!({})),
            json!({"role": "Worker", "hardware": {}, "drain": {"force": false, "skipTerminatingAfter": "5m"}, "drift": "Repair", "onDelete": "Uninstall", "paused": false}),
        ),
        (
            machine(json!({"ssh": {"keyRef": {"name": "k"}, "hostKeys": {"keys": [KEY]}}})),
            json!({
                "role": "Worker", "hardware": {}, "drain": {"force": false, "skipTerminatingAfter": "5m"}, "drift": "Repair", "onDelete": "Uninstall", "paused": false,
                "ssh": {"port": 22, "user": "root", "keyRef": {"name": "k"}, "hostKeys": {"policy": "Pinned", "keys": [KEY]}},
            }),
        ),
        (
            gate(json!({"type": "Reachable"})),
            json!({
                "selector": {}, "safetyNet": {"max": "33%", "atLeast": 3, "within": "10m"},
                "conditions": [{
                    "type": "Reachable", "status": "True", "when": "Always", "holdFor": "0s", "tolerateFor": "0s",
                    "missing": "Fail", "stale": "Fail",
                }],
            }),
        ),
        (
            operation(json!({})),
            json!({
                "type": "Drain", "target": {"kind": "Machine", "name": "host-17"}, "reason": "",
                "requestedBy": "machine-operator", "fingerprint": "7f3a9c", "keepFor": "168h",
            }),
        ),
        (
            policy(json!({"operations": ["Drain"], "max": "5%"})),
            json!({"operations": ["Drain"], "max": "5%", "atLeast": 1}),
        ),
    ]
}

/// What a server allows, the types read; and write as it is.
fn typed(object: &Value) -> Result<(), String> {
    fn through<T: Serialize + DeserializeOwned>(object: &Value) -> serde_json::Result<Value> {
        serde_json::to_value(serde_json::from_value::<T>(object.clone())?)
    }
    let read = match object["kind"].as_str() {
        Some("Cluster") => through::<Cluster>(object),
        Some("ClusterLimits") => through::<ClusterLimits>(object),
        Some("ClusterPackageVersion") => through::<ClusterPackageVersion>(object),
        Some("Machine") => through::<Machine>(object),
        Some("MachinePackageVersion") => through::<MachinePackageVersion>(object),
        Some("ReadinessGates") => through::<ReadinessGates>(object),
        Some("Operation") => through::<Operation>(object),
        _ => through::<OperationPolicy>(object),
    };
    match read {
        Ok(read) if read["spec"] == object["spec"] => Ok(()),
        Ok(read) => Err(format!("was {} and became {}", object["spec"], read["spec"])),
        Err(error) => Err(error.to_string()),
    }
}

pub async fn all(server: &Server) {
    let mut wrong = Vec::new();
    for (what, object) in allowed_ones()
        .into_iter()
        .chain(packages::allowed())
        .chain(cluster_packages::allowed())
        .chain(clusters::allowed())
        .chain(limits::allowed())
    {
        match server.create(&object, true).await {
            Ok(created) => wrong.extend(typed(&created).err().map(|error| format!("{what}: {error}"))),
            Err(status) => wrong.push(format!("{what}: {}", status.message)),
        }
    }
    for (object, field, part) in refused_ones()
        .into_iter()
        .chain(packages::refused())
        .chain(cluster_packages::refused())
        .chain(clusters::refused())
        .chain(limits::refused())
    {
        if let Err(what) = is_refused(server.create(&object, true).await, field, part) {
            wrong.push(format!("{} {:.300}: {what}", object["kind"], object["spec"].to_string()));
        }
    }
    for (object, filled) in defaults()
        .into_iter()
        .chain(packages::defaults())
        .chain(cluster_packages::defaults())
        .chain(clusters::defaults())
    {
        match server.create(&object, true).await {
            Ok(created) if created["spec"] == filled => {}
            Ok(created) => wrong.push(format!("{object} became {created}")),
            Err(status) => wrong.push(format!("{object}: {}", status.message)),
        }
    }
    assert!(wrong.is_empty(), "{} cases went wrong:\n{}", wrong.len(), wrong.join("\n"));
}
