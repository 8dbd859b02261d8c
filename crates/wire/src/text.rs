//! Limits for the length of texts. No function cuts within a character.

/// The first bytes of a text, at most `limit`, followed by `…` if the text is longer.
pub fn truncate_bytes(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mark = '…';
    let mut short = String::with_capacity(end + mark.len_utf8());
    short.push_str(&text[..end]);
    short.push(mark);
    short
}

/// At most `limit` characters of a text. The last of them is `…` if the text is longer.
pub fn truncate_chars(text: &str, limit: usize) -> String {
    if first_chars(text, limit).len() == text.len() {
        return text.to_owned();
    }
    format!("{}…", first_chars(text, limit.saturating_sub(1)))
}

/// At most `limit` characters of a text from elsewhere, on one line: a space replaces each control character. The last character is `…` if the text is
/// longer.
pub fn truncate_line(text: &str, limit: usize) -> String {
    let short = truncate_chars(text, limit);
    short.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The first characters of a text, at most `limit`, without a mark if the text is longer.
pub fn first_chars(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).map_or(text, |(end, _)| &text[..end])
}

/// The last bytes of a text, at most `limit`, without a mark if the text is longer.
pub fn last_bytes(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_within_the_limit_stays_as_it_is() {
        assert_eq!(truncate_bytes("ää", 4), "ää");
        assert_eq!(truncate_chars("ää", 2), "ää");
        assert_eq!(first_chars("ää", 2), "ää");
        assert_eq!(last_bytes("ää", 4), "ää");
        assert_eq!(truncate_chars("", 0), "");
    }

    #[test]
    fn a_longer_text_is_never_cut_within_a_character() {
        assert_eq!(truncate_bytes("ää", 3), "ä…");
        assert_eq!(truncate_bytes("ää", 1), "…");
        assert_eq!(first_chars("äöü", 2), "äö");
        assert_eq!(last_bytes("ää", 3), "ä");
        assert_eq!(last_bytes("ää", 0), "");
    }

    #[test]
    fn the_mark_is_within_a_limit_of_characters() {
        assert_eq!(truncate_chars("abcdef", 4), "abc…");
        assert_eq!(truncate_chars("äöüß", 3), "äö…");
        assert_eq!(truncate_chars("abc", 0), "…");
    }

    #[test]
    fn a_text_from_elsewhere_stays_on_its_line() {
        assert_eq!(truncate_line("short", 5), "short");
        assert_eq!(truncate_line("a\nb\u{1b}[31mc", 5), "a b …");
        assert_eq!(truncate_line("äöüß", 3), "äö…");
    }
}
