//! Patterns in the syntax of Go's `regexp`, compiled to linear-time automata.

use regex::{Regex, RegexBuilder};

/// What a compiled pattern may take in memory; Kubernetes bounds the pattern by its cost only.
const SIZE_LIMIT: usize = 4 << 20;

/// Compiles a pattern; the error is one line.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(&translate(pattern))
        .size_limit(SIZE_LIMIT)
        .dfa_size_limit(SIZE_LIMIT)
        .nest_limit(250)
        .build()
        .map_err(|e| {
            let text = e.to_string();
            let why = match text.lines().last().unwrap_or_default().trim_start_matches("error: ") {
                "unclosed character class" => "missing closing ]",
                "unclosed group" => "missing closing )",
                "unopened group" => "unexpected )",
                other => other,
            };
            format!("error parsing regexp: {why}: `{pattern}`")
        })
}

/// Where the two syntaxes differ: Perl classes are ASCII in Go, brackets do not nest, and `\Q…\E` quotes.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    // A `]` right after the opening is a member, as is a `^` that follows nothing.
    let mut class_start = false;
    while let Some(c) = chars.next() {
        let first = std::mem::take(&mut class_start);
        match c {
            '\\' => match chars.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.push_str("[\\t\\n\\f\\r ]"),
                Some('S') => out.push_str("[^\\t\\n\\f\\r ]"),
                Some('b') if !in_class => out.push_str("(?-u:\\b)"),
                Some('B') if !in_class => out.push_str("(?-u:\\B)"),
                Some('Q') if !in_class => {
                    let mut quoted = String::new();
                    while let Some(q) = chars.next() {
                        if q == '\\' && chars.peek() == Some(&'E') {
                            chars.next();
                            break;
                        }
                        quoted.push(q);
                    }
                    out.push_str(&regex::escape(&quoted));
                }
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                class_start = true;
                out.push('[');
            }
            '^' if in_class && first => {
                class_start = true;
                out.push('^');
            }
            ']' if in_class && first => out.push_str("\\]"),
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '[' if chars.peek() == Some(&':') => {
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if in_class => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (pattern, text, want) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "१२", false),
            (r"^[\w-]+$", "a-b", true),
            (r"^[[a]$", "[", true),
            (r"^[]a]+$", "]a", true),
            (r"^[a&&b]+$", "&", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^[^\s]$", "x", true),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(text), want, "{pattern} on {text}");
        }
    }

    #[test]
    fn a_pattern_that_would_explode_is_refused() {
        assert!(compile("((((a{1000}){1000}){1000}){1000})").is_err());
        assert!(compile(&"(".repeat(10_000)).is_err());
    }
}
