use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use super::history::WatchEventType;
use super::*;

const PODS: &str = "pods";

fn draft(name: &str, text: &str) -> Draft {
    Draft::new(&json!({"apiVersion": "v1", "metadata": {"name": name, "labels": {"text": text}}}), vec![], 0)
}

fn put(store: &Store, namespace: &str, name: &str, text: &str) -> Arc<Object> {
    let key = Key::new(namespace, name);
    let expect = store.get(PODS, &key).map_or(Precondition::Absent, |present| Precondition::Revision(present.revision));
    store.commit(PODS, &key, expect, Change::Put(draft(name, text))).unwrap()
}

fn delete(store: &Store, namespace: &str, name: &str) -> Arc<Object> {
    let key = Key::new(namespace, name);
    let last = store.get(PODS, &key).unwrap();
    store.commit(PODS, &key, Precondition::Revision(last.revision), Change::Delete(Draft::of(&last))).unwrap()
}

fn names(page: &Page) -> Vec<String> {
    page.objects.iter().map(|o| format!("{}={}", o.key, o.label("text").unwrap_or_default())).collect()
}

fn list(store: &Store, at: Option<u64>) -> Vec<String> {
    names(&store.page(PODS, None, at, None, 0, |_| true).unwrap())
}

#[test]
fn every_write_moves_the_one_revision_by_one() {
    let store = Store::default();
    assert_eq!(put(&store, "a", "x", "1").revision, 2);
    store.commit("nodes", &Key::new("", "n"), Precondition::Absent, Change::Put(draft("n", ""))).unwrap();
    assert_eq!(delete(&store, "a", "x").revision, 4);
    assert_eq!((store.revision(), store.resource_revision("nodes"), store.resource_revision("none")), (4, 3, 0));
    assert_eq!(store.resources(), ["nodes".into()]);
}

#[test]
fn a_write_whose_expectation_fails_changes_nothing() {
    let store = Store::default();
    let key = Key::new("a", "x");
    let put_if = |expect| store.commit(PODS, &key, expect, Change::Put(draft("x", "")));
    assert!(matches!(put_if(Precondition::Revision(2)), Err(CommitError::Missing)));
    assert!(put_if(Precondition::Absent).is_ok());
    assert!(matches!(put_if(Precondition::Absent), Err(CommitError::Exists(_))));
    assert!(matches!(put_if(Precondition::Revision(7)), Err(CommitError::Conflict(o)) if o.revision == 2));
    let missing = store.commit(PODS, &Key::new("a", "y"), Precondition::Revision(1), Change::Delete(draft("y", "")));
    assert!(matches!(missing, Err(CommitError::Missing)));
    assert_eq!(store.revision(), 2);
}

#[test]
fn a_list_of_the_past_shows_what_was_there() {
    let store = Store::default();
    put(&store, "a", "x", "1");
    put(&store, "a", "y", "1");
    let then = store.revision();
    put(&store, "a", "x", "2");
    delete(&store, "a", "y");
    put(&store, "a", "z", "1");
    put(&store, "a", "y", "2");
    assert_eq!(list(&store, Some(then)), ["a/x=1", "a/y=1"]);
    assert_eq!(list(&store, Some(1)), Vec::<String>::new());
    assert_eq!(list(&store, None), ["a/x=2", "a/y=2", "a/z=1"]);
}

#[test]
fn pages_of_one_snapshot_do_not_see_later_writes() {
    let store = Store::default();
    for i in 0..10 {
        put(&store, "a", &format!("n{i}"), "old");
    }
    let first = store.page(PODS, Some("a"), None, None, 4, |_| true).unwrap();
    assert_eq!((first.next.as_ref().unwrap().name.as_ref(), first.remaining), ("n3", Some(6)));
    put(&store, "a", "n5", "new");
    put(&store, "a", "n44", "new");
    delete(&store, "a", "n9");
    let rest = store.page(PODS, Some("a"), Some(first.revision), first.next.as_ref(), 0, |_| true).unwrap();
    assert_eq!(names(&rest), ["a/n4=old", "a/n5=old", "a/n6=old", "a/n7=old", "a/n8=old", "a/n9=old"]);
    assert_eq!((rest.next, rest.remaining), (None, None));
}

#[test]
fn a_namespace_is_listed_without_its_neighbours() {
    let store = Store::default();
    for namespace in ["a", "a-b", "a.b", "ab", "b"] {
        put(&store, namespace, "x", "");
    }
    let page = store.page(PODS, Some("a"), None, None, 0, |_| true).unwrap();
    assert_eq!(names(&page), ["a/x="]);
    assert_eq!(list(&store, None), ["a-b/x=", "a.b/x=", "a/x=", "ab/x=", "b/x="]);
}

