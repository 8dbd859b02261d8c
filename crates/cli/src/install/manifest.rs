//! The objects of an installation.

use fleetwright_api::names;
use fleetwright_plan::cluster::networks::Network;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::operators::{OperatorRules, OperatorSelection, rights};

/// The port of metrics and probes.
pub(crate) const PORT: u16 = 9440;

/// The name of the objects that all operators share. Objects of one operator have the name [`OperatorSelection::object`].
pub(crate) const NAME: &str = "fleetwright-operators";

/// The label of objects of one operator.
const COMPONENT: &str = "app.kubernetes.io/component";

/// The label of all objects that an installation created.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub(crate) const MANAGER: &str = "fleetwright-install";

/// The role of bootstrap tokens: they may request certificates.
const BOOTSTRAPPER: &str = "system:node-bootstrapper";

/// The namespace of bootstrap tokens.
const TOKENS_NAMESPACE: &str = "kube-system";

/// The group of admission policies.
pub(crate) const POLICIES: &str = "admissionregistration.k8s.io";

/// The label of the namespaces that may read the metrics.
const SCRAPER: &str = "fleetwright.io/reads-metrics";

/// The parameters of an installation.
#[derive(Clone, Debug)]
pub(crate) struct ManifestOptions {
    /// The namespace in which the operators run.
    pub(crate) namespace: String,
    /// The namespace that they serve.
    pub(crate) fleet_namespace: String,
    pub(crate) image: String,
    pub(crate) replicas: u32,
    pub(crate) priority_class: Option<String>,
}

/// One object to apply.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    pub(crate) resource: ApiResource,
}

impl Object {
    fn new(value: Value) -> Self {
        let of = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (of("apiVersion"), of("kind"));
        let (group, version) = match api_version.split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), api_version.clone()),
        };
        let plural = match kind.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        };
        let resource = ApiResource { group, version, api_version, kind, plural: plural.to_lowercase() };
        Self { value, resource }
    }

    pub(crate) fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    /// The name in the notation of kubectl: `deployment.apps/web`.
    pub(crate) fn display(&self) -> String {
        display(&self.resource, self.name())
    }

    pub(crate) fn api(&self, client: &kube::Client) -> kube::Api<DynamicObject> {
        match self.namespace() {
            Some(namespace) => kube::Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => kube::Api::all_with(client.clone(), &self.resource),
        }
    }

    pub(crate) fn is_crd(&self) -> bool {
        self.resource.kind == "CustomResourceDefinition"
    }

    /// Whether the object grants bootstrap tokens the right to request certificates.
    pub(crate) fn lets_join(&self) -> bool {
        self.resource.kind == "ClusterRoleBinding" && self.value["roleRef"]["name"] == BOOTSTRAPPER
    }

    /// Whether the kind is not served by every API server: the admission policies.
    pub(crate) fn is_policy(&self) -> bool {
        self.resource.group == POLICIES
    }

    pub(crate) fn is_namespace(&self) -> bool {
        self.resource.kind == "Namespace"
    }
}

/// An object's name in the notation of kubectl.
pub(crate) fn display(resource: &ApiResource, name: &str) -> String {
    let kind = resource.kind.to_lowercase();
    match resource.group.as_str() {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
}

/// All objects in the order of their apply: dependencies come first.
pub(crate) fn objects(choices: &ManifestOptions) -> Vec<Object> {
    let mut all = vec![];
    for mut value in fleetwright_api::crds_json() {
        label(&mut value, &json!({MANAGED_BY: MANAGER, "app.kubernetes.io/part-of": "fleetwright"}));
        all.push(value);
    }
    all.push(operator_namespace(choices));
    if choices.fleet_namespace != choices.namespace {
        all.push(named("v1", "Namespace", &choices.fleet_namespace, None));
    }
    for which in OperatorSelection::ALL {
        all.push(of(which, "v1", "ServiceAccount", which.object(), Some(&choices.namespace)));
        all.extend(access(choices, which, &rights(&[which], &choices.namespace)));
    }
    all.push(join_binding(choices));
    for (which, mut value) in policies(choices) {
        label(&mut value, &labels_of(which));
        all.push(value);
    }
    all.push(network_policy(choices));
    all.extend(OperatorSelection::ALL.map(|which| disruption_budget(choices, which)));
    all.extend(OperatorSelection::ALL.map(|which| deployment(choices, which)));
    all.into_iter().map(Object::new).collect()
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": "fleetwright",
        MANAGED_BY: MANAGER,
    })
}

