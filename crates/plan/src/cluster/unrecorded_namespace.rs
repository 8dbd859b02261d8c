//! Decides about a namespace that has the name and the labels of a Cluster's namespace, and that the Cluster's status does not record.
//!
//! Guarantee: a namespace is recorded only if its uid is the one in the API server's answer to the operator's own create. No content of a namespace
//! proves that: a person who may read it can copy all of it to another one of the same name. Therefore a namespace whose record was lost in a crash
//! is not used, but deleted and created again.

use jiff::{SignedDuration, Timestamp};

/// The process that created a namespace records it within this time. Two operators lead for a moment at most, and neither deletes a namespace that
/// the other one is about to record.
const RECORD_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);

/// An unrecorded namespace.
#[derive(Clone, Copy, Debug)]
pub struct UnrecordedNamespace {
    /// Whether this process created it.
    pub created: bool,
    /// Whether it has the operator's proof of a creation for this Cluster: the operator created it, or it is a copy of such a namespace.
    pub proven: bool,
    /// Whether it contains no object of a control plane.
    pub empty: bool,
    /// Creation time.
    pub since: Timestamp,
}

/// Decision about the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDecision {
    /// Record it as the Cluster's namespace.
    Record,
    /// Wait until that time: another process may be about to record it.
    Wait(Timestamp),
    /// Delete it; the operator creates another one.
    Recreate,
    /// Wait for a person: somebody else created it, or its deletion would lose its content.
    Refuse,
}

impl UnrecordedNamespace {
    /// Decides about the namespace.
    pub fn fate(&self, now: Timestamp) -> NamespaceDecision {
        if self.created {
            return NamespaceDecision::Record;
        }
        // A lost status must not cause the deletion of a control plane.
        if !self.proven || !self.empty {
            return NamespaceDecision::Refuse;
        }
        // The API server's clock may differ from ours by more than that, in both directions.
        match self.since.checked_add(RECORD_TIMEOUT) {
            Ok(at) if now.duration_since(self.since).abs() < RECORD_TIMEOUT => NamespaceDecision::Wait(at),
            _ => NamespaceDecision::Recreate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: UnrecordedNamespace =
        UnrecordedNamespace { created: true, proven: false, empty: true, since: Timestamp::UNIX_EPOCH };
    const PROVEN: UnrecordedNamespace = UnrecordedNamespace { created: false, proven: true, ..OWN };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn only_a_namespace_that_this_process_created_is_recorded() {
        assert_eq!(OWN.fate(at(0)), NamespaceDecision::Record);
        for seconds in [-3600, 0, 1, 10, 3600] {
            for (proven, empty) in [(false, false), (false, true), (true, false), (true, true)] {
                assert_ne!(
                    UnrecordedNamespace { proven, empty, ..PROVEN }.fate(at(seconds)),
                    NamespaceDecision::Record
                );
            }
        }
    }

    #[test]
    fn a_proven_and_empty_namespace_is_recreated_when_its_record_is_overdue() {
        assert_eq!(PROVEN.fate(at(0)), NamespaceDecision::Wait(at(10)));
        assert_eq!(PROVEN.fate(at(9)), NamespaceDecision::Wait(at(10)));
        assert_eq!(PROVEN.fate(at(10)), NamespaceDecision::Recreate);
        // The operator's clock is behind: a little, or permanently.
        assert_eq!(PROVEN.fate(at(-5)), NamespaceDecision::Wait(at(10)));
        assert_eq!(PROVEN.fate(at(-3600)), NamespaceDecision::Recreate);
    }

    #[test]
    fn a_namespace_that_others_created_or_that_holds_something_is_left_to_a_person() {
        assert_eq!(UnrecordedNamespace { proven: false, ..PROVEN }.fate(at(60)), NamespaceDecision::Refuse);
        assert_eq!(UnrecordedNamespace { empty: false, ..PROVEN }.fate(at(60)), NamespaceDecision::Refuse);
    }
}
