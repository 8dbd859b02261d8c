//! The operator has the rights that it uses, and no others: with them a cluster is created, repaired, restored, rotated, grown, resized, upgraded and deleted, and nothing is refused;
//! each right that is taken away is missed; and with none of them does it read a Secret or write anything where no control plane is.

mod place;
mod world;

use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleetwright_api::{Cluster, ClusterSpec, EtcdDatastore, crds, is_true, names};
use fleetwright_clusters::{Account, admission_policy, control_plane_role};
use fleetwright_kit::{Clock, Operator};
use fleetwright_lab::{ServerKind, Target, define};
use fleetwright_rig::layer::without_streaming_lists;
use fleetwright_rig::rights::{CLUSTER, Right, check_rights};
use fleetwright_rig::{Call, Recorder};
use fleetwright_sim::meta::{Meta, MetaConfig};
use futures::future::{ready, try_join_all};
use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use place::{ACCOUNT, CONTROL_PLANE, FLEET, Installation, KEYS, SYSTEM, WAIT_TIMEOUT, create, is_want, until};
use serde_json::json;
use tokio::sync::oneshot;
use world::{ClusterRun, Episode};

/// Every call was allowed, and without any one right some call would not have been.
fn judged(recorder: &Recorder) -> Result<()> {
    let place = Installation::FIRST;
    // Until the RoleBinding of a new namespace is known to the API server, its Secrets may not be read: that is waited for.
    let awaited = |call: &Call| call.resource == "secrets" && matches!(call.verb, "list" | "watch");
    // A namespace that is deleted a second time may have lost its RoleBinding already.
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
    // The API server checks `bind` when a RoleBinding is created, see the test of each right.
    check_rights(&place.rights(), calls, |call| place.of(call), |right| right.verb == "bind")
}

const META_CONFIG: fn() -> MetaConfig =
    || MetaConfig { start: Duration::from_millis(10), stop: Duration::from_millis(50), ..MetaConfig::default() };

/// What all places share: the kinds, a StorageClass whose volumes can grow, and what runs pods.
async fn create_prerequisites(admin: &Client) -> Result<Meta> {
    define(admin, &crds()).await?;
    let class = json!({
        "metadata": { "name": "elastic" }, "provisioner": "example.com/disks", "allowVolumeExpansion": true,
    });
    create::<StorageClass>(Api::all(admin.clone()), class).await?;
    Ok(Meta::start(admin.clone(), Clock::system(), META_CONFIG()).await?)
}

/// Plays while that operator runs.
async fn while_running(operator: Operator, play: impl Future<Output = Result<()>>) -> Result<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let played = play.await;
    drop(stop);
    running.await??;
    played
}

