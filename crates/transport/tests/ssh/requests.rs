//! Requests, and faulty helpers.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_transport::{LinkError, Route, Transport as _};
use fleetwright_wire::{Answer, Apply, Claim, Content, File, Method, Package, Request, Step};

use crate::sshd::{Setup, Sshd, limits, route};
use crate::{HELPER, LONG, ask, until};

async fn linked() -> (Sshd, Box<dyn fleetwright_transport::Link>) {
    let sshd = Setup::new().start();
    let link = sshd.ssh(HELPER).connect(route(sshd.hop())).await.unwrap();
    (sshd, link)
}

#[tokio::test]
async fn progress_is_reported_and_the_answer_comes_last() {
    let (_sshd, link) = linked().await;
    let (told, answer) = ask(&*link, "steps", LONG).await;
    assert_eq!(told, ["one", "two\u{fffd}[2J"]);
    assert_eq!(answer, Ok(Answer::Recalled(None)));
    assert!(link.open());
}

#[tokio::test]
async fn requests_one_after_the_other_are_answered_by_one_helper() {
    let (_sshd, link) = linked().await;
    let first = ask(&*link, "pid", LONG).await.0;
    let second = ask(&*link, "pid", LONG).await.0;
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_step_that_hangs_does_not_keep_others_from_asking() {
    let (sshd, link) = linked().await;
    let mut hanging = Box::pin(ask(&*link, "hang", LONG));
    let hung = sshd.home().join("helper/hung");
    tokio::select! {
        _ = &mut hanging => panic!("it hangs"),
        () = until("it hangs", || hung.exists()) => {}
    }
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
    drop(hanging);
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
}

#[tokio::test]
async fn many_requests_at_once_are_all_answered() {
    let (_sshd, link) = linked().await;
    let all = futures::future::join_all((0..8).map(|_| ask(&*link, "plain", LONG))).await;
    for (_, answer) in all {
        assert_eq!(answer, Ok(Answer::Recalled(None)));
    }
}

#[tokio::test]
async fn a_host_that_is_silent_for_too_long_is_late() {
    let sshd = Setup::new().start();
    let silence = Duration::from_secs(5);
    let way = Route {
        limits: fleetwright_transport::TransportLimits { silence, ..limits() },
        ..Route::clone(&route(sshd.hop()))
    };
    let link = sshd.ssh(HELPER).connect(Arc::new(way)).await.unwrap();
    assert_eq!(ask(&*link, "hang", LONG).await.1, Err(LinkError::TimedOut(silence)));
    assert_eq!(
        ask(&*link, "hang", Duration::from_millis(300)).await.1,
        Err(LinkError::TimedOut(Duration::from_millis(300)))
    );
    // The link can still be used.
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
}

#[tokio::test]
async fn what_is_no_answer_is_nonsense_and_the_link_goes_on() {
    let (_sshd, link) = linked().await;
    for id in ["words", "other", "endless", "errors", "chatter"] {
        let (_, answer) = ask(&*link, id, LONG).await;
        assert!(matches!(answer, Err(LinkError::InvalidAnswer(_))), "{id}: {answer:?}");
        assert!(ask(&*link, "plain", LONG).await.1.is_ok(), "after {id}");
    }
    // Output after an answer is not read as the next answer.
    assert!(ask(&*link, "late-words", LONG).await.1.is_ok());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
}

#[tokio::test]
async fn some_noise_on_standard_error_is_passed_over() {
    let (_sshd, link) = linked().await;
    assert!(ask(&*link, "some-errors", LONG).await.1.is_ok());
}

#[tokio::test]
async fn a_helper_that_dies_says_its_last_words() {
    let (_sshd, link) = linked().await;
    match ask(&*link, "die", LONG).await.1 {
        Err(LinkError::Lost(text)) => {
            assert!(text.contains("exit status 3") && text.contains("something broke"), "{text}")
        }
        other => panic!("{other:?}"),
    }
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
}

#[tokio::test]
async fn a_step_whose_connection_is_cut_goes_on_and_is_asked_after() {
    let (sshd, link) = linked().await;
    let mut cut = Box::pin(ask(&*link, "long-step", LONG));
    let step = sshd.home().join("helper/step");
    tokio::select! {
        _ = &mut cut => panic!("it takes longer"),
        () = until("the step began", || step.exists()) => {}
    }
    sshd.cut();
    let (_, answer) = cut.await;
    assert!(matches!(answer, Err(LinkError::Lost(_))), "{answer:?}");
    until("the link is closed", || !link.open()).await;

    let again = sshd.ssh(HELPER).connect(route(sshd.hop())).await.unwrap();
    until("the step ended", || std::fs::read_to_string(&step).is_ok_and(|text| text == "done\n")).await;
    assert_eq!(ask(&*again, "after", LONG).await.0, ["done"]);
}

#[tokio::test]
async fn a_large_request_arrives_whole() {
    let (_sshd, link) = linked().await;
    let content = Content::Text("x".repeat(3 << 20));
    let file = File { path: "/etc/large".into(), content, ..File::default() };
    let package =
        Package { component: "large".into(), method: Method::Config, files: vec![file], ..Package::default() };
    let apply = Apply {
        id: "size-1".into(),
        claim: Claim::default(),
        step: Step::Install(package),
        within: 60,
        unproven: false,
    };
    let request = Request::Apply(Box::new(apply));
    let size = serde_json::to_string(&request).unwrap().len();
    let told = std::sync::Mutex::new(Vec::new());
    let on_progress = |progress: fleetwright_wire::Progress| told.lock().unwrap().push(progress.doing);
    let answer = link.ask(&request, LONG, &on_progress).await;
    assert!(matches!(answer, Ok(Answer::Failed(_))), "{answer:?}");
    assert_eq!(*told.lock().unwrap(), [size.to_string()]);
}

#[tokio::test]
async fn a_link_that_is_dropped_ends_its_connection() {
    let (sshd, link) = linked().await;
    until("it is served", || !sshd.children().is_empty()).await;
    drop(link);
    until("nobody is served", || sshd.children().is_empty()).await;
}
