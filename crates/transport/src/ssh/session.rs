//! One helper on a host, at the other end of one channel.

use std::time::Duration;

use bytes::Bytes;
use fleetwright_wire::{Answer, MAX_LINE, MAX_PARTS, MAX_TAIL, Observation, Owner, Progress, Request, StepRecord};
use futures::FutureExt as _;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::time::{Instant, timeout_at};

use crate::LinkError;
use crate::text::{last_line, sanitized};

/// Bytes of standard error that are kept for messages.
const KEPT_ERRORS: usize = 2 << 10;
/// Bytes of unexpected output after which the channel is closed: before the helper's first line, and on
/// standard error during one request.
const MAX_NOISE: usize = 64 << 20;
/// Bytes that a line of progress counts for at least: 65,536 lines are allowed.
const LEAST_NOISE: usize = 1 << 10;
/// Longest line of the script.
const MAX_WORD: usize = 16 << 10;
/// Size of the pieces in which requests are sent; each sent piece is a sign of life.
const PIECE: usize = 256 << 10;
/// Longest name, version or line of progress from a host…
const MAX_NAME: usize = 256;
/// …and longest message.
const MAX_MESSAGE: usize = 1 << 10;
/// Buffers above this size are freed after use.
const KEPT_BUFFER: usize = 64 << 10;

/// A process at the other end of a channel. Dropping it closes the channel.
pub(crate) struct Session {
    read: ChannelReadHalf,
    write: Option<ChannelWriteHalf<Msg>>,
    /// Unread bytes of standard output.
    out: Vec<u8>,
    /// Bytes of `out` that were searched for the end of a line.
    searched: usize,
    /// The end of standard error.
    errors: Vec<u8>,
    /// Bytes on standard error since the last request.
    noise: usize,
    /// Exit status of the process.
    status: Option<String>,
}

/// An event of the channel.
enum SessionEvent {
    /// More standard output.
    Stdout,
    /// Any other event.
    Other,
    /// The channel has ended.
    Ended,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The channel ended.
    Ended,
    /// The timeout of that length is over.
    TimedOut(Duration),
    InvalidAnswer(String),
}

impl Session {
    pub(crate) fn new(channel: Channel<Msg>) -> Self {
        let (read, write) = channel.split();
        Self { read, write: Some(write), out: Vec::new(), searched: 0, errors: Vec::new(), noise: 0, status: None }
    }

    /// Starts a command, without waiting for anything.
    pub(crate) async fn exec(&self, command: String) -> Result<(), russh::Error> {
        match &self.write {
            Some(write) => write.exec(false, command).await,
            None => Err(russh::Error::SendError),
        }
    }

    /// The end of standard error, for people.
    pub(crate) fn errors(&self) -> String {
        last_line(&self.errors)
    }

    /// How the process ended, for people.
    pub(crate) fn status(&self) -> &str {
        self.status.as_deref().unwrap_or("the channel was closed")
    }

    /// Whether the session can be used: the process runs, and has written nothing unexpected.
    pub(crate) fn fit(&mut self) -> bool {
        loop {
            match self.read.wait().now_or_never() {
                None => return self.out.is_empty(),
                Some(message) => match self.take(message) {
                    SessionEvent::Other => {}
                    SessionEvent::Stdout | SessionEvent::Ended => return false,
                },
            }
        }
    }

