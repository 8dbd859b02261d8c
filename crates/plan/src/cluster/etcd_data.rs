//! Selects the etcd version that can run with the data of a cluster: an etcd of an older minor than the last one that opened the data does not start
//! with it.
//!
//! Expected flow: the version of etcd, and the package version that it was built from, are recorded in `status.etcd` when they are seen to run. A
//! newer minor is recorded when every member has started with it: etcd raises the version of its data only when all members have the new minor, so
//! until then the old minor can run with the data. As soon as all members have started, the data may be raised, whether or not they became ready.
//!
//! Anybody with the right can delete the StatefulSet and package versions, and the operator deletes the StatefulSet when volumes grow: from then on
//! the record counts. Only a restore replaces the data, and with it the record.

use fleetwright_api::{ClusterPackageVersionSpec, ControlPlaneComponent, names};

use super::components::count;
use super::objects::Kind;
use super::observed::{Observed, Replica};
use super::preflight::Package;
use super::restore;

/// An etcd that opened the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataEtcd<'a> {
    pub version: &'a str,
    /// The package version of the etcd, if that is known.
    pub package: Option<&'a str>,
}

/// The etcd that opened the data: the recorded one, or the running one if that is not older and all members have started with it. `None` if it is
/// unknown, or if a restore replaces the data.
pub(super) fn opened_by(seen: &Observed) -> Option<DataEtcd<'_>> {
    seen.spec.datastore.etcd.as_ref()?;
    if restore::replaces(seen) {
        return None;
    }
    let recorded = seen.status.etcd.as_ref().and_then(|etcd| {
        let (version, package) = (etcd.version.as_deref()?, etcd.package_version.as_deref());
        Some(DataEtcd { version, package })
    });
    let name = made_from(seen);
    let runs = name.and_then(|name| Some(DataEtcd { version: version(seen.package(name)?), package: Some(name) }));
    match (recorded, runs.filter(|runs| !runs.version.is_empty())) {
        (Some(known), Some(runs)) if minor(runs.version) < minor(known.version) => Some(known),
        (Some(known), Some(runs))
            if minor(runs.version) > minor(known.version) && !all_members_started(seen, &runs) =>
        {
            Some(known)
        }
        // Another package version with the same minor of etcd replaces the recorded one.
        (_, Some(runs)) => Some(runs),
        (known, None) => known.or_else(|| inferred(seen, name)),
    }
}

/// Whether every member has started with the etcd of that package version, from which the StatefulSet was built. A member without a pod counts as not
/// started.
fn all_members_started(seen: &Observed, made: &DataEtcd<'_>) -> bool {
    let set = seen.object(Kind::StatefulSet, ControlPlaneComponent::Etcd.binary());
    let template = set.as_ref().map(|set| &set["spec"]["template"]);
    let image = template.and_then(|template| template["spec"]["containers"][0]["image"].as_str());
    let package = made.package.and_then(|name| seen.package(name));
    // A package version that was deleted and created again with another image was not applied yet.
    if image != package.map(|spec| spec.components.of(ControlPlaneComponent::Etcd).image.as_str()) {
        return false;
    }
    let template = template.and_then(|template| template["metadata"]["annotations"][names::APPLIED_HASH].as_str());
    let ran = |replica: &&Replica| {
        // The template may have changed again since, for an argument.
        let is_tagged = replica.runs.as_deref().is_some_and(|runs| minor(runs) == minor(made.version));
        replica.has_run && (replica.template.as_deref() == template || is_tagged)
    };
    let workload = seen.workloads.get(&ControlPlaneComponent::Etcd);
    let ran = workload.map_or(0, |workload| workload.replicas.iter().filter(ran).count());
    ran >= count(seen, ControlPlaneComponent::Etcd)
}

/// The inferred etcd of a cluster whose version was not recorded yet, and whose package version no longer exists. The tags of images come
/// last: a package version may give them another version.
fn inferred<'a>(seen: &'a Observed, package: Option<&'a str>) -> Option<DataEtcd<'a>> {
    seen.status.package_version.as_ref()?;
    let etcd = seen.status.components.iter().find(|one| one.component == ControlPlaneComponent::Etcd);
    let desired = etcd.and_then(|etcd| etcd.desired.as_deref()).filter(|version| !version.is_empty());
    let workload = seen.workloads.get(&ControlPlaneComponent::Etcd);
    let pods = workload.into_iter().flat_map(|workload| &workload.replicas);
    let newest = pods.filter_map(|replica| replica.runs.as_deref()).max_by_key(|version| minor(version));
    desired.or(newest).map(|version| DataEtcd { version, package })
}

