//! The end of the output of programs, and digests as text.

use fleetwright_wire::text::last_bytes;

/// The end of a growing text, up to a number of bytes.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    text: String,
    limit: usize,
}

impl Tail {
    /// An empty tail that keeps up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { text: String::new(), limit }
    }

    /// Appends lines.
    pub fn push(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        if !text.ends_with('\n') {
            self.text.push('\n');
        }
        if self.text.len() > self.limit {
            self.text = last_bytes(&self.text, self.limit).to_owned();
        }
    }

    /// The kept text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Bytes in lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The sha256 of bytes, in hex.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    hex(&sha2::Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_keeps_the_end_and_never_half_a_character() {
        let mut tail = Tail::new(5);
        tail.push("one");
        tail.push("zweiä");
        assert_eq!(tail.as_str(), "eiä\n");
    }
}
