//! Observes clusters from caches alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{ClusterLimits, ControlPlaneComponent, EndpointType};
use fleetwright_kit::{Cache, Change, FullObject, Key, View};
use fleetwright_plan::cluster::certificates::{self, Authority, CertificateSpec, ExistingCertificate, RenewalReason};
use fleetwright_plan::cluster::members::VolumeClaim;
use fleetwright_plan::cluster::objects::{API_PORT, Kind};
use fleetwright_plan::cluster::snapshots::SnapshotPod;
use fleetwright_plan::cluster::{LiveObject, Names, Objects, ObservedAuthority, Workload, anchor_digest, keys};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::keys::NEXT_KEY;
use crate::observe::recorded;
use crate::view::{
    BindingView, ClaimView, ClassView, ClusterOwned, ClusterView, NamespaceView, ObjectView, PackageView, PodView,
    RawObject, SecretView,
};

/// Objects by their namespace.
pub const BY_NAMESPACE: &str = "namespace";
/// Clusters by their package versions.
pub const BY_PACKAGE: &str = "package";

/// All caches; cheap to clone.
#[derive(Clone)]
pub struct Caches {
    /// The namespace of the sealed copies of keys, and of the key that seals them.
    pub keys: Arc<str>,
    /// The operator's own rights in the namespaces of control planes; none if it runs as an administrator.
    pub bindings: Option<Cache<BindingView>>,
    pub clusters: Cache<ClusterView>,
    pub packages: Cache<PackageView>,
    pub limits: Cache<FullObject<ClusterLimits>>,
    pub namespaces: Cache<NamespaceView>,
    pub secrets: Cache<SecretView>,
    pub config_maps: Cache<ObjectView<ConfigMap>>,
    pub services: Cache<ObjectView<Service>>,
    pub policies: Cache<ObjectView<NetworkPolicy>>,
    pub budgets: Cache<ObjectView<PodDisruptionBudget>>,
    pub stateful_sets: Cache<ObjectView<StatefulSet>>,
    pub deployments: Cache<ObjectView<Deployment>>,
    pub pods: Cache<PodView>,
    pub claims: Cache<ClaimView>,
    pub classes: Cache<ClassView>,
}

/// The package versions that a cluster refers to, and those in its status: the cluster is reconciled when one of them is created or deleted.
pub fn packages(cluster: &ClusterView) -> Vec<String> {
    let recorded = cluster.0.status.iter().flat_map(recorded);
    let mut names: Vec<_> = recorded.chain([&cluster.0.spec.package_version]).cloned().collect();
    names.sort();
    names.dedup();
    names
}

/// The cluster that a change concerns.
pub fn of_cluster<V: View + ClusterOwned>(fleet: &str, change: &Change<'_, V>) -> Option<Key> {
    let name = change.new.or(change.old)?.cluster()?;
    Some(Key::new(fleet, name))
}

/// Whether the key that seals copies of keys was created, deleted or replaced. It has no label of a cluster, and every copy of the fleet depends on it.
pub fn seal_changed(change: &Change<'_, SecretView>) -> bool {
    let id = |one: Option<&Arc<SecretView>>| one.and_then(|one| one.seal.clone());
    id(change.old) != id(change.new)
}

/// The workload of each component, of the package versions of its objects, and of the pods of its namespace.
pub fn workloads<'a>(
    package: impl Fn(Kind, &str) -> Option<String>,
    pods: impl Iterator<Item = &'a PodView>,
) -> BTreeMap<ControlPlaneComponent, Workload> {
    let mut all: BTreeMap<ControlPlaneComponent, Workload> = BTreeMap::new();
    for component in ControlPlaneComponent::ALL {
        let kind = if component == ControlPlaneComponent::Etcd { Kind::StatefulSet } else { Kind::Deployment };
        all.insert(component, Workload { package: package(kind, component.binary()), replicas: Vec::new() });
    }
    for pod in pods {
        let component = pod.component.as_deref().and_then(ControlPlaneComponent::of_binary);
        if let Some(workload) = component.and_then(|component| all.get_mut(&component)) {
            workload.replicas.push(pod.replica.clone());
        }
    }
    all
}

/// State of a cluster's certificates.
#[derive(Debug, Default)]
pub struct CertificateState {
    /// Its authorities and the key of service-account tokens.
    pub keys: keys::ObservedKeys,
    /// The authorities that exist.
    pub anchors: Vec<ObservedAuthority>,
    /// Certificates that are due, and why.
    pub due: Vec<(CertificateSpec, RenewalReason)>,
    /// When the next certificate is due.
    pub due_next: Option<Timestamp>,
    /// Expiry of each certificate.
    pub ends: Vec<(String, Timestamp)>,
}

