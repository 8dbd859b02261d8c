//! Durations and points in time as Go writes them.

use crate::value::{Eval, Val, fail};
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Nanoseconds of a Go duration such as `1h30m` or `-1.5s`.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let whole = digits(rest);
        let mut number: i128 = if whole > 0 { rest.get(..whole)?.parse().ok()? } else { 0 };
        rest = &rest[whole..];
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            let n = digits(after);
            fraction = &after[..n];
            rest = &after[n..];
        }
        if whole == 0 && fraction.is_empty() {
            return None;
        }
        let (unit, after) = [
            ("ns", 1_i128),
            ("us", 1_000),
            ("µs", 1_000),
            ("μs", 1_000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
            ("m", 60_000_000_000),
            ("h", 3_600_000_000_000),
        ]
        .into_iter()
        .find_map(|(name, n)| rest.strip_prefix(name).map(|after| (n, after)))?;
        rest = after;
        number = number.checked_mul(unit)?;
        if !fraction.is_empty() {
            let fraction = &fraction[..fraction.len().min(18)];
            let scale = 10_i128.pow(fraction.len() as u32);
            number += fraction.parse::<i128>().ok()? * unit / scale;
        }
        total = total.checked_add(number)?;
        if total > i128::from(i64::MAX) + 1 {
            return None;
        }
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// A point in time, with the offset it was written in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    /// Nanoseconds since 1970.
    pub nanos: i128,
    /// Seconds east of UTC.
    offset: i32,
}

const NANO: i128 = 1_000_000_000;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

impl Time {
    /// A point in time between the years 1 and 9999.
    pub fn new(nanos: i128, offset: i32) -> Option<Self> {
        let range = -62_135_596_800 * NANO..253_402_300_800 * NANO;
        range.contains(&nanos).then_some(Self { nanos, offset })
    }

    pub fn from_second(seconds: i64) -> Option<Self> {
        Self::new(i128::from(seconds) * NANO, 0)
    }

    pub fn second(&self) -> i64 {
        self.nanos.div_euclid(NANO) as i64
    }

    pub fn moved(&self, nanos: i128) -> Option<Self> {
        Self::new(self.nanos + nanos, self.offset)
    }

    fn civil(&self, offset: i32) -> Option<DateTime> {
        let local = self.nanos + i128::from(offset) * NANO;
        let since = SignedDuration::new(local.div_euclid(NANO) as i64, local.rem_euclid(NANO) as i32);
        EPOCH.checked_add(since).ok()
    }

    /// RFC 3339 with as many decimals as needed.
    pub fn text(&self) -> String {
        let Some(t) = self.civil(self.offset) else { return String::new() };
        let (y, mo, d, h, mi, s) = (t.year(), t.month(), t.day(), t.hour(), t.minute(), t.second());
        let mut out = format!("{y:04}-{mo:02}-{d:02}T{h:02}:{mi:02}:{s:02}");
        if t.subsec_nanosecond() > 0 {
            out.push_str(format!(".{:09}", t.subsec_nanosecond()).trim_end_matches('0'));
        }
        if self.offset == 0 {
            return out + "Z";
        }
        let (sign, minutes) = (if self.offset < 0 { '-' } else { '+' }, self.offset.abs() / 60);
        format!("{out}{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

/// RFC 3339 exactly: no spaces, no shortened forms.
pub(crate) fn parse_timestamp(text: &str) -> Option<Time> {
    let digits = |s: &str| -> Option<i32> { s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse().ok())? };
    let (head, mut rest) = text.split_at_checked(19)?;
    let b = head.as_bytes();
    if !head.is_ascii() || [b[4], b[7], b[10], b[13], b[16]] != *b"--T::" {
        return None;
    }
    let n = |from: usize, to: usize| digits(&head[from..to]).and_then(|n| i8::try_from(n).ok());
    let date = Date::new(digits(&head[..4])?.try_into().ok()?, n(5, 7)?, n(8, 10)?).ok()?;
    let mut nanos = 0_i32;
    if let Some(after) = rest.strip_prefix('.') {
        let len = after.bytes().take_while(u8::is_ascii_digit).count();
        nanos = format!("{:0<9}", after.get(..len.min(9)).filter(|f| !f.is_empty())?).parse().ok()?;
        rest = &after[len..];
    }
    let offset = match rest.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] if rest.is_ascii() => {
            let (h, m) = (digits(&rest[1..3])?, digits(&rest[4..6])?);
            let seconds = (h < 24 && m < 60).then_some(h * 3600 + m * 60)?;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let civil = date.to_datetime(jiff::civil::Time::new(n(11, 13)?, n(14, 16)?, n(17, 19)?, nanos).ok()?);
    let local = civil.duration_since(EPOCH).as_nanos();
    Time::new(local - i128::from(offset) * NANO, offset)
}

/// A Go-style duration text, as `string(duration)` gives: seconds.
pub(crate) fn duration_text(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let abs = nanos.unsigned_abs();
    let (seconds, rest) = (abs / 1_000_000_000, abs % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// `t.getHours()` and its kin; `zone` is an offset or a name, UTC without.
pub(crate) fn getter<'a>(name: &str, t: Time, zone: Option<&str>) -> Eval<Val<'a>> {
    let offset = match zone {
        None | Some("" | "UTC") => Some(0),
        Some(zone) => offset(zone, &t),
    };
    let Some(z) = offset.and_then(|o| t.civil(o)) else {
        return fail(format!("unknown time zone {}", zone.unwrap_or_default()));
    };
    Ok(Val::Int(match name {
        "getFullYear" => z.year().into(),
        "getMonth" => i64::from(z.month()) - 1,
        "getDayOfYear" => i64::from(z.day_of_year()) - 1,
        "getDayOfMonth" => i64::from(z.day()) - 1,
        "getDate" => z.day().into(),
        "getDayOfWeek" => z.weekday().to_sunday_zero_offset().into(),
        "getHours" => z.hour().into(),
        "getMinutes" => z.minute().into(),
        "getSeconds" => z.second().into(),
        _ => z.millisecond().into(),
    }))
}

/// Seconds east of UTC in a zone at a time.
fn offset(zone: &str, t: &Time) -> Option<i32> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        // The last day of 9999 is beyond what zones are known for.
        let at = Timestamp::from_second(t.second()).unwrap_or(Timestamp::MAX);
        return TimeZone::get(zone).ok().map(|tz| tz.to_offset(at).seconds());
    };
    let (sign, hours) = match hours.strip_prefix('-') {
        Some(h) => (-1, h),
        None => (1, hours.strip_prefix('+').unwrap_or(hours)),
    };
    let (h, m): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    ((0..24).contains(&h) && (0..60).contains(&m)).then_some(sign * (h * 3600 + m * 60))
}

/// `d.getHours()` and its kin.
pub(crate) fn duration_getter<'a>(name: &str, nanos: i64) -> Option<Val<'a>> {
    Some(Val::Int(match name {
        "getHours" => nanos / 3_600_000_000_000,
        "getMinutes" => nanos / 60_000_000_000,
        "getSeconds" => nanos / 1_000_000_000,
        "getMilliseconds" => nanos / 1_000_000,
        _ => return None,
    }))
}
