//! `install` and `uninstall` on both servers.

use std::time::Duration;

use crate::support::{CliServer, alone, until};
use fleetwright_api::{Machine, MachineSpec};
use fleetwright_lab::{ServerKind, Target};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Secret};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::discovery::{Discovery, Scope, verbs};
use serde_json::{Value, json};

/// All objects of a cluster with versions, except for those that change by themselves.
async fn everything(client: &kube::Client) -> Vec<String> {
    let discovery = loop {
        match Discovery::new(client.clone()).run().await {
            // Discovery may still list a group whose last kind was just removed.
            Err(kube::Error::Api(status)) if status.code == 404 => tokio::time::sleep(Duration::from_millis(100)).await,
            found => break found.expect("discovery"),
        }
    };
    let mut all = vec![];
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST)
                || ["Lease", "Event", "APIService"].contains(&&*resource.kind)
            {
                continue;
            }
            assert!(matches!(capabilities.scope, Scope::Cluster | Scope::Namespaced));
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let Ok(list) = api.list_metadata(&ListParams::default()).await else { continue };
            all.extend(list.items.into_iter().map(|item| {
                let metadata = item.metadata;
                let name = metadata.name.unwrap_or_default();
                // The server's own controller fills these from other roles, some time after its start.
                let filled = resource.kind == "ClusterRole" && ["admin", "edit", "view"].contains(&&*name);
                let version = metadata.resource_version.filter(|_| !filled).unwrap_or_default();
                format!("{} {:?}/{name} {version}", resource.kind, metadata.namespace)
            }));
        }
    }
    all.sort();
    all
}

/// Waits until the server's own controllers have finished the namespaces.
async fn settled(client: &kube::Client) {
    for namespace in ["fleetwright-system", "fleet"] {
        for name in ["kube-root-ca.crt"] {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            until("the namespace is set up", || async { api.get_opt(name).await.expect("an answer") }).await;
        }
        let api: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), namespace);
        until("the namespace is set up", || async { api.get_opt("default").await.expect("an answer") }).await;
    }
}

