//! The same end, whatever happens to the operator on the way: it is stopped dead at every call, its calls meet seeded trouble, two of it work at once.
//!
//! Whatever happens, authorities and the keys of tokens are made once (and once more for each rotation), no more than one member of etcd is missing at any
//! time but in a restore, no pass makes more calls than it may, no Operation is left that holds a place, and of a cluster that is deleted nothing is left.
//!
//! `RIG_SEED=n` runs one seed of trouble, and lets it choose the calls at which the operator is stopped once; see [`lifecycle::at_every_call`] and
//! [`lifecycle::at_some_calls`]. The test whose name ends in `_on_real` runs on kube-apiserver.

mod delays;
mod invariants;
mod lifecycle;
mod phases;
mod steps;
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{Operation, OperationPhase};
use fleetwright_lab::ServerKind;
use fleetwright_plan::cluster::members::OPERATIONS;
use fleetwright_rig::scenario::{Disturbance, run, run_in_real_time};
use fleetwright_rig::{FaultInjector, FaultRates, Harness, Side, TestServer, under_faults};
use kube::api::ListParams;
use lifecycle::LifecyclePhase;
use steps::ClusterSteps;
use support::ClusterScenario;

const MAKE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::make(harness, name)), struck: true };
const DELETE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::delete_cluster(harness, name)), struck: true };
const UPGRADE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::upgrade(harness, name)), struck: true };
const ROLLBACK: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::rollback(harness, name)), struck: true };
const FINISH: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::finish(harness, name)), struck: true };
const REPAIR: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::repair(harness, name)), struck: true };

const GROW: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::grow(harness, name)), struck: true };
const SHRINK: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::resize(harness, name, 1)), struck: true };
const ADD: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::resize(harness, name, 3)), struck: true };
const LOSE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::lose(harness, name, "etcd-1")), struck: true };

const ROTATE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::rotate(harness, name)), struck: true };
const RESTORE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::restore(harness, name)), struck: true };
const PRUNE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::prune(harness, name)), struck: true };
const RELEASE: LifecyclePhase =
    LifecyclePhase { play: |harness, name| Box::pin(phases::release(harness, name)), struck: true };

/// The phase without kills, as a part of a scenario that tests other phases.
const fn calm(leg: LifecyclePhase) -> LifecyclePhase {
    LifecyclePhase { struck: false, ..leg }
}

const LIVING: &[LifecyclePhase] = &[MAKE, REPAIR, DELETE];
const CHANGING: &[LifecyclePhase] = &[calm(MAKE), UPGRADE, ROLLBACK, calm(DELETE)];
const RESIZING: &[LifecyclePhase] = &[calm(MAKE), GROW, LOSE, SHRINK, calm(DELETE)];
const ENDING: &[LifecyclePhase] = &[calm(MAKE), FINISH, calm(DELETE)];

const RESTORING: &[LifecyclePhase] = &[calm(MAKE), ROTATE, RESTORE, calm(DELETE)];
const RELEASING: &[LifecyclePhase] = &[calm(MAKE), PRUNE, RELEASE];
/// Members are changed before there is a volume for snapshots, which is counted with theirs.
const BRIEF: &[LifecyclePhase] = &[calm(MAKE), ADD, SHRINK, RESTORE, PRUNE, calm(DELETE)];

const LIVES: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::laps(harness, LIVING)));
const CHANGES: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::laps(harness, CHANGING)));
const ENDS: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::laps(harness, ENDING)));
const RESIZES: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::laps(harness, RESIZING)));
const MEMBERS: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::members(harness)));
const RESTORES: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::laps(harness, RESTORING)));
const RELEASES: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::laps(harness, RELEASING))).extended();
const BRIEFLY: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::two_laps(harness, BRIEF))).extended();
const SECURES: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::secured(harness))).extended();
const SOAKS: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::soaks(harness)));
const LATE_BEFORE: ClusterScenario =
    ClusterScenario::new(|harness| Box::pin(delays::of_the_operator(harness, Side::Before)));
const LATE_AFTER: ClusterScenario =
    ClusterScenario::new(|harness| Box::pin(delays::of_the_operator(harness, Side::After)));
const LATE_OTHERS: ClusterScenario = ClusterScenario::new(|harness| Box::pin(delays::of_the_others(harness)));
const LIFE: ClusterScenario = ClusterScenario::new(|harness| Box::pin(phases::life(harness))).elastic();

/// All losses in one world, in a hurry that leaves the operator time to act on what members said.
async fn loses_members(losses: ClusterScenario) {
    run(&Arc::new(losses.members(3).paced(20)), &TestServer::InProcess, Disturbance::None).await.unwrap();
}