fn labels_of(which: OperatorSelection) -> Value {
    let mut labels = labels();
    labels[COMPONENT] = json!(which.name());
    labels
}

/// The selector of the pods of all operators.
fn selector() -> Value {
    json!({"app.kubernetes.io/name": NAME})
}

/// The selector of the pods of one operator. A Deployment's selector is immutable, so it contains no version.
fn selector_of(which: OperatorSelection) -> Value {
    json!({"app.kubernetes.io/name": NAME, COMPONENT: which.name()})
}

/// Like [`named`], for one operator.
fn of(which: OperatorSelection, api_version: &str, kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut value = named(api_version, kind, name, namespace);
    label(&mut value, &labels_of(which));
    value
}

fn label(value: &mut Value, labels: &Value) {
    let (Some(labels), Some(metadata)) = (labels.as_object(), value["metadata"].as_object_mut()) else { return };
    let present = metadata.entry("labels").or_insert_with(|| json!({}));
    for (key, text) in labels {
        present[key] = text.clone();
    }
}

fn named(api_version: &str, kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": labels()}});
    if let Some(namespace) = namespace {
        value["metadata"]["namespace"] = json!(namespace);
    }
    value
}

/// The operators run without any privilege, so that their namespace can enforce it.
fn operator_namespace(choices: &ManifestOptions) -> Value {
    let mut value = named("v1", "Namespace", &choices.namespace, None);
    label(&mut value, &json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    value
}

const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";

fn access(choices: &ManifestOptions, which: OperatorSelection, rights: &OperatorRules) -> Vec<Value> {
    let account = which.object();
    // Names of ClusterRoles contain the namespace, so that several installations do not share one.
    let cluster_name = format!("{account}:{}", choices.namespace);
    let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": choices.namespace}]);
    let mut all = vec![];
    let mut give = |kind: &str, name: &str, namespace: Option<&str>, rules: &[PolicyRule]| {
        if rules.is_empty() {
            return;
        }
        let mut role = of(which, RBAC_VERSION, kind, name, namespace);
        role["rules"] = json!(rules);
        let mut binding = of(which, RBAC_VERSION, &format!("{kind}Binding"), name, namespace);
        binding["roleRef"] = json!({"apiGroup": RBAC, "kind": kind, "name": name});
        binding["subjects"] = subjects.clone();
        all.extend([role, binding]);
    };
    give("ClusterRole", &cluster_name, None, &rights.cluster);
    // The lease is in the namespace that it guards.
    let namespaced = [&rights.namespaced[..], &rights.lease[..]].concat();
    give("Role", account, Some(&choices.fleet_namespace), &namespaced);
    give("Role", &cluster_name, Some(&choices.namespace), &rights.keys);
    // Named like the ClusterRoles, since all installations share kube-system.
    give("Role", &cluster_name, Some(TOKENS_NAMESPACE), &rights.tokens);
    if !rights.control_plane.is_empty() {
        // The operator itself binds this role, in the namespace of each control plane.
        let name = fleetwright_clusters::control_plane_role(&choices.namespace);
        let mut role = of(which, RBAC_VERSION, "ClusterRole", &name, None);
        role["rules"] = json!(rights.control_plane);
        all.push(role);
    }
    all
}

/// The admission policies, each with its binding.
fn policies(choices: &ManifestOptions) -> Vec<(OperatorSelection, Value)> {
    let (namespace, fleet) = (choices.namespace.as_str(), choices.fleet_namespace.as_str());
    let (clusters, machines) = (OperatorSelection::Clusters, OperatorSelection::Machines);
    // The Cluster-Operator may create objects with which it could bind its account anywhere, or get the tokens of others: the policy confines it.
    let confined = fleetwright_clusters::admission_policy(namespace, clusters.object(), fleet);
    // RBAC cannot tell a condition from a binding in the status of a Machine, nor a bootstrap token from another Secret.
    let policy = format!("{}.{namespace}", machines.object());
    let user = format!("system:serviceaccount:{namespace}:{}", machines.object());
    let restricted = fleetwright_machines::admission_policies(&policy, &user, fleet);
    let confined = confined.into_iter().map(|value| (clusters, value));
    confined.chain(restricted.into_iter().map(|value| (machines, value))).collect()
}

/// Grants bootstrap tokens the right to request certificates.
fn join_binding(choices: &ManifestOptions) -> Value {
    let name = format!("{NAME}:{}:join", choices.namespace);
    let mut binding = named(RBAC_VERSION, "ClusterRoleBinding", &name, None);
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": BOOTSTRAPPER});
    binding["subjects"] = json!([{"apiGroup": RBAC, "kind": "Group", "name": fleetwright_plan::join::BOOTSTRAPPERS}]);
    binding
}

/// The rights of each operator as a table in Markdown, for the guide.
pub(crate) fn rights_table(choices: &ManifestOptions) -> String {
    let mut out = String::from("| account | where | rights |\n|---|---|---|\n");
    let words = |rules: &[PolicyRule]| -> String {
        let rule = |rule: &PolicyRule| {
            let group = rule.api_groups.iter().flatten().next().filter(|group| !group.is_empty());
            let resources = rule.resources.iter().flatten().map(|resource| match (group, resource.split_once('/')) {
                (None, _) => resource.clone(),
                (Some(group), None) => format!("{resource}.{group}"),
                (Some(group), Some((plural, sub))) => format!("{plural}.{group}/{sub}"),
            });
            let names: Vec<_> = rule.resource_names.iter().flatten().map(|name| format!("`{name}`")).collect();
            let names = if names.is_empty() { String::new() } else { format!(" {}", names.join(", ")) };
            format!("`{}`{names}: {}", resources.collect::<Vec<_>>().join("`, `"), rule.verbs.join(", "))
        };
        rules.iter().map(rule).collect::<Vec<_>>().join("<br>")
    };
    for which in OperatorSelection::ALL {
        let rights = rights(&[which], &choices.namespace);
        let namespaced = [&rights.namespaced[..], &rights.lease[..]].concat();
        let places = [
            (format!("namespace `{}`", choices.fleet_namespace), &namespaced),
            (format!("namespace `{}`", choices.namespace), &rights.keys),
            (format!("namespace `{TOKENS_NAMESPACE}`"), &rights.tokens),
            ("each control plane's namespace".to_owned(), &rights.control_plane),
            ("cluster".to_owned(), &rights.cluster),
        ];
        for (place, rules) in places.into_iter().filter(|(_, rules)| !rules.is_empty()) {
            out.push_str(&format!("| `{}` | {place} | {} |\n", which.object(), words(rules)));
        }
    }
    out
}

/// Metrics are plain HTTP: only labelled namespaces can read them. Probes come from the node and are not affected.
fn network_policy(choices: &ManifestOptions) -> Value {
    let mut value = named("networking.k8s.io/v1", "NetworkPolicy", NAME, Some(&choices.namespace));
    value["spec"] = json!({
        "podSelector": {"matchLabels": selector()},
        "policyTypes": ["Ingress"],
        "ingress": [{
            "from": [{"namespaceSelector": {"matchLabels": {SCRAPER: "true"}}}],
            "ports": [{"protocol": "TCP", "port": PORT}],
        }],
    });
    value
}

fn disruption_budget(choices: &ManifestOptions, which: OperatorSelection) -> Value {
    let mut value = of(which, "policy/v1", "PodDisruptionBudget", which.object(), Some(&choices.namespace));
    // maxUnavailable rather than minAvailable: a single replica must not block a drain.
    value["spec"] = json!({
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_of(which)},
    });
    value
}

