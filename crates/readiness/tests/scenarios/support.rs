//! A fleet in a namespace of its own, events that may happen to it, and what a user would see.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fleetwright_api::{Condition, Machine, ReadinessGates, Status, condition, crds, names};
use fleetwright_kit::leader::Lease;
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::ServerKind;
use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{CountedPass, Harness, OperatorContext, OperatorInstance, Scenario, TestServer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// The steps of a scenario.
pub type ScenarioFn = for<'a> fn(&'a Harness) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A scenario of the readiness operator.
#[derive(Clone, Copy)]
pub struct ReadinessScenario(pub ScenarioFn);

impl Scenario for ReadinessScenario {
    const NAME: &'static str = "readiness";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        crds()
    }

    fn operator(&self, context: OperatorContext, _: &Path) -> OperatorInstance {
        let stop = context.stop();
        let counting = context.counting.clone();
        let mut operator = Operator::new(Settings {
            clock: context.clock,
            random: context.random,
            lease: Some(Lease {
                namespace: context.namespace.clone(),
                name: "fleetwright-readiness".to_owned(),
                identity: context.identity,
                duration: Duration::from_secs(15),
            }),
            strict_budgets: true,
            on_pass: Some(Arc::new(move |record| counting.pass(CountedPass::from(record)))),
            ..Settings::new("fleetwright-readiness", context.client)
        });
        fleetwright_readiness::add(&mut operator, &context.namespace);
        let idle = operator.watch_idle();
        let run = async move { operator.run(stop).await.map_err(|error| error.to_string()) };
        OperatorInstance { run: Box::pin(run), idle: Box::new(move || idle.is_idle()) }
    }

    async fn perform(&self, harness: &Harness) -> Result<()> {
        (self.0)(harness).await
    }

    async fn final_state(&self, harness: &Harness) -> Result<Value> {
        let mut nodes = serde_json::Map::new();
        for node in harness.nodes().list(&ListParams::default()).await? {
            if let Some(name) = node.name_any().strip_prefix(&format!("{}-", harness.namespace())) {
                let spec = node.spec.unwrap_or_default();
                nodes.insert(name.to_owned(), json!({ "taints": spec.taints, "unschedulable": spec.unschedulable }));
            }
        }
        let end = json!({
            "machines": harness.snapshot::<Machine>().await?,
            "gates": harness.snapshot::<ReadinessGates>().await?,
            "nodes": fleetwright_rig::normalize::normalize(&Value::Object(nodes), harness.namespace()),
        });
        Ok(timeless(end))
    }

    fn side_effects(&self, _: &Harness) -> Result<Vec<String>> {
        // All side effects are in the API server, whose final state is compared.
        Ok(Vec::new())
    }
}

/// The value without the times in messages and the uids of Nodes, which differ between runs, and with sorted conditions.
fn timeless(value: Value) -> Value {
    match value {
        Value::String(text) => {
            let words = text.split(' ').map(|word| {
                let bare = word.trim_end_matches([':', ';', ',']);
                if bare.parse::<Timestamp>().is_ok() { word.replace(bare, "TIME") } else { word.to_owned() }
            });
            Value::String(words.collect::<Vec<_>>().join(" "))
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.into_iter().map(timeless).collect();
            items.sort_by_key(|item| item["type"].as_str().unwrap_or_default().to_owned());
            Value::Array(items)
        }
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(key, _)| key != "nodeUid" && key != "nodeRef");
            Value::Object(fields.map(|(key, value)| (key, timeless(value))).collect())
        }
        other => other,
    }
}

/// Runs a scenario once, undisturbed.
pub async fn run_undisturbed(test_server: &TestServer, play: ScenarioFn) {
    let (_, harness) = run(&Arc::new(ReadinessScenario(play)), test_server, Disturbance::None)
        .await
        .unwrap_or_else(|error| panic!("{error:#}"));
    harness.pass_counter().check_budgets(&fleetwright_readiness::budgets()).unwrap();
}

