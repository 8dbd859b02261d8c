//! Quantities (`500m`, `1Gi`, `1e3`) in their one form: whatever a client writes, the API shows this.

const WRONG_FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const WRONG_SUFFIX: &str = "unable to parse quantity's suffix";

/// The largest value in binary notation; what is larger is cut to it.
const MAX: i128 = i64::MAX as i128;
/// More digits than these are left as they are written.
const MAX_DIGITS: usize = 28;
/// As many digits fit into 64 bits for sure.
const INT64_DIGITS: usize = 18;

#[derive(Clone, Copy, PartialEq)]
enum Notation {
    Decimal,
    Exponent,
    Binary,
}

/// The canonical text of a quantity: no fraction, the largest suffix that allows it, the notation that was given. A text
/// that the real server takes for canonical by a quick look stays, even where it is not quite.
///
/// # Errors
/// The real server's words for what is not a quantity.
pub fn canonical(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    if text.is_empty() {
        return Err(WRONG_FORM);
    }
    let negative = text.starts_with('-');
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches('0');
    let (whole, rest) = split_digits(rest);
    let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    if !suffix_is_well_formed(suffix) {
        return Err(WRONG_FORM);
    }
    let (notation, power) = parse_suffix(suffix).ok_or(WRONG_SUFFIX)?;
    let digits = format!("{whole}{fraction}");
    if looks_canonical(&digits, fraction.len(), notation, power) || digits.len() > MAX_DIGITS {
        return Ok(text.to_owned());
    }
    let value: i128 = digits.parse().unwrap_or(0);
    let places = fraction.len() as i64;
    let shown = match notation {
        Notation::Binary => binary(value, places, power),
        Notation::Decimal | Notation::Exponent => decimal(value, power - places, notation),
    };
    Ok(if negative && shown != "0" { format!("-{shown}") } else { shown })
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn suffix_is_well_formed(suffix: &str) -> bool {
    let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    letters.strip_prefix(['-', '+']).unwrap_or(letters).bytes().all(|b| b.is_ascii_digit())
}

/// The notation, and the power of ten or of 1024.
fn parse_suffix(suffix: &str) -> Option<(Notation, i64)> {
    let decimal =
        [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if let Some((_, power)) = decimal.iter().find(|(name, _)| *name == suffix) {
        return Some((Notation::Decimal, *power));
    }
    if let Some(at) = BINARY.iter().skip(1).position(|name| *name == suffix) {
        return Some((Notation::Binary, at as i64 + 1));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((Notation::Exponent, exponent.into()))
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The quick look.
fn looks_canonical(digits: &str, places: usize, notation: Notation, power: i64) -> bool {
    match notation {
        Notation::Binary => {
            let fits = 15 - digits.len() as i64 - power * 3 > 0;
            places == 0 && fits && digits.parse::<i64>().is_ok_and(|value| value & 7 != 0)
        }
        Notation::Decimal | Notation::Exponent => {
            let scale = power - places as i64;
            let starts_well = digits.starts_with(|c| c != '0') && !digits.ends_with("000");
            digits.len() <= INT64_DIGITS && scale >= -9 && scale % 3 == 0 && starts_well
        }
    }
}

fn binary(value: i128, places: i64, power: i64) -> String {
    let scaled = (0..power).fold(value, |value, _| value.saturating_mul(1024));
    let unit = (0..places).fold(1i128, |unit, _| unit.saturating_mul(10));
    if scaled % unit != 0 || scaled / unit < 1024 {
        return decimal(scaled, -places, Notation::Decimal);
    }
    let mut value = (scaled / unit).min(MAX);
    let mut at = 0;
    while value % 1024 == 0 && at + 1 < BINARY.len() {
        value /= 1024;
        at += 1;
    }
    format!("{value}{}", BINARY[at])
}

fn decimal(mut value: i128, mut power: i64, notation: Notation) -> String {
    if value == 0 {
        return "0".to_owned();
    }
    // Billionths are the finest there is; what is finer is rounded up.
    while power < -9 && value > 1 {
        value = value / 10 + i128::from(value % 10 != 0);
        power += 1;
    }
    power = power.max(-9);
    while value % 10 == 0 {
        value /= 10;
        power += 1;
    }
    while power.rem_euclid(3) != 0 {
        value = value.saturating_mul(10);
        power -= 1;
    }
    if notation == Notation::Exponent {
        return if power == 0 { value.to_string() } else { format!("{value}e{power}") };
    }
    let names = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let name = usize::try_from(power / 3 + 3).ok().and_then(|at| names.get(at)).unwrap_or(&"");
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
            ("+2", "+2"),
            ("5.", "5."),
            ("1234567.891k", "1234567.891k"),
            ("1e20", "100e18"),
            ("1e1000", "10e999"),
            ("1023.5Ki", "1048064"),
            ("1025Ki", "1025Ki"),
            (".5", "500m"),
            ("1.0", "1"),
            ("0.0000000001", "1n"),
            ("100000E", "100"),
            ("1e-2000000000", "1e-9"),
        ];
        for (given, wanted) in table {
            assert_eq!(canonical(given), Ok(wanted.to_owned()), "{given}");
        }
    }

    #[test]
    fn what_is_not_a_quantity_is_told() {
        for text in ["", "x", "1 Gi", "1Gib", "1.2.3"] {
            assert_eq!(canonical(text), Err(WRONG_FORM), "{text}");
        }
        for text in ["1mm", "1e", "--1"] {
            assert_eq!(canonical(text), Err(WRONG_SUFFIX), "{text}");
        }
    }

    #[test]
    fn canonical_forms_stay_as_they_are() {
        for text in ["500m", "1Gi", "1k", "102400m", "1e3", "-3"] {
            assert_eq!(canonical(text).as_deref(), Ok(text));
        }
    }
}
