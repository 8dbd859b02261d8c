//! Speaks with an operator: requests on one stream, answers on the other, one a line.

use std::io::{self, BufRead, Read as _, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fleetwright_wire::{Answer, Failure, FailureKind, LONGEST_LINE, Progress, Request};

use crate::text::clip;
use crate::{Host, System};

/// While a request is worked on, something is said this often at least: silence means trouble.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// So many things to say wait for somebody who listens slowly.
const MAX_QUEUED_REQUESTS: usize = 64;

/// Answers until the input ends. A step is never given up for the sake of the connection: when nobody listens any more, or slowly, it goes on,
/// and what became of it can be asked after later.
pub fn serve<S: System>(host: &mut Host<S>, mut input: impl BufRead, output: impl Write + Send + 'static) {
    let (say, said) = mpsc::sync_channel(MAX_QUEUED_REQUESTS);
    let writer = thread::spawn(move || write(&said, output));
    loop {
        let answer = match next(&mut input) {
            Ok(None) | Err(_) => break,
            Ok(Some(Line::TooLong)) => {
                let message = format!("the request is longer than {LONGEST_LINE} bytes");
                let _ = say.send(Answer::Failed(Failure { kind: FailureKind::NotUnderstood, message }));
                break;
            }
            Ok(Some(Line::Whole(line))) => match serde_json::from_slice::<Request>(&line) {
                Ok(request) => answered(host, request, &say),
                // Where in the line, not what: it may hold secrets.
                Err(error) => Answer::Failed(Failure {
                    kind: FailureKind::NotUnderstood,
                    message: format!(
                        "invalid request, at column {}: operator and helper may have different versions",
                        error.column()
                    ),
                }),
            },
        };
        if say.send(answer).is_err() {
            break;
        }
    }
    drop(say);
    let _ = writer.join();
}

fn answered<S: System>(host: &mut Host<S>, request: Request, say: &SyncSender<Answer>) -> Answer {
    let doing = Arc::new(Mutex::new("looking".to_owned()));
    let (end, ended) = mpsc::channel();
    let saying = {
        let (say, doing) = (say.clone(), doing.clone());
        thread::spawn(move || keep_saying(&say, &doing, &ended))
    };
    let answer = host.answer(request, &mut |answer| {
        if let Answer::Progress(progress) = &answer {
            doing.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&progress.doing);
        }
        // Who listens slowly misses some of it.
        let _ = say.try_send(answer);
    });
    drop(end);
    let _ = saying.join();
    answer
}

fn keep_saying(say: &SyncSender<Answer>, doing: &Mutex<String>, ended: &Receiver<()>) {
    while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let doing = doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = say.try_send(Answer::Progress(Progress { doing: clip(&doing, 500) }));
    }
}

/// Ends when nobody listens, or when there is nothing more to say.
fn write(said: &Receiver<Answer>, mut output: impl Write) {
    for answer in said {
        let Ok(mut line) = serde_json::to_vec(&answer) else { break };
        line.push(b'\n');
        if output.write_all(&line).and_then(|()| output.flush()).is_err() {
            break;
        }
    }
}

enum Line {
    Whole(Vec<u8>),
    TooLong,
}

/// The next line; none at the end of the input, and for a line that the end cut off.
fn next(input: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    input.take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line)?;
    if line.pop_if(|byte| *byte == b'\n').is_some() {
        return Ok(Some(Line::Whole(line)));
    }
    Ok((line.len() > LONGEST_LINE).then_some(Line::TooLong))
}
