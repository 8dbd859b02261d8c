//! Each layer changes calls as documented, and in no other way.

use std::time::Duration;

use fleetwright_apiserver::{Config, Handle, Server};
use fleetwright_kit::Clock;
use fleetwright_rig::{Call, CallMatcher, Crash, FaultInjector, FaultRates, Proxy, Recorder, Side};
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);

async fn server() -> Handle {
    Server::start(Config::default()).await.unwrap()
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "value": value } })).unwrap()
}

async fn write(client: Client, name: &str, value: &str) -> ConfigMap {
    let patch = Patch::Apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "value": value },
    }));
    maps(client).patch(name, &PatchParams::apply("test"), &patch).await.unwrap()
}

fn value(map: &ConfigMap) -> &str {
    &map.data.as_ref().unwrap()["value"]
}

fn clock() -> Clock {
    Clock::manual("2030-01-01T00:00:00Z".parse::<Timestamp>().unwrap())
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it does not come")
}

/// Returns when the server has the object.
async fn there(server: &Handle, name: &str) {
    while maps(server.client()).get_opt(name).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns when this number of calls met faults.
async fn struck(trouble: &FaultInjector, calls: usize) {
    while trouble.faults().len() < calls {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn through(proxy: &Proxy) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&proxy.kubeconfig()).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn a_process_behind_the_proxy_sees_events_at_once_and_is_seen_itself() {
    let server = server().await;
    let recorder = Recorder::default();
    let proxy = Proxy::start(recorder.wrap(server.client())).await.unwrap();
    let client = through(&proxy).await;
    let watch = maps(client.clone()).watch(&WatchParams::default().fields("metadata.name=a"), "0").await.unwrap();
    let mut watch = std::pin::pin!(watch);
    write(server.client(), "a", "1").await;
    let event = soon(async {
        loop {
            match watch.try_next().await.unwrap().unwrap() {
                WatchEvent::Bookmark(_) => {}
                event => return event,
            }
        }
    });
    let event = event.await;
    assert!(matches!(&event, WatchEvent::Added(map) if map.name_any() == "a"), "{event:?}");
    // Both directions work: the body of a write arrives, too.
    write(client, "a", "2").await;
    assert_eq!(value(&maps(server.client()).get("a").await.unwrap()), "2");
    let calls: Vec<_> = recorder.calls().iter().map(ToString::to_string).collect();
    assert_eq!(calls, ["watch configmaps default/ → 200", "apply configmaps default/a → 200"]);
    assert_eq!(recorder.writes_since(0).len(), 1);
}

#[tokio::test]
async fn a_lost_answer_is_an_error_and_the_write_has_happened() {
    let server = server().await;
    let trouble = FaultInjector::new(1, FaultRates { answer_lost: 1.0, ..FaultRates::none() }, clock(), "default");
    // A process behind the proxy must see the fault as well.
    let proxy = Proxy::start(trouble.wrap(server.client())).await.unwrap();
    for (number, client) in [trouble.wrap(server.client()), through(&proxy).await].into_iter().enumerate() {
        for attempt in 0..6 {
            let name = format!("map-{number}-{attempt}");
            let (made, params, maps) = (map(&name, "1"), PostParams::default(), maps(client.clone()));
            let mut create = std::pin::pin!(maps.create(&params, &made));
            // Half of the lost requests are silent: no answer arrives at all.
            let answer = tokio::select! {
                answer = &mut create => Some(answer),
                () = soon(there(&server, &name)) => None,
            };
            let lost = |error: &kube::Error| !matches!(error, kube::Error::Api(_));
            assert!(answer.as_ref().is_none_or(|answer| answer.as_ref().is_err_and(lost)), "{answer:?}");
            soon(there(&server, &name)).await;
        }
    }
    assert_eq!(trouble.counts()["answer lost"], 12);
}

#[tokio::test]
async fn a_lost_request_never_reaches_the_server() {
    let server = server().await;
    let trouble = FaultInjector::new(1, FaultRates { request_lost: 1.0, ..FaultRates::none() }, clock(), "default");
    for attempt in 0..6 {
        let (made, params) = (map(&format!("map-{attempt}"), "1"), PostParams::default());
        let maps = maps(trouble.wrap(server.client()));
        tokio::select! {
            answer = maps.create(&params, &made) => assert!(answer.is_err()),
            () = soon(struck(&trouble, attempt + 1)) => {}
        }
    }
    assert_eq!(trouble.counts()["request lost"], 6);
    let maps = maps(server.client()).list(&Default::default()).await.unwrap();
    assert!(maps.iter().all(|map| !map.name_any().starts_with("map-")));
}

#[tokio::test]
async fn a_lagging_server_answers_what_it_answered_before() {
    let server = server().await;
    let calm_first = FaultInjector::new(1, FaultRates { stale: 1.0, ..FaultRates::none() }, clock(), "default");
    let client = calm_first.wrap(server.client());
    for number in ["1", "2", "3"] {
        write(server.client(), "a", number).await;
        // The first read has no recorded answer to repeat: it is current.
        let seen = maps(client.clone()).get("a").await.unwrap();
        assert_eq!(value(&seen), "1");
    }
    assert_eq!(calm_first.counts()["stale read"], 2);
}

/// The names in the initial events of a streamed list, and the first name after them.
async fn streamed(client: Client, server: &Handle, after: &str) -> (Vec<String>, Vec<String>) {
    let params = WatchParams::default().initial_events().labels("streamed=yes");
    let watch = maps(client).watch(&params, "").await.unwrap();
    let mut watch = std::pin::pin!(watch);
    let (mut before, mut since, mut complete) = (Vec::new(), Vec::new(), false);
    let labelled = |name: &str| {
        let mut map = map(name, "1");
        map.labels_mut().insert("streamed".into(), "yes".into());
        map
    };
    loop {
        match soon(watch.next()).await.unwrap().unwrap() {
            WatchEvent::Bookmark(_) => {
                complete = true;
                let made = labelled(after);
                maps(server.client()).create(&PostParams::default(), &made).await.unwrap();
            }
            WatchEvent::Added(map) if complete => {
                since.push(map.name_any());
                if map.name_any() == after {
                    return (before, since);
                }
            }
            WatchEvent::Added(map) => before.push(map.name_any()),
            event => panic!("{event:?}"),
        }
    }
}

#[tokio::test]
async fn a_lagging_server_begins_a_streamed_list_with_the_past_and_catches_up() {
    let server = server().await;
    let trouble = FaultInjector::new(1, FaultRates { stale: 1.0, ..FaultRates::none() }, clock(), "default");
    let first = streamed(trouble.wrap(server.client()), &server, "a").await;
    assert_eq!(first, (vec![], vec!["a".to_owned()]));
    let second = streamed(trouble.wrap(server.client()), &server, "b").await;
    assert_eq!(second, (vec![], vec!["a".to_owned(), "b".to_owned()]), "it does not know a yet, and learns of it");
    let calm = streamed(server.client(), &server, "c").await;
    assert_eq!(calm, (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]));
}

#[tokio::test]
async fn a_watch_is_cut_between_lines_and_inside_of_them() {
    let server = server().await;
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        write(server.client(), name, "1").await;
    }
    let (mut whole, mut torn, mut broken) = (0, 0, 0);
    for seed in 0..24 {
        let trouble = FaultInjector::new(seed, FaultRates { cut: 1.0, ..FaultRates::none() }, clock(), "default");
        let request =
            http::Request::get("/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0&timeoutSeconds=5");
        let stream = trouble.wrap(server.client()).request_stream(request.body(Vec::new()).unwrap()).await.unwrap();
        let lines: Vec<_> = soon(stream.lines().collect::<Vec<_>>()).await;
        assert!(lines.len() <= 7, "it went on: {} lines", lines.len());
        match lines.last() {
            Some(Err(_)) => broken += 1,
            Some(Ok(line)) if serde_json::from_str::<serde_json::Value>(line).is_err() => torn += 1,
            _ => whole += 1,
        }
    }
    assert!(whole > 0 && torn > 0 && broken > 0, "{whole} whole, {torn} torn, {broken} broken");
}

