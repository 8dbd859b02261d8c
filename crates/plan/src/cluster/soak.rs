//! The end of a soak: a new minor stops emulating the old one, and from then on only restoring a snapshot leads back.
//!
//! Expected flow: `status.soakSince` and `spec.upgrade.soak` give the earliest end of a soak. One hour before it, clients, kubelets and quotas are
//! surveyed, and `UpgradeCompletable` reports what blocks the end. When the time is over, the cluster is not paused, nothing else is in progress, all
//! components are proven and there is no finding, a snapshot is taken for this purpose. Then `status.finishing` is written and `status.emulates`
//! removed, in a pass that does nothing else; the components restart without emulation, and `status.finishing` is removed when every API server is
//! proven and reports that it emulates nothing.
//!
//! Guarantees: a soak does not end by time alone. A person who declares an older package version while `status.emulates` is set gets a rollback,
//! however late. A crash at any moment leaves either a soak that continues or an end that continues.

use fleetwright_api::{ControlPlaneComponent, FinishingUpgrade, Status, StepProgress, condition, names};
use jiff::{SignedDuration, Timestamp};

use super::components::Waiting;
use super::datastore;
use super::members::NextMemberStep;
use super::observed::Observed;
use super::preflight::{self, PreflightFinding, SURVEY_TTL};
use super::proofs::proven_at;
use super::restore;
use super::snapshots::PRE_UPGRADE_MAX_AGE;
use super::stage::bounded;
use super::survey::SurveyQuestion;
use super::upgrade_path::VersionNode;

/// What blocks the end is surveyed and reported this long before the end.
const SNAPSHOT_LEAD_TIME: SignedDuration = SignedDuration::from_hours(1);
/// Each API server is proven again within this time. An older proof does not count for a step that cannot be rolled back.
const PROVEN_WITHIN: SignedDuration = SignedDuration::from_mins(15);

/// State of the end of a soak.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SoakEnd {
    /// Findings against the end.
    pub findings: Vec<PreflightFinding>,
    /// The condition `UpgradeCompletable`, while a soak is in progress or ending.
    pub condition: Option<(Status, &'static str, String)>,
    /// The survey to run.
    pub ask: Option<SurveyQuestion>,
    /// Whether the survey is still needed.
    pub surveyed: bool,
    /// Purpose of the snapshot to take.
    pub snapshot: Option<String>,
    /// Record with which the soak ends: it is written in this pass.
    pub ends: Option<FinishingUpgrade>,
    /// Whether the restart without emulation timed out.
    pub failed: bool,
    /// Progress of the restart without emulation.
    pub progress: Option<StepProgress>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// Inputs about other work in the same pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoakContext<'a> {
    /// The package version that the cluster is changed to.
    pub package: &'a str,
    /// Whether authorities are being replaced from now on.
    pub rotation: bool,
    /// The next step towards the declared members of etcd.
    pub members: &'a NextMemberStep,
    /// The first component that is not yet as declared and proven.
    pub waiting: Option<&'a Waiting>,
    /// Whether objects, claims, certificates, keys or members are being updated.
    pub updating: bool,
}

/// Start of the soak in progress, and its earliest end. The end follows the declared soak of now, not of its start.
pub(super) fn times(seen: &Observed, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let status = &seen.status;
    status.emulates.as_ref()?;
    let soak = SignedDuration::try_from(seen.spec.upgrade.soak.0).unwrap_or(SignedDuration::MAX);
    // A status written by a version that did not record the start has only the end.
    let since = status.soak_since.or_else(|| status.soak_until?.checked_sub(soak).ok()).unwrap_or(now);
    Some((since, since.checked_add(soak).unwrap_or(Timestamp::MAX)))
}

/// Why an API server does not yet count as restarted without emulation, while a soak ends. A proof of an earlier operator process does not tell what
/// the API server emulates.
pub(super) fn emulating(seen: &Observed) -> Option<String> {
    seen.status.finishing.as_ref()?;
    let workload = seen.workloads.get(&ControlPlaneComponent::Apiserver)?;
    workload.replicas.iter().filter(|replica| !replica.ending).find_map(|replica| {
        let proof = seen.proofs.get(&replica.uid).filter(|proof| proof.restarts == replica.restarts);
        match proof {
            Some(proof) if proof.outcome.is_ok() => {
                let minor = proof.emulates.as_ref()?;
                Some(format!("{} still emulates {minor}", replica.name))
            }
            _ => Some(format!("{} is not verified without emulation yet", replica.name)),
        }
    })
}

