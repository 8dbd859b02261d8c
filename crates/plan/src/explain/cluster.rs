//! Why a cluster does not work, or has not what was requested.

use fleetwright_api::names::{self, reasons};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterStatus, Condition, ReplicaStatus, SnapshotStatus, Status, condition,
};

use super::health::{failed, is_protected, problems, unhealthy_replicas};
use super::{Action, Check, Explanation, Group, State, Subject, Verdict};
use crate::cluster::etcd_data;
use crate::cluster::restore::own_snapshot_patch;
use crate::cluster::upgrade_path::VersionNode;
use crate::readiness::is_plain;

/// Explains why a cluster does or does not work. `packages` are those of its namespace, if they are known.
pub fn cluster(cluster: &Cluster, packages: &[ClusterPackageVersion]) -> Explanation {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
    let status = cluster.status.as_ref();
    let ready = status.and_then(|status| condition(&status.conditions, names::READY));
    let verdict = Verdict {
        condition: names::READY,
        status: ready.map_or(Status::Unknown, |ready| ready.status),
        reason: ready.map_or("NotReported".to_owned(), |ready| ready.reason.clone()),
        message: ready
            .map_or("the operator has not reported whether it works".to_owned(), |ready| ready.message.clone()),
        since: ready.map(|ready| ready.last_transition_time),
        recorded: ready.is_some(),
        last_recorded: None,
    };
    let phase = status.and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    let object = Subject { kind: "Cluster", namespace, name };
    let mut out = Explanation::new(object, phase, cluster.spec.paused, verdict);
    let Some(status) = status else {
        out.act([Action::run(
            "kubectl get pods -n fleetwright-system",
            "check that the operators run and serve this namespace",
        )]);
        return out;
    };
    out.checks.extend(progress(cluster, status));
    let wrong = problems(cluster);
    out.checks.extend(wrong.iter().map(|condition| Check::of_condition(Group::Conditions, condition, State::Failing)));
    let replicas = unhealthy_replicas(cluster);
    out.checks.extend(replicas.iter().map(|(component, replica)| Check {
        owner: Some(component.to_string()),
        message: replica.message.clone(),
        ..Check::new(Group::Replicas, &replica.name, State::Failing)
    }));
    let replicas: Vec<_> = replicas.into_iter().map(|(_, replica)| replica).collect();
    let actions = actions(cluster, status, packages, &wrong, &replicas);
    out.act(actions);
    out
}

/// What is being changed, and what the operator waits for.
fn progress(cluster: &Cluster, status: &ClusterStatus) -> Vec<Check> {
    let mut checks = Vec::new();
    let wanted = &cluster.spec.package_version;
    let state = match &status.package_version {
        Some(has) if has == wanted => State::Passing,
        _ if failed(cluster).is_some() || cluster.spec.paused => State::Failing,
        _ if problems(cluster).iter().any(|one| [names::UPGRADABLE, names::ACCEPTED].contains(&one.type_.as_str())) => {
            State::Failing
        }
        _ => State::Waiting,
    };
    checks.push(Check {
        rule: Some("spec.packageVersion".to_owned()),
        value: status.package_version.clone().unwrap_or_else(|| "none".to_owned()),
        limit: Some(wanted.clone()),
        reason: failed(cluster).map_or(String::new(), |_| "UpgradeFailed".to_owned()),
        message: failed(cluster).map_or(String::new(), |failed| failed.message.clone()),
        ..Check::new(Group::Progress, "packageVersion", state)
    });
    if let Some(waiting) = &status.waiting_for {
        let subject = status.progress.as_ref().map_or("reconcile", |progress| progress.step.as_str());
        checks.push(Check { message: waiting.clone(), ..Check::new(Group::Progress, subject, State::Waiting) });
    }
    checks
}

fn actions(
    cluster: &Cluster,
    status: &ClusterStatus,
    packages: &[ClusterPackageVersion],
    wrong: &[&Condition],
    replicas: &[&ReplicaStatus],
) -> Vec<Action> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    // The schema of the status does not restrict its texts to names.
    let own = status.namespace.as_deref().filter(|own| is_plain(own)).unwrap_or("NAMESPACE");
    let of = format!("{name} -n {namespace}");
    let mut actions = Vec::new();
    if cluster.spec.paused {
        actions.push(Action::run(
            format!("kubectl patch cluster {of} --type=merge -p '{{\"spec\":{{\"paused\":false}}}}'"),
            "nothing is done while the cluster is paused",
        ));
    }
    if is_protected(cluster) {
        actions.push(Action::run(
            format!("fleetwright cluster delete {of} --unprotect"),
            "deletion is blocked by spec.deletionProtection; this allows it",
        ));
    }
    if let Some(failed) = failed(cluster) {
        actions.push(Action::run(
            format!("fleetwright cluster upgrade {of} {} --retry", failed.package_version),
            "once the cause is fixed",
        ));
        if let Some(has) = status.package_version.as_ref().filter(|has| is_plain(has)) {
            actions.push(Action::run(
                format!("fleetwright cluster rollback {of} {has}"),
                "or set spec.packageVersion back to the running version",
            ));
        }
    }
    for condition in wrong {
        actions.extend(for_condition(condition, cluster, status, packages, &of, own));
    }
    if let Some(replica) = replicas.first().filter(|replica| is_plain(&replica.name)) {
        let pod = &replica.name;
        actions.push(Action::run(format!("kubectl describe pod -n {own} {pod}"), "shows its state and events"));
        actions
            .push(Action::run(format!("kubectl logs -n {own} {pod} --previous"), "shows its output before it exited"));
    }
    actions
}

