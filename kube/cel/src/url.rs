//! URLs, parsed as strictly as Go's `url.ParseRequestURI`.

use std::collections::BTreeMap;

/// A URL in its parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Url {
    pub text: String,
    pub scheme: String,
    pub host: String,
    pub path: String,
    pub query: String,
}

impl Url {
    pub fn parse(text: &str) -> Result<Self, String> {
        let error = |why: &str| Err(format!("parse {text:?}: {why}"));
        if text.is_empty() {
            return error("empty url");
        }
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return error("net/url: invalid control character in URL");
        }
        let (scheme, rest) = match scheme(text) {
            Ok(parts) => parts,
            Err(why) => return error(why),
        };
        if rest.is_empty() || !rest.starts_with('/') {
            // With a scheme, what follows may be opaque; without, only a path can be requested.
            if scheme.is_empty() || rest.is_empty() {
                return error(if scheme.is_empty() { "invalid URI for request" } else { "empty url" });
            }
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Self { text: text.into(), scheme: scheme.to_lowercase(), query: query.into(), ..Self::default() };
        let path = match rest.strip_prefix("//") {
            Some(after) if !scheme.is_empty() || !rest.starts_with("///") => {
                let (authority, path) = after.find('/').map_or((after, ""), |i| after.split_at(i));
                url.host = match host(authority) {
                    Ok(h) => h,
                    Err(why) => return error(&why),
                };
                path
            }
            _ if rest.starts_with('/') => rest,
            _ => "",
        };
        if let Some(bad) = bad_escape(path) {
            return error(&format!("invalid URL escape {bad:?}"));
        }
        url.path = escape_path(path);
        Ok(url)
    }

    pub fn hostname(&self) -> &str {
        if let Some(v6) = self.host.strip_prefix('[') {
            return v6.split(']').next().unwrap_or_default();
        }
        self.host.split(':').next().unwrap_or_default()
    }

    pub fn port(&self) -> &str {
        let after = self.host.rsplit(']').next().unwrap_or_default();
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    pub fn query(&self) -> BTreeMap<String, Vec<String>> {
        let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|p| !p.is_empty() && !p.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (unescape(key), unescape(value)) {
                out.entry(key).or_default().push(value);
            }
        }
        out
    }
}

fn scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (i, c) in text.bytes().enumerate() {
        match c {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if i > 0 => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' => return Ok(("", text)),
            b':' if i == 0 => return Err("missing protocol scheme"),
            b':' => return Ok((&text[..i], &text[i + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn host(authority: &str) -> Result<String, String> {
    let host = match authority.rsplit_once('@') {
        Some((user, host)) => {
            let fine = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !user.chars().all(fine) {
                return Err("net/url: invalid userinfo".into());
            }
            host
        }
        None => authority,
    };
    let after = match host.strip_prefix('[') {
        Some(v6) => v6.rsplit_once(']').ok_or("missing ']' in host")?.1,
        None => host.find(':').map_or("", |i| &host[i..]),
    };
    let port_ok = after.is_empty() || after.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()));
    if !port_ok {
        return Err(format!("invalid port {after:?} after host"));
    }
    if let Some(c) =
        host.chars().find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-._~!$&'()*+,;=:[]<>\"%".contains(*c))
    {
        return Err(format!("invalid character {:?} in host name", c.to_string()));
    }
    Ok(host.to_owned())
}

fn bad_escape(s: &str) -> Option<&str> {
    let at = s
        .match_indices('%')
        .find(|(i, _)| !s.as_bytes().get(i + 1..i + 3).is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)))?;
    let mut end = (at.0 + 3).min(s.len());
    while !s.is_char_boundary(end) {
        end += 1;
    }
    Some(&s[at.0..end])
}

fn escape_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for b in path.bytes() {
        if b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@/%[]".contains(&b) {
            out.push(b.into());
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

fn unescape(s: &str) -> Option<String> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'+' => out.push(b' '),
            b'%' => {
                let hex = [bytes.next()?, bytes.next()?];
                out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
            }
            b => out.push(b),
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}
