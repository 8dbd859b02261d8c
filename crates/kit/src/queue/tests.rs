use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn key(name: impl ToString) -> Key {
    Key::new("fleet", &name.to_string())
}

fn options() -> Options {
    Options { deep_check: None, backoff: SECOND, longest_backoff: 100 * SECOND, ..Options::default() }
}

fn queue(options: Options) -> Queue {
    Queue::new(options, Random::seeded(3))
}

/// Takes the next key and ends its pass at once.
fn pass(queue: &mut Queue, ended: QueueResult, now: Moment) -> Option<(DequeuedKey, Option<Duration>)> {
    let taken = queue.take(now)?;
    let wait = queue.end(&taken.key, ended, now);
    Some((taken, wait))
}

#[test]
fn a_key_that_changes_many_times_is_looked_at_once() {
    let mut queue = queue(options());
    (0..10).for_each(|_| queue.add(&key("a"), Priority::High, SECOND));
    assert!(pass(&mut queue, QueueResult::AwaitChange, SECOND).is_some());
    assert_eq!(pass(&mut queue, QueueResult::AwaitChange, SECOND), None);
    assert!(queue.is_idle(SECOND));
}

#[test]
fn a_change_during_a_pass_makes_another_one_after_it() {
    let mut queue = queue(options());
    queue.add(&key("a"), Priority::High, SECOND);
    let taken = queue.take(SECOND).unwrap();
    queue.add(&key("a"), Priority::High, SECOND);
    assert_eq!(queue.take(SECOND), None, "never two at once");
    queue.end(&taken.key, QueueResult::AwaitChange, 2 * SECOND);
    assert!(!queue.is_idle(2 * SECOND));
    assert!(queue.take(2 * SECOND).is_some());
}

#[test]
fn urgent_keys_go_first_and_the_others_do_not_starve() {
    let mut queue = queue(options());
    (0..3).for_each(|n| queue.add(&key(format!("low{n}")), Priority::Low, SECOND));
    (0..40).for_each(|n| queue.add(&key(format!("high{n}")), Priority::High, SECOND));
    let order: Vec<_> = std::iter::from_fn(|| queue.take(SECOND)).map(|taken| taken.priority).collect();
    let lows: Vec<_> = order.iter().enumerate().filter(|(_, p)| **p == Priority::Low).map(|(place, _)| place).collect();
    assert_eq!(lows, [16, 33, 42]);
}

#[test]
fn a_key_that_becomes_urgent_is_taken_once() {
    let mut queue = queue(options());
    queue.add(&key("first"), Priority::Low, SECOND);
    queue.add(&key("a"), Priority::Low, SECOND);
    queue.add(&key("a"), Priority::High, SECOND);
    assert_eq!((queue.ready_keys(Priority::High), queue.ready_keys(Priority::Low)), (1, 1));
    let (taken, _) = pass(&mut queue, QueueResult::AwaitChange, SECOND).unwrap();
    assert_eq!((taken.key, taken.priority), (key("a"), Priority::High));
    assert_eq!(pass(&mut queue, QueueResult::AwaitChange, SECOND).unwrap().0.key, key("first"));
    assert_eq!(pass(&mut queue, QueueResult::AwaitChange, SECOND), None);
}

#[test]
fn failures_in_a_row_wait_longer_each_time_up_to_a_limit_and_a_success_forgets_them() {
    let mut queue = queue(options());
    let mut now = SECOND;
    queue.add(&key("a"), Priority::High, now);
    let mut waits = Vec::new();
    for _ in 0..10 {
        let (_, wait) = pass(&mut queue, QueueResult::Failed, now).unwrap();
        assert_eq!(queue.take(now), None);
        now = queue.next_timer().unwrap();
        waits.push(wait.unwrap());
    }
    for (n, wait) in waits.iter().enumerate() {
        let doubled = SECOND.saturating_mul(1 << n).min(100 * SECOND);
        assert!(
            *wait >= doubled.mul_f64(0.8) && *wait <= doubled.mul_f64(1.2),
            "{n}: {wait:?} is not about {doubled:?}"
        );
    }
    assert_eq!(pass(&mut queue, QueueResult::AwaitChange, now).unwrap().1, None);
    queue.add(&key("a"), Priority::High, now);
    assert!(pass(&mut queue, QueueResult::Failed, now).unwrap().1.unwrap() <= 2 * SECOND);
}