fn deployment(choices: &ManifestOptions, which: OperatorSelection) -> Value {
    let mut value = of(which, "apps/v1", "Deployment", which.object(), Some(&choices.namespace));
    let mut args = vec![
        "operators".to_owned(),
        format!("--only={}", which.name()),
        format!("--namespace={}", choices.fleet_namespace),
        format!("--listen=0.0.0.0:{PORT}"),
        "--log-format=json".to_owned(),
        "--log=info".to_owned(),
    ];
    if which == OperatorSelection::Clusters {
        args.push(format!("--service-account={}/{}", choices.namespace, which.object()));
    }
    let mut pod = json!({
        "serviceAccountName": which.object(),
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // Machines start closed. If all of them are, the operators must still run to open them; and the only node may be in maintenance.
        "tolerations": [
            {"key": names::UNREADY_TAINT, "operator": "Exists", "effect": "NoSchedule"},
            {"key": names::MAINTENANCE_TAINT, "operator": "Exists", "effect": "NoSchedule"},
        ],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": selector_of(which)},
            }},
            {"weight": 50, "podAffinityTerm": {
                "topologyKey": "topology.kubernetes.io/zone",
                "labelSelector": {"matchLabels": selector_of(which)},
            }},
        ]}},
        "containers": [{
            "name": "operators",
            "image": choices.image,
            "args": args,
            // The pods that it creates for snapshots use the same image.
            "env": [{"name": "FLEETWRIGHT_IMAGE", "value": choices.image}],
            "ports": [{"name": "metrics", "containerPort": PORT, "protocol": "TCP"}],
            "livenessProbe": {
                "httpGet": {"path": "/healthz", "port": "metrics"},
                "periodSeconds": 20,
                "timeoutSeconds": 5,
                "failureThreshold": 3,
            },
            "readinessProbe": {
                "httpGet": {"path": "/readyz", "port": "metrics"},
                "periodSeconds": 5,
                "timeoutSeconds": 5,
                "failureThreshold": 3,
            },
            "resources": {
                "requests": {"cpu": "100m", "memory": "64Mi"},
                "limits": {"memory": "512Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
        }],
    });
    if let Some(class) = &choices.priority_class {
        pod["priorityClassName"] = json!(class);
    }
    let mut template = json!({"metadata": {"labels": labels_of(which)}, "spec": pod});
    template["metadata"]["annotations"] = json!({
        "prometheus.io/scrape": "true",
        "prometheus.io/port": PORT.to_string(),
        "prometheus.io/path": "/metrics",
    });
    value["spec"] = json!({
        "replicas": choices.replicas,
        "selector": {"matchLabels": selector_of(which)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        "template": template,
    });
    value
}