impl Caches {
    /// Names of the parts of that Cluster. A recorded namespace that belongs to this Cluster stays its namespace: earlier versions shortened long
    /// names in another way.
    pub fn names(&self, cluster: &ClusterView) -> Names {
        let names = Names::of(&cluster.0.namespace().unwrap_or_default(), &cluster.0.name_any());
        let recorded = cluster.0.status.as_ref().and_then(|status| status.namespace.as_deref());
        let kept = recorded.filter(|recorded| *recorded != names.namespace).map(|recorded| names.within(recorded));
        kept.filter(|kept| self.namespace(kept).is_some()).unwrap_or(names)
    }

    /// The namespace of the control plane, if it exists and belongs to this Cluster. Every lookup of the namespace is made here: a namespace of that
    /// name can belong to another Cluster, or was created by somebody else.
    pub fn namespace(&self, names: &Names) -> Option<Arc<NamespaceView>> {
        self.labelled(names).filter(|namespace| self.is_recorded(names, namespace))
    }

    /// A namespace with the name and the labels of this Cluster's namespace that its status does not record.
    pub fn unrecorded(&self, names: &Names) -> Option<Arc<NamespaceView>> {
        self.labelled(names).filter(|namespace| !namespace.ending && !self.is_recorded(names, namespace))
    }

    /// A namespace with the name and the labels of this Cluster's namespace, whoever created it.
    pub fn labelled(&self, names: &Names) -> Option<Arc<NamespaceView>> {
        let namespace = self.namespaces.get(&Key::cluster(&names.namespace))?;
        (namespace.cluster() == Some(&names.name)).then_some(namespace)
    }

    fn is_recorded(&self, names: &Names, namespace: &NamespaceView) -> bool {
        let cluster = self.clusters.get(&Key::new(&names.fleet, &names.name));
        cluster.is_some_and(|cluster| names.is_recorded(cluster.0.status.as_ref(), &namespace.uid))
    }

    /// Whether the namespace contains no object of a control plane.
    pub fn is_empty(&self, namespace: &str) -> bool {
        let counts = [
            self.secrets.count(BY_NAMESPACE, namespace),
            self.pods.count(BY_NAMESPACE, namespace),
            self.claims.count(BY_NAMESPACE, namespace),
        ];
        counts == [0; 3] && self.objects(namespace).is_empty()
    }

    /// The Cluster of this fleet that already has the namespace of that name.
    pub fn taken_by(&self, names: &Names) -> Option<String> {
        let namespace = self.namespaces.get(&Key::cluster(&names.namespace))?;
        namespace.cluster().filter(|other| *other != names.name).map(str::to_owned)
    }

    /// The object of that kind, as it is.
    pub fn object(&self, namespace: &str, kind: Kind, name: &str) -> Option<Value> {
        self.content(namespace, kind, name, |object| object.value())
    }

    /// A field of the cached object of that kind.
    pub fn content<T>(&self, namespace: &str, kind: Kind, name: &str, of: impl Fn(&RawObject) -> T) -> Option<T> {
        let key = Key::new(namespace, name);
        match kind {
            Kind::ConfigMap => self.config_maps.get(&key).map(|object| of(&object.said)),
            Kind::Service => self.services.get(&key).map(|object| of(&object.said)),
            Kind::NetworkPolicy => self.policies.get(&key).map(|object| of(&object.said)),
            Kind::PodDisruptionBudget => self.budgets.get(&key).map(|object| of(&object.said)),
            Kind::StatefulSet => self.stateful_sets.get(&key).map(|object| of(&object.said)),
            Kind::Deployment => self.deployments.get(&key).map(|object| of(&object.said)),
        }
    }

    /// All objects of the kinds of a control plane. None of them is parsed for this.
    pub fn objects(&self, namespace: &str) -> Objects {
        let mut all = Objects::default();
        gather(&mut all, Kind::ConfigMap, &self.config_maps, namespace);
        gather(&mut all, Kind::Service, &self.services, namespace);
        gather(&mut all, Kind::NetworkPolicy, &self.policies, namespace);
        gather(&mut all, Kind::PodDisruptionBudget, &self.budgets, namespace);
        gather(&mut all, Kind::StatefulSet, &self.stateful_sets, namespace);
        gather(&mut all, Kind::Deployment, &self.deployments, namespace);
        all
    }

