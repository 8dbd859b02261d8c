//! The host's journal of steps: no step runs twice, and the outcome of each can be asked for.
//!
//! A record is on disk before its step starts, and again after the step has ended. Between [`RECORDS`] and twice as many records are kept
//! whole, with their output. Of older steps only the ids are kept, up to [`IDS`]: a host that is changed ten times a day still knows the id of
//! a step from a year ago. A record that cannot be read means that its step was started: the step counts as interrupted, never as unknown.

use std::io;

use fleetwright_wire::text::{last_bytes, truncate_bytes};
use fleetwright_wire::{Apply, Claim, Failure, FailureKind, HOME, MAX_TAIL, Outcome, Step, StepRecord, Verb};
use serde::{Deserialize, Serialize};

use crate::text::Tail;
use crate::{System, owner};

/// Records kept whole: at least this many, at most twice as many.
pub const RECORDS: usize = 64;
/// Ids of older steps that are kept.
pub const IDS: usize = 4096;
/// Bytes kept of a step's output.
pub const LOG: usize = 64 << 10;
/// Seconds after which a requested reboot that did not happen counts as failed.
pub const BOOT_WITHIN: i64 = 120;
/// Seconds added to a step's timeout before processes that outlived the helper no longer block the next step.
const GRACE: i64 = 60;
/// No step starts with less free space than this: the record of its end would not fit either.
const RESERVED_SPACE: u64 = 1 << 20;

const LIMIT: u64 = 1 << 20;

/// A step record as stored on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct JournalRecord {
    record: StepRecord,
    /// Identity of the helper process that runs the step.
    process: String,
    /// Sequence number. Increases with each step, also when the clock jumps back.
    number: u64,
    /// The step's timeout in seconds; nothing of the step runs after it.
    #[serde(default)]
    within: u64,
    /// When the host was asked to reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot_asked: Option<i64>,
}

/// The step that was started last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct LatestStep {
    id: String,
    number: u64,
}

/// An older step of which only the id and these fields are kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EarlierStep {
    id: String,
    verb: Verb,
    outcome: Outcome,
    began: i64,
}

/// A started step, which [`Journal::end`] must end.
#[derive(Debug)]
pub(crate) struct StartedStep {
    written: JournalRecord,
}

impl StartedStep {
    pub(crate) fn record(&self) -> &StepRecord {
        &self.written.record
    }
}

/// The result of [`Journal::begin`].
pub(crate) enum BeginResult {
    /// The step may run now. Its record is on disk.
    Started(StartedStep),
    /// The step was started earlier, or refused.
    AlreadyKnown(StepRecord),
}

/// The journal of a host. All its state is on disk.
pub(crate) struct Journal<'s> {
    system: &'s mut dyn System,
}

fn folder() -> String {
    format!("{HOME}/journal")
}

fn record_path(id: &str) -> String {
    format!("{}/steps/{id}.json", folder())
}

fn log_path(id: &str) -> String {
    format!("{}/logs/{id}", folder())
}

/// Held while a step runs.
fn step_lock() -> String {
    format!("{}/step.lock", folder())
}

/// Held only while the journal itself is written.
fn journal_lock() -> String {
    format!("{}/journal.lock", folder())
}

/// Rejects ids that are not valid step ids; an id becomes a file name.
fn checked(id: &str) -> Result<(), Failure> {
    let fine = (1..=128).contains(&id.len())
        && !id.starts_with('.')
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    if fine {
        return Ok(());
    }
    Err(Failure {
        kind: FailureKind::NotUnderstood,
        message: format!(
            "invalid step id `{}`: must be 1 to 128 letters, digits, `-` and `.`, and not start with `.`",
            truncate_bytes(id, 140)
        ),
    })
}

fn no_journal(error: io::Error) -> Failure {
    Failure {
        kind: FailureKind::NoJournal,
        message: format!("cannot write the journal in {HOME}, and without it no step is started: {error}"),
    }
}

fn busy(message: String) -> Failure {
    Failure { kind: FailureKind::Busy, message }
}

impl<'s> Journal<'s> {
    pub(crate) fn of(system: &'s mut dyn System) -> Self {
        Self { system }
    }

    /// Writes the record of a step to disk, unless its id is known. A started step must be ended.
    pub(crate) fn begin(&mut self, apply: &Apply) -> Result<BeginResult, Failure> {
        checked(&apply.id)?;
        self.hold(|journal| owner::claim(journal.system, &apply.claim))?;
        if let Some(record) = self.recall(&apply.id)? {
            return Ok(BeginResult::AlreadyKnown(record));
        }
        if !self.system.lock(&step_lock()).map_err(no_journal)? {
            return Err(busy(match self.running()? {
                Some(record) => format!("step {} is running", record.id),
                None => "another step is running".to_owned(),
            }));
        }
        let begun = self.hold(|journal| journal.begin_locked(apply));
        if !matches!(begun, Ok(BeginResult::Started(_))) {
            self.unlock();
        }
        begun
    }

