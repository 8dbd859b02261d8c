//! Validation by kind, with the API server's messages.
//!
//! Objects have been decoded, defaulted and prepared before; what the schema already guarantees is not checked again.

mod config;
mod container;
mod cron;
mod job;
mod meta_kinds;
mod network;
mod node;
mod pod;
mod rbac;
mod resources;
mod scheduling;
mod service;
mod storage;
mod volume;
mod workload;

use std::net::{IpAddr, Ipv4Addr};

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{get, int, list};
use crate::meta::{self, IMMUTABLE};
use crate::names::NameRule;
use crate::table::Kind;

pub use resources::validate_binding;

/// Checks a new object.
pub fn validate_create(kind: &Kind, new: &Value) -> Vec<FieldError> {
    // Unlike deployments and jobs, a stateful set gives its name to its pods' host names.
    let rule = match (kind.group, kind.kind) {
        ("apps", "StatefulSet") => NameRule::Label,
        _ => meta::name_rule(kind),
    };
    let mut errors = Vec::new();
    if kind.kind != "Event" || kind.group == "events.k8s.io" {
        errors = meta::validate_create(new, kind.namespaced, rule);
    }
    errors.extend(finalizers(kind, new));
    errors.extend(content(kind.group, kind.kind, new, None));
    errors
}

/// Finalizers of built-in objects are qualified, or Kubernetes' own. Leases never were held to it.
fn finalizers(kind: &Kind, new: &Value) -> Vec<FieldError> {
    if kind.kind == "Lease" {
        return Vec::new();
    }
    let names = list(new, "metadata.finalizers").iter().filter_map(Value::as_str).enumerate();
    names
        .filter_map(|(index, name)| config::unknown_finalizer(name, &format!("metadata.finalizers[{index}]")))
        .collect()
}

/// Checks an update of an object, or of the part that a subresource (`status`, `approval`, `finalize`, …) writes.
pub fn validate_update(kind: &Kind, subresource: Option<&str>, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = meta::validate_update(new, old);
    errors.extend(finalizers(kind, new));
    match subresource {
        // Of a daemon set the changes are looked at first.
        None if kind.kind == "DaemonSet" => {
            errors.extend(changes(kind.group, kind.kind, new, old));
            errors.extend(content(kind.group, kind.kind, new, Some(old)));
        }
        None => {
            errors.extend(content(kind.group, kind.kind, new, Some(old)));
            errors.extend(changes(kind.group, kind.kind, new, old));
        }
        Some("finalize") => errors.extend(config::finalize(new)),
        Some("approval") => errors.extend(meta_kinds::csr_update(new, old, Some("approval"))),
        Some("ephemeralcontainers") => errors.extend(pod::ephemeral_update(new, old)),
        Some("resize") => errors.extend(pod::resize(new, old)),
        Some(_) => errors.extend(status(kind.group, kind.kind, new, old)),
    }
    errors
}

/// The rules for an object by itself.
fn content(group: &str, kind: &str, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match (group, kind) {
        ("", "Pod") => pod::validate(new, old),
        ("", "PodTemplate") => pod::template(new.get("template"), "template"),
        ("", "Service") => service::validate(new),
        ("", "ConfigMap") => config::config_map(new),
        ("", "Secret") => config::secret(new),
        ("", "Namespace") => config::namespace(new),
        ("", "Node") => node::validate(new),
        ("", "ResourceQuota") => resources::quota(new),
        ("", "Endpoints") => network::endpoints(new, old),
        ("", "PersistentVolume") => storage::volume(new),
        ("", "PersistentVolumeClaim") => storage::claim(new),
        ("", "ReplicationController") | ("apps" | "batch", _) => workload::validate(kind, new, old),
        ("" | "events.k8s.io", "Event") => meta_kinds::event(group, new),
        ("policy", "PodDisruptionBudget") => meta_kinds::disruption_budget(new),
        ("coordination.k8s.io", "Lease") => meta_kinds::lease(new),
        ("scheduling.k8s.io", "PriorityClass") => meta_kinds::priority_class(new),
        ("certificates.k8s.io", "CertificateSigningRequest") => meta_kinds::csr(new),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(new, old),
        ("networking.k8s.io", "Ingress") => network::ingress(new, old.is_none()),
        ("networking.k8s.io", "IngressClass") => network::ingress_class(new),
        ("networking.k8s.io", "NetworkPolicy") => network::network_policy(new),
        ("storage.k8s.io", _) => storage::validate(kind, new),
        ("rbac.authorization.k8s.io", _) => rbac::validate(kind, new),
        _ => Vec::new(),
    }
}

