use proptest::prelude::*;

use super::*;
use crate::gate::RefusalReason;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn status(phase: OperationPhase) -> OperationStatus {
    OperationStatus { phase, ..OperationStatus::default() }
}

fn running() -> OperationStatus {
    claimed(&granted(&status(OperationPhase::Pending), "drains: 1 of 5", NOW), "leader/1", NOW)
}

fn written(step: OperationStep) -> OperationStatus {
    match step {
        OperationStep::Record(status) | OperationStep::RecordManualOutcome(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn full(count: usize, limit: usize) -> Refusal {
    let rule = "OperationPolicy drains allows 5%".to_owned();
    Refusal { why: RefusalReason::LimitReached, by: Some("drains".to_owned()), rule, count, limit, until: None }
}

fn annotated(outcome: &str, because: Option<&str>) -> ManualOutcome {
    let mut annotations = BTreeMap::from([(names::OUTCOME.to_owned(), outcome.to_owned())]);
    annotations.extend(because.map(|text| (names::OUTCOME_REASON.to_owned(), text.to_owned())));
    ManualOutcome::read(&annotations)
}

#[test]
fn an_act_is_started_only_by_the_process_that_claimed_it_and_has_not_started_it() {
    let running = running();
    for (memory, expected) in [
        (AttemptState::Claimed, OperationStep::Start),
        (AttemptState::Starting, OperationStep::Wait),
        (AttemptState::Foreign, OperationStep::Probe),
        (AttemptState::Lost, OperationStep::Probe),
        (AttemptState::Ended(CallOutcome::Unknown("connection lost".to_owned())), OperationStep::Probe),
    ] {
        assert_eq!(next(&running, &memory, &ManualOutcome::Unset, NOW), expected, "{memory:?}");
    }
}

#[test]
fn what_the_act_came_back_with_is_its_outcome() {
    let done = written(next(
        &running(),
        &AttemptState::Ended(CallOutcome::Done("3 pods moved".into())),
        &ManualOutcome::Unset,
        NOW,
    ));
    assert_eq!((done.phase, done.outcome.as_deref()), (OperationPhase::Succeeded, Some("3 pods moved")));
    assert_eq!(done.ended_at, Some(NOW));
    let failed = written(next(
        &running(),
        &AttemptState::Ended(CallOutcome::Failed("no disk".into())),
        &ManualOutcome::Unset,
        NOW,
    ));
    assert_eq!((failed.phase, failed.outcome.as_deref()), (OperationPhase::Failed, Some("no disk")));
}

#[test]
fn a_refusal_is_written_once_whatever_the_counts_are() {
    let first = refused(&status(OperationPhase::Pending), &full(5, 5), NOW).expect("it is news");
    let granted = condition(&first.conditions, names::GRANTED).unwrap();
    assert_eq!((granted.status, granted.reason.as_str()), (Status::False, "LimitReached"));
    assert!(granted.message.contains("5 of 5"), "{}", granted.message);
    assert_eq!(refused(&first, &full(7, 6), NOW), None);
    let other = Refusal { rule: "OperationPolicy racks allows 1".to_owned(), ..full(1, 1) };
    assert!(refused(&first, &other, NOW).is_some(), "another rule is news");
}

#[test]
fn an_outcome_that_cannot_be_known_waits_for_a_person_and_says_how_to_tell() {
    let unknown = probed(&running(), &ProbeResult::Unknowable("the host is gone".to_owned()), NOW).unwrap();
    assert_eq!(unknown.phase, OperationPhase::Unknown);
    let known = condition(&unknown.conditions, names::OUTCOME_KNOWN).unwrap();
    assert_eq!(known.status, Status::False);
    assert!(known.message.contains("the host is gone"), "{}", known.message);
    assert!(known.message.contains("fleetwright.io/outcome=Succeeded"), "{}", known.message);
    assert_eq!(next(&unknown, &AttemptState::Foreign, &ManualOutcome::Unset, NOW), OperationStep::WaitForPerson);
    assert_eq!(unknown.ended_at, None);
}

#[test]
fn a_persons_word_ends_what_is_unknown() {
    let unknown = probed(&running(), &ProbeResult::Unknowable("the host is gone".to_owned()), NOW).unwrap();
    let said = annotated("Succeeded", Some("I looked: node is drained"));
    let ended = written(next(&unknown, &AttemptState::Foreign, &said, NOW));
    assert_eq!(ended.phase, OperationPhase::Succeeded);
    assert!(ended.outcome.as_deref().is_some_and(|why| why.ends_with(": I looked: node is drained")), "{ended:?}");
    let ended = written(next(&unknown, &AttemptState::Foreign, &annotated("Failed", None), NOW));
    let known = condition(&ended.conditions, names::OUTCOME_KNOWN).unwrap();
    assert_eq!((ended.phase, known.reason.as_str()), (OperationPhase::Failed, MANUALLY_RESOLVED));
}

#[test]
fn a_word_that_is_not_understood_is_named_once_with_what_is_allowed() {
    let unknown = probed(&running(), &ProbeResult::Unknowable("the host is gone".to_owned()), NOW).unwrap();
    let said = annotated("done", None);
    let told = written(next(&unknown, &AttemptState::Foreign, &said, NOW));
    let known = condition(&told.conditions, names::OUTCOME_KNOWN).unwrap();
    assert_eq!((told.phase, known.reason.as_str()), (OperationPhase::Unknown, INVALID_OUTCOME));
    assert!(known.message.contains("\"done\"") && known.message.contains("Succeeded or Failed"), "{}", known.message);
    assert_eq!(next(&told, &AttemptState::Foreign, &said, NOW), OperationStep::WaitForPerson);
}

#[test]
fn a_persons_word_keeps_from_being_started_what_was_not_started_yet() {
    let step = next(&running(), &AttemptState::Claimed, &annotated("Failed", Some("do not")), NOW);
    assert_eq!(written(step).phase, OperationPhase::Failed);
}

#[test]
fn a_persons_word_does_not_interrupt_an_act_that_is_being_started() {
    assert_eq!(next(&running(), &AttemptState::Starting, &annotated("Failed", None), NOW), OperationStep::Wait);
}

#[test]
fn a_person_may_end_what_the_world_never_answers_for() {
    let asked = probed(&running(), &ProbeResult::NoAnswer("connection refused".to_owned()), NOW).unwrap();
    assert_eq!(asked.phase, OperationPhase::Running);
    assert_eq!(probed(&asked, &ProbeResult::NoAnswer("timed out".to_owned()), NOW), None, "said once");
    let ended = written(next(&asked, &AttemptState::Foreign, &annotated("Failed", Some("burnt down")), NOW));
    assert_eq!(ended.phase, OperationPhase::Failed);
}

#[test]
fn what_never_began_is_failed_and_says_so() {
    let ended = probed(&running(), &ProbeResult::NeverStarted, NOW).unwrap();
    assert_eq!(ended.phase, OperationPhase::Failed);
    assert_eq!(condition(&ended.conditions, names::OUTCOME_KNOWN).unwrap().reason, NEVER_STARTED);
}

#[test]
fn only_what_was_not_started_can_be_given_up() {
    for phase in [OperationPhase::Pending, OperationPhase::Granted] {
        assert_eq!(withdrawn(&status(phase), "changed back", NOW).unwrap().phase, OperationPhase::Failed);
    }
    for phase in [OperationPhase::Running, OperationPhase::Unknown, OperationPhase::Succeeded, OperationPhase::Failed] {
        assert_eq!(withdrawn(&status(phase), "changed back", NOW), None, "{phase:?}");
    }
}

#[test]
fn only_what_ended_is_forgotten() {
    let keep = Duration::from_secs(60);
    assert_eq!(prune_at(&running(), keep), None);
    let unknown = probed(&running(), &ProbeResult::Unknowable("gone".to_owned()), NOW).unwrap();
    assert_eq!(prune_at(&unknown, keep), None);
    let ended = probed(&running(), &ProbeResult::Succeeded("done".to_owned()), NOW).unwrap();
    assert_eq!(prune_at(&ended, keep), Some(Timestamp::from_second(60).unwrap()));
    assert_eq!(prune_at(&ended, Duration::MAX), Some(Timestamp::MAX), "for ever");
}

fn any_phase() -> impl Strategy<Value = OperationPhase> {
    use OperationPhase::{Failed, Granted, Pending, Running, Succeeded, Unknown};
    prop::sample::select(vec![Pending, Granted, Running, Succeeded, Failed, Unknown])
}

fn any_memory() -> impl Strategy<Value = AttemptState> {
    let ending = prop::sample::select(vec![
        CallOutcome::Done("d".to_owned()),
        CallOutcome::Failed("f".to_owned()),
        CallOutcome::Unknown("u".to_owned()),
    ]);
    prop_oneof![
        Just(AttemptState::Foreign),
        Just(AttemptState::Claimed),
        Just(AttemptState::Starting),
        Just(AttemptState::Lost),
        ending.prop_map(AttemptState::Ended)
    ]
}

proptest! {
    #[test]
    fn nothing_is_started_but_what_is_running_and_claimed_here(
        phase in any_phase(), memory in any_memory(), outcome in ".{0,9}|Succeeded|Failed"
    ) {
        let said = annotated(&outcome, None);
        let step = next(&status(phase), &memory, &said, NOW);
        let told = matches!(said, ManualOutcome::Succeeded(_) | ManualOutcome::Failed(_));
        prop_assert_eq!(step == OperationStep::Start, phase == OperationPhase::Running && memory == AttemptState::Claimed && !told);
        prop_assert_eq!(step == OperationStep::Ended, phase.ended());
        if let OperationStep::Record(status) | OperationStep::RecordManualOutcome(status) = step {
            prop_assert!(status.phase.ended() || status.phase == OperationPhase::Unknown);
            prop_assert_eq!(status.phase.ended(), status.ended_at.is_some() && status.outcome.is_some());
        }
    }

    #[test]
    fn texts_of_others_never_grow_beyond_what_a_person_reads(text in ".{0,3000}") {
        let ended = probed(&running(), &ProbeResult::Failed(text.clone()), NOW).unwrap();
        prop_assert!(ended.outcome.unwrap().chars().count() <= 1024);
        if let Some(asked) = probed(&running(), &ProbeResult::Unknowable(text), NOW) {
            prop_assert!(asked.conditions.iter().all(|condition| condition.message.chars().count() < 1400));
        }
    }
}

#[test]
fn what_was_started_is_not_removed_before_its_outcome_is_known() {
    use OperationPhase::{Failed, Granted, Pending, Running, Succeeded, Unknown};
    for (phase, removed) in
        [(Pending, true), (Granted, true), (Running, false), (Unknown, false), (Succeeded, true), (Failed, true)]
    {
        assert_eq!(may_be_removed(&status(phase)), removed, "{phase:?}");
    }
}
