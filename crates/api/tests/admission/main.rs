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
mod shown;

use fleetwright_lab::Kind;
use server::Server;

#[tokio::test]
async fn what_the_kinds_do_not_allow_is_refused_with_a_reason() {
    Server::run(Kind::Embedded, async |server| cases::all(server).await).await;
}

#[tokio::test]
async fn what_must_not_change_does_not_change() {
    Server::run(Kind::Embedded, async |server| changes::all(server).await).await;
    Server::run(Kind::Embedded, async |server| cluster_changes::all(server).await).await;
    Server::run(Kind::Embedded, async |server| limits::changes(server).await).await;
}

#[tokio::test]
async fn the_kinds_are_found_and_shown_as_people_expect() {
    Server::run(Kind::Embedded, async |server| shown::all(server).await).await;
}

#[tokio::test]
async fn the_examples_are_allowed() {
    Server::run(Kind::Embedded, async |server| examples::all(server).await).await;
}

#[tokio::test]
async fn the_kinds_behave_the_same_on_real() {
    Server::run(Kind::Real, async |server| {
        cases::all(server).await;
        changes::all(server).await;
        cluster_changes::all(server).await;
        limits::changes(server).await;
        shown::all(server).await;
        examples::all(server).await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_speaks_of_the_kinds_the_same_on_embedded_and_on_real() {
    let (ours, real) = (kubectl::script(Kind::Embedded).await, kubectl::script(Kind::Real).await);
    for (ours, real) in ours.iter().zip(&real) {
        assert_eq!(ours, real);
    }
}
