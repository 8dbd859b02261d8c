//! `pods/eviction`: a deletion that the disruption budgets must allow.

use std::sync::Arc;

use fleetwright_builtins::meta;
use fleetwright_rbac::User;
use http::Response;
use serde_json::{Value, json};

use super::binding::{created, set_condition, subresource_body};
use crate::body::{self, Body};
use crate::call::Call;
use crate::error::{ApiError, Cause};
use crate::fields::{list_mut, meta_text, metadata};
use crate::registry::Resource;
use crate::write::delete::delete;
use crate::write::options::{DeleteOptions, WriteOptions};
use crate::write::update::{Changed, change};
use crate::write_request::{Outcome, WriteRequest};

/// The number of attempts of an eviction that conflicts with other writers.
const ATTEMPTS: usize = 20;
/// The limit of evictions that the budget's controller has not confirmed.
const MAX_DISRUPTED: usize = 2000;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// `pods/eviction`.
pub(super) fn evict(call: &Call, resource: &Arc<Resource>) -> Result<Response<Body>, ApiError> {
    let eviction = subresource_body(call, "Eviction")?;
    let name = &call.info.name;
    if meta_text(&eviction, "name") != name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let write = call.options("CreateOptions", false)?;
    let mut options = match &eviction["deleteOptions"] {
        Value::Null => DeleteOptions::default(),
        // The real server does not look at the kind of the embedded options.
        given => {
            let mut given = given.clone();
            if let Some(map) = given.as_object_mut() {
                map.remove("kind");
            }
            DeleteOptions::read(&call.query, Some(&given))?
        }
    };
    options.dry_run |= write.dry_run;
    let op = WriteRequest { subresource: "", ..call.operation(resource, write) };
    op.server.admit_namespace(resource, op.namespace, name)?;

    for attempt in 1.. {
        let pod = op.server.lookup("", "pods", op.namespace, name).ok_or_else(|| resource.not_found(name))?;
        if !skips_budgets(&pod) {
            break;
        }
        let mut options = options.clone();
        let pinned = options.resource_version.is_some();
        if !is_over(&pod) && !pinned {
            // The precondition forces a new check for a pod that starts between the check and the deletion.
            options.resource_version = Some(meta_text(&pod, "resourceVersion").to_owned());
        }
        match finish(&op, name, &options) {
            Err(error) if error.code == 409 && !pinned && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(created()),
        }
    }

    let pod = op.server.lookup("", "pods", op.namespace, name).ok_or_else(|| resource.not_found(name))?;
    let budgets: Vec<Value> = op
        .server
        .lookup_all("policy", "poddisruptionbudgets", Some(op.namespace))
        .into_iter()
        .filter(|budget| guards(budget, &pod))
        .collect();
    let pinned = match budgets.as_slice() {
        [] => false,
        [budget] => ask(&op, budget, &pod, options.dry_run)?,
        _ => {
            let told =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": told, "code": 500,
            });
            return Ok(body::json(500, &status));
        }
    };
    let own_version = options.resource_version.is_some();
    if pinned {
        options.resource_version = Some(meta_text(&pod, "resourceVersion").to_owned());
    }
    match finish(&op, name, &options) {
        Err(error) if error.code == 409 && pinned && !own_version => {
            let budget = budgets.first().map(|budget| meta_text(budget, "name")).unwrap_or_default();
            Err(still_processed(budget))
        }
        done => done.map(|()| created()),
    }
}

/// Whether the deletion of the pod is no disruption, because it does not run or is terminating.
fn skips_budgets(pod: &Value) -> bool {
    is_over(pod) || pod["status"]["phase"] == "Pending"
}

fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        || !meta_text(pod, "deletionTimestamp").is_empty()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn guards(budget: &Value, pod: &Value) -> bool {
    let selector = budget["spec"].get("selector").filter(|selector| !selector.is_null());
    // A budget without a selector selects no pod, one with an empty selector selects all.
    selector.is_some() && meta::selector_matches(selector, pod["metadata"].get("labels"))
}