/// Runs all scenarios on one shared server.
pub async fn run_all_on(kind: ServerKind, scenarios: &[(&str, ScenarioFn)]) {
    let test_server = TestServer::start(kind).await.unwrap();
    for (name, play) in scenarios {
        eprintln!("{name} on {}", test_server.name());
        run_undisturbed(&test_server, *play).await;
    }
}

/// The steps of a scenario about machines.
pub trait Fleet {
    fn nodes(&self) -> Api<Node>;
    fn node_name(&self, machine: &str) -> String;
    async fn machine(&self, name: &str, more: Value) -> Result<()>;
    async fn node(&self, machine: &str, closed: bool) -> Result<()>;
    async fn bind(&self, machine: &str) -> Result<()>;
    async fn ready(&self, machine: &str, status: &str) -> Result<()>;
    async fn own(&self, machine: &str, type_: &str, status: Status) -> Result<()>;
    async fn gates(&self, name: &str, spec: Value) -> Result<()>;
    async fn report(&self, machine: &str, reporter: &str, conditions: Value) -> Result<()>;
    async fn report_text(&self, name: &str, labels: Value, text: &str) -> Result<()>;
    async fn no_report(&self, machine: &str, reporter: &str) -> Result<()>;
    async fn patch_machine(&self, name: &str, patch: Value) -> Result<()>;
    async fn pause(&self, name: &str, paused: bool) -> Result<()>;
    async fn patch_node(&self, machine: &str, patch: Value) -> Result<()>;
    async fn get(&self, machine: &str) -> Result<Machine>;
    async fn closed(&self, machine: &str) -> Result<bool>;
    async fn verdict(&self, machine: &str, status: Status, reason: &str) -> Result<Condition>;
    async fn message(&self, machine: &str, part: &str) -> Result<()>;
    async fn event(&self, reason: &str, part: &str) -> Result<()>;
    async fn holding(&self, gates: &str, status: Status) -> Result<Condition>;
}

/// The condition, if it exists.
pub fn of(machine: &Machine, type_: &str) -> Option<Condition> {
    let conditions = &machine.status.as_ref()?.conditions;
    condition(conditions, type_).cloned()
}