/// State of the end of a soak, after everything else was decided.
pub(super) fn end(seen: &Observed, underway: &SoakContext<'_>, now: Timestamp) -> SoakEnd {
    if let Some(finishing) = &seen.status.finishing {
        return restarts(seen, underway.waiting, finishing, now);
    }
    let Some((_, until)) = times(seen, now) else { return SoakEnd::default() };
    let Some(minor) = &seen.status.emulates else { return SoakEnd::default() };
    let ahead = until.checked_sub(SNAPSHOT_LEAD_TIME).unwrap_or(until);
    let mut end = SoakEnd { next: [ahead, until].into_iter().find(|then| *then > now), ..SoakEnd::default() };
    let lasts = match now < until {
        true => format!("emulating {minor} until {until}"),
        false => format!("emulating {minor}; the soak time ended at {until}"),
    };
    let at = seen.status.package_version.as_deref().and_then(|name| Some((name, seen.package(name)?)));
    let Some(at) = at else {
        let message =
            format!("{lasts}; the ClusterPackageVersion that the cluster runs does not exist: create it again");
        end.condition = Some((Status::Unknown, names::reasons::PACKAGE_VERSION_NOT_FOUND, message));
        return end;
    };
    if let Some((reason, why)) = soak_end_blocker(seen, underway, at.0, now) {
        end.condition = Some((Status::Unknown, reason, bounded(&format!("{lasts}; {why}"))));
        return end;
    }
    if now < ahead {
        let message = format!(
            "{lasts}; until then a rollback keeps all writes; the checks for completing the upgrade start at {ahead}; to change the time, set spec.upgrade.soak"
        );
        end.condition = Some((Status::Unknown, names::reasons::SOAKING, message));
        return end;
    }
    let of = preflight::ask(seen, at.0);
    let ask = SurveyQuestion { of: format!("end of the soak of {}", of.of), ..of };
    let survey = seen.preflight.survey.as_ref().filter(|survey| survey.of == ask.of);
    let again = survey.and_then(|survey| survey.at.checked_add(SURVEY_TTL).ok());
    let stale = again.is_none_or(|again| again <= now);
    end.surveyed = true;
    end.ask = stale.then_some(ask);
    end.next = end.next.into_iter().chain(again.filter(|again| *again > now)).min();
    end.findings = survey.map(|survey| preflight::before_finish(seen, survey, at)).unwrap_or_default();
    let step = format!("{}/soak", at.0);
    preflight::override_findings(&mut end.findings, seen.preflight.overrides.as_deref(), &step);
    let against: Vec<_> = end.findings.iter().filter(|finding| !finding.overridden).collect();
    end.condition = Some(match against.first() {
        Some(first) => (Status::False, first.reason, preflight::listed(&lasts, &step, &against)),
        None if stale => {
            let what = "reading API usage and kubelet versions";
            (Status::Unknown, names::reasons::PREFLIGHT_CHECKS_RUNNING, format!("{lasts}; {what}"))
        }
        None if now < until => {
            let message =
                format!("{lasts}; nothing blocks completing the upgrade; until then a rollback keeps all writes");
            (Status::True, names::reasons::SOAKING, message)
        }
        None => match snapshot(seen, at.0, until, now) {
            Some((purpose, status, why)) => {
                end.snapshot = Some(purpose);
                (status, names::reasons::SNAPSHOT_REQUIRED, bounded(&format!("{lasts}; {why}")))
            }
            None => {
                end.ends =
                    Some(FinishingUpgrade { package_version: at.0.to_owned(), emulated: minor.clone(), since: now });
                (Status::Unknown, names::reasons::COMPLETING_UPGRADE, restarting(minor))
            }
        },
    });
    end
}

fn restarting(minor: &str) -> String {
    format!("the soak is over; restarting the components without emulation of {minor}")
}

