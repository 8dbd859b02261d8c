use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::machine::next_check;

#[test]
fn looks_are_spread_and_do_not_move() {
    let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    let every = Duration::from_secs(600);
    let mut buckets = [0_u32; 10];
    for n in 0..1000 {
        let uid = format!("0000{n:04}-1111-2222-3333-444444444444");
        let at = next_check(&uid, every, now);
        assert!(at > now && at <= now + SignedDuration::from_mins(10));
        assert_eq!(next_check(&uid, every, at), at + SignedDuration::from_mins(10));
        assert_eq!(next_check(&uid, every, now + SignedDuration::from_millis(1)), at);
        buckets[usize::try_from((at.as_second() - now.as_second() - 1) / 60).unwrap()] += 1;
    }
    assert!(buckets.iter().all(|count| (50..150).contains(count)), "{buckets:?}");
}
