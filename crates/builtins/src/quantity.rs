//! Resource quantities (`500m`, `1.5Gi`, `12e6`): parsing, comparing and the one canonical spelling.

use std::cmp::Ordering;
use std::fmt;

const NANO: i128 = 1_000_000_000;
/// Larger amounts are capped, as the API server does.
const MOST: i128 = i64::MAX as i128 * NANO;

/// The way a quantity is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    DecimalExponent,
    BinarySi,
    DecimalSi,
}

/// An amount, exact to a billionth.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// The text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAQuantity(&'static str);

impl fmt::Display for NotAQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotAQuantity {}

const BAD_FORMAT: NotAQuantity =
    NotAQuantity("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'");
const BAD_SUFFIX: NotAQuantity = NotAQuantity("unable to parse quantity's suffix");

impl Quantity {
    /// Reads a quantity.
    ///
    /// # Errors
    /// The text is not a number with an optional suffix that Kubernetes knows.
    pub fn parse(text: &str) -> Result<Self, NotAQuantity> {
        if text.is_empty() {
            return Err(BAD_FORMAT);
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(BAD_FORMAT);
        }
        let (base, exponent, format) = suffix_of(suffix)?;
        let magnitude = scale(whole, fraction, base, exponent);
        let nanos = if negative { -magnitude } else { magnitude };
        Ok(Self { nanos, format })
    }

    /// Rounds up to a thousandth, the finest a resource list keeps.
    pub fn round_up_to_milli(self) -> Self {
        let milli = NANO / 1000;
        let away = if self.nanos < 0 { -(-self.nanos + milli - 1) / milli } else { (self.nanos + milli - 1) / milli };
        Self { nanos: away * milli, ..self }
    }

    /// Whether the amount is below zero.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether the amount is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether the amount has no fraction.
    pub fn is_integer(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The amount as a whole number, rounded up.
    pub fn value(self) -> i64 {
        let up = if self.nanos > 0 { (self.nanos + NANO - 1) / NANO } else { self.nanos / NANO };
        i64::try_from(up).unwrap_or(if up > 0 { i64::MAX } else { i64::MIN })
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Below 1024 a binary suffix says nothing, and a fraction cannot be said with one.
        let small = self.nanos.abs() < 1024 * NANO;
        if self.format == Format::BinarySi && !small {
            let mut amount = self.nanos / NANO + i128::from(self.nanos % NANO > 0);
            let mut power = 0;
            while power < BINARY.len() - 1 && amount % 1024 == 0 {
                amount /= 1024;
                power += 1;
            }
            return write!(f, "{amount}{}", BINARY.get(power).copied().unwrap_or_default());
        }
        let mut amount = self.nanos;
        let mut power = 0;
        while power < DECIMAL.len() - 1 && amount % 1000 == 0 {
            amount /= 1000;
            power += 1;
        }
        match (self.format, power) {
            (Format::DecimalExponent, 3) => write!(f, "{amount}"),
            (Format::DecimalExponent, _) => write!(f, "{amount}e{}", power as i32 * 3 - 9),
            _ => write!(f, "{amount}{}", DECIMAL.get(power).copied().unwrap_or_default()),
        }
    }
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// The base and exponent that a suffix stands for.
fn suffix_of(suffix: &str) -> Result<(u32, i32, Format), NotAQuantity> {
    if suffix.is_empty() {
        return Ok((10, 0, Format::DecimalSi));
    }
    if let Some(power) = BINARY.iter().skip(1).position(|known| *known == suffix) {
        return Ok((2, (power as i32 + 1) * 10, Format::BinarySi));
    }
    if let Some(power) = DECIMAL.iter().position(|known| *known == suffix) {
        return Ok((10, power as i32 * 3 - 9, Format::DecimalSi));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).and_then(|digits| digits.parse::<i32>().ok());
    exponent.map(|exponent| (10, exponent, Format::DecimalExponent)).ok_or(BAD_SUFFIX)
}

/// `whole.fraction * base^exponent` in billionths, rounded up and capped.
fn scale(whole: &str, fraction: &str, base: u32, exponent: i32) -> i128 {
    // 40 digits are more than the cap and the precision can tell apart.
    let digits: String = whole.chars().chain(fraction.chars()).collect();
    let significant = digits.trim_start_matches('0');
    let mut point = fraction.len() as i64 - 9;
    if base == 10 {
        point -= i64::from(exponent);
    }
    let kept = significant.get(..significant.len().min(28)).unwrap_or_default();
    let mut lost = significant.len().saturating_sub(28) as i64;
    let mut rounding = significant.chars().skip(28).any(|c| c != '0');
    let mut amount: i128 = kept.parse().unwrap_or(0);
    if base == 2 {
        amount = amount.saturating_mul(1_i128 << exponent.clamp(0, 60));
    }
    // amount * 10^(lost - point) is the result.
    lost -= point;
    while lost > 0 && amount < MOST && amount != 0 {
        amount = amount.saturating_mul(10);
        lost -= 1;
    }
    while lost < 0 && amount != 0 {
        rounding |= amount % 10 != 0;
        amount /= 10;
        lost += 1;
    }
    (amount + i128::from(rounding)).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Quantity::parse(text).map(|q| q.to_string()).unwrap_or_else(|wrong| wrong.to_string())
    }

    #[test]
    fn a_quantity_has_one_spelling() {
        for (from, to) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0", "0"),
            ("0Gi", "0"),
            ("1500k", "1500k"),
            ("1000k", "1M"),
            ("100Ki", "100Ki"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("12e6", "12e6"),
            ("-1.5", "-1500m"),
            ("1e3", "1e3"),
            ("1000e3", "1e6"),
            ("0.0000000001", "1n"),
            ("99999999999999999999999999999999", "9223372036854775807"),
        ] {
            assert_eq!(canonical(from), to, "{from}");
        }
    }

    #[test]
    fn text_that_is_no_number_is_refused() {
        for text in ["", "abc", "1.2.3", "1KiB", "--1", "."] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn different_spellings_compare_equal() {
        assert_eq!(Quantity::parse("1Gi").ok(), Quantity::parse("1024Mi").ok());
        assert!(Quantity::parse("100m").ok() < Quantity::parse("1").ok());
    }

    #[test]
    fn long_numbers_do_not_overflow() {
        let long = "9".repeat(5000);
        assert_eq!(canonical(&long), "9223372036854775807");
        assert_eq!(canonical(&format!("0.{}1", "0".repeat(5000))), "1n");
        assert_eq!(canonical("1e2000000000"), "9223372036854775807");
    }
}