#[test]
fn a_filtered_page_goes_on_after_its_last_match_while_anything_follows() {
    let store = Store::default();
    for (name, text) in [("a", "1"), ("b", "0"), ("c", "1"), ("d", "0")] {
        put(&store, "n", name, text);
    }
    let wanted = |o: &Object| o.label("text") == Some("1");
    let page = store.page(PODS, None, None, None, 2, wanted).unwrap();
    assert_eq!(page.next.as_ref().unwrap().name.as_ref(), "c");
    let rest = store.page(PODS, None, Some(page.revision), page.next.as_ref(), 2, wanted).unwrap();
    assert!(rest.objects.is_empty() && rest.next.is_none());
}

#[test]
fn what_is_compacted_is_gone_and_what_is_not_stays() {
    let store = Store::default();
    for i in 0..4 {
        put(&store, "a", "x", &i.to_string());
    }
    store.compact(3);
    let gone = Compacted { requested: 2, oldest: 3 };
    assert_eq!(store.page(PODS, None, Some(2), None, 0, |_| true).unwrap_err(), gone);
    assert_eq!(store.watch(PODS, 2).unwrap_err().to_string(), "too old resource version: 2 (3)");
    assert_eq!(store.watch("never-written", 2).unwrap_err(), gone);
    assert_eq!(list(&store, Some(3)), ["a/x=1"]);
    assert_eq!(store.watch(PODS, 3).unwrap().poll_changes().unwrap().events.len(), 2);
}

#[test]
fn history_is_bounded_by_count_bytes_and_age() {
    let limits = |events, bytes, age| HistoryLimits { history_events: events, history_bytes: bytes, history_age: age };
    let hour = Duration::from_secs(3600);
    for limits in [limits(5, usize::MAX, hour), limits(1000, 400, hour), limits(1000, usize::MAX, Duration::ZERO)] {
        let store = Store::new(limits);
        for i in 0..50 {
            put(&store, "a", "x", &i.to_string());
        }
        assert!(store.watch(PODS, 40).is_err());
        assert_eq!(list(&store, None), ["a/x=49"]);
        assert!(store.watch(PODS, store.revision()).is_ok());
    }
}

#[tokio::test]
async fn a_watcher_that_falls_out_of_the_history_gets_an_error() {
    let store = Store::new(HistoryLimits { history_events: 3, ..HistoryLimits::default() });
    let (mut slow, mut quick) = (store.watch(PODS, 1).unwrap(), store.watch(PODS, 1).unwrap());
    let mut seen = 0;
    for i in 0..10 {
        put(&store, "a", "x", &i.to_string());
        seen += quick.next().await.unwrap().events.len();
    }
    assert_eq!(seen, 10);
    assert_eq!(slow.next().await.unwrap_err(), WatchError::Compacted(Compacted { requested: 1, oldest: 8 }));
}

#[tokio::test]
async fn dropping_a_resource_ends_its_watches_even_when_it_comes_back() {
    let store = Store::default();
    put(&store, "a", "x", "");
    let (mut idle, mut late) = (store.watch(PODS, 2).unwrap(), store.watch(PODS, 2).unwrap());
    let waiting = tokio::spawn(async move { idle.next().await.map(|_| ()) });
    tokio::task::yield_now().await;
    store.drop_resource(PODS);
    assert_eq!(waiting.await.unwrap(), Err(WatchError::Ended));
    put(&store, "a", "x", "");
    assert_eq!(late.next().await.unwrap_err(), WatchError::Ended);
    assert!(store.watch(PODS, 1).is_err());
}