#[test]
fn a_change_cuts_the_wait_after_a_failure_short_once() {
    let mut queue = queue(options());
    let mut now = SECOND;
    queue.add(&key("a"), Priority::High, now);
    // After many failures.
    for _ in 0..6 {
        pass(&mut queue, QueueResult::Failed, now).unwrap();
        now = queue.next_timer().unwrap();
    }
    pass(&mut queue, QueueResult::Failed, now).unwrap();
    queue.add(&key("a"), Priority::High, now);
    assert!(pass(&mut queue, QueueResult::Failed, now).is_some(), "at once: the change may be what mends it");
    // The object changes with every failure from here on, and still runs at most every five seconds.
    let begin = now;
    let mut passes = 0;
    while now < begin + 60 * SECOND {
        queue.add(&key("a"), Priority::High, now);
        passes += u32::from(pass(&mut queue, QueueResult::Failed, now).is_some());
        now += SECOND / 10;
    }
    assert!((9..=12).contains(&passes), "{passes} passes in a minute");
}

#[test]
fn a_conflict_is_decided_again_when_its_cause_is_seen_or_soon_and_five_in_a_row_are_a_failure() {
    let mut queue = queue(options());
    let mut now = SECOND;
    queue.add(&key("a"), Priority::High, now);
    for n in 0..MAX_CONFLICT_RETRIES {
        let (taken, wait) = pass(&mut queue, QueueResult::Conflict, now).unwrap();
        assert_eq!(taken.agains, n);
        assert!(wait.unwrap() < SECOND / 2, "{wait:?}");
        assert_eq!(queue.take(now), None, "not on what is known to be stale");
        if n % 2 == 0 {
            queue.add(&key("a"), Priority::High, now);
        } else {
            now = queue.next_timer().unwrap();
        }
    }
    let (taken, wait) = pass(&mut queue, QueueResult::Conflict, now).unwrap();
    assert_eq!(taken.agains, MAX_CONFLICT_RETRIES);
    assert!(wait.unwrap() > SECOND / 2);
    assert_eq!(queue.take(now), None);
}

#[test]
fn what_waits_is_looked_at_when_its_time_comes_or_something_changes() {
    let mut queue = queue(options());
    queue.add(&key("a"), Priority::High, SECOND);
    pass(&mut queue, QueueResult::After(10 * SECOND), SECOND).unwrap();
    assert!(queue.is_idle(10 * SECOND));
    assert_eq!(queue.next_timer(), Some(11 * SECOND));
    assert!(!queue.is_idle(11 * SECOND));
    pass(&mut queue, QueueResult::After(10 * SECOND), 11 * SECOND).unwrap();
    queue.add(&key("a"), Priority::High, 12 * SECOND);
    pass(&mut queue, QueueResult::AwaitChange, 12 * SECOND).unwrap();
    assert_eq!(queue.next_timer(), None, "the pass in between said that it rests");
}

#[test]
fn what_is_gone_costs_nothing_more() {
    let mut queue = queue(Options { deep_check: Some(3600 * SECOND), ..options() });
    queue.add(&key("a"), Priority::High, SECOND);
    pass(&mut queue, QueueResult::Gone, SECOND).unwrap();
    assert!(queue.is_empty());
    assert_eq!(queue.next_timer(), None);
    // Deleted and created again during its pass.
    queue.add(&key("a"), Priority::High, SECOND);
    let taken = queue.take(SECOND).unwrap();
    queue.add(&key("a"), Priority::High, SECOND);
    queue.end(&taken.key, QueueResult::Gone, SECOND);
    assert!(queue.take(SECOND).is_some());
}

#[test]
fn passes_of_one_key_are_no_closer_than_asked_for() {
    let mut queue = queue(Options { at_most_every: 5 * SECOND, ..options() });
    let mut starts = Vec::new();
    for tenth in 0..300 {
        let now = SECOND + tenth * SECOND / 10;
        queue.add(&key("a"), Priority::High, now);
        if pass(&mut queue, QueueResult::AwaitChange, now).is_some() {
            starts.push(now);
        }
    }
    assert_eq!(starts, [1, 6, 11, 16, 21, 26].map(|n| n * SECOND), "the changes in between are one");
    assert_eq!(queue.next_timer(), Some(31 * SECOND), "and the last of them are not lost");
}

