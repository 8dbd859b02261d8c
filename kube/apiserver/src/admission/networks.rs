//! Allocates cluster IPs and node ports of services. A lock from the choice to the commit keeps two services from getting the same value.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::MutexGuard;

use fleetwright_builtins::strategy;
use fleetwright_schema::FieldError;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{list_mut, meta_text};
use crate::service_network::{Allocations, ServiceNetwork, cluster_ips, node_ports, port_number};
use crate::store::Store;
use crate::write_request::WriteRequest;

const NODE_PORTS: RangeInclusive<u32> = 30000..=32767;

/// Holds the lock on allocations while it lives.
pub(crate) struct AllocationGuard<'a>(#[expect(dead_code, reason = "held for its drop")] MutexGuard<'a, Allocations>);

impl ServiceNetwork {
    /// Allocates the missing values of a service, and refuses values of another service.
    pub(super) fn allocate(
        &self,
        store: &Store,
        op: &WriteRequest<'_>,
        old: Option<&Value>,
        service: &mut Value,
    ) -> Result<AllocationGuard<'_>, ApiError> {
        let taken = self.allocations(store, &op.resource.storage);
        let mut work = Allocation { networks: self, taken: &taken, op, old, random: op.server.random() };
        work.families(service)?;
        work.addresses(service)?;
        work.ports(service)?;
        work.health_check(service)?;
        Ok(AllocationGuard(taken))
    }
}

/// Makes the singular and the plural field for cluster IPs equal, so that clients may use either.
pub(super) fn normalize(old: Option<&Value>, service: &mut Value) {
    let one = |service: &Value| service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let many = |service: &Value| service["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
    if !service["spec"].is_object() {
        return;
    }
    let (ip, ips) = (one(service), many(service));
    let Some(old) = old else {
        if !ip.is_empty() && ips.is_empty() {
            service["spec"]["clusterIPs"] = json!([ip]);
        }
        return;
    };
    let (ip_before, ips_before) = (one(old), many(old));
    if ip == ip_before && ips.is_empty() && !ips_before.is_empty() {
        service["spec"]["clusterIPs"] = ips_before.into();
    } else if ip != ip_before && ips == ips_before {
        service["spec"]["clusterIPs"] = if ip.is_empty() { Value::Null } else { json!([ip]) };
    }
    if let Some(spec) = service["spec"].as_object_mut()
        && spec.get("clusterIPs").is_some_and(Value::is_null)
    {
        spec.remove("clusterIPs");
    }
}

struct Allocation<'a> {
    networks: &'a ServiceNetwork,
    taken: &'a Allocations,
    op: &'a WriteRequest<'a>,
    old: Option<&'a Value>,
    random: u64,
}