    fn take(&mut self, message: Option<ChannelMsg>) -> SessionEvent {
        match message {
            None => return SessionEvent::Ended,
            Some(ChannelMsg::Data { data }) => {
                self.out.extend_from_slice(&data);
                return SessionEvent::Stdout;
            }
            Some(ChannelMsg::ExtendedData { data, .. }) => {
                self.noise = self.noise.saturating_add(data.len());
                let keep = &data[data.len().saturating_sub(KEPT_ERRORS)..];
                let over = (self.errors.len() + keep.len()).saturating_sub(KEPT_ERRORS);
                self.errors.drain(..over.min(self.errors.len()));
                self.errors.extend_from_slice(keep);
            }
            Some(ChannelMsg::ExitStatus { exit_status }) => self.status = Some(format!("exit status {exit_status}")),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                self.status = Some(format!("killed by {}", last_line(format!("{signal_name:?}").as_bytes())));
            }
            Some(ChannelMsg::Failure) => {
                self.status = Some("the host refused to run commands".into());
                return SessionEvent::Ended;
            }
            Some(ChannelMsg::Close) => return SessionEvent::Ended,
            // The exit status follows the end of the output.
            Some(_) => {}
        }
        SessionEvent::Other
    }

    /// The next line of the script that starts the helper, without its mark. Other output before it is skipped.
    pub(crate) async fn word(&mut self, mark: &str, until: Instant) -> Result<String, RequestError> {
        let mark = mark.as_bytes();
        let mut passed = 0_usize;
        loop {
            if let Some(at) = find(&self.out, mark) {
                if let Some(end) = self.out[at..].iter().position(|byte| *byte == b'\n') {
                    let line = String::from_utf8_lossy(&self.out[at + mark.len()..at + end]).into_owned();
                    self.out.drain(..=at + end);
                    self.searched = 0;
                    return Ok(line);
                }
                if self.out.len() - at > MAX_WORD {
                    return Err(RequestError::InvalidAnswer("an unterminated line".into()));
                }
            } else {
                // The mark may have arrived in part.
                let useless = self.out.len().saturating_sub(mark.len() - 1);
                passed += useless;
                self.out.drain(..useless);
            }
            if passed.saturating_add(self.noise) > MAX_NOISE {
                return Err(RequestError::InvalidAnswer(format!(
                    "more than {} MiB before the first line of the helper",
                    MAX_NOISE >> 20
                )));
            }
            match timeout_at(until, self.read.wait()).await {
                Err(_) => return Err(RequestError::TimedOut(Duration::ZERO)),
                Ok(message) => {
                    if matches!(self.take(message), SessionEvent::Ended) {
                        return Err(RequestError::Ended);
                    }
                }
            }
        }
    }

    /// Reads until the process has ended, for its last messages: standard error is a separate stream and may arrive after standard output.
    pub(crate) async fn end(&mut self, until: Instant) {
        while self.noise <= MAX_NOISE && self.out.len() <= MAX_WORD {
            let Ok(message) = timeout_at(until, self.read.wait()).await else { return };
            if matches!(self.take(message), SessionEvent::Ended) {
                return;
            }
        }
    }

    /// Sends bytes to the process' standard input, and keeps reading meanwhile. Ends early if the process writes to its
    /// standard output: it accepts no more input.
    pub(crate) async fn pour(&mut self, bytes: Bytes, until: Instant) -> Result<(), RequestError> {
        let Some(write) = &self.write else {
            return Err(RequestError::Ended);
        };
        let writer = Box::pin(write.make_writer());
        let mut sending = std::pin::pin!(send(writer, bytes));
        loop {
            let message = tokio::select! {
                sent = &mut sending => return sent.map_err(|_| RequestError::Ended),
                message = timeout_at(until, self.read.wait()) => message.map_err(|_| RequestError::TimedOut(Duration::ZERO))?,
            };
            match self.take(message) {
                SessionEvent::Stdout => return Ok(()),
                SessionEvent::Ended => return Err(RequestError::Ended),
                SessionEvent::Other => {}
            }
        }
    }

    /// Sends a request, and waits for the answer.
    pub(crate) async fn ask(
        &mut self,
        request: &Request,
        line: Bytes,
        (until, within): (Instant, Duration),
        silence: Duration,
        on_progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Answer, RequestError> {
        self.noise = 0;
        self.errors.clear();
        let longest = longest(request);
        let mut quiet = Instant::now() + silence;
        let mut rest = line;
        let Some(write) = &self.write else {
            return Err(RequestError::Ended);
        };
        let mut writer = Box::pin(write.make_writer());
        let mut piece = rest.split_to(rest.len().min(PIECE));
        loop {
            let end = until.min(quiet);
            let late = if until <= quiet { within } else { silence };
            let message = if piece.is_empty() {
                timeout_at(end, self.read.wait()).await.map_err(|_| RequestError::TimedOut(late))?
            } else {
                tokio::select! {
                    // Sent bytes are cut from the piece, so that none is sent twice when output is read in between.
                    sent = tokio::io::AsyncWriteExt::write(&mut writer, &piece) => {
                        let sent = sent.map_err(|_| RequestError::Ended)?;
                        let _ = piece.split_to(sent);
                        if piece.is_empty() {
                            piece = rest.split_to(rest.len().min(PIECE));
                        }
                        quiet = Instant::now() + silence;
                        continue;
                    }
                    message = timeout_at(end, self.read.wait()) => message.map_err(|_| RequestError::TimedOut(late))?,
                }
            };
            match self.take(message) {
                SessionEvent::Stdout => quiet = Instant::now() + silence,
                SessionEvent::Other => {}
                SessionEvent::Ended => return Err(RequestError::Ended),
            }
            if self.noise > MAX_NOISE {
                return Err(RequestError::InvalidAnswer(format!(
                    "more than {} MiB besides the answer",
                    MAX_NOISE >> 20
                )));
            }
            while let Some(line) = self.line(longest)? {
                match parse_answer(request, &line)? {
                    Answer::Progress(progress) => {
                        // Each line costs time, however short it is: a helper sends one in five seconds.
                        self.noise = self.noise.saturating_add(line.len().max(LEAST_NOISE));
                        on_progress(progress);
                    }
                    answer => {
                        if self.out.capacity() > KEPT_BUFFER {
                            self.out = Vec::new();
                        }
                        return Ok(answer);
                    }
                }
            }
        }
    }

    /// The next complete line.
    fn line(&mut self, longest: usize) -> Result<Option<Vec<u8>>, RequestError> {
        match self.out[self.searched..].iter().position(|byte| *byte == b'\n') {
            Some(found) => {
                let end = self.searched + found;
                self.searched = 0;
                if end > longest {
                    return Err(RequestError::InvalidAnswer(format!("a line of {end} bytes (limit {longest})")));
                }
                let rest = self.out.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.out, rest);
                line.truncate(end);
                Ok(Some(line))
            }
            None if self.out.len() > longest => {
                Err(RequestError::InvalidAnswer(format!("a line of more than {longest} bytes")))
            }
            None => {
                self.searched = self.out.len();
                Ok(None)
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Without this a step that hangs would keep its channel, and output of a host that never ends would be read for as long as the
        // connection lives.
        if let Some(write) = self.write.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let _ = write.close().await;
            });
        }
    }
}

