//! Error messages of other servers, shortened for people.

/// Messages of a server are not trusted.
pub(crate) fn truncated(text: &str) -> String {
    truncate(text, 300)
}

/// Truncates an untrusted text.
pub(crate) fn truncate(text: &str, most: usize) -> String {
    text.chars().filter(|one| !one.is_control()).take(most).collect()
}

/// The message of a server, without the rest of the error.
pub(crate) fn api_error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}