    fn begin_locked(&mut self, apply: &Apply) -> Result<BeginResult, Failure> {
        // Between the two locks another process may have become leader, started the step or refused it.
        self.admit(&apply.claim)?;
        if let Some(record) = self.recall(&apply.id)? {
            return Ok(BeginResult::AlreadyKnown(record));
        }
        if let Some(record) = self.running()? {
            return Err(busy(format!("the host is rebooting (step {})", record.id)));
        }
        let facts = self.system.facts().map_err(no_journal)?;
        if facts.free < RESERVED_SPACE {
            let error = io::Error::new(io::ErrorKind::StorageFull, format!("only {} bytes are free", facts.free));
            return Err(no_journal(error));
        }
        let digest = match &apply.step {
            Step::Install(package) | Step::Repair(package) => Some(package.digest()),
            Step::Back { to, .. } => Some(to.clone()),
            Step::Remove { .. } | Step::Reboot => None,
        };
        let record = StepRecord {
            id: apply.id.clone(),
            verb: apply.step.verb(),
            component: apply.step.component().map(str::to_owned),
            digest,
            boot_id: facts.boot_id,
            began: self.system.now(),
            ended: None,
            outcome: Outcome::Running,
            untouched: false,
            message: String::new(),
            tail: String::new(),
        };
        let written = self.add(record, apply.within)?;
        Ok(BeginResult::Started(StartedStep { written }))
    }

    /// Adds a record for an id that has none.
    fn add(&mut self, record: StepRecord, within: u64) -> Result<JournalRecord, Failure> {
        self.prune().map_err(no_journal)?;
        let number = self.latest()?.number + 1;
        let process = self.system.own_process();
        let written = JournalRecord { record, process, number, within, boot_asked: None };
        // An id without a record was never started, so `latest` may be written first.
        let latest = LatestStep { id: written.record.id.clone(), number };
        self.put("latest", &latest).map_err(no_journal)?;
        if let Err(error) = self.write(&written) {
            // Nothing was started, and no record may claim that it was.
            let _ = self.system.remove(&record_path(&written.record.id));
            return Err(no_journal(error));
        }
        Ok(written)
    }

    /// Records that the host is about to reboot. The step ends when the host is back.
    pub(crate) fn boots(&mut self, begun: &mut StartedStep) -> Result<StepRecord, Failure> {
        begun.written.boot_asked = Some(self.system.now());
        begun.written.record.message = "the host is rebooting".to_owned();
        self.write(&begun.written).map_err(no_journal)?;
        Ok(begun.written.record.clone())
    }

    /// Writes the end of a step to disk. Returns a record that could not be written, for another try with [`Journal::save`].
    pub(crate) fn end(
        &mut self,
        begun: StartedStep,
        outcome: Outcome,
        untouched: bool,
        message: &str,
        log: &Tail,
    ) -> (StepRecord, Option<StartedStep>) {
        let mut written = begun.written;
        let record = &mut written.record;
        record.ended = Some(self.system.now());
        record.outcome = outcome;
        record.untouched = untouched;
        record.message = truncate_bytes(message, MAX_TAIL);
        record.tail = last_bytes(log.as_str(), MAX_TAIL).to_owned();
        if !log.as_str().is_empty() {
            // The log only helps people; the record is what must be on disk.
            let _ = self.system.write(&log_path(&record.id), log.as_str().as_bytes(), 0o600, "root", "root");
        }
        let mut unsaved = None;
        if self.write(&written).is_err() {
            let log = log_path(&written.record.id);
            if self.system.remove(&log).and_then(|_| self.write(&written)).is_err() {
                unsaved = Some(StartedStep { written: written.clone() });
            }
        }
        self.unlock();
        (written.record, unsaved)
    }

    /// Retries writing an end that could not be written.
    pub(crate) fn save(&mut self, unsaved: &StartedStep) -> Result<(), Failure> {
        self.write(&unsaved.written).map_err(no_journal)
    }

