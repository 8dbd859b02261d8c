//! Hosts that lie, and what their kubelets' credentials are good for.

use anyhow::{Result, ensure};
use fleetwright_api::{Phase, Status, names};
use fleetwright_rig::Stage;
use fleetwright_sim::{Fleet, Speech, demo};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::certificates::joined;
use crate::site::{NAMESPACE, Site};
use crate::stage::{Telling, in_service, of, seconds, shown};
use crate::{Area, Attempt};

pub fn attempts() -> Vec<Attempt> {
    [
        attempts![Area::Hosts, Site;
            a_node_s_credential_reads_and_changes_nothing_of_others,
            a_node_registers_under_no_other_name,
        ],
        attempts![Area::Hosts, Stage;
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

async fn a_node_s_credential_reads_and_changes_nothing_of_others(site: &Site) -> Result<()> {
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

async fn a_node_registers_under_no_other_name(site: &Site) -> Result<()> {
    let client = joined(site, "wanderer", "10.2.1.1").await?;
    site.machine("awaited", "10.2.1.2").await;
    let nodes: Api<Node> = Api::all(client.clone());
    for name in ["awaited", "Wanderer", "wanderer.", "wanderer2"] {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        ensure!(nodes.create(&PostParams::default(), &node).await.is_err(), "{name} was registered");
    }
    let renamed = json!({"metadata": {"name": "awaited"}});
    ensure!(nodes.patch("wanderer", &PatchParams::default(), &Patch::Merge(renamed)).await.is_err(), "it was renamed");
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "awaited"}});
    let params = PatchParams::apply("wanderer").force();
    ensure!(nodes.patch("awaited", &params, &Patch::Apply(applied)).await.is_err(), "it was applied");
    let all: Api<Node> = Api::all(site.admin.clone());
    ensure!(all.get_opt("awaited").await?.is_none(), "another's Node exists");
    Ok(())
}

async fn hosts_that_lie_are_not_believed_and_hinder_no_other_host(stage: &Stage, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(stage, fleet, &["a", "b", "c", "d"]).await?;
    let steps: Vec<usize> = hosts.iter().map(|host| host.journal().len()).collect();
    for (host, speech) in hosts.iter().zip([Speech::Lies, Speech::Nonsense, Speech::Endless]) {
        host.set_speech(speech);
    }
    for name in ["a", "b", "c", "d"] {
        stage.refer(name, "kubelet", demo::NEWER_KUBELET).await?;
    }
    let honest = stage.phase("d", Phase::Ready).await?;
    ensure!(of(&honest, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&honest));
    stage.linger(seconds(120)).await?;
    for (name, (host, steps)) in ["a", "b", "c"].into_iter().zip(hosts.iter().zip(steps)) {
        let seen = stage.get(name).await?;
        ensure!(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() != Some("1.37.1"), shown(&seen));
        ensure!(serde_json::to_vec(&seen)?.len() < 64 << 10, "what {name} said was written down");
        // One that lies says that it did what it was asked for; the others are not asked at all.
        ensure!(name == "a" || host.journal().len() == steps, "{name} was asked to do something");
    }
    Ok(())
}

async fn what_a_host_says_of_itself_is_text_and_nothing_else(stage: &Stage, fleet: &Fleet) -> Result<()> {
    let host = fleet.host("a");
    let hostile = r#"'; touch /pwned; $(touch /pwned) `touch /pwned` {{ 7 * 7 }} "${IFS}"#;
    host.hands(|machine| machine.set_serial(hostile));
    let before = host.tree();
    stage.machine(fleet, "a", json!({ "spec": { "hardware": { "serial": "SN-1" } } })).await?;
    let other = stage.machine(fleet, "b", json!({})).await?;
    stage.start().await?;
    let said = stage.says("a", names::HOST_OWNED, Status::False, "WrongHost").await?;
    ensure!(!said.message.contains("49") && said.message.len() < 2000, "{}", said.message);
    stage.phase("b", Phase::Ready).await?;
    for (name, tree) in [("a", host.tree()), ("b", other.tree())] {
        ensure!(!tree.keys().any(|path| path.contains("pwned")), "it was run on {name}");
    }
    ensure!(host.tree() == before, "the host was touched");
    Ok(())
}
