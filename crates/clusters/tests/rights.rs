//! The operator has the rights that it uses, and no others: with them a cluster is created, upgraded, repaired and deleted, and nothing is refused;
//! each right that is taken away is missed; and with none of them does it read a Secret or write anything where no control plane is.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, EtcdDatastore, Extension,
    ExtensionPlacement, crds, is_true, names,
};
use fleetwright_clusters::{Account, Options, admission_policy, control_plane_role, rules};
use fleetwright_kit::{Clock, Operator, Settings};
use fleetwright_lab::{Kind, Target, define};
use fleetwright_rig::rights::{CLUSTER, Right, grant_everywhere, grant_in, judge, rights, without};
use fleetwright_rig::{Call, Recorder};
use fleetwright_sim::meta::{Manner, Meta};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const FLEET: &str = "fleet";
const SYSTEM: &str = "fleetwright-system";
const ACCOUNT: &str = "fleetwright-clusters";
/// Where rights hold.
const BESIDE_CLUSTERS: &str = "fleet";
const KEYS: &str = "keys";
const CONTROL_PLANE: &str = "control-plane";
const PATIENCE: Duration = Duration::from_secs(120);

/// Something of each kind that an extension may have beside a control plane.
fn beside() -> Extension {
    let pods = "selector: {matchLabels: {app: beside}}";
    let template = "template: {metadata: {labels: {app: beside}}, spec: {containers: [{name: beside, image: registry.example/beside:v1}]}}";
    let of = |version: &str, kind: &str, rest: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: beside}}\n{rest}\n")
    };
    let workload = format!("spec: {{replicas: 1, {pods}, {template}}}");
    let set = format!("spec: {{replicas: 1, serviceName: beside, {pods}, {template}}}");
    let all = [
        of("v1", "ConfigMap", "data: {text: some}"),
        of("v1", "Service", "spec: {selector: {app: beside}, ports: [{port: 80}]}"),
        of("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {matchLabels: {app: beside}}}"),
        of("policy/v1", "PodDisruptionBudget", &format!("spec: {{maxUnavailable: 1, {pods}}}")),
        of("apps/v1", "Deployment", &workload),
        of("apps/v1", "StatefulSet", &set),
    ];
    Extension {
        name: "beside".to_owned(),
        placement: ExtensionPlacement::Meta,
        template: all.join("---\n"),
        ..Extension::default()
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<Result<(), String>>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match holds().await? {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > deadline => bail!("{what}: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// An installation of its own: a namespace of Clusters, one of the operator, and its account.
#[derive(Clone, Copy)]
struct Place {
    fleet: &'static str,
    account: Account,
}

impl Place {
    const FIRST: Self = Self { fleet: FLEET, account: Account { namespace: SYSTEM, name: ACCOUNT } };

    fn numbered(number: usize) -> Self {
        let fleet = Box::leak(format!("{FLEET}{number}").into_boxed_str());
        let namespace = Box::leak(format!("{SYSTEM}-{number}").into_boxed_str());
        Self { fleet, account: Account { namespace, name: ACCOUNT } }
    }

    fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.account.namespace, self.account.name)
    }

    /// Where a call is made.
    fn of(&self, call: &Call) -> &'static str {
        let namespace = if call.resource == "namespaces" { &call.name } else { &call.namespace };
        if namespace == self.fleet {
            BESIDE_CLUSTERS
        } else if namespace == self.account.namespace {
            KEYS
        } else if namespace.starts_with(&format!("{}-", self.fleet)) {
            CONTROL_PLANE
        } else {
            CLUSTER
        }
    }

    fn rights(&self) -> Vec<Right> {
        let given = rules(self.account.namespace);
        [
            rights(BESIDE_CLUSTERS, &given.namespaced),
            rights(KEYS, &given.keys),
            rights(CONTROL_PLANE, &given.control_plane),
            rights(CLUSTER, &given.cluster),
        ]
        .concat()
    }

    /// The namespaces, package versions, and an account with the rights of the installation, but for one.
    async fn prepare(&self, admin: &Client, missing: Option<&Right>) -> Result<()> {
        for namespace in [self.fleet, self.account.namespace] {
            create::<Namespace>(Api::all(admin.clone()), json!({ "metadata": { "name": namespace } })).await?;
        }
        let (given, user) = (rules(self.account.namespace), self.user());
        grant_in(admin, self.fleet, &user, &without(BESIDE_CLUSTERS, &given.namespaced, missing)).await?;
        grant_in(admin, self.account.namespace, &user, &without(KEYS, &given.keys, missing)).await?;
        grant_everywhere(admin, &user, &without(CLUSTER, &given.cluster, missing)).await?;
        let role = json!({
            "metadata": { "name": control_plane_role(self.account.namespace) },
            "rules": without(CONTROL_PLANE, &given.control_plane, missing),
        });
        create::<ClusterRole>(Api::all(admin.clone()), role).await?;
        let packages: Api<ClusterPackageVersion> = Api::namespaced(admin.clone(), self.fleet);
        // With another etcd, so that its members are replaced.
        for (name, kubernetes, etcd) in [("v1.36", "1.36.4", "3.6.16"), ("v1.37", "1.37.1", "3.6.17")] {
            let mut spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
            // The next one does not have it any more.
            if name == "v1.36" {
                spec.extensions = vec![beside()];
            }
            packages.create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await?;
        }
        Ok(())
    }

    fn operator(&self, client: Client) -> Operator {
        let mut operator = Operator::new(Settings { strict_budgets: true, ..Settings::new("fleetwright", client) });
        fleetwright_clusters::add(
            &mut operator,
            self.fleet,
            Options { account: Some(self.account), ..Options::default() },
        );
        operator
    }
}

