//! A fleet of simulated hosts in a namespace of its own, and what a user would see of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fleetwright_api::{
    Component, ComponentState, Condition, Machine, MachinePackageVersion, Operation, OperationPolicy, Phase, Status,
    condition, crds, names,
};
use fleetwright_kit::leader::{self, Lease};
use fleetwright_kit::{Budget, Operator, Settings};
use fleetwright_lab::ServerKind;
use fleetwright_machines::Options;
use fleetwright_machines::hosts::Limits;
use fleetwright_rig::layer::{impersonating, without_streaming_lists};
use fleetwright_rig::rights::{CLUSTER, Right, grant_everywhere, grant_in, without};
use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{Call, CountedPass, Harness, OperatorContext, OperatorInstance, Scenario, TestServer};
use fleetwright_sim::{Fleet, KubeletConfig, Kubelets, SimHost, demo};
use fleetwright_wire::Outcome;
use futures::future::BoxFuture;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// The steps of a scenario.
pub type ScenarioFn = for<'a> fn(&'a Harness, &'a Fleet) -> BoxFuture<'a, Result<()>>;

/// A scenario of the Machine-Operator.
#[derive(Clone, Copy)]
pub struct MachineScenario {
    play: ScenarioFn,
    /// Kill the operator from the first call on; otherwise from where the scenario says so.
    from_the_start: bool,
    /// Run two operators at once, each of which believes that it leads.
    twice: bool,
    /// The user that the operator runs as, with the rights that it declares; none for an administrator.
    user: Option<&'static str>,
    /// The one declared right that the user is not given.
    missing: Option<&'static Right>,
}

impl MachineScenario {
    pub const fn new(play: ScenarioFn) -> Self {
        Self { play, from_the_start: true, twice: false, user: None, missing: None }
    }

    /// The same, killed from where the scenario says so.
    pub const fn killed_later(self) -> Self {
        Self { from_the_start: false, ..self }
    }

    /// The same with an operator that has only its own rights.
    pub const fn with_rights_as(self, user: &'static str) -> Self {
        Self { user: Some(user), ..self }
    }

    /// The same without one of the rights: runs until a call is refused for it.
    pub const fn without(self, right: &'static Right) -> Self {
        Self { missing: Some(right), ..self }
    }

    /// The same with two operators at once.
    pub const fn twice(self) -> Self {
        Self { twice: true, ..self }
    }
}

/// The Lease of the operator.
const LEASE: &str = "fleetwright-machines";
/// Where rights apply, beside [`CLUSTER`]: in the namespace of the machines, and in that of bootstrap tokens.
pub const BESIDE_MACHINES: &str = "namespace";
pub const TOKENS: &str = "kube-system";

/// Gives a user the rights that an installation gives the operator, except one, and waits until the API server enforces them.
async fn grant(harness: &Harness, user: &'static str, missing: Option<&Right>) -> Result<()> {
    let (admin, rules) = (harness.admin(), fleetwright_machines::rules());
    let namespaced = [without(BESIDE_MACHINES, &rules.namespaced, missing), leader::rules(LEASE)].concat();
    grant_in(&admin, harness.namespace(), user, &namespaced).await?;
    grant_in(&admin, TOKENS, user, &without(TOKENS, &rules.tokens, missing)).await?;
    grant_everywhere(&admin, user, &without(CLUSTER, &rules.cluster, missing)).await?;
    let reviews: Api<SubjectAccessReview> = Api::all(admin);
    // A right that was granted last and is not the missing one.
    let deletes = missing.is_none_or(|right| (right.resource.as_str(), right.verb.as_str()) != ("nodes", "delete"));
    let verb = if deletes { "delete" } else { "patch" };
    let asked = json!({ "metadata": {}, "spec": {
        "user": user, "resourceAttributes": { "verb": verb, "resource": "nodes" },
    } });
    let asked: SubjectAccessReview = serde_json::from_value(asked)?;
    for _ in 0..1200 {
        if reviews.create(&PostParams::default(), &asked).await?.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the API server does not know of the rights of {user} after 60 s")
}

/// The place of a call.
pub fn place(harness: &Harness, call: &Call) -> &'static str {
    match &*call.namespace {
        TOKENS => TOKENS,
        // As the API server authorizes it: a Namespace object is in itself.
        "" if call.resource == "namespaces" && call.name == TOKENS => TOKENS,
        namespace if namespace == harness.namespace() => BESIDE_MACHINES,
        _ => CLUSTER,
    }
}