/// What blocks the end of a soak, besides its time and the findings. None of it can be overridden.
fn soak_end_blocker(
    seen: &Observed,
    underway: &SoakContext<'_>,
    at: &str,
    now: Timestamp,
) -> Option<(&'static str, String)> {
    use names::reasons::{CHANGE_IN_PROGRESS, NOT_VERIFIED, PAUSED, QUORUM_LOST};
    if seen.spec.paused {
        return Some((PAUSED, "the upgrade is not completed while spec.paused is true".to_owned()));
    }
    let present = seen.package(at)?;
    let (from, to) = (VersionNode::of(at, present), VersionNode::of(seen.target().0, seen.target().1));
    // An upgrade to the next minor waits for the end of this soak. Every other declared change comes before the end: above all a rollback.
    if to.name != from.name && (to.is_older_than(&from) || to.minor() == from.minor()) {
        return Some((
            CHANGE_IN_PROGRESS,
            format!("the upgrade is not completed while spec.packageVersion is {}", to.name),
        ));
    }
    if underway.package != at {
        return Some((
            CHANGE_IN_PROGRESS,
            format!("the upgrade is not completed while the cluster changes to {}", underway.package),
        ));
    }
    if seen.status.restoring.is_some() {
        return Some((
            CHANGE_IN_PROGRESS,
            "the upgrade is not completed while a snapshot is being restored".to_owned(),
        ));
    }
    if seen.status.rotation.is_some() || underway.rotation {
        return Some((
            CHANGE_IN_PROGRESS,
            "the upgrade is not completed while authorities are being rotated".to_owned(),
        ));
    }
    let change = datastore::record(seen).change.filter(|_| seen.spec.datastore.etcd.is_some());
    if change.is_some()
        || !matches!(
            underway.members,
            NextMemberStep::Nothing | NextMemberStep::QueryMembers | NextMemberStep::Refuse(_)
        )
    {
        return Some((
            CHANGE_IN_PROGRESS,
            "the upgrade is not completed while etcd members are being changed".to_owned(),
        ));
    }
    if let Some(quorum) = datastore::quorum(seen, now).filter(|quorum| quorum.missing) {
        return Some((QUORUM_LOST, format!("{} of {} etcd members are ready", quorum.ready, quorum.members)));
    }
    if let Some((_, why)) = underway.waiting {
        return Some((CHANGE_IN_PROGRESS, format!("all components must be up to date and verified first: {why}")));
    }
    if underway.updating {
        return Some((CHANGE_IN_PROGRESS, "updating objects of the control plane".to_owned()));
    }
    let servers = seen.workloads.get(&ControlPlaneComponent::Apiserver)?.replicas.iter();
    let old = servers
        .filter(|replica| !replica.ending)
        .find(|replica| proven_at(seen, replica).is_none_or(|proven| now.duration_since(proven) > PROVEN_WITHIN));
    old.map(|replica| (NOT_VERIFIED, format!("{} must be verified again first", replica.name)))
}

/// Purpose of the snapshot that must exist first, and why it does not exist yet. An external etcd is backed up by its administrator, as before an
/// upgrade.
fn snapshot(seen: &Observed, at: &str, until: Timestamp, now: Timestamp) -> Option<(String, Status, String)> {
    seen.spec.datastore.etcd.as_ref()?;
    // Another end needs another snapshot: if a person makes the soak longer, a snapshot is taken at the later end.
    let purpose = format!("soak/{at}/{until}");
    let last = seen.status.last_snapshot.as_ref().filter(|last| last.purpose.as_ref() == Some(&purpose));
    if last.is_some_and(|last| now.duration_since(last.at) < PRE_UPGRADE_MAX_AGE) {
        return None;
    }
    let failed = condition(&seen.status.conditions, names::SNAPSHOTS_RECENT)
        .filter(|one| one.reason == names::reasons::SNAPSHOT_FAILED);
    Some(match failed {
        Some(failed) => (purpose, Status::False, format!("a snapshot must be taken first: {}", failed.message)),
        None => (purpose, Status::Unknown, "taking a snapshot first".to_owned()),
    })
}

/// Progress of the restart without emulation. The restart is not rolled back: data written since may be unreadable for the old minor.
fn restarts(seen: &Observed, waiting: Option<&Waiting>, finishing: &FinishingUpgrade, now: Timestamp) -> SoakEnd {
    let FinishingUpgrade { package_version, emulated, since } = finishing;
    let Some((_, why)) = waiting else { return SoakEnd::default() };
    let within = SignedDuration::try_from(seen.spec.upgrade.stage_timeout.0).unwrap_or(SignedDuration::MAX);
    let until = since.checked_add(within).unwrap_or(Timestamp::MAX);
    let failed = now >= until;
    let progress = StepProgress {
        step: format!("ending the emulation of {emulated}"),
        id: Some(format!("{package_version}/soak")),
        since: *since,
        message: bounded(why),
    };
    let condition = match failed {
        true => {
            let message = format!(
                "after {} the components do not work without emulation of {emulated}: {why}. There is no automatic rollback, because data written since may be unreadable for {emulated}: fix the cause, use another package version of the same minor, or restore a snapshot together with the previous package version",
                seen.spec.upgrade.stage_timeout
            );
            (Status::False, names::reasons::UPGRADE_COMPLETION_FAILED, bounded(&message))
        }
        false => {
            (Status::Unknown, names::reasons::COMPLETING_UPGRADE, bounded(&format!("{}: {why}", restarting(emulated))))
        }
    };
    SoakEnd {
        condition: Some(condition),
        progress: Some(progress),
        failed,
        next: Some(until).filter(|until| *until > now),
        ..SoakEnd::default()
    }
}

/// Whether the restart without emulation is complete: all is as declared, and each API server is proven and emulates nothing.
pub(super) fn finished(seen: &Observed, settled: bool) -> bool {
    settled && seen.status.finishing.is_some() && restore::stage(seen).is_none() && emulating(seen).is_none()
}
