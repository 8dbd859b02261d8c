//! Errors that point at a field, in the words of Kubernetes' `field.Error`.

use std::fmt;

use serde_json::Value;

/// The type of a field's error; the `reason` of a status cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// The value is malformed or out of bounds.
    Invalid,
    /// The field must have a value.
    Required,
    /// The value is not one of the allowed ones.
    NotSupported,
    /// The value may not be set.
    Forbidden,
    /// The value occurs twice.
    Duplicate,
    /// The thing that the field names does not exist.
    NotFound,
    /// The value is too long.
    TooLong,
    /// The list has too many items.
    TooMany,
    /// The list has too few items.
    TooFew,
    /// The value is too short.
    TooShort,
    /// The value has the wrong type.
    TypeInvalid,
    /// The server failed while checking the field.
    Internal,
}

impl ErrorType {
    /// The reason in a status cause (`FieldValueInvalid`…).
    pub fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::TooShort => "FieldValueTooShort",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::Required => "Required value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::TooShort => "Too short",
            Self::Internal => "Internal error",
        }
    }
}

/// One mistake in one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The type of the error.
    pub ty: ErrorType,
    /// The path of the field: `spec.containers[0].name`, `metadata.labels[app]`.
    pub field: String,
    /// The value that was found, where it helps.
    pub value: Option<Value>,
    /// The allowed values, and what to do.
    pub detail: String,
}

impl FieldError {
    /// A malformed or out-of-bounds value.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { ty: ErrorType::Invalid, field: field.into(), value: Some(value.into()), detail: detail.into() }
    }

    /// A missing value.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { ty: ErrorType::Required, field: field.into(), value: None, detail: detail.into() }
    }

    /// A value that may not be set.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { ty: ErrorType::Forbidden, field: field.into(), value: None, detail: detail.into() }
    }

    /// A value that occurs twice.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { ty: ErrorType::Duplicate, field: field.into(), value: Some(value.into()), detail: String::new() }
    }

    /// A value that is not one of the allowed ones (listed in the order given).
    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, allowed: &[&str]) -> Self {
        let list = allowed.iter().map(|v| crate::text::quote(v)).collect::<Vec<_>>().join(", ");
        let detail = if allowed.is_empty() { String::new() } else { format!("supported values: {list}") };
        Self { ty: ErrorType::NotSupported, field: field.into(), value: Some(value.into()), detail }
    }

    /// A value of the wrong type.
    pub fn type_invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { ty: ErrorType::TypeInvalid, ..Self::invalid(field, value, detail) }
    }

    /// A string longer than `max` bytes.
    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {unit}");
        Self { ty: ErrorType::TooLong, field: field.into(), value: None, detail }
    }

    /// A list or map of `actual` items where at most `max` are allowed.
    pub fn too_many(field: impl Into<String>, actual: u64, max: u64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        Self { ty: ErrorType::TooMany, field: field.into(), value: Some(actual.into()), detail }
    }

    /// A failure of the server itself.
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { ty: ErrorType::Internal, field: field.into(), value: None, detail: detail.into() }
    }

    /// The message of a status cause: everything but the field.
    pub fn body(&self) -> String {
        let mut text = self.ty.words().to_owned();
        let shows_value = !matches!(
            self.ty,
            ErrorType::Required | ErrorType::Forbidden | ErrorType::TooLong | ErrorType::TooShort | ErrorType::Internal
        );
        if let (true, Some(value)) = (shows_value, &self.value) {
            text.push_str(": ");
            text.push_str(&crate::text::value(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}
