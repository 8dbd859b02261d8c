//! What an installation is made of.

use fleetwright_api::names;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

/// The port of metrics and probes.
pub(crate) const PORT: u16 = 9440;

/// The name of all that belongs to the operators.
pub(crate) const NAME: &str = "fleetwright-operators";

/// Label of everything that an installation made.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub(crate) const MANAGER: &str = "fleetwright-install";

/// The role of machines that join: they may ask for certificates.
const BOOTSTRAPPER: &str = "system:node-bootstrapper";

/// Where bootstrap tokens are.
const TOKENS_NAMESPACE: &str = "kube-system";

/// Label of the namespaces that may read the metrics.
const SCRAPER: &str = "fleetwright.io/reads-metrics";

/// The rights that the operators need, and no more.
#[derive(Default)]
pub(crate) struct Rights {
    /// In the namespace of the fleet.
    pub(crate) namespaced: Vec<PolicyRule>,
    /// In kube-system, where bootstrap tokens are.
    pub(crate) tokens: Vec<PolicyRule>,
    /// In the whole cluster.
    pub(crate) cluster: Vec<PolicyRule>,
}

/// The choices a person has.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// Where the operators run.
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

    /// As kubectl names it: `deployment.apps/web`.
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

    /// Whether it lets machines ask for certificates.
    pub(crate) fn lets_join(&self) -> bool {
        self.resource.kind == "ClusterRoleBinding" && self.value["roleRef"]["name"] == BOOTSTRAPPER
    }

    pub(crate) fn is_namespace(&self) -> bool {
        self.resource.kind == "Namespace"
    }
}

/// An object's name as kubectl prints it.
pub(crate) fn display(resource: &ApiResource, name: &str) -> String {
    let kind = resource.kind.to_lowercase();
    match resource.group.as_str() {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
}

/// Everything, in the order in which it is applied: what others need comes first.
pub(crate) fn objects(choices: &Choices, rights: &Rights) -> Vec<Object> {
    let mut all = vec![];
    for mut value in fleetwright_api::crds_json() {
        label(&mut value, &json!({MANAGED_BY: MANAGER, "app.kubernetes.io/part-of": "fleetwright"}));
        all.push(value);
    }
    all.push(operator_namespace(choices));
    if choices.fleet_namespace != choices.namespace {
        all.push(named("v1", "Namespace", &choices.fleet_namespace, None));
    }
    all.push(named("v1", "ServiceAccount", NAME, Some(&choices.namespace)));
    all.extend(access(choices, rights));
    all.push(network_policy(choices));
    all.push(disruption_budget(choices));
    all.push(deployment(choices));
    all.into_iter().map(Object::new).collect()
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": "fleetwright",
        MANAGED_BY: MANAGER,
    })
}

/// What the pods are found by. It can never be changed in a Deployment, so it holds no version.
fn selector() -> Value {
    json!({"app.kubernetes.io/name": NAME})
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

/// The operators run without any privilege, and their namespace can say so.
fn operator_namespace(choices: &Choices) -> Value {
    let mut value = named("v1", "Namespace", &choices.namespace, None);
    label(&mut value, &json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    value
}

fn access(choices: &Choices, rights: &Rights) -> Vec<Value> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    const VERSION: &str = "rbac.authorization.k8s.io/v1";
    // Roles of the whole cluster carry the namespace in their name, so that several installations do not share one.
    let cluster_name = format!("{NAME}:{}", choices.namespace);
    let subjects = json!([{"kind": "ServiceAccount", "name": NAME, "namespace": choices.namespace}]);
    let mut all = vec![];

    let mut role = named(VERSION, "ClusterRole", &cluster_name, None);
    role["rules"] = json!(rights.cluster);
    let mut binding = named(VERSION, "ClusterRoleBinding", &cluster_name, None);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": cluster_name});
    binding["subjects"] = subjects.clone();
    all.extend([role, binding]);

    // As those of the whole cluster: kube-system is everybody's.
    let mut places = vec![(choices.fleet_namespace.as_str(), NAME, &rights.namespaced)];
    if !rights.tokens.is_empty() {
        places.push((TOKENS_NAMESPACE, &cluster_name, &rights.tokens));
    }
    for (namespace, name, rules) in places {
        let mut role = named(VERSION, "Role", name, Some(namespace));
        role["rules"] = json!(rules);
        let mut binding = named(VERSION, "RoleBinding", name, Some(namespace));
        binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "Role", "name": name});
        binding["subjects"] = subjects.clone();
        all.extend([role, binding]);
    }

    let mut binding = named(VERSION, "ClusterRoleBinding", &format!("{cluster_name}:join"), None);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": BOOTSTRAPPER});
    binding["subjects"] = json!([{"apiGroup": GROUP, "kind": "Group", "name": fleetwright_plan::join::BOOTSTRAPPERS}]);
    all.push(binding);
    all
}