/// The flag of the operators that names networks of the meta cluster.
const META_NETWORK: &str = "--meta-network=";

/// Passes the networks that control planes must not reach to the Cluster-Operator.
pub(crate) fn confine(objects: &mut [Object], networks: &[Network]) {
    if networks.is_empty() {
        return;
    }
    let networks: Vec<_> = networks.iter().map(Network::to_string).collect();
    let flag = format!("{META_NETWORK}{}", networks.join(","));
    let own = |object: &&mut Object| {
        object.resource.kind == "Deployment" && object.name() == OperatorSelection::Clusters.object()
    };
    for object in objects.iter_mut().filter(own) {
        let args = object.value.pointer_mut("/spec/template/spec/containers/0/args").and_then(Value::as_array_mut);
        args.into_iter().for_each(|args| args.push(json!(flag)));
    }
}

/// The networks that one of our Deployments passes to its operators.
pub(crate) fn confined_by(deployment: &Value) -> Vec<Network> {
    let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().into_iter().flatten();
    let given = args.filter_map(|arg| arg.as_str()?.strip_prefix(META_NETWORK));
    given.flat_map(|all| all.split(',')).filter_map(|one| one.parse().ok()).collect()
}

/// The namespace that one of our Deployments serves.
pub(crate) fn served_by(deployment: &Value) -> Option<&str> {
    let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array()?;
    args.iter().filter_map(Value::as_str).find_map(|arg| arg.strip_prefix("--namespace="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_join_may_ask_for_certificates_and_nothing_else() {
        let objects = all(&choices());
        let binding = objects.iter().find(|object| object.lets_join()).expect("a binding");
        assert_eq!(binding.value["roleRef"]["name"], "system:node-bootstrapper");
        assert_eq!(binding.value["subjects"][0]["name"], fleetwright_plan::join::BOOTSTRAPPERS);
    }

    #[test]
    fn a_right_to_make_tokens_is_one_in_kube_system_alone() {
        let objects = all(&choices());
        let there: Vec<_> = objects.iter().filter(|object| object.namespace() == Some("kube-system")).collect();
        assert_eq!(
            there.iter().map(|object| object.resource.kind.as_str()).collect::<Vec<_>>(),
            ["Role", "RoleBinding"]
        );
        let secrets = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]});
        assert!(there[0].value["rules"].as_array().expect("rules").contains(&secrets), "{}", there[0].value);
        assert_eq!(there[1].value["subjects"][0]["name"], "fleetwright-machines");
    }

    /// The rules that are bound for the whole cluster, by account.
    fn cluster_wide() -> Vec<(String, Value)> {
        let objects = all(&choices());
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object.resource.kind == kind);
        let bindings = of_kind("ClusterRoleBinding").filter(|object| !object.lets_join());
        bindings
            .map(|binding| {
                let role = of_kind("ClusterRole").find(|role| role.name() == binding.value["roleRef"]["name"]);
                let account = binding.value["subjects"][0]["name"].as_str().expect("a subject").to_owned();
                (account, role.expect("its role").value["rules"].clone())
            })
            .collect()
    }

    #[test]
    fn no_operator_reads_secrets_or_creates_pods_in_the_whole_cluster() {
        let all = cluster_wide();
        assert_eq!(all.len(), 3, "{all:?}");
        for (account, rules) in all {
            for rule in rules.as_array().expect("rules") {
                let has = |field: &str, word: &str| rule[field].as_array().expect("words").contains(&json!(word));
                assert!(!has("resources", "secrets"), "{account}: {rule}");
                let kinds = ["pods", "configmaps", "services", "deployments", "statefulsets", "persistentvolumeclaims"];
                let written = ["create", "patch", "update"].iter().any(|verb| has("verbs", verb));
                assert!(!written || kinds.iter().all(|kind| !has("resources", kind)), "{account}: {rule}");
                let one = json!(["fleetwright-control-plane:fleetwright-system"]);
                assert!(!has("verbs", "bind") || rule["resourceNames"] == one, "{account}: {rule}");
            }
        }
    }

    #[test]
    fn sealed_keys_are_where_only_the_cluster_operator_reads_secrets() {
        let objects = all(&choices());
        let readers = objects.iter().filter(|object| object.resource.kind == "Role").filter(|object| {
            let rules = object.value["rules"].as_array().expect("rules");
            let reads =
                |rule: &Value| rule["resources"] == json!(["secrets"]) && rule["verbs"].to_string().contains("list");
            object.namespace() == Some("fleetwright-system") && rules.iter().any(reads)
        });
        let readers: Vec<_> = readers.map(|object| object.name().to_owned()).collect();
        assert_eq!(readers, ["fleetwright-clusters:fleetwright-system"]);
    }

    fn choices() -> ManifestOptions {
        ManifestOptions {
            namespace: "fleetwright-system".into(),
            fleet_namespace: "fleet".into(),
            image: "example.com/fleetwright:1".into(),
            replicas: 2,
            priority_class: None,
        }
    }

    fn all(choices: &ManifestOptions) -> Vec<Object> {
        objects(choices)
    }

    #[test]
    fn plurals_are_the_ones_of_kubernetes() {
        let plurals: Vec<_> = all(&choices()).into_iter().map(|object| object.resource.plural).collect();
        for plural in [
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "networkpolicies",
            "poddisruptionbudgets",
            "customresourcedefinitions",
            "clusterrolebindings",
        ] {
            assert!(plurals.iter().any(|found| found == plural), "{plural} in {plurals:?}");
        }
    }

    #[test]
    fn everything_says_who_made_it() {
        for object in all(&choices()) {
            assert_eq!(object.value["metadata"]["labels"][MANAGED_BY], MANAGER, "{}", object.display());
        }
    }

    #[test]
    fn what_is_needed_comes_before_who_needs_it() {
        let objects = all(&choices());
        let at = |kind: &str| objects.iter().position(|object| object.resource.kind == kind).expect("it is there");
        assert!(at("CustomResourceDefinition") < at("Namespace"));
        assert!(at("Namespace") < at("ServiceAccount"));
        assert!(at("Role") < at("Deployment"));
        assert!(at("ValidatingAdmissionPolicy") < at("Deployment"));
        assert_eq!(at("Deployment"), objects.len() - 3);
    }

    #[test]
    fn operators_can_run_on_machines_that_they_have_not_opened_yet() {
        let objects = all(&choices());
        let tolerations = &objects.last().expect("a Deployment").value["spec"]["template"]["spec"]["tolerations"];
        assert_eq!(tolerations[0]["key"], names::UNREADY_TAINT);
    }

    #[test]
    fn two_installations_share_no_object_but_the_definitions() {
        let other = ManifestOptions { namespace: "b-system".into(), fleet_namespace: "b".into(), ..choices() };
        let names = |choices: &ManifestOptions| -> Vec<String> {
            let own = all(choices).into_iter().filter(|object| !object.is_crd());
            own.map(|object| format!("{:?} {}", object.namespace(), object.display())).collect()
        };
        let (first, second) = (names(&choices()), names(&other));
        assert!(first.iter().all(|name| !second.contains(name)), "{first:?}\n{second:?}");
    }

    #[test]
    fn one_namespace_may_hold_both() {
        let same = ManifestOptions { fleet_namespace: "fleetwright-system".into(), ..choices() };
        assert_eq!(all(&same).iter().filter(|object| object.is_namespace()).count(), 1);
    }

    #[test]
    fn the_networks_of_the_meta_cluster_are_given_by_the_deployment_and_read_from_it() {
        let networks = ["10.96.0.0/12", "fd00::/64"].map(|one| one.parse::<Network>().expect("a network"));
        let mut objects = all(&choices());
        let given = |objects: &[Object]| -> Vec<(String, Vec<Network>)> {
            let deployments = objects.iter().filter(|object| object.resource.kind == "Deployment");
            let all = deployments.map(|object| (object.name().to_owned(), confined_by(&object.value)));
            all.filter(|(_, networks)| !networks.is_empty()).collect()
        };
        confine(&mut objects, &[]);
        assert_eq!(given(&objects), []);
        confine(&mut objects, &networks);
        assert_eq!(given(&objects), [(OperatorSelection::Clusters.object().to_owned(), networks.to_vec())]);
        let own = |object: &&Object| {
            object.resource.kind == "Deployment" && object.name() == OperatorSelection::Clusters.object()
        };
        let deployment = &objects.iter().find(own).expect("a Deployment").value;
        let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert!(args.contains("--meta-network=10.96.0.0/12,fd00::/64"), "{args}");
    }

    #[test]
    fn the_served_namespace_is_read_from_the_deployment() {
        let objects = all(&choices());
        assert_eq!(served_by(&objects.last().expect("a Deployment").value), Some("fleet"));
    }
}
