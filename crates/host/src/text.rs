//! Limits for the length of texts from elsewhere, before they are kept or reported.

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
            self.text = last(&self.text, self.limit).to_owned();
        }
    }

    /// The kept text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The last bytes of a text, at most `limit`, starting at a character boundary.
pub fn last(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// The first bytes of a text, at most `limit`, with a mark if it was cut.
pub fn clip(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
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
        assert_eq!(last("ää", 3), "ä");
        assert_eq!(clip("ää", 3), "ä…");
    }
}
