//! Error messages of other servers, shortened for people.

use fleetwright_wire::text::truncate_line;

/// Messages of a server are not trusted.
pub(crate) fn truncated(text: &str) -> String {
    truncate_line(text, 300)
}

/// The message of a server, without the rest of the error.
pub(crate) fn api_error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}
