//! The operator has exactly the rights that it needs: with all of them every outcome happens and no call is refused; without any one of them a
//! call is refused, and an outcome does not happen.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_api::{Machine, ReadinessGates, crds, is_true, names};
use fleetwright_kit::leader::{self, Lease};
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::{ServerKind, Target, define};
use fleetwright_readiness::{Options, Rules, add_with, rules};
use fleetwright_rig::layer::without_streaming_lists;
use fleetwright_rig::rights::{CLUSTER, Right, grant_everywhere, grant_in, rights, without};
use fleetwright_rig::{Call, Recorder};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// An outcome that a user would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserOutcome {
    /// The operator leads.
    Leads,
    /// The operator renews its Lease.
    Renews,
    /// The Node is opened.
    Opens,
    /// The Node is closed when a gate fails.
    Closes,
    /// The Machine's status has the verdict.
    Verdict,
    /// The status of ReadinessGates counts the machine.
    Counts,
    /// An Event reports a broken report.
    Tells,
    /// A deep check reads past the caches.
    Checks,
    /// Another operator takes over from one that stops.
    HandsOver,
}

const ALL: [UserOutcome; 9] = [
    UserOutcome::Leads,
    UserOutcome::Renews,
    UserOutcome::Opens,
    UserOutcome::Closes,
    UserOutcome::Verdict,
    UserOutcome::Counts,
    UserOutcome::Tells,
    UserOutcome::Checks,
    UserOutcome::HandsOver,
];

/// The outcome that cannot happen without that right.
fn missed(missing: &Right) -> Option<UserOutcome> {
    Some(match (missing.resource.as_str(), missing.verb.as_str()) {
        ("leases", "get" | "create") => UserOutcome::Leads,
        ("leases", "update") => UserOutcome::Renews,
        // Another way takes longer: the refused call is the only visible effect.
        ("leases", "watch") => return None,
        ("machines" | "nodes", "get") => UserOutcome::Checks,
        ("machines" | "nodes" | "readinessgates" | "configmaps", "list") => UserOutcome::Opens,
        // Lists are repeated instead, with growing delays.
        ("machines" | "nodes" | "readinessgates" | "configmaps", "watch") => return None,
        ("nodes", "patch") => UserOutcome::Opens,
        ("machines/status", "patch") => UserOutcome::Verdict,
        ("readinessgates/status", "patch") => UserOutcome::Counts,
        ("events", "create") => UserOutcome::Tells,
        other => panic!("nobody says what {other:?} is for"),
    })
}

/// The place of rights in the namespace of the machines.
const WITHIN: &str = "namespace";
/// The Lease of the operator.
const LEASE: &str = "fleetwright-readiness";

fn each_right(rules: &Rules) -> Vec<Right> {
    let within = [rules.namespaced.clone(), leader::rules(LEASE)].concat();
    [rights(WITHIN, &within), rights(CLUSTER, &rules.cluster)].concat()
}

async fn create<K>(api: Api<K>, object: Value) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let what = format!("{object}");
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await.context(what)
}

/// A namespace with a fleet of one machine, a user with rights, and two operators of that user.
struct Installation {
    admin: Client,
    namespace: String,
    recorder: Recorder,
    deep: Arc<AtomicBool>,
    outcomes: Mutex<BTreeSet<UserOutcome>>,
    /// The right that is not given.
    missing: Option<Right>,
}

