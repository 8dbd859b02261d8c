//! The options of a write, from the query or a `DeleteOptions` body, validated as in the real server.

use fleetwright_schema::{ErrorType, FieldError};
use http::{HeaderMap, header};
use serde_json::Value;

use crate::error::ApiError;
use crate::request::Query;

/// The handling of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped silently.
    Ignore,
    /// They are dropped with a warning. The default.
    #[default]
    Warn,
    /// They are an error.
    Strict,
}

/// The options of every write.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Whether the result is discarded.
    pub dry_run: bool,
    /// The field manager of the written fields.
    pub manager: String,
    /// The handling of unknown fields.
    pub field_validation: FieldValidation,
    /// Server-side apply: take over fields of other managers.
    pub force: bool,
}

const MAX_MANAGER: usize = 128;

impl WriteOptions {
    /// Reads the options of a create, update or patch; `kind` names the options in errors (`CreateOptions`…).
    pub fn read(query: &Query, headers: &HeaderMap, kind: &str, apply: bool) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let dry_run = dry_run(query.all("dryRun").map(Value::from).collect(), &mut errors);
        let manager = query.get("fieldManager").unwrap_or_default().to_owned();
        let force = query.optional_flag("force");
        if kind == "PatchOptions" {
            if apply && manager.is_empty() {
                errors.push(FieldError::required("fieldManager", "is required for apply patch"));
            }
            if !apply && force.is_some() {
                errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
            }
        }
        check_manager(&manager, &mut errors);
        let field_validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                errors.push(FieldError::not_supported("fieldValidation", other, &["", "Ignore", "Strict", "Warn"]));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", kind, "", &errors));
        }
        let manager = if manager.is_empty() { manager_of(headers) } else { manager };
        Ok(Self { dry_run, manager, field_validation, force: force.unwrap_or(false) })
    }
}

/// The default manager of a client: the first part of its user agent.
fn manager_of(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    fleetwright_merge::manager_from_user_agent(agent)
}

fn dry_run(values: Vec<Value>, errors: &mut Vec<FieldError>) -> bool {
    let values: Vec<Value> = values.into_iter().filter(|v| v != "").collect();
    if values.iter().any(|value| value != "All") {
        errors.push(FieldError::not_supported("dryRun", Value::Array(values.clone()), &["All"]));
    }
    !values.is_empty()
}

fn check_manager(manager: &str, errors: &mut Vec<FieldError>) {
    if manager.len() > MAX_MANAGER {
        errors.push(FieldError {
            ty: ErrorType::TooLong,
            field: "fieldManager".into(),
            value: None,
            detail: format!("may not be more than {MAX_MANAGER} bytes"),
        });
    }
    if let Some((at, bad)) = manager.char_indices().find(|(_, c)| c.is_control()) {
        errors.push(FieldError::invalid(
            "fieldManager",
            manager,
            format!("invalid character U+{:04X} (at position {at})", u32::from(bad)),
        ));
    }
}

/// The handling of a deleted object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The object is deleted at once, the garbage collector follows.
    Background,
    /// The object stays until its dependents are deleted.
    Foreground,
    /// Dependents stay without their owner.
    Orphan,
}

/// `DeleteOptions`.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Whether the result is discarded.
    pub dry_run: bool,
    /// The grace period in seconds.
    pub grace_seconds: Option<i64>,
    /// The handling of the dependents.
    pub propagation: Option<Propagation>,
    /// The deprecated predecessor of `propagation`.
    pub orphan_dependents: Option<bool>,
    /// Delete only an object with this uid.
    pub uid: Option<String>,
    /// Delete only this version of the object.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the options from the body or, if there is none, from the query.
    pub fn read(query: &Query, body: Option<&Value>) -> Result<Self, ApiError> {
        let from_query;
        let source = match body {
            Some(body) => body,
            None => {
                from_query = query_object(query)?;
                &from_query
            }
        };
        let expected_type = |field: &str, expected: &str| {
            ApiError::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: json: cannot unmarshal into Go struct field DeleteOptions.{field} of type {expected}"
            ))
        };
        let text = |value: &Value, field: &str| {
            value.as_str().map(str::to_owned).ok_or_else(|| expected_type(field, "string"))
        };
        let given = |value: &Value, field: &str| value.get(field).filter(|v| !v.is_null()).cloned();
        if let Some(kind) = source.get("kind").and_then(Value::as_str)
            && kind != "DeleteOptions"
        {
            return Err(ApiError::bad_request("decoded object cannot be converted to DeleteOptions"));
        }
        let mut options = Self::default();
        let mut errors = Vec::new();
        if let Some(grace) = given(source, "gracePeriodSeconds") {
            options.grace_seconds = Some(grace.as_i64().ok_or_else(|| expected_type("gracePeriodSeconds", "int64"))?);
        }
        if let Some(orphan) = given(source, "orphanDependents") {
            options.orphan_dependents =
                Some(orphan.as_bool().ok_or_else(|| expected_type("orphanDependents", "bool"))?);
        }
        if let Some(policy) = given(source, "propagationPolicy") {
            let policy = text(&policy, "propagationPolicy")?;
            if options.orphan_dependents.is_some() {
                errors.push(FieldError::invalid(
                    "propagationPolicy",
                    policy.clone(),
                    "orphanDependents and deletionPropagation cannot be both set",
                ));
            }
            options.propagation = match policy.as_str() {
                "Background" => Some(Propagation::Background),
                "Foreground" => Some(Propagation::Foreground),
                "Orphan" => Some(Propagation::Orphan),
                _ => {
                    let allowed = ["Foreground", "Background", "Orphan", "nil"];
                    errors.push(FieldError::not_supported("propagationPolicy", policy, &allowed));
                    None
                }
            };
        }
        if let Some(preconditions) = given(source, "preconditions") {
            options.uid = given(&preconditions, "uid").map(|v| text(&v, "preconditions.uid")).transpose()?;
            options.resource_version = given(&preconditions, "resourceVersion")
                .map(|v| text(&v, "preconditions.resourceVersion"))
                .transpose()?;
        }
        if let Some(Value::Array(values)) = given(source, "dryRun") {
            options.dry_run = dry_run(values, &mut errors);
        }
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &errors))
        }
    }
}

/// The query as the object that a body would hold.
fn query_object(query: &Query) -> Result<Value, ApiError> {
    let mut out = serde_json::Map::new();
    if let Some(grace) = query.get("gracePeriodSeconds") {
        let seconds: i64 = grace
            .parse()
            .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {grace:?}: invalid syntax")))?;
        out.insert("gracePeriodSeconds".into(), seconds.into());
    }
    if let Some(policy) = query.get("propagationPolicy") {
        out.insert("propagationPolicy".into(), policy.into());
    }
    if let Some(orphan) = query.optional_flag("orphanDependents") {
        out.insert("orphanDependents".into(), orphan.into());
    }
    out.insert("dryRun".into(), query.all("dryRun").map(Value::from).collect());
    Ok(out.into())
}