async fn install_twice(target: Target) {
    let place = CliServer::new(target);
    let client = place.target.admin();
    let before = everything(&client).await;

    let foreseen = place.run(&["install", "--dry-run"]).await.ok();
    assert_eq!(everything(&client).await, before, "a dry run changes nothing");
    assert!(
        foreseen
            .contains("customresourcedefinition.apiextensions.k8s.io/machines.fleetwright.io created (server dry run)"),
        "{foreseen}"
    );
    assert!(foreseen.contains("deployment.apps/fleetwright-machines created (dry run; not checked"), "{foreseen}");

    let first = place.run(&["install"]).await.ok();
    assert!(first.lines().all(|line| line.ends_with(" created")), "{first}");
    assert_eq!(first.lines().count(), foreseen.lines().count());
    place.kubectl(&["get", "machines,readinessgates,operations,operationpolicies", "-A"], None).await.ok();

    settled(&client).await;
    let installed = everything(&client).await;
    let second = place.run(&["install"]).await.ok();
    assert!(second.lines().all(|line| line.ends_with(" unchanged")), "{second}");
    let foreseen = place.run(&["install", "--dry-run"]).await.ok();
    assert!(foreseen.lines().all(|line| line.ends_with(" unchanged (server dry run)")), "{foreseen}");
    assert_eq!(everything(&client).await, installed, "no version moves");

    let third = place.run(&["install", "--image", "example.com/other:2"]).await;
    assert!(third.err.contains("example.com/other:2") && third.err.contains("@sha256:"), "{}", third.err);
    let pinned = format!("example.com/other@sha256:{}", "a".repeat(64));
    let foreseen = place.run(&["install", "--dry-run", "--image", &pinned]).await;
    assert!(!foreseen.err.contains("NAME@sha256:"), "{}", foreseen.err);
    let third = third.ok();
    let changed: Vec<_> = third.lines().filter(|line| !line.ends_with(" unchanged")).collect();
    let all = ["readiness", "machines", "clusters"].map(|one| format!("deployment.apps/fleetwright-{one} configured"));
    assert_eq!(changed, all);

    let foreseen = place.run(&["uninstall", "--dry-run"]).await.ok();
    assert!(foreseen.contains("namespace/fleet deleted (server dry run)"), "{foreseen}");
    let gone = place.run(&["uninstall"]).await.ok();
    assert_eq!(gone.lines().count(), foreseen.lines().count(), "{foreseen}\n{gone}");
    let names = |all: Vec<String>| -> Vec<String> {
        all.into_iter().map(|line| line.rsplit_once(' ').expect("a version").0.to_owned()).collect()
    };
    let (after, before) = (names(everything(&client).await), names(before));
    let left: Vec<_> = after.iter().filter(|name| !before.contains(name)).collect();
    assert!(left.is_empty(), "what was installed is gone: {left:?}\n{gone}");
    let lost: Vec<_> = before.iter().filter(|name| !after.contains(name)).collect();
    assert!(lost.is_empty(), "all else is there: {lost:?}\n{gone}");
    let again = place.run(&["uninstall"]).await.ok();
    assert!(again.lines().count() == 1 && again.contains("nothing to remove"), "{again}");

    place.run(&["install"]).await.ok();
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_can_be_repeated_and_undone() {
    install_twice(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_can_be_repeated_and_undone_on_real() {
    install_twice(Target::real().await.expect("the server starts")).await;
}

async fn printed(target: Target) {
    let place = CliServer::new(target);
    let mut manifest = alone(&["install", "--print"]).ok();
    let kinds = place.kubectl(&["api-resources", "--no-headers"], None).await.ok();
    let policies = kinds.contains("ValidatingAdmissionPolicy");
    assert_eq!(policies, place.target.kind() == ServerKind::Real, "{kinds}");
    if !policies {
        let served = manifest.split("\n---\n").filter(|one| !one.contains("kind: ValidatingAdmissionPolicy"));
        manifest = served.collect::<Vec<_>>().join("\n---\n");
    }
    place.kubectl(&["apply", "--server-side", "-f", "-"], Some(&manifest)).await.ok();
    // A later `install` finds everything in place.
    let after = place.run(&["install", "--force-conflicts"]).await.ok();
    assert!(!after.contains(" created"), "{after}");
    let plain = place.kubectl(&["apply", "--dry-run=server", "-f", "-"], Some(&manifest)).await.ok();
    assert!(plain.contains("deployment.apps/fleetwright-machines"), "{plain}");
    let definitions = alone(&["crds"]).ok();
    place.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&definitions)).await.ok();
    if policies {
        adopting_a_node_is_a_right_of_its_own(&place).await;
        of_the_secrets_in_kube_system_only_bootstrap_tokens_are_written(&place).await;
    }
    place.target.stop(false).await;
}

/// Merge-patches the status of a Machine as that user. What the API server forbids is its message.
async fn patch_status(machines: &Api<Machine>, name: &str, status: &Value, dry_run: bool) -> Result<(), String> {
    let params = PatchParams { dry_run, ..PatchParams::default() };
    match machines.patch_status(name, &params, &Patch::Merge(json!({"status": status}))).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 403 => Err(answer.message.clone()),
        Err(error) => panic!("{name} {status}: {error}"),
    }
}

