//! Tokens. An invalid character is reported and skipped, so that the parser can continue.

use crate::source::Issues;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tok {
    Ident(String),
    /// `` `quoted-name` ``, allowed after a dot only.
    QuotedIdent(String),
    Int(String),
    Uint(String),
    Float(String),
    Str(String),
    Bytes(Vec<u8>),
    Op(&'static str),
    Eof,
}

/// A token, the code point of its start, and its text as written.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub tok: Tok,
    pub pos: usize,
    pub text: String,
}

const OPS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]",
    "{", "}", "in",
];

pub(crate) fn lex(source: &str, issues: &mut Issues) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let mut lexer = Lexer { chars: &chars, at: 0, tokens: Vec::new() };
    lexer.run(issues);
    lexer.tokens
}

struct Lexer<'c> {
    chars: &'c [char],
    at: usize,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn push(&mut self, start: usize, tok: Tok) {
        let text = self.chars[start..self.at].iter().collect();
        self.tokens.push(Token { tok, pos: start, text });
    }

    fn run(&mut self, issues: &mut Issues) {
        while let Some(c) = self.peek(0) {
            let start = self.at;
            if matches!(c, ' ' | '\t' | '\r' | '\n' | '\x0c') {
                self.at += 1;
            } else if c == '/' && self.peek(1) == Some('/') {
                while self.peek(0).is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            } else if self.string_starts() {
                self.string(issues);
            } else if c.is_ascii_digit() || (c == '.' && self.peek(1).is_some_and(|d| d.is_ascii_digit())) {
                self.number();
            } else if c.is_ascii_alphabetic() || c == '_' {
                while self.peek(0).is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                    self.at += 1;
                }
                let name: String = self.chars[start..self.at].iter().collect();
                let tok = if name == "in" { Tok::Op("in") } else { Tok::Ident(name) };
                self.push(start, tok);
            } else if c == '`' && self.quoted_ident() {
            } else if let Some(op) = OPS.iter().find(|op| op.chars().enumerate().all(|(i, o)| self.peek(i) == Some(o)))
            {
                self.at += op.len();
                self.push(start, Tok::Op(op));
            } else {
                self.at += 1;
                issues.report(Some(start), format!("Syntax error: token recognition error at: '{c}'"));
            }
        }
        self.push(self.at, Tok::Eof);
    }

    fn quoted_ident(&mut self) -> bool {
        let start = self.at;
        let mut end = start + 1;
        while self.chars.get(end).is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '))
        {
            end += 1;
        }
        if end == start + 1 || self.chars.get(end) != Some(&'`') {
            return false;
        }
        let name = self.chars[start + 1..end].iter().collect();
        self.at = end + 1;
        self.push(start, Tok::QuotedIdent(name));
        true
    }

    fn number(&mut self) {
        let start = self.at;
        if self.peek(0) == Some('0')
            && matches!(self.peek(1), Some('x' | 'X'))
            && self.peek(2).is_some_and(|c| c.is_ascii_hexdigit())
        {
            self.at += 2;
            while self.peek(0).is_some_and(|c| c.is_ascii_hexdigit()) {
                self.at += 1;
            }
            return self.integer(start);
        }
        let digits = |l: &mut Self| {
            while l.peek(0).is_some_and(|c| c.is_ascii_digit()) {
                l.at += 1;
            }
        };
        digits(self);
        let mut float = false;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            float = true;
            self.at += 1;
            digits(self);
        }
        if matches!(self.peek(0), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
            if self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                float = true;
                self.at += 1 + sign;
                digits(self);
            }
        }
        if float {
            let text = self.chars[start..self.at].iter().collect();
            self.push(start, Tok::Float(text));
        } else {
            self.integer(start);
        }
    }

    fn integer(&mut self, start: usize) {
        let text: String = self.chars[start..self.at].iter().collect();
        if matches!(self.peek(0), Some('u' | 'U')) {
            self.at += 1;
            self.push(start, Tok::Uint(text));
        } else {
            self.push(start, Tok::Int(text));
        }
    }

    /// Whether a quote follows, after at most one `r` and one `b` in any case and order.
    fn string_starts(&self) -> bool {
        let mut i = 0;
        let (mut raw, mut bytes) = (false, false);
        loop {
            match self.peek(i) {
                Some('"' | '\'') => return true,
                Some('r' | 'R') if !raw => raw = true,
                Some('b' | 'B') if !bytes && !raw => bytes = true,
                _ => return false,
            }
            i += 1;
        }
    }

    fn string(&mut self, issues: &mut Issues) {
        let start = self.at;
        let (mut raw, mut bytes) = (false, false);
        while let Some(c) = self.peek(0) {
            match c {
                'r' | 'R' => raw = true,
                'b' | 'B' => bytes = true,
                _ => break,
            }
            self.at += 1;
        }
        let Some(quote) = self.peek(0) else { return };
        let triple = self.peek(1) == Some(quote) && self.peek(2) == Some(quote);
        let width = if triple { 3 } else { 1 };
        self.at += width;
        let body = self.at;
        loop {
            match self.peek(0) {
                Some(c) if c == quote && (!triple || (self.peek(1) == Some(quote) && self.peek(2) == Some(quote))) => {
                    break;
                }
                Some('\n' | '\r') if !triple => return self.unterminated(start, issues),
                None => return self.unterminated(start, issues),
                Some('\\') if !raw => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        let text: Vec<char> = self.chars[body..self.at.min(self.chars.len())].to_vec();
        self.at += width;
        if raw {
            let s: String = text.into_iter().collect();
            self.push(start, if bytes { Tok::Bytes(s.into_bytes()) } else { Tok::Str(s) });
            return;
        }
        match unescape(&text, bytes) {
            Ok(out) if bytes => self.push(start, Tok::Bytes(out)),
            Ok(out) => self.push(start, Tok::Str(String::from_utf8_lossy(&out).into_owned())),
            Err(why) => {
                let what = if bytes { "bytes" } else { "string" };
                issues.report(Some(start), format!("invalid {what} literal: {why}"));
                self.push(start, if bytes { Tok::Bytes(Vec::new()) } else { Tok::Str(String::new()) });
            }
        }
    }

    fn unterminated(&mut self, start: usize, issues: &mut Issues) {
        let end = self.chars[start..].iter().position(|c| *c == '\n').map_or(self.chars.len(), |n| start + n);
        let text: String = self.chars[start..end].iter().collect();
        issues.report(Some(start), format!("Syntax error: token recognition error at: '{text}'"));
        self.at = end;
    }
}

/// Resolves escapes; in bytes literals `\x` and octal escapes are bytes and not code points.
fn unescape(text: &[char], bytes: bool) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::with_capacity(text.len());
    let mut push = |c: char, raw_byte: bool| {
        if raw_byte {
            out.push(u32::from(c) as u8);
        } else {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    };
    let mut i = 0;
    while i < text.len() {
        let c = text[i];
        i += 1;
        if c != '\\' {
            push(c, false);
            continue;
        }
        let Some(&e) = text.get(i) else { return Err("unable to unescape string, found '\\' as last character") };
        i += 1;
        let simple = match e {
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            '\\' | '\'' | '"' | '`' | '?' => Some(e),
            _ => None,
        };
        if let Some(s) = simple {
            push(s, false);
            continue;
        }
        let (start, len, radix, byte) = match e {
            'x' | 'X' => (i, 2, 16, bytes),
            'u' if !bytes => (i, 4, 16, false),
            'U' if !bytes => (i, 8, 16, false),
            '0'..='3' => (i - 1, 3, 8, bytes),
            _ => return Err("unable to unescape string"),
        };
        let digits: String = text.get(start..start + len).ok_or("unable to unescape string")?.iter().collect();
        let n = u32::from_str_radix(&digits, radix).map_err(|_| "unable to unescape string")?;
        push(char::from_u32(n).ok_or("invalid unicode code point")?, byte);
        i = start + len;
    }
    Ok(out)
}
