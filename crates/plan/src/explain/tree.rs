//! A cluster with its components, replicas, extensions and machines, problems first.

use fleetwright_api::{
    Cluster, ClusterComponentStatus, ControlPlaneComponent, ExtensionStatus, GROUP, Machine, ReplicaStatus, VERSION,
};
use jiff::Timestamp;
use serde::Serialize;

use super::health::{self, Health};
use super::{Subject, machine_health};

/// A cluster with its parts. `cluster tree -o json` has this shape, which docs/reference/json.md describes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// `fleetwright.io/v1alpha1`.
    pub api_version: String,
    /// `Tree`.
    pub kind: &'static str,
    /// The cluster.
    pub object: Subject,
    /// Health of the cluster.
    pub health: Health,
    /// `status.phase` of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Whether `spec.paused` stops the operator.
    pub paused: bool,
    /// `spec.packageVersion` of the cluster.
    pub package_version: String,
    /// The problem, else the running work.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Problems and parts, those with a problem first.
    pub parts: Vec<TreeNode>,
}

/// A part of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    /// Health of the part.
    pub health: Health,
    /// The part.
    #[serde(flatten)]
    pub part: Part,
    /// Its own parts, those with a problem first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<TreeNode>,
}

/// What a part of a cluster is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all_fields = "camelCase")]
pub enum Part {
    /// A condition that should be True.
    Condition {
        /// Type of the condition.
        name: String,
        /// Reason of the condition.
        reason: String,
        /// Message of the condition.
        message: String,
    },
    /// A problem that no condition describes.
    Problem {
        /// The problem, for people.
        message: String,
    },
    /// A component of the control plane.
    Component {
        /// Name of the component.
        name: String,
        /// The present version.
        #[serde(skip_serializing_if = "Option::is_none")]
        observed: Option<String>,
        /// The requested version.
        #[serde(skip_serializing_if = "Option::is_none")]
        desired: Option<String>,
        /// Number of ready replicas.
        ready_replicas: usize,
        /// Number of replicas.
        replicas: usize,
    },
    /// A replica of a component.
    Replica {
        /// Name of its pod.
        name: String,
        component: String,
        /// The version that it runs.
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// Whether its pod is ready.
        ready: bool,
        /// Time of the last successful verification; only API servers are verified.
        #[serde(skip_serializing_if = "Option::is_none")]
        verified: Option<Timestamp>,
        /// Why it is not ready.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
    },
    Extension {
        /// Name of the extension.
        name: String,
        /// Why it is ready or not, in one word.
        reason: String,
        /// Why it is ready or not.
        message: String,
    },
    /// All machines of the cluster.
    Machines {
        /// Number of machines without a problem and without a pending change.
        ready_machines: usize,
        /// Number of machines.
        machines: usize,
    },
    Machine {
        /// Name of the machine.
        name: String,
        /// `status.phase` of the machine.
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<String>,
        /// Whether `spec.paused` stops the operator.
        paused: bool,
        /// Number of packages that are ready.
        ready_packages: usize,
        /// Number of packages.
        packages: usize,
        /// The problem, else the running work.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
    },
}

impl Tree {
    /// The tree of a cluster with these machines. Parts without a problem have parts of their own only in a `full` tree.
    pub fn of(cluster: &Cluster, machines: &[Machine], full: bool) -> Self {
        let health = health::cluster(cluster);
        let message = health::message(cluster);
        let parts = match health == Health::Healthy && !full {
            true => Vec::new(),
            false => parts(cluster, machines, full, health, &message),
        };
        Self {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "Tree",
            object: Subject {
                kind: "Cluster",
                namespace: cluster.metadata.namespace.clone().unwrap_or_default(),
                name: cluster.metadata.name.clone().unwrap_or_default(),
            },
            health,
            phase: cluster.status.as_ref().and_then(|status| status.phase).map(|phase| format!("{phase:?}")),
            paused: cluster.spec.paused,
            package_version: cluster.spec.package_version.clone(),
            message,
            parts,
        }
    }
}

impl TreeNode {
    fn leaf(health: Health, part: Part) -> Self {
        Self { health, part, parts: Vec::new() }
    }

    fn problem(message: impl Into<String>) -> Self {
        Self::leaf(Health::Unhealthy, Part::Problem { message: message.into() })
    }
}

/// Sorts unhealthy nodes first; otherwise the order stays.
fn sorted(mut nodes: Vec<TreeNode>) -> Vec<TreeNode> {
    nodes.sort_by_key(|node| node.health);
    nodes
}

fn parts(cluster: &Cluster, machines: &[Machine], full: bool, health: Health, message: &str) -> Vec<TreeNode> {
    let conditions = health::problems(cluster).into_iter().map(|condition| {
        let part = Part::Condition {
            name: condition.type_.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        };
        TreeNode::leaf(Health::Unhealthy, part)
    });
    let mut parts: Vec<_> = conditions.collect();
    parts.extend(health::failed(cluster).map(|failed| {
        TreeNode::problem(format!("{} failed and was rolled back: {}", failed.package_version, failed.message))
    }));
    if health::is_protected(cluster) {
        parts.push(TreeNode::problem("deletion is blocked by spec.deletionProtection"));
    }
    let mut below: Vec<_> = health::components(cluster).iter().map(|one| component(one, full)).collect();
    below.extend(cluster.status.iter().flat_map(|status| &status.extensions).map(extension));
    below.extend(machine_group(machines, full));
    parts.extend(sorted(below));
    let shown = parts.iter().any(|part| part.health == Health::Unhealthy);
    if health == Health::Unhealthy && !shown && !message.is_empty() {
        parts.insert(0, TreeNode::problem(message));
    }
    parts
}

