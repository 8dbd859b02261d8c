//! Quantities (`500m`, `1.5Gi`, `12e6`) as `resource.Quantity` of Kubernetes: exact amounts, and their canonical form.
//!
//! Amounts are exact to 35 digits; further digits round up, away from zero. Kubernetes keeps any number of digits, so that
//! the author of the text decides how much memory it takes.

use std::cmp::Ordering;
use std::fmt;

/// The finest amount is a billionth; finer ones round up.
const NANO: i64 = -9;
const BILLION: i128 = 1_000_000_000;
/// The greatest amount with a binary suffix, in whole units; greater amounts are cut to it.
const MAX_BINARY: i128 = i64::MAX as i128;
/// The number of digits of an amount. 128 bits hold the sum of two, multiplied by 100 for its canonical form.
const DIGITS: usize = 35;
/// 64 bits hold every number of this many digits.
const DIGITS_64: usize = 18;

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// The kind of suffix that a quantity was written with, and is written with again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    Decimal,
    Exponent,
    Binary,
}

/// An amount. Quantities are equal if their amounts are: `1Gi` is `1024Mi`.
#[derive(Clone, Debug)]
pub struct Quantity {
    /// The amount is `mantissa * 10^exponent`.
    mantissa: i128,
    /// At least [`NANO`].
    exponent: i64,
    notation: Notation,
    /// Whether Kubernetes holds the amount as a 64-bit mantissa and an exponent. Rules can tell, by `isInteger`.
    small: bool,
    /// The given text, if Kubernetes takes it for canonical by a quick look. It is not quite always: `+2` stays.
    given: Option<String>,
}

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// It is not a number with a suffix.
    Format,
    /// The number has no digits.
    Number,
    /// The suffix is unknown.
    Suffix,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => {
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            Self::Number => "unable to parse numeric part of quantity",
            Self::Suffix => "unable to parse quantity's suffix",
        })
    }
}

impl std::error::Error for ParseError {}

