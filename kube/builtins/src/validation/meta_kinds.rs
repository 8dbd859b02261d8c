//! Events, leases, disruption budgets, priority classes and certificate signing requests.

use base64::Engine as _;
use fleetwright_schema::{ErrorType, FieldError};
use serde_json::Value;

use crate::access::{about_struct, flag, get, int, invalid_each, list, text, too_long};
use crate::meta;
use crate::names;
use crate::validation::workload::{at_most_all, share};
use crate::validation::{immutable, immutable_at};

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(super) fn disruption_budget(budget: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = budget.get("spec").unwrap_or(&Value::Null);
    if get(spec, "minAvailable").is_some() && get(spec, "maxUnavailable").is_some() {
        let error_text = "minAvailable and maxUnavailable cannot be both set";
        let keys = [
            ("MinAvailable", "minAvailable"),
            ("Selector", "selector"),
            ("MaxUnavailable", "maxUnavailable"),
            ("UnhealthyPodEvictionPolicy", "unhealthyPodEvictionPolicy"),
        ];
        let shown = keys.map(|(go, key)| (go, get(spec, key).cloned().unwrap_or(Value::Null)));
        errors.push(about_struct(ErrorType::Invalid, "spec", &shown, error_text));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        errors.extend(share(spec, key, "spec"));
        errors.extend(at_most_all(spec, key, "spec"));
    }
    if let Some(selector) = get(spec, "selector") {
        errors.extend(meta::validate_selector(selector, "spec.selector"));
    }
    let policy = text(spec, "unhealthyPodEvictionPolicy");
    let allowed = ["AlwaysAllow", "IfHealthyBudget"];
    if !policy.is_empty() && !allowed.contains(&policy) {
        errors.push(FieldError::not_supported("spec.unhealthyPodEvictionPolicy", policy, &allowed));
    }
    errors
}

pub(super) fn lease(lease: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(seconds) = int(lease, "spec.leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(count) = int(lease, "spec.leaseTransitions").filter(|count| *count < 0) {
        let error_text = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", count, error_text));
    }
    let strategy = text(lease, "spec.strategy");
    if !strategy.is_empty() && !strategy.contains('/') && strategy != "OldestEmulationVersion" {
        errors.push(FieldError::not_supported("spec.strategy", strategy, &["OldestEmulationVersion"]));
    }
    if !text(lease, "spec.preferredHolder").is_empty() && strategy.is_empty() {
        let error_text = "may only be specified if `strategy` is defined";
        errors.push(FieldError::forbidden("spec.preferredHolder", error_text));
    }
    errors
}

pub(super) fn priority_class(class: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (name, value) = (text(class, "metadata.name"), int(class, "value").unwrap_or(0));
    if name.starts_with("system-") {
        let known = match name {
            "system-node-critical" => Some(2_000_001_000),
            "system-cluster-critical" => Some(2_000_000_000),
            _ => None,
        };
        let wrong = match known {
            None => Some(format!("{name} is not a known system priority class")),
            Some(known) if known != value => Some(format!("value of {name} PriorityClass must be {known}")),
            Some(_) if flag(class, "globalDefault") => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        errors.extend(wrong.map(|wrong| {
            let error_text = "priority class names with 'system-' prefix are reserved for system use only. error: ";
            FieldError::forbidden("metadata.name", format!("{error_text}{wrong}"))
        }));
    } else if value > 1_000_000_000 {
        let error_text = "maximum allowed value of a user defined priority is 1000000000";
        errors.push(FieldError::forbidden("value", error_text));
    }
    let policy = text(class, "preemptionPolicy");
    let allowed = ["PreemptLowerPriority", "Never"];
    if !policy.is_empty() && !allowed.contains(&policy) {
        errors.push(FieldError::not_supported("preemptionPolicy", policy, &allowed));
    }
    errors
}

pub(super) fn priority_class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if int(new, "value").unwrap_or(0) != int(old, "value").unwrap_or(0) {
        errors.push(FieldError::forbidden("value", "may not be changed in an update."));
    }
    errors.extend(immutable(new, old, "preemptionPolicy"));
    errors
}

/// A field of an event, whichever of the two groups names it.
fn event_field<'a>(event: &'a Value, core: &str, newer: &str) -> Option<&'a Value> {
    get(event, core).or_else(|| get(event, newer))
}