#[tokio::test]
async fn a_server_that_is_gone_breaks_watches_and_comes_back_when_its_time_has_come() {
    let server = server().await;
    let clock = clock();
    let trouble = FaultInjector::new(1, FaultRates::none(), clock.clone(), "default");
    let client = trouble.wrap(server.client());
    write(server.client(), "a", "1").await;
    let watch = maps(client.clone()).watch(&WatchParams::default(), "0").await.unwrap();
    let mut watch = std::pin::pin!(watch);
    assert!(soon(watch.next()).await.unwrap().is_ok());
    trouble.start_outage(clock.now().checked_add(Duration::from_secs(5)).unwrap(), Duration::from_secs(60));
    assert!(maps(client.clone()).get("a").await.is_ok(), "it is not gone yet");
    clock.advance(Duration::from_secs(5));
    // Earlier events may still arrive; then the error, and nothing after it.
    let rest = soon(async {
        let mut events = Vec::new();
        while let Some(event) = watch.next().await {
            events.push(event.is_ok());
        }
        events
    });
    assert_eq!(rest.await.last(), Some(&false), "the watch breaks");
    assert!(maps(client.clone()).get("a").await.is_err());
    clock.advance(Duration::from_secs(59));
    assert!(maps(client.clone()).get("a").await.is_err());
    clock.advance(Duration::from_secs(1));
    assert!(maps(client).get("a").await.is_ok());
    assert_eq!(trouble.counts()["server gone"], 2);
}

