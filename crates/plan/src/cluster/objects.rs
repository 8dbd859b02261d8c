//! The objects of a control plane in the meta cluster, for server-side apply.

use std::collections::BTreeMap;

use fleetwright_api::{
    CONFIG_FILES, ClusterPackageVersionSpec, ClusterSpec, ComponentOverrides, ControlPlaneComponent, EndpointType,
    names,
};
use serde_json::{Map, Value, json};

use super::Names;
use super::arguments::knows;
use super::copied_secrets;
use super::extensions::keeps_endpoint;
use super::pods;
use super::upgrade_path::VersionNode;

/// Directory in containers where Secrets and ConfigMaps are mounted.
const FILES: &str = "/etc/kubernetes";
/// Port of the API server in its pods and at its Service.
pub const API_PORT: u16 = 6443;
/// Client port of etcd.
pub const ETCD_PORT: u16 = 2379;

/// An object for server-side apply, with all fields that the operator owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object.
    pub name: String,
    /// Complete object as JSON.
    pub body: Value,
}

/// The kinds of objects of a control plane, except Secrets and the Namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Configuration files of components.
    ConfigMap,
    /// Network endpoint of a component.
    Service,
    /// Allowed connections.
    NetworkPolicy,
    /// Limit for evictions.
    PodDisruptionBudget,
    /// Workload of etcd.
    StatefulSet,
    /// Workload of every other component.
    Deployment,
}

impl Kind {
    /// All kinds, in the order in which they are applied.
    pub const ALL: [Self; 6] = [
        Self::ConfigMap,
        Self::Service,
        Self::NetworkPolicy,
        Self::PodDisruptionBudget,
        Self::StatefulSet,
        Self::Deployment,
    ];

    /// `apiVersion` of the kind.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Service => "v1",
            Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::PodDisruptionBudget => "policy/v1",
            Self::StatefulSet | Self::Deployment => "apps/v1",
        }
    }

    /// `kind` as in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Service => "Service",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::StatefulSet => "StatefulSet",
            Self::Deployment => "Deployment",
        }
    }
}

/// Inputs from which the objects are built.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint<'a> {
    /// Names and namespace of the cluster's objects.
    pub names: &'a Names,
    /// Spec of the cluster.
    pub spec: &'a ClusterSpec,
    /// Package version of the component: during an upgrade, components have different ones.
    pub package: &'a ClusterPackageVersionSpec,
    /// Whether etcd has members, so that a new one joins them instead of bootstrapping a new etcd cluster.
    pub etcd_exists: bool,
    /// Minor of Kubernetes that is emulated, so that a rollback to it is possible.
    pub emulates: Option<&'a str>,
    /// Digest of the trusted and the signing authorities.
    pub trusts: &'a str,
    /// Number of etcd members that run, and of members that API servers connect to.
    pub members: (u32, u32),
}

/// Annotation of a component's pods with the digest of the authorities that they trust.
pub const TRUST_BUNDLE_HASH: &str = "fleetwright.io/trust-bundle-hash";

/// Annotation of a component's workload with its package version.
pub const PACKAGE_VERSION: &str = "fleetwright.io/package-version";

/// All objects of that component.
pub fn objects(of: &Blueprint<'_>, component: ControlPlaneComponent) -> Vec<Object> {
    let mut all = match component {
        ControlPlaneComponent::Etcd if of.spec.datastore.etcd.is_none() => return Vec::new(),
        ControlPlaneComponent::Etcd => etcd(of),
        ControlPlaneComponent::Apiserver => apiserver(of),
        ControlPlaneComponent::ControllerManager | ControlPlaneComponent::Scheduler => {
            vec![of.deployment(component)]
        }
    };
    all.extend(of.config(component));
    all.sort_by_key(|object| object.kind);
    all
}

