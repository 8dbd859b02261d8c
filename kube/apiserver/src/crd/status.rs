//! The status of a CustomResourceDefinition: its accepted names, and whether it is served.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use fleetwright_schema::text::quote;

use super::definition::storage_version;

/// The name conditions of a CRD in comparison with the other CRDs of its group.
struct Naming {
    accepted: Value,
    reason: &'static str,
    message: String,
}

/// The target status of a CRD, given the other CRDs; equal to the present status when nothing changes.
pub fn status<'a>(crd: &Value, others: impl Iterator<Item = &'a Value>, now: Timestamp) -> Value {
    let mut status = match &crd["status"] {
        Value::Object(status) => status.clone(),
        _ => Map::new(),
    };
    if crd["spec"]["names"] != crd["status"]["acceptedNames"] || condition(&status, "NamesAccepted").is_none() {
        let naming = accept(crd, others);
        let accepted = naming.reason == "NoConflicts";
        status.insert("acceptedNames".into(), naming.accepted);
        set_condition(&mut status, "NamesAccepted", accepted, naming.reason, &naming.message, now);
        let established = condition(&status, "Established").is_some_and(|found| found["status"] == "True");
        if !established && accepted {
            let message = "the initial names have been accepted";
            set_condition(&mut status, "Established", true, "InitialNamesAccepted", message, now);
        } else if condition(&status, "Established").is_none() {
            set_condition(&mut status, "Established", false, "NotAccepted", "not all names are accepted", now);
        }
    }
    if let Some((approved, reason, message)) = approval(crd) {
        set_condition(&mut status, "KubernetesAPIApprovalPolicyConformant", approved, reason, &message, now);
    }
    let mut stored = status.get("storedVersions").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(storage) = storage_version(crd)
        && !stored.iter().any(|version| version == storage)
    {
        stored.push(storage.into());
    }
    status.insert("storedVersions".into(), stored.into());
    Value::Object(status)
}

fn accept<'a>(crd: &Value, others: impl Iterator<Item = &'a Value>) -> Naming {
    let same_group = others.filter(|other| other["spec"]["group"] == crd["spec"]["group"]);
    let (mut resources, mut kinds) = (HashSet::new(), HashSet::new());
    for names in same_group.map(|other| &other["status"]["acceptedNames"]) {
        let shorts = names["shortNames"].as_array().into_iter().flatten();
        resources.extend([&names["plural"], &names["singular"]].into_iter().chain(shorts).filter_map(Value::as_str));
        kinds.extend([&names["kind"], &names["listKind"]].into_iter().filter_map(Value::as_str));
    }
    let (wanted, held) = (&crd["spec"]["names"], &crd["status"]["acceptedNames"]);
    let mut accepted = held.as_object().cloned().unwrap_or_default();
    let mut naming = Naming { accepted: Value::Null, reason: "NoConflicts", message: "no conflicts found".to_owned() };
    let fields = [
        ("plural", &resources, "PluralConflict"),
        ("singular", &resources, "SingularConflict"),
        ("shortNames", &resources, "ShortNamesConflict"),
        ("kind", &kinds, "KindConflict"),
        ("listKind", &kinds, "ListKindConflict"),
    ];
    for (field, used, reason) in fields {
        let conflicts = conflicts(&wanted[field], &held[field], used);
        if conflicts.is_empty() {
            match wanted.get(field) {
                Some(name) => accepted.insert(field.into(), name.clone()),
                None => accepted.remove(field),
            };
        } else {
            naming.reason = reason;
            let all: Vec<String> = conflicts.iter().map(|name| format!("{} is already in use", quote(name))).collect();
            naming.message = if all.len() == 1 { all.concat() } else { format!("[{}]", all.join(", ")) };
        }
    }
    match wanted.get("categories") {
        Some(categories) => accepted.insert("categories".into(), categories.clone()),
        None => accepted.remove("categories"),
    };
    // These two are always included, even while they are not accepted.
    for field in ["plural", "kind"] {
        accepted.entry(field).or_insert_with(|| "".into());
    }
    naming.accepted = Value::Object(accepted);
    naming
}