#[tokio::test]
async fn a_late_request_arrives_after_its_sender_gave_up() {
    let server = server().await;
    let clock = clock();
    // Half of the delays apply to the request.
    let trouble = FaultInjector::new(1, FaultRates { late: 1.0, ..FaultRates::none() }, clock.clone(), "default");
    let client = trouble.wrap(server.client());
    let names: Vec<String> = (0..8).map(|number| format!("map-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let (made, params) = (map(name, "1"), PostParams::default());
        let maps = maps(client.clone());
        // The caller gives up after the request was sent; a request whose answer is late has arrived.
        let on_its_way = async {
            struck(&trouble, number + 1).await;
            if trouble.faults()[number].1.name() == "late answer" {
                there(&server, name).await;
            }
        };
        tokio::select! {
            _ = maps.create(&params, &made) => panic!("it is late"),
            () = soon(on_its_way) => {}
        }
    }
    let count = || async {
        let maps = maps(server.client()).list(&Default::default()).await.unwrap();
        maps.iter().filter(|map| map.name_any().starts_with("map-")).count()
    };
    let counts = trouble.counts();
    assert_eq!(count().await, counts["late answer"]);
    clock.advance(Duration::from_secs(90));
    soon(async {
        while count().await < 8 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_crash_lets_nothing_through_from_its_call_on() {
    let server = server().await;
    for (side, expected) in [(Side::Before, 2), (Side::After, 3)] {
        let crash = Crash::at(2, side);
        let client = crash.wrap(server.client());
        let made = |number| {
            let (client, name) = (client.clone(), format!("{side}-{number}"));
            async move { maps(client).create(&PostParams::default(), &map(&name, "1")).await }
        };
        assert!(made(0).await.is_ok());
        assert!(made(1).await.is_ok());
        assert!(crash.crashed_call().is_none());
        let mut doomed = std::pin::pin!(made(2));
        tokio::select! {
            _ = &mut doomed => panic!("the call at which it crashed was answered"),
            () = soon(crash.wait_for_crash()) => {}
        }
        assert!(tokio::time::timeout(Duration::from_millis(50), made(3)).await.is_err(), "a later call was answered");
        let all = maps(server.client()).list(&Default::default()).await.unwrap();
        assert_eq!(all.iter().filter(|map| map.name_any().starts_with(&side.to_string())).count(), expected, "{side}");
        assert_eq!(crash.crashed_call().unwrap().to_string(), "create configmaps default/");
    }
}

#[tokio::test]
async fn an_operator_is_stopped_once_at_each_call_and_goes_a_call_further_each_time() {
    let server = server().await;
    let word = |call: &Call| call.to_string();
    let recorder = Recorder::default();
    for name in ["a", "b"] {
        write(recorder.wrap(server.client()), name, "1").await;
        maps(recorder.wrap(server.client())).get("a").await.unwrap();
    }
    let calls: Vec<Call> = recorder.calls().into_iter().map(|record| record.call).collect();
    for side in [Side::Before, Side::After] {
        let crash = Crash::never();
        crash.crash_at_each(CallMatcher::new(side, word, &calls));
        let (mut lives, mut at) = (0, Vec::new());
        let ended = loop {
            lives += 1;
            // A second watch, which starts from the beginning.
            let life = async {
                for name in ["a", "b"] {
                    write(crash.wrap(server.client()), name, "2").await;
                    maps(crash.wrap(server.client())).get("a").await.unwrap();
                }
            };
            tokio::select! {
                () = life => break lives,
                () = soon(crash.wait_for_crash()) => at.push(crash.crashed_call().unwrap().to_string()),
            }
            crash.reset();
        };
        assert_eq!(ended, 5, "{at:?}");
        at.sort();
        let of = |call: &str| at.iter().filter(|one| one.starts_with(call)).count();
        assert_eq!(
            (of("apply configmaps default/a"), of("apply configmaps default/b"), of("get")),
            (1, 1, 2),
            "{at:?}"
        );
        assert_eq!(crash.remaining_calls(), []);
        crash.crash_at_each(CallMatcher::new(side, word, &calls));
        assert_eq!(crash.remaining_calls().len(), 4, "all are to come again");
    }
}
