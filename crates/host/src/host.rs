//! Answers requests, one after the other.

use std::time::Duration;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{
    Answer, Apply, Bytes, Claim, ComponentSeen, Deviation, Failure, FailureKind, HOME, Mark, OPT, Observation, Observe,
    Outcome, Package, Progress, Request, Step, StepRecord,
};

use crate::journal::{BeginResult, Journal, LOG, StartedStep};
use crate::steps::{InstallMode, RunningStep};
use crate::system::UpcomingQueries;
use crate::text::Tail;
use crate::{System, folders, observe, owner, store};

/// The helper's side of the protocol: answers requests about its host.
///
/// # Guarantees
/// - The record of a step is on disk before the step does anything; the same id never runs twice, whichever caller and process asks for it.
/// - One step runs at a time.
/// - Only the host's owner changes anything, and only with a fencing token that is not lower than the highest one received from that owner.
/// - No essential state is kept in memory: another process on the same host gives the same answers.
///
/// # Caveats
/// - [`Answer::Ended`] has a record with [`Outcome::Running`] if the step was started by another live process, and for a reboot, which
///   ends when the host is back. Ask for its record again.
#[derive(Debug)]
pub struct Host<S> {
    system: S,
    /// A step that ended in this process, and whose end could not be written.
    unsaved: Option<StartedStep>,
}

impl<S: System> Host<S> {
    /// A host with that system.
    pub fn new(system: S) -> Self {
        Self { system, unsaved: None }
    }

    /// The system that it works on.
    pub fn system(&self) -> &S {
        &self.system
    }

    /// Answers a request; sends progress while it works on it. Never panics, whatever the request.
    pub fn answer(&mut self, request: Request, on_progress: &mut dyn FnMut(Answer)) -> Answer {
        self.try_answer(request, on_progress).unwrap_or_else(Answer::Failed)
    }

    fn try_answer(&mut self, request: Request, on_progress: &mut dyn FnMut(Answer)) -> Result<Answer, Failure> {
        let saved = self.save();
        match request {
            Request::Observe(observe) => {
                self.observe(&observe, on_progress).map(|seen| Answer::Observed(Box::new(seen)))
            }
            Request::Apply(apply) => {
                // The same id gets its result even while that cannot be written; no other step starts.
                if let (Err(failure), None) = (saved, self.unsaved_record(&apply.id)) {
                    return Err(failure);
                }
                self.apply(&apply, on_progress).map(Answer::Ended)
            }
            Request::Recall { id } => self.recall(&id).map(Answer::Recalled),
            Request::Refuse { id, claim } => match self.unsaved_record(&id) {
                Some(record) => Ok(Answer::Recalled(Some(record))),
                None => Journal::of(&mut self.system).refuse(&id, &claim).map(|record| Answer::Recalled(Some(record))),
            },
            Request::Log { id, bytes } => {
                Journal::of(&mut self.system).log(&id, bytes).map(|log| Answer::Log(Bytes(log)))
            }
            Request::Clean { claim } => self.clean(&claim).map(|()| Answer::Cleaned),
            Request::Claim { claim } => self.claim(&claim).map(Answer::Claimed),
            Request::Release { claim } => self
                .alone(|system| {
                    owner::admit(system, &claim)?;
                    owner::release(system)
                })
                .map(|()| Answer::Released),
            Request::Adopt { claim, from } => {
                self.alone(|system| owner::adopt(system, &claim, &from)).map(Answer::Adopted)
            }
        }
    }

    fn save(&mut self) -> Result<(), Failure> {
        if let Some(unsaved) = &self.unsaved {
            Journal::of(&mut self.system).save(unsaved)?;
            self.unsaved = None;
        }
        Ok(())
    }

    fn unsaved_record(&self, id: &str) -> Option<StepRecord> {
        self.unsaved.as_ref().map(StartedStep::record).filter(|record| record.id == id).cloned()
    }