async fn create<K>(api: Api<K>, object: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let what = object.to_string();
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await.context(what)
}

async fn ready(clusters: &Api<Cluster>) -> Result<()> {
    until("pay is ready", async || {
        let cluster = clusters.get("pay").await?;
        let status = cluster.status.unwrap_or_default();
        let there = status.observed_generation == cluster.metadata.generation
            && status.package_version.as_ref() == Some(&cluster.spec.package_version)
            && is_true(&status.conditions, names::READY)
            && is_true(&status.conditions, names::DATASTORE_HEALTHY)
            && is_true(&status.conditions, names::EXTENSIONS_READY)
            && status.waiting_for.is_none();
        Ok(if there { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await
}

/// Everything that an operator ever does to the API server.
async fn a_full_life(admin: &Client, meta: &Meta) -> Result<()> {
    let clusters: Api<Cluster> = Api::namespaced(admin.clone(), FLEET);
    let mut spec = ClusterSpec::of("v1.36");
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 3, ..EtcdDatastore::default() });
    spec.deletion_protection = false;
    clusters.create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    ready(&clusters).await?;
    let within = format!("{FLEET}-pay");
    let (secrets, services): (Api<Secret>, Api<Service>) =
        (Api::namespaced(admin.clone(), &within), Api::namespaced(admin.clone(), &within));
    secrets.delete("front-proxy-client", &DeleteParams::default()).await?;
    let broken = json!({ "stringData": { "tls.key": "nothing" } });
    secrets.patch("scheduler-kubeconfig", &PatchParams::default(), &Patch::Merge(broken)).await?;
    services.delete("kube-apiserver", &DeleteParams::default()).await?;
    until("what was removed is back", async || {
        let (secret, service) =
            (secrets.get_opt("front-proxy-client").await?, services.get_opt("kube-apiserver").await?);
        Ok(if secret.is_some() && service.is_some() { Ok(()) } else { Err(format!("{secret:?} {service:?}")) })
    })
    .await?;
    // A member that lost its disk is replaced.
    ready(&clusters).await?;
    ensure!(meta.wipe(&within, "data-etcd-2"), "there is no such volume");
    until("its loss is seen", async || {
        let status = clusters.get("pay").await?.status.unwrap_or_default();
        let healthy = is_true(&status.conditions, names::DATASTORE_HEALTHY);
        Ok(if healthy { Err("all members are healthy".to_owned()) } else { Ok(()) })
    })
    .await?;
    ready(&clusters).await?;
    another_ones_secret(admin, &clusters).await?;
    let patch = json!({ "spec": { "packageVersion": "v1.37" } });
    clusters.patch("pay", &PatchParams::default(), &Patch::Merge(patch)).await?;
    ready(&clusters).await?;
    clusters.delete("pay", &DeleteParams::default()).await?;
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    until("everything is gone", async || {
        let left = (clusters.get_opt("pay").await?.map(|one| one.status), namespaces.get_opt(&within).await?);
        Ok(if left.0.is_none() && left.1.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// Who may write Clusters refers to the SSH key of the fleet: it says that the Secret is not shared, and nothing of it is copied.
async fn another_ones_secret(admin: &Client, clusters: &Api<Cluster>) -> Result<()> {
    let key = json!({
        "metadata": { "name": "fleet-ssh" }, "type": "kubernetes.io/ssh-auth",
        "stringData": { "ssh-privatekey": "the key of all hosts" },
    });
    let fleet: Api<Secret> = Api::namespaced(admin.clone(), FLEET);
    fleet.create(&PostParams::default(), &serde_json::from_value(key)?).await?;
    let mut spec = ClusterSpec::of("v1.36");
    spec.deletion_protection = false;
    let file = json!({ "config": [
        { "name": "notes", "secret": { "name": "fleet-ssh", "key": "ssh-privatekey" } },
    ] });
    spec.components.apiserver = Some(serde_json::from_value(file)?);
    clusters.create(&PostParams::default(), &Cluster::new("eve", spec)).await?;
    until("the Secret is refused", async || {
        let status = clusters.get("eve").await?.status.unwrap_or_default();
        let accepted = fleetwright_api::condition(&status.conditions, names::ACCEPTED).cloned();
        let refused = accepted.as_ref().is_some_and(|one| one.reason == names::reasons::SECRET_NOT_SHARED);
        Ok(if refused { Ok(()) } else { Err(format!("{accepted:?}")) })
    })
    .await?;
    let within: Api<Secret> = Api::namespaced(admin.clone(), &format!("{FLEET}-eve"));
    let secrets = within.list(&Default::default()).await?.items;
    let mut values = secrets.iter().flat_map(|secret| secret.data.iter().flatten());
    ensure!(!values.any(|(_, value)| value.0.starts_with(b"the key of all hosts")), "it was copied");
    clusters.delete("eve", &DeleteParams::default()).await?;
    until("it is gone", async || {
        let left = clusters.get_opt("eve").await?.map(|one| one.status);
        Ok(if left.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// Every call was allowed, and without any one right some call would not have been.
fn judged(recorder: &Recorder) -> Result<()> {
    let place = Place::FIRST;
    // Until the RoleBinding of a new namespace is known to the API server, its Secrets may not be read: that is waited for.
    let awaited = |call: &Call| call.resource == "secrets" && matches!(call.verb, "list" | "watch");
    // A namespace that is told again to go may have lost its RoleBinding already.
    let ends = |call: &Call| (call.resource.as_str(), call.verb) == ("namespaces", "delete");
    let calls = recorder.calls();
    let ended = |call: &Call| {
        let was = calls.iter().filter(|record| ends(&record.call) && record.code == Some(200));
        ends(call) && was.into_iter().any(|record| record.call.name == call.name)
    };
    let refused = calls.iter().filter(|record| record.code == Some(403));
    let refused: Vec<_> = refused.filter(|record| !awaited(&record.call) && !ended(&record.call)).collect();
    ensure!(refused.is_empty(), "with all rights these were refused: {refused:#?}");
    let calls = recorder.calls().into_iter().map(|record| record.call);
    // The server asks for `bind` when a RoleBinding is created, see the test of each right. A replica that is not proven any more is taken out of its Service: the story of
    // replicas. Volumes that grow: the story of the datastore. A copy of keys is changed when an authority is: the story of authorities. What the journal needs is
    // shown where it is kept.
    judge(
        &place.rights(),
        calls,
        |call| place.of(call),
        |right| {
            let patched = matches!(right.resource.as_str(), "pods" | "persistentvolumeclaims")
                || (right.place, right.resource.as_str()) == (KEYS, "secrets");
            patched && right.verb == "patch" || right.resource.starts_with("operation") || right.verb == "bind"
        },
    )
}

const MANNER: fn() -> Manner =
    || Manner { start: Duration::from_millis(10), stop: Duration::from_millis(50), ..Manner::default() };

async fn lives_with_its_rights(kind: Kind) -> Result<()> {
    let target = Target::start(kind).await?;
    let (admin, place) = (target.admin(), Place::FIRST);
    define(&admin, &crds()).await?;
    place.prepare(&admin, None).await?;
    if kind == Kind::Real {
        confine(&admin, &place).await?;
    }
    let meta = Meta::start(admin.clone(), Clock::system(), MANNER()).await?;
    let recorder = Recorder::default();
    let client = target.client_as(&place.user(), &[]).await?;
    let operator = place.operator(recorder.around(client.clone()));
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let lived = a_full_life(&admin, &meta).await;
    drop(stop);
    running.await??;
    meta.stop().await;
    let came = lived.with_context(|| recorder.tail(60)).and_then(|()| judged(&recorder));
    let came = match came {
        Ok(()) => reads_no_secret_elsewhere(&client).await,
        failed => failed,
    };
    target.stop(came.is_err()).await;
    came
}

/// What only control planes may give is given nowhere else.
async fn reads_no_secret_elsewhere(client: &Client) -> Result<()> {
    let forbidden = |what: &str, answer: Result<(), kube::Error>| match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        other => bail!("{what}: {other:?}"),
    };
    for namespace in ["kube-system", "default", FLEET] {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        if namespace != FLEET {
            forbidden("get", api.get("some").await.map(drop))?;
        }
        forbidden("list", api.list(&ListParams::default()).await.map(drop))?;
        let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await;
        forbidden("create a pod", pod.map(drop))?;
    }
    let everywhere: Api<Secret> = Api::all(client.clone());
    forbidden("list everywhere", everywhere.list(&ListParams::default()).await.map(drop))?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    forbidden("delete a namespace", namespaces.delete("default", &DeleteParams::default()).await.map(drop))
}

/// Applies the admission policy of the installation.
async fn confine(admin: &Client, place: &Place) -> Result<()> {
    let Account { namespace, name } = place.account;
    let (group, version) = ("admissionregistration.k8s.io".to_owned(), "v1".to_owned());
    for object in admission_policy(namespace, name, place.fleet) {
        let kind = object["kind"].as_str().context("a kind")?.to_owned();
        let plural = kind.to_lowercase().replace("policybinding", "policybindings");
        let plural = plural.strip_suffix("policy").map(|stem| format!("{stem}policies")).unwrap_or(plural);
        let api_version = format!("{group}/{version}");
        let resource = ApiResource { group: group.clone(), version: version.clone(), api_version, kind, plural };
        create::<DynamicObject>(Api::all_with(admin.clone(), &resource), object).await?;
    }
    Ok(())
}

/// Whoever has the account's token and got every role there is still writes nothing outside of control planes.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_confines_the_account_whatever_roles_it_has_on_real() -> Result<()> {
    let target = Target::start(Kind::Real).await?;
    let (admin, place) = (target.admin(), Place::FIRST);
    define(&admin, &crds()).await?;
    place.prepare(&admin, None).await?;
    let user = place.user();
    let all = json!({
        "metadata": { "name": "stolen" },
        "subjects": [{ "kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io" }],
        "roleRef": { "kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io" },
    });
    create::<ClusterRoleBinding>(Api::all(admin.clone()), all).await?;
    let labels =
        |fleet: &str| json!({ "fleetwright.io/fleet": fleet, "pod-security.kubernetes.io/enforce": "restricted" });
    for (name, fleet) in [("fleet-pay", FLEET), ("other-pay", "other"), ("plain", "")] {
        let namespace = json!({ "metadata": { "name": name, "labels": labels(fleet) } });
        create::<Namespace>(Api::all(admin.clone()), namespace).await?;
    }
    let pods = json!({ "matchLabels": { "app": "dns" } });
    let container = json!({ "containers": [{ "name": "dns", "image": "registry.example/dns:v1" }] });
    let deployment = json!({
        "metadata": { "name": "dns" },
        "spec": { "replicas": 0, "selector": pods, "template": { "metadata": { "labels": { "app": "dns" } }, "spec": container } },
    });
    create::<Deployment>(Api::namespaced(admin.clone(), "kube-system"), deployment).await?;
    confine(&admin, &place).await?;
    let client = target.client_as(&user, &[]).await?;
    // One that the level `restricted` of pod security allows: only the policy refuses it.
    let restricted = json!({
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "dns", "image": "registry.example/dns:v1",
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    });
    let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": restricted }))?;
    let binding = |role: &str, account: &str| -> Result<RoleBinding> {
        Ok(serde_json::from_value(json!({
            "metadata": { "name": "b" },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": SYSTEM }],
            "roleRef": { "kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io" },
        }))?)
    };
    let (role, params) = (control_plane_role(SYSTEM), PostParams::default());
    let within = |namespace: &str| Api::<Pod>::namespaced(client.clone(), namespace);
    let bindings = |namespace: &str| Api::<RoleBinding>::namespaced(client.clone(), namespace);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let refused = |what: &str, answer: kube::Result<()>| match answer {
        Err(kube::Error::Api(status)) if status.message.contains(&format!("{ACCOUNT}.{SYSTEM}")) => Ok(()),
        other => bail!("{what}: {other:?}"),
    };
    for namespace in ["kube-system", "default", FLEET, SYSTEM, "other-pay"] {
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
        until("pods can be created at all", async || {
            Ok(accounts.get_opt("default").await?.map(drop).ok_or_else(|| format!("no account in {namespace}")))
        })
        .await?;
    }
    // The API server takes a moment until it applies a new policy.
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    until("the policy is applied", async || {
        Ok(refused("a pod", within("kube-system").create(&dry, &pod).await.map(drop))
            .map_err(|error| error.to_string()))
    })
    .await?;
    for namespace in ["kube-system", "default", FLEET, SYSTEM, "other-pay"] {
        refused(namespace, within(namespace).create(&params, &pod).await.map(drop))?;
        let own = binding(&role, ACCOUNT)?;
        refused(namespace, bindings(namespace).create(&params, &own).await.map(drop))?;
    }
    for (role, account) in [("cluster-admin", ACCOUNT), (role.as_str(), "other")] {
        let other = binding(role, account)?;
        refused("another binding", bindings("fleet-pay").create(&params, &other).await.map(drop))?;
    }
    let scaled = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
    refused("a Deployment", deployments.patch("dns", &PatchParams::default(), &scaled).await.map(drop))?;
    for name in ["plain", "other-pay"] {
        refused("a deletion", namespaces.delete(name, &DeleteParams::default()).await.map(drop))?;
        let label = Patch::Merge(json!({ "metadata": { "labels": labels(FLEET) } }));
        refused("a label", namespaces.patch(name, &PatchParams::default(), &label).await.map(drop))?;
    }
    let unrestricted = json!({ "fleetwright.io/fleet": FLEET, "pod-security.kubernetes.io/enforce": "privileged" });
    for labels in [labels("other"), unrestricted, json!({})] {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": "fleet-eve", "labels": labels } }))?;
        refused("a namespace", namespaces.create(&params, &namespace).await.map(drop))?;
    }
    // And what it is there for goes on.
    bindings("fleet-pay").create(&params, &binding(&role, ACCOUNT)?).await?;
    let good = serde_json::from_value(json!({ "metadata": { "name": "fleet-new", "labels": labels(FLEET) } }))?;
    namespaces.create(&params, &good).await?;
    namespaces.delete("fleet-pay", &DeleteParams::default()).await?;
    target.stop(false).await;
    Ok(())
}

/// Creates a cluster and deletes it again, until a call is refused for want of the right, or all has happened.
async fn a_short_life(target: &Target, place: Place, missing: Option<&Right>) -> Result<Recorder> {
    let admin = target.admin();
    place.prepare(&admin, missing).await?;
    let recorder = Recorder::default();
    let operator = place.operator(recorder.around(target.client_as(&place.user(), &[]).await?));
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let clusters: Api<Cluster> = Api::namespaced(admin.clone(), place.fleet);
    let mut spec = ClusterSpec::of("v1.36");
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    spec.deletion_protection = false;
    clusters.create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    let (mut deleted, begun) = (false, Instant::now());
    let seen = || {
        recorder
            .calls()
            .iter()
            .any(|one| one.code == Some(403) && missing.is_some_and(|right| is_want(right, &one.call, &place)))
    };
    loop {
        let Some(cluster) = clusters.get_opt("pay").await? else { break };
        let ready = cluster.status.is_some_and(|status| is_true(&status.conditions, names::READY));
        if !deleted && (ready || begun.elapsed() > PATIENCE / 4) {
            clusters.delete("pay", &DeleteParams::default()).await?;
            deleted = true;
        }
        if seen() {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "nobody was refused for want of {missing:?}:\n{}", recorder.tail(40));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(missing.is_none() || seen(), "all went well without {missing:?}");
    drop(stop);
    running.await??;
    Ok(recorder)
}

/// Whether that call is refused when that right is missing.
fn is_want(right: &Right, call: &Call, place: &Place) -> bool {
    match right.verb.as_str() {
        // The server asks for it when the RoleBinding is created.
        "bind" => call.verb == "create" && call.resource.starts_with("rolebindings"),
        // To apply what does not exist is to create it.
        "create" if call.verb == "apply" => {
            let patch = Right { verb: "patch".to_owned(), ..right.clone() };
            patch.allows(call, place.of(call))
        }
        _ => right.allows(call, place.of(call)),
    }
}

/// Each right that the short life of a cluster needs is taken away once, and is missed. The others: `every_call_has_its_right_and_every_right_its_call`.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_taken_away_is_missed() -> Result<()> {
    let target = std::sync::Arc::new(Target::start(Kind::Embedded).await?);
    let admin = target.admin();
    define(&admin, &crds()).await?;
    let meta = Meta::start(admin.clone(), Clock::system(), MANNER()).await?;
    let first = Place::numbered(0);
    let recorder = a_short_life(&target, first, None).await?;
    let calls: Vec<_> = recorder.calls().into_iter().map(|record| record.call).collect();
    // Where lists are streamed, `list` is not asked for.
    let used = |right: &Right| right.verb != "list" && calls.iter().any(|call| is_want(right, call, &first));
    let needed: Vec<_> = first.rights().into_iter().filter(used).collect();
    ensure!(needed.len() > 30, "only these are needed: {needed:#?}");
    let (mut cases, mut wrong) = (JoinSet::new(), Vec::new());
    for (number, right) in (1..).zip(needed) {
        let target = target.clone();
        cases.spawn(async move { a_short_life(&target, Place::numbered(number), Some(&right)).await.map(drop) });
        if cases.len() >= 6 {
            wrong.extend(cases.join_next().await.and_then(|done| done.unwrap().err()));
        }
    }
    while let Some(done) = cases.join_next().await {
        wrong.extend(done.unwrap().err());
    }
    meta.stop().await;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call() -> Result<()> {
    lives_with_its_rights(Kind::Embedded).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call_on_real() -> Result<()> {
    lives_with_its_rights(Kind::Real).await
}
