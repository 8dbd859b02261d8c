//! Parses JSON in one pass, with duplicate fields detected and depth bounded.
//!
//! `serde_json` keeps the last of two equal keys without a word; the API server warns about them or refuses them. The
//! errors are those of Go's decoder.

use serde_json::{Map, Number, Value};

/// Reads one JSON document. The second part is the paths of fields that occur more than once (`spec.foo`); the last one
/// wins, as in Go.
///
/// # Errors
/// What is wrong with the text. Nesting deeper than `limit_depth` is an error too; values are dropped recursively, so
/// keep the limit well below a thread's stack (a thousand levels are safe).
pub fn parse(bytes: &[u8], limit_depth: usize) -> Result<(Value, Vec<String>), String> {
    let mut parser = Parser { bytes, at: 0, depth: 0, limit_depth, duplicates: Vec::new() };
    parser.skip_space();
    let value = parser.value(&ParsePath::Root)?;
    parser.skip_space();
    if parser.peek().is_some() {
        return Err(parser.unexpected("after top-level value"));
    }
    Ok((value, parser.duplicates))
}

/// Where the parser is, linked towards the root so that a path costs nothing until it is asked for.
enum ParsePath<'a> {
    Root,
    Field(&'a ParsePath<'a>, &'a str),
    Item(&'a ParsePath<'a>, usize),
}

impl ParsePath<'_> {
    fn write(&self, out: &mut String) {
        match self {
            Self::Root => {}
            Self::Field(parent, name) => {
                parent.write(out);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Self::Item(parent, at) => {
                parent.write(out);
                out.push_str(&format!("[{at}]"));
            }
        }
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    limit_depth: usize,
    duplicates: Vec<String>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The complaint about the present character.
    fn unexpected(&self, context: &str) -> String {
        match self.peek() {
            None => "unexpected end of JSON input".to_owned(),
            Some(byte) => {
                let shown = match byte {
                    b'\'' => r"'\''".to_owned(),
                    b'"' => "'\"'".to_owned(),
                    byte => {
                        let quoted = crate::text::quote(&char::from(byte).to_string());
                        format!("'{}'", quoted.trim_matches('"'))
                    }
                };
                format!("invalid character {shown} {context}")
            }
        }
    }

    fn value(&mut self, place: &ParsePath<'_>) -> Result<Value, String> {
        match self.peek() {
            Some(b'{') => self.nested(|parser| parser.object(place)),
            Some(b'[') => self.nested(|parser| parser.array(place)),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b't') => self.literal("true", Value::Bool(true)),
            Some(b'f') => self.literal("false", Value::Bool(false)),
            Some(b'n') => self.literal("null", Value::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.unexpected("looking for beginning of value")),
        }
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Result<Value, String>) -> Result<Value, String> {
        self.depth += 1;
        if self.depth > self.limit_depth {
            return Err("exceeded max depth".to_owned());
        }
        self.at += 1;
        self.skip_space();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self, place: &ParsePath<'_>) -> Result<Value, String> {
        let mut fields = Map::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(fields));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("looking for beginning of object key string"));
            }
            let name = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.unexpected("after object key"));
            }
            self.at += 1;
            self.skip_space();
            let here = ParsePath::Field(place, &name);
            let value = self.value(&here)?;
            if fields.contains_key(&name) {
                let mut path = String::new();
                here.write(&mut path);
                if !self.duplicates.contains(&path) && self.duplicates.len() < 100 {
                    self.duplicates.push(path);
                }
            }
            fields.insert(name, value);
            self.skip_space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.skip_space();
                }
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(fields));
                }
                _ => return Err(self.unexpected("after object key:value pair")),
            }
        }
    }

    fn array(&mut self, place: &ParsePath<'_>) -> Result<Value, String> {
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(&ParsePath::Item(place, items.len()))?);
            self.skip_space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.skip_space();
                }
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.unexpected("after array element")),
            }
        }
    }

    fn literal(&mut self, word: &str, value: Value) -> Result<Value, String> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                return Err(self.unexpected(&format!("in literal {word} (expecting '{}')", char::from(expected))));
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn digits(&mut self, context: &str) -> Result<(), String> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.unexpected(context));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, String> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits("in numeric literal")?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        let text = String::from_utf8_lossy(&self.bytes[start..self.at]);
        if let Ok(int) = text.parse::<i64>() {
            return Ok(int.into());
        }
        let real = text.parse::<f64>().ok().filter(|real| real.is_finite());
        let too_large = || format!("json: cannot unmarshal number {text} into Go value of type float64");
        let real = real.ok_or_else(too_large)?;
        // Go writes a whole float without a fraction, so that it comes back as an integer.
        if real.fract() == 0.0 && real.abs() < 9e18 {
            return Ok((real as i64).into());
        }
        Number::from_f64(real).map(Value::Number).ok_or_else(too_large)
    }

    fn string(&mut self) -> Result<String, String> {
        self.at += 1;
        let start = self.at;
        let mut plain = true;
        loop {
            match self.peek() {
                None => return Err("unexpected end of JSON input".to_owned()),
                Some(b'"') => break,
                Some(b'\\') => {
                    plain = false;
                    self.at += 1;
                    self.escape()?;
                }
                Some(0..=0x1f) => return Err(self.unexpected("in string literal")),
                Some(_) => self.at += 1,
            }
        }
        let raw = &self.bytes[start..self.at];
        self.at += 1;
        let text = String::from_utf8_lossy(raw);
        Ok(if plain { text.into_owned() } else { unescape(&text) })
    }

    /// Steps over what follows a backslash, which must be well formed.
    fn escape(&mut self) -> Result<(), String> {
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|b| b.is_ascii_hexdigit()) {
                        return Err(self.unexpected("in \\u hexadecimal character escape"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.unexpected("in string escape code")),
        }
        Ok(())
    }
}