pub(super) fn event(group: &str, event: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let word = |core: &str, newer: &str| event_field(event, core, newer).and_then(Value::as_str).unwrap_or_default();
    let about = word("involvedObject.namespace", "regarding.namespace");
    let namespace = text(event, "metadata.namespace");
    let strange = FieldError::invalid("involvedObject.namespace", about, "does not match event.namespace");
    let timed = get(event, "eventTime").is_some();
    if !timed {
        let fits = if about.is_empty() { matches!(namespace, "" | "default") } else { about == namespace };
        if !fits {
            errors.push(strange);
        }
    } else {
        if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
            errors.push(strange);
        }
        let reporter = word("reportingComponent", "reportingController");
        let field = if group.is_empty() { "reportingComponent" } else { "reportingController" };
        if reporter.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
        errors.extend(invalid_each(field, reporter, names::qualified_name(reporter)));
        for key in ["reportingInstance", "action", "reason"] {
            let value = text(event, key);
            if value.is_empty() {
                errors.push(FieldError::required(key, ""));
            }
            if value.len() > 128 {
                errors.push(FieldError::invalid(key, "", "can have at most 128 characters"));
            }
        }
        if word("message", "note").len() > 1024 {
            errors.push(FieldError::invalid("message", "", "can have at most 1024 characters"));
        }
    }
    if !group.is_empty() {
        errors.extend(newer_event(event, timed));
    }
    errors
}

fn newer_event(event: &Value, timed: bool) -> Vec<FieldError> {
    let mut errors = series(event);
    if !timed {
        errors.push(FieldError::required("eventTime", ""));
    }
    let ty = text(event, "type");
    if !matches!(ty, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", format!("has invalid value: {ty}")));
    }
    let unset = [
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("count", "deprecatedCount"),
    ];
    for (core, newer) in unset {
        if event_field(event, core, newer).is_some_and(|value| value.as_i64() != Some(0)) {
            errors.push(FieldError::invalid(core, "", "needs to be unset"));
        }
    }
    let source = event_field(event, "source", "deprecatedSource");
    if source.is_some_and(|source| !text(source, "component").is_empty() || !text(source, "host").is_empty()) {
        errors.push(FieldError::invalid("source", "", "needs to be unset"));
    }
    errors
}

fn series(event: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(series) = get(event, "series") else { return errors };
    if int(series, "count").unwrap_or(0) < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if get(series, "lastObservedTime").is_none() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
    errors
}

pub(super) fn event_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if get(new, "series") != get(old, "series") {
        errors.extend(series(new));
    }
    let fields = [
        ("involvedObject", "regarding"),
        ("reason", "reason"),
        ("message", "note"),
        ("source", "deprecatedSource"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("count", "deprecatedCount"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (shown, path) in fields {
        let path = if get(old, path).is_none() && get(old, shown).is_some() { shown } else { path };
        errors.extend(immutable_at(new, old, path, shown));
    }
    errors
}

pub(super) fn csr(request: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let encoded = text(request, "spec.request");
    if let Some(error_text) = request_error(encoded) {
        let shown = get(request, "spec.request").cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid("spec.request", shown, error_text));
    }
    let usages: Vec<&str> = list(request, "spec.usages").iter().filter_map(Value::as_str).collect();
    if usages.is_empty() {
        errors.push(FieldError::required("spec.usages", ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        let field = format!("spec.usages[{index}]");
        if !USAGES.contains(usage) {
            errors.push(FieldError::not_supported(field.clone(), *usage, &USAGES));
        }
        if usages.iter().take(index).any(|before| before == usage) {
            errors.push(FieldError::duplicate(field, *usage));
        }
    }
    let signer = text(request, "spec.signerName");
    if signer == "kubernetes.io/legacy-unknown" {
        let error_text = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid("spec.signerName", signer, error_text));
    } else {
        errors.extend(signer_name(signer));
    }
    if let Some(seconds) = int(request, "spec.expirationSeconds").filter(|seconds| *seconds < 600) {
        let error_text = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid("spec.expirationSeconds", seconds, error_text));
    }
    errors.extend(csr_conditions(request));
    errors
}

/// The errors of a request's PEM block. The signer checks its signature.
fn request_error(encoded: &str) -> Option<&'static str> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
    let pem = String::from_utf8_lossy(&bytes);
    let begin = "-----BEGIN CERTIFICATE REQUEST-----";
    let error_text = "PEM block type must be CERTIFICATE REQUEST";
    let Some(body) = pem.split_once(begin).and_then(|(_, rest)| rest.split_once("-----END CERTIFICATE REQUEST-----"))
    else {
        return Some(error_text);
    };
    let der: String = body.0.split_whitespace().collect();
    match base64::engine::general_purpose::STANDARD.decode(der) {
        Err(_) => Some(error_text),
        // A request is an ASN.1 sequence.
        Ok(der) if der.first() != Some(&0x30) => Some("asn1: structure error: tags don't match"),
        Ok(_) => None,
    }
}