/// What helps against one condition.
fn for_condition(
    condition: &Condition,
    cluster: &Cluster,
    status: &ClusterStatus,
    packages: &[ClusterPackageVersion],
    of: &str,
    own: &str,
) -> Vec<Action> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let etcd = format!("kubectl get pods -n {own} -l {}=etcd -o wide", names::COMPONENT);
    let edit = || Action::run(format!("kubectl edit cluster {of}"), "the message above says what is wrong");
    let patch = |spec: &str, description: String| {
        Action::run(format!("kubectl patch cluster {of} --type=merge -p '{{\"spec\":{spec}}}'"), description)
    };
    let external = cluster.spec.datastore.external.is_some();
    match condition.reason.as_str() {
        reasons::PACKAGE_VERSION_NOT_FOUND => vec![
            Action::run(format!("kubectl get clusterpackageversions -n {namespace}"), "lists those that exist"),
            match condition.type_ == names::ACCEPTED {
                true => Action::run(
                    format!("fleetwright cluster upgrade {of} ANOTHER"),
                    format!("or create ClusterPackageVersion {}", cluster.spec.package_version),
                ),
                false => Action::text("create the ClusterPackageVersion that the message names again"),
            },
        ],
        reasons::LIMIT_EXCEEDED => vec![
            Action::run(format!("kubectl get clusterlimits -n {namespace} -o yaml"), "shows what is allowed"),
            edit(),
        ],
        reasons::INVALID_ARGUMENT
        | reasons::INVALID_EXTENSION
        | reasons::SECRET_NOT_FOUND
        | reasons::SNAPSHOT_UNUSABLE => vec![edit()],
        reasons::NETWORK_OVERLAPS => vec![Action::run(
            format!("kubectl delete cluster {of}"),
            "then create it with one of the networks in the message",
        )],
        reasons::QUORUM_LOST | reasons::UNREACHABLE if external => {
            vec![Action::text("check that the external etcd answers, and that the certificate in its Secret is valid")]
        }
        reasons::QUORUM_LOST | reasons::UNREACHABLE => vec![
            Action::run(etcd, "members that start again bring the data back"),
            match &status.last_snapshot {
                Some(snapshot) if !is_plain(&snapshot.name) => {
                    Action::text(format!("the name of the last snapshot is invalid: {:?}", snapshot.name))
                }
                Some(snapshot) => match package_to_restore(cluster, status, packages, snapshot) {
                    Ok(package) => patch(
                        &own_snapshot_patch(&snapshot.name, package).to_string(),
                        format!(
                            "if the data of most members is lost; writes after {} are lost, too",
                            snapshot.at.strftime("%Y-%m-%dT%H:%M:%SZ")
                        ),
                    ),
                    Err(minor) => Action::text(format!(
                        "if the data of most members is lost, a newer package version with etcd {minor} or newer is needed: name it in spec.packageVersion, and {} in spec.restore.snapshot, without spec.restore.cluster",
                        snapshot.name
                    )),
                },
                None => Action::text("there is no snapshot: the data is only on the members' volumes"),
            },
        ],
        reasons::MEMBERS_MISSING => vec![Action::run(etcd, "the operator replaces a missing member")],
        reasons::AUTHORITY_EXPIRING | reasons::AUTHORITY_EXPIRED => vec![patch(
            "{\"certificates\":{\"rotateAuthorities\":\"'$(date +%F)'\"}}",
            "replaces the authorities".to_owned(),
        )],
        reasons::UNHEALTHY => vec![Action::text(
            "check the extension's pods; another package version, or other values in spec.extensions, replace it",
        )],
        reasons::UNSUPPORTED_UPGRADE_PATH | reasons::SOAK_ENDED => vec![
            Action::run(
                format!("kubectl get clusterpackageversions -n {namespace} -o wide"),
                format!(
                    "choose one that is reachable from {}",
                    status.package_version.as_deref().filter(|has| is_plain(has)).unwrap_or("the running version")
                ),
            ),
            Action::run(
                format!("fleetwright cluster rollback {of}"),
                "or set spec.packageVersion back to the running version",
            ),
        ],
        reasons::REMOVED_APIS_IN_USE => vec![
            Action::text("change the clients that the message names to a newer version of these APIs"),
            Action::run(
                format!("kubectl rollout restart deployment/kube-apiserver -n {own}"),
                "resets the API servers' record of clients; the upgrade then continues",
            ),
            overrides(condition, cluster, of),
        ],
        reasons::KUBELET_TOO_NEW | reasons::KUBELET_TOO_OLD => vec![
            Action::text("bring the kubelets of the Nodes in the message to a supported minor version"),
            overrides(condition, cluster, of),
        ],
        reasons::API_USAGE_UNKNOWN | reasons::KUBELET_VERSIONS_UNKNOWN => vec![overrides(condition, cluster, of)],
        reasons::INSUFFICIENT_RESOURCES => {
            vec![Action::run("kubectl get nodes", "the meta cluster needs resources for one more replica")]
        }
        reasons::SNAPSHOT_REQUIRED | reasons::OVERDUE | reasons::SNAPSHOT_FAILED => vec![Action::run(
            format!("kubectl annotate cluster {of} {}=$(date +%s) --overwrite", names::SNAPSHOT),
            "takes a snapshot now; check that the storage of spec.snapshots answers and has space",
        )],
        reasons::UPGRADE_COMPLETION_FAILED => vec![
            Action::run(
                format!("kubectl get pods -n {own} -o wide"),
                "shows which components do not work without emulation",
            ),
            Action::run(
                format!("fleetwright cluster upgrade {of} ANOTHER"),
                "a package version of the same minor that works",
            ),
        ],
        _ => vec![],
    }
}