/// Whether a call was refused because that right is missing.
fn is_refused(harness: &Harness, right: &Right) -> bool {
    let mut refused = harness.recorder().calls().into_iter().filter(|record| record.code == Some(403));
    refused.any(|record| right.allows(&record.call, place(harness, &record.call)))
}

/// Whether an event or the status of a machine names the right. Informers report to the log alone; and without the
/// right to create events, none is written.
async fn is_reported(harness: &Harness, right: &Right) -> Result<bool> {
    let (resource, verb) = (right.resource.as_str(), right.verb.as_str());
    if verb == "watch" || resource == "events" || (verb == "list" && resource != "pods") {
        return Ok(true);
    }
    let mut said = Vec::new();
    // Events about a certificate request, which has no namespace, are stored in the namespace default.
    for namespace in [harness.namespace(), "default"] {
        let events = Api::<Event>::namespaced(harness.admin(), namespace).list(&ListParams::default()).await?;
        said.extend(events.items.into_iter().filter_map(|event| event.message));
    }
    said.extend(harness.api::<Machine>().list(&ListParams::default()).await?.iter().map(shown));
    let what = format!("cannot {verb} resource");
    Ok(said.iter().any(|text| text.contains(&what) && text.contains(resource)))
}

/// Plays until a call is refused because the right is missing, and this is reported; or until the scenario cannot continue without the right.
async fn until_missed(harness: &Harness, right: &Right, play: BoxFuture<'_, Result<()>>) -> Result<()> {
    let told = async {
        while !is_refused(harness, right) || !is_reported(harness, right).await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    let played = tokio::select! {
        played = play => played,
        told = told => {
            harness.kill().await;
            return told;
        }
    };
    if played.is_ok() {
        // Events are sent in the background.
        harness.run_for(seconds(30)).await?;
    }
    harness.kill().await;
    let (refused, told) = (is_refused(harness, right), is_reported(harness, right).await?);
    anyhow::ensure!(refused, "no call was refused for want of it; the scenario came to {played:?}");
    anyhow::ensure!(told || played.is_err(), "all went well, and no event or status says that it is missing");
    Ok(())
}

/// The fleets of the runs, by namespace, and the operator's options: the operator is built in its own runtime and looks both up here.
static FLEETS: Mutex<BTreeMap<String, (Fleet, Options)>> = Mutex::new(BTreeMap::new());

fn fleets() -> MutexGuard<'static, BTreeMap<String, (Fleet, Options)>> {
    FLEETS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scenario for MachineScenario {
    const NAME: &'static str = "machines";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        crds()
    }

    fn operator(&self, mut context: OperatorContext, _: &Path) -> OperatorInstance {
        if let Some(user) = self.user {
            context.client = impersonating(context.client.clone(), user);
        }
        // With streaming lists, `list` is not requested.
        if self.missing.is_some_and(|right| right.verb == "list") {
            context.client = without_streaming_lists(context.client.clone());
        }
        if !self.twice {
            return OperatorInstance::of(operator(&context, true), &context);
        }
        let [one, two] = [(), ()].map(|()| OperatorInstance::of(operator(&context, false), &context));
        let run = async move { futures::try_join!(one.run, two.run).map(drop) };
        OperatorInstance { run: Box::pin(run), idle: Box::new(move || (one.idle)() && (two.idle)()) }
    }

    fn crashes_from_the_start(&self) -> bool {
        self.from_the_start
    }

    async fn perform(&self, harness: &Harness) -> Result<()> {
        let fleet = Fleet::new(harness.clock().clone());
        let kubelets = {
            let config = KubeletConfig { credentials: true, ..KubeletConfig::default() };
            Kubelets::start(&fleet, harness.admin(), config)
        };
        if let Some(user) = self.user {
            grant(harness, user, self.missing).await?;
        }
        fleets().insert(harness.namespace().to_owned(), (fleet.clone(), Options::default()));
        let minded = fleet.clone();
        harness.require_idle(move || minded.is_idle());
        harness.surroundings().await?;
        let play = (self.play)(harness, &fleet);
        let played = match self.missing {
            None => play.await,
            Some(right) => until_missed(harness, right, play).await,
        };
        let Err(error) = played else { return Ok(()) };
        let nodes: Vec<String> =
            harness.nodes().list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
        let requests = Api::<CertificateSigningRequest>::all(harness.admin()).list(&ListParams::default()).await?;
        let requests: Vec<String> = requests.iter().map(|one| format!("{} {:?}", one.name_any(), one.status)).collect();
        Err(error.context(format!("Nodes {nodes:?}, requests {requests:#?}, kubelets said {:#?}", kubelets.said())))
    }

    async fn final_state(&self, harness: &Harness) -> Result<Value> {
        let mut nodes = serde_json::Map::new();
        for node in harness.nodes().list(&ListParams::default()).await? {
            if let Some(name) = node.name_any().strip_prefix(&format!("{}-", harness.namespace())) {
                let spec = node.spec.unwrap_or_default();
                let keys: Vec<String> = spec.taints.unwrap_or_default().into_iter().map(|taint| taint.key).collect();
                nodes.insert(name.to_owned(), json!({ "taints": keys, "unschedulable": spec.unschedulable }));
            }
        }
        let mut machines = serde_json::Map::new();
        for machine in harness.api::<Machine>().list(&ListParams::default()).await? {
            machines.insert(machine.name_any(), outline(&machine));
        }
        Ok(json!({ "machines": machines, "nodes": nodes }))
    }

    /// The hosts' own journals: every step that was ever started, however often the operator was killed.
    fn side_effects(&self, harness: &Harness) -> Result<Vec<String>> {
        let (fleet, _) = fleets().remove(harness.namespace()).context("no fleet")?;
        Ok(fleet.all().iter().flat_map(acts).collect())
    }
}

