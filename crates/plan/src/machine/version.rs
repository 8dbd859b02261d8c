//! Compares two versions.

use std::cmp::Ordering;

/// Compares versions piece by piece: numbers by value, the rest as text. Good enough to show "upgrade" or "downgrade"; nothing else
/// depends on it.
pub fn compare(one: &str, two: &str) -> Ordering {
    let (mut one, mut two) = (pieces(one), pieces(two));
    loop {
        match (one.next(), two.next()) {
            (None, None) => return Ordering::Equal,
            // A pre-release is older than the release.
            (None, Some(piece)) => {
                return if pre_release(piece) { Ordering::Greater } else { Ordering::Less };
            }
            (Some(piece), None) => {
                return if pre_release(piece) { Ordering::Less } else { Ordering::Greater };
            }
            (Some(one), Some(two)) => {
                let ordering = match (one.parse::<u128>(), two.parse::<u128>()) {
                    (Ok(one), Ok(two)) => one.cmp(&two),
                    _ => one.cmp(two),
                };
                if ordering != Ordering::Equal {
                    return ordering;
                }
            }
        }
    }
}

fn pre_release(piece: &str) -> bool {
    ["rc", "alpha", "beta"].iter().any(|word| piece.starts_with(word))
}

fn pieces(version: &str) -> impl Iterator<Item = &str> {
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split(|c: char| !c.is_ascii_alphanumeric()).flat_map(|part| {
        let mut cuts = vec![0];
        let bytes = part.as_bytes();
        for i in 1..bytes.len() {
            if bytes[i].is_ascii_digit() != bytes[i - 1].is_ascii_digit() {
                cuts.push(i);
            }
        }
        cuts.push(part.len());
        cuts.windows(2).map(|cut| &part[cut[0]..cut[1]]).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_people_expect() {
        for (older, newer) in [
            ("1.9.0", "1.10.0"),
            ("1.36.4", "1.37.0"),
            ("1.37.0-rc.1", "1.37.0"),
            ("v2.0", "2.0.1"),
            ("6.1.0-13", "6.1.0-54"),
        ] {
            assert_eq!(compare(older, newer), Ordering::Less, "{older} {newer}");
            assert_eq!(compare(newer, older), Ordering::Greater, "{older} {newer}");
        }
        assert_eq!(compare("1.2", "v1.2"), Ordering::Equal);
    }
}
