//! Services: an address that really listens, and the EndpointSlice with its backends.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use fleetwright_kit::{Cache, Change, JsonPatch, Key, Next, Pass, write};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::forward::Forward;
use super::names::digest;
use super::net::Address;
use super::nodes::Nodes;
use super::reconciler::{ReconcileError, Reconciler};
use super::view::{NAMESPACE, PodView, SerializedObject};
use super::workloads::owned_by;

/// The controller of Services.
pub(super) struct Services {
    pub(super) services: Cache<SerializedObject<Service>>,
    pub(super) slices: Cache<SerializedObject<EndpointSlice>>,
    pub(super) pods: Cache<PodView>,
    pub(super) nodes: Nodes,
    pub(super) listeners: ServiceListeners,
}

/// The listeners of Services. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct ServiceListeners(Arc<Mutex<HashMap<Key, ServiceListener>>>);

#[derive(Default)]
struct ServiceListener {
    uid: Box<str>,
    /// The cluster IP.
    cluster: Option<Ipv4Addr>,
    /// Addresses that this controller must free: the one above unless the API server allocated it, and that of a load balancer.
    own: Option<Address>,
    balancer: Option<Address>,
    listening: HashMap<SocketAddr, Forward>,
}

impl ServiceListeners {
    /// The cluster IP on which a Service listens.
    pub(super) fn address(&self, key: &Key) -> Option<Ipv4Addr> {
        self.all().get(key)?.cluster
    }

    /// The number of listening sockets.
    pub(super) fn listening(&self) -> usize {
        self.all().values().map(|listener| listener.listening.len()).sum()
    }

    pub(super) fn clear(&self) {
        self.all().clear();
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<Key, ServiceListener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requeues the Services that select a changed pod.
pub(super) fn wake(services: &Cache<SerializedObject<Service>>, change: &Change<'_, PodView>) -> Vec<Key> {
    let told = |pod: &PodView| (pod.ip, pod.ready.is_some(), pod.deleting.is_some(), pod.over, pod.node.clone());
    let (old, new) = (change.old, change.new);
    let same = match (old, new) {
        (Some(old), Some(new)) => told(old) == told(new) && old.labels == new.labels && old.uid == new.uid,
        _ => false,
    };
    if same {
        return Vec::new();
    }
    let mut keys = Vec::new();
    for (key, service) in services.by(NAMESPACE, &change.key.namespace) {
        let selector = service.read().spec.and_then(|spec| spec.selector).unwrap_or_default();
        if [old, new].into_iter().flatten().any(|pod| selects(&selector, pod)) {
            keys.push(key);
        }
    }
    keys
}

pub(super) fn selects(selector: &BTreeMap<String, String>, pod: &PodView) -> bool {
    !selector.is_empty() && selector.iter().all(|(name, value)| pod.labels.get(name) == Some(value))
}

impl Reconciler for Services {
    const NAME: &'static str = "services";
    type Kind = Service;

    fn exists(&self, key: &Key) -> bool {
        let there = self.services.get(key).is_some();
        if !there {
            self.listeners.all().remove(key);
        }
        there
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let Some(view) = self.services.get(pass.key()) else { return Ok(Next::AwaitChange) };
        let service = view.read();
        let spec = service.spec.clone().unwrap_or_default();
        let selector = spec.selector.clone().unwrap_or_default();
        // A Service without a selector gets its endpoints from elsewhere.
        if spec.type_.as_deref() == Some("ExternalName") || selector.is_empty() {
            self.listeners.all().remove(pass.key());
            return Ok(Next::AwaitChange);
        }
        let mut pods = self.pods.by(NAMESPACE, &pass.key().namespace);
        pods.retain(|(_, pod)| !pod.over && pod.ip.is_some() && selects(&selector, pod));
        if !view.deleting {
            self.slice(pass, &view, &spec, &pods).await?;
        }
        let balancer = self.listen(pass.key(), &view, &spec, &pods).await?;
        let ingress = balancer.map(|ip| json!([{ "ip": ip, "ipMode": "VIP" }]));
        let told = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.clone());
        let told = told.map(|told| serde_json::to_value(told).unwrap_or_default());
        if !write::same(&json!(told), &json!(ingress)) {
            let status = json!({ "loadBalancer": { "ingress": ingress } });
            pass.writer().merge_status(&self.services, pass.key(), &view.version, status).await?;
        }
        Ok(Next::AwaitChange)
    }
}

type Pods = [(Key, Arc<PodView>)];

impl Services {
    async fn slice(
        &self,
        pass: &Pass,
        view: &SerializedObject<Service>,
        spec: &ServiceSpec,
        pods: &Pods,
    ) -> Result<(), ReconcileError> {
        let service = pass.key();
        let anyway = spec.publish_not_ready_addresses == Some(true);
        let endpoints: Vec<Value> = pods.iter().map(|(key, pod)| endpoint(service, key, pod, anyway)).collect();
        let ports: Vec<Value> = spec
            .ports
            .iter()
            .flatten()
            .map(|port| {
                let number = pods.first().map_or_else(|| number(port, None), |(_, pod)| number(port, Some(pod)));
                json!({ "name": port.name.clone().unwrap_or_default(), "protocol": port.protocol, "port": number })
            })
            .collect();
        let key = Key::new(&service.namespace, &format!("{}-{}", service.name, &digest(&&*view.uid)[..5]));
        let Some(known) = self.slices.get(&key) else {
            let slice = json!({
                "metadata": {
                    "name": &*key.name, "namespace": &*key.namespace,
                    "labels": {
                        "kubernetes.io/service-name": &*service.name,
                        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                    },
                    "ownerReferences": [owned_by::<Service>(service, &view.uid)],
                },
                // The API rejects loopback addresses as endpoints, but accepts them as names.
                "addressType": "FQDN", "endpoints": endpoints, "ports": ports,
            });
            let slice: EndpointSlice = serde_json::from_value(slice).map_err(kube::Error::SerdeError)?;
            pass.writer().create_in(&self.slices, &slice).await?;
            return Ok(());
        };
        let now = serde_json::to_value(known.read()).unwrap_or_default();
        let unchanged = JsonPatch::new().test_version(&known.version);
        let mut patch = unchanged.clone();
        for (field, wanted) in [("endpoints", json!(endpoints)), ("ports", json!(ports))] {
            let present = if now[field].is_null() { json!([]) } else { now[field].clone() };
            if !write::same(&present, &wanted) {
                patch = patch.add(&[field], wanted);
            }
        }
        if patch != unchanged {
            pass.writer().json_patch(&self.slices, &key, patch).await?;
        }
        Ok(())
    }