/// The changes made to a host, in order. An installed package is named by its place among the versions of its component: the digest of a
/// kubelet depends on the name of the Node, which differs in each run.
pub fn acts(host: &SimHost) -> Vec<String> {
    let mut known: Vec<(String, String)> = Vec::new();
    let mut acts = Vec::new();
    for record in host.journal().into_iter().filter(|record| record.outcome != Outcome::Refused) {
        let component = record.component.clone().unwrap_or_default();
        let version = record.digest.clone().map(|digest| {
            let found = (component.clone(), digest);
            if !known.contains(&found) {
                known.push(found.clone());
            }
            known.iter().filter(|(name, _)| *name == component).position(|one| *one == found).unwrap_or_default() + 1
        });
        let version = version.map(|number| format!(" #{number}")).unwrap_or_default();
        acts.push(format!("{}: {:?} {component}{version} {:?}", host.address(), record.verb, record.outcome));
    }
    acts
}

/// The operator of a run.
pub fn operator(context: &OperatorContext, lease: bool) -> Operator {
    let counting = context.counting.clone();
    let settings = Settings {
        clock: context.clock.clone(),
        random: context.random.clone(),
        lease: lease.then(|| Lease {
            namespace: context.namespace.clone(),
            name: LEASE.to_owned(),
            identity: context.identity.clone(),
            duration: Duration::from_secs(15),
        }),
        strict_budgets: true,
        on_pass: Some(Arc::new(move |record| counting.pass(CountedPass::from(record)))),
        ..Settings::new("fleetwright-machines", context.client.clone())
    };
    let mut operator = Operator::new(settings);
    let found = fleets().get(&context.namespace).cloned();
    let (fleet, options) = found.expect("a scenario has a fleet before its operator starts");
    let _hosts = fleetwright_machines::add(&mut operator, &context.namespace, Arc::new(fleet), options);
    operator
}