/// Of those who may write the status of Machines only the Machine-Operator binds Nodes, those that join; adopting one needs the verb `adopt`.
async fn adopting_a_node_is_a_right_of_its_own(place: &CliServer) {
    let machines: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    for name in ["host-1", "host-2"] {
        machines.create(&PostParams::default(), &Machine::new(name, MachineSpec::default())).await.expect("a machine");
    }
    let (group, version) = ("rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1");
    let metadata = json!({"name": "adopters", "namespace": "fleet"});
    let rules = json!([
        {"apiGroups": ["fleetwright.io"], "resources": ["machines/status"], "verbs": ["patch"]},
        {"apiGroups": ["fleetwright.io"], "resources": ["machines"], "resourceNames": ["host-1"], "verbs": ["adopt"]},
    ]);
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules});
    let binding = json!({
        "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "adopters"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "ann"}],
    });
    for object in [role, binding] {
        place.kubectl(&["apply", "-f", "-"], Some(&object.to_string())).await.ok();
    }
    let account = |name: &str| format!("system:serviceaccount:fleetwright-system:{name}");
    let mut clients = vec![];
    for user in [account("fleetwright-readiness"), account("fleetwright-machines"), "ann".to_owned()] {
        let client = place.target.client_as(&user, &[]).await.expect("a client");
        clients.push(Api::<Machine>::namespaced(client, "fleet"));
    }
    let [readiness, operator, ann] = &clients[..] else { panic!("three clients") };
    let refused = |answer: Result<(), String>| {
        answer.is_err_and(|message| message.contains("'fleetwright-machines.fleetwright-system'"))
    };
    let bound =
        |name: &str, uid: &str, binding: &str| json!({"nodeRef": {"name": name, "uid": uid, "binding": binding}});
    let (joined, adopted) = (bound("host-2", "a", "Joined"), bound("host-1", "a", "Adopted"));

    // The API server takes a moment until it applies new roles and policies. Until then a dry run leaves the Machine as it is.
    until("the policy is applied", || async {
        refused(patch_status(readiness, "host-1", &adopted, true).await).then_some(())
    })
    .await;
    let certified = json!({"certifiedAt": "2026-01-01T00:00:00Z"});
    for status in [&adopted, &joined, &certified, &json!({"trusts": "a"})] {
        assert!(refused(patch_status(readiness, "host-2", status, false).await), "{status}");
    }

    // The operator binds and unbinds Nodes that join; readiness writes the rest of the status.
    until("the operator binds", || async { patch_status(operator, "host-2", &joined, false).await.ok() }).await;
    let mut rest = joined.clone();
    rest["observedRetry"] = json!("1");
    assert_eq!(patch_status(readiness, "host-2", &rest, false).await, Ok(()));
    let none = json!({"nodeRef": null});
    assert!(refused(patch_status(readiness, "host-2", &none, false).await), "unbinding");
    assert_eq!(patch_status(operator, "host-2", &none, false).await, Ok(()));
    assert!(refused(patch_status(operator, "host-1", &adopted, false).await), "the operator adopts no Node");

    // A person adopts Nodes for the Machines that a role names. The operator keeps the binding, and moves it to no other Node.
    until("ann adopts", || async { patch_status(ann, "host-1", &adopted, false).await.ok() }).await;
    assert!(refused(patch_status(ann, "host-2", &bound("host-2", "a", "Adopted"), false).await), "another Machine");
    let renamed = bound("host-one", "a", "Adopted");
    assert_eq!(patch_status(operator, "host-1", &renamed, false).await, Ok(()));
    assert!(refused(patch_status(operator, "host-1", &bound("host-1", "b", "Adopted"), false).await), "another Node");
    assert_eq!(patch_status(operator, "host-1", &bound("host-1", "b", "Joined"), false).await, Ok(()));
}