impl Quantity {
    /// Reads a quantity. Like Kubernetes it reads most numbers without digits as zero: `+`, `.`, `Ki`.
    ///
    /// # Errors
    /// The text is not a number with an optional suffix that Kubernetes knows.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Format);
        }
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches('0');
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        if !suffix_is_well_formed(suffix) {
            return Err(ParseError::Format);
        }
        let (notation, power) = parse_suffix(suffix).ok_or(ParseError::Suffix)?;
        let parsed = match parse_small(whole, fraction, notation, power) {
            Some((small, canonical)) => Self { given: canonical.then(|| text.to_owned()), ..small },
            None if !text[..text.len() - suffix.len()].contains(|c: char| c.is_ascii_digit()) => {
                return Err(ParseError::Number);
            }
            None if notation == Notation::Binary => parse_binary(whole, fraction, power),
            None => parse_decimal(whole, fraction, notation, power),
        };
        Ok(if negative { Self { mantissa: -parsed.mantissa, ..parsed } } else { parsed })
    }

    /// Rounds up, away from zero, to a thousandth: the finest amount in a list of resources.
    pub fn round_up_to_milli(self) -> Self {
        const MILLI: i64 = -3;
        if self.exponent >= MILLI {
            return self;
        }
        Self { mantissa: self.at_exponent(MILLI), exponent: MILLI, given: None, ..self }
    }

    /// Whether the amount is below zero.
    pub fn is_negative(&self) -> bool {
        self.mantissa < 0
    }

    /// Whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    /// -1, 0 or 1, for an amount below, at or above zero.
    pub fn signum(&self) -> i64 {
        self.mantissa.signum() as i64
    }

    /// Whether the amount has no fraction.
    pub fn is_integer(&self) -> bool {
        self.exponent >= 0 || self.mantissa % power_of_ten(-self.exponent) == 0
    }

    /// The amount as a whole number: rounded up, away from zero, and cut to what 64 bits hold.
    pub fn value(&self) -> i64 {
        let cut = if self.is_negative() { i64::MIN } else { i64::MAX };
        let whole = if self.exponent < 0 { Some(self.at_exponent(0)) } else { self.whole() };
        whole.and_then(|whole| i64::try_from(whole).ok()).unwrap_or(cut)
    }

    /// The amount as Kubernetes' `AsInt64` returns it: not if there was a fraction, even if it was zero, and not if the
    /// text had more digits than are read the quick way.
    pub fn as_i64(&self) -> Option<i64> {
        if !self.small || self.exponent < 0 {
            return None;
        }
        i64::try_from(self.whole()?).ok()
    }

    /// The amount as a floating-point number, with the same loss as in Kubernetes.
    pub fn as_approximate_f64(&self) -> f64 {
        let factor: f64 = format!("1e{}", self.exponent).parse().unwrap_or(f64::INFINITY);
        if self.is_zero() { 0.0 } else { self.mantissa as f64 * factor }
    }

    /// The sum of two amounts.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let small = self.small && other.small;
        let (Some(left), Some(right)) = (self.top(), other.top()) else {
            let rest = if self.is_zero() { other } else { self };
            return Self { small, given: None, ..rest.clone() };
        };
        // Exact, unless that takes more digits than there are.
        let exact = self.exponent.min(other.exponent);
        let exponent = exact.max(left.max(right) - DIGITS as i64 + 1);
        let (left, right) = (self.at_exponent(exponent), other.at_exponent(exponent));
        let mantissa = left + right;
        let small = small && exponent == exact && [left, right, mantissa].iter().all(|n| i64::try_from(*n).is_ok());
        Self { mantissa, exponent, notation: self.notation, small, given: None }
    }

    /// The difference of two amounts.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&Self { mantissa: -other.mantissa, given: None, ..other.clone() })
    }

    /// The power of ten of the first digit; zero has no first digit.
    fn top(&self) -> Option<i64> {
        self.mantissa.unsigned_abs().checked_ilog10().map(|digits| self.exponent + i64::from(digits))
    }

    /// The mantissa that goes with another exponent, rounded up, away from zero, if that is greater. If it is smaller, it is
    /// less than [`DIGITS`] below the first digit.
    fn at_exponent(&self, exponent: i64) -> i128 {
        let by = exponent - self.exponent;
        if by <= 0 {
            return self.mantissa.saturating_mul(power_of_ten(-by));
        }
        divide_up(self.mantissa, by)
    }

    /// The amount, if it is a whole number of at most 128 bits.
    fn whole(&self) -> Option<i128> {
        if self.is_zero() {
            return Some(0);
        }
        if self.exponent < 0 {
            return self.is_integer().then(|| self.at_exponent(0));
        }
        let factor = u32::try_from(self.exponent).ok().and_then(|exponent| 10_i128.checked_pow(exponent))?;
        self.mantissa.checked_mul(factor)
    }
}

impl From<i64> for Quantity {
    fn from(amount: i64) -> Self {
        Self { mantissa: amount.into(), exponent: 0, notation: Notation::Decimal, small: true, given: None }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
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
        let signs = self.signum().cmp(&other.signum());
        if signs.is_ne() || self.is_zero() {
            return signs;
        }
        let size = self.top().cmp(&other.top()).then_with(|| {
            // The first digits have the same place, so that the exponents differ by no more than the mantissas have digits.
            let exponent = self.exponent.min(other.exponent);
            let size = |quantity: &Self| {
                let factor = 10_u128.saturating_pow((quantity.exponent - exponent) as u32);
                quantity.mantissa.unsigned_abs().saturating_mul(factor)
            };
            size(self).cmp(&size(other))
        });
        if self.is_negative() { size.reverse() } else { size }
    }
}

