//! Scenarios about machines, with the outcomes that a user sees.

use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_api::{Machine, ReadinessGates, Status, names};
use fleetwright_rig::Harness;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Fleet, ensure, in_service, of, seconds, statuses};

/// One gate: the Node is ready.
fn node_ready() -> Value {
    json!({ "conditions": [{ "type": "NodeReady", "from": { "nodeCondition": "Ready" } }] })
}

/// One gate: the report of the log agent.
fn log_agent(more: Value) -> Value {
    let mut gate = json!({ "type": "LogAgentReady", "from": { "reporter": "log-agent" } });
    for (key, value) in more.as_object().into_iter().flatten() {
        gate[key] = value.clone();
    }
    json!({ "conditions": [gate] })
}

fn says(status: &str) -> Value {
    json!([{ "type": "LogAgentReady", "status": status, "reason": "Seen" }])
}

/// Seconds between a moment and the change of the verdict.
fn seconds_after(moment: Timestamp, condition: &fleetwright_api::Condition) -> i64 {
    condition.last_transition_time.duration_since(moment).as_secs()
}

pub async fn a_new_node_starts_closed_and_opens_when_its_gates_hold(harness: &Harness) -> Result<()> {
    let spec = json!({ "conditions": [
        { "type": "NodeReady", "from": { "nodeCondition": "Ready" } },
        { "type": "LogAgentReady", "from": { "reporter": "log-agent" } },
        { "type": "PackagesReady" },
    ] });
    harness.gates("workers", spec).await?;
    harness.machine("a", json!({})).await?;
    harness.start().await?;
    harness.verdict("a", Status::False, "NodeNotFound").await?;
    harness.node("a", true).await?;
    harness.verdict("a", Status::False, "GatesPending").await?;
    harness.ready("a", "True").await?;
    harness.own("a", "PackagesReady", Status::True).await?;
    harness.message("a", "LogAgentReady (reporter log-agent) missing since 2030-01-01").await?;
    ensure(harness.closed("a").await?, "it opened too soon")?;
    harness.report("a", "log-agent", says("True")).await?;
    harness.verdict("a", Status::True, "Ready").await?;
    ensure(!harness.closed("a").await?, "it did not open")?;
    let machine = harness.get("a").await?;
    let copy = of(&machine, "LogAgentReady").context("the report was not copied")?;
    ensure(copy.reporter.as_deref() == Some("log-agent"), "the copy does not name its reporter")?;
    ensure(of(&machine, "PackagesReady").is_some(), "another operator's condition is gone")?;
    ensure(machine.status.and_then(|status| status.bootstrapped).is_some(), "that it was ready is not written down")
}

pub async fn a_node_that_joins_open_is_closed_at_once(harness: &Harness) -> Result<()> {
    harness.gates("workers", log_agent(json!({ "tolerateFor": "10m" }))).await?;
    harness.start().await?;
    // The Node is younger than the gates: times of the server have whole seconds.
    until_another_second(harness, "workers").await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", false).await?;
    let verdict = harness.verdict("a", Status::False, "GatesPending").await?;
    ensure(harness.closed("a").await?, "it stayed open")?;
    ensure(seconds_after("2030-01-01T00:00:00Z".parse()?, &verdict) < 60, "something was tolerated")
}

pub async fn a_fleet_that_was_there_before_its_gates_is_adopted_and_protected(harness: &Harness) -> Result<()> {
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        harness.machine(name, json!({})).await?;
        harness.node(name, false).await?;
        harness.ready(name, "True").await?;
    }
    harness.start().await?;
    for name in names {
        harness.verdict(name, Status::Unknown, "NoReadinessGates").await?;
    }
    // No reporter reports: everything would be closed.
    harness.gates("workers", log_agent(json!({}))).await?;
    harness.holding("workers", Status::True).await?;
    let mut closed = 0;
    for name in names {
        closed += usize::from(harness.closed(name).await?);
    }
    ensure(closed <= 3, &format!("{closed} of 6 machines in service were closed"))
}

