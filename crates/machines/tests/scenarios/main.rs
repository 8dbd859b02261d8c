//! The outcomes of the Machine-Operator for users, on simulated hosts that run the code of real ones, with the embedded server and the real one.

mod api_faults;
mod binding;
mod cases;
mod faults;
mod idle;
mod owners;
mod rights;
mod support;
mod timeouts;

use fleetwright_lab::ServerKind;
use fleetwright_rig::TestServer;
use support::{ScenarioFn, run_all_on, run_undisturbed};

/// A test for each scenario on the embedded server, and the list of all.
macro_rules! scenarios {
    ($list:ident: $($room:ident::$name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                run_undisturbed(&TestServer::InProcess, |harness, fleet| Box::pin($room::$name(harness, fleet))).await;
            }
        )*

        const $list: &[(&str, ScenarioFn)] =
            &[$((stringify!($name), |harness, fleet| Box::pin($room::$name(harness, fleet)))),*];
    };
}

scenarios! { BOTH:
    cases::twenty_machines_converge,
    cases::an_upgrade_drains_within_disruption_budgets,
    cases::no_more_machines_are_worked_on_than_the_policy_of_their_zone_allows,
    cases::a_kubelet_that_is_newer_than_its_api_server_is_refused,
    cases::a_first_kubelet_that_is_newer_than_its_api_server_is_not_installed,
    cases::an_edit_of_the_cluster_s_values_changes_one_machine_at_a_time,
    cases::a_value_that_is_missing_leaves_machines_in_service_ready,
    cases::a_bad_version_is_rolled_back_on_its_first_host_and_not_tried_again,
    cases::drift_of_a_restored_version_is_repaired_to_it,
    cases::a_restored_version_that_fails_too_is_reported_with_both_failures,
    cases::drift_is_repaired_and_named,
    cases::a_deleted_machine_leaves_a_clean_host,
    cases::nothing_is_done_to_a_paused_machine,
    timeouts::a_host_that_never_returns_from_a_reboot_frees_its_place,
    timeouts::a_dead_container_runtime_is_repaired_without_a_drain,
    timeouts::a_drain_ends_where_pods_cannot,
    timeouts::a_pod_without_a_controller_leaves_by_force_and_within_its_grace_period,
    owners::a_host_of_another_cluster_is_only_looked_at_until_it_is_adopted,
    owners::a_second_machine_with_the_same_address_touches_nothing,
    owners::a_host_that_an_earlier_version_installed_is_claimed_by_its_machine_and_by_no_other,
    owners::a_machine_in_service_keeps_its_host_from_an_older_one_that_gets_its_address,
    owners::an_older_leader_is_refused_and_a_restored_api_server_is_let_in_by_hand,
    owners::a_host_with_another_serial_number_is_not_touched,
    binding::a_machine_named_after_a_foreign_node_does_nothing_to_it,
    binding::a_node_that_a_person_bound_joins_and_leaves_like_any_other,
    binding::a_node_that_registers_again_is_bound_again,
    binding::edits_of_labels_taints_and_provider_reach_the_bound_node,
    cases::a_paused_machine_is_not_released_when_it_is_deleted,
    cases::a_host_gets_nothing_of_a_secret_that_is_not_shared_with_its_machine,
    cases::a_secret_without_an_ssh_key_opens_no_host_and_is_not_shown,
}

scenarios! { EMBEDDED:
    cases::a_rollback_after_a_held_version_restores_the_one_that_worked,
    cases::a_change_taken_back_half_way_leads_back,
    timeouts::a_machine_whose_ssh_key_is_deleted_in_a_window_frees_its_place,
    timeouts::pods_that_come_while_a_node_was_opened_by_hand_leave_as_well,
    cases::a_pause_stops_a_step_that_waits_for_its_turn,
    cases::what_needs_a_boot_gets_one_boot_in_its_window,
    cases::drift_is_only_reported_if_that_is_the_policy,
    cases::a_host_that_fights_back_is_slowed_down_and_reported,
    cases::an_orphaned_host_is_left_alone,
    cases::a_host_that_is_gone_can_be_released,
    cases::a_component_that_is_no_longer_listed_is_removed,
    cases::hosts_that_are_gone_cost_the_others_nothing,
    faults::a_connection_cut_in_the_middle_of_a_step_does_not_run_it_twice,
    faults::a_host_that_loses_power_in_the_middle_of_a_step_is_finished_when_it_is_back,
    faults::a_full_disk_is_reported_and_work_goes_on_when_there_is_room,
    faults::a_disk_that_cannot_be_written_is_reported,
    faults::a_wrong_host_key_stops_everything,
    faults::a_changed_host_key_stops_everything_until_a_person_settles_it,
    faults::a_helper_that_lies_is_found_out,
    faults::a_helper_that_speaks_nonsense_is_not_listened_to,
    faults::gigabytes_of_output_are_cut_off,
    faults::a_hanging_command_ends_with_its_time,
    faults::a_host_that_hangs_is_left_for_the_others,
    faults::a_clock_that_jumps_changes_nothing,
    owners::a_machine_whose_address_was_corrected_is_judged_by_its_own_host,
}

/// The list is run on the real server below; this test fails if that one is forgotten.
#[test]
fn every_scenario_has_a_unique_name() {
    let names: std::collections::BTreeSet<_> = BOTH.iter().chain(EMBEDDED).map(|(name, _)| name).collect();
    assert_eq!(names.len(), BOTH.len() + EMBEDDED.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_scenarios_on_real() {
    run_all_on(ServerKind::Real, BOTH).await;
}