async fn lives_with_its_rights(kind: ServerKind) -> Result<()> {
    let target = Target::start(kind).await?;
    let (admin, place) = (target.admin(), Installation::FIRST);
    let meta = create_prerequisites(&admin).await?;
    place.prepare(&admin, &[]).await?;
    if kind == ServerKind::Real {
        confine(&admin, &place).await?;
    }
    let recorder = Recorder::default();
    let client = target.client_as(&place.user(), &[]).await?;
    let operator = place.operator(recorder.wrap(client.clone()));
    let lived = while_running(operator, ClusterRun::new(&target, &meta, &recorder, place).live()).await;
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
async fn confine(admin: &Client, place: &Installation) -> Result<()> {
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
    let target = Target::start(ServerKind::Real).await?;
    let (admin, place) = (target.admin(), Installation::FIRST);
    define(&admin, &crds()).await?;
    place.prepare(&admin, &[]).await?;
    let user = place.user();
    let all = json!({
        "metadata": { "name": "stolen" },
        "subjects": [{ "kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io" }],
        "roleRef": { "kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io" },
    });
    create::<ClusterRoleBinding>(Api::all(admin.clone()), all).await?;
    let labels = |fleet: &str| json!({ "fleetwright.io/cluster-namespace": fleet, "pod-security.kubernetes.io/enforce": "restricted" });
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
    let unrestricted =
        json!({ "fleetwright.io/cluster-namespace": FLEET, "pod-security.kubernetes.io/enforce": "privileged" });
    for labels in [labels("other"), unrestricted, json!({})] {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": "fleet-eve", "labels": labels } }))?;
        refused("a namespace", namespaces.create(&params, &namespace).await.map(drop))?;
    }
    let foreign = ["kube-system", "default", "other-pay", "plain"];
    writes_secrets_only(&admin, &client, &foreign, &[FLEET, SYSTEM, "fleet-pay"], refused).await?;
    gets_no_token_of_another_account(&admin, &client, &[FLEET, SYSTEM, "fleet-pay"], refused).await?;
    // And the intended use of the right is still allowed.
    bindings("fleet-pay").create(&params, &binding(&role, ACCOUNT)?).await?;
    let good = serde_json::from_value(json!({ "metadata": { "name": "fleet-new", "labels": labels(FLEET) } }))?;
    namespaces.create(&params, &good).await?;
    namespaces.delete("fleet-pay", &DeleteParams::default()).await?;
    target.stop(false).await;
    Ok(())
}

/// Creates and updates Secrets in the `allowed` namespaces, and can do neither in the `foreign` ones.
async fn writes_secrets_only(
    admin: &Client,
    client: &Client,
    foreign: &[&str],
    allowed: &[&str],
    refused: impl Fn(&str, kube::Result<()>) -> Result<()>,
) -> Result<()> {
    let secret = |name: &str| json!({ "metadata": { "name": name }, "stringData": { "text": "before" } });
    let (params, merge) = (PostParams::default(), PatchParams::default());
    let edit = Patch::Merge(json!({ "stringData": { "text": "after" } }));
    let own: Secret = serde_json::from_value(secret("own"))?;
    for namespace in foreign {
        // An update of a Secret that does not exist would fail for another reason.
        create::<Secret>(Api::namespaced(admin.clone(), namespace), secret("existing")).await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let what = format!("a Secret in {namespace}");
        refused(&what, secrets.create(&params, &own).await.map(drop))?;
        refused(&what, secrets.patch("existing", &merge, &edit).await.map(drop))?;
        refused(&what, secrets.delete("existing", &DeleteParams::default()).await.map(drop))?;
    }
    for namespace in allowed {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        secrets.create(&params, &own).await.with_context(|| format!("a Secret in {namespace}"))?;
        let edited = secrets.patch("own", &merge, &edit).await.with_context(|| format!("a Secret in {namespace}"))?;
        let text = edited.data.unwrap_or_default().remove("text").map(|text| text.0);
        ensure!(text.as_deref() == Some(&b"after"[..]), "the Secret in {namespace} has {text:?}");
    }
    Ok(())
}

/// Kubernetes fills a Secret of this type with a token of the account that its annotation names: it can be neither created where an Opaque one can, nor
/// changed to name another account.
async fn gets_no_token_of_another_account(
    admin: &Client,
    client: &Client,
    namespaces: &[&str],
    refused: impl Fn(&str, kube::Result<()>) -> Result<()>,
) -> Result<()> {
    const OTHER: &str = "fleetwright-machines";
    let named = |account: &str| json!({ "kubernetes.io/service-account.name": account });
    let token = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": { "name": name, "annotations": named(OTHER) },
        })
    };
    let stolen: Secret = serde_json::from_value(token("stolen"))?;
    let (merge, apply) = (PatchParams::default(), PatchParams::apply("thief"));
    let renamed = Patch::Merge(json!({ "metadata": { "annotations": named("default") } }));
    for namespace in namespaces {
        let account = json!({ "metadata": { "name": OTHER } });
        create::<ServiceAccount>(Api::namespaced(admin.clone(), namespace), account).await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let what = format!("a token in {namespace}");
        refused(&what, secrets.create(&PostParams::default(), &stolen).await.map(drop))?;
        refused(&what, secrets.patch("stolen", &apply, &Patch::Apply(&stolen)).await.map(drop))?;
        let stored = Api::<Secret>::namespaced(admin.clone(), namespace).get_opt("stolen").await?;
        ensure!(stored.is_none(), "{what}: {stored:?}");
        create::<Secret>(Api::namespaced(admin.clone(), namespace), token("of-an-administrator")).await?;
        refused(&what, secrets.patch("of-an-administrator", &merge, &renamed).await.map(drop))?;
    }
    Ok(())
}