async fn send(mut writer: impl tokio::io::AsyncWrite + Unpin, bytes: Bytes) -> std::io::Result<()> {
    tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await
}

/// Longest line of the answer. A compromised host must not make us hold megabytes for a yes or no.
fn longest(request: &Request) -> usize {
    match request {
        Request::Observe(_) => 8 << 20,
        // In base64, in a small JSON document.
        Request::Log { bytes, .. } => {
            usize::try_from(bytes.saturating_mul(2)).unwrap_or(MAX_LINE).saturating_add(4 << 10)
        }
        _ => 1 << 20,
    }
    .min(MAX_LINE)
}

/// The answer in a line, if it is one to that request. Its texts are bounded: a host must not decide how much is shown to people.
fn parse_answer(request: &Request, line: &[u8]) -> Result<Answer, RequestError> {
    let answer = serde_json::from_slice(line).map_err(|error| {
        RequestError::InvalidAnswer(format!("{}: {}", last_line(&line[..line.len().min(200)]), error))
    })?;
    let fits = match (request, &answer) {
        (_, Answer::Progress(_) | Answer::Failed(_)) => true,
        (Request::Observe(_), Answer::Observed(_)) | (Request::Log { .. }, Answer::Log(_)) => true,
        (Request::Clean { .. }, Answer::Cleaned) | (Request::Release { .. }, Answer::Released) => true,
        (Request::Adopt { .. }, Answer::Adopted(_)) | (Request::Claim { .. }, Answer::Claimed(_)) => true,
        (Request::Apply(apply), Answer::Ended(record)) => record.id == apply.id,
        (Request::Recall { id } | Request::Refuse { id, .. }, Answer::Recalled(record)) => {
            record.as_ref().is_none_or(|record| record.id == *id)
        }
        _ => false,
    };
    if !fits {
        return Err(RequestError::InvalidAnswer(format!(
            "an answer to another request: {}",
            last_line(&line[..line.len().min(200)])
        )));
    }
    Ok(bounded(answer))
}

