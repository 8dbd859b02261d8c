//! Decides whether the host is ours to change: it belongs to this Machine, and is the declared hardware.

use fleetwright_api::{HostOwner, OnDelete, Status, names};
use fleetwright_wire::text::truncate_chars;
use fleetwright_wire::{Facts, Mark, Observe, Owner};

use super::decide::Decider;
use super::{Act, HostObservation};
use crate::join::Binding;
use crate::operation::put;

impl Decider<'_> {
    /// Whether the host may be changed for this Machine. If not, it is only observed, and the action to take instead was decided.
    pub(super) fn may_change(&mut self) -> bool {
        let Some(seen) = self.k.host.seen else { return true };
        let mark = seen.observation.owner.as_ref();
        self.status.host_owner = mark.map(written);
        if let Some(message) = self.wrong_serial(&seen.observation.facts) {
            return self.stop("SerialMismatch", message);
        }
        let Some(mark) = mark else { return self.may_claim(seen) };
        let adopts = self.asks_to_adopt(&written(mark).adoption()) && !self.k.machine.spec.paused;
        if adopts && seen.current && !self.finalized() {
            self.act = Act::Finalize;
            return false;
        }
        if adopts && seen.current {
            self.progress("adopt the host", None, None, &mark.owner.to_string());
            self.act = Act::Adopt { from: mark.owner.clone() };
            return false;
        }
        if mark.owner.is(self.k.identity) {
            // The host is ours: any earlier request to adopt it is done. Epochs start at 1 again on a host that was wiped, and an annotation
            // that stayed must not take it from its next owner.
            let asked = self.k.machine.metadata.annotations.as_ref().and_then(|all| all.get(names::ADOPT_HOST));
            if let Some(asked) = asked {
                self.status.adopted = Some(truncate_chars(asked, 1024));
            }
            if self.k.fence == 0 || mark.fence <= self.k.fence {
                match self.unknown_serial(&seen.observation.facts) {
                    Some(text) => {
                        self.set_host_owned(Status::True, "SerialUnknown", format!("epoch {}; {text}", mark.epoch))
                    }
                    None => self.set_host_owned(Status::True, "Owned", format!("epoch {}", mark.epoch)),
                }
                return true;
            }
            // The lease holder is the newest leader, unless the API server lost data.
            let message = format!(
                "host has seen fencing token {}, which is newer than {} of this leader. If the API server was restored from a backup, run \
                 `fleetwright machine adopt {}`",
                mark.fence,
                self.k.fence,
                self.k.machine.metadata.name.as_deref().unwrap_or_default()
            );
            return self.stop("StaleFencingToken", message);
        }
        let message = format!(
            "host is owned by {} (epoch {}); no changes are made. If that Machine no longer exists or must release the host, run \
             `fleetwright machine adopt {}`",
            mark.owner,
            mark.epoch,
            self.k.machine.metadata.name.as_deref().unwrap_or_default()
        );
        self.stop("HostOwnedByAnother", message)
    }

    /// Whether a host without an owner may be changed, which its first step claims. A Machine that installed its packages before owner marks
    /// existed claims it at once: until then any other Machine could.
    fn may_claim(&mut self, seen: HostObservation<'_>) -> bool {
        let machine = self.k.machine;
        let installed = self.old.components.iter().any(|entry| entry.observed.is_some());
        let asked = self.asks_to_adopt(HostOwner::UNCLAIMED);
        let left =
            machine.spec.paused || machine.metadata.deletion_timestamp.is_some() || *self.k.binding == Binding::Foreign;
        if (installed || asked) && seen.current && !left {
            self.progress("claim the host", None, None, "");
            self.act = if self.finalized() { Act::Claim } else { Act::Finalize };
            return false;
        }
        if seen.observation.never_owned && !installed && (!asked || left) {
            let name = machine.metadata.name.as_deref().unwrap_or_default();
            let message = format!(
                "host has no owner mark, but packages that an earlier version of Fleetwright installed; no changes are made. If no other \
                 Machine, also of other clusters, uses this host, run `fleetwright machine adopt {name} --from {}`",
                HostOwner::UNCLAIMED
            );
            return self.stop("HostNotClaimed", message);
        }
        let mut message = "host has no owner yet; the first step claims it".to_owned();
        if let Some(text) = self.unknown_serial(&seen.observation.facts) {
            message = format!("{message}; {text}");
        }
        self.set_host_owned(Status::Unknown, "NotClaimedYet", message);
        true
    }

    /// Whether no older Machine of this API server has the same address. Otherwise no request is sent to the host.
    pub(super) fn address_is_free(&mut self) -> bool {
        let Some(first) = self.k.same_address else { return true };
        let message = format!(
            "Machine {first} has the same address and takes precedence, because it owns the host or is older: correct spec.addresses of \
             one of them, or delete one"
        );
        if !self.stopped_by("AddressInUse", message) {
            self.at(self.next_check());
        }
        false
    }

    /// Releases the host of a deleted machine as it is, for the next owner that claims it. A host that cannot be reached keeps its mark.
    pub(super) fn leave_to_others(&mut self) -> bool {
        let spec = &self.k.machine.spec;
        if spec.on_delete != OnDelete::Orphan {
            return false;
        }
        self.withdraw = self.waits();
        let ours = self.old.host_owner.as_ref().is_some_and(|owner| owner.uid == self.uid());
        let gone = self.k.host.unreachable.is_some_and(|unreachable| unreachable.attempts > 1);
        let host = &self.k.host;
        if !ours || spec.ssh.is_none() || spec.paused || gone || host.released || host.refused.is_some() {
            self.last_act(false);
            return true;
        }
        if self.k.same_address.is_some() || !self.host_is_free() {
            return true;
        }
        let Some(seen) = host.seen.filter(|seen| seen.current) else {
            self.ask(Observe::default());
            return true;
        };
        let owned = seen.observation.owner.as_ref().is_some_and(|mark| mark.owner.is(self.k.identity));
        if owned {
            self.act = Act::Release;
        } else {
            self.last_act(false);
        }
        true
    }

    /// Without `spec.ssh` a machine is only observed by its Node: its host is not changed, and an open window ends.
    pub(super) fn observe_only(&mut self) {
        let machine = self.k.machine;
        if machine.spec.paused {
            return;
        }
        self.withdraw = self.waits();
        if let Some(ended) = self.abandon_window("spec.ssh is null, the host is no longer managed") {
            let message = format!("spec.ssh is null: the host is neither checked nor changed. {ended}");
            let (generation, now) = (machine.metadata.generation, self.now);
            let conditions = &mut self.status.conditions;
            put(
                conditions,
                names::UP_TO_DATE,
                Status::Unknown,
                "NotManaged",
                truncate_chars(&message, 4096),
                generation,
                now,
            );
        } else if self.is_left_closed() {
            self.act = Act::OpenNode;
        }
    }

    fn stop(&mut self, reason: &'static str, message: String) -> bool {
        if !self.stopped_by(reason, message) {
            match self.k.host.seen {
                Some(seen) if seen.current && seen.at >= self.last_check() => self.at(self.next_check()),
                _ => self.ask(Observe::default()),
            }
        }
        false
    }

    /// Sets why nothing is done, and ends an open window, which would hold its place at the gate for nothing. True if there was one.
    fn stopped_by(&mut self, reason: &'static str, message: String) -> bool {
        self.stopped = true;
        self.withdraw = self.waits();
        let ends = self.running().is_some();
        if ends {
            self.act = Act::EndWindow {
                open: false,
                well: false,
                text: truncate_chars(&format!("{reason}: {message}"), 1024),
            };
        }
        self.set_host_owned(Status::False, reason, message);
        ends
    }

    fn set_host_owned(&mut self, status: Status, reason: &str, message: String) {
        let (generation, now) = (self.k.machine.metadata.generation, self.now);
        put(
            &mut self.status.conditions,
            names::HOST_OWNED,
            status,
            reason,
            truncate_chars(&message, 4096),
            generation,
            now,
        );
    }

    /// How the host's serial number differs from the declared one; none if it does not, or the host has none.
    fn wrong_serial(&self, facts: &Facts) -> Option<String> {
        let plain = |text: &str| text.trim().to_lowercase();
        let wanted = self.k.machine.spec.hardware.serial.as_deref().filter(|serial| !serial.trim().is_empty())?;
        if facts.serials.is_empty() || facts.serials.iter().any(|found| plain(found) == plain(wanted)) {
            return None;
        }
        Some(format!(
            "host reports serial number {}, but spec.hardware.serial is {wanted}; no changes are made: correct spec.addresses or \
             spec.hardware.serial",
            facts.serials.join(" or ")
        ))
    }

    /// The message for a declared serial number that the host's firmware does not have; none if it was compared.
    fn unknown_serial(&self, facts: &Facts) -> Option<String> {
        let wanted = self.k.machine.spec.hardware.serial.as_deref().filter(|serial| !serial.trim().is_empty())?;
        let text =
            format!("spec.hardware.serial {wanted} is not verified: the host's firmware reports no serial number");
        facts.serials.is_empty().then_some(text)
    }

    /// Whether a person requests exactly that adoption, and it was not done yet. Text after another slash distinguishes requests.
    fn asks_to_adopt(&self, what: &str) -> bool {
        let asked = self.k.machine.metadata.annotations.as_ref().and_then(|all| all.get(names::ADOPT_HOST));
        asked.is_some_and(|asked| {
            let same = asked.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            same && self.old.adopted.as_ref() != Some(&truncate_chars(asked, 1024))
        })
    }
}

fn written(mark: &Mark) -> HostOwner {
    let Owner { cluster, namespace, name, uid } = &mark.owner;
    let text = |text: &str| truncate_chars(text, 253);
    HostOwner {
        cluster: text(cluster),
        namespace: text(namespace),
        name: text(name),
        uid: text(uid),
        epoch: i64::try_from(mark.epoch).unwrap_or(i64::MAX),
    }
}
