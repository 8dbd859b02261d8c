use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Response;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

/// The time limit for an event to arrive.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A running watch that hands out its frames as they came.
pub struct Watch {
    path: String,
    body: Body,
    buffer: Vec<u8>,
}

impl Watch {
    /// Takes over a response; a refusal is an error that holds it (a case about refusals uses GET).
    pub(crate) async fn open(path: &str, response: Response<Body>) -> Result<Self> {
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(Self { path: path.to_owned(), body, buffer: Vec::new() });
        }
        let text = body.collect().await?.to_bytes();
        bail!("GET {path} → {}: {}", head.status, String::from_utf8_lossy(&text))
    }

    /// The next frame, `None` when the server ended the watch; an error after a timeout.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        let waited = tokio::time::timeout(WAIT_TIMEOUT, self.frame()).await;
        waited.with_context(|| format!("no event from {} within {WAIT_TIMEOUT:?}", self.path))?
    }

    /// The next event's type and object; an error when the watch ends.
    pub async fn event(&mut self) -> Result<(String, Value)> {
        let Some(mut frame) = self.next().await? else { bail!("{} ended", self.path) };
        let kind = frame["type"].as_str().with_context(|| format!("a frame without a type: {frame}"))?.to_owned();
        Ok((kind, frame["object"].take()))
    }

    /// This number of events as `TYPE name` lines.
    pub async fn names(&mut self, count: usize) -> Result<Vec<String>> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let (kind, object) = self.event().await.with_context(|| format!("after {seen:?}"))?;
            seen.push(format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default()));
        }
        Ok(seen)
    }

    /// The first matching event; earlier ones are dropped.
    pub async fn until(&mut self, mut wanted: impl FnMut(&str, &Value) -> bool) -> Result<(String, Value)> {
        loop {
            let (kind, object) = self.event().await?;
            if wanted(&kind, &object) {
                return Ok((kind, object));
            }
        }
    }

    /// Whether no event arrives for a while.
    pub async fn is_quiet_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.frame()).await.is_err()
    }

    /// Safe to cancel: bytes that were read stay in the buffer.
    async fn frame(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(
                    serde_json::from_slice(&line).with_context(|| format!("a broken frame of {}", self.path))?,
                ));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => bail!("{} ended within a frame", self.path),
            }
        }
    }
}