    /// The record of a step; none if its id is unknown.
    pub(crate) fn recall(&self, id: &str) -> Result<Option<StepRecord>, Failure> {
        checked(id)?;
        let read = |error| Failure {
            kind: FailureKind::Other,
            message: format!("cannot read the record of step {id}: {error}"),
        };
        match self.system.read(&record_path(id), LIMIT) {
            Ok(Some(bytes)) => match serde_json::from_slice(&bytes) {
                Ok(written) => Ok(Some(self.judged(written))),
                Err(_) => Ok(Some(broken(id))),
            },
            Ok(None) => {
                let lines = self.earlier().map_err(read)?;
                let about = |line: &&str| line.contains(&format!("\"{id}\""));
                // A line that cannot be parsed and contains the id means that the step was started.
                Ok(lines.lines().find(about).map(|line| serde_json::from_str(line).map_or_else(|_| broken(id), of_old)))
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Some(broken(id))),
            Err(error) => Err(read(error)),
        }
    }

    /// The record as it must be read now: a step whose process is gone is interrupted, and a reboot is done once the boot id differs.
    fn judged(&self, written: JournalRecord) -> StepRecord {
        let mut record = written.record;
        if record.outcome != Outcome::Running {
            return record;
        }
        let boot_id = self.system.facts().map(|facts| facts.boot_id).unwrap_or_default();
        let booted = boot_id != record.boot_id;
        if record.verb == Verb::Reboot {
            // Requested or not, the reboot happened: the boot id differs.
            if booted {
                record.outcome = Outcome::Done;
                record.ended = Some(self.system.now());
                record.message = "the host rebooted".to_owned();
                return record;
            }
            if let Some(asked) = written.boot_asked {
                let since = self.system.now() - asked;
                if (0..BOOT_WITHIN).contains(&since) {
                    return record;
                }
                record.outcome = Outcome::Failed;
                record.message =
                    format!("the host did not reboot: {since}s after the request it still has the same boot ID");
                return record;
            }
        }
        if !booted && self.system.lives(&written.process) {
            return record;
        }
        // The helper was killed, and programs that it started still run: no other step may start before the timeout is over.
        let time = i64::try_from(written.within).unwrap_or(i64::MAX).saturating_add(GRACE);
        let in_time = (0..time).contains(&(self.system.now() - record.began));
        if booted || !in_time || !self.system.left_over(&written.process) {
            record.outcome = Outcome::Interrupted;
            record.message = if booted {
                "the host went down while the step was running"
            } else {
                "the process of the step disappeared"
            }
            .to_owned();
        }
        record
    }

    /// The step that runs now, if any.
    pub(crate) fn running(&self) -> Result<Option<StepRecord>, Failure> {
        let id = self.latest()?.id;
        if id.is_empty() {
            return Ok(None);
        }
        Ok(self.recall(&id)?.filter(|record| record.outcome == Outcome::Running))
    }

    /// See [`fleetwright_wire::Request::Refuse`].
    pub(crate) fn refuse(&mut self, id: &str, claim: &Claim) -> Result<StepRecord, Failure> {
        checked(id)?;
        self.hold(|journal| {
            journal.admit(claim)?;
            if let Some(record) = journal.recall(id)? {
                return Ok(record);
            }
            let now = journal.system.now();
            let boot_id = journal.system.facts().map_err(no_journal)?.boot_id;
            let mut record = broken(id);
            record.outcome = Outcome::Refused;
            record.boot_id = boot_id;
            record.began = now;
            record.ended = Some(now);
            record.message = "not started: it was withdrawn before".to_owned();
            let number = journal.latest()?.number;
            let process = journal.system.own_process();
            journal.prune().map_err(no_journal)?;
            journal
                .write(&JournalRecord { record: record.clone(), process, number, within: 0, boot_asked: None })
                .map_err(no_journal)?;
            Ok(record)
        })
    }

    /// The last bytes of a step's output, at most `bytes`.
    pub(crate) fn log(&self, id: &str, bytes: u64) -> Result<Vec<u8>, Failure> {
        checked(id)?;
        let path = log_path(id);
        let log = self
            .system
            .read(&path, 4 * LOG as u64)
            .map_err(|error| Failure { kind: FailureKind::Other, message: format!("cannot read {path}: {error}") })?;
        let mut log = log.unwrap_or_default();
        let more = log.len().saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
        log.drain(..more);
        Ok(log)
    }

    /// Checks the claim against the host's owner and its newest fencing token.
    pub(crate) fn admit(&mut self, claim: &Claim) -> Result<(), Failure> {
        owner::admit(self.system, claim)
    }