impl Allocation<'_> {
    fn invalid(&self, service: &Value, errors: &[FieldError]) -> ApiError {
        self.op.resource.invalid(meta_text(service, "name"), errors)
    }

    /// Checks the IP families: this is a single-stack IPv4 cluster.
    fn families(&self, service: &mut Value) -> Result<(), ApiError> {
        let spec = &service["spec"];
        if spec["type"] == "ExternalName" {
            return Ok(());
        }
        let headless = spec["clusterIP"] == "None";
        let selects = spec["selector"].as_object().is_some_and(|selector| !selector.is_empty());
        let free = headless && !selects;
        let policy =
            match (spec["ipFamilyPolicy"].as_str(), self.old.and_then(|old| old["spec"]["ipFamilyPolicy"].as_str())) {
                (Some(policy), _) | (None, Some(policy)) => policy.to_owned(),
                // A service without selector may list addresses of any family.
                (None, None) => if free { "RequireDualStack" } else { "SingleStack" }.to_owned(),
            };
        let mut families = spec["ipFamilies"].as_array().cloned().unwrap_or_default();
        let mut errors = Vec::new();
        let ips = spec["clusterIPs"].as_array().map(Vec::as_slice).unwrap_or_default();
        if policy == "SingleStack" {
            let path = "spec.ipFamilyPolicy";
            for (several, what) in [(ips.len() == 2, "cluster IPs"), (families.len() == 2, "IP families")] {
                if several {
                    let told =
                        format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                    errors.push(FieldError::invalid(path, policy.as_str(), told));
                }
            }
        }
        for (at, ip) in ips.iter().enumerate().skip(families.len()) {
            match ip.as_str().and_then(|ip| ip.parse::<IpAddr>().ok()) {
                Some(IpAddr::V4(_)) => families.push("IPv4".into()),
                Some(IpAddr::V6(_)) => {
                    let told = "IPv6 is not configured on this cluster";
                    errors.push(FieldError::invalid(format!("spec.clusterIPs[{at}]"), json!(ips), told));
                }
                None => break,
            }
        }
        if !free && errors.is_empty() {
            if policy == "RequireDualStack" {
                let told = "this cluster is not configured for dual-stack services";
                errors.push(FieldError::invalid("spec.ipFamilyPolicy", policy.as_str(), told));
            }
            for (at, _) in families.iter().enumerate().filter(|(_, family)| *family == "IPv6") {
                errors.push(FieldError::invalid(
                    format!("spec.ipFamilies[{at}]"),
                    "IPv6",
                    "not configured on this cluster",
                ));
            }
        }
        if !errors.is_empty() {
            return Err(self.invalid(service, &errors));
        }
        if families.is_empty() {
            families.push("IPv4".into());
        }
        if free && families.len() < 2 && policy != "SingleStack" {
            let other = if families.iter().any(|family| family == "IPv4") { "IPv6" } else { "IPv4" };
            families.push(other.into());
        }
        service["spec"]["ipFamilyPolicy"] = policy.into();
        service["spec"]["ipFamilies"] = families.into();
        Ok(())
    }

    fn addresses(&mut self, service: &mut Value) -> Result<(), ApiError> {
        let ips = service["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
        if service["spec"]["type"] == "ExternalName" || ips.first().is_some_and(|ip| ip == "None") {
            return Ok(());
        }
        let Some(given) = ips.first().and_then(Value::as_str).filter(|ip| !ip.is_empty()) else {
            let range = self.networks.first..=self.networks.last;
            let size = range.end() - range.start() + 3;
            let reserved = (size / 16).clamp(16, 256).min(size / 2);
            let free = |address: u32| !self.taken.addresses.contains_key(&address);
            let Some(address) = self.pick(range, reserved, free) else {
                let name = meta_text(service, "name");
                return Err(ApiError::internal(format!(
                    "failed to allocate a serviceIP for Service {name:?}: range is full"
                )));
            };
            let text = Ipv4Addr::from(address).to_string();
            service["spec"]["clusterIPs"] = json!([text]);
            service["spec"]["clusterIP"] = text.into();
            return Ok(());
        };
        // Validation reports an address that does not parse.
        let Ok(address) = given.parse::<Ipv4Addr>().map(u32::from) else { return Ok(()) };
        if self.old.is_some_and(|old| cluster_ips(old).contains(&address)) {
            return Ok(());
        }
        let told = if !(self.networks.first..=self.networks.last).contains(&address) {
            "the provided network does not match the current range"
        } else if self.taken.addresses.contains_key(&address) {
            "provided IP is already allocated"
        } else {
            return Ok(());
        };
        let told = format!("failed to allocate IP {given}: {told}");
        Err(self.invalid(service, &[FieldError::invalid("spec.clusterIPs", json!(ips), told)]))
    }

    fn ports(&mut self, service: &mut Value) -> Result<(), ApiError> {
        if !matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
            return Ok(());
        }
        let mut own = self.old.map(node_ports).unwrap_or_default();
        let fill = strategy::needs_node_ports(service);
        // Two protocols of one port share their node port.
        let mut chosen: HashMap<u64, u32> = HashMap::new();
        let requested: HashMap<u64, u32> = service["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| Some((port["port"].as_u64()?, port_number(&port["nodePort"]).filter(|p| *p != 0)?)))
            .collect();
        let mut new = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
        for (at, port) in new.iter_mut().enumerate() {
            let number = port["port"].as_u64().unwrap_or_default();
            let given = port_number(&port["nodePort"]).filter(|p| *p != 0);
            if given.is_none() && !fill {
                continue;
            }
            let shared = chosen.get(&number).or_else(|| requested.get(&number)).copied().filter(|_| self.old.is_none());
            let wanted = match given.or(shared) {
                Some(wanted) => {
                    if !own.contains(&wanted)
                        && let Some(told) = self.port_refused(wanted)
                    {
                        let path = format!("spec.ports[{at}].nodePort");
                        return Err(self.invalid(service, &[FieldError::invalid(path, wanted, told)]));
                    }
                    wanted
                }
                None => self
                    .pick_port(&own)
                    .ok_or_else(|| ApiError::internal("failed to allocate a nodePort: range is full"))?,
            };
            own.insert(wanted);
            chosen.insert(number, wanted);
            port["nodePort"] = wanted.into();
        }
        if !new.is_empty() {
            *list_mut(&mut service["spec"], "ports") = new;
        }
        Ok(())
    }

    fn health_check(&mut self, service: &mut Value) -> Result<(), ApiError> {
        let needed_before = self.old.is_some_and(strategy::needs_health_check);
        if !strategy::needs_health_check(service) || needed_before {
            return Ok(());
        }
        let own = node_ports(service);
        match port_number(&service["spec"]["healthCheckNodePort"]).filter(|port| *port != 0) {
            Some(wanted) => match self.port_refused(wanted) {
                Some(told) => Err(ApiError::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {wanted}: {told}"
                ))),
                None => Ok(()),
            },
            None => {
                let port = self
                    .pick_port(&own)
                    .ok_or_else(|| ApiError::internal("failed to allocate a HealthCheck NodePort 0: range is full"))?;
                service["spec"]["healthCheckNodePort"] = port.into();
                Ok(())
            }
        }
    }

    fn port_refused(&self, port: u32) -> Option<&'static str> {
        if !NODE_PORTS.contains(&port) {
            return Some("provided port is not in the valid range. The range of valid ports is 30000-32767");
        }
        self.taken.ports.contains_key(&port).then_some("provided port is already allocated")
    }

    fn pick_port(&mut self, own: &BTreeSet<u32>) -> Option<u32> {
        let free = |port: u32| !self.taken.ports.contains_key(&port) && !own.contains(&port);
        self.random = self.random.rotate_left(13).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.pick(NODE_PORTS, 86, free)
    }

    /// A free value from the upper part of a range; from the lower part, which is meant for static choices by
    /// people, only when the upper part is full.
    fn pick(&self, range: RangeInclusive<u32>, reserved: u32, free: impl Fn(u32) -> bool) -> Option<u32> {
        let (first, last) = (*range.start(), *range.end());
        let split = first.saturating_add(reserved).min(last);
        let upper = u64::from(last - split + 1);
        let start = split + u32::try_from(self.random % upper).unwrap_or(0);
        (start..=last).chain(split..start).chain(first..split).find(|value| free(*value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_client_that_knows_only_the_singular_field_keeps_both_in_step() {
        let old = json!({"spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}});
        let mut new = json!({"spec": {"clusterIP": "10.0.0.1"}});
        normalize(Some(&old), &mut new);
        assert_eq!(new, old);
        let mut cleared = json!({"spec": {"clusterIPs": ["10.0.0.1"]}});
        normalize(Some(&old), &mut cleared);
        assert_eq!(cleared, json!({"spec": {}}));
    }
}