/// The fields of a machine that are compared.
fn outline(machine: &Machine) -> Value {
    let status = machine.status.clone().unwrap_or_default();
    let components: Vec<Value> = status
        .components
        .iter()
        .map(|component| {
            json!([component.component, component.desired, component.observed, format!("{:?}", component.state)])
        })
        .collect();
    let conditions: BTreeMap<String, String> = status
        .conditions
        .iter()
        .map(|condition| (condition.type_.clone(), format!("{} {}", condition.status.as_str(), condition.reason)))
        .collect();
    json!({
        "phase": status.phase, "components": components, "conditions": conditions,
        "finalizers": machine.metadata.finalizers, "deleted": machine.metadata.deletion_timestamp.is_some(),
    })
}

/// Runs a scenario once, undisturbed.
pub async fn run_undisturbed(test_server: &TestServer, play: ScenarioFn) {
    let (_, harness) = run(&Arc::new(MachineScenario::new(play)), test_server, Disturbance::None)
        .await
        .unwrap_or_else(|error| panic!("{error:#}"));
    harness.pass_counter().check_budgets(&budgets()).unwrap();
}

/// The budgets of the operator and of the journal.
pub fn budgets() -> Vec<(&'static str, Budget)> {
    let mut budgets = fleetwright_machines::budgets();
    budgets.push(("operations", Budget { reads: 1, writes: 1 }));
    budgets.push(("operation-policies", Budget { reads: 9, writes: 1 }));
    budgets
}

/// Runs all scenarios on one shared server.
pub async fn run_all_on(kind: ServerKind, scenarios: &[(&str, ScenarioFn)]) {
    let test_server = TestServer::start(kind).await.unwrap();
    for (name, play) in scenarios {
        eprintln!("{name} on {}", test_server.name());
        run_undisturbed(&test_server, *play).await;
    }
}

/// From its next start on the operator observes each host at this interval.
pub fn check_every(harness: &Harness, every: Duration) {
    if let Some((_, options)) = fleets().get_mut(harness.namespace()) {
        options.check_every = every;
    }
}

/// From its next start on the operator works on one host at a time, without a time limit, and observes hosts once a day.
pub fn one_at_a_time(harness: &Harness) {
    if let Some((_, options)) = fleets().get_mut(harness.namespace()) {
        options.limits = Limits { overall: 1, patience: seconds(3600), ..Limits::default() };
        options.check_every = seconds(86_400);
    }
}

/// The steps of a scenario about machines.
pub trait MachineSteps {
    fn nodes(&self) -> Api<Node>;
    fn node_name(&self, machine: &str) -> String;
    async fn surroundings(&self) -> Result<()>;
    async fn machine(&self, fleet: &Fleet, name: &str, more: Value) -> Result<SimHost>;
    async fn package(&self, name: &str, spec: Value) -> Result<()>;
    async fn patch(&self, name: &str, patch: Value) -> Result<()>;
    async fn refer(&self, machine: &str, component: &str, reference: &str) -> Result<()>;
    async fn get(&self, machine: &str) -> Result<Machine>;
    async fn until(
        &self,
        machine: &str,
        what: &str,
        holds: impl Fn(&Machine) -> Result<(), String> + Send + Sync,
    ) -> Result<Machine>;
    async fn phase(&self, machine: &str, phase: Phase) -> Result<Machine>;
    async fn component(&self, machine: &str, component: &str, state: ComponentState) -> Result<Component>;
    async fn says(&self, machine: &str, type_: &str, status: Status, reason: &str) -> Result<Condition>;
    async fn gone(&self, machine: &str) -> Result<()>;
    async fn event(&self, reason: &str, part: &str) -> Result<()>;
    async fn pod(&self, machine: &str, name: &str, labels: Value) -> Result<()>;
    async fn pods(&self) -> Result<Vec<String>>;
    async fn budget(&self, name: &str, labels: Value, min: i32) -> Result<()>;
    async fn policy(&self, name: &str, spec: Value) -> Result<()>;
    async fn operations(&self) -> Result<Vec<Operation>>;
    async fn closed(&self, machine: &str) -> Result<bool>;
    async fn foreign_node(&self, machine: &str) -> Result<Node>;
    async fn tokens(&self, machine: &str) -> Result<usize>;
    async fn bind_node(&self, machine: &str) -> Result<()>;
    async fn opened(&self, machine: &str) -> Result<()>;
}

