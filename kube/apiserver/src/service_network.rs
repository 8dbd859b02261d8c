//! The address range of services, and the cluster IPs and node ports that services have. They are derived from the services in the store, by their
//! events.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::store::{Cursor, Object, Store};

/// The address range of services.
pub(crate) struct ServiceNetwork {
    /// The first address that a service may have.
    pub(crate) first: u32,
    /// The last one.
    pub(crate) last: u32,
    taken: Mutex<Allocations>,
}

/// The allocations of services, as of the cursor.
#[derive(Default)]
pub(crate) struct Allocations {
    cursor: Option<Cursor>,
    /// The number of services with each cluster IP.
    pub(crate) addresses: HashMap<u32, usize>,
    /// The number of services with each node port.
    pub(crate) ports: HashMap<u32, usize>,
}

impl ServiceNetwork {
    /// The network of this range, such as `10.96.0.0/16`.
    pub(crate) fn new(cidr: &str) -> Result<Self, String> {
        let (address, bits) =
            cidr.split_once('/').ok_or_else(|| format!("{cidr:?} is not of the form 10.96.0.0/16"))?;
        let address: Ipv4Addr = address.parse().map_err(|e| format!("{cidr:?}: {e}"))?;
        let bits: u32 = bits.parse().map_err(|e| format!("{cidr:?}: {e}"))?;
        if !(8..=30).contains(&bits) {
            return Err(format!("{cidr:?}: a prefix of 8 to 30 bits is needed"));
        }
        let size = 1_u32 << (32 - bits);
        let base = u32::from(address) & !(size - 1);
        // The first address names the network, the last one is its broadcast.
        Ok(Self { first: base + 1, last: base + size - 2, taken: Mutex::default() })
    }

    /// The first address: the `kubernetes` service's.
    pub(crate) fn api_address(&self) -> IpAddr {
        IpAddr::V4(self.first.into())
    }

    /// The allocations of the present services. The guard holds the lock.
    pub(crate) fn allocations(&self, store: &Store, services: &str) -> MutexGuard<'_, Allocations> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.follow(store, services);
        taken
    }
}

impl Allocations {
    /// Applies the changes since the last call.
    fn follow(&mut self, store: &Store, services: &str) {
        loop {
            let batch = self.cursor.as_mut().and_then(|cursor| cursor.poll_changes().ok());
            let Some(batch) = batch else { break };
            if batch.events.is_empty() {
                return;
            }
            for event in &batch.events {
                event.prev.iter().for_each(|object| self.count(object, false));
                event.now.iter().for_each(|object| self.count(object, true));
            }
        }
        self.addresses.clear();
        self.ports.clear();
        if let Ok(page) = store.page(services, None, None, None, 0, |_| true) {
            page.objects.iter().for_each(|object| self.count(object, true));
            self.cursor = store.watch(services, page.revision).ok();
        }
    }

    fn count(&mut self, service: &Object, add: bool) {
        let service = service.value();
        change(&mut self.addresses, cluster_ips(&service).into_iter(), add);
        change(&mut self.ports, node_ports(&service).into_iter(), add);
    }
}

fn change(counts: &mut HashMap<u32, usize>, keys: impl Iterator<Item = u32>, add: bool) {
    for key in keys {
        let count = counts.entry(key).or_default();
        *count = if add { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// The cluster IPs of a service.
pub(crate) fn cluster_ips(service: &Value) -> BTreeSet<u32> {
    let given = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    given.filter_map(Value::as_str).filter_map(|ip| ip.parse::<Ipv4Addr>().ok()).map(u32::from).collect()
}

/// The node ports of a service, with that of its health check.
pub(crate) fn node_ports(service: &Value) -> BTreeSet<u32> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
    ports.chain([&service["spec"]["healthCheckNodePort"]]).filter_map(port_number).filter(|port| *port != 0).collect()
}

/// The number of a port; none for other values.
pub(crate) fn port_number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|port| u32::try_from(port).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_has_the_first_address_of_the_network() {
        let networks = ServiceNetwork::new("10.96.0.0/16").unwrap();
        assert_eq!(networks.api_address().to_string(), "10.96.0.1");
    }

    #[test]
    fn a_network_that_makes_no_sense_is_refused() {
        for wrong in ["", "10.0.0.0", "10.0.0.0/31", "10.0.0.0/0", "::/64", "x/16"] {
            assert!(ServiceNetwork::new(wrong).is_err(), "{wrong}");
        }
    }
}