    /// The workload of each component.
    pub fn workloads(&self, namespace: &str) -> BTreeMap<ControlPlaneComponent, Workload> {
        let pods = self.pods.by(BY_NAMESPACE, namespace);
        let package = |kind: Kind, name: &str| {
            self.content(namespace, kind, name, |object| object.package.as_deref().unwrap_or_default().to_owned())
        };
        workloads(package, pods.iter().map(|(_, pod)| &**pod))
    }

    /// Addresses of API servers that are ready.
    pub fn servers(&self, namespace: &str) -> Vec<String> {
        let pods = self.pods.by(BY_NAMESPACE, namespace).into_iter().map(|(_, pod)| pod);
        let servers = pods.filter(|pod| pod.component.as_deref() == Some(ControlPlaneComponent::Apiserver.binary()));
        let ready = servers.filter(|pod| pod.replica.ready && !pod.replica.ending);
        ready.filter_map(|pod| pod.replica.ip.clone()).collect()
    }

    /// Addresses of all members of etcd that may answer.
    pub fn members(&self, namespace: &str) -> Vec<String> {
        let pods = self.pods.by(BY_NAMESPACE, namespace).into_iter().map(|(_, pod)| pod);
        let members = pods.filter(|pod| pod.component.as_deref() == Some(ControlPlaneComponent::Etcd.binary()));
        members.filter(|pod| !pod.replica.ending).filter_map(|pod| pod.replica.ip.clone()).collect()
    }

    /// The volume claims of members of etcd.
    pub fn claims(&self, namespace: &str) -> Vec<VolumeClaim> {
        let claims = self.claims.by(BY_NAMESPACE, namespace).into_iter();
        let expands = |class: &str| self.classes.get(&Key::cluster(class)).is_some_and(|class| class.0);
        claims.map(|(_, view)| view.with_class(expands)).collect()
    }

    /// The pods that work on the cluster's data.
    pub fn tasks(&self, namespace: &str) -> Vec<SnapshotPod> {
        let pods = self.pods.by(BY_NAMESPACE, namespace).into_iter();
        pods.filter_map(|(_, pod)| pod.task.as_deref().cloned()).collect()
    }

    /// Address of the API servers for clients, and its names and IP addresses for certificates.
    pub fn endpoint(&self, names: &Names, cluster: &ClusterView) -> (Option<String>, Vec<String>) {
        let endpoint = &cluster.0.spec.endpoint;
        let service = self.object(&names.namespace, Kind::Service, "kube-apiserver").unwrap_or_default();
        let spec = &service["spec"];
        let given = spec["clusterIP"].as_str().filter(|ip| !ip.is_empty() && *ip != "None").map(str::to_owned);
        let balancer = service["status"]["loadBalancer"]["ingress"]
            .as_array()
            .into_iter()
            .flatten()
            .find_map(|one| one["ip"].as_str().or_else(|| one["hostname"].as_str()).map(str::to_owned));
        let (host, port) = match endpoint.type_ {
            EndpointType::ClusterIP => (endpoint.host.clone().or_else(|| given.clone()), Some(API_PORT)),
            EndpointType::LoadBalancer => (endpoint.host.clone().or_else(|| balancer.clone()), Some(API_PORT)),
            EndpointType::External => (endpoint.host.clone(), Some(endpoint.port.unwrap_or(API_PORT))),
            EndpointType::NodePort => {
                let port = spec["ports"][0]["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
                (endpoint.host.clone(), port.or(endpoint.port))
            }
        };
        let url = host.as_ref().zip(port).map(|(host, port)| match host.contains(':') {
            true => format!("https://[{host}]:{port}"),
            false => format!("https://{host}:{port}"),
        });
        (url, given.into_iter().chain(balancer).collect())
    }

    /// State of the cluster's certificates, which are issued with that lifetime.
    pub fn certificate_state(
        &self,
        names: &Names,
        wanted: Vec<CertificateSpec>,
        lifetime: Duration,
        now: Timestamp,
    ) -> CertificateState {
        let lifetime = SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::MAX);
        let secret = |name: &str| self.secrets.get(&Key::new(&names.namespace, name));
        let mut certificate_state = CertificateState::default();
        let whole = |authority: &SecretView| authority.certificate.is_some() && authority.key_matches;
        for key in keys::Key::all() {
            let Some(held) = secret(key.secret()) else { continue };
            let whole = match key {
                keys::Key::Authority(authority) if whole(&held) => {
                    certificate_state.ends.extend(ends(authority.secret(), &held));
                    certificate_state.anchors.push(observed_authority(authority, &held));
                    true
                }
                keys::Key::Authority(_) => false,
                keys::Key::ServiceAccount => {
                    ["sa.key", "sa.pub"].iter().all(|key| held.keys.iter().any(|own| &**own == *key))
                }
            };
            let there = held.key.as_ref().filter(|_| whole).map_or(keys::KeySecret::Broken, |(fingerprint, digest)| {
                keys::KeySecret::Valid { fingerprint: fingerprint.to_string(), digest: digest.to_string() }
            });
            certificate_state.keys.held.insert(key, there);
        }
        certificate_state.keys.sealed = self.sealed(names);
        certificate_state.keys.sealed_in = self.keys.to_string();
        for one in wanted {
            let (held, signer) = (secret(one.secret), secret(one.authority.secret()));
            let signed = held.as_ref().zip(signer.as_ref()).is_some_and(|(held, signer)| {
                let both = held.certificate.as_ref().zip(signer.certificate.as_ref());
                both.is_some_and(|(held, signer)| held.is_signed_by(signer)) && held.trusts == signer.trusts
            });
            let lacking =
                one.kubeconfig && held.as_ref().is_some_and(|held| held.keys.iter().all(|key| &**key != "kubeconfig"));
            let known = held.as_ref().filter(|_| !lacking).and_then(|held| self::existing_certificate(held));
            certificate_state.ends.extend(held.as_ref().and_then(|held| ends(one.secret, held)));
            match certificates::due(&one, known.as_ref(), signed, lifetime, now) {
                // The Secret exists, but its content is unusable.
                Some(RenewalReason::Missing) if held.is_some() => {
                    certificate_state.due.push((one, RenewalReason::Invalid))
                }
                Some(why) => certificate_state.due.push((one, why)),
                None => {
                    let next = known.as_ref().map(|known| certificates::renew_at(known, lifetime));
                    certificate_state.due_next = certificate_state.due_next.into_iter().chain(next).min();
                }
            }
        }
        certificate_state
    }
}

