//! `fleetwright why cluster/NAME`: what keeps a cluster from working or from what was asked of it, and what to do.

use std::fmt::Write as _;

use fleetwright_api::names::{self, reasons};
use fleetwright_api::{Cluster, ClusterStatus, Condition, ReplicaStatus, Status, condition};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::health::{self, Mark, replica_mark};
use crate::shown::{ago, cut, line, table};

/// What is known of it, for a person.
pub(crate) fn why(cluster: &Cluster, now: Timestamp) -> String {
    let mut out = verdict(cluster, now);
    let Some(status) = &cluster.status else {
        out.push_str(
            "\nWhat to do:\n  see that the operators run and serve this namespace: kubectl get pods -n fleetwright-system\n",
        );
        return out;
    };
    if let Some(waiting) = &status.waiting_for {
        let _ = writeln!(out, "\nWaits for:\n  {}", line(waiting));
    }
    let wrong = health::problems(cluster);
    if !wrong.is_empty() {
        let row = |condition: &&Condition| {
            vec![
                format!("  ✗ {}", condition.type_),
                line(&condition.reason),
                format!("for {}", ago(condition.last_transition_time, now)),
                cut(&line(&condition.message), 300),
            ]
        };
        let _ = write!(out, "\nWhat does not hold:\n{}", table(&wrong.iter().map(row).collect::<Vec<_>>()));
    }
    let replicas = broken(cluster);
    if !replicas.is_empty() {
        let row = |(component, replica): &(String, &ReplicaStatus)| {
            vec![format!("  ✗ {}", line(&replica.name)), component.clone(), cut(&line(&replica.message), 300)]
        };
        let _ = write!(out, "\nReplicas:\n{}", table(&replicas.iter().map(row).collect::<Vec<_>>()));
    }
    let advice = advice(cluster, status, &wrong, &replicas);
    if !advice.is_empty() {
        let _ = write!(out, "\nWhat to do:\n{}", advice.iter().map(|line| format!("  {line}\n")).collect::<String>());
    }
    out
}

fn verdict(cluster: &Cluster, now: Timestamp) -> String {
    let name = cluster.name_any();
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut out = match condition(conditions, names::READY) {
        None => format!("cluster/{name}: nobody has said yet whether it works\n"),
        Some(ready) => {
            let holds = match ready.status {
                Status::True => "works",
                Status::False => "does not work",
                Status::Unknown => "may or may not work",
            };
            let since = ago(ready.last_transition_time, now);
            format!("cluster/{name} {holds}, for {since} ({}): {}\n", line(&ready.reason), line(&ready.message))
        }
    };
    let asked = &cluster.spec.package_version;
    let has = cluster.status.as_ref().and_then(|status| status.package_version.as_ref());
    let _ = match has {
        Some(has) if has != asked => {
            writeln!(out, "It is {}: {} is asked for, and it has {}.", health::phase(cluster), asked, line(has))
        }
        _ => writeln!(out, "It is {}, with the package version {asked}.", health::phase(cluster)),
    };
    out
}

fn broken(cluster: &Cluster) -> Vec<(String, &ReplicaStatus)> {
    let components = health::components(cluster).iter();
    let all = components.flat_map(|component| component.replicas.iter().map(move |replica| (component, replica)));
    all.filter(|(component, replica)| replica_mark(component.component, replica) == Mark::Wrong)
        .map(|(component, replica)| (component.component.to_string(), replica))
        .collect()
}