    fn recall(&mut self, id: &str) -> Result<Option<StepRecord>, Failure> {
        match self.unsaved_record(id) {
            Some(record) => Ok(Some(record)),
            None => Journal::of(&mut self.system).recall(id),
        }
    }

    fn observe(&mut self, asked: &Observe, on_progress: &mut dyn FnMut(Answer)) -> Result<Observation, Failure> {
        let other = |error: std::io::Error| Failure {
            kind: FailureKind::Other,
            message: format!("cannot read the state of the host: {error}"),
        };
        let facts = self.system.facts().map_err(other)?;
        // A restored version is compared with the host's own copy of its package: the operator may not be able to render it any more.
        let kept: Vec<Package> =
            asked.installed.iter().filter_map(|component| observe::installed(&self.system, component)).collect();
        let packages = || asked.packages.iter().chain(&kept);
        self.system.foresee(observe::coming(packages(), asked.health));
        let components = self.components(packages(), asked.health, on_progress);
        self.system.foresee(UpcomingQueries::default());
        let mut components = components.map_err(other)?;
        // A component that cannot be compared counts as different: it must not count as proven.
        for seen in &mut components {
            let compared = asked.packages.iter().chain(&kept).any(|package| package.component == seen.component);
            if !compared && asked.installed.contains(&seen.component) {
                seen.deviations.push(Deviation {
                    what: "observation".to_owned(),
                    found: "the host's own copy of the package is not readable".to_owned(),
                    wanted: "readable".to_owned(),
                    disrupts: false,
                });
            }
        }
        let mut records = Vec::new();
        for id in &asked.records {
            records.extend(self.recall(id)?);
        }
        for id in Journal::of(&mut self.system).recent(asked.recent) {
            if records.iter().all(|record| record.id != id) {
                records.extend(self.recall(&id)?);
            }
        }
        if let Some(running) = Journal::of(&mut self.system).running()?
            && records.iter().all(|record| record.id != running.id)
            && self.unsaved_record(&running.id).is_none()
        {
            records.push(running);
        }
        let owner = owner::mark(&self.system)?;
        let never_owned = owner.is_none()
            && components.iter().any(|seen| seen.installed.is_some())
            && !owner::was_owned(&self.system);
        Ok(Observation { facts, owner, never_owned, components, records })
    }

