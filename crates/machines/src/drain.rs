//! Drains a Node by the Eviction API.
//!
//! Which pods are evicted is by default as with `kubectl drain --ignore-daemonsets --delete-emptydir-data`:
//! - pods of DaemonSets stay: their controller would recreate them at once;
//! - mirror pods stay: the kubelet alone decides on them;
//! - pods that have finished stay: they have no running containers;
//! - pods that tolerate [`names::MAINTENANCE_TAINT`] by name stay: they would be scheduled to the same Node again. The operators themselves do
//!   so; otherwise the only Node of a cluster would stay closed, with no operator to open it;
//! - all other pods are evicted, so that PodDisruptionBudgets are respected; the content of their `emptyDir`s is deleted with them;
//! - a pod without a controller blocks the drain: nothing would recreate it elsewhere. A person deletes it, allows its eviction with the
//!   annotation [`names::EVICT`], or sets `spec.drain.force` of the Machine.
//!
//! Unlike with kubectl, a disruption budget without room does not delay other pods, and the backoff of a refused pod grows.
//!
//! `spec.drain` of the Machine limits a drain that pods would block, as the options of `kubectl drain` do: `gracePeriod`
//! (`--grace-period`), `force` (`--force`), `deleteAfter` (`--disable-eviction`, after a deadline) and `skipTerminatingAfter`
//! (`--skip-wait-for-delete-timeout`). Unlike kubectl's, the last one has a default: a pod whose grace period is over has had all the time
//! that it was promised, and only a kubelet that does not work or a finalizer keeps its object.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{DrainOptions, names};
use fleetwright_kit::client::{CallError, retry_after};
use fleetwright_kit::{Remedy, StepError};
use fleetwright_plan::machine::RemainingPods;
use fleetwright_wire::text::first_chars;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions, Request};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Evictions per pass.
pub const MAX_EVICTIONS: usize = 16;
/// Pods per page of a list: a single pod may have more than one MB.
const PAGE: u32 = 50;
/// Pages per pass. A kubelet can create any number of mirror pods.
pub const PAGES: u32 = 20;
/// Finalizers of a pod that a message names.
const FINALIZERS: usize = 8;
/// The first delay before a refused eviction is retried…
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// …and the longest.
const MAX_RETRY: Duration = Duration::from_secs(60);
/// A pod that is still terminating this long after its grace period is reported as stuck, with its finalizers.
const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// The annotation that marks a mirror pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// State of the pods of a Node between passes of its drain.
#[derive(Clone, Debug, Default)]
pub struct EvictionAttempts {
    /// Pods whose eviction was refused: why, when each is retried, and the last delay.
    held: BTreeMap<String, (String, Timestamp, Duration)>,
    /// Since when pods have been observed as terminating, by our own clock: the clock of the API server, which writes deletion timestamps, may
    /// differ. Keyed by uid, because a recreated pod of a StatefulSet has the same name.
    terminating: BTreeMap<String, Timestamp>,
}

/// The API server did not answer which pods are on a Node, or whether the Node exists.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {message}")]
pub struct ReadError {
    what: String,
    message: String,
    /// The `Retry-After` of the API server.
    after: Option<Duration>,
}

impl ReadError {
    /// An error with the request that failed.
    pub fn of(what: String, error: &kube::Error) -> Self {
        let message = CallError::of(error).map_or_else(|| error.to_string(), |error| error.to_string());
        Self { what, message, after: retry_after(error) }
    }
}

impl StepError for ReadError {
    fn reason(&self) -> &'static str {
        "ReadFailed"
    }

    fn remedy(&self) -> Remedy {
        self.after.map_or(Remedy::Retry, Remedy::Wait)
    }
}