/// Lines of what a person can do, without saying one twice.
fn advice(
    cluster: &Cluster,
    status: &ClusterStatus,
    wrong: &[&Condition],
    replicas: &[(String, &ReplicaStatus)],
) -> Vec<String> {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let own = status.namespace.as_deref().unwrap_or("NAMESPACE");
    let of = format!("{name} -n {namespace}");
    let mut lines: Vec<String> = Vec::new();
    if cluster.spec.paused {
        lines.push(format!(
            "nothing is done while it is paused: kubectl patch cluster {of} --type=merge -p '{{\"spec\":{{\"paused\":false}}}}'"
        ));
    }
    if health::is_protected(cluster) {
        lines.push(format!(
            "it was deleted, and is protected: fleetwright cluster delete {of} --unprotect lets it go; otherwise nothing is lost"
        ));
    }
    if let Some(failed) = health::failed(cluster) {
        lines.push(format!("{} did not work: {}", line(&failed.package_version), line(&failed.message)));
        lines.push(format!(
            "fleetwright cluster upgrade {of} {} --retry    # once the cause is gone",
            line(&failed.package_version)
        ));
        if let Some(has) = &status.package_version {
            lines.push(format!("fleetwright cluster rollback {of} {}    # or ask for what it has", line(has)));
        }
    }
    for condition in wrong {
        lines.extend(about(condition, cluster, status, &of, own));
    }
    if let Some((_, replica)) = replicas.first() {
        let pod = line(&replica.name);
        lines.push(format!("kubectl describe pod -n {own} {pod}    # what the meta cluster says of it"));
        lines.push(format!("kubectl logs -n {own} {pod} --previous    # what it said before it ended"));
    }
    let mut said = std::collections::BTreeSet::new();
    lines.retain(|line| said.insert(line.clone()));
    lines
}

/// What helps against one condition.
fn about(condition: &Condition, cluster: &Cluster, status: &ClusterStatus, of: &str, own: &str) -> Vec<String> {
    let etcd = format!("kubectl get pods -n {own} -l {}=etcd -o wide", names::COMPONENT);
    let edit = format!("kubectl edit cluster {of}    # what is wrong is said above");
    let external = cluster.spec.datastore.external.is_some();
    match condition.reason.as_str() {
        reasons::PACKAGE_VERSION_NOT_FOUND => vec![
            format!(
                "kubectl get clusterpackageversions -n {}    # which ones there are",
                cluster.namespace().unwrap_or_default()
            ),
            match condition.type_ == names::ACCEPTED {
                true => format!("make {}, or fleetwright cluster upgrade {of} ANOTHER", cluster.spec.package_version),
                false => "make the one again that is named above".to_owned(),
            },
        ],
        reasons::LIMIT_EXCEEDED => vec![
            format!(
                "kubectl get clusterlimits -n {} -o yaml    # what the fleet's owner allows",
                cluster.namespace().unwrap_or_default()
            ),
            edit,
        ],
        reasons::INVALID_ARGUMENT
        | reasons::INVALID_EXTENSION
        | reasons::SECRET_NOT_FOUND
        | reasons::SNAPSHOT_UNUSABLE => vec![edit],
        reasons::NETWORK_OVERLAPS => {
            vec![format!("kubectl delete cluster {of}    # and create it with a network that is said above")]
        }
        reasons::QUORUM_LOST | reasons::UNREACHABLE if external => {
            vec!["see that the external etcd answers, and that its Secret still holds a good certificate".to_owned()]
        }
        reasons::QUORUM_LOST | reasons::UNREACHABLE => {
            let mut lines = vec![format!("{etcd}    # members that come back bring the data back")];
            lines.push(match &status.last_snapshot {
                Some(snapshot) => format!(
                    "kubectl patch cluster {of} --type=merge -p '{{\"spec\":{{\"restore\":{{\"snapshot\":\"{}\"}}}}}}'    # if most members' data is lost; what was written after {} is lost, too",
                    line(&snapshot.name),
                    snapshot.at.strftime("%Y-%m-%dT%H:%M:%SZ")
                ),
                None => "there is no snapshot to go back to: the members' volumes are all there is".to_owned(),
            });
            lines
        }
        reasons::MEMBERS_MISSING => vec![format!("{etcd}    # a missing member is replaced by itself")],
        reasons::AUTHORITY_EXPIRING | reasons::AUTHORITY_EXPIRED => vec![format!(
            "kubectl patch cluster {of} --type=merge -p '{{\"spec\":{{\"certificates\":{{\"rotateAuthorities\":\"'$(date +%F)'\"}}}}}}'    # replaces them"
        )],
        reasons::UNHEALTHY => vec![
            "see what the extension's pods say; another package version or other spec.extensions values replace it"
                .to_owned(),
        ],
        reasons::UNSUPPORTED_UPGRADE_PATH | reasons::SOAK_ENDED => vec![
            format!(
                "kubectl get clusterpackageversions -n {} -o wide    # ask for one that is reachable from {}",
                cluster.namespace().unwrap_or_default(),
                line(status.package_version.as_deref().unwrap_or("what it has"))
            ),
            format!("fleetwright cluster rollback {of}    # or ask for what it has"),
        ],
        reasons::REMOVED_APIS_IN_USE => vec![
            "bring the callers of the APIs that are named to a newer one".to_owned(),
            format!(
                "kubectl rollout restart deployment/kube-apiserver -n {own}    # then API servers forget who called, and it goes on"
            ),
            overrides(condition, cluster, of),
        ],
        reasons::KUBELET_TOO_NEW | reasons::KUBELET_TOO_OLD => vec![
            "bring the kubelets of the Nodes that are named to a minor that is supported".to_owned(),
            overrides(condition, cluster, of),
        ],
        reasons::API_USAGE_UNKNOWN | reasons::KUBELET_VERSIONS_UNKNOWN => vec![overrides(condition, cluster, of)],
        reasons::INSUFFICIENT_RESOURCES => {
            vec!["make room in the meta cluster for one more replica: kubectl get nodes".to_owned()]
        }
        reasons::SNAPSHOT_REQUIRED | reasons::OVERDUE | reasons::SNAPSHOT_FAILED => vec![format!(
            "see that the place of spec.snapshots has room and answers; kubectl annotate cluster {of} {}=$(date +%s) --overwrite asks for one now",
            names::SNAPSHOT
        )],
        reasons::UPGRADE_COMPLETION_FAILED => vec![
            format!("kubectl get pods -n {own} -o wide    # what keeps the components from working without emulation"),
            format!("fleetwright cluster upgrade {of} ANOTHER    # a package version of the same minor that works"),
        ],
        _ => vec![],
    }
}