/// The canonical form: no fraction, the largest suffix that allows it, the kind of suffix that was given.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(given) = &self.given {
            return f.write_str(given);
        }
        if self.is_zero() {
            return f.write_str("0");
        }
        // A binary suffix neither makes an amount below 1024 shorter nor can be used with a fraction.
        let binary = self.whole().filter(|whole| self.notation == Notation::Binary && whole.abs() >= 1024);
        if let Some(mut amount) = binary {
            let mut power = 0;
            while power + 1 < BINARY.len() && amount % 1024 == 0 {
                amount /= 1024;
                power += 1;
            }
            return write!(f, "{amount}{}", BINARY[power]);
        }
        let (mut amount, mut exponent) = (self.mantissa, self.exponent);
        while amount % 10 == 0 {
            amount /= 10;
            exponent += 1;
        }
        while exponent.rem_euclid(3) != 0 {
            amount *= 10;
            exponent -= 1;
        }
        let suffix = usize::try_from(exponent / 3 + 3).ok().and_then(|at| DECIMAL.get(at));
        match suffix {
            Some(_) if self.notation == Notation::Exponent && exponent != 0 => write!(f, "{amount}e{exponent}"),
            Some(suffix) if self.notation != Notation::Exponent => write!(f, "{amount}{suffix}"),
            Some(_) => write!(f, "{amount}"),
            // There is no suffix above E.
            None => write!(f, "{amount}e{exponent}"),
        }
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn suffix_is_well_formed(suffix: &str) -> bool {
    let number = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    number.strip_prefix(['-', '+']).unwrap_or(number).bytes().all(|b| b.is_ascii_digit())
}

/// The notation, and the power of ten or of 1024.
fn parse_suffix(suffix: &str) -> Option<(Notation, i64)> {
    if let Some(at) = DECIMAL.iter().position(|name| *name == suffix) {
        return Some((Notation::Decimal, at as i64 * 3 + NANO));
    }
    if let Some(power) = BINARY.iter().position(|name| *name == suffix) {
        return Some((Notation::Binary, power as i64));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((Notation::Exponent, exponent.into()))
}

/// The quick way, as in Kubernetes: which amounts are held in 64 bits, and whether their text is taken for canonical.
fn parse_small(whole: &str, fraction: &str, notation: Notation, power: i64) -> Option<(Quantity, bool)> {
    let digits = whole.len().max(1) + fraction.len();
    let exponent = if notation == Notation::Binary { 0 } else { power - fraction.len() as i64 };
    let is_small = match notation {
        // A power of 1024 is counted as three digits.
        Notation::Binary => fraction.is_empty() && digits as i64 + power * 3 < 15,
        Notation::Decimal | Notation::Exponent => digits <= DIGITS_64 && exponent >= NANO,
    };
    if !is_small {
        return None;
    }
    let shifted = format!("{whole}{fraction}");
    let number: i128 = shifted.parse().unwrap_or(0);
    let (mantissa, canonical) = match notation {
        Notation::Binary => (number << (10 * power), number % 8 != 0),
        Notation::Decimal | Notation::Exponent => {
            (number, exponent % 3 == 0 && !whole.is_empty() && !shifted.ends_with("000"))
        }
    };
    Some((Quantity { mantissa, exponent, notation, small: true, given: None }, canonical))
}

/// An amount with a binary suffix: in billionths, rounded up, at most [`MAX_BINARY`].
fn parse_binary(whole: &str, fraction: &str, power: i64) -> Quantity {
    let unit = BILLION << (10 * power);
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(i128::MAX) };
    // From the last digit to the first: each step divides what is exact so far by ten.
    let (mut part, mut lost) = (0_i128, false);
    for digit in fraction.bytes().rev() {
        let sum = i128::from(digit - b'0') * unit + part;
        lost |= sum % 10 != 0;
        part = sum / 10;
    }
    let amount = whole.saturating_mul(unit).saturating_add(part + i128::from(lost)).min(MAX_BINARY * BILLION);
    Quantity { mantissa: amount, exponent: NANO, notation: Notation::Binary, small: false, given: None }
}

/// An amount with a decimal suffix or exponent, rounded up to [`DIGITS`] and to billionths.
fn parse_decimal(whole: &str, fraction: &str, notation: Notation, power: i64) -> Quantity {
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    let (kept, cut) = digits.split_at(digits.len().min(DIGITS));
    let mut mantissa: i128 = kept.parse().unwrap_or(0);
    let mut exponent = power - fraction.len() as i64 + cut.len() as i64;
    let lost = cut.bytes().any(|digit| digit != b'0');
    if exponent < NANO {
        // One more digit tells that something was lost, so that the division rounds up.
        mantissa = divide_up(mantissa * 10 + i128::from(lost), NANO - exponent + 1);
        exponent = NANO;
    } else {
        mantissa += i128::from(lost);
    }
    Quantity { mantissa, exponent, notation, small: false, given: None }
}

