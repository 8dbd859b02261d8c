use fleetwright_api::{Condition, PolicyScope};
use proptest::prelude::*;

use super::*;

/// Number of machines for each value of any label, ten times as many in all.
struct Fleet(Option<usize>);

impl Population for Fleet {
    fn count(&self, label: Option<(&str, &str)>) -> Option<usize> {
        self.0.map(|each| if label.is_some() { each } else { each * 10 })
    }
}

#[derive(Clone, Debug)]
struct Owned {
    name: String,
    spec: OperationPolicySpec,
    status: OperationPolicyStatus,
}

impl Owned {
    fn new(name: &str, types: &[&str], scope: Option<&str>, max: Amount) -> Self {
        let spec = OperationPolicySpec {
            operations: types.iter().map(|&t| t.to_owned()).collect(),
            scope: scope.map(|by| PolicyScope { by: by.to_owned() }),
            max,
            at_least: 1,
        };
        let mut policy = Self { name: name.to_owned(), spec, status: OperationPolicyStatus::default() };
        policy.status = keep_true(policy.get(), &[], &BTreeSet::new(), Timestamp::UNIX_EPOCH);
        policy
    }

    fn held_by(mut self, holders: &[(&str, &str)]) -> Self {
        self.status.holders = holders.iter().map(|(operation, scope)| holder(operation, scope)).collect();
        self
    }

    fn get(&self) -> Policy<'_> {
        Policy { name: &self.name, generation: Some(1), spec: &self.spec, status: &self.status }
    }
}