/// Takes one disruption from the budget. True when the pod was not healthy, needed no disruption, and must still be unhealthy
/// at its deletion.
fn ask(op: &WriteRequest<'_>, budget: &Value, pod: &Value, dry_run: bool) -> Result<bool, ApiError> {
    if !is_ready(pod) {
        let status = &budget["status"];
        let (current, desired) =
            (status["currentHealthy"].as_i64().unwrap_or(0), status["desiredHealthy"].as_i64().unwrap_or(0));
        if budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" || (current >= desired && desired > 0) {
            return Ok(true);
        }
    }
    let resource =
        op.server.registry.by_plural("policy", "poddisruptionbudgets").ok_or_else(ApiError::no_such_resource)?;
    let user = User::new("system:apiserver", ["system:masters"]);
    let options = WriteOptions { manager: "kube-apiserver".into(), dry_run, ..WriteOptions::default() };
    let write = WriteRequest { resource: &resource, user: &user, subresource: "status", options, ..*op };
    let now = op.server.timestamp();
    for _ in 0..ATTEMPTS {
        let done = change(&write, meta_text(budget, "name"), |live| {
            check(live)?;
            let mut object = live.clone();
            take(&mut object, meta_text(pod, "name"), &now);
            Ok(Changed { object, owned: false })
        });
        match done {
            Err(error) if error.reason == "Conflict" => {}
            done => return done.map(|_| false),
        }
    }
    let name = meta_text(budget, "name");
    Err(ApiError::timeout(format!("Timeout: couldn't update PodDisruptionBudget {name:?} due to conflicts"), 10))
}

fn cause(message: String) -> Vec<Cause> {
    vec![Cause { reason: "DisruptionBudget".into(), message, field: String::new() }]
}

fn still_processed(budget: &str) -> ApiError {
    let told = format!("The disruption budget {budget} is still being processed by the server.");
    let mut error = ApiError::too_many_requests(REFUSED, 10);
    error.details.get_or_insert_default().causes = cause(told);
    error
}

fn check(budget: &Value) -> Result<(), ApiError> {
    let (name, status) = (meta_text(budget, "name"), &budget["status"]);
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(still_processed(name));
    }
    let allowed = number("disruptionsAllowed");
    let impossible = |why: &str, shown: &str| {
        let told = format!("The disruption budget {name} does not allow evicting pods currently: {shown}");
        Err(ApiError::forbidden("policy", "poddisruptionbudget", name, why).with_causes(cause(told)))
    };
    if allowed < 0 {
        return impossible("pdb disruptions allowed is negative", "pdb disruptions allowed is negative");
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        return impossible(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            "too many pending evictions not confirmed by PDB controller",
        );
    }
    if allowed > 0 {
        return Ok(());
    }
    let condition = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "DisruptionAllowed");
    let said = condition
        .filter(|c| c["status"] == "False")
        .map(|c| (c["reason"].as_str().unwrap_or_default(), c["message"].as_str().unwrap_or_default()))
        .filter(|(_, message)| !message.is_empty());
    let (current, desired) = (number("currentHealthy"), number("desiredHealthy"));
    let told = match said {
        Some(("SyncFailed", message)) => {
            format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            )
        }
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some((reason, message)) => {
            format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    };
    Err(ApiError::new(429, "TooManyRequests", REFUSED).with_causes(cause(told)))
}

/// Counts one disruption, and records the pod for the budget's controller.
fn take(budget: &mut Value, pod: &str, now: &str) {
    let left = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) - 1;
    budget["status"]["disruptionsAllowed"] = left.into();
    if left == 0 {
        let observed = budget["status"]["observedGeneration"].clone();
        let conditions = list_mut(&mut budget["status"], "conditions");
        let before = conditions.iter().position(|c| c["type"] == "DisruptionAllowed");
        let since = before
            .and_then(|at| conditions.get(at))
            .filter(|c| c["status"] == "False")
            .map(|c| c["lastTransitionTime"].clone());
        let condition = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "observedGeneration": observed, "lastTransitionTime": since.unwrap_or_else(|| now.into()),
        });
        match before.and_then(|at| conditions.get_mut(at)) {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
    if !budget["status"]["disruptedPods"].is_object() {
        budget["status"]["disruptedPods"] = json!({});
    }
    budget["status"]["disruptedPods"][pod] = now.into();
}

/// Sets the DisruptionTarget condition on the pod, and deletes it.
fn finish(op: &WriteRequest<'_>, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
    let mut options = options.clone();
    if !options.dry_run {
        let status = WriteRequest { subresource: "status", options: WriteOptions::default(), ..*op };
        let outcome = change(&status, name, |live| {
            crate::write::delete::check_preconditions(op, name, live, &options)?;
            let mut object = live.clone();
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            });
            set_condition(&mut object, condition, &op.server.timestamp());
            // Without a version the write is retried after a conflict.
            metadata(&mut object).remove("resourceVersion");
            // As in the real server, managedFields are not changed, since this is not a client's write.
            Ok(Changed { object, owned: true })
        })?;
        if options.resource_version.is_some()
            && let Outcome::Stored(stored) = &outcome
        {
            options.resource_version = Some(stored.revision.to_string());
        }
    }
    let delete_op =
        WriteRequest { options: WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() }, ..*op };
    delete(&delete_op, name, &options).map(|_| ())
}