/// The package version that the restore of a snapshot has to name, if it is not the declared one: after a rollback etcd keeps the newer version, and
/// its snapshots need it.
///
/// # Errors
/// Neither the present package version nor the one of etcd, if that is not older and did not fail, has the needed etcd. The error is the minor of that.
fn package_to_restore<'a>(
    cluster: &'a Cluster,
    status: &'a ClusterStatus,
    packages: &[ClusterPackageVersion],
    snapshot: &SnapshotStatus,
) -> Result<Option<&'a str>, String> {
    let (declared, has) = (cluster.spec.package_version.as_str(), status.package_version.as_deref());
    // A declared package version that failed was rolled back.
    let present = failed(cluster).and(has).filter(|has| is_plain(has)).unwrap_or(declared);
    let made_from = status.etcd.as_ref().and_then(|etcd| etcd.package_version.as_deref());
    let opened_by = status.etcd.as_ref().and_then(|etcd| etcd.version.as_deref());
    let spec = |name: &str| packages.iter().find(|one| one.metadata.name.as_deref() == Some(name)).map(|one| &one.spec);
    let Some(needs) = snapshot.etcd.as_deref().or(opened_by) else {
        return Ok((present != declared).then_some(present));
    };
    let reads = |name: &str| match spec(name) {
        Some(spec) => etcd_data::needs_newer(spec, needs).is_none(),
        None => made_from.is_none_or(|made_from| made_from == name),
    };
    if reads(present) {
        return Ok((present != declared).then_some(present));
    }
    let recorded = status.kubernetes.as_deref().filter(|_| has == Some(present));
    let kubernetes = spec(present).map(|spec| spec.kubernetes.as_str()).or(recorded);
    let is_older = |name: &str| match (spec(name), kubernetes) {
        (Some(spec), Some(has)) => VersionNode::of(name, spec).is_older_than(&VersionNode::gone(present, has)),
        _ => true,
    };
    let has_failed = |name: &str| status.failed.as_ref().is_some_and(|failed| failed.package_version == name);
    let newer = made_from.filter(|&name| reads(name) && !is_older(name) && !has_failed(name));
    newer.map(Some).ok_or_else(|| {
        let (major, minor) = etcd_data::minor(needs);
        format!("{major}.{minor}")
    })
}

/// How a person accepts the risk for this change.
fn overrides(condition: &Condition, cluster: &Cluster, of: &str) -> Action {
    // The end of a soak is about the running package version.
    let completes = condition.type_ == names::UPGRADE_COMPLETABLE;
    let has = cluster.status.as_ref().and_then(|status| status.package_version.as_ref());
    let has = has.filter(|has| completes && is_plain(has));
    let (name, package) = (names::OVERRIDE, has.unwrap_or(&cluster.spec.package_version));
    let step = if completes { "/soak" } else { "" };
    Action::run(
        format!("kubectl annotate cluster {of} {name}={}@{package}{step} --overwrite", condition.reason),
        "if the risk is acceptable",
    )
}

