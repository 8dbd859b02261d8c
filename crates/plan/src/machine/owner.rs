//! Whether the host is ours to change: it belongs to this Machine, and is the machine that is meant.

use fleetwright_api::{HostOwner, OnDelete, Status, names};
use fleetwright_wire::{Facts, Mark, Observe, Owner};

use super::Act;
use super::decide::Mind;
use super::guard::cut;
use crate::operation::put;

impl Mind<'_> {
    /// Whether the host may be changed for this Machine. If not, it is only looked at, and what is to be done instead was decided.
    pub(super) fn may_change(&mut self) -> bool {
        let Some(seen) = self.k.host.seen else { return true };
        let mark = seen.observation.owner.as_ref();
        self.status.host_owner = mark.map(written);
        if let Some(message) = self.wrong_serial(&seen.observation.facts) {
            return self.stop("WrongHost", message);
        }
        let Some(mark) = mark else {
            self.say_owned(Status::Unknown, "NotClaimedYet", "the first step claims the host".to_owned());
            return true;
        };
        let adopts =
            self.adoption().is_some_and(|asked| asked == written(mark).adoption()) && !self.k.machine.spec.paused;
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
            if self.k.fence == 0 || mark.fence <= self.k.fence {
                self.say_owned(Status::True, "Owned", format!("epoch {}", mark.epoch));
                return true;
            }
            // That of the lease is the newest leader, unless the API server lost what it knew.
            let message = format!(
                "the host heard the fencing token {} and this leader has {}. If the API server was restored from a backup, its numbers began again: \
                 fleetwright machine adopt {}",
                mark.fence,
                self.k.fence,
                self.k.machine.metadata.name.as_deref().unwrap_or_default()
            );
            return self.stop("Fenced", message);
        }
        let message = format!(
            "the host belongs to {} in epoch {}, and nothing is done to it. If that Machine is gone or must not have it any more: \
             fleetwright machine adopt {}",
            mark.owner,
            mark.epoch,
            self.k.machine.metadata.name.as_deref().unwrap_or_default()
        );
        self.stop("HostOwnedByAnother", message)
    }

    /// Whether another Machine of this API server has the same address, and was first. Then nothing is asked of the host.
    pub(super) fn address_is_free(&mut self) -> bool {
        let Some(first) = self.k.same_address else { return true };
        let message = format!(
            "Machine {first} has the same address and is older: nothing is done for this one. Correct spec.addresses of one of them, or delete one"
        );
        self.say_owned(Status::False, "AddressInUse", message);
        self.stopped = true;
        self.withdraw = self.waits();
        self.at(self.next_check());
        false
    }

    /// A machine that was deleted leaves its host as it is, to whoever claims it next. A host that cannot be asked keeps its mark.
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
            self.act = self.last_act(false);
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
        self.act = if owned { Act::Release } else { self.last_act(false) };
        true
    }

    fn stop(&mut self, reason: &'static str, message: String) -> bool {
        self.say_owned(Status::False, reason, message.clone());
        self.stopped = true;
        self.withdraw = self.waits();
        if self.running().is_some() {
            self.act = Act::End { open: false, well: false, text: cut(&format!("{reason}: {message}"), 1024) };
            return false;
        }
        match self.k.host.seen {
            Some(seen) if seen.current && seen.at >= self.last_check() => self.at(self.next_check()),
            _ => self.ask(Observe::default()),
        }
        false
    }

    fn say_owned(&mut self, status: Status, reason: &str, message: String) {
        let (generation, now) = (self.k.machine.metadata.generation, self.now);
        put(&mut self.status.conditions, names::HOST_OWNED, status, reason, cut(&message, 4096), generation, now);
    }

    /// How the host's serial number differs from the one that is declared; none if it does not, or the host cannot tell.
    fn wrong_serial(&self, facts: &Facts) -> Option<String> {
        let plain = |text: &str| text.trim().to_lowercase();
        let wanted = self.k.machine.spec.hardware.serial.as_deref().filter(|serial| !serial.trim().is_empty())?;
        if facts.serials.is_empty() || facts.serials.iter().any(|found| plain(found) == plain(wanted)) {
            return None;
        }
        Some(format!(
            "the host says that its serial number is {}, and spec.hardware.serial is {wanted}: nothing is done to it. Correct spec.addresses or \
             spec.hardware.serial",
            facts.serials.join(" or ")
        ))
    }

    fn adoption(&self) -> Option<&str> {
        self.k.machine.metadata.annotations.as_ref()?.get(names::ADOPT_HOST).map(String::as_str)
    }
}

fn written(mark: &Mark) -> HostOwner {
    let Owner { cluster, namespace, name, uid } = &mark.owner;
    let text = |text: &str| cut(text, 253);
    HostOwner {
        cluster: text(cluster),
        namespace: text(namespace),
        name: text(name),
        uid: text(uid),
        epoch: i64::try_from(mark.epoch).unwrap_or(i64::MAX),
    }
}