/// `amount / 10^power`, rounded up, away from zero.
fn divide_up(amount: i128, power: i64) -> i128 {
    let by = power_of_ten(power);
    amount / by + if amount % by == 0 { 0 } else { amount.signum() }
}

/// `10^power`, or the greatest number if that is greater.
fn power_of_ten(power: i64) -> i128 {
    10_i128.saturating_pow(u32::try_from(power).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Quantity::parse(text).map_or_else(|error| error.to_string(), |quantity| quantity.to_string())
    }

    fn quantity(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    #[test]
    fn each_quantity_has_one_form() {
        for (given, wanted) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("-0", "0"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("0.500", "500m"),
            ("1.0", "1"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1500k", "1500k"),
            ("1000k", "1M"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("100Ki", "100Ki"),
            ("1000Ki", "1000Ki"),
            ("1025Ki", "1025Ki"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1.0001Ki", "1024102400u"),
            ("1023.5Ki", "1048064"),
            ("12e6", "12e6"),
            ("1e3", "1e3"),
            ("12e2", "1200"),
            ("100e1", "1e3"),
            ("1000e3", "1e6"),
            ("1e20", "100e18"),
            ("1e1000", "10e999"),
            ("-1.5", "-1500m"),
            ("-1.10", "-1100m"),
            ("-1.5Gi", "-1536Mi"),
            ("0.0000000001", "1n"),
            ("-0.0000000001", "-1n"),
            ("1.00000000049", "1000000001n"),
            ("1e-2000000000", "1e-9"),
            ("8Ei", "9223372036854775807"),
            ("-8Ei", "-9223372036854775807"),
            ("123456789012345678901", "123456789012345678901"),
            ("1000000000000000000000Ki", "9223372036854775807"),
        ] {
            assert_eq!(canonical(given), wanted, "{given}");
        }
    }

    #[test]
    fn a_large_amount_keeps_its_exponent_where_there_is_no_suffix() {
        assert_eq!(canonical("100000E"), "100e21");
        assert_eq!(canonical("1000000000000000000000"), "1e21");
    }

    #[test]
    fn a_text_that_looks_canonical_stays() {
        for text in ["500m", "1Gi", "1k", "102400m", "1e3", "-3", "+2", "5.", "1234567.891k", "007"] {
            assert_eq!(canonical(text), text);
        }
        assert_eq!(quantity("+2").round_up_to_milli().to_string(), "+2");
        assert_eq!(quantity("+2").plus(&quantity("1")).to_string(), "3");
    }

    #[test]
    fn a_text_that_is_not_a_quantity_is_refused() {
        for text in ["", "x", "abc", "1 Gi", " 1", "1Gib", "1KiB", "1.2.3", "1e5e"] {
            assert_eq!(Quantity::parse(text), Err(ParseError::Format), "{text}");
        }
        for text in ["1mm", "1e", "1ee5", "--1", "1Kim", "1e99999999999"] {
            assert_eq!(Quantity::parse(text), Err(ParseError::Suffix), "{text}");
        }
        for text in ["e-10", "-.e-10", "-e-10"] {
            assert_eq!(Quantity::parse(text), Err(ParseError::Number), "{text}");
        }
    }

    #[test]
    fn a_number_without_digits_is_zero_as_in_kubernetes() {
        for text in ["+", "-", ".", "Ki", "m", "e5", "0e-10"] {
            assert!(quantity(text).is_zero(), "{text}");
        }
    }

    #[test]
    fn amounts_compare_whatever_their_form() {
        for (left, order, right) in [
            ("1Gi", Ordering::Equal, "1024Mi"),
            ("1", Ordering::Equal, "1000m"),
            ("1e3", Ordering::Equal, "1k"),
            ("0", Ordering::Equal, "-0m"),
            ("100m", Ordering::Less, "1"),
            ("0", Ordering::Less, "1n"),
            ("-1", Ordering::Less, "0"),
            ("-2", Ordering::Less, "-1"),
            ("-1k", Ordering::Less, "-999"),
            ("1e2000000000", Ordering::Greater, "1Ei"),
            ("99999999999999999999999999999999999", Ordering::Less, "1e35"),
            ("1.000000001", Ordering::Greater, "1"),
        ] {
            assert_eq!(quantity(left).cmp(&quantity(right)), order, "{left} and {right}");
            assert_eq!(quantity(right).cmp(&quantity(left)), order.reverse(), "{right} and {left}");
        }
    }

    #[test]
    fn sums_are_exact() {
        for (left, right, sum) in [
            ("200m", "1", "1200m"),
            ("1Gi", "1Gi", "2Gi"),
            ("0.1", "0.2", "300m"),
            ("1", "-1", "0"),
            ("0", "1Ki", "1Ki"),
            ("999999999999999999", "1", "1E"),
            ("123456789012345678901", "1n", "123456789012345678901000000001n"),
        ] {
            assert_eq!(quantity(left).plus(&quantity(right)).to_string(), sum, "{left} + {right}");
            assert_eq!(quantity(sum).minus(&quantity(right)), quantity(left), "{sum} - {right}");
        }
    }

    #[test]
    fn sums_of_extremes_round_away_from_zero() {
        let large = quantity("1e2000000000");
        assert!(large.plus(&quantity("1n")) > large);
        let mut sum = quantity(&"9".repeat(35));
        for _ in 0..20 {
            sum = sum.plus(&sum);
        }
        assert!(sum > quantity("1e41") && sum < quantity("2e41"));
    }

    #[test]
    fn whole_numbers_round_away_from_zero() {
        for (text, value, is_integer) in [
            ("1500m", 2, false),
            ("-1500m", -2, false),
            ("1", 1, true),
            ("1000m", 1, true),
            ("1n", 1, false),
            ("1.5Ki", 1536, true),
            ("1e30", i64::MAX, true),
            ("-1e2000000000", i64::MIN, true),
        ] {
            assert_eq!((quantity(text).value(), quantity(text).is_integer()), (value, is_integer), "{text}");
        }
        assert_eq!(quantity("1500u").round_up_to_milli().to_string(), "2m");
        assert_eq!(quantity("-1500u").round_up_to_milli().to_string(), "-2m");
        assert_eq!(quantity("0.9Ki").round_up_to_milli().to_string(), "921600m");
    }

    #[test]
    fn an_integer_is_what_kubernetes_holds_in_64_bits_without_a_fraction() {
        for (text, integer) in [
            ("1k", Some(1000)),
            ("-1Ki", Some(-1024)),
            ("5.", Some(5)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("10E", None),
            ("1000m", None),
            ("1.0", None),
            ("1.5Ki", None),
            ("1Pi", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(quantity(text).as_i64(), integer, "{text}");
        }
        assert_eq!(quantity("50k").plus(&Quantity::from(20_i64)).as_i64(), Some(50_020));
        assert_eq!(quantity("500m").plus(&quantity("500m")).as_i64(), None);
        assert_eq!(quantity("0m").plus(&Quantity::from(5_i64)).as_i64(), Some(5));
        assert_eq!(quantity("1Pi").minus(&quantity("1Pi")).as_i64(), None);
    }

    #[test]
    fn floating_point_numbers_are_near() {
        for (text, number) in [("1.5", 1.5), (".5", 0.5), ("-2k", -2000.0), ("0", 0.0), ("1e400", f64::INFINITY)] {
            assert_eq!(quantity(text).as_approximate_f64(), number, "{text}");
        }
    }

    #[test]
    fn long_numbers_are_bounded() {
        assert_eq!(canonical(&"9".repeat(5000)), "100e4998");
        assert_eq!(canonical(&format!("0.{}1", "0".repeat(5000))), "1n");
        assert_eq!(canonical(&format!("0.{}1Ki", "0".repeat(5000))), "1n");
        assert_eq!(canonical(&format!("{}Ki", "9".repeat(5000))), "9223372036854775807");
        assert_eq!(canonical("1e2000000000"), "100e1999999998");
    }
}
