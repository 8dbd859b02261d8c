//! Tests of the store against a model of the server: a list of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::store::{Changed, Store};
use crate::Key;

const NAMES: [&str; 3] = ["anna", "bert", "cleo"];

fn key(name: usize) -> Key {
    Key::new("fleet", NAMES[name])
}

/// The stored view: the version at which the object was written.
type Stored = u64;

fn store() -> Store<Stored> {
    let mut store = Store::<Stored>::default();
    store.add_index("odd", |_, version: &Stored| vec![(version % 2).to_string()]);
    store
}

#[derive(Clone, Debug)]
enum Op {
    /// Another client creates or changes an object.
    Put(usize),
    /// Another client deletes an object.
    Delete(usize),
    /// This process writes or deletes an object, and the answer arrives later.
    OwnPut(usize),
    OwnDelete(usize),
    /// The answer of one of our writes arrives.
    Answer(prop::sample::Index),
    /// The watch delivers the next event.
    Watch,
    /// The watch delivers a bookmark; only right after all events.
    Bookmark,
    /// A list is read, from a server that is some events behind.
    List(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = 0..NAMES.len();
    let op = prop_oneof![
        3 => name.clone().prop_map(Op::Put),
        2 => name.clone().prop_map(Op::Delete),
        3 => name.clone().prop_map(Op::OwnPut),
        2 => name.prop_map(Op::OwnDelete),
        4 => any::<prop::sample::Index>().prop_map(Op::Answer),
        6 => Just(Op::Watch),
        1 => Just(Op::Bookmark),
        1 => (0usize..4).prop_map(Op::List),
    ];
    prop::collection::vec(op, 1..80)
}

/// All events; the version of an event is its position in the list, from 1.
#[derive(Default)]
struct Server {
    happened: Vec<(usize, bool)>,
}

impl Server {
    fn put(&mut self, name: usize) -> u64 {
        self.happened.push((name, true));
        self.version()
    }

    fn delete(&mut self, name: usize) -> u64 {
        self.happened.push((name, false));
        self.version()
    }

    fn version(&self) -> u64 {
        self.happened.len() as u64
    }

