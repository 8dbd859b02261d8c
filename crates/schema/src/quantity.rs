//! Quantities (`500m`, `1Gi`, `1e3`) in their one form: whatever a client writes, the API shows this.

const WRONG_FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const WRONG_NUMBER: &str = "unable to parse numeric part of quantity";
const WRONG_SUFFIX: &str = "unable to parse quantity's suffix";

/// The largest value; what is larger is cut to it.
const MAX: i128 = i64::MAX as i128;
const NANO: i128 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Notation {
    Decimal,
    Exponent,
    Binary,
}

/// The canonical text of a quantity: no fraction, the largest suffix that allows it, the notation that was given.
///
/// # Errors
/// The real server's words for what is not a quantity.
pub fn canonical(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits_end);
    if number.is_empty() || !suffix_is_well_formed(suffix) {
        return Err(WRONG_FORM);
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return Err(WRONG_NUMBER);
    }
    let (notation, base, power) = parse_suffix(suffix).ok_or(WRONG_SUFFIX)?;
    let nanos = scaled(whole, fraction, base, power);
    let text = render(nanos.min(MAX * NANO), notation);
    Ok(if negative && text != "0" { format!("-{text}") } else { text })
}

fn suffix_is_well_formed(suffix: &str) -> bool {
    let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    letters.strip_prefix(['-', '+']).unwrap_or(letters).bytes().all(|b| b.is_ascii_digit())
}

fn parse_suffix(suffix: &str) -> Option<(Notation, i128, i32)> {
    let decimal =
        [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if let Some((_, power)) = decimal.iter().find(|(name, _)| *name == suffix) {
        return Some((Notation::Decimal, 10, *power));
    }
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = binary.iter().position(|name| *name == suffix) {
        return Some((Notation::Binary, 1024, at as i32 + 1));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((Notation::Exponent, 10, exponent.parse().ok()?))
}

/// The value in billionths, rounded up; values out of reach come back as the largest.
fn scaled(whole: &str, fraction: &str, base: i128, power: i32) -> i128 {
    const FAR: i128 = i128::MAX;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // The value is digits · base^power · 10^-places; more digits than these cannot change the result.
    let places = fraction.len() as i32;
    let (kept, cut) = digits.split_at(digits.len().min(28));
    let mut value: i128 = kept.parse().unwrap_or(FAR);
    let mut inexact = cut.bytes().any(|b| b != b'0');
    let mut tens = 9 - places + cut.len() as i32;
    if base == 10 {
        tens = tens.saturating_add(power);
    } else {
        for _ in 0..power {
            value = value.saturating_mul(1024);
        }
    }
    while tens > 0 {
        value = value.saturating_mul(10);
        tens -= 1;
        if value == FAR {
            return FAR;
        }
    }
    while tens < 0 {
        inexact |= value % 10 != 0;
        value /= 10;
        tens += 1;
        if value == 0 {
            break;
        }
    }
    value.saturating_add(i128::from(inexact))
}

fn render(nanos: i128, notation: Notation) -> String {
    if nanos == 0 {
        return "0".to_owned();
    }
    let whole = nanos % NANO == 0;
    if notation == Notation::Binary && whole && nanos / NANO >= 1024 {
        let mut value = nanos / NANO;
        let mut at = 0;
        let names = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        while value % 1024 == 0 && at + 1 < names.len() {
            value /= 1024;
            at += 1;
        }
        return format!("{value}{}", names[at]);
    }
    let mut value = nanos;
    let mut power = -9;
    while value % 1000 == 0 && power < 18 {
        value /= 1000;
        power += 3;
    }
    if notation == Notation::Exponent {
        return if power == 0 { value.to_string() } else { format!("{value}e{power}") };
    }
    let names = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let name = usize::try_from((power + 9) / 3).ok().and_then(|at| names.get(at)).unwrap_or(&"");
    format!("{value}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quantity_has_one_form() {
        let table = [
            ("0", "0"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000Ki", "1000Ki"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1e3", "1e3"),
            ("12e2", "1200"),
            ("100e1", "1e3"),
            ("-1.10", "-1100m"),
            ("+2", "2"),
            ("1.0", "1"),
            ("0.0000000001", "1n"),
            ("100000E", "9223372036854775807"),
        ];
        for (given, wanted) in table {
            assert_eq!(canonical(given), Ok(wanted.to_owned()), "{given}");
        }
    }

    #[test]
    fn what_is_not_a_quantity_is_told() {
        for text in ["", "x", "1 Gi", "--1", "1Gib"] {
            assert_eq!(canonical(text), Err(WRONG_FORM), "{text}");
        }
        assert_eq!(canonical("1.2.3"), Err(WRONG_NUMBER));
        assert_eq!(canonical("1mm"), Err(WRONG_SUFFIX));
    }

    #[test]
    fn canonical_forms_stay_as_they_are() {
        for text in ["500m", "1Gi", "1k", "102400m", "1e3", "-3"] {
            assert_eq!(canonical(text).as_deref(), Ok(text));
        }
    }
}