/// Creates a cluster and deletes it again, until a call is refused for want of the right, or all has happened.
async fn a_short_life(target: &Target, place: Installation, missing: Option<&Right>) -> Result<Recorder> {
    let admin = target.admin();
    place.prepare(&admin, missing.map(slice::from_ref).unwrap_or_default()).await?;
    let recorder = Recorder::default();
    let client = target.client_as(&place.user(), &[]).await?;
    // Where lists are streamed, `list` is not asked for.
    let older = missing.is_none_or(|right| right.verb == "list");
    let client = if older { without_streaming_lists(client) } else { client };
    let clusters: Api<Cluster> = Api::namespaced(admin.clone(), place.fleet);
    let seen = || {
        recorder
            .calls()
            .iter()
            .any(|one| one.code == Some(403) && missing.is_some_and(|right| is_want(right, &one.call, &place)))
    };
    let life = async {
        let mut spec = ClusterSpec::of("v1.36");
        spec.replicas = 1;
        spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
        spec.deletion_protection = false;
        clusters.create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
        let (mut deleted, begun) = (false, Instant::now());
        loop {
            let Some(cluster) = clusters.get_opt("pay").await? else { break };
            let ready = cluster.status.is_some_and(|status| is_true(&status.conditions, names::READY));
            // What is never ready is deleted, too; but not one that is slow, of which some calls would never be made.
            if !deleted && (ready || begun.elapsed() > WAIT_TIMEOUT / 2) {
                clusters.delete("pay", &DeleteParams::default()).await?;
                deleted = true;
            }
            if seen() {
                break;
            }
            ensure!(
                begun.elapsed() < WAIT_TIMEOUT,
                "nobody was refused for want of {missing:?}:\n{}",
                recorder.tail(40)
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ensure!(missing.is_none() || seen(), "all went well without {missing:?}");
        anyhow::Ok(())
    };
    while_running(place.operator(recorder.wrap(client)), life).await?;
    Ok(recorder)
}

/// A short life without each of these rights, some at a time.
async fn short_lives(target: &Target, rights: Vec<Right>) -> Result<()> {
    let lives = (1..).zip(rights).map(|(number, right)| async move {
        a_short_life(target, Installation::numbered(number), Some(&right)).await.map(drop)
    });
    let wrong = stream::iter(lives).buffer_unordered(6).filter_map(|done| ready(done.err()));
    let wrong: Vec<_> = wrong.collect().await;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// Plays an episode with an account that lacks all of these rights. A right is granted as soon as a call was refused for lack of it, and the episode
/// continues. Returns the granted rights.
async fn an_episode(
    target: &Target,
    meta: &Meta,
    place: Installation,
    episode: Episode,
    missing: &[Right],
) -> Result<Vec<Right>> {
    let recorder = Recorder::default();
    let world = ClusterRun::new(target, meta, &recorder, place);
    place.prepare(&world.admin, missing).await?;
    let client = target.client_as(&place.user(), &[]).await?;
    let play = async {
        world.begin().await?;
        world.play(episode).await
    };
    let play = async {
        tokio::select! {
            played = play => played,
            failed = world.give_back(missing) => failed,
        }
    };
    let played = while_running(place.operator(recorder.wrap(client)), play).await;
    played.with_context(|| format!("{episode:?}:\n{}", recorder.tail(40)))?;
    Ok(world.missed(missing).0)
}

/// Each right that the short life of a cluster uses is taken away alone. The others are taken away at once, in a cluster for each episode, and given back when a call was refused. Two rights for the
/// same call would not be noticed there: `check_rights` finds them.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_taken_away_is_missed() -> Result<()> {
    let target = Target::start(ServerKind::Embedded).await?;
    let meta = create_prerequisites(&target.admin()).await?;
    let first = Installation::numbered(0);
    let recorder = a_short_life(&target, first, None).await?;
    let calls: Vec<_> = recorder.calls().into_iter().map(|record| record.call).collect();
    let used = |right: &Right| calls.iter().any(|call| is_want(right, call, &first));
    let (needed, others): (Vec<_>, Vec<_>) = first.rights().into_iter().partition(used);
    let lists = needed.iter().filter(|right| right.verb == "list").count();
    ensure!(needed.len() > 30 && lists > 10, "only these are needed: {needed:#?}");
    let episodes = (needed.len() + 1..).zip(Episode::ALL);
    let episodes =
        episodes.map(|(number, episode)| an_episode(&target, &meta, Installation::numbered(number), episode, &others));
    let (lived, missed) = tokio::join!(short_lives(&target, needed), try_join_all(episodes));
    meta.stop().await;
    lived?;
    let missed = missed?.concat();
    let never: Vec<_> = others.iter().filter(|right| !missed.contains(right)).collect();
    ensure!(never.is_empty(), "no call was refused for want of these rights: {never:#?}");
    Ok(())
}

/// One of the account's own namespace, one of a control plane's, and the one that only the API server checks.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_is_missed_on_real() -> Result<()> {
    let target = Target::start(ServerKind::Real).await?;
    let meta = create_prerequisites(&target.admin()).await?;
    let chosen = |right: &Right| {
        let right = (right.place, right.resource.as_str(), right.verb.as_str());
        matches!(right, (KEYS, "secrets", "create") | (CONTROL_PLANE, "statefulsets", "create") | (CLUSTER, _, "bind"))
    };
    let chosen: Vec<_> = Installation::numbered(0).rights().into_iter().filter(chosen).collect();
    ensure!(chosen.len() == 3, "{chosen:#?}");
    let lived = short_lives(&target, chosen).await;
    meta.stop().await;
    target.stop(lived.is_err()).await;
    lived
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call() -> Result<()> {
    lives_with_its_rights(ServerKind::Embedded).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call_on_real() -> Result<()> {
    lives_with_its_rights(ServerKind::Real).await
}
