//! What others said, as it is told to people.

/// What a server said is not trusted.
pub(crate) fn truncated(text: &str) -> String {
    truncate(text, 300)
}

/// So much of a text that is not trusted.
pub(crate) fn truncate(text: &str, most: usize) -> String {
    text.chars().filter(|one| !one.is_control()).take(most).collect()
}

/// What a server said, without all that came with it.
pub(crate) fn api_error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}
