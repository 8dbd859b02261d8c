//! The same end, whatever happens to the operator on the way: it is stopped dead at every call, its calls meet seeded trouble, two of it work at once.
//!
//! Whatever happens, authorities and the keys of tokens are made once, no more than one member of etcd is missing at any time, no pass makes more calls
//! than it may, and of a cluster that is deleted nothing is left.

mod stories;
mod support;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{Ground, Rates, Trouble, under_trouble};
use support::{Leg, Story};

const MAKE: Leg = |stage, name| Box::pin(stories::make(stage, name));
const UNMAKE: Leg = |stage, name| Box::pin(stories::unmake(stage, name));
const UPGRADE: Leg = |stage, name| Box::pin(stories::upgrade(stage, name));
const ROLLBACK: Leg = |stage, name| Box::pin(stories::rollback(stage, name));
const REPAIR: Leg = |stage, name| Box::pin(stories::repair(stage, name));

const LIVES: Story = Story::new(|stage| Box::pin(stories::laps_of_many(stage, &[MAKE, UNMAKE])));
const CHANGES: Story = Story::new(|stage| Box::pin(stories::laps_of_one(stage, &[UPGRADE, ROLLBACK])));
const REPAIRS: Story = Story::new(|stage| Box::pin(stories::laps_of_one(stage, &[REPAIR])));
const LIFE: Story = Story::new(|stage| Box::pin(stories::life(stage)));

/// All laps in one world: a new one for each call would cost most of the time.
async fn killed_at_every_call(laps: Story) {
    run(&Arc::new(laps), &Ground::InProcess, Disturbance::None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_makes_the_same_cluster_and_leaves_nothing_of_it() {
    killed_at_every_call(LIVES).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "more than a quarter of an hour on two busy cores; upgrades and rollbacks meet seeded trouble and a second operator below"]
async fn an_operator_killed_at_any_call_finishes_upgrades_and_rollbacks() {
    killed_at_every_call(CHANGES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_any_call_finishes_repairs() {
    killed_at_every_call(REPAIRS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_with_the_api_server_changes_nothing_in_the_end() {
    let rates = Rates { longest: Duration::from_secs(30), calls: 4, ..Rates::rough() };
    let seeds = Trouble::seeds(4);
    under_trouble(LIFE.large().hurried(), &Ground::InProcess, &seeds, &rates).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_make_the_same_cluster() {
    let story = LIFE.large();
    let (one, _) = run(&Arc::new(story), &Ground::InProcess, Disturbance::None).await.unwrap();
    let (two, _) = run(&Arc::new(story.twice()), &Ground::InProcess, Disturbance::None).await.unwrap();
    assert_eq!(one.end, two.end);
}