fn signer_name(signer: &str) -> Vec<FieldError> {
    let path = "spec.signerName";
    if signer.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let segments: Vec<&str> = signer.split('/').collect();
    let [domain, name] = segments.as_slice() else {
        let error_text = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return vec![FieldError::invalid(path, signer, error_text)];
    };
    let mut errors = Vec::new();
    if domain.len() > 253 {
        errors.push(too_long(path, 253));
    }
    let labels: Vec<&str> = domain.split('.').collect();
    for label in &labels {
        let wrong = names::dns_label(label);
        if !wrong.is_empty() {
            let each = wrong.into_iter().map(|error_text| format!("validating label {label:?}: {error_text}"));
            errors.extend(each.map(|error_text| FieldError::invalid(path, *domain, error_text)));
            break;
        }
    }
    if labels.len() < 2 {
        let error_text = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, *domain, error_text));
    }
    if name.len() > 316 {
        errors.push(too_long(path, 316));
    }
    errors.extend(invalid_each(path, name, names::dns_subdomain(name)));
    errors
}

fn csr_conditions(request: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = "status.conditions";
    let conditions = list(request, path);
    let has = |ty: &str| conditions.iter().any(|condition| text(condition, "type") == ty);
    let mut seen = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (ty, status) = (text(condition, "type"), text(condition, "status"));
        if ty.is_empty() {
            errors.push(FieldError::required(format!("{path}[{index}].type"), ""));
        }
        let allowed: &[&str] = match ty {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        let field = format!("{path}[{index}].status");
        if status.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if !allowed.contains(&status) {
            errors.push(FieldError::not_supported(field, status, allowed));
        }
        if seen.contains(&ty) {
            errors.push(FieldError::duplicate(format!("{path}[{index}].type"), ty));
        }
        seen.push(ty);
    }
    if has("Approved") && has("Denied") {
        let [approved, denied] = ["Approved", "Denied"].map(|ty| format!("conditions[{{\"type\": \"{ty}\"}}]"));
        let error_text = format!("must specify at most one of: `{approved}`, `{denied}`");
        errors.push(FieldError::invalid(path, format!("{{{approved}, {denied}}}"), error_text));
    }
    errors
}

/// Checks an update of a request by itself, of its approval or of its status.
pub(super) fn csr_update(new: &Value, old: &Value, subresource: Option<&str>) -> Vec<FieldError> {
    let mut errors = if subresource.is_some() { csr(new) } else { Vec::new() };
    let path = "status.conditions";
    let of = |request: &Value, ty: &str| {
        let all = list(request, path).iter();
        all.filter(|condition| text(condition, "type") == ty).cloned().collect::<Vec<_>>()
    };
    for ty in ["Approved", "Denied", "Failed"] {
        if of(new, ty).len() < of(old, ty).len() {
            let error_text = format!("updates may not remove a condition of type {ty:?}");
            errors.push(FieldError::forbidden(path, error_text));
        }
    }
    if subresource != Some("approval") {
        for ty in ["Approved", "Denied"] {
            let (now, was) = (of(new, ty), of(old, ty));
            if now.len() > was.len() {
                let error_text = format!("updates may not add a condition of type {ty:?}");
                errors.push(FieldError::forbidden(path, error_text));
            } else if now.len() == was.len() && now != was {
                let error_text = format!("updates may not modify a condition of type {ty:?}\n");
                errors.push(FieldError::forbidden(path, error_text));
            }
        }
    }
    let (now, was) = (text(new, "status.certificate"), text(old, "status.certificate"));
    if now != was {
        if subresource != Some("status") {
            let error_text = "updates may not set certificate content";
            errors.push(FieldError::forbidden("status.certificate", error_text));
        } else if !was.is_empty() {
            let error_text = "updates may not modify existing certificate content";
            errors.push(FieldError::forbidden("status.certificate", error_text));
        } else {
            errors.extend(
                certificate_error(now)
                    .map(|error_text| FieldError::invalid("status.certificate", "<certificate data>", error_text)),
            );
        }
    }
    errors
}

fn certificate_error(encoded: &str) -> Option<String> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
    let pem = String::from_utf8_lossy(&bytes);
    let mut found = 0;
    for block in pem.split("-----BEGIN ").skip(1) {
        let kind = block.split("-----").next().unwrap_or_default();
        if kind != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {kind:?}"));
        }
        found += 1;
    }
    (found == 0).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}