/// The fields of a pod that a drain uses. The others are not decoded: kubelets and tenants can write timestamps that do not parse, and large objects.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "self::Raw")]
pub struct Pod {
    namespace: String,
    name: String,
    uid: String,
    /// A mirror pod: the kubelet alone decides on it.
    mirror: bool,
    finished: bool,
    /// The pod has a controller that would recreate it elsewhere…
    controlled: bool,
    /// …which is a DaemonSet.
    daemon: bool,
    /// The pod tolerates the maintenance taint by name.
    tolerates: bool,
    /// The annotation allows eviction although the pod has no controller.
    may_evict: bool,
    /// The pod has a deletion timestamp.
    leaving: bool,
    /// The grace period in seconds.
    grace: i64,
    /// The finalizers of the pod, for messages.
    finalizers: String,
}

#[derive(Deserialize)]
struct Raw {
    metadata: Meta,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<Owner>>,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<IgnoredAny>,
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Spec {
    tolerations: Option<Vec<Toleration>>,
}

#[derive(Deserialize)]
struct Toleration {
    key: Option<String>,
}

#[derive(Default, Deserialize)]
struct Status {
    phase: Option<String>,
}

impl From<Raw> for Pod {
    fn from(Raw { metadata, spec, status }: Raw) -> Self {
        let annotations = metadata.annotations.unwrap_or_default();
        let owners = metadata.owner_references.unwrap_or_default();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        let tolerations = spec.unwrap_or_default().tolerations.unwrap_or_default();
        let finalizers = metadata.finalizers.unwrap_or_default();
        Self {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            mirror: annotations.contains_key(MIRROR),
            finished: matches!(status.unwrap_or_default().phase.as_deref(), Some("Succeeded" | "Failed")),
            controlled: controller.is_some(),
            daemon: controller.is_some_and(|owner| owner.kind == "DaemonSet"),
            tolerates: tolerations.iter().any(|one| one.key.as_deref() == Some(names::MAINTENANCE_TAINT)),
            may_evict: annotations.get(names::EVICT).is_some_and(|value| value == "true"),
            leaving: metadata.deletion_timestamp.is_some(),
            grace: metadata.deletion_grace_period_seconds.unwrap_or(0).max(0),
            finalizers: finalizers[..finalizers.len().min(FINALIZERS)].join(", "),
        }
    }
}

/// A pod that cannot be decoded: its name, and why.
type Unread = (String, String);

/// Decodes one pod, so that an invalid pod does not hide the others.
fn read(text: &RawValue) -> Result<Pod, Unread> {
    serde_json::from_str(text.get()).map_err(|error| {
        let value: Value = serde_json::from_str(text.get()).unwrap_or_default();
        let word = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
        let why = error.to_string();
        (
            format!("{}/{}", word("namespace"), word("name")),
            format!("the pod cannot be parsed, delete it: {}", first_chars(&why, 256)),
        )
    })
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: String,
}

/// The pods on the Node, and whether the list is complete.
async fn pods(client: &Client, node: &str) -> Result<(Vec<Result<Pod, Unread>>, bool), ReadError> {
    let unseen = |error: kube::Error| ReadError::of(format!("pods of Node {node}"), &error);
    // Finished pods stay, and there may be thousands.
    let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let mut params = ListParams::default().fields(&fields).limit(PAGE);
    let mut pods = Vec::new();
    for _ in 0..PAGES {
        let request = Request::new(v1::Pod::url_path(&(), None)).list(&params);
        let request = request.map_err(|error| unseen(kube::Error::BuildRequest(error)))?;
        let page: Page = client.request(request).await.map_err(unseen)?;
        pods.extend(page.items.into_iter().flatten().map(|text| read(&text)));
        if page.metadata.next.is_empty() {
            return Ok((pods, true));
        }
        params.continue_token = Some(page.metadata.next);
    }
    Ok((pods, false))
}

/// The decision about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionDecision {
    /// The pod may stay.
    Stays,
    /// The pod is terminating.
    Leaving,
    /// The pod is to be evicted.
    Evict,
    /// The pod blocks the drain; what a person can do about it.
    Holds(String),
}

