use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Longest interned text; longer ones are rarely repeated.
const MAX_LENGTH: usize = 256;

#[derive(Default)]
struct InternedStrings {
    texts: HashSet<Arc<str>>,
    /// Number of texts from which unused ones are removed.
    enough: usize,
}

static KNOWN: Mutex<Option<InternedStrings>> = Mutex::new(None);

/// The text, shared by all equal ones: ten thousand Nodes have the same conditions, reasons and messages.
pub fn intern(text: &str) -> Arc<str> {
    if text.len() > MAX_LENGTH {
        return text.into();
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(InternedStrings::default);
    if let Some(text) = known.texts.get(text) {
        return Arc::clone(text);
    }
    if known.texts.len() >= known.enough.max(1024) {
        // Texts that only this table still holds are unused.
        known.texts.retain(|text| Arc::strong_count(text) > 1);
        known.texts.shrink_to_fit();
        known.enough = known.texts.len() * 2;
    }
    let text: Arc<str> = text.into();
    known.texts.insert(Arc::clone(&text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once_and_only_while_somebody_says_it() {
        let one = intern("kubelet is posting ready status");
        assert!(Arc::ptr_eq(&one, &intern("kubelet is posting ready status")));
        for n in 0..10_000 {
            intern(&format!("nobody keeps this: {n}"));
        }
        let count = KNOWN.lock().unwrap().as_ref().unwrap().texts.len();
        assert!(count <= 3000, "{count} texts are kept");
        assert!(Arc::ptr_eq(&one, &intern("kubelet is posting ready status")));
    }
}
