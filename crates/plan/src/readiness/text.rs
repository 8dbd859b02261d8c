use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;

/// A time as conditions show it: to the second, so that a message does not change by itself.
pub fn stamp(time: Timestamp) -> String {
    let seconds = Timestamp::from_second(time.as_second()).unwrap_or(time);
    seconds.to_string()
}

/// Whether text of others can be part of a command that a person pastes into a shell, or of the comment after it: some interactive shells run comments.
pub fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain)
}

/// The name of a field manager for messages. Everybody who writes an object chooses that name: it is quoted and escaped unless it is [plain](is_plain).
pub fn manager_name(manager: &str) -> String {
    let name = truncate_line(manager, 63);
    if is_plain(&name) { name } else { format!("{name:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_interprets_is_not_plain() {
        for plain in ["kubectl-cordon", "kube-controller-manager", "a.b_c/d", "v1.36"] {
            assert!(is_plain(plain), "{plain}");
            assert_eq!(manager_name(plain), plain);
        }
        for other in
            ["", "-n", "a b", "a;b", "$(a)", "`a`", "a'b", "a\"b", "a|b", "a#b", "a\nb", "ä", "a\u{202e}b", "*", "~"]
        {
            assert!(!is_plain(other), "{other}");
        }
        assert_eq!(manager_name("a: run `b`\n\"c\""), "\"a: run `b` \\\"c\\\"\"");
    }

    #[test]
    fn moments_are_shown_to_the_second() {
        assert_eq!(stamp("2026-11-16T08:00:00.987Z".parse().unwrap()), "2026-11-16T08:00:00Z");
    }
}