/// Decides what to do about a pod.
pub fn judge(pod: &Pod, options: &DrainOptions) -> EvictionDecision {
    if pod.mirror || pod.finished || pod.daemon || pod.tolerates {
        return EvictionDecision::Stays;
    }
    if pod.leaving {
        return EvictionDecision::Leaving;
    }
    if !pod.controlled && !options.force && !pod.may_evict {
        return EvictionDecision::Holds(format!(
            "no controller recreates it elsewhere: delete the pod, annotate it with {}=true, or set spec.drain.force of the Machine",
            names::EVICT
        ));
    }
    EvictionDecision::Evict
}

/// Why a pod that has been terminating for `long` is still waited for; none if it is no longer waited for.
fn terminating(pod: &Pod, long: SignedDuration, options: &DrainOptions) -> Option<Option<String>> {
    let over = long.saturating_sub(SignedDuration::from_secs(pod.grace));
    if over >= SignedDuration::try_from(options.skip_terminating_after.0).unwrap_or(SignedDuration::MAX) {
        return None;
    }
    if over < STUCK_AFTER {
        return Some(None);
    }
    let finalizers = &pod.finalizers;
    Some(Some(match finalizers.is_empty() {
        true => format!("still terminating {}s after its grace period", over.as_secs()),
        false => format!(
            "still terminating {}s after its grace period: waiting for its controllers to remove the finalizers {finalizers}",
            over.as_secs()
        ),
    }))
}

/// Stands for the pods of a Node that has more than are read at a time.
fn more_pods(node: &str) -> Unread {
    let why = format!("the Node has more than {} pods; only these are checked at a time", PAGE * PAGES);
    (format!("more pods of Node {node}"), why)
}

/// What a drain would do to the pods of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPreview {
    /// Pods to evict, as `namespace/name`.
    pub evicted: Vec<String>,
    /// Pods that block the drain, and what to do about each.
    pub blocking: Vec<(String, String)>,
}

/// Previews a drain of that Node, without evicting a pod.
///
/// # Errors
/// When the pods cannot be listed.
pub async fn preview(client: &Client, node: &str, options: &DrainOptions) -> Result<DrainPreview, ReadError> {
    let (pods, all) = pods(client, node).await?;
    let mut preview = DrainPreview::default();
    if !all {
        preview.blocking.push(more_pods(node));
    }
    for pod in pods {
        match pod {
            Ok(pod) => match judge(&pod, options) {
                EvictionDecision::Stays => {}
                EvictionDecision::Leaving | EvictionDecision::Evict => preview.evicted.push(name(&pod)),
                EvictionDecision::Holds(why) => preview.blocking.push((name(&pod), why)),
            },
            Err(unread) => preview.blocking.push(unread),
        }
    }
    preview.evicted.sort();
    preview.blocking.sort();
    Ok(preview)
}

