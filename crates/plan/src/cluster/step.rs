//! From which package version to which a cluster may go, and with what care.

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
    /// Its name.
    pub name: &'a str,
    /// What it says; none if it does not exist any more, or exists with another minor of Kubernetes than the cluster has.
    pub spec: Option<&'a ClusterPackageVersionSpec>,
    /// Its version of Kubernetes, if that is known.
    kubernetes: Option<&'a str>,
}

impl<'a> CurrentVersion<'a> {
    /// The one that the cluster has; none if it never was ready. What was recorded of it counts when it does not exist any more.
    pub fn of(seen: &'a Observed) -> Option<Self> {
        let name = seen.status.package_version.as_deref()?;
        let recorded = seen.status.kubernetes.as_deref();
        // One that was deleted and created again with another minor is another one: no way to it was checked.
        let same = |spec: &&ClusterPackageVersionSpec| {
            recorded
                .is_none_or(|recorded| VersionNode::gone(name, recorded).minor() == VersionNode::of(name, spec).minor())
        };
        let spec = seen.package(name).filter(same);
        let kubernetes =
            spec.map(|spec| spec.kubernetes.as_str()).or(recorded).or_else(|| recorded_version(seen, name));
        Some(Self { name, spec, kubernetes })
    }

    /// As far as the ways from it are concerned; none if its version is not known.
    pub fn stop(&self) -> Option<VersionNode<'a>> {
        match self.spec {
            Some(spec) => Some(VersionNode::of(self.name, spec)),
            None => self.kubernetes.map(|kubernetes| VersionNode::gone(self.name, kubernetes)),
        }
    }
}

/// The version that all API servers said they have, of a cluster whose version was not recorded yet. While it changes they tell nothing.
fn recorded_version<'a>(seen: &'a Observed, name: &str) -> Option<&'a str> {
    let changes = seen.workloads.iter().any(|(component, workload)| {
        let package = workload.package.as_deref();
        *component != ControlPlaneComponent::Etcd && package.is_some_and(|package| package != name)
    });
    let mut components = seen.status.components.iter().filter(|_| !changes);
    components.find(|one| one.component == ControlPlaneComponent::Apiserver)?.observed.as_deref()
}

/// Where a cluster is brought to.
pub(super) struct VersionStep<'a> {
    /// The package version, by its name.
    pub name: &'a str,
    /// What it says; none if it is the one that the cluster has and does not exist any more. Then the components are left as they are.
    pub spec: Option<&'a ClusterPackageVersionSpec>,
    /// The minor that its components emulate, so that it is possible to go back.
    pub emulates: Option<String>,
    /// Why it is not the one that the cluster refers to.
    pub refused: Option<(&'static str, String)>,
}

impl<'a> VersionStep<'a> {
    /// The one that is asked for.
    pub fn to(package: Package<'a>, emulates: Option<String>) -> Self {
        Self { name: package.0, spec: Some(package.1), emulates, refused: None }
    }

    /// The one that the cluster has, and why it stays at that.
    pub fn stays(at: CurrentVersion<'a>, emulates: Option<String>, refused: (&'static str, String)) -> Self {
        Self { name: at.name, spec: at.spec, emulates, refused: Some(refused) }
    }

    /// The package version that components are made from; none if they are left as they are.
    pub fn package(&self) -> Option<Package<'a>> {
        Some((self.name, self.spec?))
    }
}

/// Where the cluster is brought to, from where it is.
pub(super) fn step<'a>(seen: &'a Observed, now: Timestamp) -> VersionStep<'a> {
    let (target, status) = (seen.target(), &seen.status);
    // The record counts, not the time: as long as the old minor is emulated there is a way back, and who asked for it in time gets it.
    let soaking = status.emulates.as_deref();
    let emulated = status.emulates.clone();
    let goes = |emulates| VersionStep::to(target, emulates);
    if let Some((name, spec)) = restore::package(seen) {
        // What was written before is replaced, and so there is nothing that this version would not understand. One that only corrects another keeps the way back of that.
        let stopped_for = status.restoring.as_ref().and_then(|restoring| restoring.package_version.as_deref());
        let emulates = emulated.filter(|_| status.package_version.as_deref() == Some(stopped_for.unwrap_or(name)));
        let why = || {
            let target = target.0;
            format!(
                "the change to {target} waits for the restore, which starts the control plane with {name}; to restore with {target} instead, also set spec.restore to another snapshot"
            )
        };
        let refused = (name != target.0).then(|| (names::reasons::RESTORING, why()));
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
        // Another package of the same minor may be what makes it work.
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

/// What is said of a package version that the cluster has and that does not exist any more.
pub(super) fn package_missing_message(name: &str) -> String {
    format!("ClusterPackageVersion {name}, which the cluster runs, no longer exists: create it again")
}

/// Why a change that has not begun would leave etcd as it is: it needs a package version that does not exist any more. That holds no way back up.
fn unread(seen: &Observed, target: Package<'_>) -> Option<(&'static str, String)> {
    let why = etcd_data::compatible_package(seen, target).err().filter(|_| !etcd_data::begun(seen, target.0))?;
    Some((names::reasons::PACKAGE_VERSION_NOT_FOUND, why))
}