fn component(component: &ClusterComponentStatus, full: bool) -> TreeNode {
    let health = health::component(component);
    let part = Part::Component {
        name: component.component.to_string(),
        observed: component.observed.clone(),
        desired: component.desired.clone(),
        ready_replicas: component.replicas.iter().filter(|replica| replica.ready).count(),
        replicas: component.replicas.len(),
    };
    let parts = match health == Health::Healthy && !full {
        true => Vec::new(),
        false => component.replicas.iter().map(|one| replica(component.component, one)).collect(),
    };
    TreeNode { health, part, parts: sorted(parts) }
}

fn replica(component: ControlPlaneComponent, replica: &ReplicaStatus) -> TreeNode {
    let part = Part::Replica {
        name: replica.name.clone(),
        component: component.to_string(),
        version: replica.version.clone(),
        ready: replica.ready,
        verified: replica.verified_at,
        message: replica.message.clone(),
    };
    TreeNode::leaf(health::replica(component, replica), part)
}

fn extension(extension: &ExtensionStatus) -> TreeNode {
    let part = Part::Extension {
        name: extension.name.clone(),
        reason: extension.reason.clone(),
        message: extension.message.clone(),
    };
    TreeNode::leaf(health::extension(extension), part)
}

/// The machines as one part; only those with a problem are listed, unless the tree is full.
fn machine_group(machines: &[Machine], full: bool) -> Option<TreeNode> {
    let each: Vec<_> = machines.iter().map(machine).collect();
    let health = each.iter().map(|machine| machine.health).min()?;
    let part = Part::Machines {
        ready_machines: each.iter().filter(|machine| machine.health == Health::Healthy).count(),
        machines: each.len(),
    };
    let listed = each.into_iter().filter(|machine| full || machine.health != Health::Healthy).collect();
    Some(TreeNode { health, part, parts: sorted(listed) })
}

fn machine(machine: &Machine) -> TreeNode {
    let (ready_packages, packages) = machine_health::packages(machine);
    let part = Part::Machine {
        name: machine.metadata.name.clone().unwrap_or_default(),
        phase: machine.status.as_ref().and_then(|status| status.phase).map(|phase| format!("{phase:?}")),
        paused: machine.spec.paused,
        ready_packages,
        packages,
        message: machine_health::message(machine),
    };
    TreeNode::leaf(machine_health::machine(machine), part)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster(status: Value) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a", "namespace": "fleet"},
            "spec": {"packageVersion": "k8s-1"}, "status": status,
        }))
        .expect("a Cluster")
    }

    fn machine(name: &str, phase: &str) -> Machine {
        serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": name}, "spec": {},
            "status": {"phase": phase},
        }))
        .expect("a Machine")
    }

    /// Kind and name of each part.
    fn names(parts: &Value) -> Vec<String> {
        let parts = parts.as_array().into_iter().flatten();
        parts
            .map(|part| format!("{} {}", part["kind"].as_str().unwrap(), part["name"].as_str().unwrap_or("-")))
            .collect()
    }

    #[test]
    fn parts_with_a_problem_come_first_and_only_they_are_expanded() {
        let status = json!({
            "phase": "Degraded",
            "conditions": [{
                "type": "Ready", "status": "False", "reason": "NotVerified", "message": "m",
                "lastTransitionTime": "2026-11-16T08:00:00Z",
            }],
            "components": [
                {"component": "etcd", "desired": "3", "observed": "3", "replicas": [{"name": "etcd-0", "ready": true}]},
                {"component": "apiserver", "desired": "1", "observed": "1", "replicas": [
                    {"name": "good", "ready": true, "verifiedAt": "2026-11-16T08:00:00Z"},
                    {"name": "bad", "message": "CrashLoopBackOff"},
                ]},
            ],
        });
        let machines = [machine("fine", "Ready"), machine("lost", "Lost")];
        let tree = json!(Tree::of(&cluster(status.clone()), &machines, false));
        assert_eq!(tree["object"], json!({"kind": "Cluster", "namespace": "fleet", "name": "a"}));
        let expected = ["Condition Ready", "Component kube-apiserver", "Machines -", "Component etcd"];
        assert_eq!(names(&tree["parts"]), expected);
        let apiserver = &tree["parts"][1];
        assert_eq!((&apiserver["readyReplicas"], &apiserver["replicas"]), (&json!(1), &json!(2)));
        assert_eq!(names(&apiserver["parts"]), ["Replica bad", "Replica good"]);
        assert_eq!(
            (&apiserver["parts"][0]["health"], &apiserver["parts"][0]["ready"]),
            (&json!("Unhealthy"), &json!(false))
        );
        assert_eq!(names(&tree["parts"][2]["parts"]), ["Machine lost"]);
        assert_eq!(tree["parts"][3].get("parts"), None);
        let full = json!(Tree::of(&cluster(status), &machines, true));
        assert_eq!(names(&full["parts"][2]["parts"]), ["Machine lost", "Machine fine"]);
        assert_eq!(names(&full["parts"][3]["parts"]), ["Replica etcd-0"]);
    }

    #[test]
    fn a_cluster_without_problems_has_parts_only_in_a_full_tree() {
        let well =
            cluster(json!({"phase": "Ready", "components": [{"component": "etcd", "desired": "3", "observed": "3"}]}));
        let parts = |full: bool| Tree::of(&well, &[], full).parts.len();
        assert_eq!((parts(false), parts(true)), (0, 1));
    }
}
