//! The kinds that create pods.

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::{Value, json};

use crate::access::{get, go_struct, int, invalid_each, is_empty, list, text};
use crate::meta;
use crate::names;
use crate::validation::{immutable, job, non_negative, pod, storage};

pub(super) fn validate(kind: &str, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if kind == "ControllerRevision" {
        return controller_revision(object);
    }
    let Some(spec) = object.get("spec").filter(|spec| spec.is_object()) else { return Vec::new() };
    match kind {
        "Deployment" => deployment(spec),
        "ReplicaSet" => replica_set(spec),
        "ReplicationController" => replication_controller(spec),
        "StatefulSet" => stateful_set(spec),
        "DaemonSet" => daemon_set(spec),
        "Job" => job::job(object, spec, old.is_none()),
        "CronJob" => job::cron_job(object, spec, old),
        _ => Vec::new(),
    }
}

fn controller_revision(revision: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = non_negative(revision, "revision", "").into_iter().collect();
    match get(revision, "data") {
        None => errors.push(FieldError::required("data", "data is mandatory")),
        Some(data) if !data.is_object() => {
            errors.push(FieldError::required("data", "data must be a valid JSON object"));
        }
        Some(_) => {}
    }
    errors
}

/// Checks a selector, and that it selects the template's pods.
fn selector(spec: &Value, kind: &str, required: bool) -> Vec<FieldError> {
    let Some(selector) = get(spec, "selector") else {
        // A missing selector selects nothing, not even the template's pods.
        let missing = required.then(|| FieldError::required("spec.selector", ""));
        return missing.into_iter().chain(matches_template(spec, &Value::Null)).collect();
    };
    let mut errors = meta::validate_selector(selector, "spec.selector");
    let broken = !errors.is_empty();
    if is_empty(selector.get("matchLabels")) && is_empty(selector.get("matchExpressions")) {
        let error_text = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid("spec.selector", selector.clone(), error_text));
    } else if !broken {
        errors.extend(matches_template(spec, selector));
    } else if kind == "deployment" {
        errors.push(FieldError::invalid("spec.selector", selector.clone(), "invalid label selector"));
    } else if kind == "statefulset" {
        errors.push(FieldError::invalid("spec.selector", selector.clone(), ""));
    }
    errors
}

/// An error about a strategy, which is shown as the real server prints it.
fn strategy_error(ty: ErrorType, field: &str, strategy: Option<&Value>, error_text: &str) -> FieldError {
    let strategy = strategy.unwrap_or(&Value::Null);
    let rolling =
        strategy.get("rollingUpdate").filter(|rolling| rolling.is_object()).map_or("null".into(), |rolling| {
            let keys = [("Partition", "partition"), ("MaxUnavailable", "maxUnavailable"), ("MaxSurge", "maxSurge")];
            let known =
                |key: &str| if field == "spec.strategy" { key != "partition" } else { rolling.get(key).is_some() };
            let shown = keys.iter().filter(|(_, key)| known(key));
            let shown = shown.map(|(name, key)| (*name, rolling.get(*key).cloned().unwrap_or(Value::Null)));
            go_struct(&shown.collect::<Vec<_>>())
        });
    let detail =
        format!("{{\"Type\":{},\"RollingUpdate\":{rolling}}}: {error_text}", Value::from(text(strategy, "type")));
    FieldError { ty, field: field.into(), value: None, detail }
}

pub(super) fn matches_template(spec: &Value, selector: &Value) -> Option<FieldError> {
    let labels = get(spec, "template.metadata.labels");
    if meta::selector_matches(Some(selector), labels) {
        return None;
    }
    let labels = labels.cloned().unwrap_or(Value::Null);
    let error_text = "`selector` does not match template `labels`";
    Some(FieldError::invalid("spec.template.metadata.labels", labels, error_text))
}

