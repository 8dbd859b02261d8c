//! What both servers make of the definitions: what is refused and why, what is filled in, what may change, how it is shown.
//!
//! Everything runs on the embedded server; the tests whose names end in `_on_real` run the same on kube-apiserver.

mod cases;
mod changes;
mod cluster_changes;
mod cluster_packages;
mod clusters;
mod examples;
mod kubectl;
mod limits;
mod packages;
mod server;
mod tables;

use fleetwright_lab::ServerKind;
use server::Server;

#[tokio::test]
async fn what_the_kinds_do_not_allow_is_refused_with_a_reason() {
    Server::run(ServerKind::Embedded, async |server| cases::all(server).await).await;
}

#[tokio::test]
async fn what_must_not_change_does_not_change() {
    Server::run(ServerKind::Embedded, async |server| changes::all(server).await).await;
    Server::run(ServerKind::Embedded, async |server| cluster_changes::all(server).await).await;
    Server::run(ServerKind::Embedded, async |server| limits::changes(server).await).await;
}

#[tokio::test]
async fn the_kinds_are_found_and_shown_as_people_expect() {
    Server::run(ServerKind::Embedded, async |server| tables::all(server).await).await;
}

#[tokio::test]
async fn the_examples_are_allowed() {
    Server::run(ServerKind::Embedded, async |server| examples::all(server).await).await;
}

#[tokio::test]
async fn the_kinds_behave_the_same_on_real() {
    Server::run(ServerKind::Real, async |server| {
        cases::all(server).await;
        changes::all(server).await;
        cluster_changes::all(server).await;
        limits::changes(server).await;
        tables::all(server).await;
        examples::all(server).await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_speaks_of_the_kinds_the_same_on_embedded_and_on_real() {
    let (ours, real) = (kubectl::script(ServerKind::Embedded).await, kubectl::script(ServerKind::Real).await);
    for (ours, real) in ours.iter().zip(&real) {
        assert_eq!(ours, real);
    }
}
