//! The acts that this process has claimed, in memory only, on purpose: a claim that a new process finds is
//! not its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fleetwright_plan::operation::{AttemptState, CallOutcome};

use super::OperationKey;
use crate::Key;

/// An attempt for each Operation that this process claims.
#[derive(Default)]
pub(super) struct Attempts {
    by_key: Mutex<HashMap<Key, Attempt>>,
}

struct Attempt {
    uid: String,
    token: String,
    memory: AttemptState,
}

impl Attempts {
    /// The token with which this process claims the Operation. Always the same one, so that a claim whose answer was lost is
    /// recognized when it turns out to have been written.
    pub(super) fn token(&self, id: &OperationKey, identity: &str) -> String {
        let mut by_key = self.lock();
        if let Some(attempt) = by_key.get(&id.key).filter(|attempt| attempt.uid == id.uid) {
            return attempt.token.clone();
        }
        let token = format!("{identity}/{}", uuid::Uuid::new_v4());
        let attempt = Attempt { uid: id.uid.clone(), token: token.clone(), memory: AttemptState::Claimed };
        by_key.insert(id.key.clone(), attempt);
        token
    }

    /// State of the attempt with that token.
    pub(super) fn memory(&self, id: &OperationKey, token: Option<&str>) -> AttemptState {
        let by_key = self.lock();
        let attempt = by_key.get(&id.key).filter(|attempt| attempt.uid == id.uid && Some(&*attempt.token) == token);
        attempt.map_or(AttemptState::Foreign, |attempt| attempt.memory.clone())
    }

    /// Takes the right to start the act; `None` if it was already taken.
    pub(super) fn begin<'a>(&'a self, id: &'a OperationKey) -> Option<StartedAttempt<'a>> {
        let mut by_key = self.lock();
        let attempt = by_key.get_mut(&id.key).filter(|attempt| attempt.uid == id.uid)?;
        (attempt.memory == AttemptState::Claimed).then(|| {
            attempt.memory = AttemptState::Starting;
            StartedAttempt { attempts: self, id }
        })
    }

    /// Forgets an Operation that has ended or is gone, unless its act is being started right now.
    pub(super) fn forget(&self, key: &Key) {
        let mut by_key = self.lock();
        if by_key.get(key).is_some_and(|attempt| attempt.memory != AttemptState::Starting) {
            by_key.remove(key);
        }
    }

    fn set(&self, id: &OperationKey, memory: AttemptState) {
        if let Some(attempt) = self.lock().get_mut(&id.key).filter(|attempt| attempt.uid == id.uid) {
            attempt.memory = memory;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Attempt>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A started act. If it is dropped before the act has ended, as with a dropped pass, the outcome is lost.
pub(super) struct StartedAttempt<'a> {
    attempts: &'a Attempts,
    id: &'a OperationKey,
}

impl StartedAttempt<'_> {
    /// Stores the outcome of the act.
    pub(super) fn ended(self, ending: CallOutcome) {
        self.attempts.set(self.id, AttemptState::Ended(ending));
        std::mem::forget(self);
    }
}

impl Drop for StartedAttempt<'_> {
    fn drop(&mut self) {
        self.attempts.set(self.id, AttemptState::Lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(uid: &str) -> OperationKey {
        OperationKey { key: Key::new("fleet", "drain-a"), uid: uid.to_owned() }
    }

    #[test]
    fn only_one_gets_the_right_to_start() {
        let (attempts, id) = (Attempts::default(), id("1"));
        let token = attempts.token(&id, "me");
        assert_eq!(attempts.token(&id, "me"), token, "a lost answer must be known again");
        let first = attempts.begin(&id).expect("the first may");
        assert!(attempts.begin(&id).is_none());
        first.ended(CallOutcome::Done("done".to_owned()));
        assert!(attempts.begin(&id).is_none(), "nor after it came back");
        assert_eq!(attempts.memory(&id, Some(&token)), AttemptState::Ended(CallOutcome::Done("done".to_owned())));
    }

    #[test]
    fn an_act_whose_call_was_dropped_is_not_started_again() {
        let (attempts, id) = (Attempts::default(), id("1"));
        let token = attempts.token(&id, "me");
        drop(attempts.begin(&id));
        assert_eq!(attempts.memory(&id, Some(&token)), AttemptState::Lost);
        assert!(attempts.begin(&id).is_none());
    }

    #[test]
    fn what_others_claimed_is_foreign() {
        let (attempts, id) = (Attempts::default(), id("1"));
        let token = attempts.token(&id, "me");
        assert_eq!(attempts.memory(&id, Some("me/before-a-restart")), AttemptState::Foreign);
        assert_eq!(attempts.memory(&id, None), AttemptState::Foreign);
        let later = OperationKey { uid: "2".to_owned(), ..id };
        assert_eq!(attempts.memory(&later, Some(&token)), AttemptState::Foreign);
        assert_ne!(attempts.token(&later, "me"), token);
    }
}
