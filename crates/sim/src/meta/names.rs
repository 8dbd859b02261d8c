//! Names that controllers make up.

use fleetwright_kit::Random;
use serde::Serialize;

/// No vowels, so that no words come of it, and nothing that is read as something else: Kubernetes' own alphabet.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

fn spell(mut number: u64, length: usize) -> String {
    let mut letters = String::with_capacity(length);
    for _ in 0..length {
        letters.push(char::from(LETTERS[usize::try_from(number % 27).unwrap_or_default()]));
        number /= 27;
    }
    letters
}

/// The end of a generated name.
pub(super) fn suffix(random: &Random) -> String {
    spell(random.below(u64::MAX), 5)
}

/// A word that stands for a value, the same for the same value in every process (FNV-1a).
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
    fn a_digest_tells_values_apart_and_is_a_name() {
        assert_eq!(digest(&"a"), digest(&"a"));
        assert_ne!(digest(&"a"), digest(&"b"));
        assert!(digest(&"a").len() == 10 && digest(&"a").bytes().all(|letter| LETTERS.contains(&letter)));
    }
}