/// The fields that an update must not change.
fn changes(group: &str, kind: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    match (group, kind) {
        ("", "Pod") => pod::update(new, old),
        ("", "Service") => service::update(new, old),
        ("", "ConfigMap") => config::config_map_update(new, old),
        ("", "Secret") => config::secret_update(new, old),
        ("", "Node") => node::update(new, old),
        ("", "PersistentVolume") => storage::volume_update(new, old),
        ("", "PersistentVolumeClaim") => storage::claim_update(new, old),
        ("apps" | "batch", _) => workload::update(kind, new, old),
        ("events.k8s.io", "Event") => meta_kinds::event_update(new, old),
        ("scheduling.k8s.io", "PriorityClass") => meta_kinds::priority_class_update(new, old),
        ("certificates.k8s.io", "CertificateSigningRequest") => meta_kinds::csr_update(new, old, None),
        ("discovery.k8s.io", "EndpointSlice") => without_value(immutable(new, old, "addressType")),
        ("networking.k8s.io", "IngressClass") => immutable(new, old, "spec.controller").into_iter().collect(),
        ("storage.k8s.io", _) => storage::update(kind, new, old),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => rbac::role_ref_update(new, old),
        _ => Vec::new(),
    }
}

fn status(group: &str, kind: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    match (group, kind) {
        ("", "Namespace") => config::namespace_status(new),
        ("", "Node") => node::update(new, old),
        ("", "Service") => service::status(new, old),
        ("", "Pod") => pod::status(new, old),
        ("", "ResourceQuota") => resources::quota_status(new),
        ("apps" | "batch", _) => workload::status(kind, new, old),
        ("certificates.k8s.io", _) => meta_kinds::csr_update(new, old, Some("status")),
        _ => Vec::new(),
    }
}

/// An error when a field differs from what it was.
fn immutable(new: &Value, old: &Value, path: &str) -> Option<FieldError> {
    immutable_at(new, old, path, path)
}

/// Fields that the real server checks by declared rules: their errors show no value.
fn without_value(errors: impl IntoIterator<Item = FieldError>) -> Vec<FieldError> {
    errors.into_iter().map(|error| FieldError { value: Some(Value::Null), ..error }).collect()
}

/// As [`immutable`], for a field that errors call differently.
fn immutable_at(new: &Value, old: &Value, path: &str, shown: &str) -> Option<FieldError> {
    let (now, was) = (get(new, path), get(old, path));
    let zero = |value: Option<&Value>| value.is_none_or(|value| value.as_str() == Some(""));
    if now == was || (zero(now) && zero(was)) {
        return None;
    }
    Some(FieldError::invalid(shown, now.cloned().unwrap_or(Value::Null), IMMUTABLE))
}

/// An error when a number is below zero; `path` is where to look in `holder`, `prefix` where `holder` stands.
fn non_negative(holder: &Value, path: &str, prefix: &str) -> Option<FieldError> {
    let number = int(holder, path).filter(|number| *number < 0)?;
    Some(FieldError::invalid(format!("{prefix}{path}"), number, "must be greater than or equal to 0"))
}

/// The errors of an IP address.
fn ip_errors(value: &str, path: &str) -> Vec<FieldError> {
    match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec![FieldError::invalid(path, value, "must not be an IPv4-mapped IPv6 address")]
        }
        Ok(_) => Vec::new(),
        Err(_) if sloppy_ip(value).is_some() => {
            vec![FieldError::invalid(path, value, "must not have leading 0s")]
        }
        Err(_) => {
            vec![FieldError::invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
        }
    }
}

/// An IPv4 address with leading zeros, which other programs read as octal.
fn sloppy_ip(value: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u8> = value.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    <[u8; 4]>::try_from(parts).ok().map(Ipv4Addr::from)
}

/// An address and the length of its prefix.
fn parse_cidr(value: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = value.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (length <= most).then_some((address, length))
}

/// The bits of an address that its prefix covers, and whether any beyond are set.
fn prefix_bits(address: IpAddr, length: u8) -> (u128, bool) {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let host = u32::from(width - length);
    let mask = if host == 128 { 0 } else { u128::MAX << host };
    (bits & mask, bits & !mask != 0)
}

fn cidr_errors(value: &str, path: &str) -> Vec<FieldError> {
    let Some((address, length)) = parse_cidr(value) else {
        let error_text = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        return vec![FieldError::invalid(path, value, error_text)];
    };
    if prefix_bits(address, length).1 {
        return vec![FieldError::invalid(path, value, "must not have bits set beyond the prefix length")];
    }
    Vec::new()
}

/// The lines in which two values differ, for the errors that show what was changed.
fn difference(old: &Value, new: &Value) -> String {
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let (old, new) = (pretty(old), pretty(new));
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let part = |lines: &[&str], sign: char| {
        let end = lines.len().saturating_sub(tail).max(same.min(lines.len()));
        let middle = lines.get(same..end).unwrap_or_default();
        middle.iter().map(|line| format!("{sign}{line}\n")).collect::<String>()
    };
    format!("{}{}", part(&old, '-'), part(&new, '+'))
}

#[cfg(test)]
mod tests;