/// Pods of a set that is kept at its size run for ever.
fn for_ever(spec: &Value, kind: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let policy = text(spec, "template.spec.restartPolicy");
    if policy != "Always" {
        errors.push(FieldError::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if get(spec, "template.spec.activeDeadlineSeconds").is_some() {
        let error_text = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(FieldError::forbidden("spec.template.spec.activeDeadlineSeconds", error_text));
    }
    errors
}

fn deployment(spec: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = non_negative(spec, "replicas", "spec.").into_iter().collect();
    errors.extend(selector(spec, "deployment", true));
    errors.extend(pod::template(spec.get("template"), "spec.template"));
    errors.extend(for_ever(spec, "ReplicaSet"));
    errors.extend(deployment_strategy(spec));
    errors.extend(non_negative(spec, "minReadySeconds", "spec."));
    errors.extend(non_negative(spec, "revisionHistoryLimit", "spec."));
    errors.extend(non_negative(spec, "progressDeadlineSeconds", "spec."));
    if let Some(deadline) = int(spec, "progressDeadlineSeconds")
        && deadline <= int(spec, "minReadySeconds").unwrap_or(0)
    {
        let error_text = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid("spec.progressDeadlineSeconds", deadline, error_text));
    }
    errors
}

fn deployment_strategy(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = "spec.strategy";
    match text(spec, "strategy.type") {
        "Recreate" => {
            if get(spec, "strategy.rollingUpdate").is_some() {
                let error_text = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(FieldError::forbidden(format!("{path}.rollingUpdate"), error_text));
            }
        }
        "RollingUpdate" => {
            let Some(rolling) = get(spec, "strategy.rollingUpdate") else {
                let error_text = "this should be defaulted and never be nil";
                errors.push(FieldError::required(format!("{path}.rollingUpdate"), error_text));
                return errors;
            };
            let at = format!("{path}.rollingUpdate");
            errors.extend(share(rolling, "maxUnavailable", &at));
            errors.extend(share(rolling, "maxSurge", &at));
            if share_value(rolling, "maxUnavailable") == 0 && share_value(rolling, "maxSurge") == 0 {
                let value = get(rolling, "maxUnavailable").cloned().unwrap_or(json!(0));
                let error_text = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(format!("{at}.maxUnavailable"), value, error_text));
            }
            errors.extend(at_most_all(rolling, "maxUnavailable", &at));
        }
        _ => {
            let error_text = "supported values: \"Recreate\", \"RollingUpdate\"";
            errors.push(strategy_error(ErrorType::NotSupported, path, spec.get("strategy"), error_text));
        }
    }
    errors
}