/// Lists the pods on the Node and evicts those that must leave. `tries` keeps the refused evictions; `since` is when the window started.
///
/// # Errors
/// When the API server does not answer which pods are on the Node.
pub async fn drain(
    client: Client,
    node: &str,
    options: &DrainOptions,
    since: Timestamp,
    tries: &mut EvictionAttempts,
    now: Timestamp,
) -> Result<RemainingPods, ReadError> {
    let overdue = |after: &fleetwright_api::Span| {
        SignedDuration::try_from(after.0).is_ok_and(|after| now.duration_since(since) >= after)
    };
    let overdue = options.delete_after.as_ref().is_some_and(overdue);
    let (pods, all) = pods(&client, node).await?;
    let mut left = Vec::new();
    let mut asked = 0;
    let names: Vec<String> = pods.iter().flatten().map(name).collect();
    tries.held.retain(|pod, _| names.contains(pod));
    let uids: Vec<String> = pods.iter().flatten().map(|pod| pod.uid.clone()).collect();
    tries.terminating.retain(|pod, _| uids.contains(pod));
    if !all {
        let (more, why) = more_pods(node);
        left.push((more, Some(why)));
    }
    for pod in &pods {
        let pod = match pod {
            Ok(pod) => pod,
            Err((name, why)) => {
                left.push((name.clone(), Some(why.clone())));
                continue;
            }
        };
        let name = name(pod);
        match judge(pod, options) {
            EvictionDecision::Stays => {}
            EvictionDecision::Leaving => {
                let since = *tries.terminating.entry(pod.uid.clone()).or_insert(now);
                if let Some(why) = terminating(pod, now.duration_since(since), options) {
                    left.push((name, why));
                }
            }
            EvictionDecision::Holds(why) => left.push((name, Some(why))),
            EvictionDecision::Evict => {
                // After a pause or a restart the deadline may be over before any eviction was tried.
                let delete = overdue && tries.held.contains_key(&name);
                let held = tries.held.get(&name).filter(|(_, at, _)| *at > now && !delete).map(|(why, ..)| why.clone());
                if held.is_some() || asked == MAX_EVICTIONS {
                    left.push((name, held));
                    continue;
                }
                asked += 1;
                match leave(&client, pod, options, delete).await {
                    EvictionResult::Asked => {
                        tries.held.remove(&name);
                        left.push((name, None));
                    }
                    EvictionResult::Gone => {
                        tries.held.remove(&name);
                    }
                    EvictionResult::Held(why) => {
                        let waited = tries.held.get(&name).map_or(Duration::ZERO, |(.., waited)| *waited);
                        let wait = (2 * waited).clamp(FIRST_RETRY, MAX_RETRY);
                        tries.held.insert(name.clone(), (why.clone(), now + wait, wait));
                        left.push((name, Some(why)));
                    }
                }
            }
        }
    }
    Ok(RemainingPods { at: now, left, hindered: None })
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

enum EvictionResult {
    /// The pod was asked to terminate.
    Asked,
    /// The pod no longer exists.
    Gone,
    /// The eviction was refused, and why.
    Held(String),
}

/// Evicts a pod, or deletes it: a deletion does not check disruption budgets.
async fn leave(client: &Client, pod: &Pod, options: &DrainOptions, delete: bool) -> EvictionResult {
    let api = Api::<v1::Pod>::namespaced(client.clone(), &pod.namespace);
    // The uid protects another pod of the same name, such as a recreated pod of a StatefulSet.
    let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
    let mut how = DeleteParams::default().preconditions(preconditions);
    how.grace_period_seconds =
        options.grace_period.map(|span| u32::try_from(span.0.as_secs()).unwrap_or(u32::MAX).max(1));
    let asked = if delete {
        tracing::warn!(
            pod = name(pod),
            "deleting pod: its eviction was refused for longer than spec.drain.deleteAfter"
        );
        api.delete(&pod.name, &how).await.map(drop)
    } else {
        let eviction = eviction(pod, &how);
        api.create_subresource::<_, Value>("eviction", &pod.name, &PostParams::default(), &eviction).await.map(drop)
    };
    let Err(error) = asked else { return EvictionResult::Asked };
    match &error {
        kube::Error::Api(status) if status.code == 404 => EvictionResult::Gone,
        // The pod was changed or recreated meanwhile: the next pass reads it again.
        kube::Error::Api(status) if status.code == 409 => EvictionResult::Asked,
        // A disruption budget has no room, or several budgets select the pod, which the API server cannot handle (500).
        kube::Error::Api(status) if status.code == 429 => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let budget = causes.filter_map(|cause| budget(&cause.message)).next();
            let namespace = &pod.namespace;
            EvictionResult::Held(match budget {
                Some(budget) => {
                    format!("PodDisruptionBudget {namespace}/{budget} allows no disruption: {}", status.message)
                }
                None => status.message.clone(),
            })
        }
        kube::Error::Api(status) => EvictionResult::Held(status.message.clone()),
        error => {
            EvictionResult::Held(CallError::of(error).map_or_else(|| error.to_string(), |error| error.to_string()))
        }
    }
}

