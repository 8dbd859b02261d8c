//! Health checks of the objects of an extension.

use fleetwright_api::ExtensionCheck;
use serde_json::Value;

/// Kind of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckTarget {
    /// All replicas with the present template are available.
    Deployment,
    /// Pods with the present template are available on all nodes where they should run.
    DaemonSet,
    /// All replicas with the present template are ready.
    StatefulSet,
    /// The Job has completed.
    Job,
    /// The APIService is available.
    ApiService,
}

impl CheckTarget {
    /// `kind` of the object.
    pub const fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment => ("apps/v1", "Deployment"),
            Self::DaemonSet => ("apps/v1", "DaemonSet"),
            Self::StatefulSet => ("apps/v1", "StatefulSet"),
            Self::Job => ("batch/v1", "Job"),
            Self::ApiService => ("apiregistration.k8s.io/v1", "APIService"),
        }
    }
}

/// The object of a check: kind, namespace and name.
pub fn subject(check: &ExtensionCheck) -> Option<(CheckTarget, Option<&str>, &str)> {
    let split = |text| match str::split_once(text, '/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let found = [
        (CheckTarget::Deployment, &check.deployment),
        (CheckTarget::DaemonSet, &check.daemon_set),
        (CheckTarget::StatefulSet, &check.stateful_set),
        (CheckTarget::Job, &check.job),
    ];
    let workload = found.into_iter().find_map(|(what, name)| Some((what, split(name.as_deref()?))));
    match (workload, &check.api_service) {
        (Some((what, (namespace, name))), _) => Some((what, namespace, name)),
        (None, Some(name)) => Some((CheckTarget::ApiService, None, name)),
        (None, None) => None,
    }
}

/// Why the object does not work; `None` if it works.
pub fn health_problem(what: CheckTarget, name: &str, object: Option<&Value>) -> Option<String> {
    let kind = what.kind().1;
    let Some(object) = object else { return Some(format!("{kind} {name} does not exist")) };
    let status = &object["status"];
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let held = |type_: &str| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.find(|one| one["type"] == type_ && one["status"] == "True")
    };
    let counted = |all: i64, fields: &[&str], word: &str| {
        let few = fields.iter().map(|field| number(&status[*field])).min().unwrap_or_default();
        (few < all).then(|| format!("{kind} {name}: {few} of {all} {word}"))
    };
    let seen = number(&status["observedGeneration"]) >= number(&object["metadata"]["generation"]);
    let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
    match what {
        CheckTarget::Deployment | CheckTarget::DaemonSet | CheckTarget::StatefulSet if !seen => {
            Some(format!("{kind} {name} is not observed by its controller yet"))
        }
        CheckTarget::Deployment => {
            counted(replicas, &["updatedReplicas", "availableReplicas"], "replicas are available")
        }
        CheckTarget::DaemonSet => counted(
            number(&status["desiredNumberScheduled"]),
            &["updatedNumberScheduled", "numberAvailable"],
            "pods are available",
        ),
        CheckTarget::StatefulSet => counted(replicas, &["updatedReplicas", "readyReplicas"], "replicas are ready"),
        CheckTarget::Job => match (held("Complete"), held("Failed")) {
            (Some(_), _) => None,
            (None, Some(failed)) => {
                Some(format!("{kind} {name} failed: {}", failed["message"].as_str().unwrap_or_default()))
            }
            (None, None) => Some(format!("{kind} {name} has not completed")),
        },
        CheckTarget::ApiService => match held("Available") {
            Some(_) => None,
            None => Some(format!("{kind} {name} is not available")),
        },
    }
}
