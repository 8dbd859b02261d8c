use jiff::Timestamp;

/// A time as conditions show it: to the second, so that a message does not change by itself.
pub fn stamp(time: Timestamp) -> String {
    let seconds = Timestamp::from_second(time.as_second()).unwrap_or(time);
    seconds.to_string()
}

/// The first `most` characters, without control characters: text of others becomes part of our messages.
pub fn cut(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most * 4));
    for (count, c) in text.chars().enumerate() {
        if count == most {
            out.push('…');
            break;
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_cut_and_stays_on_its_line() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("a\nb\u{1b}[31mc", 4), "a b …");
        assert_eq!(cut("äöüß", 3), "äöü…");
    }

    #[test]
    fn moments_are_shown_to_the_second() {
        assert_eq!(stamp("2026-11-16T08:00:00.987Z".parse().unwrap()), "2026-11-16T08:00:00Z");
    }
}
