//! Snapshots are taken by pods: here these are made, with what they need, and taken away.

use fleetwright_api::{SnapshotBucket, names};
use fleetwright_kit::{Key, Pass, WriteError};
use fleetwright_plan::cluster::borrowed::store;
use fleetwright_plan::cluster::snapshots::pods::GENERATION;
use fleetwright_plan::cluster::snapshots::{Job, State, Task};
use fleetwright_plan::cluster::{Decision, Names, Taking};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

use crate::borrow;
use crate::cluster::ActError;
use crate::eyes::Eyes;
use crate::secrets::SecretError;
use crate::words::bounded;

/// Makes the pod of a snapshot, and before it what it keeps the snapshot on.
pub async fn take(
    eyes: &Eyes,
    pass: &Pass,
    names: &Names,
    taking: &Taking,
    bucket: Option<&SnapshotBucket>,
) -> Result<(), ActError> {
    let broken = |what: &str, error: serde_json::Error| SecretError::Broken(what.to_owned(), error.to_string());
    if let Some(claim) = &taking.claim {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(claim.clone()).map_err(|error| broken("the claim of snapshots", error))?;
        pass.writer().create(&claim).await?;
    }
    if let Some(bucket) = bucket {
        borrow::copy(eyes, pass, names, &[store(bucket)]).await?;
    }
    let pod: Pod =
        serde_json::from_value(taking.pod.clone()).map_err(|error| broken("the pod of a snapshot", error))?;
    pass.writer().create_in(&eyes.pods, &pod).await?;
    Ok(())
}

/// Makes the pods that bring a snapshot back, and the claims that they need.
pub async fn restore(
    eyes: &Eyes,
    pass: &Pass,
    names: &Names,
    decision: &Decision,
    bucket: Option<&SnapshotBucket>,
) -> Result<(), ActError> {
    let broken = |what: &str, error: serde_json::Error| SecretError::Broken(what.to_owned(), error.to_string());
    for claim in &decision.claims {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(claim.clone()).map_err(|error| broken("the claim of a member", error))?;
        pass.writer().create(&claim).await?;
    }
    if let Some(bucket) = bucket.filter(|_| !decision.pods.is_empty()) {
        borrow::copy(eyes, pass, names, &[store(bucket)]).await?;
    }
    for pod in &decision.pods {
        let pod: Pod = serde_json::from_value(pod.clone()).map_err(|error| broken("the pod of a restore", error))?;
        pass.writer().create_in(&eyes.pods, &pod).await?;
    }
    Ok(())
}

/// Takes a pod away that has told what it had to tell.
pub async fn tidy(eyes: &Eyes, pass: &Pass, names: &Names, task: &Task) -> Result<(), WriteError> {
    let key = Key::new(&names.namespace, &task.pod);
    match pass.writer().delete(&eyes.pods, &key, &task.uid, &task.version).await {
        Ok(()) | Err(WriteError::Gone(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What is seen of a pod that works on a cluster's data; none if it is another one.
pub fn task(pod: &Pod) -> Option<Task> {
    let job = Job::of(pod.labels().get(names::COMPONENT)?)?;
    let annotation = |name: &str| pod.annotations().get(name).cloned();
    let created = pod.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Some(Task {
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        version: pod.resource_version().unwrap_or_default(),
        job,
        state: state(pod, created),
        created,
        asked: annotation(names::SNAPSHOT),
        generation: annotation(GENERATION).and_then(|number| number.parse().ok()),
        ending: pod.metadata.deletion_timestamp.is_some(),
        serves: serves(pod),
        said: said(pod),
    })
}

/// The address of a pod that is ready.
fn serves(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let ready = status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    status.pod_ip.clone().filter(|ip| ready && !ip.is_empty())
}

/// What its first container said when it had done its work.
fn said(pod: &Pod) -> Option<String> {
    let first = pod.status.as_ref()?.init_container_statuses.as_ref()?.first()?;
    first.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code == 0)?.message.clone()
}

fn state(pod: &Pod, created: Timestamp) -> State {
    let status = pod.status.clone().unwrap_or_default();
    let all: Vec<&ContainerStatus> =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten()).collect();
    let ended = |one: &ContainerStatus| one.state.as_ref().and_then(|state| state.terminated.clone());
    match status.phase.as_deref() {
        Some("Succeeded") => {
            let last = all.last().and_then(|one| ended(one));
            State::Succeeded(last.and_then(|last| last.message).unwrap_or_default())
        }
        Some("Failed") => {
            let failed = all.iter().find_map(|one| ended(one).filter(|end| end.exit_code != 0).map(|end| (one, end)));
            match failed {
                Some((one, end)) => {
                    let said = end.message.unwrap_or_default();
                    let said = said.trim().lines().last().unwrap_or_default();
                    let at = end.finished_at.map_or(created, |time| time.0);
                    State::Failed(at, bounded(&format!("{}: {said}", one.name)))
                }
                None => State::Failed(created, bounded(&status.message.or(status.reason).unwrap_or_default())),
            }
        }
        _ => {
            let unplaced = status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled");
            let unplaced = unplaced.filter(|one| one.status == "False").and_then(|one| one.message.clone());
            let waiting = all.iter().find_map(|one| {
                let waiting = one.state.as_ref()?.waiting.clone()?;
                let reason = waiting.reason.filter(|reason| reason != "PodInitializing")?;
                Some(format!("{}: {reason} {}", one.name, waiting.message.unwrap_or_default()))
            });
            State::Runs(bounded(&unplaced.or(waiting).unwrap_or_default()))
        }
    }
}
