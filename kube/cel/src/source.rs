//! Positions in an expression and the errors that point at them.

use std::fmt;

/// One mistake in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// One-based line, or -1 when the mistake has no place.
    pub line: i64,
    /// Zero-based column in code points, or -1.
    pub column: i64,
    /// The message of the issue.
    pub message: String,
}

/// All that is wrong with an expression, displayed as the reference implementation does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// The mistakes in the order of their positions.
    pub issues: Vec<Issue>,
    source: Vec<String>,
}

/// The reference implementation reports no more issues after this number.
const MAX_ISSUES: usize = 100;

/// Collects issues while a phase continues after the first.
#[derive(Debug)]
pub(crate) struct Issues {
    chars: Vec<char>,
    list: Vec<Issue>,
}

impl Issues {
    pub fn new(source: &str) -> Self {
        Self { chars: source.chars().collect(), list: Vec::new() }
    }

    /// Reports at a code point offset; `None` means that the mistake has no place.
    pub fn report(&mut self, pos: Option<usize>, message: impl Into<String>) {
        if self.list.len() >= MAX_ISSUES {
            return;
        }
        let (line, column) = match pos {
            None => (-1, -1),
            Some(p) => {
                let before = &self.chars[..p.min(self.chars.len())];
                let line = before.iter().filter(|c| **c == '\n').count();
                let column = before.iter().rev().take_while(|c| **c != '\n').count();
                (line as i64 + 1, column as i64)
            }
        };
        self.list.push(Issue { line, column, message: message.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn into_error(mut self) -> CompileError {
        self.list.sort_by_key(|i| (i.line, i.column));
        let text: String = self.chars.iter().collect();
        CompileError { issues: self.list, source: text.split('\n').map(str::to_owned).collect() }
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.issues.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "ERROR: <input>:{}:{}: {}", issue.line, issue.column + 1, issue.message)?;
            let Some(line) = usize::try_from(issue.line - 1).ok().and_then(|n| self.source.get(n)) else { continue };
            if line.len() > 16384 {
                continue;
            }
            write!(f, "\n | {}\n | ", line.replace('\t', " "))?;
            let column = usize::try_from(issue.column).unwrap_or(0);
            let mut chars = line.chars();
            for c in chars.by_ref().take(column) {
                f.write_str(if c.len_utf8() > 1 { "\u{ff0e}" } else { "." })?;
            }
            f.write_str(if chars.next().is_some_and(|c| c.len_utf8() > 1) { "\u{ff3e}" } else { "^" })?;
        }
        Ok(())
    }
}

impl std::error::Error for CompileError {}
