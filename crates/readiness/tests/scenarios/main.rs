//! The outcomes of the readiness operator for users, on the embedded server and on the real one.

mod cases;
mod faults;
mod idle;
mod support;

use fleetwright_lab::ServerKind;
use fleetwright_rig::TestServer;
use support::{ScenarioFn, run_all_on, run_undisturbed};

/// A test for each scenario on the embedded server, and the list of all.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                run_undisturbed(&TestServer::InProcess, |harness| Box::pin(cases::$name(harness))).await;
            }
        )*

        const SCENARIOS: &[(&str, ScenarioFn)] = &[$((stringify!($name), |harness| Box::pin(cases::$name(harness)))),*];
    };
}

scenarios! {
    a_new_node_starts_closed_and_opens_when_its_gates_hold,
    a_node_that_joins_open_is_closed_at_once,
    a_fleet_that_was_there_before_its_gates_is_adopted_and_protected,
    bootstrap_gates_count_until_the_first_time_and_again_for_another_node,
    a_failure_is_tolerated_for_so_long_and_a_recovery_must_last,
    a_missing_report_means_what_the_gate_says,
    a_stale_report_means_what_the_gate_says,
    broken_reports_are_named_and_the_rest_goes_on,
    no_reporter_can_set_the_condition_of_another,
    a_report_about_no_machine_is_named_in_an_event,
    a_persons_hand_on_a_node_wins,
    our_taint_is_put_back_when_somebody_takes_it_away,
    all_gates_of_all_objects_must_hold,
    readiness_gates_count_their_machines,
    the_safety_net_keeps_machines_open_that_fail_together,
    the_safety_net_stops_a_wave_that_comes_one_by_one,
    a_gate_that_no_machine_can_pass_does_not_close_the_fleet,
    nothing_is_done_to_the_node_of_a_paused_machine,
    of_two_machines_that_claim_a_node_the_older_has_it,
    a_node_that_is_not_bound_is_neither_closed_nor_opened,
    the_taint_of_a_deleted_machine_stays,
    a_change_costs_two_writes_and_an_unchanged_report_none,
    what_another_operator_writes_is_not_taken_for_a_copy,
}

#[tokio::test(flavor = "multi_thread")]
async fn all_scenarios_on_real() {
    run_all_on(ServerKind::Real, SCENARIOS).await;
}
