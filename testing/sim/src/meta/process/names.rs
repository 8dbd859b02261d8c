//! The DNS of the meta cluster.

use std::net::Ipv4Addr;

use fleetwright_kit::{Cache, Key};
use k8s_openapi::api::core::v1::Service;

use super::super::kubelet::sandbox::PodSandboxes;
use super::super::services::{ServiceListeners, selects};
use super::super::view::{NAMESPACE, PodView, SerializedObject};

/// The part of a cluster-internal name before `.svc`; none for other names.
pub(super) fn within(host: &str) -> Option<&str> {
    let host = host.trim_end_matches('.');
    host.strip_suffix(".cluster.local").unwrap_or(host).strip_suffix(".svc")
}

/// The resolver. Cheap to clone.
#[derive(Clone)]
pub(in super::super) struct Names {
    pub(in super::super) pods: Cache<PodView>,
    pub(in super::super) services: Cache<SerializedObject<Service>>,
    pub(in super::super) listeners: ServiceListeners,
    pub(in super::super) sandboxes: PodSandboxes,
}

impl Names {
    /// The addresses of a name; none if it does not exist. Services are `NAME.NAMESPACE.svc`, pods of a headless one `POD.NAME.NAMESPACE.svc`.
    pub(in super::super) fn resolve(&self, host: &str) -> Vec<Ipv4Addr> {
        if let Ok(ip) = host.parse() {
            return vec![ip];
        }
        let Some(host) = within(host) else { return Vec::new() };
        let labels: Vec<&str> = host.split('.').collect();
        match labels.as_slice() {
            [service, namespace] => self.service(&Key::new(namespace, service)),
            [pod, service, namespace] => self.pod(&Key::new(namespace, service), pod),
            _ => Vec::new(),
        }
    }

    /// The pods behind a name.
    pub(in super::super) fn backends(&self, host: &str) -> Vec<Ipv4Addr> {
        let key =
            within(host).and_then(|service| service.split_once('.')).map(|(name, namespace)| Key::new(namespace, name));
        let Some((key, view)) = key.and_then(|key| self.services.get(&key).map(|view| (key, view))) else {
            return self.resolve(host);
        };
        let selector = view.read().spec.and_then(|spec| spec.selector).unwrap_or_default();
        let pods = self.pods.by(NAMESPACE, &key.namespace);
        pods.iter().filter(|(_, pod)| selects(&selector, pod)).filter_map(|(key, _)| self.sandboxes.ip(key)).collect()
    }

    fn service(&self, key: &Key) -> Vec<Ipv4Addr> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        let spec = service.read().spec.unwrap_or_default();
        if spec.cluster_ip.as_deref() != Some("None") {
            return self.listeners.address(key).into_iter().collect();
        }
        let (selector, anyway) = (spec.selector.unwrap_or_default(), spec.publish_not_ready_addresses == Some(true));
        let pods = self.pods.by(NAMESPACE, &key.namespace);
        let told = |pod: &PodView| selects(&selector, pod) && (anyway || pod.ready.is_some());
        pods.iter().filter(|(_, pod)| told(pod)).filter_map(|(key, _)| self.sandboxes.ip(key)).collect()
    }

    fn pod(&self, service: &Key, name: &str) -> Vec<Ipv4Addr> {
        let Some(spec) = self.services.get(service).and_then(|service| service.read().spec) else { return Vec::new() };
        let key = Key::new(&service.namespace, name);
        let named =
            |pod: &PodView| pod.hostname.as_deref() == Some(name) && pod.subdomain.as_deref() == Some(&*service.name);
        let told = |pod: &PodView| spec.publish_not_ready_addresses == Some(true) || pod.ready.is_some();
        let pod = self.pods.get(&key).filter(|pod| named(pod) && told(pod));
        // The sandbox knows the address before the API server does.
        pod.and_then(|_| self.sandboxes.ip(&key)).into_iter().collect()
    }
}