fn bounded(answer: Answer) -> Answer {
    match answer {
        Answer::Progress(progress) => Answer::Progress(Progress { doing: sanitized(progress.doing, MAX_NAME) }),
        Answer::Ended(record) => Answer::Ended(bounded_record(record)),
        Answer::Recalled(record) => Answer::Recalled(record.map(bounded_record)),
        Answer::Failed(mut failure) => {
            failure.message = sanitized(failure.message, MAX_MESSAGE);
            Answer::Failed(failure)
        }
        Answer::Observed(mut observation) => {
            bound_observation(&mut observation);
            Answer::Observed(observation)
        }
        Answer::Adopted(mut mark) => {
            bound_owner(&mut mark.owner);
            Answer::Adopted(mark)
        }
        Answer::Claimed(mut mark) => {
            bound_owner(&mut mark.owner);
            Answer::Claimed(mark)
        }
        Answer::Log(_) | Answer::Cleaned | Answer::Released => answer,
    }
}

fn bound_owner(owner: &mut Owner) {
    for text in [&mut owner.cluster, &mut owner.namespace, &mut owner.name, &mut owner.uid] {
        bound(text, MAX_NAME);
    }
}

fn bound_observation(observation: &mut Observation) {
    observation.owner.iter_mut().for_each(|mark| bound_owner(&mut mark.owner));
    observation.facts.serials.truncate(MAX_PARTS);
    observation.facts.serials.iter_mut().for_each(|serial| bound(serial, MAX_NAME));
    let facts = &mut observation.facts;
    for fact in [
        &mut facts.hostname,
        &mut facts.os,
        &mut facts.kernel,
        &mut facts.arch,
        &mut facts.boot_id,
        &mut facts.machine_id,
    ] {
        bound(fact, MAX_NAME);
    }
    observation.records.truncate(MAX_PARTS);
    observation.records = std::mem::take(&mut observation.records).into_iter().map(bounded_record).collect();
    observation.components.truncate(MAX_PARTS);
    for component in &mut observation.components {
        bound(&mut component.component, MAX_NAME);
        component.version.iter_mut().for_each(|version| bound(version, MAX_NAME));
        component.previous.truncate(MAX_PARTS);
        for installed in component.installed.iter_mut().chain(&mut component.previous) {
            for name in [&mut installed.reference, &mut installed.version, &mut installed.digest] {
                bound(name, MAX_NAME);
            }
        }
        component.deviations.truncate(MAX_PARTS);
        for deviation in &mut component.deviations {
            for text in [&mut deviation.what, &mut deviation.found, &mut deviation.wanted] {
                bound(text, MAX_MESSAGE);
            }
        }
        component.down.truncate(MAX_PARTS);
        component.down.iter_mut().for_each(|unit| bound(unit, MAX_NAME));
        component.health.truncate(MAX_PARTS);
        for check in &mut component.health {
            bound(&mut check.check, MAX_MESSAGE);
            bound(&mut check.message, MAX_MESSAGE);
        }
    }
}

fn bound(text: &mut String, longest: usize) {
    *text = sanitized(std::mem::take(text), longest);
}

