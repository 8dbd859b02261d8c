//! Resource quantities: `1.5Gi`, `200m`, `1e3`.

use std::cmp::Ordering;

const FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const SUFFIX: &str = "unable to parse quantity's suffix";
const NUMERIC: &str = "unable to parse numeric part of quantity";
const NANO: i128 = 1_000_000_000;

/// A quantity, exact to the nano; what is beyond every real machine saturates.
#[derive(Debug, Clone)]
pub(crate) struct Quantity {
    nanos: i128,
    /// The value if it was written as an integer that fits; the real type tells `1` and `1000m` apart.
    integer: Option<i64>,
}

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        if text.is_empty() {
            return Err(FORM);
        }
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
        let exponent = suffix[letters..].strip_prefix(['-', '+']).unwrap_or(&suffix[letters..]);
        if !exponent.bytes().all(|b| b.is_ascii_digit()) {
            return Err(FORM);
        }
        let (base, power) = interpret(suffix).ok_or(SUFFIX)?;
        if whole.is_empty() && fraction.is_empty() {
            return if unsigned.is_empty() { Ok(Self { nanos: 0, integer: Some(0) }) } else { Err(NUMERIC) };
        }
        Ok(Self::assemble(negative, whole, fraction, base, power))
    }

    fn assemble(negative: bool, whole: &str, fraction: &str, base: i128, power: i64) -> Self {
        let significant = format!("{}{fraction}", whole.trim_start_matches('0'));
        let mut mantissa: i128 = 0;
        let mut dropped = 0_i64;
        for d in significant.bytes().map(|b| i128::from(b - b'0')) {
            match mantissa.checked_mul(10).and_then(|m| m.checked_add(d)) {
                Some(m) if dropped == 0 => mantissa = m,
                _ => dropped += 1,
            }
        }
        let decimals = dropped - fraction.len() as i64;
        let (binary, decimals) = if base == 2 { (1_i128 << power, decimals) } else { (1, decimals + power) };
        let scaled = mantissa.checked_mul(binary).map(|m| shift(m, decimals + 9));
        let mut nanos = scaled.unwrap_or(i128::MAX);
        if base == 2 {
            nanos = nanos.min(i128::from(i64::MAX) * NANO);
        }
        let short = significant.len() <= 18 && (base == 10 || fraction.is_empty());
        let integer = (short && decimals >= 0 && nanos % NANO == 0).then(|| i64::try_from(nanos / NANO).ok()).flatten();
        let sign = if negative { -1 } else { 1 };
        Self { nanos: nanos.saturating_mul(sign.into()), integer: integer.map(|i| i * sign) }
    }

    pub fn from_int(i: i64) -> Self {
        Self { nanos: i128::from(i) * NANO, integer: Some(i) }
    }

    pub fn plus(&self, other: &Self) -> Self {
        let integer = self.integer.zip(other.integer).and_then(|(a, b)| a.checked_add(b));
        Self { nanos: self.nanos.saturating_add(other.nanos), integer }
    }

    pub fn minus(&self, other: &Self) -> Self {
        let integer = self.integer.zip(other.integer).and_then(|(a, b)| a.checked_sub(b));
        Self { nanos: self.nanos.saturating_sub(other.nanos), integer }
    }

    pub fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }

    pub fn sign(&self) -> i64 {
        self.nanos.signum() as i64
    }

    pub fn as_int(&self) -> Option<i64> {
        self.integer
    }

    pub fn as_float(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }
}

/// `m * 10^by`, rounding up what is lost: who asks for some gets some.
fn shift(m: i128, by: i64) -> i128 {
    let power = u32::try_from(by.unsigned_abs()).unwrap_or(u32::MAX);
    let factor = 10_i128.checked_pow(power);
    match (by >= 0, factor) {
        _ if m == 0 => 0,
        (true, Some(f)) => m.saturating_mul(f),
        (true, None) => i128::MAX,
        (false, Some(f)) => m / f + i128::from(m % f != 0),
        (false, None) => 1,
    }
}

fn interpret(suffix: &str) -> Option<(i128, i64)> {
    Some(match suffix {
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "" => (10, 0),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        other => (10, other.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.into()),
    })
}