impl Caches {
    /// Digests of the keys in the sealed copy, if it can be opened with the present seal key.
    pub fn sealed(&self, names: &Names) -> BTreeMap<String, String> {
        let seal = self.secrets.get(&Key::new(&self.keys, keys::SEAL));
        let copy = self.secrets.get(&Key::new(&self.keys, &names.sealed_keys()));
        let by = seal.as_ref().and_then(|seal| seal.seal.as_deref());
        let sealed = copy.as_ref().and_then(|copy| copy.sealed.as_ref());
        sealed.filter(|sealed| by == Some(&*sealed.by)).map(|sealed| sealed.keys.clone()).unwrap_or_default()
    }
}

fn gather<V: View + LiveObject>(all: &mut Objects, kind: Kind, cache: &Cache<V>, namespace: &str) {
    for (key, object) in cache.by(BY_NAMESPACE, namespace) {
        all.insert(kind, &key.name, object);
    }
}

fn ends(name: &str, held: &SecretView) -> Option<(String, Timestamp)> {
    let end = held.certificate.as_ref()?.not_after;
    Timestamp::from_second(end).ok().map(|end| (name.to_owned(), end))
}

fn observed_authority(authority: Authority, held: &SecretView) -> ObservedAuthority {
    let trusted = held.trusts.as_deref().unwrap_or_default();
    let at = |seconds: Option<i64>| seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let certificate = held.certificate.as_ref();
    let ends = at(certificate.map(|one| one.not_after)).unwrap_or(Timestamp::MAX);
    ObservedAuthority {
        authority,
        next: held.keys.iter().any(|key| &**key == NEXT_KEY),
        trusted: trusted.matches("BEGIN CERTIFICATE").count(),
        digest: anchor_digest(trusted, &format!("{:?}", certificate.and_then(|one| one.key_id.as_ref()))),
        begins: at(certificate.map(|one| one.not_before)).unwrap_or(Timestamp::MIN),
        ends,
        first_end: at(held.first_end).unwrap_or(ends),
    }
}

fn existing_certificate(secret: &SecretView) -> Option<ExistingCertificate> {
    let certificate = secret.certificate.as_ref()?;
    Some(ExistingCertificate {
        not_before: Timestamp::from_second(certificate.not_before).ok()?,
        not_after: Timestamp::from_second(certificate.not_after).ok()?,
        dns_names: certificate.dns_names.clone(),
        ips: certificate.ips.clone(),
        common_name: certificate.common_name.clone(),
        organizations: certificate.organizations.clone(),
        key_matches: secret.key_matches,
    })
}
