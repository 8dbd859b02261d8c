//! Generated names of controllers.

use fleetwright_kit::Random;
use serde::Serialize;

/// The alphabet of Kubernetes: no vowels, so that no words result, and no characters that look alike.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

fn spell(mut number: u64, length: usize) -> String {
    let mut letters = String::with_capacity(length);
    for _ in 0..length {
        letters.push(char::from(LETTERS[usize::try_from(number % 27).unwrap_or_default()]));
        number /= 27;
    }
    letters
}

pub(super) fn suffix(random: &Random) -> String {
    spell(random.below(u64::MAX), 5)
}

/// A hash of a value that is the same in every process (FNV-1a).
pub(super) fn digest(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    spell(hash, 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_distinguishes_values_and_is_a_name() {
        assert_eq!(digest(&"a"), digest(&"a"));
        assert_ne!(digest(&"a"), digest(&"b"));
        assert!(digest(&"a").len() == 10 && digest(&"a").bytes().all(|letter| LETTERS.contains(&letter)));
    }
}
