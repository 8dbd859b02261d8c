//! The five fields of a cron schedule.

const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// The errors of a schedule.
pub(super) fn parse(schedule: &str) -> Result<(), String> {
    let schedule = match schedule.strip_prefix("TZ=").or_else(|| schedule.strip_prefix("CRON_TZ=")) {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest).trim(),
        None => schedule,
    };
    if schedule.starts_with('@') {
        return descriptor(schedule);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (field, (low, high, names)) in fields.iter().zip(FIELDS) {
        for part in field.split(',') {
            range(part, low, high, names)?;
        }
    }
    Ok(())
}

fn descriptor(schedule: &str) -> Result<(), String> {
    let known = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    if known.contains(&schedule) {
        return Ok(());
    }
    match schedule.strip_prefix("@every ") {
        Some(duration) if is_duration(duration) => Ok(()),
        Some(duration) => Err(format!("failed to parse duration {schedule}: time: invalid duration {duration:?}")),
        None => Err(format!("unrecognized descriptor: {schedule}")),
    }
}

fn is_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['-', '+']);
    if rest == "0" {
        return true;
    }
    let mut parts = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, after) = rest.split_at(number);
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let Some(unit) = units.iter().filter(|unit| after.starts_with(**unit)).max_by_key(|unit| unit.len()) else {
            return false;
        };
        if digits.is_empty() {
            return false;
        }
        rest = after.get(unit.len()..).unwrap_or_default();
        parts += 1;
    }
    parts > 0
}

fn range(part: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let pieces: Vec<&str> = part.split('/').collect();
    let (bounds, step) = match pieces.as_slice() {
        [bounds] => (*bounds, None),
        [bounds, step] => (*bounds, Some(*step)),
        _ => return Err(format!("too many slashes: {part}")),
    };
    let ends: Vec<&str> = bounds.split('-').collect();
    let (start, end) = match ends.as_slice() {
        ["*"] | ["?"] => (low, high),
        [one] => {
            let one = number(one, names)?;
            (one, if step.is_some() { high } else { one })
        }
        [start, end] => (number(start, names)?, number(end, names)?),
        _ => return Err(format!("too many hyphens: {part}")),
    };
    let step = step.map(|step| number(step, &[])).transpose()?.unwrap_or(1);
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {part}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {part}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    Ok(())
}

fn number(text: &str, names: &[&str]) -> Result<u32, String> {
    let lower = text.to_lowercase();
    if let Some(index) = names.iter().position(|name| *name == lower) {
        let first = if names.len() == 12 { 1 } else { 0 };
        return Ok(index as u32 + first);
    }
    let parsed: i64 = text
        .parse()
        .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))?;
    u32::try_from(parsed).map_err(|_| format!("negative number ({parsed}) not allowed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_schedules_are_fine() {
        for schedule in ["* * * * *", "*/5 0-6 1,15 jan-mar mon", "@daily", "@every 1h30m", "0 0 * * 6"] {
            assert_eq!(parse(schedule), Ok(()), "{schedule}");
        }
    }

    #[test]
    fn a_mistake_is_named() {
        assert_eq!(parse("bad"), Err("expected exactly 5 fields, found 1: [bad]".to_owned()));
        assert_eq!(parse("61 * * * *"), Err("end of range (61) above maximum (59): 61".to_owned()));
        assert_eq!(
            parse("x * * * *"),
            Err("failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax".to_owned())
        );
        assert_eq!(parse("@often"), Err("unrecognized descriptor: @often".to_owned()));
    }
}
