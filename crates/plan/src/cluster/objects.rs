//! The objects of a control plane in the meta cluster, as they are applied.

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

/// Where the files of Secrets and ConfigMaps are in containers.
const FILES: &str = "/etc/kubernetes";
/// Where clients of the API server connect to it, in its pods and at its Service.
pub const API_PORT: u16 = 6443;
/// Where clients of etcd connect to it.
pub const ETCD_PORT: u16 = 2379;

/// An object that is applied: what it is, and all that we say of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// What is applied, whole.
    pub body: Value,
}

/// The kinds of objects that a control plane is made of, Secrets and the Namespace aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Files of component configuration.
    ConfigMap,
    /// How components are reached.
    Service,
    /// Who may reach them.
    NetworkPolicy,
    /// How many may be missing.
    PodDisruptionBudget,
    /// etcd.
    StatefulSet,
    /// The rest.
    Deployment,
}

impl Kind {
    /// All of them, in the order in which they are applied.
    pub const ALL: [Self; 6] = [
        Self::ConfigMap,
        Self::Service,
        Self::NetworkPolicy,
        Self::PodDisruptionBudget,
        Self::StatefulSet,
        Self::Deployment,
    ];

    /// As objects say it.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Service => "v1",
            Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::PodDisruptionBudget => "policy/v1",
            Self::StatefulSet | Self::Deployment => "apps/v1",
        }
    }

    /// As objects say it.
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

/// What the objects are made from.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint<'a> {
    /// What the cluster is called, and where it is.
    pub names: &'a Names,
    /// What is declared.
    pub spec: &'a ClusterSpec,
    /// The package version of the component: while a cluster is upgraded, they differ.
    pub package: &'a ClusterPackageVersionSpec,
    /// Whether etcd has its members already, so that a new one joins them instead of beginning anew.
    pub etcd_exists: bool,
    /// The minor of Kubernetes that is emulated, so that it is possible to go back to it.
    pub emulates: Option<&'a str>,
    /// The digest of the authorities that are trusted and that sign.
    pub trusts: &'a str,
    /// The number of members of etcd that run, and of those that API servers connect to.
    pub members: (u32, u32),
}

/// The annotation of a component's pods that says which authorities they trust, as a digest.
pub const TRUST_BUNDLE_HASH: &str = "fleetwright.io/trust-bundle-hash";

/// The annotation of a component's workload that says which package version it is of.
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

    /// The arguments of a component: those of the package version, over them those of the cluster, and over all our own.
    fn arguments(&self, component: ControlPlaneComponent) -> Vec<String> {
        let package = self.package.components.of(component);
        let mut all: BTreeMap<String, String> = self.default_arguments(component);
        all.extend(package.args.clone());
        // While a cluster is changed, what it says of the version to come is not for the one that is there.
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
                // The file says all of it, and both together are refused.
                if argument == "authorization-config" {
                    all.remove("authorization-mode");
                }
                // Its Secret may change at any time, and keys are replaced by changing it.
                if argument == "encryption-provider-config" {
                    all.insert("encryption-provider-config-automatic-reload".to_owned(), "true".to_owned());
                }
            }
        }
        all.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }

    /// What a component gets unless somebody says otherwise.
    fn default_arguments(&self, component: ControlPlaneComponent) -> BTreeMap<String, String> {
        let usual: &[(&str, &str)] = match component {
            ControlPlaneComponent::Etcd => &[
                ("auto-compaction-mode", "periodic"),
                ("auto-compaction-retention", "5m"),
                ("quota-backend-bytes", "8589934592"),
                ("snapshot-count", "10000"),
            ],
            ControlPlaneComponent::Apiserver => &[
                // What nodes need, such as kube-proxy, is. Pod security says who else may be.
                ("allow-privileged", "true"),
                ("authorization-mode", "Node,RBAC"),
                ("enable-admission-plugins", "NodeRestriction"),
                ("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname"),
                ("profiling", "false"),
                // It answers until everybody who balances load knows that it goes.
                ("shutdown-delay-duration", "10s"),
            ],
            ControlPlaneComponent::ControllerManager => &[
                ("controllers", "*,bootstrap-signer-controller,token-cleaner-controller"),
                // With its own 20 and 30, it acts on a quota of a new cluster seconds later. The API server protects itself by priority and fairness.
                ("kube-api-burst", "200"),
                ("kube-api-qps", "100"),
                ("profiling", "false"),
            ],
            ControlPlaneComponent::Scheduler => &[],
        };
        usual.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// What the operator alone says, because its other objects go with it.
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

    /// The files of component configuration, by name: those of the package version, those of the cluster over them. The scheduler always has
    /// one, which says where it finds the API server.
    fn config_files(&self, component: ControlPlaneComponent) -> Vec<(String, String)> {
        let package = self.package.components.of(component);
        let mut files: BTreeMap<String, String> =
            package.config.iter().map(|file| (file.name.clone(), file.content.clone())).collect();
        for file in self.overrides(component).config {
            match file.content {
                Some(content) => drop(files.insert(file.name, content)),
                // It comes from a Secret.
                None => drop(files.remove(&file.name)),
            }
        }
        if component == ControlPlaneComponent::Scheduler && self.secret_files(component).is_empty() {
            let given = files.remove("scheduler.yaml").unwrap_or_default();
            files.insert("scheduler.yaml".to_owned(), scheduler_config(&given));
        }
        files.into_iter().collect()
    }

    /// The names of files of component configuration that come from Secrets.
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

    /// What holds the files of component configuration, wherever they come from.
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
            // One more before one less: whoever answers goes on until another does.
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "selector": { "matchLabels": self.selector(component) },
            "template": self.pod(component),
        } });
        self.object(Kind::Deployment, component.binary(), component, rest)
    }

    /// What does not change in the life of a cluster.
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
            // Some write what they make for themselves there, such as certificates of their own.
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
        // Files are read when a component starts, and some read what they trust only then, too.
        // Whether etcd begins or goes on is no reason to begin anew.
        // How many members there are does not matter to one that has its data.
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
            // A pod that does not work may always be moved.
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
        // The operator replaces members itself, one at a time, and only while the others agree.
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

/// An argument of members that go on, and of those that begin.
const GOES_ON: &str = "--initial-cluster-state=existing";
const BEGINS: &str = "--initial-cluster-state=new";

/// The same, of a cluster that begins.
pub(super) fn for_new_cluster(body: &Value) -> Value {
    serde_json::from_str(&body.to_string().replace(GOES_ON, BEGINS)).unwrap_or_default()
}

/// The digest of what the pods of that object are made from: pods that carry another one are of before.
pub fn template_digest(object: &Object) -> Option<&str> {
    object.body["spec"]["template"]["metadata"]["annotations"][names::APPLIED_HASH].as_str()
}

/// The Secrets that a component's pods have, and which keys of them. An authority's key is only for who signs.
fn secrets(component: ControlPlaneComponent, external: bool) -> Vec<(&'static str, &'static [&'static str])> {
    const TRUST: &[&str] = &["ca.crt"];
    const PAIR: &[&str] = &["tls.crt", "tls.key"];
    // It names the other files, which are read again when they change.
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

/// Ready every second, so that a new replica serves as soon as it can; alive with patience, because a busy one must not be killed for it.
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

/// What is given, with the place of the kubeconfig in it: with a file, the scheduler does not look at its argument.
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

/// Puts `more` over `base`, object by object.
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