#[cfg(test)]
mod tests {
    use fleetwright_api::ClusterPackageVersionSpec;
    use serde_json::{Value, json};

    use super::*;

    /// What to do for a Cluster without a quorum that has this package version and status.
    fn lost(package_version: &str, mut status: Value) -> Vec<Action> {
        status["phase"] = "Degraded".into();
        status["conditions"] = json!([{
            "type": "DatastoreHealthy", "status": "False", "reason": "QuorumLost", "message": "m",
            "lastTransitionTime": "2026-11-16T08:00:00Z",
        }]);
        let found: Cluster = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": { "name": "pay", "namespace": "fleet" },
            "spec": { "packageVersion": package_version }, "status": status,
        }))
        .expect("a Cluster");
        let packages = [("v1.35", "1.35.9", "3.7.0"), ("v1.36", "1.36.4", "3.6.16"), ("v1.37", "1.37.1", "3.7.0")];
        let packages = packages.map(|(name, kubernetes, etcd)| {
            let spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
            ClusterPackageVersion::new(name, spec)
        });
        cluster(&found, &packages).actions
    }

    #[test]
    fn no_text_of_a_status_that_a_shell_interprets_is_in_a_command() {
        let text = "$(evil)'; evil";
        let status = |text: &str| {
            json!({
                "namespace": text, "packageVersion": text,
                "failed": { "packageVersion": "v1.37", "at": "2026-11-16T08:00:00Z", "message": "m" },
                "etcd": { "members": 3, "serving": 3, "packageVersion": text },
                "lastSnapshot": { "name": text, "at": "2026-11-16T08:00:00Z" },
                "components": [{ "component": "etcd", "replicas": [{ "name": text, "message": "CrashLoopBackOff" }] }],
            })
        };
        let written = |actions: Vec<Action>| -> String {
            let commands = actions.into_iter().filter(|action| action.command.is_some());
            commands.map(|action| format!("{}{}", action.command.unwrap_or_default(), action.description)).collect()
        };
        assert!(written(lost("v1.37", status("plain"))).contains("plain"));
        let written = written(lost("v1.37", status(text)));
        assert!(!written.contains("evil") && written.contains("-n NAMESPACE"), "{written}");
    }

    #[test]
    fn a_restore_names_no_package_version_that_is_older_or_failed() {
        // The package version of the cluster, that of its etcd, the version of the data, and the package version that failed.
        let status = |has: &str, etcd: &str, data: &str, failed: Option<&str>| {
            let at = "2026-11-16T08:00:00Z";
            json!({
                "packageVersion": has, "etcd": { "members": 3, "serving": 3, "version": data, "packageVersion": etcd },
                "lastSnapshot": { "name": "s", "at": at, "etcd": data },
                "failed": failed.map(|failed| json!({ "packageVersion": failed, "at": at, "message": "m" })),
            })
        };
        let patch = |declared: &str, status: Value| {
            let mut commands = lost(declared, status).into_iter().filter_map(|action| action.command);
            commands.find_map(|command| Some(command.split_once("'{\"spec\":")?.1.to_owned()))
        };
        // Without fields of an earlier restore, which a merge patch keeps unless they are null.
        let restore = "\"restore\":{\"allowUnencrypted\":null,\"cluster\":null,\"snapshot\":\"s\"}}}'";
        let alone = Some(format!("{{{restore}"));
        let with = |name: &str| Some(format!("{{\"packageVersion\":\"{name}\",{restore}"));
        // As it is, after a rollback, and in the first steps of an upgrade.
        assert_eq!(patch("v1.36", status("v1.36", "v1.36", "3.6.16", None)), alone);
        assert_eq!(patch("v1.36", status("v1.36", "v1.37", "3.7.0", None)), with("v1.37"));
        assert_eq!(patch("v1.37", status("v1.36", "v1.36", "3.6.16", None)), alone);
        // A version that failed is not declared again, nor is an older one.
        assert_eq!(patch("v1.37", status("v1.36", "v1.36", "3.6.16", Some("v1.37"))), with("v1.36"));
        for (declared, etcd, failed) in [
            ("v1.37", "v1.37", Some("v1.37")),
            ("v1.36", "v1.37", Some("v1.37")),
            ("v1.36", "v1.35", None),
            ("v1.36", "gone", None),
        ] {
            let status = status("v1.36", etcd, "3.7.0", failed);
            assert_eq!(patch(declared, status.clone()), None, "{declared} {etcd}");
            let needs = |action: &Action| action.description.contains("a newer package version with etcd 3.7 or newer");
            assert!(lost(declared, status).iter().any(needs), "{declared} {etcd}");
        }
    }
}
