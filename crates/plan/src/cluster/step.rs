//! From which package version to which a cluster may go, and with what care.

use fleetwright_api::{ClusterPackageVersionSpec, ControlPlaneComponent, names};
use jiff::Timestamp;

use super::datastore;
use super::observed::Observed;
use super::reach::{self, Stop, Why};
use super::stage::failed;
use super::{restore, snapshots};

/// Where a cluster is brought to.
pub(super) struct Step<'a> {
    /// The package version, by its name.
    pub package: (&'a str, &'a ClusterPackageVersionSpec),
    /// The minor that its components emulate, so that it is possible to go back.
    pub emulates: Option<String>,
    /// Why it is not the one that the cluster refers to.
    pub refused: Option<(&'static str, String)>,
}

/// Where the cluster is brought to, from where it is.
pub(super) fn step<'a>(seen: &'a Observed, now: Timestamp) -> Step<'a> {
    let (target, status) = (seen.target(), &seen.status);
    // The record counts, not the time: as long as the old minor is emulated there is a way back, and who asked for it in time gets it.
    let soaking = status.emulates.as_deref();
    let emulated = status.emulates.clone();
    let goes = |emulates| Step { package: target, emulates, refused: None };
    let at = status.package_version.as_deref().and_then(|name| seen.package(name).map(|spec| (name, spec)));
    let Some(at) = at else { return goes(None) };
    if restore::replaces(seen) {
        // What was written since is not there any more, and so nothing that another version would not understand.
        return goes(emulated.filter(|_| at.0 == target.0));
    }
    if at.0 == target.0 {
        return goes(emulated);
    }
    let stays = |reason, why: String| Step { package: at, emulates: emulated.clone(), refused: Some((reason, why)) };
    if let Some((reason, why)) = datastore::refused(seen, target.0, now) {
        return stays(reason, why);
    }
    if let Some(failed) = failed(seen) {
        let what = format!("{} did not work and was taken back: {}", target.0, failed.message);
        let how = format!(
            "mend the cause and set the annotation {} to something new, or refer to another package version",
            names::RETRY
        );
        return stays(names::reasons::TRIED_AND_FAILED, format!("{what}; {how}"));
    }
    let (from, to) = (Stop::of(at.0, at.1), Stop::of(target.0, target.1));
    let way = if to.is_older_than(&from) { reach::back(&from, &to, soaking) } else { reach::forward(&from, &to) };
    match way {
        Err(no_way) if no_way.why == Why::NotEmulated => {
            let more = "restoring a snapshot of before leads back, and loses what was written since";
            stays(names::reasons::SOAK_OVER, format!("{}; {more}", no_way.message))
        }
        Err(no_way) => stays(names::reasons::NOT_REACHABLE, no_way.message),
        Ok(()) if to.is_older_than(&from) => goes(emulated.filter(|_| from.minor() == to.minor())),
        Ok(()) if from.minor() != to.minor() && soaking.is_some() => {
            let minor = soaking.unwrap_or_default();
            let why = format!("{} emulates {minor} until its soak is over: {} comes after that", at.0, target.0);
            stays(names::reasons::NOT_REACHABLE, why)
        }
        // Another package of the same minor may be what makes it work.
        Ok(()) if from.minor() != to.minor() && status.finishing.is_some() => {
            let why = format!("the soak of {} is being ended: {} comes after that", at.0, target.0);
            stays(names::reasons::NOT_REACHABLE, why)
        }
        Ok(()) => match snapshots::refused(seen, target.0) {
            Some((reason, why)) => stays(reason, why),
            None if from.minor() == to.minor() => goes(emulated),
            None => goes(Some(from.minor().to_owned())),
        },
    }
}

/// Whether etcd stays with that package version because the one asked for has an older minor of etcd, which does not read its data.
pub(super) fn newer_etcd(seen: &Observed, component: ControlPlaneComponent, running: &str, step: &Step<'_>) -> bool {
    let key = |spec: &ClusterPackageVersionSpec| {
        let version = spec.version_of(ControlPlaneComponent::Etcd);
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    };
    component == ControlPlaneComponent::Etcd
        && running != step.package.0
        && seen.package(running).is_some_and(|running| key(running) > key(step.package.1))
}
