//! The journal, on the embedded server and on the real one: an act is started at most once, whatever happens in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fleetwright_api::{Operation, OperationPhase, OperationPolicy, Status, condition, names};
use fleetwright_kit::Clock;
use fleetwright_kit::journal::Progress;
use fleetwright_lab::ServerKind;
use fleetwright_rig::layer::{CallResult, Layer, forward, wrap};
use fleetwright_rig::{Call, Crash, Recorder, Side, TestServer};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::Client;
use kube::api::{DeleteParams, ListParams};
use kube::client::Body;
use serde_json::json;
use tokio::sync::watch;

use crate::porter::{ActHook, DeliveredParcels, Extras, JournalFixture, Style};

/// Each scenario is a test on the embedded server, and all of them are one test on a real one.
macro_rules! on_both {
    ($($name:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            scenarios::$name(TestServer::InProcess).await;
        })*

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn all_scenarios_on_real() {
            let test_server = TestServer::start(ServerKind::Real).await.expect("a real server");
            $(eprintln!(stringify!($name));
            scenarios::$name(test_server.clone()).await;)*
        }
    };
}

on_both! {
    the_intent_the_place_and_the_claim_are_written_before_the_act
    what_no_policy_names_waits_until_one_does
    a_crash_at_any_call_starts_an_act_once
    a_lost_answer_at_any_call_starts_an_act_once_and_its_outcome_is_written
    two_drivers_of_one_operation_start_it_once
    two_drivers_never_exceed_the_last_free_place
    an_unknown_outcome_waits_for_a_person
    what_ended_is_forgotten_in_time_and_what_is_unknown_is_not
    a_place_whose_operation_is_gone_is_given_up
    a_policy_that_comes_later_counts_what_is_under_way
    what_is_given_up_is_not_started
    an_operation_of_that_name_that_differs_is_left_alone
    a_leader_that_was_paused_after_its_claim_starts_nothing
    an_act_that_takes_too_long_is_asked_after
    a_person_can_end_an_operation_that_has_no_driver
    a_target_that_was_labelled_is_requested_again
    who_waits_is_written_to_once_however_many_end_meanwhile
    a_running_operation_that_is_deleted_stays_until_its_act_ended
    an_unknown_operation_that_is_deleted_stays_until_a_person_resolved_it
    a_waiting_operation_that_is_deleted_is_replaced
    a_finalizer_that_somebody_removed_is_added_again
    a_crash_at_any_call_around_a_deletion_starts_an_act_once
}

mod scenarios {
    use super::*;

    pub(super) async fn the_intent_the_place_and_the_claim_are_written_before_the_act(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 3).await;
        shop.order("ann", "tea").await;
        let (operations, policies) = (shop.api::<Operation>(), shop.api::<OperationPolicy>());
        let seen = Arc::new(AtomicUsize::new(0));
        let look: ActHook = {
            let seen = seen.clone();
            Arc::new(move |id| {
                let (operations, policies, seen) = (operations.clone(), policies.clone(), seen.clone());
                async move {
                    let operation = operations.get(&id.key.name).await.expect("the intent");
                    assert_eq!(operation.spec.reason, "somebody ordered it");
                    let status = operation.status.expect("a status");
                    assert_eq!(status.phase, OperationPhase::Running);
                    assert!(status.started_at.is_some() && status.started_by.expect("a token").starts_with("ann/"));
                    assert_eq!(status.granted_by.as_deref(), Some("carries: 1 of 3"));
                    let policy = policies.get("carries").await.expect("the policy").status.expect("counts");
                    assert_eq!((policy.held, policy.holders[0].operation.as_str()), (1, &*id.key.name));
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                .boxed()
            })
        };
        let yard = DeliveredParcels::new(Style::Prompt);
        let _ann = shop.start_with("ann", &yard, Extras::look(look));
        let (operation, status) = shop.reaches("tea", OperationPhase::Succeeded).await;
        assert_eq!(seen.load(Ordering::SeqCst), 1, "the act looked and found it");
        assert_eq!(status.outcome.as_deref(), Some("tea is in the yard"));
        assert_eq!(operation.spec.requested_by, "ann");
        shop.held("carries", 0).await;
    }