/// `Api::evict` writes `delete_options`, a field that API servers do not know: neither the grace period nor the uid would count.
fn eviction(pod: &Pod, how: &DeleteParams) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": <k8s_openapi::api::policy::v1::Eviction as k8s_openapi::Resource>::KIND,
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": how,
    })
}

/// The name in `The disruption budget NAME needs 2 healthy pods and has 2 currently`.
fn budget(cause: &str) -> Option<&str> {
    cause.split("disruption budget ").nth(1)?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use kube::api::{Patch, PatchParams};

    use super::*;

    fn pod(metadata: Value, phase: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
    }

    fn owned(kind: &str) -> Value {
        json!({ "name": "p", "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true }] })
    }

    fn judged(pod: &Pod) -> EvictionDecision {
        judge(pod, &DrainOptions::default())
    }

    #[test]
    fn a_pod_that_cannot_end_is_reported_with_its_finalizers_and_then_not_waited_for() {
        let mut stuck = owned("ReplicaSet");
        stuck["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        stuck["deletionGracePeriodSeconds"] = json!(100);
        stuck["finalizers"] = json!(["example.com/volume"]);
        let (stuck, options) = (pod(stuck, "Running"), DrainOptions::default());
        let after = |seconds, options| terminating(&stuck, SignedDuration::from_secs(seconds), options);
        assert_eq!(after(129, &options), Some(None), "its grace period and a moment");
        let why = after(130, &options).flatten().unwrap();
        assert!(why.contains("example.com/volume"), "{why}");
        assert!(matches!(after(399, &options), Some(Some(_))));
        assert_eq!(after(400, &options), None);
        let patient = DrainOptions { skip_terminating_after: fleetwright_api::Span::minutes(60), ..options };
        assert!(matches!(after(3699, &patient), Some(Some(_))));
    }

    #[test]
    fn a_pod_without_a_controller_is_evicted_by_force() {
        let options = DrainOptions { force: true, ..DrainOptions::default() };
        assert_eq!(judge(&pod(json!({ "name": "p" }), "Running"), &options), EvictionDecision::Evict);
    }

    #[test]
    fn who_must_leave_and_who_may_stay() {
        assert_eq!(judged(&pod(owned("ReplicaSet"), "Running")), EvictionDecision::Evict);
        assert_eq!(judged(&pod(owned("DaemonSet"), "Running")), EvictionDecision::Stays);
        assert_eq!(judged(&pod(owned("Job"), "Succeeded")), EvictionDecision::Stays);
        let toleration = json!({ "key": names::MAINTENANCE_TAINT, "operator": "Exists" });
        let tolerant = json!({ "metadata": owned("ReplicaSet"), "spec": { "tolerations": [toleration] } });
        assert_eq!(judged(&serde_json::from_value(tolerant).unwrap()), EvictionDecision::Stays);
        let mirror = json!({ "name": "p", "annotations": { MIRROR: "x" } });
        assert_eq!(judged(&pod(mirror, "Running")), EvictionDecision::Stays);
        let mut leaving = owned("ReplicaSet");
        leaving["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        assert_eq!(judged(&pod(leaving.clone(), "Running")), EvictionDecision::Leaving);
        // A kubelet sets the final phase of a deleted pod when its containers have ended: only the object is left.
        leaving["finalizers"] = json!(["example.com/volume"]);
        assert_eq!(judged(&pod(leaving, "Failed")), EvictionDecision::Stays);
        let EvictionDecision::Holds(why) = judged(&pod(json!({ "name": "p" }), "Running")) else { panic!("it holds") };
        assert!(why.contains(names::EVICT), "{why}");
        let allowed = json!({ "name": "p", "annotations": { names::EVICT: "true" } });
        assert_eq!(judged(&pod(allowed, "Running")), EvictionDecision::Evict);
    }

    #[test]
    fn an_invalid_time_hides_no_pod_and_an_unreadable_pod_is_named() {
        let page = json!({ "metadata": { "continue": "more" }, "items": [
            { "metadata": { "name": "late", "namespace": "n", "creationTimestamp": null, "deletionTimestamp": "99999-01-01T00:00:00Z" },
              "spec": { "containers": [] }, "status": { "phase": "Running", "startTime": "9999-12-31T23:59:59Z" } },
            { "metadata": { "name": "odd", "namespace": "n" }, "status": { "phase": 7 } },
        ] });
        let page: Page = serde_json::from_str(&page.to_string()).unwrap();
        assert_eq!(page.metadata.next, "more");
        let pods: Vec<_> = page.items.into_iter().flatten().map(|text| read(&text)).collect();
        assert_eq!(judged(pods[0].as_ref().unwrap()), EvictionDecision::Leaving);
        let (name, why) = pods[1].as_ref().unwrap_err();
        assert!(name == "n/odd" && why.contains("delete"), "{name}: {why}");
        let last: Page = serde_json::from_str(r#"{ "metadata": {}, "items": null }"#).unwrap();
        assert!(last.metadata.next.is_empty() && last.items.is_none());
    }

    #[test]
    fn an_eviction_carries_the_grace_period_and_the_uid_as_api_servers_read_them() {
        let pod = pod(json!({ "name": "p", "namespace": "n", "uid": "u" }), "Running");
        let preconditions = Preconditions { uid: Some("u".to_owned()), resource_version: None };
        let how =
            DeleteParams { grace_period_seconds: Some(7), ..DeleteParams::default() }.preconditions(preconditions);
        let expected = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p", "namespace": "n" },
            "deleteOptions": { "gracePeriodSeconds": 7, "preconditions": { "uid": "u" } },
        });
        assert_eq!(eviction(&pod, &how), expected);
        let read: k8s_openapi::api::policy::v1::Eviction = serde_json::from_value(expected).unwrap();
        assert_eq!(read.delete_options.and_then(|options| options.grace_period_seconds), Some(7));
    }

    #[tokio::test]
    async fn a_pod_is_deleted_only_after_its_eviction_was_refused() {
        let server = fleetwright_apiserver::Server::start(fleetwright_apiserver::Config::default()).await.unwrap();
        let client = server.client();
        let pods = Api::<v1::Pod>::namespaced(client.clone(), "default");
        let web = json!({
            "metadata": { "name": "web", "labels": { "app": "web" } },
            "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "i" }] },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(web).unwrap()).await.unwrap();
        let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        pods.patch_status("web", &PatchParams::default(), &running).await.unwrap();
        // A budget refuses every eviction until its controller has written its status, and this test has no controller.
        let budget = json!({
            "metadata": { "name": "web" },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
        });
        let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), "default");
        budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();

        let delete_after = Some(fleetwright_api::Span::minutes(5));
        let options = DrainOptions { force: true, delete_after, ..DrainOptions::default() };
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let (since, mut tries) = (now - SignedDuration::from_hours(1), EvictionAttempts::default());
        for deleted in [false, true] {
            let left = drain(client.clone(), "n", &options, since, &mut tries, now).await.unwrap().left;
            let pod = pods.get("web").await.unwrap();
            assert_eq!(pod.metadata.deletion_timestamp.is_some(), deleted, "{left:?}");
            assert_eq!(left[0].1.is_some(), !deleted, "{left:?}");
        }
        server.stop().await;
    }

    #[test]
    fn the_budget_is_named() {
        assert_eq!(budget("The disruption budget web needs 2 healthy pods and has 2 currently"), Some("web"));
        assert_eq!(budget("something else"), None);
    }
}