/// Checks a number or a percentage.
pub(super) fn share(holder: &Value, key: &str, path: &str) -> Vec<FieldError> {
    let field = format!("{path}.{key}");
    match get(holder, key) {
        Some(Value::String(text)) => names::percent(text)
            .into_iter()
            .map(|error_text| FieldError::invalid(&field, text.as_str(), error_text))
            .collect(),
        Some(Value::Number(_)) => non_negative(holder, key, &format!("{path}.")).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn percent_of(value: Option<&Value>) -> Option<i64> {
    value?.as_str()?.strip_suffix('%')?.parse().ok()
}

fn share_value(holder: &Value, key: &str) -> i64 {
    let value = get(holder, key);
    percent_of(value).or_else(|| value.and_then(Value::as_i64)).unwrap_or(0)
}

pub(super) fn at_most_all(holder: &Value, key: &str, path: &str) -> Option<FieldError> {
    let value = get(holder, key);
    percent_of(value).filter(|percent| *percent > 100)?;
    let error_text = "must not be greater than 100%";
    Some(FieldError::invalid(format!("{path}.{key}"), value.cloned().unwrap_or(Value::Null), error_text))
}

fn replica_set(spec: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = non_negative(spec, "replicas", "spec.").into_iter().collect();
    errors.extend(non_negative(spec, "minReadySeconds", "spec."));
    errors.extend(selector(spec, "deployment", true));
    errors.extend(pod::template(spec.get("template"), "spec.template"));
    errors.extend(for_ever(spec, "ReplicaSet"));
    errors
}

fn replication_controller(spec: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = non_negative(spec, "minReadySeconds", "spec.").into_iter().collect();
    if is_empty(spec.get("selector")) {
        errors.push(FieldError::required("spec.selector", ""));
    } else {
        let whole = json!({"matchLabels": spec.get("selector")});
        errors.extend(matches_template(spec, &whole));
    }
    errors.extend(non_negative(spec, "replicas", "spec."));
    errors.extend(pod::template(spec.get("template"), "spec.template"));
    errors.extend(for_ever(spec, "ReplicationController"));
    errors
}

fn stateful_set(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let management = text(spec, "podManagementPolicy");
    if !matches!(management, "OrderedReady" | "Parallel") {
        let error_text = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid("spec.podManagementPolicy", management, error_text));
    }
    let path = "spec.updateStrategy";
    let rolling = get(spec, "updateStrategy.rollingUpdate");
    match text(spec, "updateStrategy.type") {
        "" => errors.push(FieldError::required(path, "")),
        "OnDelete" => errors.extend(rolling.map(|rolling| {
            let error_text = "only allowed for updateStrategy 'RollingUpdate'";
            FieldError::invalid(format!("{path}.rollingUpdate"), rolling.clone(), error_text)
        })),
        "RollingUpdate" => {
            if let Some(rolling) = rolling {
                let at = format!("{path}.rollingUpdate");
                errors.extend(non_negative(rolling, "partition", &format!("{at}.")));
                errors.extend(share(rolling, "maxUnavailable", &at));
                if let Some(value) = get(rolling, "maxUnavailable")
                    && share_value(rolling, "maxUnavailable") == 0
                {
                    let field = format!("{at}.maxUnavailable");
                    errors.push(FieldError::invalid(field, value.clone(), "cannot be 0"));
                }
                errors.extend(at_most_all(rolling, "maxUnavailable", &at));
            }
        }
        _ => {
            let error_text = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(strategy_error(ErrorType::Invalid, path, spec.get("updateStrategy"), error_text));
        }
    }
    for key in ["whenDeleted", "whenScaled"] {
        let policy = text(spec, &format!("persistentVolumeClaimRetentionPolicy.{key}"));
        if !policy.is_empty() && !matches!(policy, "Retain" | "Delete") {
            let field = format!("spec.persistentVolumeClaimRetentionPolicy.{key}");
            errors.push(FieldError::not_supported(field, policy, &["Retain", "Delete"]));
        }
    }
    for (index, claim) in list(spec, "volumeClaimTemplates").iter().enumerate() {
        let at = format!("spec.volumeClaimTemplates[{index}].spec");
        errors.extend(storage::claim_spec(claim.get("spec").unwrap_or(&Value::Null), &at));
    }
    errors.extend(non_negative(spec, "replicas", "spec."));
    errors.extend(non_negative(spec, "minReadySeconds", "spec."));
    errors.extend(non_negative(spec, "ordinals.start", "spec."));
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        errors.extend(invalid_each("spec.serviceName", service, names::dns_label(service)));
    }
    errors.extend(selector(spec, "statefulset", true));
    errors.extend(pod::template(Some(&with_claims(spec)), "spec.template"));
    errors.extend(for_ever(spec, "StatefulSet"));
    errors
}

/// The template with the volumes that the claim templates will add, so that containers can mount them.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec.get("template").cloned().unwrap_or(Value::Null);
    let claims = list(spec, "volumeClaimTemplates").iter().map(|claim| text(claim, "metadata.name"));
    let claimed: Vec<&str> = claims.collect();
    if let Some(spec) = template.get_mut("spec") {
        let mut volumes: Vec<Value> =
            claimed.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})).collect();
        let own = list(spec, "volumes").iter().filter(|volume| !claimed.contains(&text(volume, "name")));
        volumes.extend(own.cloned());
        crate::access::set(spec, "volumes", volumes);
        crate::access::remove(spec, "hostname");
        crate::access::remove(spec, "subdomain");
    }
    template
}

