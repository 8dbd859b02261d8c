//! Encodes objects for clients: the accepted format and shape, for one object, a list or a watch.

mod yaml;

use std::sync::Arc;

use bytes::Bytes;
use fleetwright_builtins::printers;
use fleetwright_schema::FieldError;
use http::{HeaderMap, Response, header};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::body::{self, Body};
use crate::column::Column;
use crate::error::ApiError;
use crate::registry::{Origin, Resource};
use crate::request::Query;
use crate::store::{Object, Page};

/// Lists above this size are sent in pieces of about this size.
const CHUNK_BYTES: usize = 128 << 10;

/// The annotation of the bookmark that ends the initial events of a watch.
pub(crate) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
}

/// The shape of the answer; the text is its apiVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Whole,
    Table(&'static str),
    Partial(&'static str),
    PartialList(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Include {
    Nothing,
    Metadata,
    Object,
}

/// The response format of one client.
#[derive(Clone, Debug)]
pub(crate) struct ResponseFormat {
    format: Format,
    shape: Shape,
    include: Include,
    pretty: bool,
    now: Timestamp,
    /// The object whose row is marked as the default.
    marked: Option<Arc<str>>,
}

impl ResponseFormat {
    /// Negotiates the Accept header as the real server does: the best clause whose format and transformation are supported.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query, now: Timestamp) -> Result<Self, ApiError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let agent = text(header::USER_AGENT);
        let human = ["curl", "Wget", "Mozilla/5.0"].iter().any(|start| agent.starts_with(start));
        let wanted = query.get("pretty").map(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"));
        let mut view = Self::json(now);
        view.pretty = wanted.unwrap_or(human);

        let accept = text(header::ACCEPT);
        if !accept.is_empty() {
            let (format, shape, pretty) = choose(accept)?;
            (view.format, view.shape, view.pretty) = (format, shape, view.pretty || pretty);
        }
        if matches!(view.shape, Shape::Table(_)) {
            view.include = match query.get("includeObject") {
                None | Some("Metadata") => Include::Metadata,
                Some("None") => Include::Nothing,
                Some("Object") => Include::Object,
                Some(other) => {
                    let error =
                        FieldError::invalid("includeObject", other, "must be 'Metadata', 'Object', 'None', or empty");
                    return Err(ApiError::bad_request(format!("Unable to convert to Table as requested: {error}")));
                }
            };
        }
        Ok(view)
    }

    /// Plain JSON.
    pub(crate) fn json(now: Timestamp) -> Self {
        Self { format: Format::Json, shape: Shape::Whole, include: Include::Metadata, pretty: false, now, marked: None }
    }

    /// The answer to a request about one stored object.
    pub(crate) fn stored(&self, resource: &Resource, object: &Object, code: u16) -> Result<Response<Body>, ApiError> {
        if self.format == Format::Json && self.shape == Shape::Whole && !self.pretty {
            let json = resource.present(object);
            let mut bytes = Vec::with_capacity(json.len() + 1);
            bytes.extend_from_slice(&json);
            bytes.push(b'\n');
            return Ok(body::respond(code, "application/json", body::full(bytes)));
        }
        self.object(resource, &resource.value(object), code)
    }

    /// The answer to a request about one object of this version that is not stored: of a dry run, or a deleted one.
    pub(crate) fn object(&self, resource: &Resource, value: &Value, code: u16) -> Result<Response<Body>, ApiError> {
        let shaped = match self.shape {
            Shape::Whole => return Ok(self.plain(code, value)),
            Shape::Partial(version) => partial(version, value),
            Shape::PartialList(_) => {
                let kind = go_type(resource, false);
                let message =
                    format!("you requested PartialObjectMetadataList, but the requested object is not a list ({kind})");
                return Err(ApiError::new(406, "NotAcceptable", message));
            }
            Shape::Table(version) => self.table(resource, version, value, true),
        };
        Ok(self.plain(code, &shaped))
    }

    /// The answer to a request about the scale of an object.
    pub(crate) fn scale(&self, code: u16, value: &Value) -> Response<Body> {
        let shaped = match self.shape {
            Shape::Whole => return self.plain(code, value),
            Shape::Partial(version) | Shape::PartialList(version) => partial(version, value),
            Shape::Table(version) => json!({
                "kind": "Table", "apiVersion": version, "metadata": {"resourceVersion": value["metadata"]["resourceVersion"]},
                "columnDefinitions": headings(Column::builtin(printers::scale_columns())),
                "rows": [{"cells": printers::scale_row(value, self.now), "object": partial(version, value)}],
            }),
        };
        self.plain(code, &shaped)
    }

    /// An answer that is never transformed: a `Status`, a review.
    pub(crate) fn plain(&self, code: u16, value: &Value) -> Response<Body> {
        if self.format == Format::Yaml {
            return body::respond(code, "application/yaml", body::full(yaml::to_string(value)));
        }
        let text = if self.pretty { format!("{value:#}") } else { format!("{value}\n") };
        body::respond(code, "application/json", body::full(text))
    }

    /// The answer to a list.
    pub(crate) fn list(
        &self,
        resource: &Arc<Resource>,
        page: Page,
        token: Option<String>,
        remaining: Option<usize>,
    ) -> Result<Response<Body>, ApiError> {
        let head = self.list_head(resource, page.revision, token, remaining)?;
        let size: usize = page.objects.iter().map(|object| object.json.len()).sum();
        let mut view = self.clone();
        if let (Shape::Table(_), Origin::Builtin(kind)) = (self.shape, &resource.origin)
            && resource.is("storage.k8s.io", "storageclasses")
        {
            let values: Vec<Value> = page.objects.iter().map(|object| resource.value(object)).collect();
            let at = printers::default_of(kind, &values);
            view.marked = at.and_then(|at| page.objects.get(at)).map(|object| object.key.name.clone());
        }
        let mut items = Items { view, resource: resource.clone(), objects: page.objects.into_iter(), any: false };
        if self.format == Format::Json && !self.pretty && size > CHUNK_BYTES {
            let pieces = std::iter::once(Bytes::from(head)).chain(std::iter::from_fn(move || items.piece()));
            let pieces = pieces.chain(std::iter::once(Bytes::from_static(b"]}\n")));
            return Ok(body::respond(200, "application/json", body::stream(futures::stream::iter(pieces))));
        }
        let mut whole = head;
        while let Some(piece) = items.piece() {
            whole.extend_from_slice(&piece);
        }
        whole.extend_from_slice(b"]}\n");
        if self.format == Format::Json && !self.pretty {
            return Ok(body::respond(200, "application/json", body::full(whole)));
        }
        let value: Value = serde_json::from_slice(&whole).map_err(ApiError::internal)?;
        Ok(self.plain(200, &value))
    }

    /// A list up to its first item.
    fn list_head(
        &self,
        resource: &Resource,
        revision: u64,
        token: Option<String>,
        remaining: Option<usize>,
    ) -> Result<Vec<u8>, ApiError> {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        match (token, &resource.origin) {
            (Some(token), _) => metadata["continue"] = token.into(),
            // Lists of custom resources have an empty `continue`, those of built-in kinds do not.
            (None, Origin::Custom(_)) if self.shape == Shape::Whole => metadata["continue"] = "".into(),
            (None, _) => {}
        }
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        let (kind, version, items) = match self.shape {
            Shape::Whole => (&*resource.list_kind, &*resource.api_version, "\"items\":[".to_owned()),
            Shape::PartialList(version) => ("PartialObjectMetadataList", version, "\"items\":[".to_owned()),
            Shape::Table(version) => {
                ("Table", version, format!("\"columnDefinitions\":{},\"rows\":[", columns(resource)))
            }
            Shape::Partial(_) => {
                let kind = go_type(resource, true);
                let message =
                    format!("you requested PartialObjectMetadata, but the requested object is a list ({kind})");
                return Err(ApiError::new(406, "NotAcceptable", message));
            }
        };
        let (kind, version) = (Value::from(kind), Value::from(version));
        Ok(format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{metadata},{items}").into_bytes())
    }

    fn list_item(&self, resource: &Resource, object: &Object, out: &mut Vec<u8>) {
        let value = match self.shape {
            Shape::Whole => {
                // Lists of built-in kinds do not repeat the kind, those of custom resources do.
                let typed = matches!(resource.origin, Origin::Custom(_));
                match resource.present(object) {
                    json if typed => out.extend_from_slice(&json),
                    std::borrow::Cow::Borrowed(_) => {
                        out.push(b'{');
                        out.extend_from_slice(object.untyped());
                    }
                    std::borrow::Cow::Owned(_) => {
                        let mut value = resource.value(object);
                        if let Some(fields) = value.as_object_mut() {
                            fields.remove("kind");
                            fields.remove("apiVersion");
                        }
                        write(out, &value);
                    }
                }
                return;
            }
            Shape::Partial(version) | Shape::PartialList(version) => partial(version, &resource.value(object)),
            Shape::Table(version) => self.row(resource, version, &resource.value(object)),
        };
        write(out, &value);
    }

    /// 406 unless a watch can be served in this format.
    pub(crate) fn check_stream(&self) -> Result<(), ApiError> {
        match self.format {
            Format::Json => Ok(()),
            Format::Yaml => {
                let message = "only the following media types are accepted: application/json;stream=watch";
                Err(ApiError::new(406, "NotAcceptable", message))
            }
        }
    }

    /// Whether watch events show the objects unchanged, so that all such watchers can share them.
    pub(crate) fn whole(&self) -> bool {
        self.shape == Shape::Whole
    }

    /// The object of a watch event; a table has its columns only the first time.
    pub(crate) fn watched(&self, resource: &Resource, value: &Value, first: bool) -> Value {
        match self.shape {
            Shape::Whole => value.clone(),
            Shape::Partial(version) | Shape::PartialList(version) => partial(version, value),
            Shape::Table(version) => self.table(resource, version, value, first),
        }
    }

    fn table(&self, resource: &Resource, version: &str, value: &Value, headed: bool) -> Value {
        let mut metadata = Map::new();
        if let Some(revision) = value.pointer("/metadata/resourceVersion") {
            metadata.insert("resourceVersion".into(), revision.clone());
        }
        let columns = if headed { columns(resource) } else { Value::Null };
        json!({"kind": "Table", "apiVersion": version, "metadata": metadata, "columnDefinitions": columns,
            "rows": [self.row(resource, version, value)]})
    }

    fn row(&self, resource: &Resource, version: &str, value: &Value) -> Value {
        // A client that waits for the end of the initial events needs this annotation, whatever it asked to include.
        let mark = value.get("metadata").and_then(|m| m.get("annotations")?.get(INITIAL_EVENTS_END)).is_some();
        let object = match self.include {
            Include::Object => value.clone(),
            Include::Nothing if !mark => Value::Null,
            _ => partial(version, value),
        };
        let mut row = json!({"cells": resource.row(value, self.now), "object": object});
        if self.marked.is_some() && self.marked.as_deref() == value.pointer("/metadata/name").and_then(Value::as_str) {
            row["cells"][0] = format!("{} (default)", row["cells"][0].as_str().unwrap_or_default()).into();
        }
        let conditions = resource.row_conditions(value);
        if !conditions.is_empty() {
            row["conditions"] = conditions.into();
        }
        row
    }
}

/// The items of a list while it is being sent.
struct Items {
    view: ResponseFormat,
    resource: Arc<Resource>,
    objects: std::vec::IntoIter<Arc<Object>>,
    any: bool,
}

impl Items {
    fn piece(&mut self) -> Option<Bytes> {
        // Objects of a list are similar, so the first one gives an estimate of the size.
        let one = self.objects.as_slice().first().map_or(0, |object| object.json.len() + 1);
        let mut out = Vec::with_capacity((self.objects.len() * one).min(CHUNK_BYTES + one));
        while out.len() < CHUNK_BYTES {
            let Some(object) = self.objects.next() else { break };
            if std::mem::replace(&mut self.any, true) {
                out.push(b',');
            }
            self.view.list_item(&self.resource, &object, &mut out);
        }
        (!out.is_empty()).then(|| out.into())
    }
}

fn write(out: &mut Vec<u8>, value: &Value) {
    // Serializing a `Value` into memory cannot fail: its keys are strings and its numbers finite.
    let _ = serde_json::to_writer(out, value);
}

fn partial(version: &str, value: &Value) -> Value {
    let metadata = value.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata})
}

fn columns(resource: &Resource) -> Value {
    headings(resource.columns())
}

fn headings(columns: Vec<Column>) -> Value {
    columns
        .into_iter()
        .map(|column| {
            json!({"name": column.name, "type": column.ty, "format": column.format,
                "description": column.description, "priority": column.priority})
        })
        .collect()
}

/// The Go type that the real server names in the error for an impossible transformation.
fn go_type(resource: &Resource, list: bool) -> String {
    match (&resource.origin, list) {
        (Origin::Custom(_), true) => "*unstructured.UnstructuredList".into(),
        (Origin::Custom(_), false) => "*unstructured.Unstructured".into(),
        (Origin::Builtin(_), _) => {
            let package = resource.group.split('.').next().filter(|package| !package.is_empty()).unwrap_or("core");
            format!("*{package}.{}", if list { &resource.list_kind } else { &resource.kind })
        }
    }
}

/// One clause of an Accept header.
#[derive(Debug)]
struct Clause<'a> {
    ty: &'a str,
    subtype: &'a str,
    quality: f64,
    parameters: Vec<(&'a str, &'a str)>,
}

fn choose(accept: &str) -> Result<(Format, Shape, bool), ApiError> {
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(clause).collect();
    let wildcards = |clause: &Clause<'_>| (clause.ty == "*", clause.subtype == "*");
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then_with(|| wildcards(a).cmp(&wildcards(b))));
    let mut known = false;
    for clause in &clauses {
        for (subtype, format) in [("json", Format::Json), ("yaml", Format::Yaml)] {
            let fits = matches!((clause.ty, clause.subtype), ("*", "*") | ("application", "*"))
                || (clause.ty == "application" && clause.subtype == subtype);
            known |= fits;
            if fits && let Some((shape, pretty)) = transformation(clause) {
                return Ok((format, shape, pretty));
            }
        }
    }
    if known {
        return Err(ApiError::not_acceptable());
    }
    let message = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml";
    Err(ApiError::new(406, "NotAcceptable", message).with_causes(Vec::new()))
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';');
    let (ty, subtype) = match parts.next()?.trim() {
        "*" => ("*", "*"),
        media => media.split_once('/')?,
    };
    let mut clause = Clause { ty: ty.trim(), subtype: subtype.trim(), quality: 1.0, parameters: Vec::new() };
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name.trim() {
            "q" => clause.quality = value.trim().parse().ok().filter(|q: &f64| q.is_finite()).unwrap_or(0.0),
            name => clause.parameters.push((name, value.trim())),
        }
    }
    Some(clause)
}

