//! Text for a terminal. Text from hosts or from objects of other users may contain control characters.

use fleetwright_api::{Condition, Status};
pub(crate) use fleetwright_wire::text::truncate_chars as cut;
use jiff::Timestamp;

/// The text on one line and without control characters, so that no escape sequence reaches the terminal.
pub(crate) fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim().chars() {
        match c {
            '\n' | '\t' | '\r' => {
                if !out.ends_with(' ') {
                    out.push(' ');
                }
            }
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Several lines, without control characters.
pub(crate) fn lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// The time between two moments, in the notation of kubectl.
pub(crate) fn ago(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats rows with aligned columns.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut text = String::new();
        for (at, cell) in row.iter().enumerate() {
            text.push_str(cell);
            if at + 1 < row.len() {
                let gap = widths[at].saturating_sub(cell.chars().count()) + 2;
                text.extend(std::iter::repeat_n(' ', gap));
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// Conditions with a title, failing ones first; empty without conditions.
pub(crate) fn conditions(conditions: &[Condition], now: Timestamp) -> String {
    if conditions.is_empty() {
        return String::new();
    }
    let mut sorted: Vec<_> = conditions.iter().collect();
    sorted.sort_by_key(|condition| match condition.status {
        Status::False => 0,
        Status::Unknown => 1,
        Status::True => 2,
    });
    let rows: Vec<_> = sorted
        .iter()
        .map(|condition| {
            vec![
                format!("  {}", condition.type_),
                condition.status.as_str().to_owned(),
                line(&condition.reason),
                ago(condition.last_transition_time, now),
                line(&condition.message),
            ]
        })
        .collect();
    format!("\nConditions:\n{}", table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_text_reaches_a_terminal() {
        assert_eq!(line("a\n\tb\u{1b}[31mc\u{7}"), "a b\u{fffd}[31mc\u{fffd}");
        assert_eq!(lines("a\nb\u{1b}"), "a\nb\u{fffd}");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [
            vec!["a".to_owned(), "é".to_owned(), "x".to_owned()],
            vec!["bbb".to_owned(), "cc".to_owned(), String::new()],
        ];
        assert_eq!(table(&rows), "a    é   x\nbbb  cc\n");
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds: i64| ago(start, start + jiff::SignedDuration::from_secs(seconds));
        assert_eq!(
            [after(5), after(119), after(120), after(7200), after(200_000), after(-3)],
            ["5s", "119s", "2m", "2h", "2d", "0s"]
        );
    }
}