/// The wanted names (one, or a list) that are neither held already nor free.
fn conflicts<'a>(wanted: &'a Value, held: &Value, used: &HashSet<&str>) -> Vec<&'a str> {
    let is_held = |name: &str| match held {
        Value::Array(names) => names.iter().any(|held| held == name),
        held => held == name,
    };
    let names: Vec<&str> = match wanted {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().into_iter().collect(),
    };
    names.into_iter().filter(|name| used.contains(name) && !is_held(name)).collect()
}

/// Whether a CRD in a protected group of Kubernetes has an approval annotation.
fn approval(crd: &Value) -> Option<(bool, &'static str, String)> {
    let group = crd["spec"]["group"].as_str().unwrap_or("");
    if !super::validation::is_protected(group) {
        return None;
    }
    let annotation = crd["metadata"]["annotations"][super::validation::APPROVED].as_str().unwrap_or("");
    Some(match super::validation::approval(annotation) {
        super::validation::Approval::Missing(message) => (false, "MissingAnnotation", message),
        super::validation::Approval::Invalid(message) => (false, "InvalidAnnotation", message),
        super::validation::Approval::Bypassed(message) => (false, "UnapprovedAnnotation", message),
        super::validation::Approval::Approved(message) => (true, "ApprovedAnnotation", message),
    })
}

fn condition<'a>(status: &'a Map<String, Value>, ty: &str) -> Option<&'a Value> {
    status.get("conditions")?.as_array()?.iter().find(|condition| condition["type"] == ty)
}

/// Sets a condition; its time changes only with its status.
fn set_condition(status: &mut Map<String, Value>, ty: &str, is: bool, reason: &str, message: &str, now: Timestamp) {
    let word = if is { "True" } else { "False" };
    let since = match condition(status, ty) {
        Some(old) if old["status"] == word => old["lastTransitionTime"].clone(),
        _ => now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
    };
    let new = json!({"type": ty, "status": word, "lastTransitionTime": since, "reason": reason, "message": message});
    let conditions = status.entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    if let Some(conditions) = conditions.as_array_mut() {
        match conditions.iter_mut().find(|condition| condition["type"] == ty) {
            Some(old) => *old = new,
            None => conditions.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(plural: &str, kind: &str) -> Value {
        json!({"spec": {"group": "x.io", "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "storage": true}]}})
    }

    fn summary(status: &Value) -> Vec<String> {
        let conditions = status["conditions"].as_array().unwrap();
        conditions
            .iter()
            .map(|c| {
                format!(
                    "{}={} {}",
                    c["type"].as_str().unwrap(),
                    c["status"].as_str().unwrap(),
                    c["reason"].as_str().unwrap()
                )
            })
            .collect()
    }

    #[test]
    fn free_names_are_accepted_and_the_crd_is_established() {
        let status = status(&crd("things", "Thing"), [].iter(), Timestamp::UNIX_EPOCH);
        assert_eq!(summary(&status), ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]);
        assert_eq!(status["acceptedNames"]["plural"], "things");
        assert_eq!(status["storedVersions"], json!(["v1"]));
    }

    #[test]
    fn a_status_that_is_right_stays_as_it_is() {
        let mut crd = crd("things", "Thing");
        crd["status"] = status(&crd, [].iter(), Timestamp::UNIX_EPOCH);
        assert_eq!(status(&crd, [].iter(), Timestamp::now()), crd["status"]);
    }

    #[test]
    fn a_kind_that_another_crd_holds_is_a_conflict() {
        let mut first = crd("things", "Thing");
        first["status"] = status(&first, [].iter(), Timestamp::UNIX_EPOCH);
        let status = status(&crd("others", "Thing"), [first].iter(), Timestamp::UNIX_EPOCH);
        assert_eq!(summary(&status), ["NamesAccepted=False ListKindConflict", "Established=False NotAccepted"]);
        assert_eq!(status["conditions"][0]["message"], "\"ThingList\" is already in use");
        assert_eq!(status["acceptedNames"], json!({"plural": "others", "kind": ""}));
    }
}
