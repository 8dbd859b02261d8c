use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The request, to name it in errors.
    pub request: String,
    /// The HTTP status.
    pub status: u16,
    pub headers: HeaderMap,
    /// The body as it came.
    pub bytes: Bytes,
    /// The body as JSON; null when it is not JSON.
    pub json: Value,
}

impl Reply {
    /// The JSON body of a 2xx answer; an error otherwise.
    pub fn ok(self) -> Result<Value> {
        ensure!((200..300).contains(&self.status), "{} → {}: {}", self.request, self.status, self.text());
        Ok(self.json)
    }

    /// The JSON body of an answer with exactly this HTTP status; an error otherwise.
    pub fn code(self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "{} → {}, wanted {status}: {}", self.request, self.status, self.text());
        Ok(self.json)
    }

    /// The `Status` of a refusal with this code and reason; an error when it is another answer or its own fields disagree.
    pub fn refused(self, code: u16, reason: &str) -> Result<Value> {
        let status = self.code(code)?;
        for (field, wanted) in [("kind", "Status"), ("apiVersion", "v1"), ("status", "Failure"), ("reason", reason)] {
            ensure!(status[field] == wanted, "wanted {field} {wanted:?} in {status}");
        }
        ensure!(status["code"] == code, "wanted code {code} in {status}");
        Ok(status)
    }

    /// As [`Reply::refused`], with this message as well.
    pub fn refused_with(self, code: u16, reason: &str, message: &str) -> Result<Value> {
        let status = self.refused(code, reason)?;
        if status["message"] != message {
            bail!("wanted the message\n  {message}\ngot\n  {}", status["message"].as_str().unwrap_or_default());
        }
        Ok(status)
    }

    /// The texts of the `Warning` headers, without code and agent.
    pub fn warnings(&self) -> Vec<String> {
        let values = self.headers.get_all(http::header::WARNING).iter().filter_map(|value| value.to_str().ok());
        values
            .map(|value| {
                let text = value.splitn(3, ' ').nth(2).unwrap_or(value).trim();
                let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
                text.replace("\\\"", "\"").replace("\\\\", "\\")
            })
            .collect()
    }

    /// One header as text; empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
