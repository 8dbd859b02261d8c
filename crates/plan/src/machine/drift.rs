//! Drift: when an unchanged host is observed, and the backoff for drift that recurs after each repair.

use std::time::Duration;

use fleetwright_api::{DriftItem, LastDrift};
use fleetwright_wire::Deviation;
use fleetwright_wire::text::truncate_chars;
use jiff::{SignedDuration, Timestamp};

/// Repairs in a row from which drift counts as recurring.
const RECURRING_DRIFT_REPAIRS: u32 = 3;
/// Repairs of the same items within this time are in a row.
const RECURRING_DRIFT_WINDOW: SignedDuration = SignedDuration::from_hours(2);
/// First backoff between repairs of recurring drift; it doubles…
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// …up to this.
const MAX_WAIT: SignedDuration = SignedDuration::from_hours(1);
/// Drift items that a status lists.
const MAX_DRIFT_ITEMS: usize = 16;

/// The next periodic observation of a machine. Each machine has its own time in the period, which depends on its uid alone: observations are spread
/// evenly, and a restart changes nothing.
pub fn next_check(uid: &str, every: Duration, now: Timestamp) -> Timestamp {
    let every = i64::try_from(every.as_secs()).unwrap_or(i64::MAX).max(1);
    // FNV-1a: the standard library does not promise that its own hasher stays the same.
    let hash = uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let offset = i64::try_from(hash % u64::try_from(every).unwrap_or(1)).unwrap_or(0);
    let passed = (now.as_second() - offset).rem_euclid(every);
    Timestamp::from_second(now.as_second().saturating_add(every - passed)).unwrap_or(Timestamp::MAX)
}

/// The last periodic observation.
pub(super) fn last_check(uid: &str, every: Duration, now: Timestamp) -> Timestamp {
    let every = SignedDuration::try_from(every).unwrap_or(SignedDuration::MAX);
    next_check(uid, every.unsigned_abs(), now).checked_sub(every).unwrap_or(Timestamp::MIN)
}

/// The deviations as drift items of the status.
pub(super) fn items(component: &str, deviations: &[Deviation]) -> Vec<DriftItem> {
    let item = |deviation: &Deviation| DriftItem {
        component: component.to_owned(),
        what: truncate_chars(&deviation.what, 256),
        found: truncate_chars(&deviation.found, 256),
        wanted: truncate_chars(&deviation.wanted, 256),
    };
    deviations.iter().take(MAX_DRIFT_ITEMS).map(item).collect()
}

/// The status after drift was found. `before` is the status before.
pub(super) fn drift_found(before: Option<&LastDrift>, items: Vec<DriftItem>, now: Timestamp) -> LastDrift {
    let items: Vec<DriftItem> = items.into_iter().take(MAX_DRIFT_ITEMS).collect();
    if let Some(before) = before {
        // The same drift that still waits for its repair, or is only reported, is not reported again.
        if !before.repaired && same(&before.items, &items) {
            return before.clone();
        }
        if same(&before.items, &items) && now.duration_since(before.at) < RECURRING_DRIFT_WINDOW {
            return LastDrift { at: now, repaired: false, repeats: before.repeats.saturating_add(1), items };
        }
    }
    LastDrift { at: now, repaired: false, repeats: 0, items }
}

/// Whether two lists have the same items, whatever their present state.
fn same(one: &[DriftItem], two: &[DriftItem]) -> bool {
    let names = |items: &[DriftItem]| -> Vec<(String, String)> {
        let mut names: Vec<_> = items.iter().map(|item| (item.component.clone(), item.what.clone())).collect();
        names.sort();
        names
    };
    names(one) == names(two)
}

/// Whether the drift recurs after each repair.
pub(super) fn is_recurring(drift: &LastDrift) -> bool {
    drift.repeats >= RECURRING_DRIFT_REPAIRS
}

/// When the drift may be repaired.
pub(super) fn repair_at(drift: &LastDrift) -> Timestamp {
    if !is_recurring(drift) {
        return drift.at;
    }
    let doublings = (drift.repeats - RECURRING_DRIFT_REPAIRS).min(10);
    let wait = FIRST_WAIT.checked_mul(1 << doublings).unwrap_or(MAX_WAIT).min(MAX_WAIT);
    drift.at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The message about drift.
pub(super) fn text(items: &[DriftItem]) -> String {
    let told: Vec<String> = items
        .iter()
        .take(4)
        .map(|item| format!("{}: {} is {}, wanted {}", item.component, item.what, item.found, item.wanted))
        .collect();
    let more = items.len().saturating_sub(told.len());
    if more > 0 { format!("{}; and {more} more", told.join("; ")) } else { told.join("; ") }
}