/// The Machine-Operator has the right to create and delete Secrets in kube-system, and uses it for bootstrap tokens.
async fn of_the_secrets_in_kube_system_only_bootstrap_tokens_are_written(place: &CliServer) {
    const POLICY: &str = "'fleetwright-machines.fleetwright-system.tokens'";
    let secret = |name: &str, of_type: &str| -> Secret {
        let account = json!({"kubernetes.io/service-account.name": "default"});
        let secret = json!({"metadata": {"name": name, "annotations": account}, "type": of_type});
        serde_json::from_value(secret).expect("a Secret")
    };
    let refused = |what: &str, answer: kube::Result<()>| match answer {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(POLICY) => {}
        other => panic!("{what}: {other:?}"),
    };
    let admin: Api<Secret> = Api::namespaced(place.target.admin(), "kube-system");
    let user = "system:serviceaccount:fleetwright-system:fleetwright-machines";
    let client = place.target.client_as(user, &[]).await.expect("a client");
    let operator: Api<Secret> = Api::namespaced(client, "kube-system");
    let (params, delete) = (PostParams::default(), DeleteParams::default());
    let (token, opaque) = ("bootstrap.kubernetes.io/token", "Opaque");

    // The API server takes a moment until it applies new roles and policies.
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    until("the policy is applied", || async {
        let answer = operator.create(&dry_run, &secret("other", opaque)).await;
        matches!(answer, Err(kube::Error::Api(status)) if status.message.contains(POLICY)).then_some(())
    })
    .await;
    let tried = [
        ("other", opaque),
        ("other", token),
        ("other", "kubernetes.io/service-account-token"),
        ("bootstrap-token-abc123", opaque),
        ("bootstrap-token-abc123", "kubernetes.io/service-account-token"),
    ];
    for (name, of_type) in tried {
        let answer = operator.create(&params, &secret(name, of_type)).await;
        refused(&format!("{name} of the type {of_type}"), answer.map(drop));
    }
    admin.create(&params, &secret("other", opaque)).await.expect("a Secret");
    refused("a deletion", operator.delete("other", &delete).await.map(drop));
    admin.get("other").await.expect("the Secret is not deleted");

    operator.create(&params, &secret("bootstrap-token-abc123", token)).await.expect("a bootstrap token");
    operator.delete("bootstrap-token-abc123", &delete).await.expect("its deletion");
    assert!(admin.get_opt("bootstrap-token-abc123").await.expect("an answer").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_what_is_printed() {
    printed(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_what_is_printed_on_real() {
    printed(Target::real().await.expect("the server starts")).await;
}

async fn foreign_changes(target: Target) {
    let place = CliServer::new(target);
    let client = place.target.admin();
    place.run(&["install"]).await.ok();

    // Labels and annotations of other managers stay.
    place
        .kubectl(&["-n", "fleetwright-system", "label", "deployment", "fleetwright-machines", "team=blue"], None)
        .await
        .ok();
    place.run(&["install", "--replicas", "3"]).await.ok();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "fleetwright-system");
    let found = deployments.get("fleetwright-machines").await.expect("the Deployment");
    assert_eq!(found.metadata.labels.as_ref().and_then(|labels| labels.get("team")).map(String::as_str), Some("blue"));
    assert_eq!(found.spec.replicas, Some(3));

    // A field of another owner is not overwritten, and nothing else is changed meanwhile.
    let scale = ["-n", "fleetwright-system", "scale", "deployment", "fleetwright-machines", "--replicas=5"];
    place.kubectl(&scale, None).await.ok();
    let before = everything(&client).await;
    let error = place.run(&["install", "--replicas", "3", "--image", "example.com/new:1"]).await.refused();
    assert!(error.contains(".spec.replicas") && error.contains("\"kubectl\""), "{error}");
    assert!(error.contains("--force-conflicts") && error.contains("Nothing was changed"), "{error}");
    assert_eq!(everything(&client).await, before);
    place.run(&["install", "--replicas", "3", "--force-conflicts"]).await.ok();
    assert_eq!(deployments.get("fleetwright-machines").await.expect("the Deployment").spec.replicas, Some(3));
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_own_is_left_or_named() {
    foreign_changes(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_own_is_left_or_named_on_real() {
    foreign_changes(Target::real().await.expect("the server starts")).await;
}

async fn refusals(target: Target) {
    let place = CliServer::new(target);
    let client = place.target.admin();
    place.kubectl(&["create", "namespace", "fleet"], None).await.ok();
    place.run(&["install"]).await.ok();

    let machines: Api<Machine> = Api::namespaced(client.clone(), "fleet");
    machines.create(&PostParams::default(), &Machine::new("host-1", MachineSpec::default())).await.expect("a machine");
    let before = everything(&client).await;
    for args in [vec!["uninstall"], vec!["uninstall", "--dry-run"]] {
        let error = place.run(&args).await.refused();
        assert!(error.contains(" 1 machine"), "{error}");
        assert!(error.contains("kubectl -n fleet delete machines.fleetwright.io --all"), "{error}");
    }
    assert_eq!(everything(&client).await, before, "nothing was removed");
    machines.delete("host-1", &DeleteParams::default()).await.expect("it goes");

    // A foreign object in the operators' namespace, and a closed node.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "fleetwright-system");
    let mine = serde_json::from_value(json!({"metadata": {"name": "mine"}})).expect("a ConfigMap");
    maps.create(&PostParams::default(), &mine).await.expect("a ConfigMap");
    let nodes: Api<Node> = Api::all(client.clone());
    let taints = json!([{"key": "fleetwright.io/unready", "effect": "NoSchedule"}]);
    let node =
        serde_json::from_value(json!({"metadata": {"name": "host-1"}, "spec": {"taints": taints}})).expect("a Node");
    nodes.create(&PostParams::default(), &node).await.expect("a Node");

    let error = place.run(&["uninstall", "--fleet-namespace", "other"]).await.refused();
    assert!(error.contains("--fleet-namespace fleet"), "{error}");
    let gone = place.run(&["uninstall"]).await.ok();
    assert!(gone.contains("namespace/fleet kept: "), "{gone}");
    assert!(
        gone.lines()
            .any(|line| line.starts_with("namespace/fleetwright-system kept: ") && line.ends_with("configmap/mine")),
        "{gone}"
    );
    assert!(gone.contains("kubectl taint node host-1 fleetwright.io/unready-"), "{gone}");
    let namespaces: Api<Namespace> = Api::all(client);
    assert!(namespaces.get_opt("fleet").await.expect("an answer").is_some());
    maps.get("mine").await.expect("it is still there");
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_removes_nothing_that_is_not_its_own() {
    refusals(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_removes_nothing_that_is_not_its_own_on_real() {
    refusals(Target::real().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definitions_stay_while_another_installation_needs_them() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    place.run(&["install"]).await.ok();
    place.run(&["install", "--namespace", "blue-system", "--fleet-namespace", "blue"]).await.ok();
    let blue: Api<Machine> = Api::namespaced(place.target.admin(), "blue");
    blue.create(&PostParams::default(), &Machine::new("host-1", MachineSpec::default())).await.expect("a machine");
    let gone = place.run(&["uninstall"]).await.ok();
    assert!(gone.contains("CustomResourceDefinitions kept") && gone.contains("blue-system"), "{gone}");
    blue.get("host-1").await.expect("the other's machine is there");
    let error = place.run(&["uninstall", "--namespace", "blue-system", "--fleet-namespace", "blue"]).await.refused();
    assert!(error.contains("kubectl -n blue delete machines.fleetwright.io --all"), "{error}");
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moving_the_operators_to_another_fleet_reports_what_is_left() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    place.run(&["install"]).await.ok();
    let ran = place.run(&["install", "--fleet-namespace", "blue"]).await;
    assert!(
        ran.err.contains("kubectl -n fleet delete role,rolebinding fleetwright-readiness fleetwright-machines"),
        "{}",
        ran.err
    );
    ran.ok();
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_namespace_for_operators_and_fleet_is_refused() {
    let error = alone(&["install", "--print", "--namespace", "fleet"]).refused();
    assert!(error.contains("--fleet-namespace") && error.contains("Secrets"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_without_admission_policies_is_reported() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    let ran = place.run(&["install"]).await;
    assert!(ran.err.contains("no ValidatingAdmissionPolicies"), "{}", ran.err);
    ran.ok();
    assert!(alone(&["install", "--print"]).ok().contains("kind: ValidatingAdmissionPolicy\n"));
    place.target.stop(false).await;
}

/// The table in the guide equals the installed rights. To write it: `fleetwright install --print-rights`.
#[test]
fn the_guide_shows_the_rights_that_are_given() {
    let guide = include_str!("../../../../docs/guide/install.md");
    let table = alone(&["install", "--print-rights"]).ok();
    let (_, rest) = guide.split_once("<!-- rights -->\n").expect("where the table begins");
    let (shown, _) = rest.split_once("<!-- /rights -->").expect("where it ends");
    assert_eq!(shown.trim(), table.trim(), "replace the table in docs/guide/install.md by this one:\n{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_when_all_replicas_are_available_and_says_why_not() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    let client = place.target.admin();
    let error = place.run(&["install", "--wait", "--timeout", "500ms"]).await.refused();
    assert!(error.contains("timed out after 500ms") && error.contains("0 of 6"), "{error}");
    assert!(error.contains("kubectl -n fleetwright-system get pods"), "{error}");

    let deployments: Api<Deployment> = Api::namespaced(client, "fleetwright-system");
    for name in ["fleetwright-readiness", "fleetwright-machines", "fleetwright-clusters"] {
        let generation = deployments.get(name).await.expect("the Deployment").metadata.generation;
        let status = json!({"status": {
            "observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        }});
        let patch = Patch::Merge(&status);
        deployments.patch_status(name, &PatchParams::default(), &patch).await.expect("a status");
    }
    place.run(&["install", "--wait"]).await.ok();
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_installation_says_why() {
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    let ran = place.run(&["install", "--kubeconfig", "/nonexistent"]).await.refused();
    assert!(ran.contains("cannot read") && ran.contains("/nonexistent"), "{ran}");
    let ran = place.run(&["install", "--context", "nowhere"]).await.refused();
    assert!(ran.contains("nowhere"), "{ran}");

    let kubectl = ["config", "set-credentials", "nobody", "--token", "nonsense"];
    place.kubectl(&kubectl, None).await.ok();
    let cluster = place.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].name}"], None).await.ok();
    place.kubectl(&["config", "set-context", "nobody", "--user=nobody", "--cluster", &cluster], None).await.ok();
    let ran = place.run(&["install", "--context", "nobody"]).await.refused();
    assert!(ran.contains("401"), "{ran}");

    let account = || async { place.kubectl(&["get", "serviceaccount", "default"], None).await.code == 0 };
    until("there is a service account", || async { account().await.then_some(()) }).await;
    place.speak_as("default", "default").await;
    let ran = place.run(&["install", "--context", "default"]).await.refused();
    let denied = "not allowed: deployments.apps \"fleetwright-readiness\" is forbidden";
    assert!(ran.contains(denied) && ran.contains("system:serviceaccount:default:default"), "{ran}");

    let file = place.kubeconfig();
    place.target.stop(false).await;
    let ran = alone(&["install", "--kubeconfig", file.to_str().expect("text")]).refused();
    assert!(ran.contains("cannot reach") && ran.contains("https://127.0.0.1"), "{ran}");
}

#[test]
fn mistakes_on_the_command_line_name_what_is_allowed() {
    for (args, part) in [
        (vec!["install", "--namespace", "Fleet"], "lower-case letters"),
        (vec!["install", "--replicas", "0"], "1..=9"),
        (vec!["install", "--timeout", "soon"], "90s"),
        (vec!["install", "--image", "a b"], "registry.example.com"),
        (vec!["install", "--print", "--dry-run"], "cannot be used with"),
        (vec!["install", "--colour"], "--colour"),
    ] {
        let ran = alone(&args);
        assert_eq!(ran.code, 2, "{args:?}");
        assert!(ran.err.contains(part), "{args:?}: {}", ran.err);
    }
    let ran = alone(&["install"]).refused();
    assert!(ran.contains("no usable kubeconfig") && ran.contains("--kubeconfig"), "{ran}");
}

#[test]
fn the_definitions_are_printed_in_both_formats() {
    let json: serde_json::Value = serde_json::from_str(&alone(&["crds", "-o", "json"]).ok()).expect("JSON");
    let names: Vec<_> =
        json["items"].as_array().expect("a list").iter().map(|crd| crd["metadata"]["name"].clone()).collect();
    assert!(names.contains(&json!("machines.fleetwright.io")), "{names:?}");
    let yaml = alone(&["crds"]).ok();
    assert_eq!(yaml.matches("kind: CustomResourceDefinition").count(), names.len());
}