/// All laps in one world: a new one for each would cost most of the time.
async fn killed_at_every_call(laps: ClusterScenario) {
    run(&Arc::new(laps), &TestServer::InProcess, Disturbance::None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_makes_the_same_cluster_repairs_it_and_leaves_nothing_of_it() {
    killed_at_every_call(LIVES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_finishes_upgrades_and_rollbacks() {
    killed_at_every_call(CHANGES.large()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_adds_replaces_and_removes_members_of_etcd_and_enlarges_their_volumes() {
    killed_at_every_call(RESIZES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_costs_no_member_of_etcd() {
    let rates = FaultRates { max_delay: Duration::from_secs(30), calls: 4, ..FaultRates::mixed() };
    let seeds = FaultInjector::seeds(2);
    under_faults(MEMBERS.large(), &TestServer::InProcess, &seeds, &rates).await.unwrap().unwrap();
}

/// The different acts of that type that succeeded. The fingerprint of an Operation is that of its act, with the number of the attempt.
async fn acts(harness: &Harness, type_: &str) -> BTreeSet<String> {
    let all = harness.api::<Operation>().list(&ListParams::default()).await.unwrap();
    let succeeded = all.iter().filter(|one| {
        let phase = one.status.as_ref().map(|status| status.phase);
        one.spec.type_ == type_ && one.spec.target.name == "pay" && phase == Some(OperationPhase::Succeeded)
    });
    succeeded.filter_map(|one| Some(one.spec.fingerprint.rsplit_once('-')?.0.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_change_the_same_members_of_etcd() {
    let (one, alone) = run(&Arc::new(MEMBERS.large()), &TestServer::InProcess, Disturbance::None).await.unwrap();
    let (two, both) = run(&Arc::new(MEMBERS.large().twice()), &TestServer::InProcess, Disturbance::None).await.unwrap();
    assert_eq!(one.end, two.end);
    // There are as many members in the end as in the beginning, so that each that was added was removed or replaces another one.
    let added = acts(&alone, "EtcdMemberAdd").await.len();
    for type_ in OPERATIONS {
        let (operations, own) = (alone.operated("pay", type_).await.unwrap(), acts(&alone, type_).await);
        assert_eq!((operations, own.len()), (added, added), "Operations {type_} of one operator, for {own:?}");
        // The operator that is behind may repeat an act that is done, which changes nothing. It must not act on another member or volume. How many members
        // go before the opposite is declared half-way depends on the timing.
        both.operated("pay", type_).await.unwrap();
        let theirs = acts(&both, type_).await;
        assert!(theirs.len() <= added + 1, "two operators did more {type_} than one, which did {added}: {theirs:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_etcd_that_lost_its_data_is_replaced_once_however_late_a_call_reaches_the_api_server() {
    loses_members(LATE_BEFORE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_etcd_that_lost_its_data_is_replaced_once_however_late_the_api_server_answers_a_call() {
    loses_members(LATE_AFTER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_etcd_that_lost_its_data_is_replaced_once_however_late_etcd_its_pod_or_its_volume_is() {
    loses_members(LATE_OTHERS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_ends_the_soak_of_an_upgrade() {
    killed_at_every_call(ENDS.soaking(Duration::from_secs(20))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_ends_no_soak_without_its_snapshot() {
    let rates = FaultRates { max_delay: Duration::from_secs(30), calls: 4, ..FaultRates::mixed() };
    let seeds = FaultInjector::seeds(2);
    let scenario = SOAKS.soaking(Duration::from_secs(20));
    under_faults(scenario, &TestServer::InProcess, &seeds, &rates).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_end_a_soak_as_one_does() {
    let scenario = SOAKS.soaking(Duration::from_secs(20));
    let (one, _) = run(&Arc::new(scenario), &TestServer::InProcess, Disturbance::None).await.unwrap();
    let (two, _) = run(&Arc::new(scenario.twice()), &TestServer::InProcess, Disturbance::None).await.unwrap();
    assert_eq!(one.end, two.end);
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_changes_nothing_in_the_end() {
    let rates = FaultRates { max_delay: Duration::from_secs(30), calls: 4, ..FaultRates::mixed() };
    let seeds = FaultInjector::seeds(4);
    under_faults(LIFE.large().hurried(), &TestServer::InProcess, &seeds, &rates).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_make_the_same_cluster_and_do_not_write_against_each_other() {
    let scenario = LIFE.large();
    let (one, alone) = run(&Arc::new(scenario), &TestServer::InProcess, Disturbance::None).await.unwrap();
    let (two, both) = run(&Arc::new(scenario.twice()), &TestServer::InProcess, Disturbance::None).await.unwrap();
    assert_eq!(one.end, two.end);
    let (alone, both) = (alone.recorder().writes_since(0).len(), both.recorder().writes_since(0).len());
    assert!(both <= 8 * alone, "two wrote {both} times, and one {alone} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_rotates_authorities_and_restores_a_snapshot() {
    killed_at_every_call(RESTORES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_prunes_extensions_and_releases_machines() {
    killed_at_every_call(RELEASES).await;
}

/// The clock of kube-apiserver is that of the machine, so a lap takes as long as for a user: the operator is killed at four calls.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_some_calls_adds_and_removes_members_of_etcd_restores_a_snapshot_and_prunes_on_real() {
    let test_server = TestServer::start(ServerKind::Real).await.unwrap();
    run_in_real_time(&Arc::new(BRIEFLY), &test_server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_spoils_no_rotation_restore_prune_or_release() {
    let rates = FaultRates { max_delay: Duration::from_secs(30), calls: 4, ..FaultRates::mixed() };
    let seeds = FaultInjector::seeds(2);
    under_faults(SECURES.hurried(), &TestServer::InProcess, &seeds, &rates).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_rotate_prune_and_release_as_one_does_and_restore_once() {
    let (one, alone) = run(&Arc::new(SECURES), &TestServer::InProcess, Disturbance::None).await.unwrap();
    // Two extensions are turned off, and one of them has objects beside the control plane too.
    for (type_, times) in [("Restore", 1), ("ExtensionPrune", 3), ("ReleaseMachines", 1)] {
        assert_eq!(alone.operated("pay", type_).await.unwrap(), times, "Operations {type_} of one operator");
    }
    let (two, both) = run(&Arc::new(SECURES.twice()), &TestServer::InProcess, Disturbance::None).await.unwrap();
    assert_eq!(one.end, two.end);
    assert_eq!(both.operated("pay", "Restore").await.unwrap(), 1);
    // The operator that is behind repeats what does no harm twice: it deletes objects by uids that are gone, and it may apply an extension once more, which is then pruned
    // again. So the number of prunes depends on the timing, but neither operator releases machines twice.
    let released = both.operated("pay", "ReleaseMachines").await.unwrap();
    assert!(released <= 2, "two operators released the same machines {released} times");
}
