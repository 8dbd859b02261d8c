//! What users see of the readiness operator, on the embedded server and on the real one.

mod stories;
mod support;

use fleetwright_lab::Kind;
use fleetwright_rig::Ground;
use support::{Play, tell, tell_all_on};

/// A test for each story on the embedded server, and the list of all.
macro_rules! stories {
    ($($name:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                tell(&Ground::InProcess, |stage| Box::pin(stories::$name(stage))).await;
            }
        )*

        const STORIES: &[(&str, Play)] = &[$((stringify!($name), |stage| Box::pin(stories::$name(stage)))),*];
    };
}

stories! {
    a_new_node_starts_closed_and_opens_when_its_gates_hold,
}

#[tokio::test(flavor = "multi_thread")]
async fn all_stories_on_real() {
    tell_all_on(Kind::Real, STORIES).await;
}