/// Metrics are plain HTTP: only namespaces that were let in read them. Probes come from the node and are not held up.
fn network_policy(choices: &Choices) -> Value {
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

fn disruption_budget(choices: &Choices) -> Value {
    let mut value = named("policy/v1", "PodDisruptionBudget", NAME, Some(&choices.namespace));
    // Of one at most unavailable, rather than of one at least available: a single replica must not hold up a drain.
    value["spec"] = json!({
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector()},
    });
    value
}

fn deployment(choices: &Choices) -> Value {
    let mut value = named("apps/v1", "Deployment", NAME, Some(&choices.namespace));
    let mut pod = json!({
        "serviceAccountName": NAME,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // Machines start closed. If all of them are, somebody must still be able to open them; and one that is worked on may be the only one.
        "tolerations": [
            {"key": names::UNREADY_TAINT, "operator": "Exists", "effect": "NoSchedule"},
            {"key": names::MAINTENANCE_TAINT, "operator": "Exists", "effect": "NoSchedule"},
        ],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": selector()},
            }},
            {"weight": 50, "podAffinityTerm": {
                "topologyKey": "topology.kubernetes.io/zone",
                "labelSelector": {"matchLabels": selector()},
            }},
        ]}},
        "containers": [{
            "name": "operators",
            "image": choices.image,
            "args": [
                "operators",
                format!("--namespace={}", choices.fleet_namespace),
                format!("--listen=0.0.0.0:{PORT}"),
                "--log-format=json",
                "--log=info",
            ],
            // Pods that it makes for snapshots are of the same image.
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
    let mut template = json!({"metadata": {"labels": labels()}, "spec": pod});
    template["metadata"]["annotations"] = json!({
        "prometheus.io/scrape": "true",
        "prometheus.io/port": PORT.to_string(),
        "prometheus.io/path": "/metrics",
    });
    value["spec"] = json!({
        "replicas": choices.replicas,
        "selector": {"matchLabels": selector()},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        "template": template,
    });
    value
}

/// The namespace that a Deployment of ours serves.
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
        let tokens = vec![PolicyRule { verbs: vec!["create".into()], ..PolicyRule::default() }];
        let rights = Rights { tokens, ..Rights::default() };
        let objects = objects(&choices(), &rights);
        let there: Vec<_> = objects.iter().filter(|object| object.namespace() == Some("kube-system")).collect();
        assert_eq!(
            there.iter().map(|object| object.resource.kind.as_str()).collect::<Vec<_>>(),
            ["Role", "RoleBinding"]
        );
        assert_eq!(there[0].value["rules"][0]["verbs"], json!(["create"]));
        assert!(all(&choices()).iter().all(|object| object.namespace() != Some("kube-system")));
    }

    fn choices() -> Choices {
        Choices {
            namespace: "fleetwright-system".into(),
            fleet_namespace: "fleet".into(),
            image: "example.com/fleetwright:1".into(),
            replicas: 2,
            priority_class: None,
        }
    }

    fn all(choices: &Choices) -> Vec<Object> {
        objects(choices, &Rights::default())
    }

    #[test]
    fn plurals_are_the_ones_of_kubernetes() {
        let plurals: Vec<_> = all(&choices()).into_iter().map(|object| object.resource.plural).collect();
        for plural in ["networkpolicies", "poddisruptionbudgets", "customresourcedefinitions", "clusterrolebindings"] {
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
        assert_eq!(at("Deployment"), objects.len() - 1);
    }

    #[test]
    fn operators_can_run_on_machines_that_they_have_not_opened_yet() {
        let objects = all(&choices());
        let tolerations = &objects.last().expect("a Deployment").value["spec"]["template"]["spec"]["tolerations"];
        assert_eq!(tolerations[0]["key"], names::UNREADY_TAINT);
    }

    #[test]
    fn two_installations_share_no_object_but_the_definitions() {
        let other = Choices { namespace: "b-system".into(), fleet_namespace: "b".into(), ..choices() };
        let names = |choices: &Choices| -> Vec<String> {
            let own = all(choices).into_iter().filter(|object| !object.is_crd());
            own.map(|object| format!("{:?} {}", object.namespace(), object.display())).collect()
        };
        let (first, second) = (names(&choices()), names(&other));
        assert!(first.iter().all(|name| !second.contains(name)), "{first:?}\n{second:?}");
    }

    #[test]
    fn one_namespace_may_hold_both() {
        let same = Choices { fleet_namespace: "fleetwright-system".into(), ..choices() };
        assert_eq!(all(&same).iter().filter(|object| object.is_namespace()).count(), 1);
    }

    #[test]
    fn the_served_namespace_is_read_from_the_deployment() {
        let objects = all(&choices());
        assert_eq!(served_by(&objects.last().expect("a Deployment").value), Some("fleet"));
    }
}