fn holder(operation: &str, scope: &str) -> Holder {
    Holder { operation: operation.to_owned(), uid: format!("uid-{operation}"), scope: scope.to_owned() }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn ask_for(
    operation: &str,
    labels: &BTreeMap<String, String>,
    policies: &[Owned],
    machines: Option<usize>,
) -> GateAnswer {
    let uid = format!("uid-{operation}");
    let request = Request { operation, uid: &uid, type_: "Drain", labels };
    judge(request, policies.iter().map(Owned::get), &Fleet(machines))
}

fn refusal(verdict: GateAnswer) -> Refusal {
    match verdict {
        GateAnswer::Refused(refusal) => refusal,
        GateAnswer::Granted { by, .. } => panic!("granted by {by}"),
    }
}

fn granted_by(verdict: GateAnswer) -> String {
    match verdict {
        GateAnswer::Granted { by, .. } => by,
        GateAnswer::Refused(refusal) => panic!("refused: {refusal}"),
    }
}

#[test]
fn what_no_policy_names_is_refused_and_the_refusal_asks_for_a_policy() {
    let reboots = Owned::new("reboots", &["Reboot"], None, Amount::Count(9));
    let refusal = refusal(ask_for("a", &labels(&[]), &[reboots], None));
    assert_eq!(refusal.why, RefusalReason::NoMatchingPolicy);
    let text = refusal.to_string();
    assert!(text.contains("OperationPolicy") && text.contains("Drain"), "{text}");
}

#[test]
fn a_grant_says_by_which_rules_and_at_what_count() {
    let zones = Owned::new("drains", &["Drain"], Some("zone"), Amount::Percent(5)).held_by(&[("b", "z1"), ("c", "z2")]);
    let all = Owned::new("all", &["Drain", "Reboot"], None, Amount::Count(20)).held_by(&[("b", ""), ("c", "")]);
    let by = granted_by(ask_for("a", &labels(&[("zone", "z1")]), &[zones, all], Some(100)));
    assert_eq!(by, "all: 3 of 20; drains: 2 of 5 in zone=z1");
}

#[test]
fn all_policies_that_name_the_type_must_have_room() {
    let room = Owned::new("a-room", &["Drain"], None, Amount::Count(9));
    let full = Owned::new("b-full", &["Drain"], None, Amount::Count(1)).held_by(&[("b", "")]);
    let refusal = refusal(ask_for("a", &labels(&[]), &[room, full], None));
    assert_eq!((refusal.why, refusal.by.as_deref()), (RefusalReason::LimitReached, Some("b-full")));
    assert_eq!((refusal.count, refusal.limit), (1, 1));
    let text = refusal.to_string();
    assert!(text.contains("OperationPolicy b-full ") && text.contains("1 of 1"), "{text}");
}

#[test]
fn what_cannot_be_counted_does_not_pass() {
    let percent = Owned::new("drains", &["Drain"], Some("zone"), Amount::Percent(5));
    let unknown = refusal(ask_for("a", &labels(&[("zone", "z1")]), std::slice::from_ref(&percent), None));
    assert_eq!(unknown.why, RefusalReason::TargetCountUnknown);
    let unlabelled = refusal(ask_for("a", &labels(&[("rack", "r1")]), &[percent], Some(100)));
    assert_eq!(unlabelled.why, RefusalReason::ScopeLabelMissing);
    assert!(unlabelled.to_string().contains("label zone"), "{unlabelled}");
}

#[test]
fn a_policy_that_changed_lets_nothing_pass_until_its_counts_follow() {
    let mut policy = Owned::new("drains", &["Drain"], None, Amount::Count(5));
    policy.status.observed_generation = Some(0);
    assert_eq!(
        refusal(ask_for("a", &labels(&[]), std::slice::from_ref(&policy), None)).why,
        RefusalReason::PolicyNotObserved
    );
    policy.status = keep_true(policy.get(), &[], &BTreeSet::new(), Timestamp::UNIX_EPOCH);
    assert_eq!(granted_by(ask_for("a", &labels(&[]), &[policy], None)), "drains: 1 of 5");
}

#[test]
fn a_policy_that_is_not_understood_lets_nothing_pass() {
    let policy = Owned::new("drains", &["Drain"], Some(""), Amount::Count(5));
    let accepted: &Condition = condition(&policy.status.conditions, names::ACCEPTED).unwrap();
    assert_eq!(accepted.status, Status::False);
    assert!(accepted.message.contains("spec.scope.by"), "{}", accepted.message);
    assert_eq!(refusal(ask_for("a", &labels(&[]), &[policy], None)).why, RefusalReason::PolicyNotAccepted);
}

#[test]
fn a_place_that_is_held_stays_ones_own_when_the_limit_falls() {
    let mut policy = Owned::new("drains", &["Drain"], None, Amount::Count(2)).held_by(&[("a", ""), ("b", "")]);
    policy.spec.max = Amount::Count(1);
    assert_eq!(granted_by(ask_for("a", &labels(&[]), std::slice::from_ref(&policy), None)), "drains: 2 of 1");
    assert_eq!(refusal(ask_for("c", &labels(&[]), &[policy], None)).why, RefusalReason::LimitReached);
}

#[test]
fn a_place_of_one_that_is_gone_is_no_place_of_a_later_one_of_that_name() {
    let mut policy = Owned::new("drains", &["Drain"], None, Amount::Count(1)).held_by(&[("a", "")]);
    policy.status.holders[0].uid = "older".to_owned();
    let GateAnswer::Granted { places, .. } = ask_for("a", &labels(&[]), std::slice::from_ref(&policy), None) else {
        panic!("refused")
    };
    assert!(!places[0].held, "it must be written, or whoever forgets the older one would free it");
    assert_eq!(take(&policy.status, &places[0].holder), [holder("a", "")]);
}

#[test]
fn no_more_pass_than_a_policy_can_list() {
    let mut policy = Owned::new("drains", &["Drain"], Some("zone"), Amount::Count(1));
    policy.status.holders = (0..4096).map(|n| holder(&format!("op-{n}"), &format!("z{n}"))).collect();
    let refusal = refusal(ask_for("a", &labels(&[("zone", "empty")]), &[policy], None));
    assert_eq!(refusal.why, RefusalReason::LimitReached);
    assert!(refusal.to_string().contains("4096"), "{refusal}");
}

#[test]
fn the_counts_follow_what_ended_what_is_gone_and_what_is_under_way() {
    let policy = Owned::new("drains", &["Drain"], Some("zone"), Amount::Count(2)).held_by(&[
        ("ended", "z1"),
        ("gone", "z1"),
        ("waits", "z1"),
        ("moved", "old-scope"),
        ("other", "z1"),
    ]);
    let zone = labels(&[("zone", "z2")]);
    let op = |name, uid, type_, phase| ActiveOperation { name, uid, type_, labels: &zone, phase };
    let operations = [
        op("ended", "uid-ended", "Drain", OperationPhase::Succeeded),
        op("waits", "uid-waits", "Drain", OperationPhase::Pending),
        op("moved", "uid-moved", "Drain", OperationPhase::Running),
        op("other", "uid-other", "Reboot", OperationPhase::Running),
        op("early", "uid-early", "Drain", OperationPhase::Unknown),
    ];
    let status = keep_true(policy.get(), &operations, &BTreeSet::new(), Timestamp::UNIX_EPOCH);
    assert_eq!(status.holders, [holder("waits", "z2"), holder("moved", "z2"), holder("early", "z2")]);
    assert_eq!(status.held, 3);
    let again = keep_true(Policy { status: &status, ..policy.get() }, &operations, &BTreeSet::new(), Timestamp::MAX);
    assert_eq!(again, status, "nothing changed, nothing is written");
}

#[test]
fn who_was_not_asked_for_keeps_its_place_and_nothing_passes_meanwhile() {
    let mut policy = Owned::new("drains", &["Drain"], None, Amount::Count(5)).held_by(&[("gone", ""), ("unsure", "")]);
    policy.status.observed_generation = None;
    let unsure = BTreeSet::from(["unsure".to_owned()]);
    policy.status = keep_true(policy.get(), &[], &unsure, Timestamp::UNIX_EPOCH);
    assert_eq!(policy.status.holders, [holder("unsure", "")]);
    assert_eq!(refusal(ask_for("a", &labels(&[]), &[policy], None)).why, RefusalReason::PolicyNotObserved);
}

fn any_policy(name: &'static str) -> impl Strategy<Value = Owned> {
    let max = prop_oneof![(0..5_u32).prop_map(Amount::Count), (0..30_u32).prop_map(Amount::Percent)];
    let scope = prop_oneof![Just(None), Just(Some("zone")), Just(Some("rack"))];
    let types = prop_oneof![Just(vec!["Drain"]), Just(vec!["Drain", "Reboot"]), Just(vec!["Reboot"])];
    (types, scope, max).prop_map(move |(types, scope, max)| Owned::new(name, &types, scope, max))
}

proptest! {
    /// Operations arrive, are judged, take their places one policy at a time, and end, in any order.
    #[test]
    fn never_more_pass_than_every_policy_allows(
        mut policies in (any_policy("p"), any_policy("q"), any_policy("r")).prop_map(|(p, q, r)| vec![p, q, r]),
        machines in 0..40_usize,
        moves in prop::collection::vec((0..12_usize, any::<bool>(), any::<bool>()), 0..80),
    ) {
        let fleet = Fleet(Some(machines));
        for (number, begins, drain) in moves {
            let name = format!("op-{number}");
            let zone = format!("z{}", number % 3);
            let rack = format!("r{}", number % 2);
            let labels = labels(&[("zone", &zone), ("rack", &rack)]);
            if begins {
                let uid = format!("uid-{name}");
                let type_ = if drain { "Drain" } else { "Reboot" };
                let request = Request { operation: &name, uid: &uid, type_, labels: &labels };
                if let GateAnswer::Granted { places, .. } = judge(request, policies.iter().map(Owned::get), &fleet) {
                    let named = policies.iter().filter(|p| p.spec.operations.iter().any(|t| t == type_)).count();
                    prop_assert_eq!(places.len(), named);
                    for place in places {
                        let policy = policies.iter_mut().find(|policy| policy.name == place.policy).unwrap();
                        policy.status.holders = take(&policy.status, &place.holder);
                    }
                }
            } else {
                for policy in &mut policies {
                    policy.status.holders = release(&policy.status, &name);
                }
            }
            for policy in &policies {
                let mut scopes = BTreeMap::<&str, usize>::new();
                for holder in &policy.status.holders {
                    *scopes.entry(&holder.scope).or_default() += 1;
                }
                for (scope, held) in scopes {
                    let label = policy.spec.scope.as_ref().map(|by| (by.by.as_str(), scope));
                    let limit = policy.spec.max.of(fleet.count(label).unwrap(), policy.spec.at_least);
                    prop_assert!(held <= limit, "{} holds {held} of {limit} in {scope:?}", policy.name);
                }
            }
        }
    }

    /// A granted Operation stays granted when another ends or the limit is raised; a waiting one still waits when another starts.
    #[test]
    fn the_gate_is_monotone(
        policy in any_policy("p"),
        holders in prop::collection::btree_set(0..8_usize, 0..8),
        machines in 0..40_usize,
    ) {
        let target = labels(&[("zone", "z0"), ("rack", "z0")]);
        let scope = if policy.spec.scope.is_some() { "z0" } else { "" };
        let mut before = policy;
        before.status.holders = holders.iter().map(|n| holder(&format!("op-{n}"), scope)).collect();
        let passes = |policy: &Owned| {
            matches!(ask_for("new", &target, std::slice::from_ref(policy), Some(machines)), GateAnswer::Granted { .. })
        };
        let mut fewer = before.clone();
        fewer.status.holders.pop();
        let mut raised = before.clone();
        raised.spec.max = match raised.spec.max {
            Amount::Count(count) => Amount::Count(count + 1),
            Amount::Percent(percent) => Amount::Percent(percent + 1),
        };
        if passes(&before) {
            prop_assert!(passes(&fewer));
            prop_assert!(passes(&raised));
        } else {
            let mut more = before.clone();
            more.status.holders.push(holder("one-more", scope));
            prop_assert!(!passes(&more));
        }
    }
}
