//! Hosts that report falsehoods, and the rights of their kubelets' credentials.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fleetwright_api::{ComponentState, Phase, Status, names};
use fleetwright_rig::Harness;
use fleetwright_sim::{Fleet, HelperBehavior, SimHost, demo};
use fleetwright_wire::{HOME, Method, Package};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::certificates::joined;
use crate::harness::{MachineSteps, in_service, of, seconds, shown};
use crate::site::{JoinSite, NAMESPACE};
use crate::{Area, Attempt};

pub fn attempts() -> Vec<Attempt> {
    [
        attempts![Area::Hosts, JoinSite;
            a_node_s_credential_reads_and_changes_nothing_of_others,
            a_node_registers_under_no_other_name,
        ],
        attempts![Area::Hosts, Harness;
            hosts_that_lie_are_not_believed_and_hinder_no_other_host,
            what_a_host_says_of_itself_is_text_and_nothing_else,
        ],
    ]
    .concat()
}

async fn code(client: &Client, method: &str, path: &str, body: &Value) -> Result<u16> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind).body(bytes)?;
    match client.request::<Value>(request).await {
        Ok(answer) => anyhow::bail!("{method} {path} was allowed: {answer}"),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

async fn a_node_s_credential_reads_and_changes_nothing_of_others(site: &JoinSite) -> Result<()> {
    let client = joined(site, "insider", "10.2.0.1").await?;
    joined(site, "neighbour-of-insider", "10.2.0.2").await?;
    let nodes: Api<Node> = Api::all(site.admin.clone());
    let before = nodes.get("neighbour-of-insider").await?;
    let machine = site.machines().get("insider").await?;
    let fleet = format!("/apis/fleetwright.io/v1alpha1/namespaces/{NAMESPACE}");
    let other = "/api/v1/nodes/neighbour-of-insider";
    let labels = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/trusted": "yes"}}});
    let taints = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let none = Value::Null;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/neighbour-of-insider".to_owned();
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned();
    let tried: Vec<(&str, String, Value)> = vec![
        ("GET", "/api/v1/namespaces/kube-system/secrets".to_owned(), none.clone()),
        ("GET", format!("/api/v1/namespaces/{NAMESPACE}/secrets"), none.clone()),
        ("GET", format!("/api/v1/namespaces/{NAMESPACE}/configmaps/cluster-values"), none.clone()),
        ("GET", format!("{fleet}/machines"), none.clone()),
        ("GET", format!("{fleet}/machines/insider"), none.clone()),
        ("PATCH", format!("{fleet}/machines/insider"), json!({"spec": {"paused": true}})),
        ("PATCH", format!("{fleet}/machines/insider/status"), json!({"status": {"phase": "Ready"}})),
        ("DELETE", format!("{fleet}/machines/neighbour-of-insider"), none.clone()),
        ("POST", format!("{fleet}/machines"), json!({"metadata": {"name": "planted"}})),
        ("GET", other.to_owned(), none.clone()),
        ("PATCH", other.to_owned(), labels.clone()),
        ("PATCH", format!("{other}/status"), json!({"status": {"phase": "Terminated"}})),
        ("DELETE", other.to_owned(), none),
        ("PATCH", "/api/v1/nodes/insider".to_owned(), labels),
        ("PATCH", "/api/v1/nodes/insider".to_owned(), taints),
        ("PATCH", lease, json!({"spec": {}})),
        ("POST", bindings, json!({"metadata": {"name": "planted"}})),
    ];
    for (method, path, body) in tried {
        let answered = code(&client, method, &path, &body).await?;
        ensure!(answered == 403, "{method} {path}: {answered}");
    }
    let after = nodes.get("neighbour-of-insider").await?;
    ensure!(after.metadata.uid == before.metadata.uid && after.metadata.labels == before.metadata.labels, "{after:?}");
    let own = nodes.get("insider").await?;
    ensure!(own.spec.and_then(|spec| spec.taints).unwrap_or_default().iter().all(|taint| taint.key != "a"), "a taint");
    let spec_now = serde_json::to_value(site.machines().get("insider").await?.spec)?;
    ensure!(spec_now == serde_json::to_value(machine.spec)?, "its Machine was changed");
    ensure!(site.machines().get_opt("planted").await?.is_none(), "a Machine was made");
    Ok(())
}

async fn a_node_registers_under_no_other_name(site: &JoinSite) -> Result<()> {
    let client = joined(site, "wanderer", "10.2.1.1").await?;
    site.machine("awaited", "10.2.1.2").await;
    let nodes: Api<Node> = Api::all(client.clone());
    // Any other error does not show who may register.
    let denied = |what: &str, answer: kube::Result<Node>, codes: &[u16]| match answer {
        Err(kube::Error::Api(status)) if codes.contains(&status.code) => Ok(()),
        other => bail!("{what}: {other:?}"),
    };
    for name in ["awaited", "Wanderer", "wanderer.", "wanderer2"] {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        denied(name, nodes.create(&PostParams::default(), &node).await, &[403, 422])?;
    }
    let renamed = json!({"metadata": {"name": "awaited"}});
    let renamed = nodes.patch("wanderer", &PatchParams::default(), &Patch::Merge(renamed)).await;
    // kube-apiserver compares the name with that of the path before any other check.
    denied("a new name", renamed, &[400, 403, 422])?;
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "awaited"}});
    let params = PatchParams::apply("wanderer").force();
    denied("an apply", nodes.patch("awaited", &params, &Patch::Apply(applied)).await, &[403, 422])?;
    let all: Api<Node> = Api::all(site.admin.clone());
    ensure!(all.get_opt("awaited").await?.is_none(), "another's Node exists");
    Ok(())
}