    pub(super) async fn what_no_policy_names_waits_until_one_does(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Prompt);
        let _ann = shop.start("ann", &yard);
        let why = shop
            .until("the refusal is written", async || {
                let status = shop.operations("tea").await.pop()?.status?;
                let granted = condition(&status.conditions, names::GRANTED)?.clone();
                assert_eq!((status.phase, granted.status), (OperationPhase::Pending, Status::False));
                Some(granted)
            })
            .await;
        assert_eq!(why.reason, "NoMatchingPolicy");
        assert!(why.message.contains("OperationPolicy") && why.message.contains("Carry"), "{}", why.message);
        assert_eq!(yard.started(), []);
        shop.policy("carries", 1).await;
        shop.reaches("tea", OperationPhase::Succeeded).await;
    }

    pub(super) async fn a_crash_at_any_call_starts_an_act_once(test_server: TestServer) {
        let (mut call, mut crashes) = (0, 0);
        loop {
            let mut missed = 0;
            for side in [Side::Before, Side::After] {
                let shop = JournalFixture::new(&test_server).await;
                shop.policy("carries", 1).await;
                shop.order("ann", "tea").await;
                let yard = DeliveredParcels::new(Style::Prompt);
                let crash = Crash::at(call, side);
                let around = crash.clone();
                let first = shop.start_with("ann", &yard, Extras::between(move |client| around.wrap(client)));
                tokio::select! {
                    () = crash.wait_for_crash() => crashes += 1,
                    () = settled(&shop) => missed += 1,
                }
                drop(first);
                let _second = shop.start("ann", &yard);
                settled(&shop).await;
                let at = format!("crash {side} call {call} ({:?})", crash.crashed_call());
                assert_eq!(yard.arrived(), ["tea"], "{at}");
                assert_eq!(yard.started().len(), 1, "{at}: {:?}", yard.started());
                for operation in shop.operations("tea").await {
                    let phase = operation.status.expect("a status").phase;
                    let expected = if yard.started()[0].uid == operation.metadata.uid.unwrap_or_default() {
                        OperationPhase::Succeeded
                    } else {
                        OperationPhase::Failed
                    };
                    assert_eq!(phase, expected, "{at}");
                }
            }
            if missed == 2 {
                break;
            }
            call += 1;
        }
        eprintln!("crashed {crashes} times, before and after each of {call} calls");
        // A watch for each of three kinds; the policy observed; intent, place, grant, claim and outcome; the place given back.
        assert!(call >= 10, "{call}");
    }

    /// The parcel has arrived, its operation says so, and no place is held.
    async fn settled(shop: &JournalFixture) {
        shop.reaches("tea", OperationPhase::Succeeded).await;
        shop.held("carries", 0).await;
    }

    /// Forwards everything, and keeps back the answer to one write.
    struct DropOneAnswer {
        write: usize,
        writes: AtomicUsize,
    }

    impl Layer for DropOneAnswer {
        fn call(
            self: Arc<Self>,
            call: Call,
            request: http::Request<Body>,
            next_client: Client,
        ) -> BoxFuture<'static, CallResult> {
            async move {
                let lost = call.writes() && self.writes.fetch_add(1, Ordering::SeqCst) == self.write;
                let answer = forward(&next_client, request).await?;
                if lost { Err("the answer was lost".into()) } else { Ok(answer) }
            }
            .boxed()
        }
    }

    pub(super) async fn a_lost_answer_at_any_call_starts_an_act_once_and_its_outcome_is_written(
        test_server: TestServer,
    ) {
        for write in 0.. {
            let shop = JournalFixture::new(&test_server).await;
            shop.policy("carries", 1).await;
            shop.order("ann", "tea").await;
            let yard = DeliveredParcels::new(Style::Prompt);
            let deaf = Arc::new(DropOneAnswer { write, writes: AtomicUsize::new(0) });
            let layer = deaf.clone();
            let _ann = shop.start_with("ann", &yard, Extras::between(move |client| wrap(client, layer)));
            settled(&shop).await;
            let operations = shop.operations("tea").await;
            assert_eq!((operations.len(), yard.started().len()), (1, 1), "the answer to write {write} was lost");
            if deaf.writes.load(Ordering::SeqCst) <= write {
                assert!(write >= 7, "the act took only {write} writes");
                break;
            }
        }
    }

    pub(super) async fn two_drivers_of_one_operation_start_it_once(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 5).await;
        let yard = DeliveredParcels::new(Style::Slow);
        let _first = shop.start("ann", &yard);
        let _second = shop.start("ann", &yard);
        let parcels: Vec<_> = (0..20).map(|number| format!("parcel-{number:02}")).collect();
        for parcel in &parcels {
            shop.order("ann", parcel).await;
        }
        for parcel in &parcels {
            shop.reaches(parcel, OperationPhase::Succeeded).await;
        }
        assert_eq!(yard.arrived(), parcels, "each once");
        assert!(yard.most_at_once() <= 5, "{} at once", yard.most_at_once());
        shop.held("carries", 0).await;
    }

    pub(super) async fn two_drivers_never_exceed_the_last_free_place(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        let yard = DeliveredParcels::new(Style::Slow);
        let _first = shop.start("ann", &yard);
        let _second = shop.start("bob", &yard);
        for number in 0..10 {
            shop.order("ann", &format!("from-ann-{number}")).await;
            shop.order("bob", &format!("from-bob-{number}")).await;
        }
        shop.until("all arrived", async || (yard.arrived().len() == 20).then_some(())).await;
        assert_eq!(yard.most_at_once(), 1);
        shop.held("carries", 0).await;
    }

    pub(super) async fn an_unknown_outcome_waits_for_a_person(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Vanishes);
        let ann = shop.start("ann", &yard);
        let (operation, status) = shop.reaches("tea", OperationPhase::Unknown).await;
        let name = operation.metadata.name.unwrap_or_default();
        let known = condition(&status.conditions, names::OUTCOME_KNOWN).expect("a condition");
        assert_eq!((known.status, known.reason.as_str()), (Status::False, "ManualResolutionRequired"));
        assert!(known.message.contains("the yard keeps no list"), "{}", known.message);
        assert_eq!(shop.held("carries", 1).await, std::slice::from_ref(&name), "what may go on holds its place");
        shop.until("somebody is called", async || {
            let events = shop.api::<Event>().list(&ListParams::default()).await.expect("events");
            events.into_iter().find(|event| {
                event.reason.as_deref() == Some("OutcomeUnknown") && event.involved_object.name.as_ref() == Some(&name)
            })
        })
        .await;
        assert!(matches!(yard.told("tea"), Some(Progress::NeedsPerson(_))), "{:?}", yard.told("tea"));
        let counted = |line: &str| ann.metrics.encode().lines().any(|counted| counted == line);
        assert!(counted(r#"fleetwright_operations{phase="Unknown",type="Carry"} 1"#), "{}", ann.metrics.encode());

        shop.merge::<Operation>(&name, json!({ "metadata": { "annotations": { names::OUTCOME: "done" } } })).await;
        shop.until("what is wrong with the word is said", async || {
            let status = shop.operations("tea").await.pop()?.status?;
            assert_eq!(status.phase, OperationPhase::Unknown);
            let known = condition(&status.conditions, names::OUTCOME_KNOWN)?;
            (known.reason == "InvalidOutcome" && known.message.contains("\"done\"")).then_some(())
        })
        .await;

        let annotations = json!({ names::OUTCOME: "Failed", names::OUTCOME_REASON: "the yard is empty" });
        shop.merge::<Operation>(&name, json!({ "metadata": { "annotations": annotations } })).await;
        let (_, status) = shop.reaches("tea", OperationPhase::Failed).await;
        assert!(status.outcome.as_deref().is_some_and(|why| why.ends_with(": the yard is empty")), "{status:?}");
        shop.held("carries", 0).await;
        assert_eq!(yard.started().len(), 1);
    }

    pub(super) async fn what_ended_is_forgotten_in_time_and_what_is_unknown_is_not(test_server: TestServer) {
        let mut shop = JournalFixture::new(&test_server).await;
        shop.clock = Clock::manual("2030-01-01T00:00:00Z".parse().expect("a time"));
        shop.policy("carries", 5).await;
        shop.order("ann", "tea").await;
        shop.order("bob", "salt").await;
        let (yard, lossy) = (DeliveredParcels::new(Style::Prompt), DeliveredParcels::new(Style::Vanishes));
        let _ann = shop.start("ann", &yard);
        let _bob = shop.start("bob", &lossy);
        let (_, tea) = shop.reaches("tea", OperationPhase::Succeeded).await;
        shop.reaches("salt", OperationPhase::Unknown).await;
        shop.held("carries", 1).await;

        let ended = tea.ended_at.expect("it ended");
        let early = ended.checked_add(Duration::from_secs(59 * 60)).expect("a time");
        shop.clock.advance(early.duration_since(shop.clock.now()).unsigned_abs());
        assert_eq!(shop.operations("tea").await.len(), 1, "it is kept for an hour");
        shop.clock.advance(Duration::from_secs(60));
        shop.until("tea is forgotten", async || shop.operations("tea").await.is_empty().then_some(())).await;
        shop.clock.advance(Duration::from_secs(24 * 3600));
        assert_eq!(shop.operations("salt").await.len(), 1, "what is unknown waits for ever");
        assert_eq!(yard.started().len(), 1, "what was forgotten was not wanted any more");
    }

    pub(super) async fn a_place_whose_operation_is_gone_is_given_up(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Vanishes);
        let ann = shop.start("ann", &yard);
        let (operation, _) = shop.reaches("tea", OperationPhase::Unknown).await;
        drop(ann);
        // Nobody watches while a person deletes both.
        shop.delete::<ConfigMap>("tea").await;
        let name = operation.metadata.name.unwrap_or_default();
        shop.delete::<Operation>(&name).await;
        assert_eq!(shop.operations("tea").await.len(), 1, "a deletion alone does not remove what was started");
        shop.merge::<Operation>(&name, json!({ "metadata": { "finalizers": null } })).await;
        assert_eq!(shop.operations("tea").await.len(), 0, "without an operator, a person removes the finalizer");
        shop.order("bob", "salt").await;
        let prompt = DeliveredParcels::new(Style::Prompt);
        let _bob = shop.start("bob", &prompt);
        shop.reaches("salt", OperationPhase::Succeeded).await;
        shop.held("carries", 0).await;
    }

    pub(super) async fn a_policy_that_comes_later_counts_what_is_under_way(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 5).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Held);
        let _ann = shop.start("ann", &yard);
        shop.reaches("tea", OperationPhase::Running).await;
        shop.policy("strict", 1).await;
        shop.held("strict", 1).await;
        shop.order("ann", "salt").await;
        let why = shop
            .until("salt waits", async || {
                let status = shop.operations("salt").await.pop()?.status?;
                condition(&status.conditions, names::GRANTED).cloned()
            })
            .await;
        assert_eq!((why.status, why.reason.as_str()), (Status::False, "LimitReached"), "{}", why.message);
        assert!(why.message.contains("OperationPolicy strict "), "{}", why.message);
        yard.open_door();
        let (_, status) = shop.reaches("salt", OperationPhase::Succeeded).await;
        // Each policy gives places back by a write of its own: salt passes as soon as strict did, when carries may still count tea.
        let granted = status.granted_by.as_deref();
        assert!(
            matches!(granted, Some("carries: 1 of 5; strict: 1 of 1" | "carries: 2 of 5; strict: 1 of 1")),
            "{granted:?}"
        );
        shop.held("carries", 0).await;
        shop.held("strict", 0).await;
    }

    pub(super) async fn what_is_given_up_is_not_started(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 0).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Prompt);
        let _ann = shop.start("ann", &yard);
        shop.until("tea waits", async || {
            let status = shop.operations("tea").await.pop()?.status?;
            condition(&status.conditions, names::GRANTED).cloned()
        })
        .await;
        shop.merge::<ConfigMap>("tea", json!({ "data": { "withdrawn": "yes" } })).await;
        let (_, status) = shop.reaches("tea", OperationPhase::Failed).await;
        assert!(status.outcome.as_deref().is_some_and(|why| why.ends_with(": nobody wants it")), "{status:?}");
        shop.merge::<OperationPolicy>("carries", json!({ "spec": { "max": 1 } })).await;
        shop.order("ann", "salt").await;
        shop.reaches("salt", OperationPhase::Succeeded).await;
        assert_eq!(yard.arrived(), ["salt"]);
    }

    pub(super) async fn an_operation_of_that_name_that_differs_is_left_alone(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Prompt);
        {
            let _ann = shop.start("ann", &yard);
            shop.reaches("tea", OperationPhase::Succeeded).await;
        }
        // Bob finds that ann has done what is asked of him. That is for people to sort out.
        let yard = DeliveredParcels::new(Style::Prompt);
        let labels = json!({ "metadata": { "labels": { "porter": "bob" } } });
        shop.merge::<ConfigMap>("tea", labels).await;
        let _bob = shop.start("bob", &yard);
        shop.until("the trouble is told", async || {
            let events = shop.api::<Event>().list(&ListParams::default()).await.expect("events");
            events.into_iter().find(|event| event.reason.as_deref() == Some("OperationConflict"))
        })
        .await;
        assert_eq!(yard.started(), []);
    }

    /// A process that is stopped while the answer to its claim is on the way, and resumes on a signal.
    struct PauseOneAnswer {
        clock: Clock,
        claimed: watch::Sender<bool>,
        goes_on: watch::Sender<bool>,
    }

    impl Layer for PauseOneAnswer {
        fn call(
            self: Arc<Self>,
            call: Call,
            request: http::Request<Body>,
            next_client: Client,
        ) -> BoxFuture<'static, CallResult> {
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let claim = call.writes() && String::from_utf8_lossy(&body).contains("\"Running\"");
                let answer = forward(&next_client, http::Request::from_parts(head, Body::from(body.to_vec()))).await;
                if claim && !self.claimed.send_replace(true) {
                    self.clock.advance(Duration::from_secs(60));
                }
                if *self.claimed.borrow() {
                    let _ = self.goes_on.subscribe().wait_for(|goes_on| *goes_on).await;
                }
                answer
            }
            .boxed()
        }
    }

    pub(super) async fn a_leader_that_was_paused_after_its_claim_starts_nothing(test_server: TestServer) {
        let mut shop = JournalFixture::new(&test_server).await;
        shop.clock = Clock::manual("2030-01-01T00:00:00Z".parse().expect("a time"));
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let (paused, healthy) = (DeliveredParcels::new(Style::Prompt), DeliveredParcels::new(Style::Prompt));
        let layer = Arc::new(PauseOneAnswer {
            clock: shop.clock.clone(),
            claimed: watch::Sender::new(false),
            goes_on: watch::Sender::new(false),
        });
        let pause = layer.clone();
        let first = Extras::between(move |client| wrap(client, pause)).leads_as("first");
        let first = shop.start_with("ann", &paused, first);
        shop.until("the first has claimed", async || {
            shop.operations("tea").await;
            layer.claimed.borrow().then_some(())
        })
        .await;
        let _second = shop.start_with("ann", &healthy, Extras::default().leads_as("second"));
        let (_, status) = shop.reaches("tea", OperationPhase::Succeeded).await;
        assert!(status.started_by.is_some_and(|token| token.starts_with("second/")));
        layer.goes_on.send_replace(true);
        shop.until("the first gives up", async || first.has_ended().then_some(())).await;
        assert_eq!((paused.started().len(), healthy.started().len()), (0, 1));
        let (_, claimed) = shop.reaches("tea", OperationPhase::Failed).await;
        assert!(claimed.started_by.is_some_and(|token| token.starts_with("first/")));
        assert_eq!(condition(&claimed.conditions, names::OUTCOME_KNOWN).expect("known").reason, "NeverStarted");
    }

    pub(super) async fn an_act_that_takes_too_long_is_asked_after(test_server: TestServer) {
        let mut shop = JournalFixture::new(&test_server).await;
        shop.clock = Clock::manual("2030-01-01T00:00:00Z".parse().expect("a time"));
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Held);
        let _ann = shop.start("ann", &yard);
        shop.until("it is started", async || (yard.started().len() == 1).then_some(())).await;
        shop.clock.advance(Duration::from_secs(300));
        shop.until("it is asked after", async || {
            matches!(yard.told("tea"), Some(Progress::Running { .. })).then_some(())
        })
        .await;
        shop.reaches("tea", OperationPhase::Running).await;
        yard.bring_in("tea");
        shop.clock.advance(Duration::from_secs(60));
        let (_, status) = shop.reaches("tea", OperationPhase::Succeeded).await;
        assert_eq!(status.outcome.as_deref(), Some("the yard has it"));
        assert_eq!(yard.started().len(), 1);
    }

    pub(super) async fn a_person_can_end_an_operation_that_has_no_driver(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Held);
        let ann = shop.start("ann", &yard);
        let (operation, _) = shop.reaches("tea", OperationPhase::Running).await;
        drop(ann);
        shop.delete::<ConfigMap>("tea").await;
        let _ann = shop.start("ann", &yard);
        let name = operation.metadata.name.unwrap_or_default();
        shop.merge::<Operation>(&name, json!({ "metadata": { "annotations": { names::OUTCOME: "Failed" } } })).await;
        let (_, status) = shop.reaches("tea", OperationPhase::Failed).await;
        let known = condition(&status.conditions, names::OUTCOME_KNOWN).expect("known");
        assert_eq!(known.reason, "ManuallyResolved", "{status:?}");
        shop.held("carries", 0).await;
    }

    pub(super) async fn a_target_that_was_labelled_is_requested_again(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        let spec = json!({ "operations": ["Carry"], "scope": { "by": "zone" }, "max": 1 });
        shop.create::<OperationPolicy>(json!({ "metadata": { "name": "zones" }, "spec": spec })).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Prompt);
        let _ann = shop.start("ann", &yard);
        shop.until("it waits for a label", async || {
            let status = shop.operations("tea").await.pop()?.status?;
            condition(&status.conditions, names::GRANTED)
                .filter(|granted| granted.reason == "ScopeLabelMissing")
                .cloned()
        })
        .await;
        // The porter takes a parcel's data for its labels.
        shop.merge::<ConfigMap>("tea", json!({ "data": { "zone": "z1" } })).await;
        let (operation, status) = shop.reaches("tea", OperationPhase::Succeeded).await;
        assert_eq!(status.granted_by.as_deref(), Some("zones: 1 of 1 in zone=z1"));
        assert_eq!(operation.spec.target.labels["zone"], "z1");
        assert_eq!(shop.operations("tea").await.len(), 1);
    }

    pub(super) async fn who_waits_is_written_to_once_however_many_end_meanwhile(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        let recorder = Recorder::default();
        let calls = recorder.clone();
        let yard = DeliveredParcels::new(Style::Slow);
        let _ann = shop.start_with("ann", &yard, Extras::between(move |client| calls.wrap(client)));
        let parcels: Vec<_> = (0..10).map(|number| format!("parcel-{number}")).collect();
        for parcel in &parcels {
            shop.order("ann", parcel).await;
        }
        for parcel in &parcels {
            shop.reaches(parcel, OperationPhase::Succeeded).await;
        }
        shop.held("carries", 0).await;
        let mut writes = BTreeMap::<String, usize>::new();
        for record in recorder.calls().iter().filter(|record| record.call.writes() && record.code == Some(200)) {
            if record.call.resource.starts_with("operations") {
                *writes.entry(record.call.name.clone()).or_default() += 1;
            }
        }
        // Refused because the policy is new, refused because it is full, granted, claimed, ended.
        assert!(writes.values().all(|count| *count <= 5), "{writes:?}");
        assert_eq!(writes.len(), parcels.len());
    }

    /// The one operation on a parcel, which somebody deleted and which is still there.
    async fn terminating(shop: &JournalFixture, parcel: &str) -> Operation {
        let operation = shop.operations(parcel).await.pop().expect("it stays");
        assert!(operation.metadata.deletion_timestamp.is_some(), "{:?}", operation.metadata);
        operation
    }

    async fn removed(shop: &JournalFixture, parcel: &str) {
        shop.until("the operation is removed", async || shop.operations(parcel).await.is_empty().then_some(())).await;
    }

    pub(super) async fn a_running_operation_that_is_deleted_stays_until_its_act_ended(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Held);
        let _ann = shop.start("ann", &yard);
        let (operation, _) = shop.reaches("tea", OperationPhase::Running).await;
        let name = operation.metadata.name.unwrap_or_default();
        assert_eq!(operation.metadata.finalizers.unwrap_or_default(), [names::OPERATION_FINALIZER]);
        shop.until("it is started", async || (yard.started().len() == 1).then_some(())).await;
        shop.delete::<Operation>(&name).await;
        // As `kubectl delete --all`, and as often as somebody likes.
        shop.api::<Operation>()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .expect("deleted");
        // What comes later waits: the deleted one still holds its place.
        shop.order("ann", "salt").await;
        let why = shop
            .until("salt waits", async || {
                let status = shop.operations("salt").await.pop()?.status?;
                condition(&status.conditions, names::GRANTED).cloned()
            })
            .await;
        assert_eq!((why.status, why.reason.as_str()), (Status::False, "LimitReached"), "{}", why.message);
        assert_eq!(terminating(&shop, "tea").await.status.expect("a status").phase, OperationPhase::Running);
        assert_eq!(shop.held("carries", 1).await, [name]);
        yard.open_door();
        removed(&shop, "tea").await;
        shop.reaches("salt", OperationPhase::Succeeded).await;
        shop.held("carries", 0).await;
        assert_eq!(yard.arrived(), ["salt", "tea"], "each once");
    }

    pub(super) async fn an_unknown_operation_that_is_deleted_stays_until_a_person_resolved_it(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 5).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Vanishes);
        let ann = shop.start("ann", &yard);
        let (operation, _) = shop.reaches("tea", OperationPhase::Unknown).await;
        let name = operation.metadata.name.unwrap_or_default();
        shop.delete::<Operation>(&name).await;
        drop(ann);
        // A new process, which remembers nothing, and which has come as far as another act of the same kind.
        let _ann = shop.start("ann", &yard);
        shop.order("ann", "salt").await;
        shop.reaches("salt", OperationPhase::Unknown).await;
        assert_eq!(terminating(&shop, "tea").await.status.expect("a status").phase, OperationPhase::Unknown);
        shop.held("carries", 2).await;
        let started = || yard.started().into_iter().filter(|id| *id.key.name == *name).count();
        assert_eq!(started(), 1, "it is not started again");
        shop.delete::<ConfigMap>("tea").await;
        let annotations = json!({ names::OUTCOME: "Failed", names::OUTCOME_REASON: "the yard is empty" });
        shop.merge::<Operation>(&name, json!({ "metadata": { "annotations": annotations } })).await;
        removed(&shop, "tea").await;
        shop.held("carries", 1).await;
        assert_eq!(started(), 1);
    }

    pub(super) async fn a_waiting_operation_that_is_deleted_is_replaced(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 0).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Prompt);
        let _ann = shop.start("ann", &yard);
        async fn waiting(shop: &JournalFixture) -> Option<Operation> {
            shop.operations("tea").await.pop().filter(|op| op.status.is_some())
        }
        let first = shop.until("tea waits", async || waiting(&shop).await).await.metadata;
        shop.delete::<Operation>(first.name.as_deref().unwrap_or_default()).await;
        shop.until("a new one waits", async || waiting(&shop).await.filter(|op| op.metadata.uid != first.uid)).await;
        assert_eq!(yard.started(), []);
        shop.merge::<OperationPolicy>("carries", json!({ "spec": { "max": 1 } })).await;
        shop.reaches("tea", OperationPhase::Succeeded).await;
        assert_eq!(yard.started().len(), 1);
    }

    pub(super) async fn a_finalizer_that_somebody_removed_is_added_again(test_server: TestServer) {
        let shop = JournalFixture::new(&test_server).await;
        shop.policy("carries", 1).await;
        shop.order("ann", "tea").await;
        let yard = DeliveredParcels::new(Style::Held);
        let _ann = shop.start("ann", &yard);
        let (operation, _) = shop.reaches("tea", OperationPhase::Running).await;
        let name = operation.metadata.name.unwrap_or_default();
        shop.merge::<Operation>(&name, json!({ "metadata": { "finalizers": null } })).await;
        shop.until("it is protected again", async || {
            let finalizers = shop.operations("tea").await.pop()?.metadata.finalizers?;
            (finalizers == [names::OPERATION_FINALIZER]).then_some(())
        })
        .await;
        shop.delete::<Operation>(&name).await;
        terminating(&shop, "tea").await;
        yard.open_door();
        removed(&shop, "tea").await;
        assert_eq!((yard.started().len(), yard.arrived()), (1, vec!["tea".to_owned()]));
    }

    pub(super) async fn a_crash_at_any_call_around_a_deletion_starts_an_act_once(test_server: TestServer) {
        let (mut call, mut crashes) = (0, 0);
        loop {
            let mut missed = 0;
            for side in [Side::Before, Side::After] {
                let shop = JournalFixture::new(&test_server).await;
                shop.policy("carries", 1).await;
                shop.order("ann", "tea").await;
                let yard = DeliveredParcels::new(Style::Prompt);
                // Somebody deletes the Operation while its act runs. By the test's own runtime: a crash of the operator does not stop it.
                let (deleted, api) = (Arc::new(AtomicUsize::new(0)), shop.api::<Operation>());
                let look: ActHook = {
                    let (deleted, here) = (deleted.clone(), tokio::runtime::Handle::current());
                    Arc::new(move |id| {
                        let (deleted, api) = (deleted.clone(), api.clone());
                        here.spawn(async move {
                            api.delete(&id.key.name, &DeleteParams::default()).await.expect("deleted");
                            deleted.fetch_add(1, Ordering::SeqCst);
                        });
                        std::future::ready(()).boxed()
                    })
                };
                let settled = async || {
                    shop.until("the act is done and its operation is removed", async || {
                        let left = shop.operations("tea").await;
                        // An Operation whose act turned out never to have started is kept; it was not deleted.
                        let ended = left.iter().all(|op| {
                            let over = op.status.as_ref().is_some_and(|status| status.phase == OperationPhase::Failed);
                            over && op.metadata.deletion_timestamp.is_none()
                        });
                        (ended && deleted.load(Ordering::SeqCst) == 1 && yard.arrived() == ["tea"]).then_some(())
                    })
                    .await;
                    shop.held("carries", 0).await;
                };
                let crash = Crash::at(call, side);
                let around = crash.clone();
                let first = Extras::between(move |client| around.wrap(client)).and_look(look.clone());
                let first = shop.start_with("ann", &yard, first);
                tokio::select! {
                    () = crash.wait_for_crash() => crashes += 1,
                    () = settled() => missed += 1,
                }
                drop(first);
                let _second = shop.start_with("ann", &yard, Extras::look(look));
                settled().await;
                let at = format!("crash {side} call {call} ({:?})", crash.crashed_call());
                assert_eq!((yard.started().len(), yard.arrived()), (1, vec!["tea".to_owned()]), "{at}");
            }
            if missed == 2 {
                break;
            }
            call += 1;
        }
        eprintln!("crashed {crashes} times, before and after each of {call} calls");
        // As without a deletion, and the finalizer that is removed.
        assert!(call >= 10, "{call}");
    }
}
