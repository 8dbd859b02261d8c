//! Names of Operations.

use super::Intent;

/// The name of the Operation of an intent: the same for the same intent, in every process.
pub(super) fn operation_name(intent: &Intent) -> String {
    /// Maximum length of a name in Kubernetes.
    const MAX_LENGTH: usize = 253;
    let mut hash = Fnv::default();
    for part in [&intent.type_, &intent.target.kind, &intent.target.name, &intent.fingerprint] {
        hash.add(part);
    }
    let hash = format!("{:08x}", hash.fold());
    let type_: String =
        intent.type_.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let room = MAX_LENGTH.saturating_sub(type_.len() + hash.len() + 2);
    let target: String = intent.target.name.chars().take(room).collect();
    format!("{type_}-{}-{hash}", target.trim_end_matches(['.', '-']))
}

/// FNV-1a with 64 bits: names must be stable across processes and versions of the standard library, whose hashers may change.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, text: &str) {
        // No text contains this byte, so parts stay separate.
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn fold(&self) -> u32 {
        (self.0 >> 32) as u32 ^ self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use fleetwright_api::Target;

    use super::*;

    fn intent(type_: &str, target: &str, fingerprint: &str) -> Intent {
        let target = Target { kind: "Machine".to_owned(), name: target.to_owned(), labels: Default::default() };
        Intent { type_: type_.into(), target, reason: String::new(), fingerprint: fingerprint.into(), keep_for: None }
    }

    #[test]
    fn the_same_intent_has_the_same_name_for_ever() {
        // A literal value: a changed hash would start every act in progress again.
        assert_eq!(operation_name(&intent("Drain", "host-17", "kubelet-1.37.1")), "drain-host-17-162cf564");
    }

    #[test]
    fn other_intents_have_other_names() {
        let base = operation_name(&intent("Drain", "host-17", "a"));
        for other in
            [intent("Reboot", "host-17", "a"), intent("Drain", "host-18", "a"), intent("Drain", "host-17", "b")]
        {
            assert_ne!(operation_name(&other), base);
        }
    }

    #[test]
    fn a_long_target_still_has_a_name_that_kubernetes_takes() {
        let name = operation_name(&intent("Drain", &format!("{}.{}", "a".repeat(237), "b".repeat(15)), "a"));
        assert!(name.len() <= 253 && !name.contains(".-"), "{name}");
    }
}
