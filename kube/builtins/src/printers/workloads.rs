//! The kinds that create pods: deployments, sets, jobs and their histories.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{
    age, condition, containers, human_duration, is_deleting, labels, name, none_if_empty, selector, since, text_or,
    time,
};
use crate::access::{flag, get, int, list, text};

const TEMPLATE: &str = "spec.template.spec.containers";

fn count(object: &Value, path: &str) -> Value {
    int(object, path).unwrap_or(0).into()
}

fn ready(object: &Value) -> Value {
    let number = |path: &str| int(object, path).unwrap_or(0);
    format!("{}/{}", number("status.readyReplicas"), number("spec.replicas")).into()
}

pub(super) fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    let selected = match selector(object, "spec.selector") {
        wrong if wrong == "<error>" => "<invalid>".into(),
        selected => selected,
    };
    vec![
        name(object),
        ready(object),
        count(object, "status.updatedReplicas"),
        count(object, "status.availableReplicas"),
        age(object, now),
        names,
        images,
        selected.into(),
    ]
}

pub(super) fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        count(object, "spec.replicas"),
        count(object, "status.replicas"),
        count(object, "status.readyReplicas"),
        age(object, now),
        names,
        images,
        none_if_empty(selector(object, "spec.selector")).into(),
    ]
}

pub(super) fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![name(object), ready(object), age(object, now), names, images]
}

pub(super) fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        count(object, "status.desiredNumberScheduled"),
        count(object, "status.currentNumberScheduled"),
        count(object, "status.numberReady"),
        count(object, "status.updatedNumberScheduled"),
        count(object, "status.numberAvailable"),
        labels(object, "spec.template.spec.nodeSelector").into(),
        age(object, now),
        names,
        images,
        none_if_empty(selector(object, "spec.selector")).into(),
    ]
}

pub(super) fn controller_revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let controller = list(object, "metadata.ownerReferences").iter().find(|owner| flag(owner, "controller"));
    let controller = controller.map_or("<none>".to_owned(), |owner| {
        let (kind, name) = (text(owner, "kind").to_lowercase(), text(owner, "name"));
        match text(owner, "apiVersion").split_once('/') {
            Some((group, _)) => format!("{kind}.{}/{name}", group.to_lowercase()),
            None => format!("{kind}/{name}"),
        }
    });
    vec![name(object), controller.into(), count(object, "revision"), age(object, now)]
}

pub(super) fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let succeeded = int(object, "status.succeeded").unwrap_or(0);
    let completions = match (int(object, "spec.completions"), int(object, "spec.parallelism").unwrap_or(0)) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, 2..) => format!("{succeeded}/1 of {}", int(object, "spec.parallelism").unwrap_or(0)),
        (None, _) => format!("{succeeded}/1"),
    };
    let duration = time(object, "status.startTime").map(|start| {
        let end = time(object, "status.completionTime").unwrap_or(now);
        human_duration(end.duration_since(start).as_secs())
    });
    let states = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
    let status = if condition(object, "Complete") {
        "Complete"
    } else if condition(object, "Failed") {
        "Failed"
    } else if is_deleting(object) {
        "Terminating"
    } else {
        states.into_iter().find(|state| condition(object, state)).unwrap_or("Running")
    };
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        status.into(),
        completions.into(),
        duration.unwrap_or_default().into(),
        age(object, now),
        names,
        images,
        none_if_empty(selector(object, "spec.selector")).into(),
    ]
}

pub(super) fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let suspend = match get(object, "spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let last = get(object, "status.lastScheduleTime").map(|_| since(time(object, "status.lastScheduleTime"), now));
    let [names, images] = containers(object, "spec.jobTemplate.spec.template.spec.containers");
    vec![
        name(object),
        text(object, "spec.schedule").into(),
        text_or(object, "spec.timeZone", "<none>").into(),
        suspend.into(),
        list(object, "status.active").len().into(),
        last.unwrap_or("<none>".into()).into(),
        age(object, now),
        names,
        images,
        none_if_empty(selector(object, "spec.jobTemplate.spec.selector")).into(),
    ]
}

pub(super) fn scale(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), count(object, "spec.replicas"), count(object, "status.replicas"), age(object, now)]
}
