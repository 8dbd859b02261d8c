//! Jobs and cron jobs.

use fleetwright_schema::FieldError;
use serde_json::{Value, json};

use crate::access::{flag, get, int, list, text, too_many};
use crate::meta;
use crate::validation::workload::matches_template;
use crate::validation::{cron, immutable, immutable_at, non_negative, pod};

pub(super) fn job(job: &Value, spec: &Value, is_new: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if is_new {
        errors.extend(generated_selector(job));
    }
    errors.extend(job_spec(spec, "spec"));
    match get(spec, "selector") {
        None => {
            errors.push(FieldError::required("spec.selector", ""));
            errors.extend(matches_template(spec, &Value::Null));
        }
        Some(selector) => {
            let wrong = meta::validate_selector(selector, "spec.selector");
            if wrong.is_empty() {
                errors.extend(matches_template(spec, selector));
            }
            errors.extend(wrong);
        }
    }
    errors
}

fn generated_selector(job: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if flag(job, "spec.manualSelector") {
        return errors;
    }
    let (name, uid) = (text(job, "metadata.name"), text(job, "metadata.uid"));
    let path = "spec.template.metadata.labels";
    let expected = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    for (key, value) in expected {
        let found = get(job, path).and_then(|labels| labels.get(key)).and_then(Value::as_str);
        if found != Some(value) {
            let labels = get(job, path).cloned().unwrap_or(Value::Null);
            let error_text = format!("must be '{value}'");
            let field = format!("{path}[{key}]");
            errors.push(match found {
                None => FieldError::required(field, error_text),
                Some(_) => FieldError::invalid(field, labels, error_text),
            });
        }
    }
    let labels = json!({
        "controller-uid": uid, "job-name": name,
        "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
    });
    if let Some(selector) = get(job, "spec.selector")
        && !meta::selector_matches(Some(selector), Some(&labels))
    {
        errors.push(FieldError::invalid("spec.selector", selector.clone(), "`selector` not auto-generated"));
    }
    errors
}

fn job_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let numbers = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    for key in numbers {
        errors.extend(non_negative(spec, key, &format!("{path}.")));
    }
    if get(spec, "maxFailedIndexes").is_some() && get(spec, "backoffLimitPerIndex").is_none() {
        let error_text = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(format!("{path}.backoffLimitPerIndex"), error_text));
    }
    match text(spec, "completionMode") {
        "" | "NonIndexed" => {
            for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if let Some(number) = int(spec, key) {
                    let error_text = "requires indexed completion mode";
                    errors.push(FieldError::invalid(format!("{path}.{key}"), number, error_text));
                }
            }
        }
        "Indexed" => {
            if get(spec, "completions").is_none() {
                let error_text = "when completion mode is Indexed";
                errors.push(FieldError::required(format!("{path}.completions"), error_text));
            }
            if let Some(number) = int(spec, "parallelism").filter(|number| *number > 100_000) {
                let error_text = "must be less than or equal to 100000 when completion mode is Indexed";
                errors.push(FieldError::invalid(format!("{path}.parallelism"), number, error_text));
            }
        }
        other => {
            let field = format!("{path}.completionMode");
            errors.push(FieldError::not_supported(field, other, &["NonIndexed", "Indexed"]));
        }
    }
    errors.extend(failure_policy(spec, path));
    let replacement = text(spec, "podReplacementPolicy");
    if !replacement.is_empty() {
        let allowed: &[&str] =
            if get(spec, "podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
        if !allowed.contains(&replacement) {
            let field = format!("{path}.podReplacementPolicy");
            errors.push(FieldError::not_supported(field, replacement, allowed));
        }
    }
    errors.extend(pod::template(spec.get("template"), &format!("{path}.template")));
    let field = format!("{path}.template.spec.restartPolicy");
    match text(spec, "template.spec.restartPolicy") {
        "" | "Always" => {
            errors.push(FieldError::required(field, "valid values: \"OnFailure\", \"Never\""));
        }
        policy @ "OnFailure" if get(spec, "podFailurePolicy").is_some() => {
            let error_text = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid(field, policy, error_text));
        }
        "OnFailure" | "Never" => {}
        other => errors.push(FieldError::not_supported(field, other, &["OnFailure", "Never"])),
    }
    errors
}

fn failure_policy(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rules = list(spec, "podFailurePolicy.rules");
    let at = format!("{path}.podFailurePolicy.rules");
    if rules.len() > 20 {
        errors.push(too_many(at.clone(), rules.len(), 20));
    }
    let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
    for (index, rule) in rules.iter().enumerate() {
        let action = text(rule, "action");
        let field = format!("{at}[{index}].action");
        if action.is_empty() {
            let error_text = format!("valid values: {:?}", actions).replace(", ", " ");
            errors.push(FieldError::required(field, error_text));
        } else if action == "FailIndex" && get(spec, "backoffLimitPerIndex").is_none() {
            errors.push(FieldError::invalid(field, action, "requires the backoffLimitPerIndex to be set"));
        } else if !actions.contains(&action) {
            errors.push(FieldError::not_supported(field, action, &actions));
        }
    }
    errors
}