fn bounded_record(mut record: StepRecord) -> StepRecord {
    record.message = sanitized(record.message, MAX_MESSAGE);
    record.tail = sanitized(record.tail, MAX_TAIL);
    record
}

impl RequestError {
    /// The error for the caller.
    pub(crate) fn into_link_error(self, session: &Session, lost: Option<String>) -> LinkError {
        match self {
            Self::TimedOut(after) => LinkError::TimedOut(after),
            Self::InvalidAnswer(what) => LinkError::InvalidAnswer(what),
            Self::Ended => match lost {
                Some(why) => LinkError::Lost(why),
                None => {
                    let errors = session.errors();
                    let errors = if errors.is_empty() { String::new() } else { format!(": {errors}") };
                    LinkError::Lost(format!("the helper exited ({}){errors}", session.status()))
                }
            },
        }
    }
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = hay[from..].iter().position(|byte| *byte == first) {
        let at = from + at;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleetwright_wire::{Outcome, Verb};

    fn record(id: &str) -> StepRecord {
        StepRecord {
            id: id.into(),
            verb: Verb::Reboot,
            component: None,
            digest: None,
            boot_id: String::new(),
            began: 0,
            ended: None,
            outcome: Outcome::Running,
            message: String::new(),
            untouched: false,
            tail: "x".repeat(MAX_TAIL * 2),
        }
    }

    #[test]
    fn an_answer_to_something_else_is_nonsense() {
        let recall = Request::Recall { id: "a".into() };
        let line = |answer: &Answer| serde_json::to_vec(answer).unwrap();
        assert!(parse_answer(&recall, &line(&Answer::Recalled(Some(record("a"))))).is_ok());
        assert!(parse_answer(&recall, &line(&Answer::Recalled(None))).is_ok());
        assert!(parse_answer(&recall, &line(&Answer::Recalled(Some(record("b"))))).is_err());
        assert!(parse_answer(&recall, &line(&Answer::Cleaned)).is_err());
        assert!(parse_answer(&recall, b"Welcome!").is_err());
        let nested = "[".repeat(100_000);
        assert!(parse_answer(&recall, nested.as_bytes()).is_err());
    }

    #[test]
    fn no_record_is_longer_than_it_may_be() {
        let recall = Request::Recall { id: "a".into() };
        let line = serde_json::to_vec(&Answer::Recalled(Some(record("a")))).unwrap();
        let Ok(Answer::Recalled(Some(record))) = parse_answer(&recall, &line) else { panic!() };
        assert_eq!(record.tail.len(), MAX_TAIL);
    }

    #[test]
    fn what_a_host_reports_about_itself_is_bounded() {
        let mut observation = Observation::default();
        observation.facts.hostname = "\u{1b}]0;root".repeat(100);
        observation.components = vec![fleetwright_wire::ComponentSeen::default(); 5000];
        observation.components[0].version = Some("9".repeat(5000));
        observation.components[0].deviations = vec![fleetwright_wire::Deviation::default(); 5000];
        let line = serde_json::to_vec(&Answer::Observed(Box::new(observation))).unwrap();
        let Ok(Answer::Observed(seen)) = parse_answer(&Request::Observe(Box::default()), &line) else { panic!() };
        assert!(seen.facts.hostname.len() <= MAX_NAME && !seen.facts.hostname.contains('\u{1b}'));
        assert_eq!(seen.components.len(), MAX_PARTS);
        assert_eq!(seen.components[0].version.as_ref().unwrap().len(), MAX_NAME);
        assert_eq!(seen.components[0].deviations.len(), MAX_PARTS);
    }

    #[test]
    fn the_mark_is_found_wherever_it_is() {
        assert_eq!(find(b"motd without end fwfw1 ready", b"fw1"), Some(19));
        assert_eq!(find(b"fw", b"fw1"), None);
        assert_eq!(find(b"", b"fw1"), None);
    }
}
