//! The connection with an operator: requests on one stream, answers on the other, one per line.

use std::io::{self, BufRead, Read as _, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{Answer, Failure, FailureKind, MAX_LINE, Progress, Request};

use crate::{Host, System};

/// While a request is handled, progress is sent at least this often: silence means trouble.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Messages queued for a slow reader.
const MAX_QUEUED_REQUESTS: usize = 64;

/// Answers requests until the input ends. A step never depends on the connection: when the reader is gone or slow, the step continues,
/// and its outcome can be requested later.
pub fn serve<S: System>(host: &mut Host<S>, mut input: impl BufRead, output: impl Write + Send + 'static) {
    let (say, said) = mpsc::sync_channel(MAX_QUEUED_REQUESTS);
    let writer = thread::spawn(move || write(&said, output));
    loop {
        let answer = match next(&mut input) {
            Ok(None) | Err(_) => break,
            Ok(Some(Line::TooLong)) => {
                let message = format!("the request is longer than {MAX_LINE} bytes");
                let _ = say.send(Answer::Failed(Failure { kind: FailureKind::NotUnderstood, message }));
                break;
            }
            Ok(Some(Line::Whole(line))) => match serde_json::from_slice::<Request>(&line) {
                Ok(request) => answered(host, request, &say),
                // The position in the line, not its content: that may contain secrets.
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
        // A slow reader misses some progress.
        let _ = say.try_send(answer);
    });
    drop(end);
    let _ = saying.join();
    answer
}

fn keep_saying(say: &SyncSender<Answer>, doing: &Mutex<String>, ended: &Receiver<()>) {
    while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let doing = doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = say.try_send(Answer::Progress(Progress { doing: truncate_bytes(&doing, 500) }));
    }
}

/// Writes answers until the reader is gone, or no sender is left.
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

/// The next line; none at the end of the input, and for an incomplete last line.
fn next(input: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    input.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
    if line.pop_if(|byte| *byte == b'\n').is_some() {
        return Ok(Some(Line::Whole(line)));
    }
    Ok((line.len() > MAX_LINE).then_some(Line::TooLong))
}