impl Fleet for Harness {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.admin())
    }

    fn node_name(&self, machine: &str) -> String {
        format!("{}-{machine}", self.namespace())
    }

    /// Creates a machine whose Node is of this run.
    async fn machine(&self, name: &str, more: Value) -> Result<()> {
        let mut machine = json!({
            "apiVersion": "fleetwright.io/v1alpha1",
            "kind": "Machine",
            "metadata": { "name": name, "labels": { "pool": "online" } },
            "spec": { "hostname": self.node_name(name) },
        });
        merge(&mut machine, more);
        self.api::<Machine>().create(&PostParams::default(), &serde_json::from_value(machine)?).await?;
        Ok(())
    }

    /// Creates its Node, as a kubelet registers it.
    async fn node(&self, machine: &str, closed: bool) -> Result<()> {
        let taints =
            if closed { json!([{ "key": names::UNREADY_TAINT, "effect": "NoSchedule" }]) } else { Value::Null };
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": self.node_name(machine) },
            "spec": { "taints": &taints },
        });
        self.nodes().create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        // The server adds not-ready; the controller that would remove it does not run here.
        let patch = json!({ "spec": { "taints": taints } });
        self.nodes().patch(&self.node_name(machine), &PatchParams::default(), &Patch::Merge(patch)).await?;
        self.bind(machine).await
    }

    /// Binds the Node, as the Machine-Operator does when it joins.
    async fn bind(&self, machine: &str) -> Result<()> {
        let name = self.get(machine).await?.spec.hostname.context("it has no host name")?;
        let uid = self.nodes().get(&name).await?.uid();
        let patch = json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "status": { "nodeRef": { "name": name, "uid": uid, "binding": "Joined" } },
        });
        let manager = PatchParams::apply("fleetwright-machines").force();
        self.api::<Machine>().patch_status(machine, &manager, &Patch::Apply(patch)).await?;
        Ok(())
    }

    /// Sets the Node's condition Ready, at the scenario's time.
    async fn ready(&self, machine: &str, status: &str) -> Result<()> {
        let now = seconds(self.clock().now());
        let patch = json!({ "status": { "conditions": [{
            "type": "Ready", "status": status, "reason": "KubeletReady", "message": "as the kubelet says",
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        }] } });
        let name = self.node_name(machine);
        self.nodes().patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// Sets a condition in the machine's status as another operator.
    async fn own(&self, machine: &str, type_: &str, status: Status) -> Result<()> {
        let patch = json!({
            "apiVersion": "fleetwright.io/v1alpha1",
            "kind": "Machine",
            "status": { "conditions": [{
                "type": type_, "status": status.as_str(), "reason": "Known", "message": "",
                "lastTransitionTime": self.clock().now(),
            }] },
        });
        let manager = PatchParams::apply(&format!("another-{}", type_.to_lowercase()));
        self.api::<Machine>().patch_status(machine, &manager, &Patch::Apply(patch)).await?;
        Ok(())
    }

    async fn gates(&self, name: &str, spec: Value) -> Result<()> {
        let mut gates = json!({
            "apiVersion": "fleetwright.io/v1alpha1",
            "kind": "ReadinessGates",
            "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": { "pool": "online" } } },
        });
        merge(&mut gates, json!({ "spec": spec }));
        let manager = PatchParams::apply("story").force();
        self.api::<ReadinessGates>().patch(name, &manager, &Patch::Apply(gates)).await?;
        Ok(())
    }

    /// Writes a report as another operator, at the scenario's time.
    async fn report(&self, machine: &str, reporter: &str, conditions: Value) -> Result<()> {
        let labels = json!({ names::MACHINE: machine, names::REPORTER: reporter });
        let mut conditions = conditions;
        for condition in conditions.as_array_mut().into_iter().flatten() {
            if condition.get("heartbeat").is_none() {
                condition["heartbeat"] = json!(self.clock().now());
            }
        }
        self.report_text(&format!("{machine}.{reporter}"), labels, &conditions.to_string()).await
    }

    async fn report_text(&self, name: &str, labels: Value, text: &str) -> Result<()> {
        let report = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "labels": labels },
            "data": { "conditions": text },
        });
        let manager = PatchParams::apply("reporter").force();
        self.api::<ConfigMap>().patch(name, &manager, &Patch::Apply(report)).await?;
        Ok(())
    }

    async fn no_report(&self, machine: &str, reporter: &str) -> Result<()> {
        self.api::<ConfigMap>().delete(&format!("{machine}.{reporter}"), &DeleteParams::default()).await?;
        Ok(())
    }

    async fn patch_machine(&self, name: &str, patch: Value) -> Result<()> {
        self.api::<Machine>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Pauses a machine, or ends its pause, and waits until the operator knows: events of Machines and of Nodes come in no order. Gates of their own
    /// show it, as they count paused machines.
    async fn pause(&self, name: &str, paused: bool) -> Result<()> {
        let gates = json!({
            "selector": { "matchLabels": { "paused": "true" } },
            "conditions": [{ "type": "NodeReady", "from": { "nodeCondition": "Ready" } }],
        });
        self.gates("paused", gates).await?;
        let label = paused.then_some("true");
        let patch = json!({ "metadata": { "labels": { "paused": label } }, "spec": { "paused": paused } });
        self.patch_machine(name, patch).await?;
        let reached = || async {
            let gates = self.api::<ReadinessGates>().get("paused").await.map_err(|error| error.to_string())?;
            let machines = gates.status.map(|status| status.machines);
            if machines == Some(u32::from(paused)) { Ok(()) } else { Err(format!("{machines:?} machines are paused")) }
        };
        self.settle(&format!("the operator knows that spec.paused of {name} is {paused}"), reached).await
    }

    async fn patch_node(&self, machine: &str, patch: Value) -> Result<()> {
        let by = PatchParams { field_manager: Some("kubectl-test".to_owned()), ..PatchParams::default() };
        self.nodes().patch(&self.node_name(machine), &by, &Patch::Strategic(patch)).await?;
        Ok(())
    }

    async fn get(&self, machine: &str) -> Result<Machine> {
        Ok(self.api::<Machine>().get(machine).await?)
    }

    async fn closed(&self, machine: &str) -> Result<bool> {
        let node = self.nodes().get(&self.node_name(machine)).await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok(taints.iter().any(|taint| taint.key == names::UNREADY_TAINT))
    }

    /// Waits for the verdict.
    async fn verdict(&self, machine: &str, status: Status, reason: &str) -> Result<Condition> {
        let reached = || async {
            let seen = self.get(machine).await.map_err(|error| error.to_string())?;
            let seen = of(&seen, names::SCHEDULABLE).ok_or("there is no verdict")?;
            match seen.status == status && seen.reason == reason {
                true => Ok(()),
                false => Err(format!("it is {} {}: {}", seen.status.as_str(), seen.reason, seen.message)),
            }
        };
        self.settle(&format!("{machine} is {} {reason}", status.as_str()), reached).await?;
        of(&self.get(machine).await?, names::SCHEDULABLE).context("it is gone")
    }

    /// Waits until the verdict's message contains a text.
    async fn message(&self, machine: &str, part: &str) -> Result<()> {
        let reached = || async {
            let seen = self.get(machine).await.map_err(|error| error.to_string())?;
            let seen = of(&seen, names::SCHEDULABLE).map(|seen| seen.message).unwrap_or_default();
            if seen.contains(part) { Ok(()) } else { Err(seen) }
        };
        self.settle(&format!("the verdict on {machine} says {part:?}"), reached).await
    }

    /// Waits for an Event.
    async fn event(&self, reason: &str, part: &str) -> Result<()> {
        let reached = || async {
            let events = self.api::<Event>().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let told = |event: &Event| event.message.clone().unwrap_or_default();
            let mut all = events.iter().filter(|event| event.reason.as_deref() == Some(reason));
            match all.any(|event| told(event).contains(part)) {
                true => Ok(()),
                false => Err(events.iter().map(told).collect::<Vec<_>>().join("\n")),
            }
        };
        self.settle(&format!("an event {reason} with {part:?}"), reached).await
    }

    async fn holding(&self, gates: &str, status: Status) -> Result<Condition> {
        let seen = || async {
            let gates = self.api::<ReadinessGates>().get(gates).await.map_err(|error| error.to_string())?;
            let conditions = gates.status.map(|status| status.conditions).unwrap_or_default();
            condition(&conditions, names::SAFETY_NET_ACTIVE).cloned().ok_or("nothing is said yet".to_owned())
        };
        let reached = || async {
            let seen = seen().await?;
            if seen.status == status { Ok(()) } else { Err(format!("{} {}", seen.status.as_str(), seen.message)) }
        };
        self.settle(&format!("{gates} has SafetyNetActive={}", status.as_str()), reached).await?;
        seen().await.map_err(anyhow::Error::msg)
    }
}

/// A time without fractions, as Kubernetes writes it.
pub fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
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

/// Fails with a message if the condition does not hold.
pub fn ensure(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { bail!("{what}") }
}

/// Machines in service: created, joined, ready.
pub async fn in_service(harness: &Harness, names: &[&str]) -> Result<()> {
    for name in names {
        harness.machine(name, json!({})).await?;
        harness.node(name, true).await?;
        harness.ready(name, "True").await?;
    }
    for name in names {
        harness.verdict(name, Status::True, "Ready").await?;
    }
    Ok(())
}

/// Statuses of the conditions by type, for messages.
pub fn statuses(machine: &Machine) -> BTreeMap<String, String> {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    conditions.map(|condition| (condition.type_.clone(), condition.status.as_str().to_owned())).collect()
}
