//! Joining from the view of a kubelet: what a machine's credential can be used for, and what not. The operator has only the rights of its
//! rules.
//!
//! All tests run on the embedded server; the test whose name ends in `_on_real` runs the same on kube-apiserver.

mod cases;
mod site;

use fleetwright_lab::ServerKind;
use fleetwright_machines::join;
use fleetwright_rig::rights::{CLUSTER, rights};
use site::JoinSite;

#[tokio::test]
async fn a_kubelet_with_its_token_gets_a_certificate_for_its_own_name() {
    JoinSite::run(ServerKind::Embedded, cases::a_machine_joins).await;
}

#[tokio::test]
async fn a_token_is_of_no_use_for_anything_else() {
    JoinSite::run(ServerKind::Embedded, cases::a_token_is_for_one_thing).await;
}

#[tokio::test]
async fn a_token_is_given_again_while_it_is_valid_and_refused_when_it_ended() {
    JoinSite::run(ServerKind::Embedded, cases::tokens_end).await;
}

#[tokio::test]
async fn a_machine_that_goes_joins_no_more() {
    JoinSite::run(ServerKind::Embedded, cases::a_deleted_machine_does_not_join).await;
}

#[tokio::test]
async fn a_paused_machine_waits_for_its_certificate() {
    JoinSite::run(ServerKind::Embedded, cases::a_paused_machine_waits).await;
}

#[tokio::test]
async fn a_node_gets_serving_certificates_for_what_it_is() {
    JoinSite::run(ServerKind::Embedded, cases::a_node_serves_under_its_own_names).await;
}

/// The scenarios remove the other rights of joining.
#[tokio::test]
async fn each_right_for_serving_certificates_that_is_taken_away_is_missed() {
    let resources = ["signers", "services", "endpointslices", "servicecidrs"];
    let mut needed = rights(CLUSTER, &join::rules().cluster);
    needed.retain(|right| resources.contains(&right.resource.as_str()));
    assert_eq!(needed.len(), resources.len(), "{needed:#?}");
    for right in &needed {
        let body = async |site: &JoinSite| cases::a_missing_right_is_named(site, right).await;
        JoinSite::run_without(ServerKind::Embedded, Some(right), body).await;
    }
}

#[tokio::test]
async fn requests_of_others_are_left_alone() {
    JoinSite::run(ServerKind::Embedded, cases::others_are_left_alone).await;
}

#[tokio::test]
async fn without_the_cluster_s_values_it_is_said_what_is_missing() {
    JoinSite::run(ServerKind::Embedded, cases::missing_values_are_named).await;
}

#[tokio::test]
async fn names_of_the_api_server_and_of_others_are_refused_though_a_machine_declares_them() {
    JoinSite::run(ServerKind::Embedded, cases::reserved_names_are_refused_though_declared).await;
}

#[tokio::test]
async fn a_younger_machine_that_has_not_joined_keeps_no_certificate_back() {
    JoinSite::run(ServerKind::Embedded, cases::a_younger_machine_that_has_not_joined_keeps_no_certificate_back).await;
}

#[tokio::test]
async fn a_machine_named_after_a_foreign_node_gets_neither_token_nor_certificate() {
    JoinSite::run(ServerKind::Embedded, cases::the_name_of_a_foreign_node_is_not_given_away).await;
}

#[tokio::test]
async fn a_node_that_registers_again_keeps_its_certificates() {
    JoinSite::run(ServerKind::Embedded, cases::a_node_that_registers_again_keeps_its_certificates).await;
}

#[tokio::test]
async fn machines_join_the_same_on_real() {
    JoinSite::run(ServerKind::Real, async |site| {
        cases::a_machine_joins(site).await;
        cases::a_token_is_for_one_thing(site).await;
        cases::tokens_end(site).await;
        cases::a_deleted_machine_does_not_join(site).await;
        cases::a_paused_machine_waits(site).await;
        cases::a_node_serves_under_its_own_names(site).await;
        cases::others_are_left_alone(site).await;
        cases::missing_values_are_named(site).await;
        cases::reserved_names_are_refused_though_declared(site).await;
        cases::a_younger_machine_that_has_not_joined_keeps_no_certificate_back(site).await;
        cases::the_name_of_a_foreign_node_is_not_given_away(site).await;
        cases::a_node_that_registers_again_keeps_its_certificates(site).await;
    })
    .await;
}