/// The transformation in the parameters of a clause; none when it is not supported.
fn transformation(clause: &Clause<'_>) -> Option<(Shape, bool)> {
    let get = |name: &str| clause.parameters.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value);
    if get("stream").is_some_and(|stream| !matches!(stream, "" | "watch")) {
        return None;
    }
    let pretty = get("pretty") == Some("1");
    let (kind, group, version) = (get("as"), get("g"), get("v"));
    if kind.is_none() && group.is_none() && version.is_none() {
        return Some((Shape::Whole, pretty));
    }
    let version = match (group, version) {
        (Some("meta.k8s.io"), Some("v1")) => "meta.k8s.io/v1",
        (Some("meta.k8s.io"), Some("v1beta1")) => "meta.k8s.io/v1beta1",
        _ => return None,
    };
    match kind? {
        "Table" => Some((Shape::Table(version), pretty)),
        "PartialObjectMetadata" => Some((Shape::Partial(version), pretty)),
        "PartialObjectMetadataList" => Some((Shape::PartialList(version), pretty)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Shape = Shape::Table("meta.k8s.io/v1");

    #[test]
    fn the_best_clause_that_can_be_made_is_taken() {
        for (accept, format, shape) in [
            ("*/*", Format::Json, Shape::Whole),
            ("application/yaml", Format::Yaml, Shape::Whole),
            ("application/vnd.kubernetes.protobuf, application/json", Format::Json, Shape::Whole),
            ("application/json;q=0.1, application/yaml;q=0.5", Format::Yaml, Shape::Whole),
            ("*/*, application/yaml", Format::Yaml, Shape::Whole),
            ("application/json;stream=watch", Format::Json, Shape::Whole),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Format::Json,
                TABLE,
            ),
            ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Format::Json, Shape::Whole),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Format::Json,
                Shape::Partial("meta.k8s.io/v1"),
            ),
        ] {
            let (found, made, _) = choose(accept).unwrap();
            assert_eq!((found, made), (format, shape), "{accept}");
        }
    }

    #[test]
    fn what_cannot_be_made_is_not_acceptable() {
        for accept in [
            "text/html",
            "application/vnd.kubernetes.protobuf",
            "application/json;as=Foo;g=meta.k8s.io;v=v1",
            "nonsense",
        ] {
            assert_eq!(choose(accept).unwrap_err().code, 406, "{accept}");
        }
    }

    #[test]
    fn an_unknown_include_object_is_a_bad_request() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, "application/json;as=Table;g=meta.k8s.io;v=v1".parse().unwrap());
        let error =
            ResponseFormat::negotiate(&headers, &Query::parse(Some("includeObject=Foo")), Timestamp::UNIX_EPOCH)
                .unwrap_err();
        assert_eq!(
            error.message,
            "Unable to convert to Table as requested: includeObject: Invalid value: \"Foo\": must be 'Metadata', 'Object', 'None', or empty"
        );
    }
}