#[tokio::test]
async fn a_dropped_resource_is_followed_to_its_last_change() {
    let store = Store::default();
    put(&store, "a", "x", "");
    let mut slow = store.watch(PODS, 1).unwrap();
    store.drop_resource(PODS);
    put(&store, "a", "y", "");
    let batch = slow.next().await.unwrap();
    let names: Vec<_> = batch.events.iter().map(|event| event.key().unwrap().name.to_string()).collect();
    assert_eq!(names, ["x"], "what came before, and nothing of the one that came after");
    assert_eq!(slow.next().await.unwrap_err(), WatchError::Ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_watchers_see_one_order_however_many_write() {
    let store = Store::default();
    let watchers: Vec<_> = (0..4)
        .map(|i| {
            let mut cursor = if i == 0 { store.watch_all(1).unwrap() } else { store.watch(PODS, 1).unwrap() };
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while seen.len() < 400 {
                    let batch = cursor.next().await.unwrap();
                    seen.extend(batch.events.iter().map(|e| (e.revision, e.key().unwrap().to_string())));
                }
                seen
            })
        })
        .collect();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let store = store.clone();
            tokio::task::spawn_blocking(move || {
                for i in 0..100 {
                    put(&store, "a", &format!("w{writer}"), &i.to_string());
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut orders = BTreeSet::new();
    for watcher in watchers {
        orders.insert(watcher.await.unwrap());
    }
    assert_eq!(orders.len(), 1);
    let order = orders.pop_first().unwrap();
    assert!(order.iter().zip(2..).all(|((revision, _), expected)| *revision == expected));
}

#[test]
fn only_one_of_many_writers_with_the_same_expectation_wins() {
    let store = Store::default();
    put(&store, "a", "x", "");
    let wins: usize = std::thread::scope(|scope| {
        let attempts: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let key = Key::new("a", "x");
                    store.commit(PODS, &key, Precondition::Revision(2), Change::Put(draft("x", ""))).is_ok() as usize
                })
            })
            .collect();
        attempts.into_iter().map(|attempt| attempt.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

#[test]
fn a_change_is_seen_through_a_selector_as_it_crosses_it() {
    let store = Store::default();
    let mut cursor = store.watch(PODS, 1).unwrap();
    for text in ["out", "in", "in", "out"] {
        put(&store, "a", "x", text);
    }
    delete(&store, "a", "x");
    let events = cursor.poll_changes().unwrap().events;
    let inside = |o: &Object| o.label("text") == Some("in");
    let sights: Vec<_> = events.iter().map(|event| event.event_type_for(inside)).collect();
    assert_eq!(
        sights,
        [None, Some(WatchEventType::Added), Some(WatchEventType::Modified), Some(WatchEventType::Deleted), None]
    );
    let left: serde_json::Value = serde_json::from_slice(&events[3].frame(WatchEventType::Deleted).unwrap()).unwrap();
    assert_eq!(left["object"]["metadata"]["labels"]["text"], "in");
    assert_eq!(left["object"]["metadata"]["resourceVersion"], "5");
}

#[test]
fn a_frame_is_made_once_and_a_deletion_carries_its_own_version() {
    let store = Store::default();
    let mut cursor = store.watch(PODS, 1).unwrap();
    put(&store, "a", "x", "");
    delete(&store, "a", "x");
    let events = cursor.poll_changes().unwrap().events;
    let frames = (events[0].frame(WatchEventType::Added).unwrap(), events[0].frame(WatchEventType::Added).unwrap());
    assert_eq!(frames.0.as_ptr(), frames.1.as_ptr());
    let last = events[1].frame(WatchEventType::Deleted).unwrap();
    assert!(last.starts_with(b"{\"type\":\"DELETED\"") && last.ends_with(b"}\n"));
    assert!(String::from_utf8_lossy(&last).contains("\"resourceVersion\":\"3\""));
}

#[test]
fn watchers_see_the_last_stored_state_of_what_a_writer_deletes() {
    let store = Store::default();
    let mut cursor = store.watch(PODS, 1).unwrap();
    let stored = put(&store, "a", "x", "stored");
    let change = Change::Delete(draft("x", "never stored"));
    let returned = store.commit(PODS, &Key::new("a", "x"), Precondition::Revision(stored.revision), change).unwrap();
    let event = cursor.poll_changes().unwrap().events.pop().unwrap();
    assert_eq!((returned.label("text"), returned.revision), (Some("never stored"), 3));
    let shown = event.object_to_send(WatchEventType::Deleted).unwrap();
    assert_eq!((shown.label("text"), shown.revision), (Some("stored"), 3));
}

#[test]
fn every_moment_that_is_kept_lists_as_it_was_whole_and_in_pages() {
    let store = Store::default();
    let mut moments = vec![(1, Vec::new())];
    // A fixed pseudo-random sequence: the same failure each time.
    let mut seed = 7_u32;
    for i in 0..300 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (namespace, name) = (["a", "a-b", "b"][(seed >> 8) as usize % 3], format!("n{}", (seed >> 16) % 7));
        if (seed >> 24).is_multiple_of(3) && store.get(PODS, &Key::new(namespace, &name)).is_some() {
            delete(&store, namespace, &name);
        } else {
            put(&store, namespace, &name, &i.to_string());
        }
        moments.push((store.revision(), list(&store, None)));
    }
    for (revision, expected) in moments {
        assert_eq!(list(&store, Some(revision)), expected);
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = store.page(PODS, None, Some(revision), after.as_ref(), 4, |_| true).unwrap();
            paged.extend(names(&page));
            assert_eq!(page.remaining.unwrap_or(0), expected.len() - paged.len());
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(paged, expected);
    }
}