impl MachineSteps for Harness {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.admin())
    }

    fn node_name(&self, machine: &str) -> String {
        format!("{}-{machine}", self.namespace())
    }

    /// Creates package versions, the key and the cluster's values.
    async fn surroundings(&self) -> Result<()> {
        for object in demo::around("https://simulated:6443") {
            match object["kind"].as_str() {
                Some("Secret") => drop(create::<Secret>(self, object).await?),
                _ => drop(create::<ConfigMap>(self, object).await?),
            }
        }
        for package in demo::packages() {
            create::<MachinePackageVersion>(self, package).await?;
        }
        // As `fleetwright install` binds it.
        let binding = demo::bootstrappers();
        let bindings: Api<ClusterRoleBinding> = Api::all(self.admin());
        let name = binding["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        bindings.patch(&name, &PatchParams::apply("story").force(), &Patch::Apply(&binding)).await?;
        // Without a policy the gate grants nothing.
        self.policy("all", json!({ "operations": ["Restart", "Drain", "Reboot"], "max": 100 })).await
    }

    /// Creates a machine and its host, of the same name.
    async fn machine(&self, fleet: &Fleet, name: &str, more: Value) -> Result<SimHost> {
        let host = fleet.host(name);
        let mut machine = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": name, "labels": { "pool": "online" } },
            "spec": {
                "hostname": self.node_name(name),
                "addresses": [name],
                "ssh": { "keyRef": { "name": demo::SSH_SECRET }, "hostKeys": { "policy": "TrustOnFirstUse" } },
                "packages": [
                    { "component": "sysctl", "ref": "sysctl-1" },
                    { "component": "containerd", "ref": "containerd-2.3.0" },
                    { "component": "kubelet", "ref": demo::KUBELET },
                ],
            },
        });
        merge(&mut machine, more);
        create::<Machine>(self, machine).await?;
        Ok(host)
    }

    async fn package(&self, name: &str, spec: Value) -> Result<()> {
        let package = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion",
            "metadata": { "name": name }, "spec": spec,
        });
        create::<MachinePackageVersion>(self, package).await.map(drop)
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.api::<Machine>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Edits a package reference, as a person does for an upgrade or a rollback.
    async fn refer(&self, machine: &str, component: &str, reference: &str) -> Result<()> {
        let mut packages = self.get(machine).await?.spec.packages;
        for package in packages.iter_mut().filter(|package| package.component == component) {
            package.ref_ = reference.to_owned();
        }
        self.patch(machine, json!({ "spec": { "packages": packages } })).await
    }

    async fn get(&self, machine: &str) -> Result<Machine> {
        Ok(self.api::<Machine>().get(machine).await?)
    }

    async fn until(
        &self,
        machine: &str,
        what: &str,
        holds: impl Fn(&Machine) -> Result<(), String> + Send + Sync,
    ) -> Result<Machine> {
        let holds = &holds;
        let reached = || async move {
            let seen = self.get(machine).await.map_err(|error| error.to_string())?;
            holds(&seen)
        };
        self.settle(&format!("{machine} {what}"), reached).await?;
        self.get(machine).await
    }

    async fn phase(&self, machine: &str, phase: Phase) -> Result<Machine> {
        let holds = |seen: &Machine| {
            let status = seen.status.clone().unwrap_or_default();
            let current = status.observed_generation == seen.metadata.generation;
            if current && status.phase == Some(phase) { Ok(()) } else { Err(shown(seen)) }
        };
        self.until(machine, &format!("is {phase:?}"), holds).await
    }

    async fn component(&self, machine: &str, component: &str, state: ComponentState) -> Result<Component> {
        let holds = |seen: &Machine| match of(seen, component) {
            Some(found) if found.state == state => Ok(()),
            _ => Err(shown(seen)),
        };
        let seen = self.until(machine, &format!("has {component} {state:?}"), holds).await?;
        of(&seen, component).context("it is gone")
    }

    async fn says(&self, machine: &str, type_: &str, status: Status, reason: &str) -> Result<Condition> {
        let said = |seen: &Machine| {
            let conditions = seen.status.iter().flat_map(|status| status.conditions.clone()).collect::<Vec<_>>();
            condition(&conditions, type_).cloned()
        };
        let holds = |seen: &Machine| match said(seen) {
            Some(found) if found.status == status && found.reason == reason => Ok(()),
            _ => Err(shown(seen)),
        };
        let seen = self.until(machine, &format!("says {type_}={} {reason}", status.as_str()), holds).await?;
        said(&seen).context("it is gone")
    }

    async fn gone(&self, machine: &str) -> Result<()> {
        let reached = || async {
            match self.api::<Machine>().get_opt(machine).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(machine) => Err(shown(&machine)),
            }
        };
        self.settle(&format!("{machine} is gone"), reached).await
    }

    async fn event(&self, reason: &str, part: &str) -> Result<()> {
        let reached = || async {
            let events = self.api::<Event>().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let told = |event: &Event| {
                format!("{}: {}", event.reason.clone().unwrap_or_default(), event.message.clone().unwrap_or_default())
            };
            match events.iter().map(told).any(|told| told.starts_with(&format!("{reason}:")) && told.contains(part)) {
                true => Ok(()),
                false => Err(events.iter().map(told).collect::<Vec<_>>().join("\n")),
            }
        };
        self.settle(&format!("an event {reason} with {part:?}"), reached).await
    }

    /// Creates a pod on the machine's Node, as if a scheduler had placed it there.
    async fn pod(&self, machine: &str, name: &str, labels: Value) -> Result<()> {
        let pod = json!({
            "metadata": { "name": name, "labels": labels, "annotations": { names::EVICT: "true" } },
            "spec": { "nodeName": self.node_name(machine), "containers": [{ "name": "c", "image": "i" }] },
        });
        create::<Pod>(self, pod).await?;
        let reached = || async {
            let pod = self.api::<Pod>().get(name).await.map_err(|error| error.to_string())?;
            match pod.status.and_then(|status| status.phase).as_deref() {
                Some("Running") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        self.settle(&format!("the pod {name} runs"), reached).await
    }

    async fn pods(&self) -> Result<Vec<String>> {
        Ok(self.api::<Pod>().list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
    }

    /// Creates a disruption budget, with the status that its controller would write.
    async fn budget(&self, name: &str, labels: Value, min: i32) -> Result<()> {
        let budget = json!({
            "metadata": { "name": name },
            "spec": { "minAvailable": min, "selector": { "matchLabels": labels } },
        });
        let made = create::<PodDisruptionBudget>(self, budget).await?;
        self.allow(name, 0, made.metadata.generation).await
    }

    async fn policy(&self, name: &str, spec: Value) -> Result<()> {
        let policy = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "OperationPolicy",
            "metadata": { "name": name }, "spec": spec,
        });
        create::<OperationPolicy>(self, policy).await.map(drop)
    }

    async fn operations(&self) -> Result<Vec<Operation>> {
        Ok(self.api::<Operation>().list(&ListParams::default()).await?.items)
    }

    async fn closed(&self, machine: &str) -> Result<bool> {
        let node = self.nodes().get(&self.node_name(machine)).await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok(taints.iter().any(|taint| taint.key == names::MAINTENANCE_TAINT))
    }

    /// Creates a Node of the machine's name that another host registered.
    async fn foreign_node(&self, machine: &str) -> Result<Node> {
        let node = json!({ "metadata": { "name": self.node_name(machine), "labels": { "from": "elsewhere" } } });
        Ok(self.nodes().create(&PostParams::default(), &serde_json::from_value(node)?).await?)
    }

    /// The number of bootstrap tokens of a machine.
    async fn tokens(&self, machine: &str) -> Result<usize> {
        let tokens: Api<Secret> = Api::namespaced(self.admin(), "kube-system");
        let of = format!("{}={machine},fleetwright.io/namespace={}", names::MACHINE, self.namespace());
        Ok(tokens.list(&ListParams::default().labels(&of)).await?.items.len())
    }

    /// Binds the Node as `fleetwright machine bind-node` does.
    async fn bind_node(&self, machine: &str) -> Result<()> {
        let name = self.node_name(machine);
        let uid = self.nodes().get(&name).await?.uid();
        let status = json!({ "status": { "nodeRef": { "name": name, "uid": uid, "binding": "Adopted" } } });
        self.api::<Machine>().patch_status(machine, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Waits until the Node is open: a late call to close it closes it once more, until the operator sees that.
    async fn opened(&self, machine: &str) -> Result<()> {
        let reached = || async {
            let closed = self.closed(machine).await.map_err(|error| error.to_string())?;
            if closed { Err("it is closed".to_owned()) } else { Ok(()) }
        };
        self.settle(&format!("{machine} is open"), reached).await
    }
}

/// Writes the status that the controller of disruption budgets would write.
pub trait DisruptionBudgets {
    fn allow(&self, budget: &str, disruptions: i32, generation: Option<i64>)
    -> impl Future<Output = Result<()>> + Send;
}

impl DisruptionBudgets for Harness {
    async fn allow(&self, budget: &str, disruptions: i32, generation: Option<i64>) -> Result<()> {
        let status = json!({ "status": {
            "disruptionsAllowed": disruptions, "currentHealthy": 1, "desiredHealthy": 1 - disruptions.min(1),
            "expectedPods": 1, "observedGeneration": generation.unwrap_or(1),
        } });
        let budgets = self.api::<PodDisruptionBudget>();
        budgets.patch_status(budget, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }
}

async fn create<K>(harness: &Harness, object: Value) -> Result<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object)?;
    Ok(harness.api::<K>().create(&PostParams::default(), &object).await?)
}

/// The component, if it is listed.
pub fn of(machine: &Machine, component: &str) -> Option<Component> {
    let status = machine.status.as_ref()?;
    status.components.iter().find(|found| found.component == component).cloned()
}

/// A machine's status, for messages.
pub fn shown(machine: &Machine) -> String {
    format!(
        "generation {:?} deleted {:?} {:#}",
        machine.metadata.generation,
        machine.metadata.deletion_timestamp.is_some(),
        serde_json::to_value(&machine.status).unwrap_or_default()
    )
}

/// Deletes a machine.
pub async fn delete(harness: &Harness, machine: &str) -> Result<()> {
    harness.api::<Machine>().delete(machine, &DeleteParams::default()).await?;
    Ok(())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Machines in service.
pub async fn in_service(harness: &Harness, fleet: &Fleet, names: &[&str]) -> Result<Vec<SimHost>> {
    let mut hosts = Vec::new();
    for name in names {
        hosts.push(harness.machine(fleet, name, json!({})).await?);
    }
    harness.start().await?;
    for name in names {
        harness.phase(name, Phase::Ready).await?;
    }
    Ok(hosts)
}

/// A duration of the scenario's clock.
pub fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Fails with a message if the condition does not hold.
pub fn ensure(holds: bool, what: impl AsRef<str>) -> Result<()> {
    if holds { Ok(()) } else { bail!("{}", what.as_ref()) }
}