#[test]
fn deep_checks_of_a_fleet_spread_over_the_period_and_come_back() {
    let period = 1000 * SECOND;
    let mut queue = queue(Options { deep_check: Some(period), ..options() });
    (0..10_000).for_each(|n| queue.add(&key(n), Priority::Low, SECOND));
    while let Some((taken, _)) = pass(&mut queue, QueueResult::AwaitChange, SECOND) {
        assert!(!taken.deep, "the first look is not a deep one");
    }
    let mut by_tenth = [0u32; 10];
    let mut checked = HashSet::new();
    let mut now = SECOND;
    while let Some(due) = queue.next_timer().filter(|due| *due <= SECOND + period) {
        now = due;
        let (taken, _) = pass(&mut queue, QueueResult::AwaitChange, now).unwrap();
        assert!(taken.deep && taken.priority == Priority::Low);
        if checked.insert(taken.key) {
            by_tenth[((now - SECOND).as_secs() / 100).min(9) as usize] += 1;
        }
    }
    assert_eq!(checked.len(), 10_000, "each in the first period");
    assert!(by_tenth.iter().all(|count| (850..1150).contains(count)), "{by_tenth:?}");
    let next = queue.timers.iter().map(|(due, _)| *due);
    assert!(next.clone().max().unwrap() <= now + period.mul_f64(1.2));
    assert_eq!(next.count(), 10_000, "and each again in the next");
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8, bool),
    Take,
    End(prop::sample::Index, u8),
    Tick(u16),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0u8..6, any::<bool>()).prop_map(|(key, high)| Op::Add(key, high)),
        4 => Just(Op::Take),
        3 => (any::<prop::sample::Index>(), 0u8..5).prop_map(|(which, how)| Op::End(which, how)),
        2 => (0u16..3000).prop_map(Op::Tick),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    /// Under random operations: never two concurrent passes of a key, no change is lost, and due keys are found.
    #[test]
    fn nothing_is_lost_and_nothing_runs_twice(ops in ops(), at_most_every in 0u32..3, deep in any::<bool>()) {
        let at_most_every = at_most_every * SECOND;
        let deep_check = deep.then_some(20 * SECOND);
        let mut queue = queue(Options { at_most_every, deep_check, ..options() });
        let mut now = SECOND;
        let mut running: Vec<Key> = Vec::new();
        // Changes without a pass that started after them.
        let mut unseen: HashSet<Key> = HashSet::new();
        let mut starts: HashMap<Key, Moment> = HashMap::new();
        // Deleted and created again: a new object.
        let mut forgotten: HashSet<Key> = HashSet::new();
        let mut begun = |taken: &DequeuedKey, now: Moment, unseen: &mut HashSet<Key>, forgotten: &mut HashSet<Key>, running: &[Key]| {
            prop_assert!(!running.contains(&taken.key), "two passes of {} at once", taken.key);
            let before = starts.insert(taken.key.clone(), now);
            if let Some(before) = before.filter(|_| !forgotten.remove(&taken.key)) {
                prop_assert!(now - before >= at_most_every, "{} began too soon", taken.key);
            }
            unseen.remove(&taken.key);
            Ok(())
        };
        for op in ops {
            match op {
                Op::Add(name, high) => {
                    queue.add(&key(name), if high { Priority::High } else { Priority::Low }, now);
                    unseen.insert(key(name));
                }
                Op::Take => if let Some(taken) = queue.take(now) {
                    begun(&taken, now, &mut unseen, &mut forgotten, &running)?;
                    running.push(taken.key);
                },
                Op::End(which, how) if !running.is_empty() => {
                    let ended = running.swap_remove(which.index(running.len()));
                    let how = [QueueResult::AwaitChange, QueueResult::Gone, QueueResult::After(SECOND), QueueResult::Failed, QueueResult::Conflict][how as usize];
                    queue.end(&ended, how, now);
                    if !queue.entries.contains_key(&ended) {
                        forgotten.insert(ended);
                    }
                }
                Op::End(..) => {}
                Op::Tick(milliseconds) => now += Duration::from_millis(milliseconds.into()),
            }
        }
        for key in std::mem::take(&mut running) {
            queue.end(&key, QueueResult::AwaitChange, now);
        }
        // From here on all passes succeed: within a bounded time every change is followed by a pass.
        let end = now + 200 * SECOND;
        loop {
            while let Some((taken, _)) = pass(&mut queue, QueueResult::AwaitChange, now) {
                begun(&taken, now, &mut unseen, &mut forgotten, &[])?;
            }
            prop_assert_eq!(queue.ready, [0, 0]);
            if unseen.is_empty() {
                break;
            }
            let due = queue.next_timer();
            prop_assert!(due.is_some_and(|due| due <= end), "{unseen:?} are forgotten; the next timer is {due:?}");
            now = now.max(due.unwrap_or_default());
        }
        prop_assert!(queue.is_idle(now));
        let timers = queue.entries.values().filter(|entry| entry.timer.is_some()).count();
        prop_assert_eq!(timers, queue.timers.len(), "one timer a key at most");
    }
}
