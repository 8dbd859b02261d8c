//! Structural schemas: what an object may hold, its defaults and its mistakes.
//!
//! One [`Schema`] tree serves custom resources (read from a CustomResourceDefinition) and built-in kinds (read from
//! `k8s-openapi`'s types). Everything here is pure: a schema and a JSON value go in, errors or a changed value come out.

pub mod decode;
mod defaulting;
pub mod embedded;
mod field_error;
pub mod field_path;
pub mod formats;
pub mod json;
pub mod list_types;
pub mod names;
mod props;
mod pruning;
pub mod structural;
pub mod text;
mod validate;

pub use defaulting::{default, prune_nulls};
pub use field_error::{ErrorType, FieldError};
pub use pruning::prune;
pub use validate::{Correlation, validate, validate_update};

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fleetwright_syntax::regexp;
use serde_json::Value;

/// The JSON type that a schema node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A JSON object.
    Object,
    /// A JSON array.
    Array,
    String,
    /// A number without a fraction.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
}

impl Type {
    /// The type that OpenAPI calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    /// The name of the type in OpenAPI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// A regular expression, compiled when it is first needed and then kept. It says nothing that the schema's `pattern`
/// does not say, so any two are equal.
#[derive(Clone, Debug, Default)]
pub struct Pattern(OnceLock<Result<regex::Regex, String>>);

impl Pattern {
    /// The compiled form of `pattern`.
    pub(crate) fn get(&self, pattern: &str) -> Result<&regex::Regex, &str> {
        self.0.get_or_init(|| regexp::compile(pattern)).as_ref().map_err(String::as_str)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The merge behavior of a list (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// The list is replaced as a whole. The default.
    #[default]
    Atomic,
    /// The list holds scalars, each at most once.
    Set,
    /// The list holds objects, identified by these keys.
    Map(Vec<String>),
}

/// A strategic-merge-patch directive of a built-in field (`x-kubernetes-patch-strategy`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists and maps are merged instead of replaced.
    pub merge: bool,
    /// Keys of the live object that the patch does not name are dropped (`retainKeys`).
    pub retain_keys: bool,
    /// The key that identifies the items of a merged list; none for a list of scalars.
    pub merge_key: Option<String>,
}

/// One CEL rule (`x-kubernetes-validations`), not compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The expression.
    pub rule: String,
    /// The message for a failed rule.
    pub message: Option<String>,
    /// An expression whose value is the message.
    pub message_expression: Option<String>,
    /// `FieldValueInvalid` (default), `FieldValueForbidden`, `FieldValueRequired` or `FieldValueDuplicate`.
    pub reason: Option<String>,
    /// The field that the error points at, relative to the schema that holds the rule (`.spec.name`).
    pub field_path: Option<String>,
    /// Whether the rule runs when the old value is missing.
    pub optional_old_self: Option<bool>,
}

/// One node of a schema tree. Sub-trees are shared, never cyclic: a type that contains itself is cut at its second
/// occurrence by a node that preserves unknown fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// The JSON type; none means any type.
    pub ty: Option<Type>,
    /// The Go name of the type with its package (`v1.PodSpec`); only built-in kinds have it.
    pub type_name: Option<Arc<str>>,
    /// The description of the field.
    pub description: Option<Arc<str>>,
    /// The format of a string or number (`date-time`, `int32`, `byte`…).
    pub format: Option<String>,
    /// Whether `null` is a value.
    pub nullable: bool,
    /// Whether both integers and strings are values (`x-kubernetes-int-or-string`).
    pub int_or_string: bool,
    /// Whether unspecified fields stay (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// Whether the value is an object with apiVersion, kind and metadata (`x-kubernetes-embedded-resource`).
    pub embedded_resource: bool,
    /// The named fields of an object.
    pub properties: BTreeMap<String, Arc<Schema>>,
    /// The values of an object used as a map.
    pub additional: Option<Arc<Schema>>,
    /// Whether fields that `properties` does not name are allowed, where `additionalProperties` is given; false makes
    /// them errors.
    pub additional_allowed: Option<bool>,
    /// The items of an array.
    pub items: Option<Arc<Schema>>,
    /// The fields that must be there.
    pub required: Vec<String>,
    /// The value of an absent field.
    pub default: Option<Value>,
    /// The allowed values.
    pub enumeration: Vec<Value>,
    /// Lower bound of a number.
    pub minimum: Option<serde_json::Number>,
    /// Upper bound of a number.
    pub maximum: Option<serde_json::Number>,
    /// The lower bound itself is not allowed.
    pub exclusive_minimum: bool,
    /// The upper bound itself is not allowed.
    pub exclusive_maximum: bool,
    /// The number is a multiple of this.
    pub multiple_of: Option<serde_json::Number>,
    /// Shortest string, in characters.
    pub min_length: Option<u64>,
    /// Longest string, in characters.
    pub max_length: Option<u64>,
    /// A regular expression that a string must match somewhere.
    pub pattern: Option<String>,
    /// The compiled `pattern`.
    pub compiled: Pattern,
    /// Fewest items of an array.
    pub min_items: Option<u64>,
    /// Most items of an array.
    pub max_items: Option<u64>,
    /// Items differ from each other.
    pub unique_items: bool,
    /// Fewest fields of an object.
    pub min_properties: Option<u64>,
    /// Most fields of an object.
    pub max_properties: Option<u64>,
    /// Every one of these holds.
    pub all_of: Vec<Arc<Schema>>,
    /// At least one of these holds.
    pub any_of: Vec<Arc<Schema>>,
    /// Exactly one of these holds.
    pub one_of: Vec<Arc<Schema>>,
    /// This does not hold.
    pub not: Option<Arc<Schema>>,
    /// The merge behavior of a list.
    pub list_type: ListType,
    /// Whether an object is replaced as a whole (`x-kubernetes-map-type: atomic`).
    pub atomic_map: bool,
    /// How a strategic merge patch treats the field (built-in kinds only).
    pub patch: PatchStrategy,
    /// CEL rules.
    pub rules: Vec<Rule>,
}