    /// Runs `change` under the journal lock.
    pub(crate) fn hold<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        self.hold_lock()?;
        let changed = change(self);
        self.release_lock();
        changed
    }

    /// Locks the journal and the owner mark against other processes.
    pub(crate) fn hold_lock(&mut self) -> Result<(), Failure> {
        let mut tries = 0;
        while !self.system.lock(&journal_lock()).map_err(no_journal)? {
            tries += 1;
            if tries > 50 {
                return Err(busy("another process is changing the journal".to_owned()));
            }
            self.system.pause(std::time::Duration::from_millis(20));
        }
        Ok(())
    }

    pub(crate) fn release_lock(&mut self) {
        // The lock is released with the process at the latest.
        let _ = self.system.unlock(&journal_lock());
    }

    /// Takes the step lock, so that no step runs meanwhile; false if one runs.
    pub(crate) fn lock(&mut self) -> Result<bool, Failure> {
        self.system.lock(&step_lock()).map_err(no_journal)
    }

    pub(crate) fn unlock(&mut self) {
        // The lock is released with the process at the latest.
        let _ = self.system.unlock(&step_lock());
    }

    fn write(&mut self, written: &JournalRecord) -> io::Result<()> {
        let bytes = serde_json::to_vec(written).map_err(io::Error::other)?;
        self.system.write(&record_path(&written.record.id), &bytes, 0o600, "root", "root")
    }

    fn put(&mut self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(value).map_err(io::Error::other)?;
        self.system.write(&format!("{}/{name}", folder()), &bytes, 0o600, "root", "root")
    }

    fn latest(&self) -> Result<LatestStep, Failure> {
        let bytes = self.system.read(&format!("{}/latest", folder()), LIMIT).map_err(no_journal)?;
        Ok(match bytes {
            None => LatestStep::default(),
            Some(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|_| {
                let newest = self.all().into_iter().max_by_key(|written| written.number);
                newest.map(|written| LatestStep { id: written.record.id, number: written.number }).unwrap_or_default()
            }),
        })
    }

    /// The ids of the last steps, newest first.
    pub(crate) fn recent(&self, most: u32) -> Vec<String> {
        if most == 0 {
            return Vec::new();
        }
        let mut all = self.all();
        all.sort_by_key(|written| std::cmp::Reverse(written.number));
        all.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        all.into_iter().map(|written| written.record.id).collect()
    }

    /// All whole records that can be read.
    fn all(&self) -> Vec<JournalRecord> {
        let names = self.system.list(&format!("{}/steps", folder())).unwrap_or_default();
        let ids = names.iter().filter_map(|name| name.strip_suffix(".json"));
        let read = |id| self.system.read(&record_path(id), LIMIT).ok().flatten();
        ids.filter_map(read).filter_map(|bytes| serde_json::from_slice(&bytes).ok()).collect()
    }

    /// The older steps, one per line, so that a damaged line costs no other.
    fn earlier(&self) -> io::Result<String> {
        let bytes = self.system.read(&format!("{}/earlier", folder()), 4 << 20)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reduces old records to ids. The ids are on disk before the records are removed.
    fn prune(&mut self) -> io::Result<()> {
        let names = self.system.list(&format!("{}/steps", folder()))?;
        if names.len() <= 2 * RECORDS {
            return Ok(());
        }
        let mut old = self.all();
        old.sort_by(|a, b| (a.number, &a.record.id).cmp(&(b.number, &b.record.id)));
        old.truncate(old.len().saturating_sub(RECORDS));
        let mut going = Vec::new();
        for written in old {
            let record = self.judged(written);
            if record.outcome != Outcome::Running {
                going.push(EarlierStep {
                    id: record.id,
                    verb: record.verb,
                    outcome: record.outcome,
                    began: record.began,
                });
            }
        }
        let earlier = self.earlier()?;
        let mut lines: Vec<String> = earlier.lines().map(str::to_owned).collect();
        for going in &going {
            // The id is already in the list if an earlier pruning was interrupted.
            let line = serde_json::to_string(going).map_err(io::Error::other)?;
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let more = lines.len().saturating_sub(IDS);
        lines.drain(..more);
        let text = lines.join("\n");
        self.system.write(&format!("{}/earlier", folder()), text.as_bytes(), 0o600, "root", "root")?;
        for going in &going {
            self.system.remove(&log_path(&going.id))?;
            self.system.remove(&record_path(&going.id))?;
        }
        Ok(())
    }
}

/// The record returned for an id whose stored record cannot be read.
fn broken(id: &str) -> StepRecord {
    StepRecord {
        id: id.to_owned(),
        // The verb is unknown. The effect of the step must be observed on the host in any case.
        verb: Verb::Install,
        component: None,
        digest: None,
        boot_id: String::new(),
        began: 0,
        ended: None,
        outcome: Outcome::Interrupted,
        untouched: false,
        message: "the journal on the host is damaged: the outcome of this step is unknown".to_owned(),
        tail: String::new(),
    }
}

fn of_old(earlier: EarlierStep) -> StepRecord {
    StepRecord {
        verb: earlier.verb,
        outcome: earlier.outcome,
        untouched: false,
        began: earlier.began,
        message: "old step: only its outcome is recorded".to_owned(),
        ..broken(&earlier.id)
    }
}