    fn components<'p>(
        &self,
        packages: impl Iterator<Item = &'p Package>,
        health: bool,
        on_progress: &mut dyn FnMut(Answer),
    ) -> std::io::Result<Vec<ComponentSeen>> {
        let mut components: Vec<ComponentSeen> = Vec::new();
        for package in packages {
            if health && !package.health.checks.is_empty() {
                on_progress(Answer::Progress(Progress {
                    doing: format!("checking {}", truncate_bytes(&package.component, 63)),
                }));
            }
            components.push(observe::component(&self.system, package, health));
        }
        for name in store::components(&self.system)? {
            if components.iter().all(|seen| seen.component != name) {
                components.extend(observe::unasked(&self.system, &name));
            }
        }
        Ok(components)
    }

    fn apply(&mut self, apply: &Apply, on_progress: &mut dyn FnMut(Answer)) -> Result<StepRecord, Failure> {
        if let Some(record) = self.unsaved_record(&apply.id) {
            return Ok(record);
        }
        let mut begun = match Journal::of(&mut self.system).begin(apply)? {
            BeginResult::AlreadyKnown(record) => return Ok(record),
            BeginResult::Started(begun) => begun,
        };
        let mut log = Tail::new(LOG);
        if apply.step == Step::Reboot {
            let told = Journal::of(&mut self.system).boots(&mut begun);
            let booting = told.and_then(|record| match self.system.reboot() {
                Ok(()) => Ok(record),
                Err(error) => {
                    Err(Failure { kind: FailureKind::Other, message: format!("cannot reboot the host: {error}") })
                }
            });
            return match booting {
                Ok(record) => {
                    Journal::of(&mut self.system).unlock();
                    Ok(record)
                }
                Err(failure) => Ok(self.end(begun, Outcome::Failed, true, &failure.message, &log)),
            };
        }
        let until = self.system.elapsed() + Duration::from_secs(apply.within);
        let mut doing = RunningStep {
            system: &mut self.system,
            on_progress: &mut |doing| on_progress(Answer::Progress(Progress { doing: truncate_bytes(&doing, 500) })),
            log: &mut log,
            until,
            touched: false,
        };
        let ended = match &apply.step {
            Step::Install(package) => {
                doing.install(package, &package.digest(), InstallMode::Install { unproven: apply.unproven })
            }
            Step::Repair(package) => doing.install(package, &package.digest(), InstallMode::Repair),
            Step::Remove { component } => doing.remove(component),
            Step::Back { component, to } => doing.back(component, to),
            Step::Reboot => Ok(String::new()),
        };
        let touched = doing.touched;
        Ok(match ended {
            Ok(message) => self.end(begun, Outcome::Done, false, &message, &log),
            Err(error) => self.end(begun, Outcome::Failed, !touched, &error.to_string(), &log),
        })
    }

    fn end(&mut self, begun: StartedStep, outcome: Outcome, untouched: bool, message: &str, log: &Tail) -> StepRecord {
        let (record, unsaved) = Journal::of(&mut self.system).end(begun, outcome, untouched, message, log);
        self.unsaved = unsaved;
        record
    }

    /// Changes the owner while no step runs.
    fn alone<T>(&mut self, change: impl FnOnce(&mut S) -> Result<T, Failure>) -> Result<T, Failure> {
        if !Journal::of(&mut self.system).lock()? {
            return Err(Failure { kind: FailureKind::Busy, message: "a step is running".to_owned() });
        }
        let changed = Journal::of(&mut self.system).hold_lock().and_then(|()| change(&mut self.system));
        let mut journal = Journal::of(&mut self.system);
        journal.release_lock();
        journal.unlock();
        changed
    }

    /// Writes the owner mark of a host that has none; the present owner gets its mark again.
    fn claim(&mut self, claim: &Claim) -> Result<Mark, Failure> {
        self.alone(|system| {
            owner::claim(system, claim)?;
            owner::mark(system)?.ok_or_else(|| Failure {
                kind: FailureKind::NoJournal,
                message: "the owner mark is missing after it was written".to_owned(),
            })
        })
    }

    fn clean(&mut self, claim: &Claim) -> Result<(), Failure> {
        // No operator was ever here: no files are created only to be removed.
        let failed = |error: std::io::Error| Failure {
            kind: FailureKind::Other,
            message: format!("cannot remove {HOME}: {error}"),
        };
        if self.system.stat(HOME).map_err(failed)?.is_none() {
            return Ok(());
        }
        // The owner is read under the same lock as the clean-up: an adoption in between would lose its mark.
        let cleaned = self.alone(|system| {
            owner::admit(system, claim)?;
            clean_locked(system).map_err(failed)
        });
        match cleaned? {
            None => Ok(()),
            Some(components) => Err(Failure {
                kind: FailureKind::InUse,
                message: format!("components are still installed: {}; remove them first", components.join(", ")),
            }),
        }
    }
}

/// Returns the components that block the clean-up.
fn clean_locked<S: System>(system: &mut S) -> std::io::Result<Option<Vec<String>>> {
    let mut components = store::components(system)?;
    components.retain(|component| observe::unasked(system, component).is_some());
    if !components.is_empty() {
        return Ok(Some(components));
    }
    folders::tidy(system)?;
    if system.stat(OPT)?.is_some() && system.list(OPT)?.is_empty() {
        system.remove(OPT)?;
    }
    // The mark is removed last: a half-cleaned host still belongs to its owner.
    let mark = owner::path();
    for name in system.list(HOME)? {
        let path = format!("{HOME}/{name}");
        if path != mark {
            system.remove(&path)?;
        }
    }
    system.remove(HOME)?;
    Ok(None)
}
