//! Semantic versions.

use std::cmp::Ordering;

/// A version; what follows `+` does not count in comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Semver {
    pub major: u64,
    pub minor: u64,
    pub patch: u64,
    pre: Vec<Pre>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Pre {
    Number(u64),
    Text(String),
}

fn number(what: &str, text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {text:?}", what.to_lowercase()));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{what} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}

fn identifier(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

impl Semver {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".into());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".into());
        };
        let (major, minor) = (number("Major", major)?, number("Minor", minor)?);
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(a, b)| (a, Some(b)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(a, b)| (a, Some(b)));
        let patch = number("Patch", patch)?;
        let pre = pre.into_iter().flat_map(|p| p.split('.')).map(pre_release).collect::<Result<_, _>>()?;
        for b in build.into_iter().flat_map(|b| b.split('.')) {
            if b.is_empty() {
                return Err("Build meta data is empty".into());
            }
            if !identifier(b) {
                return Err(format!("Invalid character(s) found in build meta data {b:?}"));
            }
        }
        Ok(Self { major, minor, patch, pre })
    }

    /// As `parse`, after forgiving a `v`, missing parts and leading zeroes.
    pub fn parse_tolerant(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for p in parts.iter_mut().filter(|p| p.len() > 1) {
            let trimmed = p.trim_start_matches('0');
            let zero = if trimmed.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "0" };
            *p = format!("{zero}{trimmed}");
        }
        if parts.len() < 3 && parts.last().is_some_and(|p| p.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".into());
        }
        parts.resize(3, "0".into());
        Self::parse(&parts.join("."))
    }

    pub fn cmp(&self, other: &Self) -> Ordering {
        let numbers = |v: &Self| (v.major, v.minor, v.patch);
        // A pre-release comes before its release.
        numbers(self).cmp(&numbers(other)).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (false, false) => self.pre.cmp(&other.pre),
            (a, b) => a.cmp(&b),
        })
    }
}

fn pre_release(text: &str) -> Result<Pre, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".into());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {text:?}"));
        }
        return text.parse().map(Pre::Number).map_err(|_| "value out of range".into());
    }
    if identifier(text) {
        return Ok(Pre::Text(text.into()));
    }
    Err(format!("Invalid character(s) found in prerelease {text:?}"))
}