impl Blueprint<'_> {
    fn object(&self, kind: Kind, name: &str, component: ControlPlaneComponent, rest: Value) -> Object {
        let mut body = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.as_str(),
            "metadata": { "name": name, "namespace": self.names.namespace, "labels": self.labels(component) },
        });
        merge(&mut body, rest);
        Object { kind, name: name.to_owned(), body }
    }

    fn labels(&self, component: ControlPlaneComponent) -> Value {
        let mut labels = self.names.labels();
        labels.insert("app.kubernetes.io/name".to_owned(), component.binary().to_owned());
        labels.insert(names::COMPONENT.to_owned(), component.binary().to_owned());
        json!(labels)
    }

    fn overrides(&self, component: ControlPlaneComponent) -> ComponentOverrides {
        self.spec.components.of(component).cloned().unwrap_or_default()
    }

    /// Arguments of a component: those of the package version, overridden by those of the cluster, overridden by the operator's own.
    fn arguments(&self, component: ControlPlaneComponent) -> Vec<String> {
        let package = self.package.components.of(component);
        let mut all: BTreeMap<String, String> = self.default_arguments(component);
        all.extend(package.args.clone());
        // During a change, the cluster's arguments for the target version do not apply to the version that still runs.
        let minor = VersionNode::of("", self.package).minor();
        let knows =
            |name: &str| component == ControlPlaneComponent::Etcd || knows(component, name, minor) != Some(false);
        all.extend(self.overrides(component).args.into_iter().filter(|(name, _)| knows(name)));
        all.extend(self.operator_arguments(component));
        let (given, secret) = (self.config_files(component), self.secret_files(component));
        let given: Vec<&str> =
            given.iter().map(|(name, _)| name.as_str()).chain(secret.iter().map(String::as_str)).collect();
        for (of, file, argument) in CONFIG_FILES {
            if of == component && given.contains(&file) {
                all.insert(argument.to_owned(), format!("{}/{file}", component.config_folder()));
                // The file contains the whole authorization configuration, and the API server refuses the argument together with it.
                if argument == "authorization-config" {
                    all.remove("authorization-mode");
                }
                // The Secret may change at any time, and keys are rotated by changing it.
                if argument == "encryption-provider-config" {
                    all.insert("encryption-provider-config-automatic-reload".to_owned(), "true".to_owned());
                }
            }
        }
        all.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }

    /// Default arguments of a component.
    fn default_arguments(&self, component: ControlPlaneComponent) -> BTreeMap<String, String> {
        let usual: &[(&str, &str)] = match component {
            ControlPlaneComponent::Etcd => &[
                ("auto-compaction-mode", "periodic"),
                ("auto-compaction-retention", "5m"),
                ("quota-backend-bytes", "8589934592"),
                ("snapshot-count", "10000"),
            ],
            ControlPlaneComponent::Apiserver => &[
                // Node components such as kube-proxy are privileged. Pod security decides which other pods may be.
                ("allow-privileged", "true"),
                ("authorization-mode", "Node,RBAC"),
                ("enable-admission-plugins", "NodeRestriction"),
                ("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname"),
                ("profiling", "false"),
                // The API server answers until all load balancers have removed it from their backends.
                ("shutdown-delay-duration", "10s"),
            ],
            ControlPlaneComponent::ControllerManager => &[
                ("controllers", "*,bootstrap-signer-controller,token-cleaner-controller"),
                // With the defaults of 20 and 30, it acts on a quota of a new cluster seconds later. The API server protects itself by priority and
                // fairness.
                ("kube-api-burst", "200"),
                ("kube-api-qps", "100"),
                ("profiling", "false"),
            ],
            ControlPlaneComponent::Scheduler => &[],
        };
        usual.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Arguments that only the operator sets, because its other objects depend on them.
    fn operator_arguments(&self, component: ControlPlaneComponent) -> BTreeMap<String, String> {
        let namespace = &self.names.namespace;
        let network = &self.spec.network;
        let kubeconfig = |secret: &str| format!("{FILES}/{secret}/kubeconfig");
        let own: Vec<(&str, String)> = match component {
            ControlPlaneComponent::Etcd => {
                let member = format!("$(POD_NAME).etcd.{namespace}.svc");
                vec![
                    ("name", "$(POD_NAME)".into()),
                    ("data-dir", "/var/lib/etcd/data".into()),
                    ("listen-client-urls", format!("https://0.0.0.0:{ETCD_PORT}")),
                    ("advertise-client-urls", format!("https://{member}:{ETCD_PORT}")),
                    ("listen-peer-urls", "https://0.0.0.0:2380".into()),
                    ("initial-advertise-peer-urls", format!("https://{member}:2380")),
                    ("initial-cluster", self.names.etcd_peers(self.members.0)),
                    ("initial-cluster-state", if self.etcd_exists { "existing" } else { "new" }.into()),
                    ("initial-cluster-token", namespace.clone()),
                    ("listen-metrics-urls", "http://0.0.0.0:2381".into()),
                    ("client-cert-auth", "true".into()),
                    ("cert-file", file("etcd-server-tls", "tls.crt")),
                    ("key-file", file("etcd-server-tls", "tls.key")),
                    ("trusted-ca-file", file("etcd-ca", "ca.crt")),
                    ("peer-client-cert-auth", "true".into()),
                    ("peer-cert-file", file("etcd-peer-tls", "tls.crt")),
                    ("peer-key-file", file("etcd-peer-tls", "tls.key")),
                    ("peer-trusted-ca-file", file("etcd-ca", "ca.crt")),
                ]
            }
            ControlPlaneComponent::Apiserver => {
                let mut own = vec![
                    ("secure-port", API_PORT.to_string()),
                    ("bind-address", "0.0.0.0".into()),
                    ("tls-cert-file", file("apiserver-tls", "tls.crt")),
                    ("tls-private-key-file", file("apiserver-tls", "tls.key")),
                    ("client-ca-file", file("ca", "ca.crt")),
                    ("kubelet-client-certificate", file("apiserver-kubelet-client", "tls.crt")),
                    ("kubelet-client-key", file("apiserver-kubelet-client", "tls.key")),
                    ("kubelet-certificate-authority", file("kubelet-ca", "ca.crt")),
                    ("service-account-issuer", format!("https://kubernetes.default.svc.{}", network.dns_domain)),
                    ("service-account-key-file", file("service-account", "sa.pub")),
                    ("service-account-signing-key-file", file("service-account", "sa.key")),
                    ("service-cluster-ip-range", network.services.clone()),
                    ("enable-bootstrap-token-auth", "true".into()),
                    ("requestheader-client-ca-file", file("front-proxy-ca", "ca.crt")),
                    ("requestheader-allowed-names", "front-proxy-client".into()),
                    ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
                    ("requestheader-group-headers", "X-Remote-Group".into()),
                    ("requestheader-username-headers", "X-Remote-User".into()),
                    ("proxy-client-cert-file", file("front-proxy-client", "tls.crt")),
                    ("proxy-client-key-file", file("front-proxy-client", "tls.key")),
                ];
                if keeps_endpoint(self.spec, self.package) {
                    own.push(("endpoint-reconciler-type", "none".into()));
                }
                match (&self.spec.datastore.etcd, &self.spec.datastore.external) {
                    (None, Some(external)) => {
                        let prefix = || format!("/{}/{}", self.names.fleet, self.names.name);
                        own.extend([
                            ("etcd-servers", external.endpoints.join(",")),
                            ("etcd-prefix", external.prefix.clone().unwrap_or_else(prefix)),
                            ("etcd-cafile", file(copied_secrets::DATASTORE, "ca.crt")),
                            ("etcd-certfile", file(copied_secrets::DATASTORE, "tls.crt")),
                            ("etcd-keyfile", file(copied_secrets::DATASTORE, "tls.key")),
                        ]);
                    }
                    _ => own.extend([
                        ("etcd-servers", self.names.etcd_clients(self.members.1).join(",")),
                        ("etcd-cafile", file("etcd-ca", "ca.crt")),
                        ("etcd-certfile", file("apiserver-etcd-client", "tls.crt")),
                        ("etcd-keyfile", file("apiserver-etcd-client", "tls.key")),
                    ]),
                }
                own
            }
            ControlPlaneComponent::ControllerManager => vec![
                ("secure-port", "10257".into()),
                ("bind-address", "0.0.0.0".into()),
                ("kubeconfig", kubeconfig("controller-manager-kubeconfig")),
                ("authentication-kubeconfig", kubeconfig("controller-manager-kubeconfig")),
                ("authorization-kubeconfig", kubeconfig("controller-manager-kubeconfig")),
                ("root-ca-file", file("ca", "ca.crt")),
                ("cluster-signing-kube-apiserver-client-cert-file", file("ca", "tls.crt")),
                ("cluster-signing-kube-apiserver-client-key-file", file("ca", "tls.key")),
                ("cluster-signing-kubelet-client-cert-file", file("ca", "tls.crt")),
                ("cluster-signing-kubelet-client-key-file", file("ca", "tls.key")),
                ("cluster-signing-kubelet-serving-cert-file", file("kubelet-ca", "tls.crt")),
                ("cluster-signing-kubelet-serving-key-file", file("kubelet-ca", "tls.key")),
                ("cluster-signing-legacy-unknown-cert-file", file("ca", "tls.crt")),
                ("cluster-signing-legacy-unknown-key-file", file("ca", "tls.key")),
                ("service-account-private-key-file", file("service-account", "sa.key")),
                ("use-service-account-credentials", "true".into()),
                ("leader-elect", "true".into()),
                ("cluster-name", self.names.name.clone()),
                ("allocate-node-cidrs", "true".into()),
                ("cluster-cidr", network.pods.clone()),
                ("service-cluster-ip-range", network.services.clone()),
            ],
            ControlPlaneComponent::Scheduler => vec![
                ("secure-port", "10259".into()),
                ("bind-address", "0.0.0.0".into()),
                ("authentication-kubeconfig", kubeconfig("scheduler-kubeconfig")),
                ("authorization-kubeconfig", kubeconfig("scheduler-kubeconfig")),
            ],
        };
        let emulated = self.emulates.filter(|_| component != ControlPlaneComponent::Etcd);
        let own = own.into_iter().chain(emulated.map(|minor| ("emulated-version", minor.to_owned())));
        own.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The configuration files of a component, by name: those of the package version, overridden by those of the cluster. The scheduler always has
    /// a file, which contains the path of its kubeconfig.
    fn config_files(&self, component: ControlPlaneComponent) -> Vec<(String, String)> {
        let package = self.package.components.of(component);
        let mut files: BTreeMap<String, String> =
            package.config.iter().map(|file| (file.name.clone(), file.content.clone())).collect();
        for file in self.overrides(component).config {
            match file.content {
                Some(content) => drop(files.insert(file.name, content)),
                // The file comes from a Secret.
                None => drop(files.remove(&file.name)),
            }
        }
        if component == ControlPlaneComponent::Scheduler && self.secret_files(component).is_empty() {
            let given = files.remove("scheduler.yaml").unwrap_or_default();
            files.insert("scheduler.yaml".to_owned(), scheduler_config(&given));
        }
        files.into_iter().collect()
    }

    /// Names of the component's configuration files that come from Secrets.
    fn secret_files(&self, component: ControlPlaneComponent) -> Vec<String> {
        let given = self.overrides(component).config.into_iter();
        given.filter(|file| file.secret.is_some()).map(|file| file.name).collect()
    }

    fn config(&self, component: ControlPlaneComponent) -> Option<Object> {
        let files: BTreeMap<_, _> = self.config_files(component).into_iter().collect();
        (!files.is_empty()).then(|| {
            let name = format!("{}-config", component.binary());
            self.object(Kind::ConfigMap, &name, component, json!({ "data": files }))
        })
    }

    /// The volume with the component's configuration files from ConfigMaps and Secrets.
    fn config_volume(&self, component: ControlPlaneComponent) -> Option<Value> {
        let (files, secret) = (self.config_files(component), self.secret_files(component));
        let name = format!("{}-config", component.binary());
        if secret.is_empty() {
            let volume = json!({ "name": "config", "configMap": { "name": name, "defaultMode": 0o444 } });
            return (!files.is_empty()).then_some(volume);
        }
        let items: Vec<_> = secret.iter().map(|file| json!({ "key": file, "path": file })).collect();
        let mut sources = vec![json!({ "secret": { "name": copied_secrets::config(component), "items": items } })];
        if !files.is_empty() {
            sources.push(json!({ "configMap": { "name": name } }));
        }
        Some(json!({ "name": "config", "projected": { "sources": sources, "defaultMode": 0o440 } }))
    }

    fn deployment(&self, component: ControlPlaneComponent) -> Object {
        let rest = json!({ "spec": {
            "replicas": self.spec.replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 600,
            // The surge pod must be ready before an old pod is deleted: the endpoint always has a backend.
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "selector": { "matchLabels": self.selector(component) },
            "template": self.pod(component),
        } });
        self.object(Kind::Deployment, component.binary(), component, rest)
    }

    /// Labels that do not change during the life of a cluster: the selector of a workload is immutable.
    fn selector(&self, component: ControlPlaneComponent) -> Value {
        json!({ names::CLUSTER: self.names.name, names::COMPONENT: component.binary() })
    }

    fn pod(&self, component: ControlPlaneComponent) -> Value {
        let package = self.package.components.of(component);
        let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
        for (secret, keys) in secrets(component, self.spec.datastore.etcd.is_none()) {
            let items: Vec<_> = keys.iter().map(|key| json!({ "key": key, "path": key })).collect();
            volumes.push(
                json!({ "name": secret, "secret": { "secretName": secret, "defaultMode": 0o440, "items": items } }),
            );
            mounts.push(json!({ "name": secret, "mountPath": format!("{FILES}/{secret}"), "readOnly": true }));
        }
        if let Some(volume) = self.config_volume(component) {
            volumes.push(volume);
            mounts.push(json!({ "name": "config", "mountPath": component.config_folder(), "readOnly": true }));
        }
        if component == ControlPlaneComponent::Etcd {
            mounts.push(json!({ "name": "data", "mountPath": "/var/lib/etcd" }));
        } else {
            // Some components write files that they generate here, such as self-signed certificates.
            volumes.push(json!({ "name": "scratch", "emptyDir": {} }));
            mounts.push(json!({ "name": "scratch", "mountPath": "/tmp" }));
        }
        let mut container = json!({
            "name": component.binary(),
            "image": package.image,
            "imagePullPolicy": "IfNotPresent",
            "command": [component.binary()],
            "args": self.arguments(component),
            "ports": ports(component),
            "volumeMounts": mounts,
            "resources": self.resources(component),
            "securityContext": pods::bound(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        });
        merge(&mut container, probes(component));
        if component == ControlPlaneComponent::Etcd {
            let name = json!([{ "name": "POD_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } }]);
            container["env"] = name;
        }
        let spread = |topology: &str| {
            json!({
                "topologyKey": topology, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": { "matchLabels": self.selector(component) },
            })
        };
        let mut spec = json!({
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": pods::confined(),
            "terminationGracePeriodSeconds": if component == ControlPlaneComponent::Apiserver { 70 } else { 30 },
            "topologySpreadConstraints": [spread("kubernetes.io/hostname"), spread("topology.kubernetes.io/zone")],
            "containers": [container],
            "volumes": volumes,
        });
        pods::place(&mut spec, &self.spec.placement);
        let mut template = json!({ "metadata": { "labels": self.labels(component) }, "spec": spec });
        if component == ControlPlaneComponent::Apiserver {
            template["metadata"]["labels"][names::SERVING] = json!("true");
        }
        // Files are read when a component starts, and some components read their trust bundle only then, too.
        // Bootstrapping or joining is no difference that restarts an etcd member.
        // The number of members does not matter to a member that has its data.
        let peers = format!("--initial-cluster={}", self.names.etcd_peers(self.members.0));
        let text = json!([template, self.config_files(component), self.trusts]).to_string();
        let text = text.replace(GOES_ON, BEGINS).replace(&peers, "--initial-cluster=");
        let digest = super::digest(&text, 8);
        template["metadata"]["annotations"] = json!({ names::APPLIED_HASH: digest, TRUST_BUNDLE_HASH: self.trusts });
        template
    }

    fn resources(&self, component: ControlPlaneComponent) -> Value {
        let usual = match component {
            ControlPlaneComponent::Etcd => json!({ "cpu": "100m", "memory": "128Mi" }),
            ControlPlaneComponent::Apiserver => json!({ "cpu": "100m", "memory": "384Mi" }),
            ControlPlaneComponent::ControllerManager => json!({ "cpu": "50m", "memory": "128Mi" }),
            ControlPlaneComponent::Scheduler => json!({ "cpu": "50m", "memory": "96Mi" }),
        };
        let mut resources = json!({ "requests": usual });
        if let Some(given) = self.overrides(component).resources {
            merge(&mut resources["requests"], json!(given.requests));
            if !given.limits.is_empty() {
                resources["limits"] = json!(given.limits);
            }
        }
        resources
    }

    fn budget(&self, component: ControlPlaneComponent, rest: Value) -> Object {
        let mut spec = json!({
            "selector": { "matchLabels": self.selector(component) },
            // A pod that is not ready may always be evicted.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        });
        merge(&mut spec, rest);
        self.object(Kind::PodDisruptionBudget, component.binary(), component, json!({ "spec": spec }))
    }
}

fn etcd(of: &Blueprint<'_>) -> Vec<Object> {
    let component = ControlPlaneComponent::Etcd;
    let Some(etcd) = &of.spec.datastore.etcd else { return Vec::new() };
    let mut claim = json!({
        "metadata": { "name": "data", "labels": of.labels(component) },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "resources": { "requests": { "storage": etcd.storage.size } },
        },
    });
    if let Some(class) = &etcd.storage.class {
        claim["spec"]["storageClassName"] = json!(class);
    }
    let set = json!({ "spec": {
        "serviceName": component.binary(),
        "replicas": of.members.0,
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 2,
        // The operator recreates members itself, one at a time, and only while the others have a quorum.
        "updateStrategy": { "type": "OnDelete" },
        "selector": { "matchLabels": of.selector(component) },
        "template": of.pod(component),
        "volumeClaimTemplates": [claim],
    } });
    let service = json!({ "spec": {
        "type": "ClusterIP",
        "clusterIP": "None",
        // Members find each other before any of them is ready.
        "publishNotReadyAddresses": true,
        "selector": of.selector(component),
        "ports": [service_port("client", ETCD_PORT), service_port("peer", 2380)],
    } });
    vec![
        of.object(Kind::Service, component.binary(), component, service),
        of.budget(component, json!({ "maxUnavailable": 1 })),
        of.object(Kind::StatefulSet, component.binary(), component, set),
    ]
}

fn apiserver(of: &Blueprint<'_>) -> Vec<Object> {
    let component = ControlPlaneComponent::Apiserver;
    let endpoint = &of.spec.endpoint;
    let mut port = service_port("https", API_PORT);
    if let (EndpointType::NodePort, Some(given)) = (endpoint.type_, endpoint.port) {
        port["nodePort"] = json!(given);
    }
    let type_ = match endpoint.type_ {
        EndpointType::NodePort => "NodePort",
        EndpointType::LoadBalancer => "LoadBalancer",
        EndpointType::ClusterIP | EndpointType::External => "ClusterIP",
    };
    let service = json!({ "spec": { "type": type_, "selector": of.selector(component), "ports": [port] } });
    vec![
        of.object(Kind::Service, component.binary(), component, service),
        of.budget(component, json!({ "maxUnavailable": 1 })),
        of.deployment(component),
    ]
}

/// Argument of members that join an existing etcd cluster.
const GOES_ON: &str = "--initial-cluster-state=existing";
const BEGINS: &str = "--initial-cluster-state=new";

/// The same object, for a new etcd cluster.
pub(super) fn for_new_cluster(body: &Value) -> Value {
    serde_json::from_str(&body.to_string().replace(GOES_ON, BEGINS)).unwrap_or_default()
}

/// The digest of the pod template of that object: pods with another digest are old.
pub fn template_digest(object: &Object) -> Option<&str> {
    object.body["spec"]["template"]["metadata"]["annotations"][names::APPLIED_HASH].as_str()
}

/// The Secrets that a component's pods mount, and which of their keys. Only components that sign get the key of an authority.
fn secrets(component: ControlPlaneComponent, external: bool) -> Vec<(&'static str, &'static [&'static str])> {
    const TRUST: &[&str] = &["ca.crt"];
    const PAIR: &[&str] = &["tls.crt", "tls.key"];
    // The kubeconfig names the other files, which clients read again when they change.
    const KUBECONFIG: &[&str] = &["kubeconfig", "ca.crt", "tls.crt", "tls.key"];
    match component {
        ControlPlaneComponent::Etcd => vec![("etcd-ca", TRUST), ("etcd-server-tls", PAIR), ("etcd-peer-tls", PAIR)],
        ControlPlaneComponent::Apiserver => {
            let mut all = vec![
                ("ca", TRUST),
                ("front-proxy-ca", TRUST),
                ("kubelet-ca", TRUST),
                ("service-account", &["sa.key", "sa.pub"]),
                ("apiserver-tls", PAIR),
                ("apiserver-kubelet-client", PAIR),
                ("front-proxy-client", PAIR),
            ];
            match external {
                true => all.push((copied_secrets::DATASTORE, &["ca.crt", "tls.crt", "tls.key"])),
                false => all.extend([("etcd-ca", TRUST), ("apiserver-etcd-client", PAIR)]),
            }
            all
        }
        ControlPlaneComponent::ControllerManager => vec![
            ("ca", &["ca.crt", "tls.crt", "tls.key"]),
            ("kubelet-ca", PAIR),
            ("service-account", &["sa.key"]),
            ("controller-manager-kubeconfig", KUBECONFIG),
        ],
        ControlPlaneComponent::Scheduler => vec![("scheduler-kubeconfig", KUBECONFIG)],
    }
}

fn file(secret: &str, key: &str) -> String {
    format!("{FILES}/{secret}/{key}")
}

fn ports(component: ControlPlaneComponent) -> Value {
    let port = |name: &str, number: u16| json!({ "name": name, "containerPort": number, "protocol": "TCP" });
    match component {
        ControlPlaneComponent::Etcd => json!([port("client", ETCD_PORT), port("peer", 2380), port("metrics", 2381)]),
        ControlPlaneComponent::Apiserver => json!([port("https", API_PORT)]),
        ControlPlaneComponent::ControllerManager => json!([port("https", 10257)]),
        ControlPlaneComponent::Scheduler => json!([port("https", 10259)]),
    }
}

fn service_port(name: &str, number: u16) -> Value {
    json!({ "name": name, "port": number, "targetPort": number, "protocol": "TCP" })
}

/// Readiness is probed every second, so that a new replica serves as soon as it can; liveness tolerates more, so that a busy replica is not killed.
fn probes(component: ControlPlaneComponent) -> Value {
    let (port, scheme, ready, alive) = match component {
        ControlPlaneComponent::Etcd => (2381, "HTTP", "/readyz", "/livez"),
        ControlPlaneComponent::Apiserver => (API_PORT, "HTTPS", "/readyz", "/livez"),
        ControlPlaneComponent::ControllerManager => (10257, "HTTPS", "/healthz", "/healthz"),
        ControlPlaneComponent::Scheduler => (10259, "HTTPS", "/readyz", "/livez"),
    };
    let probe = |path: &str, every: u32, timeout: u32, failures: u32| {
        json!({
            "httpGet": { "path": path, "port": port, "scheme": scheme },
            "periodSeconds": every, "timeoutSeconds": timeout, "failureThreshold": failures, "successThreshold": 1,
        })
    };
    json!({
        "startupProbe": probe(alive, 1, 5, 300),
        "readinessProbe": probe(ready, 1, 5, 3),
        "livenessProbe": probe(alive, 10, 15, 8),
    })
}

/// The given configuration with the path of the kubeconfig in it: with a configuration file, the scheduler ignores its `--kubeconfig` argument.
fn scheduler_config(given: &str) -> String {
    let mut config = serde_saphyr::from_str::<Value>(given).ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
    if config.get("apiVersion").is_none() {
        config["apiVersion"] = json!("kubescheduler.config.k8s.io/v1");
    }
    config["kind"] = json!("KubeSchedulerConfiguration");
    let own = json!({
        "clientConnection": { "kubeconfig": format!("{FILES}/scheduler-kubeconfig/kubeconfig") },
        "leaderElection": { "leaderElect": true },
    });
    merge(&mut config, own);
    config.to_string()
}

/// Merges `more` into `base` recursively; `more` wins.
fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert_with(|| Value::Object(Map::new())), value);
            }
        }
        (base, more) => *base = more,
    }
}
