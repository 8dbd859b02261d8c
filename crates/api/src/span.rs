use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration as people write it: `90s`, `24h`, `1h30m`, `500ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// The error for a text that is not a [`Span`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a duration: write numbers with units h, m, s or ms, such as 90s or 1h30m")]
pub struct NotASpan(String);

impl Span {
    /// Returns a span of seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns a span of minutes.
    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes * 60)
    }
}

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let wrong = || NotASpan(text.to_owned());
        let mut rest = text;
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            rest = &rest[digits..];
            let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let unit = match &rest[..end] {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1000,
                "ms" => 1,
                _ => return Err(wrong()),
            };
            total = number.checked_mul(unit).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
            rest = &rest[end..];
        }
        Ok(Self(Duration::from_millis(total)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
            if left >= size {
                write!(f, "{}{unit}", left / size)?;
                left %= size;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Format that admission allows. The number of digits is limited so that no rule overflows when it computes with the duration.
const PATTERN: &str = "([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?";

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": format!("self != '' && self.matches('^{PATTERN}$') && duration(self) <= duration('720h')"),
                "message": crate::text::DURATION,
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_the_servers_allow_is_read_and_printed_as_the_same_time(text in PATTERN) {
            prop_assume!(!text.is_empty());
            let span: Span = text.parse().unwrap();
            prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
    }

    #[test]
    fn a_span_reads_and_prints_as_people_write_it() {
        for (text, millis, printed) in [
            ("90s", 90_000, "1m30s"),
            ("24h", 86_400_000, "24h"),
            ("1h30m", 5_400_000, "1h30m"),
            ("500ms", 500, "500ms"),
            ("0s", 0, "0s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0.as_millis(), millis);
            assert_eq!(span.to_string(), printed);
        }
    }

    #[test]
    fn what_is_not_a_span_is_refused_with_an_example() {
        for text in ["", "5", "s", "-1s", "1d", "1.5h", "99999999999999999999h", "5 s"] {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.contains("such as 90s"), "{error}");
        }
    }
}