    /// Listens on the addresses of the Service, and forwards to the ready pods; returns the address of its load balancer.
    async fn listen(
        &self,
        key: &Key,
        view: &SerializedObject<Service>,
        spec: &ServiceSpec,
        pods: &Pods,
    ) -> Result<Option<Ipv4Addr>, ReconcileError> {
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        if spec.cluster_ip.as_deref() == Some("None") {
            self.listeners.all().remove(key);
            return Ok(None);
        }
        let none = || ReconcileError::Machine("no address of the loopback network is free".to_owned());
        let (cluster, balancer) = {
            let mut listeners = self.listeners.all();
            let listener = listeners.entry(key.clone()).or_default();
            if listener.uid != view.uid {
                *listener = ServiceListener { uid: view.uid.clone(), ..ServiceListener::default() };
            }
            let given = spec.cluster_ip.as_ref().and_then(|ip| ip.parse::<Ipv4Addr>().ok());
            let cluster = match given.filter(Ipv4Addr::is_loopback) {
                Some(given) => given,
                // A cluster IP outside of the simulated network: this process cannot listen on it, so the Service gets another one.
                None => {
                    if listener.own.is_none() {
                        listener.own = Some(Address::take().ok_or_else(none)?);
                    }
                    listener.own.as_ref().map(Address::ip).ok_or_else(none)?
                }
            };
            listener.cluster = Some(cluster);
            if kind != "LoadBalancer" {
                listener.balancer = None;
            } else if listener.balancer.is_none() {
                listener.balancer = Some(Address::take().ok_or_else(none)?);
            }
            (cluster, listener.balancer.as_ref().map(Address::ip))
        };
        let anyway = spec.publish_not_ready_addresses == Some(true);
        let mut wanted: HashMap<SocketAddr, Vec<SocketAddr>> = HashMap::new();
        for port in spec.ports.iter().flatten().filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP") {
            let ready = pods.iter().filter(|(_, pod)| anyway || pod.ready.is_some() && pod.deleting.is_none());
            let to: Vec<SocketAddr> = ready
                .filter_map(|(_, pod)| Some(SocketAddr::new(IpAddr::V4(pod.ip?), number(port, Some(pod))?)))
                .collect();
            let Ok(own) = u16::try_from(port.port) else { continue };
            let mut at = vec![SocketAddr::new(cluster.into(), own)];
            at.extend(balancer.map(|ip| SocketAddr::new(ip.into(), own)));
            if matches!(kind, "NodePort" | "LoadBalancer")
                && let Some(node_port) =
                    port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
            {
                at.extend(self.nodes.addresses().into_iter().map(|ip| SocketAddr::new(ip.into(), node_port)));
            }
            wanted.extend(at.into_iter().map(|at| (at, to.clone())));
        }
        let missing: Vec<SocketAddr> = {
            let mut listeners = self.listeners.all();
            let listener = listeners.entry(key.clone()).or_default();
            listener.listening.retain(|at, _| wanted.contains_key(at));
            listener.listening.iter().for_each(|(at, forward)| forward.to(&wanted[at]));
            wanted.keys().filter(|at| !listener.listening.contains_key(at)).copied().collect()
        };
        for at in missing {
            let forward = Forward::start(at, &wanted[&at])
                .await
                .map_err(|error| ReconcileError::Machine(format!("cannot listen on {at}: {error}")))?;
            self.listeners.all().entry(key.clone()).or_default().listening.insert(at, forward);
        }
        Ok(balancer)
    }
}

fn endpoint(service: &Key, key: &Key, pod: &PodView, anyway: bool) -> Value {
    let terminating = pod.deleting.is_some();
    let serving = anyway || pod.ready.is_some();
    let named = pod.subdomain.as_deref() == Some(&*service.name);
    json!({
        "addresses": pod.ip.iter().collect::<Vec<_>>(),
        "conditions": { "ready": anyway || serving && !terminating, "serving": serving, "terminating": terminating },
        "nodeName": pod.node,
        "hostname": pod.hostname.as_ref().filter(|_| named),
        "targetRef": { "kind": "Pod", "namespace": &*key.namespace, "name": &*key.name, "uid": pod.uid },
    })
}

/// The port of a pod behind a port of a Service.
fn number(port: &ServicePort, pod: Option<&PodView>) -> Option<u16> {
    let named = match &port.target_port {
        None => return u16::try_from(port.port).ok(),
        Some(IntOrString::Int(number)) => return u16::try_from(*number).ok(),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod?.spec();
    let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_ref() == Some(named))?;
    u16::try_from(found.container_port).ok()
}
