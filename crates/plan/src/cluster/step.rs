//! The allowed changes of a cluster's package version, and the conditions of each.

use fleetwright_api::{ClusterPackageVersionSpec, ControlPlaneComponent, names};
use jiff::Timestamp;

use super::datastore;
use super::observed::Observed;
use super::preflight::Package;
use super::stage::failed;
use super::upgrade_path::{self, NoUpgradePathReason, VersionNode};
use super::{etcd_data, restore, snapshots};

/// The package version that a cluster has.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentVersion<'a> {
    pub name: &'a str,
    /// Spec; `None` if the package version no longer exists, or exists with another minor of Kubernetes than the cluster has.
    pub spec: Option<&'a ClusterPackageVersionSpec>,
    /// Version of Kubernetes, if it is known.
    kubernetes: Option<&'a str>,
}

impl<'a> CurrentVersion<'a> {
    /// The present package version of the cluster; `None` if the cluster was never ready. If the package version no longer exists, the status counts.
    pub fn of(seen: &'a Observed) -> Option<Self> {
        let name = seen.status.package_version.as_deref()?;
        let recorded = seen.status.kubernetes.as_deref();
        // A package version that was deleted and created again with another minor is a different one: no upgrade path to it was checked.
        let same = |spec: &&ClusterPackageVersionSpec| {
            recorded
                .is_none_or(|recorded| VersionNode::gone(name, recorded).minor() == VersionNode::of(name, spec).minor())
        };
        let spec = seen.package(name).filter(same);
        let kubernetes =
            spec.map(|spec| spec.kubernetes.as_str()).or(recorded).or_else(|| recorded_version(seen, name));
        Some(Self { name, spec, kubernetes })
    }

    /// Node of the upgrade path; `None` if the version is not known.
    pub fn stop(&self) -> Option<VersionNode<'a>> {
        match self.spec {
            Some(spec) => Some(VersionNode::of(self.name, spec)),
            None => self.kubernetes.map(|kubernetes| VersionNode::gone(self.name, kubernetes)),
        }
    }
}

/// The version that all API servers reported, for a cluster whose version was not recorded yet. During a change it is unknown.
fn recorded_version<'a>(seen: &'a Observed, name: &str) -> Option<&'a str> {
    let changes = seen.workloads.iter().any(|(component, workload)| {
        let package = workload.package.as_deref();
        *component != ControlPlaneComponent::Etcd && package.is_some_and(|package| package != name)
    });
    let mut components = seen.status.components.iter().filter(|_| !changes);
    components.find(|one| one.component == ControlPlaneComponent::Apiserver)?.observed.as_deref()
}

/// The package version that the cluster is changed to.
pub(super) struct VersionStep<'a> {
    /// Name of the package version.
    pub name: &'a str,
    /// Spec; `None` if it is the present package version and no longer exists. Then the components are not changed.
    pub spec: Option<&'a ClusterPackageVersionSpec>,
    /// The minor that the components emulate, so that a rollback is possible.
    pub emulates: Option<String>,
    /// Why it is not the declared one.
    pub refused: Option<(&'static str, String)>,
}

impl<'a> VersionStep<'a> {
    /// A step to the declared package version.
    pub fn to(package: Package<'a>, emulates: Option<String>) -> Self {
        Self { name: package.0, spec: Some(package.1), emulates, refused: None }
    }

    /// A step that keeps the present package version, and the reason.
    pub fn stays(at: CurrentVersion<'a>, emulates: Option<String>, refused: (&'static str, String)) -> Self {
        Self { name: at.name, spec: at.spec, emulates, refused: Some(refused) }
    }

    /// The package version from which components are built; `None` if they are not changed.
    pub fn package(&self) -> Option<Package<'a>> {
        Some((self.name, self.spec?))
    }
}

