//! Text from hosts, made safe for people: short, and without control characters for terminals or logs.

/// Characters of a host's text in one message.
const SHOWN: usize = 512;

/// The last line of a text.
pub(crate) fn last_line(said: &[u8]) -> String {
    // Every character has at most four bytes: only that much is read.
    let tail = &said[said.len().saturating_sub(SHOWN * 4)..];
    let text = String::from_utf8_lossy(tail);
    let text = text.trim();
    let from = text.chars().count().saturating_sub(SHOWN);
    let mut shown = String::with_capacity(text.len().min(SHOWN));
    for character in text.chars().skip(from) {
        // Escaping makes the text longer.
        if shown.len() > SHOWN {
            shown.push('…');
            break;
        }
        match character {
            '\r' => {}
            '\n' => shown.push_str("; "),
            hidden if hidden.is_control() || reorders(hidden) => shown.extend(hidden.escape_unicode()),
            plain => shown.push(plain),
        }
    }
    shown
}

/// The start of a text that is part of a message, bounded and with control characters escaped.
pub(crate) fn sanitized(text: String, longest: usize) -> String {
    if text.len() <= longest && !text.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || reorders(c)) {
        return text;
    }
    let mut tamed = String::with_capacity(text.len().min(longest));
    for character in text.chars() {
        if tamed.len() + character.len_utf8() > longest {
            break;
        }
        match character {
            '\n' | '\t' => tamed.push(character),
            '\r' => {}
            hidden if hidden.is_control() || reorders(hidden) => tamed.push('\u{fffd}'),
            plain => tamed.push(plain),
        }
    }
    tamed
}

/// Whether a character makes a terminal or a page show others than the present ones.
fn reorders(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_says_is_shown_in_one_short_line() {
        assert_eq!(last_line(b"sh: 1: gzip: not found\r\n"), "sh: 1: gzip: not found");
        assert_eq!(last_line(b"one\ntwo\n"), "one; two");
        assert_eq!(last_line(b"\x1b[2Jgone"), "\\u{1b}[2Jgone");
        assert_eq!(last_line("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(last_line(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        assert_eq!(last_line(&vec![b'x'; 10 << 20]).len(), SHOWN);
        assert!(last_line(&vec![7; 10 << 20]).len() < SHOWN + 16);
    }

    #[test]
    fn a_text_of_a_host_is_cut_where_a_character_ends() {
        assert_eq!(sanitized("plain\ttext\n".into(), 100), "plain\ttext\n");
        assert_eq!(sanitized("äöü".into(), 3), "ä");
        assert_eq!(sanitized("a\x07b\x1b".into(), 100), "a\u{fffd}b\u{fffd}");
    }
}