/// How a person says that it does not matter for this change.
fn overrides(condition: &Condition, cluster: &Cluster, of: &str) -> String {
    // The end of a soak is of the package version that it has.
    let ends = condition.type_ == names::UPGRADE_COMPLETABLE;
    let has = cluster.status.as_ref().and_then(|status| status.package_version.as_ref()).filter(|_| ends);
    let (name, package) = (names::OVERRIDE, has.unwrap_or(&cluster.spec.package_version));
    let step = if ends { "/soak" } else { "" };
    format!(
        "kubectl annotate cluster {of} {name}={}@{package}{step} --overwrite    # if it does not matter",
        condition.reason
    )
}

/// For programs: the verdict apart, and the text for people.
pub(crate) fn as_json(cluster: &Cluster, text: &str) -> Value {
    let status = cluster.status.clone().unwrap_or_default();
    let ready = condition(&status.conditions, names::READY);
    let replicas = broken(cluster);
    json!({
        "cluster": cluster.metadata.name,
        "namespace": cluster.metadata.namespace,
        "phase": status.phase,
        "ready": ready.map(|ready| ready.status),
        "reason": ready.map(|ready| &ready.reason),
        "message": ready.map(|ready| &ready.message),
        "since": ready.map(|ready| ready.last_transition_time),
        "waitingFor": status.waiting_for,
        "problems": health::problems(cluster),
        "replicas": replicas.iter().map(|(component, replica)| json!({
            "component": component, "name": replica.name, "message": replica.message,
        })).collect::<Vec<_>>(),
        "text": text,
    })
}