async fn hosts_that_lie_are_not_believed_and_hinder_no_other_host(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a", "b", "c", "d"]).await?;
    let steps: Vec<usize> = hosts.iter().map(|host| host.journal().len()).collect();
    for (host, helper_behavior) in
        hosts.iter().zip([HelperBehavior::FalseSuccess, HelperBehavior::InvalidOutput, HelperBehavior::OversizedOutput])
    {
        host.set_helper_behavior(helper_behavior);
    }
    for name in ["a", "b", "c", "d"] {
        harness.refer(name, "kubelet", demo::NEWER_KUBELET).await?;
    }
    let honest = harness.phase("d", Phase::Ready).await?;
    ensure!(of(&honest, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&honest));
    harness.run_for(seconds(120)).await?;
    for (name, (host, steps)) in ["a", "b", "c"].into_iter().zip(hosts.iter().zip(steps)) {
        let seen = harness.get(name).await?;
        ensure!(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() != Some("1.37.1"), shown(&seen));
        ensure!(serde_json::to_vec(&seen)?.len() < 64 << 10, "what {name} said was written down");
        // The lying host reports success of each step; the other hosts get no requests.
        ensure!(name == "a" || host.journal().len() == steps, "{name} was asked to do something");
    }
    Ok(())
}

/// The script of a package as it reached the host.
fn script(host: &SimHost, component: &str) -> Result<String> {
    let machine = host.machine();
    let folder = format!("{HOME}/packages/{component}");
    let names = machine.list(&folder);
    let is_package = |name: &&String| name.ends_with(".json") && name.as_str() != "state.json";
    let kept = names.iter().find(is_package).context("no package is kept")?;
    let bytes = machine.read(&format!("{folder}/{kept}"), 1 << 20)?.context("the package is gone")?;
    match serde_json::from_slice::<Package>(&bytes)?.method {
        Method::Script(script) => Ok(script.apply),
        other => bail!("{other:?}"),
    }
}

async fn what_a_host_says_of_itself_is_text_and_nothing_else(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hostile = "'; echo pwned; $(echo pwned) `echo pwned`\necho pwned\n{{ 7 * 7 }} \"${IFS}";
    // Simulated hosts have no shell: they interpret the first line, and a real shell runs the rest.
    let said = json!({
        "component": "said", "version": "1",
        "script": {
            "check": "test -e /etc/said", "apply": "touch /etc/said\nprintf '%s' {{ facts.os | sh }}", "remove": "rm -f /etc/said",
        },
        "files": [{ "path": "/etc/os", "template": "{{ facts.os }}" }],
    });
    harness.package("said-1", said).await?;
    let packages = json!({ "spec": { "packages": [{ "component": "said", "ref": "said-1" }] } });
    let liar = harness.machine(fleet, "a", packages.clone()).await?;
    liar.modify(|machine| Arc::make_mut(&mut machine.facts).os = hostile.to_owned());
    let honest = harness.machine(fleet, "b", packages).await?;
    let wrong = harness.machine(fleet, "c", json!({ "spec": { "hardware": { "serial": "SN-1" } } })).await?;
    wrong.modify(|machine| machine.set_serial(hostile));
    let before = wrong.tree();
    harness.start().await?;
    for (name, host, os) in [("a", &liar, hostile), ("b", &honest, "debian-12")] {
        harness.component(name, "said", ComponentState::Ready).await?;
        let file = host.machine().read("/etc/os", 1 << 20)?;
        ensure!(file.as_deref() == Some(os.as_bytes()), "{name} has {file:?}");
        let script = script(host, "said")?;
        let (_, rest) = script.split_once('\n').context("it has two lines")?;
        let ran = std::process::Command::new("/bin/sh").args(["-euc", rest]).output()?;
        ensure!(ran.status.success() && ran.stdout == os.as_bytes(), "{name}, {rest}: {ran:?}");
    }
    let said = harness.says("c", names::HOST_OWNED, Status::False, "SerialMismatch").await?;
    ensure!(!said.message.contains("49") && said.message.len() < 2000, "{}", said.message);
    ensure!(wrong.tree() == before, "the host was touched");
    Ok(())
}