pub(super) fn cron_job(object: &Value, spec: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        errors.push(FieldError::required("spec.schedule", ""));
    } else {
        if let Err(error_text) = cron::parse(schedule) {
            errors.push(FieldError::invalid("spec.schedule", schedule, error_text));
        }
        let had_zone = old.is_some_and(|old| text(old, "spec.schedule").contains("TZ"));
        if schedule.contains("TZ") {
            if !had_zone {
                let error_text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                errors.push(FieldError::invalid("spec.schedule", schedule, error_text));
            } else if get(spec, "timeZone").is_some() {
                let error_text = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                errors.push(FieldError::invalid("spec.schedule", schedule, error_text));
            }
        }
    }
    errors.extend(non_negative(spec, "startingDeadlineSeconds", "spec."));
    errors.extend(time_zone(spec));
    let policy = text(spec, "concurrencyPolicy");
    let allowed = ["Allow", "Forbid", "Replace"];
    if !allowed.contains(&policy) {
        errors.push(FieldError::not_supported("spec.concurrencyPolicy", policy, &allowed));
    }
    let empty = json!({});
    errors.extend(job_spec(get(spec, "jobTemplate.spec").unwrap_or(&empty), "spec.jobTemplate.spec"));
    if let Some(selector) = get(spec, "jobTemplate.spec.selector") {
        let error_text = "`selector` will be auto-generated";
        errors.push(FieldError::invalid("spec.jobTemplate.spec.selector", selector.clone(), error_text));
    }
    if flag(spec, "jobTemplate.spec.manualSelector") {
        let field = "spec.jobTemplate.spec.manualSelector";
        errors.push(FieldError::not_supported(field, true, &["nil", "false"]));
    }
    errors.extend(non_negative(spec, "successfulJobsHistoryLimit", "spec."));
    errors.extend(non_negative(spec, "failedJobsHistoryLimit", "spec."));
    let name = text(object, "metadata.name");
    if old.is_none() && name.len() > 52 {
        errors.push(FieldError::invalid("metadata.name", name, "must be no more than 52 characters"));
    }
    errors
}

/// The names of the IANA time zone database, one a line.
const TIME_ZONES: &str = include_str!("time_zones.txt");

fn time_zone(spec: &Value) -> Option<FieldError> {
    let zone = get(spec, "timeZone")?.as_str()?;
    let error_text = if zone.is_empty() {
        "timeZone must be nil or non-empty string".to_owned()
    } else if zone.eq_ignore_ascii_case("local") {
        "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned()
    } else {
        if TIME_ZONES.lines().any(|known| known == zone) {
            return None;
        }
        format!("unknown time zone {zone}")
    };
    Some(FieldError::invalid("spec.timeZone", zone, error_text))
}

pub(super) fn job_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(new, "spec.completionMode") != "Indexed" {
        errors.extend(immutable(new, old, "spec.completions"));
    } else if get(new, "spec.completions") != get(old, "spec.completions")
        && int(new, "spec.completions") != int(new, "spec.parallelism")
    {
        let value = get(new, "spec.completions").cloned().unwrap_or(Value::Null);
        let error_text = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid("spec.completions", value, error_text));
    }
    errors.extend(immutable(new, old, "spec.selector"));
    errors.extend(job_template_update(new, old));
    let fields = ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"];
    errors.extend(fields.iter().filter_map(|key| immutable(new, old, &format!("spec.{key}"))));
    errors
}

/// The scheduling directives and resources of a suspended job that has not started may still change.
fn job_template_update(new: &Value, old: &Value) -> Option<FieldError> {
    let paused = flag(old, "spec.suspend") && get(old, "status.startTime").is_none();
    if !paused {
        return immutable(new, old, "spec.template");
    }
    let bare = |job: &Value| {
        let mut template = get(job, "spec.template").cloned().unwrap_or(Value::Null);
        for key in ["labels", "annotations"] {
            if let Some(meta) = template.get_mut("metadata") {
                crate::access::remove(meta, key);
            }
        }
        if let Some(spec) = template.get_mut("spec") {
            for key in ["nodeSelector", "tolerations", "schedulingGates", "affinity"] {
                crate::access::remove(spec, key);
            }
            for list in ["containers", "initContainers"] {
                for container in crate::access::items_mut(spec, list) {
                    crate::access::remove(container, "resources");
                }
            }
        }
        json!({"template": template})
    };
    immutable_at(&bare(new), &bare(old), "template", "spec.template")
}