/// The package version whose etcd runs with the data when the cluster is changed to `asked`: that one, unless its etcd is of an older minor than the
/// data; then the package version of the etcd that opened the data.
///
/// # Errors
/// The package version no longer exists: etcd is left unchanged, and not recreated if it is gone. The error contains what to do.
pub(super) fn compatible_package<'a>(seen: &'a Observed, asked: Package<'a>) -> Result<Package<'a>, String> {
    if restore::replaces(seen) {
        return Ok(asked);
    }
    let name = made_from(seen);
    let Some(known) = opened_by(seen) else {
        // A package version that exists without a known etcd version blocks nothing.
        let gone = name.filter(|name| seen.package(name).is_none() && seen.status.package_version.is_some());
        let gone = gone.filter(|name| *name != asked.0);
        return gone.map_or(Ok(asked), |gone| {
            Err(format!(
                "etcd is not changed: ClusterPackageVersion {gone}, from which it was created, no longer exists, and the etcd version of its data is unknown: create {gone} again"
            ))
        });
    };
    let needed = minor(known.version);
    let is_enough = |spec: &ClusterPackageVersionSpec| minor(version(spec)) >= needed;
    if is_enough(asked.1) {
        return Ok(asked);
    }
    let others = name.into_iter().chain(known.package).chain(seen.status.previous.as_deref());
    let mut others = others.filter_map(|name| Some((name, seen.package(name)?)));
    others.find(|other| is_enough(other.1)).ok_or_else(|| {
        let has = format!(
            "etcd is not changed: its data was written by etcd {}, and etcd {} of {} cannot read it",
            known.version,
            version(asked.1),
            asked.0
        );
        let (major, second) = needed;
        let enough = format!("use a package version with etcd {major}.{second} or newer");
        match known.package {
            Some(package) => format!(
                "{has}; ClusterPackageVersion {package}, from which it was created, no longer exists: create it again, or {enough}"
            ),
            None => format!("{has}; {enough}"),
        }
    })
}

/// Whether a part of a change to that package version was applied. An etcd that stayed at it after a rollback does not count: it is of an earlier
/// change.
pub(super) fn begun(seen: &Observed, target: &str) -> bool {
    seen.workloads.iter().any(|(component, workload)| {
        let is_of = workload.package.as_deref() == Some(target);
        is_of && (*component != ControlPlaneComponent::Etcd || !etcd_stayed_at(seen, target))
    })
}

/// Whether etcd stayed at that package version after a rollback from it: it is recorded with it and too new for the cluster's package version, and no
/// change to it is in progress.
pub(super) fn etcd_stayed_at(seen: &Observed, target: &str) -> bool {
    let (status, etcd) = (&seen.status, |name: &str| seen.package(name).map(|spec| minor(version(spec))));
    let recorded = status.etcd.as_ref().and_then(|etcd| etcd.package_version.as_deref());
    let has = status.package_version.as_deref().and_then(etcd);
    let is_newer = etcd(target).zip(has).is_some_and(|(target, has)| target > has);
    let stage = status.progress.as_ref().and_then(|progress| progress.id.as_deref()?.strip_prefix(target));
    let is_changing = stage.is_some_and(|stage| stage.starts_with('/'));
    recorded == Some(target) && is_newer && !is_changing
}

/// Message about an etcd that stays at a package version while the cluster is changed to another one, see [`compatible_package`].
pub(super) fn etcd_stays_message(at: Package<'_>, to: Package<'_>) -> String {
    let (major, second) = minor(version(at.1));
    format!(
        "etcd stays at {}: its data may have been written by etcd {}, and etcd {} of {} cannot read that. If etcd of {} does not start either, use a package version \
         with a working etcd {major}.{second} or newer, or restore a snapshot",
        at.0,
        version(at.1),
        version(to.1),
        to.0,
        at.0
    )
}

/// The package version of the StatefulSet of etcd, if it exists and is annotated.
fn made_from(seen: &Observed) -> Option<&str> {
    let workload = seen.workloads.get(&ControlPlaneComponent::Etcd)?;
    workload.package.as_deref().filter(|name| !name.is_empty())
}

/// The version of etcd in a package version.
fn version(spec: &ClusterPackageVersionSpec) -> &str {
    spec.version_of(ControlPlaneComponent::Etcd)
}

/// The minor of etcd that data of that version needs, if the etcd of a package version is older: such an etcd does not start with the data. A package
/// version without a known etcd version counts as sufficient.
pub(crate) fn needs_newer(spec: &ClusterPackageVersionSpec, data: &str) -> Option<String> {
    let (has, (major, second)) = (version(spec), minor(data));
    (!has.is_empty() && minor(has) < (major, second)).then(|| format!("{major}.{second}"))
}

/// Whether the etcd of a package version has the minor of that version.
pub(super) fn has_minor(spec: &ClusterPackageVersionSpec, of: &str) -> bool {
    minor(version(spec)) == minor(of)
}

/// Major and minor of a version.
pub(crate) fn minor(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}