/// Decides to which package version the cluster is changed now.
pub(super) fn step<'a>(seen: &'a Observed, now: Timestamp) -> VersionStep<'a> {
    let (target, status) = (seen.target(), &seen.status);
    // The record counts, not the time: as long as the old minor is emulated a rollback is possible, and a person who declared it in time gets it.
    let soaking = status.emulates.as_deref();
    let emulated = status.emulates.clone();
    let goes = |emulates| VersionStep::to(target, emulates);
    if let Some((name, spec)) = restore::package(seen) {
        // The restore replaces the data, so this version need not be able to read the old data. A package version that only corrects another keeps
        // the rollback target of that one.
        let stopped_for = status.restoring.as_ref().and_then(|restoring| restoring.package_version.as_deref());
        let emulates = emulated.filter(|_| status.package_version.as_deref() == Some(stopped_for.unwrap_or(name)));
        let why = || {
            let target = target.0;
            format!(
                "the change to {target} waits for the restore, which starts the control plane with {name}; to restore with {target} instead, also set spec.restore to another snapshot"
            )
        };
        let outdated = restore::recreated(seen).filter(|_| spec.is_none());
        let outdated = outdated.map(|why| (names::reasons::PACKAGE_VERSION_NOT_FOUND, why));
        let refused = outdated.or_else(|| (name != target.0).then(|| (names::reasons::RESTORING, why())));
        return VersionStep { name, spec, emulates, refused };
    }
    let Some(at) = CurrentVersion::of(seen) else { return goes(None) };
    if at.name == target.0 {
        let Some(has) = at.kubernetes.filter(|_| at.spec.is_none()) else { return goes(emulated) };
        let why = format!(
            "ClusterPackageVersion {} was recreated with Kubernetes {}, but the cluster runs {has}: recreate it with its old content, and use another name for the new content",
            at.name, target.1.kubernetes
        );
        return VersionStep::stays(at, emulated, (names::reasons::PACKAGE_VERSION_NOT_FOUND, why));
    }
    let stays = |reason, why: String| {
        let why = if at.spec.is_some() { why } else { format!("{why}; {}", package_missing_message(at.name)) };
        VersionStep::stays(at, emulated.clone(), (reason, why))
    };
    if let Some((reason, why)) = datastore::refused(seen, target.0, now) {
        return stays(reason, why);
    }
    if let Some(failed) = failed(seen) {
        let what = format!("the upgrade to {} failed and was rolled back: {}", target.0, failed.message);
        let how = format!(
            "fix the cause and set the annotation {} to a new value, or use another package version",
            names::RETRY
        );
        return stays(names::reasons::UPGRADE_FAILED, format!("{what}; {how}"));
    }
    let Some(from) = at.stop() else {
        let why = format!("the upgrade path from {} to {} is unknown", at.name, target.0);
        return stays(names::reasons::PACKAGE_VERSION_NOT_FOUND, why);
    };
    let to = VersionNode::of(target.0, target.1);
    let way = if to.is_older_than(&from) {
        upgrade_path::back(&from, &to, soaking)
    } else {
        upgrade_path::forward(&from, &to)
    };
    match way {
        Err(no_way) if no_way.why == NoUpgradePathReason::NotEmulated => {
            let more = "to go back, restore an earlier snapshot, which loses later writes";
            stays(names::reasons::SOAK_ENDED, format!("{}; {more}", no_way.message))
        }
        Err(no_way) => stays(names::reasons::UNSUPPORTED_UPGRADE_PATH, no_way.message),
        Ok(()) if to.is_older_than(&from) => goes(emulated.filter(|_| from.minor() == to.minor())),
        Ok(()) if from.minor() != to.minor() && soaking.is_some() => {
            let minor = soaking.unwrap_or_default();
            let why = format!(
                "{} emulates {minor} until its soak is over: the upgrade to {} starts after that",
                at.name, target.0
            );
            stays(names::reasons::UNSUPPORTED_UPGRADE_PATH, why)
        }
        // Another package version of the same minor may fix the failure.
        Ok(()) if from.minor() != to.minor() && status.finishing.is_some() => {
            let why =
                format!("the upgrade to {} is being completed: the upgrade to {} starts after that", at.name, target.0);
            stays(names::reasons::UNSUPPORTED_UPGRADE_PATH, why)
        }
        Ok(()) => {
            let held = unread(seen, target).or_else(|| datastore::upgrade_loses_data(seen, target.0));
            match held.or_else(|| snapshots::refused(seen, target.0, now)) {
                Some((reason, why)) => stays(reason, why),
                None if from.minor() == to.minor() => goes(emulated),
                None => goes(Some(from.minor().to_owned())),
            }
        }
    }
}

/// Message about a present package version that no longer exists.
pub(super) fn package_missing_message(name: &str) -> String {
    format!("ClusterPackageVersion {name}, which the cluster runs, no longer exists: create it again")
}

/// Why a change that has not started would leave etcd unchanged: etcd needs a package version that no longer exists. That does not block the return
/// to a newer version.
fn unread(seen: &Observed, target: Package<'_>) -> Option<(&'static str, String)> {
    let why = etcd_data::compatible_package(seen, target).err().filter(|_| !etcd_data::begun(seen, target.0))?;
    Some((names::reasons::PACKAGE_VERSION_NOT_FOUND, why))
}
