//! Tests against real SSH servers on loopback.

mod delivery;
mod hostile;
mod keys;
mod requests;
mod servers;
mod sshd;

use std::time::Duration;

use fleetwright_transport::{Link, LinkError};
use fleetwright_wire::{Answer, Request};

/// A helper whose behavior depends on the id of a recall.
const HELPER: &str = r#"#!/bin/sh
case $1 in version) echo "fleetwright-host 0.1.0 protocol 2"; exit;; esac
here=$(dirname "$0")
while read -r line; do
  case $line in
  *'"id":"plain"'*) echo '{"recalled":null}';;
  *'"id":"steps"'*) echo '{"progress":{"doing":"one"}}'; echo '{"progress":{"doing":"two\u001b[2J"}}'; echo '{"recalled":null}';;
  *'"id":"hang"'*) echo hung >"$here/hung"; sleep 1000;;
  *'"id":"pid"'*) echo '{"progress":{"doing":"'$$'"}}'; echo '{"recalled":null}';;
  *'"id":"die"'*) echo 'something broke' >&2; exit 3;;
  *'"id":"words"'*) echo 'Welcome to this host';;
  *'"id":"other"'*) echo '{"cleaned":null}';;
  *'"id":"endless"'*) yes | tr -d '\n';;
  *'"id":"errors"'*) yes | head -c 4G >&2; echo '{"recalled":null}';;
  *'"id":"chatter"'*) yes '{"progress":{"doing":"x"}}' | head -c 1G; echo '{"recalled":null}';;
  *'"id":"some-errors"'*) yes | head -c 20M >&2; echo '{"recalled":null}';;
  *'"id":"late-words"'*) echo '{"recalled":null}'; echo extra;;
  *'"id":"long-step"'*) (sleep 2; echo done >"$here/step") >/dev/null 2>&1 </dev/null & echo begun >"$here/step"; wait;;
  *'"id":"after"'*) echo '{"progress":{"doing":"'$(cat "$here/step")'"}}'; echo '{"recalled":null}';;
  *'"id":"size-'*) echo '{"progress":{"doing":"'$(printf %s "$line" | wc -c)'"}}'; echo '{"failed":{"kind":"Other","message":"counted"}}';;
  *) echo '{"failed":{"kind":"NotUnderstood","message":"what?"}}';;
  esac
done
"#;

fn recall(id: &str) -> Request {
    Request::Recall { id: id.into() }
}

const LONG: Duration = Duration::from_secs(60);

/// The reported progress, and the answer.
async fn ask(link: &dyn Link, id: &str, within: Duration) -> (Vec<String>, Result<Answer, LinkError>) {
    let told = std::sync::Mutex::new(Vec::new());
    let on_progress = |progress: fleetwright_wire::Progress| told.lock().unwrap().push(progress.doing);
    let answer = link.ask(&recall(id), within, &on_progress).await;
    (told.into_inner().unwrap(), answer)
}

/// Waits until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
