//! Events for a machine, from the difference of two statuses.

use fleetwright_api::{ComponentState, MachineStatus, Status, condition, names};

use super::drift;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Information.
    Normal,
    /// A person should look at it.
    Warning,
}

/// An Event about a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineEvent {
    /// Type of the Event.
    pub level: Level,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// Key that distinguishes occurrences.
    pub once_for: String,
}

/// The Events for the change from one status to the next.
pub fn events_between(old: &MachineStatus, new: &MachineStatus) -> Vec<MachineEvent> {
    let mut told = Vec::new();
    for entry in &new.components {
        let before = old.components.iter().find(|before| before.component == entry.component);
        if before.map(|before| before.state) == Some(entry.state) {
            continue;
        }
        let version = entry.observed.as_deref().or(entry.desired.as_deref()).unwrap_or_default();
        let (level, reason, message) = match entry.state {
            ComponentState::Ready => {
                let repaired = before.is_some_and(|before| before.state == ComponentState::Drifted);
                let verb = if repaired { "is repaired" } else { "is installed and healthy" };
                let reason = if repaired { "Repaired" } else { "PackageInstalled" };
                (Level::Normal, reason, format!("{} {version} {verb}", entry.component))
            }
            ComponentState::RolledBack if before.is_some_and(|before| before.state == ComponentState::Drifted) => {
                (Level::Normal, "Repaired", format!("{} {version} (rolled back) is repaired", entry.component))
            }
            ComponentState::RolledBack => {
                (Level::Warning, "RolledBack", format!("{}: {}", entry.component, entry.message))
            }
            ComponentState::Failed => {
                (Level::Warning, "PackageFailed", format!("{}: {}", entry.component, entry.message))
            }
            _ => continue,
        };
        told.push(MachineEvent { level, reason, message, once_for: entry.since.to_string() });
    }
    for entry in &old.components {
        let gone = !new.components.iter().any(|after| after.component == entry.component);
        if gone && entry.state == ComponentState::Removing {
            let message = format!("{} was removed", entry.component);
            told.push(MachineEvent {
                level: Level::Normal,
                reason: "PackageRemoved",
                message,
                once_for: entry.since.to_string(),
            });
        }
    }
    if let Some(drift) = &new.last_drift
        && old.last_drift.as_ref().is_none_or(|before| before.at != drift.at)
    {
        let fights = drift::is_recurring(drift);
        let reason = if fights { "DriftRecurring" } else { "Drifted" };
        let message = drift::text(&drift.items);
        told.push(MachineEvent { level: Level::Warning, reason, message, once_for: drift.at.to_string() });
    }
    let owned = |status: &MachineStatus| condition(&status.conditions, names::HOST_OWNED).cloned();
    if let Some(now) = owned(new)
        && owned(old).is_none_or(|before| (before.status, &before.reason) != (now.status, &now.reason))
    {
        let once_for = now.last_transition_time.to_string();
        let reason = ["HostOwnedByAnother", "HostNotClaimed", "AddressInUse", "SerialMismatch", "StaleFencingToken"]
            .into_iter()
            .find(|one| now.reason == **one);
        if let Some(reason) = reason.filter(|_| now.status == Status::False) {
            told.push(MachineEvent { level: Level::Warning, reason, message: now.message, once_for });
        }
    }
    if let Some((before, now)) = old.host_owner.as_ref().zip(new.host_owner.as_ref())
        && now.epoch > before.epoch
    {
        let message = format!(
            "host owner changed from Machine {}/{} (uid {}, cluster {}, epoch {}) to Machine {}/{} (uid {}, cluster {}, epoch {})",
            before.namespace,
            before.name,
            before.uid,
            before.cluster,
            before.epoch,
            now.namespace,
            now.name,
            now.uid,
            now.cluster,
            now.epoch
        );
        told.push(MachineEvent {
            level: Level::Normal,
            reason: "HostAdopted",
            message,
            once_for: now.epoch.to_string(),
        });
    }
    let key = |status: &MachineStatus| condition(&status.conditions, names::HOST_KEY_TRUSTED).cloned();
    if let Some(now) = key(new).filter(|now| now.status == Status::False)
        && key(old).is_none_or(|before| before.status != Status::False)
    {
        told.push(MachineEvent {
            level: Level::Warning,
            reason: "HostKeyChanged",
            message: now.message,
            once_for: now.last_transition_time.to_string(),
        });
    }
    told
}