impl Installation {
    fn all<K: Resource<Scope = ClusterResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.admin.clone())
    }

    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    fn node(&self) -> String {
        format!("{}-node", self.namespace)
    }

    async fn new(
        target: &Target,
        number: usize,
        missing: Option<&Right>,
        older: bool,
    ) -> Result<(Arc<Self>, Vec<Client>)> {
        let namespace = format!("rights-{number}");
        let user = format!("readiness-{number}");
        let place = Self {
            admin: target.admin(),
            namespace: namespace.clone(),
            recorder: Recorder::default(),
            deep: Arc::default(),
            outcomes: Mutex::default(),
            missing: missing.cloned(),
        };
        create::<Namespace>(place.all(), json!({ "metadata": { "name": namespace } })).await?;
        let given = rules();
        let namespaced = without(WITHIN, &[given.namespaced, leader::rules(LEASE)].concat(), missing);
        let cluster = without(CLUSTER, &given.cluster, missing);
        grant_in(&place.admin, &namespace, &user, &namespaced).await?;
        grant_everywhere(&place.admin, &user, &cluster).await?;
        let client = target.client_as(&user, &[]).await?;
        allowed(&client, &namespace, &namespaced).await?;
        allowed(&client, "", &cluster).await?;
        let mut clients = Vec::new();
        for _ in 0..2 {
            let client = target.client_as(&user, &[]).await?;
            let client = if older { without_streaming_lists(client) } else { client };
            clients.push(place.recorder.wrap(client));
        }
        place.fleet().await?;
        Ok((Arc::new(place), clients))
    }

    async fn fleet(&self) -> Result<()> {
        let gates = json!({
            "metadata": { "name": "workers" },
            "spec": { "selector": {}, "conditions": [
                { "type": "NodeReady", "from": { "nodeCondition": "Ready" } },
                { "type": "LogAgentReady", "from": { "reporter": "log-agent" } },
            ] },
        });
        create::<ReadinessGates>(self.api(), with_type::<ReadinessGates>(gates)).await?;
        let machine = json!({ "metadata": { "name": "m" }, "spec": { "hostname": self.node() } });
        create::<Machine>(self.api(), with_type::<Machine>(machine)).await?;
        for (reporter, text) in [("log-agent", r#"[{"type":"LogAgentReady","status":"True"}]"#), ("broken", "nonsense")]
        {
            let labels = json!({ names::MACHINE: "m", names::REPORTER: reporter });
            let meta = json!({ "name": format!("m.{reporter}"), "labels": labels });
            create::<ConfigMap>(self.api(), json!({ "metadata": meta, "data": { "conditions": text } })).await?;
        }
        let taints = json!([{ "key": names::UNREADY_TAINT, "effect": "NoSchedule" }]);
        create::<Node>(self.all(), json!({ "metadata": { "name": self.node() }, "spec": { "taints": taints } }))
            .await?;
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        let node = self.all::<Node>().patch(&self.node(), &PatchParams::default(), &patch).await?;
        let bound = json!({ "name": self.node(), "uid": node.metadata.uid, "binding": "Joined" });
        let bound = Patch::Merge(json!({ "status": { "nodeRef": bound } }));
        self.api::<Machine>().patch_status("m", &PatchParams::default(), &bound).await?;
        self.ready("True").await
    }

    async fn ready(&self, status: &str) -> Result<()> {
        let patch = json!({ "status": { "conditions": [{ "type": "Ready", "status": status, "reason": "Said", "message": "" }] } });
        self.all::<Node>().patch_status(&self.node(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    fn operator(&self, identity: &str, client: Client) -> Operator {
        let deep = self.deep.clone();
        let mut operator = Operator::new(Settings {
            lease: Some(Lease {
                namespace: self.namespace.clone(),
                name: LEASE.to_owned(),
                identity: identity.to_owned(),
                duration: Duration::from_secs(9),
            }),
            on_pass: Some(Arc::new(move |record| {
                if record.deep && record.reads == 2 && record.reason.is_none() {
                    deep.store(true, Ordering::SeqCst);
                }
            })),
            ..Settings::new("fleetwright-readiness", client)
        });
        let mut options = Options::default();
        options.machines.deep_check = Some(Duration::from_millis(500));
        options.gates.at_most_every = Duration::from_millis(100);
        add_with(&mut operator, &self.namespace, options);
        operator
    }

    async fn closed(&self) -> Result<bool> {
        let node = self.all::<Node>().get(&self.node()).await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok(taints.iter().any(|taint| taint.key == names::UNREADY_TAINT))
    }

    async fn lease(&self) -> Result<(String, String)> {
        let lease = self.api::<LeaseObject>().get_opt(LEASE).await?;
        let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
        let renewed = spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default();
        Ok((spec.holder_identity.unwrap_or_default(), renewed))
    }

    fn reached(&self, outcome: UserOutcome) {
        self.outcomes.lock().unwrap().insert(outcome);
    }

    fn outcomes(&self) -> BTreeSet<UserOutcome> {
        self.outcomes.lock().unwrap().clone()
    }

    /// Waits for every outcome that can happen, each within its time, and records those that did.
    async fn play(self: Arc<Self>, clients: Vec<Client>) -> Result<()> {
        let mut stops = Vec::new();
        let mut running = JoinSet::new();
        for (identity, client) in ["first", "second"].into_iter().zip(clients) {
            let (stop, mut stopped) = watch::channel(false);
            let operator = self.operator(identity, client);
            running.spawn(async move { operator.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await });
            stops.push(stop);
            if identity == "first" {
                let me = &self;
                me.wait(UserOutcome::Leads, || async { Ok(me.lease().await?.0 == "first") }).await?;
            }
        }
        let me = &self;
        let begun = self.lease().await?.1;
        let (a, b, c, d, e) = tokio::join!(
            me.wait(UserOutcome::Renews, || async {
                Ok(!me.lease().await?.1.is_empty() && me.lease().await?.1 != begun)
            }),
            me.wait(UserOutcome::Opens, || async { Ok(!me.closed().await?) }),
            me.wait(UserOutcome::Verdict, || async {
                let machine = me.api::<Machine>().get("m").await?;
                Ok(is_true(&machine.status.unwrap_or_default().conditions, names::SCHEDULABLE))
            }),
            me.wait(UserOutcome::Counts, || async {
                let gates = me.api::<ReadinessGates>().get("workers").await?;
                Ok(gates.status.unwrap_or_default().machines == 1)
            }),
            me.wait(UserOutcome::Tells, || async {
                let events = me.api::<Event>().list(&ListParams::default()).await?;
                Ok(events.iter().any(|event| event.reason.as_deref() == Some("ReportInvalid")))
            }),
        );
        for done in [a, b, c, d, e] {
            done?;
        }
        me.wait(UserOutcome::Checks, || async { Ok(me.deep.load(Ordering::SeqCst)) }).await?;
        if self.outcomes().contains(&UserOutcome::Opens) {
            self.ready("False").await?;
            me.wait(UserOutcome::Closes, || async { me.closed().await }).await?;
        }
        stops[0].send_replace(true);
        me.wait(UserOutcome::HandsOver, || async { Ok(me.lease().await?.0 == "second") }).await?;
        running.shutdown().await;
        Ok(())
    }

    async fn wait<F: Future<Output = Result<bool>>>(
        &self,
        outcome: UserOutcome,
        happened: impl Fn() -> F,
    ) -> Result<()> {
        let started = Instant::now();
        loop {
            if happened().await? {
                self.reached(outcome);
                return Ok(());
            }
            let patience = if self.is_missed() { WAIT_TIMEOUT } else { MAX_TIME };
            if started.elapsed() > patience {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether a call was refused because the right is missing: from then on an outcome may never happen.
    fn is_missed(&self) -> bool {
        self.missing
            .as_ref()
            .is_some_and(|missing| self.refused().iter().any(|call| missing.allows(call, missing.place)))
    }

    /// The calls that were refused.
    fn refused(&self) -> Vec<Call> {
        self.recorder.calls().into_iter().filter(|record| record.code == Some(403)).map(|record| record.call).collect()
    }
}

/// How long an outcome may take without a right before it counts as not happening. Far longer than needed; an outcome that happens is not waited for.
const WAIT_TIMEOUT: Duration = Duration::from_secs(8);
/// The same while no call was refused: on a busy machine everything may be slow, but every outcome happens.
const MAX_TIME: Duration = Duration::from_secs(60);

fn with_type<K: Resource<DynamicType = ()>>(mut object: Value) -> Value {
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object
}

/// Waits until the server enforces the latest change of a user's rights.
async fn allowed(client: &Client, namespace: &str, rules: &[PolicyRule]) -> Result<()> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let deadline = Instant::now() + MAX_TIME;
    for rule in rules {
        for verb in &rule.verbs {
            let resource = &rule.resources.as_deref().unwrap_or_default()[0];
            let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let name = rule.resource_names.iter().flatten().next();
            let review = json!({ "metadata": {}, "spec": { "resourceAttributes": {
                "namespace": namespace, "verb": verb, "group": rule.api_groups.as_deref().unwrap_or_default()[0],
                "resource": plural, "subresource": subresource, "name": name,
            } } });
            let review: SelfSubjectAccessReview = serde_json::from_value(review)?;
            while !reviews.create(&PostParams::default(), &review).await?.status.is_some_and(|status| status.allowed) {
                ensure!(Instant::now() < deadline, "the server does not let {verb} {resource} in {namespace:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    Ok(())
}

async fn one(target: &Target, number: usize, missing: Option<Right>, older: bool) -> Result<()> {
    let (place, clients) = Installation::new(target, number, missing.as_ref(), older).await?;
    place.clone().play(clients).await?;
    let (outcomes, refused) = (place.outcomes(), place.refused());
    let Some(missing) = missing else {
        ensure!(refused.is_empty(), "with all rights these were refused: {refused:?}");
        let not: Vec<_> = ALL.iter().filter(|outcome| !outcomes.contains(outcome)).collect();
        ensure!(
            not.is_empty(),
            "with all rights these did not happen: {not:?}; last calls:\n{}",
            place.recorder.tail(40)
        );
        return Ok(());
    };
    ensure!(
        refused.iter().any(|call| missing.allows(call, missing.place)),
        "nobody was refused for want of {missing:?}: it is not needed"
    );
    if let Some(outcome) = missed(&missing) {
        ensure!(!outcomes.contains(&outcome), "{outcome:?} happened without {missing:?}");
    }
    Ok(())
}

async fn all_rights_are_needed_and_no_others(kind: ServerKind) {
    let target = Arc::new(Target::start(kind).await.unwrap());
    define(&target.admin(), &crds()).await.unwrap();
    one(&target, 0, None, false).await.unwrap();
    one(&target, 1, None, true).await.unwrap();
    let mut wrong = Vec::new();
    let mut cases = JoinSet::new();
    for (number, missing) in each_right(&rules()).into_iter().enumerate() {
        // With streaming lists, `list` is not requested; older servers have none.
        let older = missing.verb == "list";
        let target = target.clone();
        cases.spawn(async move {
            let told = format!("{missing:?}");
            one(&target, number + 2, Some(missing), older).await.with_context(|| told)
        });
        if cases.len() >= 6 {
            wrong.extend(cases.join_next().await.and_then(|done| done.unwrap().err()));
        }
    }
    while let Some(done) = cases.join_next().await {
        wrong.extend(done.unwrap().err());
    }
    let failed = !wrong.is_empty();
    if let Ok(target) = Arc::try_unwrap(target) {
        target.stop(failed).await;
    }
    assert!(!failed, "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_is_needed_and_no_other() {
    all_rights_are_needed_and_no_others(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_is_needed_and_no_other_on_real() {
    all_rights_are_needed_and_no_others(ServerKind::Real).await;
}