    /// The version of an object as it was at some version of the server.
    fn at(&self, name: usize, version: u64) -> Option<u64> {
        let happened = self.happened.iter().zip(1..=version);
        let (there, version) =
            happened.filter(|((of, _), _)| *of == name).map(|((_, there), at)| (*there, at)).last()?;
        there.then_some(version)
    }
}

enum Answer {
    Put { name: usize, version: u64 },
    Delete { name: usize, version: u64, at: u64 },
}

/// Compares the store with the simplest correct model: each object has the state of the server at the later of the version that the watch
/// has reached and the last own write of it that was answered.
fn hold(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let (mut server, mut store) = (Server::default(), store());
    let mut watched = 0;
    let mut answered = [0; NAMES.len()];
    let mut answers = Vec::new();
    let mut told: BTreeMap<Key, u64> = BTreeMap::new();
    for op in ops {
        let mut changes: Vec<Changed<Stored>> = Vec::new();
        match op {
            Op::Put(name) => drop(server.put(name)),
            Op::Delete(name) if server.at(name, server.version()).is_some() => drop(server.delete(name)),
            Op::OwnPut(name) => answers.push(Answer::Put { name, version: server.put(name) }),
            Op::OwnDelete(name) => {
                if let Some(at) = server.at(name, server.version()) {
                    answers.push(Answer::Delete { name, version: server.delete(name), at });
                }
            }
            Op::Answer(index) if !answers.is_empty() => match answers.remove(index.index(answers.len())) {
                Answer::Put { name, version } => {
                    answered[name] = version.max(answered[name]);
                    changes.extend(store.written(key(name), version, version, false));
                }
                Answer::Delete { name, version, at } => {
                    answered[name] = version.max(answered[name]);
                    changes.extend(store.deleted(&key(name), at));
                }
            },
            Op::Watch if watched < server.version() => {
                let (name, there) = server.happened[watched as usize];
                watched += 1;
                changes.extend(if there {
                    store.applied(key(name), watched, watched)
                } else {
                    store.gone(&key(name), watched)
                });
            }
            Op::Bookmark if watched == server.version() => store.reached("fleet", watched),
            Op::List(behind) => {
                watched = watched.max(server.version().saturating_sub(behind as u64));
                let listed = (0..NAMES.len())
                    .filter_map(|name| server.at(name, watched).map(|version| (key(name), version, Some(version))));
                changes = store.listed("fleet", watched, listed.collect());
            }
            _ => {}
        }
        for changed in changes {
            prop_assert_eq!(changed.old.as_deref().copied(), told.get(&changed.key).copied(), "what was told before");
            prop_assert_ne!(changed.old.as_deref(), changed.new.as_deref(), "told twice");
            match changed.new {
                Some(new) => drop(told.insert(changed.key, *new)),
                None => drop(told.remove(&changed.key)),
            }
        }
        for name in 0..NAMES.len() {
            let expected = server.at(name, watched.max(answered[name]));
            let shown = store.get(&key(name)).map(|version| *version);
            prop_assert_eq!(shown, expected, "{} at watch {} and answer {}", NAMES[name], watched, answered[name]);
            prop_assert_eq!(told.get(&key(name)).copied(), shown, "what listeners know of {}", NAMES[name]);
        }
        let mut indexed = BTreeSet::new();
        for value in ["0", "1"] {
            let found = store.by("odd", value);
            prop_assert_eq!(found.len(), store.count("odd", value));
            for (key, version) in found {
                prop_assert_eq!((*version % 2).to_string(), value);
                indexed.insert(key);
            }
        }
        prop_assert_eq!(indexed.into_iter().collect::<Vec<_>>(), store.keys());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shown_is_what_was_last_heard_of(ops in ops()) {
        hold(ops)?;
    }
}

#[test]
fn the_event_of_our_own_write_is_no_second_change() {
    let mut store = store();
    assert!(store.applied(key(0), 1, 1).is_some());
    assert!(store.written(key(0), 5, 5, false).is_some());
    assert!(store.applied(key(0), 5, 5).is_none());
    assert_eq!(store.get(&key(0)).as_deref(), Some(&5));
}

#[test]
fn an_answer_that_comes_after_a_list_does_not_bring_back_what_is_gone() {
    let mut store = store();
    assert!(store.applied(key(0), 1, 1).is_some());
    // Written at 5, deleted at 6, listed at 7.
    assert_eq!(store.listed("fleet", 7, Vec::new()).len(), 1);
    assert!(store.written(key(0), 5, 5, false).is_none());
    assert!(store.get(&key(0)).is_none());
}

#[test]
fn the_answer_of_an_older_delete_does_not_bring_back_what_a_newer_one_took() {
    let mut store = store();
    assert!(store.deleted(&key(0), 4).is_none());
    assert!(store.deleted(&key(0), 2).is_none());
    assert!(store.written(key(0), 4, 4, false).is_none());
    assert!(store.get(&key(0)).is_none());
    assert!(store.written(key(0), 6, 6, false).is_some());
}

#[test]
fn a_list_reports_only_what_differs() {
    let mut store = store();
    let list =
        |versions: [u64; 3]| (0..3).map(|name| (key(name), versions[name], Some(versions[name]))).collect::<Vec<_>>();
    assert_eq!(store.listed("fleet", 3, list([1, 2, 3])).len(), 3);
    assert_eq!(store.listed("fleet", 9, list([1, 2, 3])).len(), 0);
    let changes = store.listed("fleet", 12, list([1, 11, 3]));
    assert_eq!(changes.iter().map(|changed| changed.key.clone()).collect::<Vec<_>>(), [key(1)]);
    let changes = store.listed("fleet", 14, list([1, 11, 3]).split_off(2));
    assert_eq!(changes.len(), 2, "two vanished");
}

#[test]
fn with_a_selector_only_what_is_known_is_taken_from_an_answer() {
    let mut store = store();
    assert!(store.written(key(0), 5, 5, true).is_none());
    assert!(store.applied(key(0), 6, 6).is_some());
    assert!(store.written(key(0), 7, 7, true).is_some());
    // The write changed a label that the selector needs: the watch reports a deletion, at the same version.
    assert!(store.gone(&key(0), 7).is_some());
}

#[test]
fn an_unreadable_object_of_a_list_stays_as_it_was() {
    let mut store = store();
    assert!(store.applied(key(0), 5, 5).is_some());
    assert!(store.listed("fleet", 9, vec![(key(0), 8, None), (key(1), 7, None)]).is_empty());
    assert_eq!(store.keys(), [key(0)]);
    assert_eq!(store.get(&key(0)).as_deref(), Some(&5));
}

#[test]
fn after_a_set_back_older_versions_count() {
    let mut store = store();
    assert!(store.applied(key(0), 100, 100).is_some());
    store.reset_scope("fleet");
    assert_eq!(store.listed("fleet", 40, vec![(key(0), 30, Some(30))]).len(), 1);
    assert_eq!(store.seen("fleet"), 40);
}

#[test]
#[should_panic(expected = "no index \"owner\"")]
fn an_index_that_was_never_asked_for_is_a_mistake_not_an_empty_answer() {
    store().by("owner", "anna");
}

fn of(namespace: &str) -> Key {
    Key::new(namespace, "ca")
}

#[test]
fn a_list_of_one_namespace_prunes_nothing_of_another_one() {
    let mut store = Store::<Stored>::by_namespace();
    assert!(store.applied(of("blue"), 1, 1).is_some());
    assert!(store.applied(of("pay"), 2, 2).is_some());
    let changes = store.listed("blue", 9, Vec::new());
    assert_eq!(changes.iter().map(|changed| changed.key.clone()).collect::<Vec<_>>(), [of("blue")]);
    assert_eq!(store.keys(), [of("pay")]);
    assert!(store.is_complete("blue") && !store.is_complete("pay"));
}

#[test]
fn how_far_one_namespace_has_come_says_nothing_of_another_one() {
    let mut store = Store::<Stored>::by_namespace();
    store.reached("blue", 100);
    // Our own write in a namespace whose watch is behind that of the other one.
    assert!(store.written(of("pay"), 50, 50, false).is_some());
    assert!(store.written(of("blue"), 50, 50, false).is_none());
    assert_eq!((store.seen("blue"), store.seen("pay")), (100, 0));
    store.reset_scope("blue");
    assert_eq!(store.seen("blue"), 0);
    assert!(store.applied(of("pay"), 50, 50).is_none(), "the other one was not set back");
}

#[test]
fn what_a_namespace_held_is_gone_with_it() {
    let mut store = Store::<Stored>::by_namespace();
    store.add_index("odd", |_, version: &Stored| vec![(version % 2).to_string()]);
    assert!(store.applied(of("blue"), 1, 1).is_some());
    assert!(store.applied(of("pay"), 3, 3).is_some());
    assert_eq!(store.listed("blue", 4, vec![(of("blue"), 1, Some(1))]).len(), 0);
    let changes = store.ended("blue");
    assert_eq!(changes.len(), 1);
    assert!(changes[0].new.is_none());
    assert!(!store.is_complete("blue"));
    assert_eq!(store.by("odd", "1").len(), 1);
    // A later object of the same name starts without the state of the first one.
    assert!(store.written(of("blue"), 2, 2, false).is_some());
}

mod following {
    //! A cache that follows namespaces, against a server in this process.

    use std::sync::Arc;
    use std::time::Duration;

    use anyhow::{Context, Result, ensure};
    use fleetwright_lab::Target;
    use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    use kube::api::{DeleteParams, PostParams};
    use kube::{Api, Client};
    use serde_json::json;

    use crate::{Cache, FullObject, Key, Operator, Settings, Source};

    const LABELS: &str = "fleet=blue";

    async fn namespace(client: &Client, name: &str, fleet: &str) -> Result<()> {
        let object = json!({ "metadata": { "name": name, "labels": { "fleet": fleet } } });
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    async fn put(client: &Client, namespace: &str, name: &str) -> Result<()> {
        let object = json!({ "metadata": { "name": name, "labels": { "fleet": "blue" } } });
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    async fn eventually(what: &str, holds: impl Fn() -> bool) -> Result<()> {
        for _ in 0..2400 {
            if holds() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        anyhow::bail!("{what}: not within 10 s")
    }

    type Objects = Cache<FullObject<ConfigMap>>;

    fn operator(client: Client) -> (Operator, Objects) {
        let mut operator = Operator::new(Settings::new("test", client));
        let namespaces = Source::<FullObject<Namespace>>::new(Api::all(operator.client())).labels(LABELS);
        let namespaces = operator.cache(namespaces);
        let open = |one: &FullObject<Namespace>| one.0.metadata.deletion_timestamp.is_none();
        let objects =
            Source::<FullObject<ConfigMap>>::within(operator.client(), &namespaces, open).also("keys").labels(LABELS);
        let objects = operator.cache(objects.index("namespace", |key, _| vec![key.namespace.to_string()]));
        (operator, objects)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cache_follows_the_namespaces_that_another_one_holds() -> Result<()> {
        let server = Target::embedded().await?;
        let admin = server.admin();
        for (name, fleet) in [("keys", "none"), ("one", "blue"), ("foreign", "none")] {
            namespace(&admin, name, fleet).await?;
            put(&admin, name, "first").await?;
        }
        let (operator, objects) = operator(admin.clone());
        let running = tokio::spawn(operator.run(std::future::pending()));
        eventually("it is full", || objects.synced()).await?;
        ensure!(objects.keys() == [Key::new("keys", "first"), Key::new("one", "first")], "{:?}", objects.keys());
        ensure!(objects.covers("one") && objects.covers("keys") && !objects.covers("foreign"));
        namespace(&admin, "two", "blue").await?;
        eventually("a new namespace is listed", || objects.covers("two")).await?;
        put(&admin, "two", "second").await?;
        put(&admin, "foreign", "second").await?;
        eventually("and watched", || objects.count("namespace", "two") == 1).await?;
        ensure!(objects.count("namespace", "foreign") == 0);
        Api::<Namespace>::all(admin.clone()).delete("one", &DeleteParams::default()).await?;
        eventually("its objects go with it", || objects.count("namespace", "one") == 0).await?;
        eventually("and its watch", || !objects.covers("one")).await?;
        // The answer of a write that arrives late is dropped: no watch event would ever remove it.
        let late: ConfigMap = serde_json::from_value(json!({
            "metadata": { "name": "late", "namespace": "one", "resourceVersion": "999999" },
        }))?;
        objects.created(late);
        ensure!(objects.get(&Key::new("one", "late")).is_none());
        running.abort();
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_namespace_that_may_not_be_read_holds_up_no_other_one() -> Result<()> {
        use fleetwright_rig::rights::{grant_everywhere, grant_in};

        let server = Target::embedded().await?;
        let admin = server.admin();
        for name in ["keys", "one", "two"] {
            namespace(&admin, name, if name == "keys" { "none" } else { "blue" }).await?;
            put(&admin, name, "first").await?;
        }
        let rule = |resource: &str| crate::rights::rule("", &[resource], &["list", "watch"]);
        grant_everywhere(&admin, "reader", &[rule("namespaces")]).await?;
        for name in ["keys", "one"] {
            grant_in(&admin, name, "reader", &[rule("configmaps")]).await?;
        }
        let client = server.client_as("reader", &[]).await?;
        let (operator, objects) = operator(client);
        let running = tokio::spawn(operator.run(std::future::pending()));
        eventually("it is full", || objects.synced()).await?;
        ensure!(objects.covers("one") && !objects.covers("two"));
        grant_in(&admin, "two", "reader", &[rule("configmaps")]).await?;
        eventually("it is read as soon as that is allowed", || objects.covers("two")).await?;
        let seen: Option<Arc<FullObject<ConfigMap>>> = objects.get(&Key::new("two", "first"));
        seen.context("its object")?;
        running.abort();
        Ok(())
    }
}