fn daemon_set(spec: &Value) -> Vec<FieldError> {
    let mut errors = selector(spec, "daemonset", false);
    errors.extend(pod::template(spec.get("template"), "spec.template"));
    errors.extend(for_ever(spec, "DaemonSet"));
    errors.extend(non_negative(spec, "minReadySeconds", "spec."));
    let path = "spec.updateStrategy";
    match text(spec, "updateStrategy.type") {
        "OnDelete" => {}
        "RollingUpdate" => match get(spec, "updateStrategy.rollingUpdate") {
            None => errors.push(FieldError::required(format!("{path}.rollingUpdate"), "")),
            Some(rolling) => errors.extend(daemon_rolling(rolling, &format!("{path}.rollingUpdate"))),
        },
        _ => {
            let error_text = "supported values: \"RollingUpdate\", \"OnDelete\"";
            errors.push(strategy_error(ErrorType::NotSupported, path, spec.get("updateStrategy"), error_text));
        }
    }
    errors.extend(non_negative(spec, "revisionHistoryLimit", "spec."));
    errors
}

fn daemon_rolling(rolling: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = share(rolling, "maxUnavailable", path);
    errors.extend(share(rolling, "maxSurge", path));
    errors.extend(at_most_all(rolling, "maxUnavailable", path));
    errors.extend(at_most_all(rolling, "maxSurge", path));
    match (share_value(rolling, "maxUnavailable") != 0, share_value(rolling, "maxSurge") != 0) {
        (true, true) => {
            let surge = get(rolling, "maxSurge").cloned().unwrap_or(Value::Null);
            let error_text = "may not be set when maxUnavailable is non-zero";
            errors.push(FieldError::invalid(format!("{path}.maxSurge"), surge, error_text));
        }
        (false, false) => {
            let error_text = "cannot be 0 when maxSurge is 0";
            errors.push(FieldError::required(format!("{path}.maxUnavailable"), error_text));
        }
        _ => {}
    }
    errors
}

/// The immutable fields of a workload.
pub(super) fn update(kind: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    let fields: &[&str] = match kind {
        "Deployment" | "ReplicaSet" | "DaemonSet" => &["spec.selector"],
        "StatefulSet" => {
            &["spec.selector", "spec.volumeClaimTemplates", "spec.serviceName", "spec.podManagementPolicy"]
        }
        "ControllerRevision" => &["data"],
        "Job" => return job::job_update(new, old),
        _ => &[],
    };
    fields.iter().filter_map(|field| immutable(new, old, field)).collect()
}

/// The rules for a workload's status.
pub(super) fn status(kind: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let numbers = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "currentReplicas",
        "fullyLabeledReplicas",
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "active",
        "succeeded",
        "failed",
    ];
    for key in numbers {
        errors.extend(non_negative(new, &format!("status.{key}"), ""));
    }
    let number = |key: &str| int(new, &format!("status.{key}")).unwrap_or(0);
    if matches!(kind, "Deployment" | "ReplicaSet" | "StatefulSet") {
        let parts: &[&str] = match kind {
            "Deployment" => &["updatedReplicas", "readyReplicas", "availableReplicas"],
            "ReplicaSet" => &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
            _ => &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        };
        for key in parts {
            if number(key) > number("replicas") {
                let error_text = "cannot be greater than status.replicas";
                errors.push(FieldError::invalid(format!("status.{key}"), number(key), error_text));
            }
        }
        if number("availableReplicas") > number("readyReplicas") {
            let error_text = if kind == "StatefulSet" {
                "cannot be greater than status.readyReplicas"
            } else {
                "cannot be greater than readyReplicas"
            };
            errors.push(FieldError::invalid("status.availableReplicas", number("availableReplicas"), error_text));
        }
        if number("collisionCount") < int(old, "status.collisionCount").unwrap_or(0) {
            errors.push(FieldError::invalid(
                "status.collisionCount",
                number("collisionCount"),
                "cannot be decremented",
            ));
        }
    }
    errors
}