/// Resolves escapes that are known to be well formed. Halves of a surrogate pair become U+FFFD.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = |text: &str| text.strip_prefix("\\u")?.get(..4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let escaped = rest.as_bytes().get(at + 1).copied().unwrap_or(b'\\');
        let mut taken = at + 2;
        match escaped {
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                taken = at + 6;
                let first = code(&rest[at..]).unwrap_or(0xfffd);
                let second = rest.get(taken..).and_then(code).filter(|low| (0xdc00..0xe000).contains(low));
                match (first, second) {
                    (0xd800..0xdc00, Some(low)) => {
                        taken += 6;
                        let pair = 0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                        out.push(char::from_u32(pair).unwrap_or('\u{fffd}'));
                    }
                    _ => out.push(char::from_u32(first).unwrap_or('\u{fffd}')),
                }
            }
            other => out.push(char::from(other)),
        }
        rest = rest.get(taken..).unwrap_or("");
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_reads_what_serde_json_reads() {
        let texts = [
            r#"{"a":[1,-2,3.5,1e3,true,false,null,"x\n\u00e9\ud83d\ude00\/"],"b":{"c":{}},"d":[]}"#,
            "  [ ]  ",
            "\"é\"",
            "0",
        ];
        for text in texts {
            let expected: Value = serde_json::from_str(text).unwrap();
            let (value, duplicates) = parse(text.as_bytes(), 100).unwrap();
            assert_eq!(value.to_string().replace("1000.0", "1000"), expected.to_string().replace("1000.0", "1000"));
            assert!(duplicates.is_empty());
        }
    }

    #[test]
    fn duplicate_fields_are_named_and_the_last_wins() {
        let (value, duplicates) = parse(br#"{"spec":{"a":1,"a":2,"l":[{"b":1,"b":2}]},"spec":{"a":3}}"#, 10).unwrap();
        assert_eq!(value, json!({"spec": {"a": 3}}));
        assert_eq!(duplicates, ["spec.a", "spec.l[0].b", "spec"]);
    }

    #[test]
    fn broken_text_is_explained_as_go_does() {
        let table = [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("{]", "invalid character ']' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("1 x", "invalid character 'x' after top-level value"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("1.", "unexpected end of JSON input"),
            ("1e999", "json: cannot unmarshal number 1e999 into Go value of type float64"),
        ];
        for (text, message) in table {
            assert_eq!(parse(text.as_bytes(), 10).unwrap_err(), message, "{text:?}");
        }
    }

    #[test]
    fn endless_nesting_is_refused() {
        let text = "[".repeat(1_000_000);
        assert_eq!(parse(text.as_bytes(), 500).unwrap_err(), "exceeded max depth");
    }

    #[test]
    fn any_bytes_give_an_error_or_a_value() {
        let seed = br#"{"a":["\u00e9",1.5e3,{"b":null}],"c":"\ud800x"}"#;
        for at in 0..seed.len() {
            for byte in [0u8, b'"', b'\\', b'{', b']', 0xff, b'u', b'9'] {
                let mut bytes = seed.to_vec();
                bytes[at] = byte;
                let _ = parse(&bytes, 10);
                let _ = parse(&bytes[..at], 10);
            }
        }
    }
}