pub async fn bootstrap_gates_count_until_the_first_time_and_again_for_another_node(harness: &Harness) -> Result<()> {
    let spec = json!({ "conditions": [
        { "type": "NodeReady", "from": { "nodeCondition": "Ready" } },
        { "type": "LogAgentReady", "from": { "reporter": "log-agent" }, "when": "Bootstrap" },
    ] });
    harness.gates("workers", spec).await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", true).await?;
    harness.ready("a", "True").await?;
    harness.report("a", "log-agent", says("True")).await?;
    harness.start().await?;
    harness.verdict("a", Status::True, "Ready").await?;
    harness.report("a", "log-agent", says("False")).await?;
    let copied = || async {
        let machine = harness.get("a").await.map_err(|error| error.to_string())?;
        match statuses(&machine).get("LogAgentReady").map(String::as_str) {
            Some("False") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    harness.settle("the report is copied", copied).await?;
    harness.verdict("a", Status::True, "Ready").await?;
    ensure(!harness.closed("a").await?, "a gate that no longer counts closed it")?;

    harness.nodes().delete(&harness.node_name("a"), &DeleteParams::default()).await?;
    harness.verdict("a", Status::False, "NodeNotFound").await?;
    harness.node("a", true).await?;
    harness.ready("a", "True").await?;
    harness.verdict("a", Status::False, "GatesPending").await?;
    harness.message("a", "LogAgentReady (reporter log-agent) False").await?;
    harness.report("a", "log-agent", says("True")).await?;
    harness.verdict("a", Status::True, "Ready").await.map(drop)
}

pub async fn a_failure_is_tolerated_for_so_long_and_a_recovery_must_last(harness: &Harness) -> Result<()> {
    let spec = json!({ "conditions": [{
        "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "40s", "holdFor": "30s",
    }] });
    harness.gates("workers", spec).await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", true).await?;
    harness.start().await?;
    let joined = harness.clock().now();
    harness.ready("a", "True").await?;
    let opened = harness.verdict("a", Status::True, "Ready").await?;
    ensure(seconds_after(joined, &opened) == 30, &format!("it opened after {}s", seconds_after(joined, &opened)))?;
    let failed = harness.clock().now();
    harness.ready("a", "Unknown").await?;
    let closed = harness.verdict("a", Status::False, "GatesFailing").await?;
    // The Node's times have whole seconds.
    ensure(
        (39..=40).contains(&seconds_after(failed, &closed)),
        &format!("it closed after {}s", seconds_after(failed, &closed)),
    )?;
    let back = harness.clock().now();
    harness.ready("a", "True").await?;
    harness.message("a", "30s").await?;
    let opened = harness.verdict("a", Status::True, "Ready").await?;
    ensure(
        (29..=30).contains(&seconds_after(back, &opened)),
        &format!("it opened after {}s", seconds_after(back, &opened)),
    )?;
    harness.ready("a", "Unknown").await?;
    harness.run_for(Duration::from_secs(20)).await?;
    harness.ready("a", "True").await?;
    harness.run_for(Duration::from_secs(120)).await?;
    let steady = harness.verdict("a", Status::True, "Ready").await?;
    ensure(steady.last_transition_time == opened.last_transition_time, "it flapped")
}

pub async fn a_missing_report_means_what_the_gate_says(harness: &Harness) -> Result<()> {
    for (pool, missing) in [("fail", "Fail"), ("pass", "Pass"), ("keep", "Keep")] {
        let mut spec = log_agent(json!({ "missing": missing, "tolerateFor": "60s" }));
        spec["selector"] = json!({ "matchLabels": { "pool": pool } });
        harness.gates(pool, spec).await?;
        harness.machine(pool, json!({ "metadata": { "labels": { "pool": pool } } })).await?;
        harness.node(pool, true).await?;
        harness.report(pool, "log-agent", says("True")).await?;
    }
    harness.start().await?;
    for name in ["fail", "pass", "keep"] {
        harness.verdict(name, Status::True, "Ready").await?;
        harness.no_report(name, "log-agent").await?;
    }
    let gone = harness.clock().now();
    let closed = harness.verdict("fail", Status::False, "GatesFailing").await?;
    ensure(
        (59..=60).contains(&seconds_after(gone, &closed)),
        "a report that vanished was not tolerated as long as another failure",
    )?;
    for part in ["LogAgentReady", "reporter log-agent", "missing"] {
        ensure(closed.message.contains(part), &closed.message)?;
    }
    harness.run_for(Duration::from_secs(600)).await?;
    for name in ["pass", "keep"] {
        harness.verdict(name, Status::True, "Ready").await?;
        ensure(!harness.closed(name).await?, name)?;
    }
    // A closed Node whose gate says nothing stays closed.
    harness
        .patch_node("keep", json!({ "spec": { "taints": [{ "key": names::UNREADY_TAINT, "effect": "NoSchedule" }] } }))
        .await?;
    harness.verdict("keep", Status::False, "GatesFailing").await?;
    harness.message("keep", "kept").await?;
    harness.message("keep", "LogAgentReady (reporter log-agent) missing").await
}

pub async fn a_stale_report_means_what_the_gate_says(harness: &Harness) -> Result<()> {
    for (pool, stale) in [("fail", "Fail"), ("pass", "Pass"), ("keep", "Keep")] {
        let mut spec = log_agent(json!({ "stale": stale, "staleAfter": "5m", "holdFor": "10s" }));
        spec["selector"] = json!({ "matchLabels": { "pool": pool } });
        harness.gates(pool, spec).await?;
        harness.machine(pool, json!({ "metadata": { "labels": { "pool": pool } } })).await?;
        harness.node(pool, true).await?;
    }
    harness.start().await?;
    let heard = harness.clock().now();
    for name in ["fail", "pass", "keep"] {
        harness.report(name, "log-agent", says("True")).await?;
        harness.verdict(name, Status::True, "Ready").await?;
    }
    let closed = harness.verdict("fail", Status::False, "GatesFailing").await?;
    let after = seconds_after(heard, &closed);
    ensure((300..=330).contains(&after), &format!("it closed after {after}s"))?;
    ensure(closed.message.contains("stale"), &closed.message)?;
    let copy = of(&harness.get("fail").await?, "LogAgentReady").context("it is gone")?;
    ensure(copy.status == Status::Unknown && copy.reason == "ReportStale", "the copy does not say that it is stale")?;
    for name in ["pass", "keep"] {
        ensure(!harness.closed(name).await?, name)?;
    }
    let back = harness.clock().now();
    harness.report("fail", "log-agent", says("True")).await?;
    let opened = harness.verdict("fail", Status::True, "Ready").await?;
    ensure((10..=11).contains(&seconds_after(back, &opened)), "a fresh report need not have held")
}

pub async fn broken_reports_are_named_and_the_rest_goes_on(harness: &Harness) -> Result<()> {
    harness.gates("workers", log_agent(json!({}))).await?;
    harness.machine("a", json!({})).await?;
    harness.machine("b", json!({})).await?;
    harness.node("a", true).await?;
    harness.report("a", "log-agent", says("True")).await?;
    let label = |machine: &str, reporter: &str| json!({ names::MACHINE: machine, names::REPORTER: reporter });
    let good = json!([{ "type": "Extra", "status": "True" }]).to_string();
    let far = json!([{ "type": "Future", "status": "True", "heartbeat": "2031-01-01T00:00:00Z" }]).to_string();
    for (name, labels, text) in [
        ("a.nonsense", label("a", "nonsense"), "{not json"),
        ("a.reserved", label("a", "reserved"), r#"[{"type":"Schedulable","status":"True"}]"#),
        ("a.odd", label("a", "odd"), r#"[{"type":"Odd","status":"Maybe"}]"#),
        ("a.far", label("a", "far"), &far),
        ("a.liar", label("b", "liar"), &good),
        ("b.unnamed", json!({ names::MACHINE: "b" }), &good),
    ] {
        harness.report_text(name, labels, text).await?;
    }
    harness.start().await?;
    harness.verdict("a", Status::True, "Ready").await?;
    harness.verdict("b", Status::False, "NodeNotFound").await?;
    for (machine, names) in
        [("a", vec!["a.nonsense", "a.reserved", "a.odd", "a.far"]), ("b", vec!["a.liar", "b.unnamed"])]
    {
        let told = of(&harness.get(machine).await?, "ReportsValid").context("nothing is said of the reports")?;
        ensure(told.status == Status::False, "broken reports are called valid")?;
        for name in names {
            ensure(told.message.contains(name), &format!("{name} is not in: {}", told.message))?;
            harness.event("ReportInvalid", name).await?;
        }
        let types = statuses(&harness.get(machine).await?);
        for type_ in ["Odd", "Future", "Extra"] {
            ensure(!types.contains_key(type_), &format!("{type_} of a broken report was copied"))?;
        }
    }
    for name in ["nonsense", "reserved", "odd", "far"] {
        harness.no_report("a", name).await?;
    }
    let valid = || async {
        let machine = harness.get("a").await.map_err(|error| error.to_string())?;
        match statuses(&machine).get("ReportsValid").map(String::as_str) {
            Some("True") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    harness.settle("the reports are valid again", valid).await
}

pub async fn no_reporter_can_set_the_condition_of_another(harness: &Harness) -> Result<()> {
    harness.gates("workers", log_agent(json!({}))).await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", true).await?;
    harness.own("a", "DiskReady", Status::False).await?;
    let all = json!([
        { "type": "LogAgentReady", "status": "True" },
        { "type": "DiskReady", "status": "True" },
        { "type": "ThiefReady", "status": "True" },
    ]);
    harness.report("a", "thief", all).await?;
    harness.start().await?;
    harness.verdict("a", Status::False, "GatesPending").await?;
    let machine = harness.get("a").await?;
    ensure(
        of(&machine, "DiskReady").is_some_and(|it| it.status == Status::False && it.reporter.is_none()),
        "it took the Machine's own",
    )?;
    ensure(of(&machine, "LogAgentReady").is_some_and(|it| it.status == Status::Unknown), "it took the log agent's")?;
    ensure(of(&machine, "ThiefReady").is_some_and(|it| it.status == Status::True), "what is its own does not count")?;
    harness.event("ReportInvalid", "a.thief: LogAgentReady").await?;
    harness.event("ReportInvalid", "a.thief: DiskReady").await?;
    harness.report("a", "log-agent", says("True")).await?;
    harness.verdict("a", Status::True, "Ready").await?;

    // The first reporter of a type owns it while it reports it.
    harness.report("a", "late", json!([{ "type": "ThiefReady", "status": "False" }])).await?;
    harness.event("ReportInvalid", "a.late: ThiefReady").await?;
    harness.no_report("a", "thief").await?;
    let taken_over = || async {
        let machine = harness.get("a").await.map_err(|error| error.to_string())?;
        let copy = of(&machine, "ThiefReady").ok_or("it is gone")?;
        if copy.reporter.as_deref() == Some("late") { Ok(()) } else { Err(format!("{copy:?}")) }
    };
    harness.settle("the other has it now", taken_over).await
}

pub async fn a_report_about_no_machine_is_named_in_an_event(harness: &Harness) -> Result<()> {
    harness.report("nobody", "log-agent", says("True")).await?;
    harness.start().await?;
    harness.event("MachineNotFound", "Machine nobody").await?;
    harness.machine("nobody", json!({})).await?;
    let copied = || async {
        let machine = harness.get("nobody").await.map_err(|error| error.to_string())?;
        of(&machine, "LogAgentReady").map(drop).ok_or("it is not copied".to_owned())
    };
    harness.settle("it counts as soon as there is a machine", copied).await
}

pub async fn a_persons_hand_on_a_node_wins(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.start().await?;
    in_service(harness, &["a"]).await?;
    let node = harness.node_name("a");

    harness.patch_node("a", json!({ "spec": { "unschedulable": true } })).await?;
    let told = harness.verdict("a", Status::False, "Cordoned").await?;
    ensure(told.message.contains("kubectl-test"), &told.message)?;
    ensure(told.message.contains(&format!("kubectl uncordon {node}")), &told.message)?;
    // The gates continue to open and close the Node, and the cordon stays.
    harness.ready("a", "False").await?;
    harness.message("a", "1 of 1 gates").await?;
    ensure(harness.closed("a").await?, "a cordoned Node was not closed")?;
    harness.ready("a", "True").await?;
    harness.message("a", "no gate").await?;
    ensure(!harness.closed("a").await?, "it was not opened again")?;
    let cordoned = harness.nodes().get(&node).await?.spec.and_then(|spec| spec.unschedulable);
    ensure(cordoned == Some(true), "the cordon was lifted")?;
    harness.patch_node("a", json!({ "spec": { "unschedulable": null } })).await?;
    harness.verdict("a", Status::True, "Ready").await?;

    let taint = json!({ "key": "maintenance", "value": "soon", "effect": "NoSchedule" });
    harness.patch_node("a", json!({ "spec": { "taints": [taint] } })).await?;
    let told = harness.verdict("a", Status::False, "Tainted").await?;
    ensure(told.message.contains("by kubectl-test"), &told.message)?;
    harness.ready("a", "False").await?;
    harness.message("a", "1 of 1 gates").await?;
    harness.ready("a", "True").await?;
    harness.message("a", "no gate").await?;
    let left = harness.nodes().get(&node).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure(
        left.len() == 1 && left[0].key == "maintenance" && left[0].value.as_deref() == Some("soon"),
        "the taint is not as it was",
    )?;
    harness.patch_machine("a", json!({ "spec": { "taints": [taint] } })).await?;
    harness.verdict("a", Status::True, "Ready").await.map(drop)
}

pub async fn our_taint_is_put_back_when_somebody_takes_it_away(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", true).await?;
    harness.start().await?;
    harness.verdict("a", Status::False, "GatesPending").await?;
    harness.patch_node("a", json!({ "spec": { "taints": null } })).await?;
    let closed = || async {
        match harness.closed("a").await {
            Ok(true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    harness.settle("it is closed again", closed).await
}

pub async fn all_gates_of_all_objects_must_hold(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    let mut other = log_agent(json!({}));
    other["selector"] = json!({ "matchExpressions": [{ "key": "gpu", "operator": "Exists" }] });
    harness.gates("gpus", other).await?;
    harness.machine("plain", json!({})).await?;
    harness.machine("gpu", json!({ "metadata": { "labels": { "gpu": "yes" } } })).await?;
    for name in ["plain", "gpu"] {
        harness.node(name, true).await?;
        harness.ready(name, "True").await?;
    }
    harness.start().await?;
    harness.verdict("plain", Status::True, "Ready").await?;
    harness.verdict("gpu", Status::False, "GatesPending").await?;
    harness.report("gpu", "log-agent", says("True")).await?;
    harness.verdict("gpu", Status::True, "Ready").await?;
    // With another label, other gates select the machine.
    harness.patch_machine("plain", json!({ "metadata": { "labels": { "gpu": "yes" } } })).await?;
    harness.verdict("plain", Status::False, "GatesFailing").await?;
    harness.patch_machine("plain", json!({ "metadata": { "labels": { "gpu": null } } })).await?;
    harness.verdict("plain", Status::True, "Ready").await?;
    harness.api::<ReadinessGates>().delete("workers", &DeleteParams::default()).await?;
    harness.verdict("plain", Status::Unknown, "NoReadinessGates").await?;
    ensure(!harness.closed("plain").await?, "it was closed without gates")
}

pub async fn readiness_gates_count_their_machines(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.start().await?;
    in_service(harness, &["a", "b"]).await?;
    harness.machine("c", json!({})).await?;
    harness.node("c", true).await?;
    harness.machine("d", json!({ "metadata": { "labels": { "pool": "batch" } } })).await?;
    let counted = |machines: u32, schedulable: u32, closed: u32| {
        move || async move {
            let gates = harness.api::<ReadinessGates>().get("workers").await.map_err(|error| error.to_string())?;
            let status = gates.status.unwrap_or_default();
            let accepted = fleetwright_api::is_true(&status.conditions, names::ACCEPTED);
            match (status.machines, status.schedulable, status.closed, accepted)
                == (machines, schedulable, closed, true)
            {
                true => Ok(()),
                false => Err(format!("{status:?}")),
            }
        }
    };
    harness.settle("3 machines are counted", counted(3, 2, 1)).await?;
    harness.patch_machine("b", json!({ "metadata": { "labels": { "pool": "batch" } } })).await?;
    harness.settle("one left", counted(2, 1, 1)).await?;
    harness.api::<Machine>().delete("c", &DeleteParams::default()).await?;
    harness.settle("another is gone", counted(1, 1, 0)).await
}

/// Six machines in service under a net that allows three to be closed.
async fn six(harness: &Harness) -> Result<[&'static str; 6]> {
    let names = ["a", "b", "c", "d", "e", "f"];
    harness
        .gates(
            "workers",
            json!({ "conditions": [{
        "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "30s",
    }] }),
        )
        .await?;
    harness.start().await?;
    in_service(harness, &names).await?;
    Ok(names)
}

async fn how_many_closed(harness: &Harness, names: &[&str]) -> Result<usize> {
    let mut closed = 0;
    for name in names {
        closed += usize::from(harness.closed(name).await?);
    }
    Ok(closed)
}

pub async fn the_safety_net_keeps_machines_open_that_fail_together(harness: &Harness) -> Result<()> {
    let names = six(harness).await?;
    for name in &names[..4] {
        harness.ready(name, "Unknown").await?;
    }
    for name in &names[..4] {
        let told = harness.verdict(name, Status::True, "SafetyNet").await?;
        for part in ["ReadinessGates workers", "NodeReady", "Unknown"] {
            ensure(told.message.contains(part), &told.message)?;
        }
    }
    let told = harness.holding("workers", Status::True).await?;
    ensure(told.message.contains("4 of 6"), &told.message)?;
    harness.event("SafetyNetActivated", "ReadinessGates workers").await?;
    // Time alone releases no machine, nor does a restarted operator.
    harness.run_for(Duration::from_secs(900)).await?;
    ensure(how_many_closed(harness, &names).await? == 0, "the clock let go")?;
    harness.stop().await?;
    harness.start().await?;
    harness.run_for(Duration::from_secs(300)).await?;
    ensure(how_many_closed(harness, &names).await? == 0, "a new operator forgot the net")?;
    // One recovers: three may be closed.
    harness.ready(names[0], "True").await?;
    for name in &names[1..4] {
        harness.verdict(name, Status::False, "GatesFailing").await?;
    }
    harness.verdict(names[0], Status::True, "Ready").await?;
    harness.holding("workers", Status::False).await?;
    harness.event("SafetyNetDeactivated", "no machine").await?;
    for name in &names[1..4] {
        harness.ready(name, "True").await?;
        harness.verdict(name, Status::True, "Ready").await?;
    }
    Ok(())
}

pub async fn the_safety_net_stops_a_wave_that_comes_one_by_one(harness: &Harness) -> Result<()> {
    let names = six(harness).await?;
    for name in &names[..3] {
        harness.ready(name, "Unknown").await?;
        harness.verdict(name, Status::False, "GatesFailing").await?;
    }
    harness.kill().await;
    harness.start().await?;
    harness.ready(names[3], "Unknown").await?;
    harness.verdict(names[3], Status::True, "SafetyNet").await?;
    harness.ready(names[0], "True").await?;
    harness.verdict(names[0], Status::True, "Ready").await?;
    harness.verdict(names[3], Status::False, "GatesFailing").await.map(drop)
}

pub async fn a_gate_that_no_machine_can_pass_does_not_close_the_fleet(harness: &Harness) -> Result<()> {
    let names = six(harness).await?;
    // A person requires a condition that no reporter reports: the conditions of the machines have different ages, but fail together.
    harness.gates("workers", json!({ "conditions": [{ "type": "Misspelled" }] })).await?;
    harness.holding("workers", Status::True).await?;
    harness.run_for(Duration::from_secs(600)).await?;
    let closed = how_many_closed(harness, &names).await?;
    ensure(closed <= 3, &format!("{closed} of 6 were closed"))?;
    harness.gates("workers", node_ready()).await?;
    for name in names {
        harness.verdict(name, Status::True, "Ready").await?;
    }
    harness.holding("workers", Status::False).await.map(drop)
}

pub async fn nothing_is_done_to_the_node_of_a_paused_machine(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.start().await?;
    in_service(harness, &["a"]).await?;
    harness.pause("a", true).await?;
    harness.ready("a", "False").await?;
    let told = harness.verdict("a", Status::True, "Paused").await?;
    ensure(told.message.contains("closed"), &told.message)?;
    harness.run_for(Duration::from_secs(120)).await?;
    ensure(!harness.closed("a").await?, "it was closed")?;
    harness.pause("a", false).await?;
    harness.verdict("a", Status::False, "GatesFailing").await?;
    harness.pause("a", true).await?;
    harness.ready("a", "True").await?;
    harness.verdict("a", Status::False, "Paused").await?;
    ensure(harness.closed("a").await?, "it was opened")
}

pub async fn of_two_machines_that_claim_a_node_the_older_has_it(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.start().await?;
    in_service(harness, &["a"]).await?;
    until_another_second(harness, "workers").await?;
    harness.machine("b", json!({ "spec": { "hostname": harness.node_name("a") } })).await?;
    let told = harness.verdict("b", Status::False, "NodeConflict").await?;
    ensure(told.message.contains("Machine a"), &told.message)?;
    harness.event("NodeConflict", "Machine a").await?;
    // Also if a person binds the Node to both.
    harness.bind("b").await?;
    harness.run_for(Duration::from_secs(60)).await?;
    harness.verdict("b", Status::False, "NodeConflict").await?;
    harness.verdict("a", Status::True, "Ready").await?;
    harness.api::<Machine>().delete("a", &DeleteParams::default()).await?;
    harness.verdict("b", Status::True, "Ready").await.map(drop)
}

/// A user with write access to Machines and ReadinessGates cannot close Nodes of others with them.
pub async fn a_node_that_is_not_bound_is_neither_closed_nor_opened(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.start().await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", false).await?;
    harness.ready("a", "True").await?;
    harness.verdict("a", Status::True, "Ready").await?;
    // A Machine of the same Node that is no longer bound to it.
    harness.api::<Machine>().delete("a", &DeleteParams::default()).await?;
    harness.machine("b", json!({ "spec": { "hostname": harness.node_name("a") } })).await?;
    let told = harness.verdict("b", Status::False, "NodeNotBound").await?;
    ensure(told.message.contains("fleetwright machine bind-node b"), &told.message)?;
    harness.event("NodeNotBound", "bind-node b").await?;
    harness.ready("a", "False").await?;
    harness.run_for(Duration::from_secs(300)).await?;
    ensure(!harness.closed("a").await?, "a foreign Node was closed")?;
    // A reference without a binding, as an earlier version wrote it, and one to another uid, bind nothing.
    for uid in [harness.nodes().get(&harness.node_name("a")).await?.metadata.uid, Some("another".to_owned())] {
        let binding = (uid.as_deref() == Some("another")).then_some("Joined");
        let status =
            json!({ "status": { "nodeRef": { "name": harness.node_name("a"), "uid": uid, "binding": binding } } });
        harness.api::<Machine>().patch_status("b", &PatchParams::default(), &Patch::Merge(status)).await?;
        harness.run_for(Duration::from_secs(60)).await?;
        harness.verdict("b", Status::False, "NodeNotBound").await?;
        ensure(!harness.closed("a").await?, "a foreign Node was closed")?;
    }
    harness.bind("b").await?;
    harness.verdict("b", Status::False, "GatesPending").await?;
    ensure(harness.closed("a").await?, "a bound Node is closed")
}

pub async fn the_taint_of_a_deleted_machine_stays(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", true).await?;
    harness.start().await?;
    harness.verdict("a", Status::False, "GatesPending").await?;
    harness.api::<Machine>().delete("a", &DeleteParams::default()).await?;
    // Machines and Nodes come by different watches: the operator has seen the deletion when it has seen a later machine.
    harness.machine("b", json!({})).await?;
    harness.node("b", true).await?;
    harness.verdict("b", Status::False, "GatesPending").await?;
    harness.ready("a", "True").await?;
    harness.run_for(Duration::from_secs(60)).await?;
    ensure(harness.closed("a").await?, "nobody was left to say that it is ready")
}

pub async fn a_change_costs_two_writes_and_an_unchanged_report_none(harness: &Harness) -> Result<()> {
    harness.gates("workers", log_agent(json!({ "staleAfter": "10m" }))).await?;
    harness.machine("a", json!({})).await?;
    harness.node("a", true).await?;
    harness.start().await?;
    harness.report("a", "log-agent", says("True")).await?;
    harness.verdict("a", Status::True, "Ready").await?;
    harness.run_for(Duration::from_secs(30)).await?;

    let mark = harness.recorder().mark();
    for _ in 0..10 {
        harness.run_for(Duration::from_secs(30)).await?;
        harness.report("a", "log-agent", says("True")).await?;
    }
    harness.run_for(Duration::from_secs(30)).await?;
    let writes = harness.recorder().writes_since(mark);
    ensure(writes.is_empty(), &format!("10 heartbeats cost {writes:?}"))?;

    let mark = harness.recorder().mark();
    harness.report("a", "log-agent", says("False")).await?;
    harness.verdict("a", Status::False, "GatesFailing").await?;
    let writes = harness.recorder().writes_since(mark);
    let of_machine = writes.iter().filter(|record| !record.call.to_string().contains("readinessgates")).count();
    ensure(of_machine == 2, &format!("a change of the verdict cost {writes:?}"))?;
    harness.run_for(Duration::from_secs(30)).await?;
    let writes = harness.recorder().writes_since(mark);
    ensure(writes.len() <= 3, &format!("a change of the verdict, with its counts, cost {writes:?}"))
}

pub async fn what_another_operator_writes_is_not_taken_for_a_copy(harness: &Harness) -> Result<()> {
    harness.gates("workers", node_ready()).await?;
    harness.start().await?;
    in_service(harness, &["a"]).await?;
    // The condition claims to be a report, but we did not copy it.
    let patch = json!({
        "apiVersion": "fleetwright.io/v1alpha1",
        "kind": "Machine",
        "status": { "conditions": [{
            "type": "Strange", "status": "True", "reason": "", "message": "", "reporter": "somebody",
            "lastTransitionTime": seconds(harness.clock().now()),
        }] },
    });
    let manager = PatchParams::apply("stranger");
    harness.api::<Machine>().patch_status("a", &manager, &Patch::Apply(patch)).await?;
    harness.run_for(Duration::from_secs(30)).await?;
    let mark = harness.recorder().mark();
    harness.patch_machine("a", json!({ "metadata": { "annotations": { "look": "again" } } })).await?;
    harness.run_for(Duration::from_secs(30)).await?;
    ensure(harness.recorder().writes_since(mark).is_empty(), "it was written about")?;
    ensure(of(&harness.get("a").await?, "Strange").is_some(), "it was removed")
}

/// Waits for the server's next second: objects created now are younger than the gates.
async fn until_another_second(harness: &Harness, gates: &str) -> Result<()> {
    let made =
        harness.api::<ReadinessGates>().get(gates).await?.metadata.creation_timestamp.context("it has no time")?.0;
    loop {
        // The server's own clock, read by creating an object.
        let probe: ConfigMap = serde_json::from_value(json!({ "metadata": { "generateName": "second-" } }))?;
        let probe = harness.api::<ConfigMap>().create(&Default::default(), &probe).await?;
        if probe.metadata.creation_timestamp.is_some_and(|time| time.0 > made) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
