use http_body_util::BodyExt;
use jiff::Timestamp;
use serde_json::Value;

use super::*;
use crate::registry::Registry;
use crate::store::{Change, Draft, HistoryLimits, Key, Precondition};

struct Lines {
    body: Body,
    text: Vec<u8>,
}

impl Lines {
    /// The next event; none at the end of the watch.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            self.text.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The next event as type, name and value.
    async fn brief(&mut self) -> Option<(String, String, String)> {
        let event = self.next().await?;
        let text = |path| event.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some((text("/type"), text("/object/metadata/name"), text("/object/data/v")))
    }

    async fn expect(&mut self, kind: &str, name: &str, value: &str) {
        assert_eq!(self.brief().await, Some((kind.into(), name.into(), value.into())));
    }
}

fn resource() -> Arc<Resource> {
    Registry::default().find("", "v1", "configmaps").unwrap()
}

fn put(store: &Store, namespace: &str, name: &str, value: &str) {
    let object = serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"v": value},
        "metadata": {"namespace": namespace, "name": name, "labels": {"v": value}}});
    let (key, draft) = (Key::new(namespace, name), Draft::new(&object, vec![], 0));
    let present = store.get(&resource().storage, &key);
    let expect = present.map_or(Precondition::Absent, |present| Precondition::Revision(present.revision));
    store.commit(&resource().storage, &key, expect, Change::Put(draft)).unwrap();
}

fn delete(store: &Store, namespace: &str, name: &str) {
    let key = Key::new(namespace, name);
    let last = store.get(&resource().storage, &key).unwrap();
    let change = Change::Delete(Draft::of(&last));
    store.commit(&resource().storage, &key, Precondition::Revision(last.revision), change).unwrap();
}

async fn open_until(
    store: &Store,
    query: &str,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Lines, ApiError> {
    let view = ResponseFormat::json(Timestamp::UNIX_EPOCH);
    let query = Query::parse(Some(query));
    let response = watch(store, &resource(), "a", "", &query, &view, stop).await?;
    assert_eq!(response.status(), 200);
    Ok(Lines { body: response.into_body(), text: Vec::new() })
}

async fn open(store: &Store, query: &str) -> Lines {
    open_until(store, query, std::future::pending()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_nowhere_shows_what_is_there_and_then_what_changes() {
    let store = Store::default();
    put(&store, "a", "x", "1");
    put(&store, "b", "other", "1");
    let mut lines = open(&store, "timeoutSeconds=5").await;
    lines.expect("ADDED", "x", "1").await;
    put(&store, "a", "x", "2");
    put(&store, "b", "other", "2");
    delete(&store, "a", "x");
    lines.expect("MODIFIED", "x", "2").await;
    let deleted = lines.next().await.unwrap();
    assert_eq!((&deleted["type"], &deleted["object"]["metadata"]["resourceVersion"]), (&"DELETED".into(), &"6".into()));
    assert_eq!(lines.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_shows_only_what_came_after() {
    let store = Store::default();
    put(&store, "a", "x", "1");
    put(&store, "a", "x", "2");
    let mut lines = open(&store, "resourceVersion=2&timeoutSeconds=1").await;
    lines.expect("MODIFIED", "x", "2").await;
    assert_eq!(lines.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn objects_enter_and_leave_a_selector() {
    let store = Store::default();
    let mut lines = open(&store, "resourceVersion=1&labelSelector=v%3Din&timeoutSeconds=1").await;
    for value in ["out", "in", "out"] {
        put(&store, "a", "x", value);
    }
    lines.expect("ADDED", "x", "in").await;
    let left = lines.next().await.unwrap();
    assert_eq!(left["type"], "DELETED");
    assert_eq!(
        (&left["object"]["data"]["v"], &left["object"]["metadata"]["resourceVersion"]),
        (&"in".into(), &"4".into())
    );
    assert_eq!(lines.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_ends_the_initial_events_and_others_follow_each_minute() {
    let store = Store::default();
    put(&store, "a", "x", "1");
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=100";
    let mut lines = open(&store, query).await;
    lines.expect("ADDED", "x", "1").await;
    let end = lines.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["kind"]), (&"BOOKMARK".into(), &"ConfigMap".into()));
    assert_eq!(end["object"]["metadata"]["annotations"][INITIAL_EVENTS_END], "true");
    put(&store, "b", "other", "1");
    let started = Instant::now();
    for (after, revision) in [(60, "3"), (98, "3")] {
        let bookmark = lines.next().await.unwrap();
        assert_eq!((&bookmark["type"], started.elapsed().as_secs()), (&"BOOKMARK".into(), after));
        assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], revision);
    }
    assert_eq!(lines.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_gone_is_an_error_event() {
    let store = Store::default();
    for value in ["1", "2", "3"] {
        put(&store, "a", "x", value);
    }
    store.compact(3);
    let mut lines = open(&store, "resourceVersion=2").await;
    let event = lines.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(event["object"]["message"], "too old resource version: 2 (3)");
    assert_eq!(lines.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_falls_behind_is_cut_off_while_others_go_on() {
    let store = Store::new(HistoryLimits { history_events: 3, ..HistoryLimits::default() });
    let (mut slow, mut quick) = (open(&store, "resourceVersion=1").await, open(&store, "resourceVersion=1").await);
    for i in 0..10 {
        put(&store, "a", "x", &i.to_string());
        assert!(quick.next().await.is_some());
    }
    assert_eq!(slow.next().await.unwrap()["object"]["code"], 410);
    assert_eq!(slow.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_ends_its_watches() {
    let store = Store::default();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut lines = open_until(&store, "", async { drop(stopped.await) }).await.unwrap();
    drop(stop);
    assert_eq!(lines.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_no_number_fails_before_the_stream() {
    let error = open_until(&Store::default(), "resourceVersion=abc", std::future::pending()).await.err().unwrap();
    assert_eq!(error.code, 500);
}
