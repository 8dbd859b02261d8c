//! Reads: one object, and collections at any revision in the store's history, whole or page by page.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fleetwright_schema::FieldError;
use http::Response;
use serde_json::{Value, json};

use crate::body::Body;
use crate::error::{ApiError, Cause};
use crate::present::ResponseFormat;
use crate::registry::{Origin, Resource};
use crate::request::Query;
use crate::selectors::{FieldSelector, LabelSelector, Selectors};
use crate::store::{Key, Page, Store};

/// The time for which a request waits for a future revision.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3);

const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can \
    start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The meaning of a given resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Exact,
    NotOlderThan,
}

/// The options of a list, a watch or the deletion of a collection, checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOptions {
    pub(crate) selectors: Selectors,
    pub(crate) resource_version: Option<String>,
    pub(crate) version_match: Option<Match>,
    pub(crate) limit: usize,
    pub(crate) token: Option<String>,
    pub(crate) timeout: Option<i64>,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial: Option<bool>,
}

impl ListOptions {
    /// Reads the options from a query. A `name` in the path counts as a field selector.
    pub(crate) fn read(query: &Query, resource: &Resource, name: &str, watch: bool) -> Result<Self, ApiError> {
        let labels =
            LabelSelector::parse(query.get("labelSelector").unwrap_or_default()).map_err(ApiError::bad_request)?;
        let mut options = Self {
            selectors: Selectors { labels, fields: FieldSelector::default() },
            resource_version: query.get("resourceVersion").map(str::to_owned),
            limit: number(query, "limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0),
            token: query.get("continue").map(str::to_owned),
            timeout: number(query, "timeoutSeconds")?,
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial: query.optional_flag("sendInitialEvents"),
            version_match: None,
        };
        let mut version_match = query.get("resourceVersionMatch");
        let any = matches!(options.resource_version.as_deref(), None | Some("0"));
        if watch && any && options.send_initial.is_none() && version_match.is_none() {
            options.send_initial = Some(true);
            version_match = Some("NotOlderThan");
        }
        let errors = options.mistakes(version_match, watch);
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &errors));
        }
        options.version_match = match version_match {
            Some("Exact") => Some(Match::Exact),
            Some(_) => Some(Match::NotOlderThan),
            None => None,
        };
        options.selectors.fields = field_selector(query, resource, name)?;
        Ok(options)
    }

    fn mistakes(&self, version_match: Option<&str>, watch: bool) -> Vec<FieldError> {
        let forbidden = |detail: &str| FieldError::forbidden("resourceVersionMatch", detail);
        let mut errors = Vec::new();
        if watch {
            if self.send_initial.is_some() && version_match != Some("NotOlderThan") {
                errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
            }
            let Some(version_match) = version_match else { return errors };
            if self.send_initial.is_none() {
                errors.push(forbidden(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            if version_match != "NotOlderThan" {
                errors.push(FieldError::not_supported("resourceVersionMatch", version_match, &["NotOlderThan"]));
            }
            if self.token.is_some() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
            return errors;
        }
        if let Some(version_match) = version_match {
            if self.resource_version.is_none() {
                errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
            }
            if self.token.is_some() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
            if !matches!(version_match, "Exact" | "NotOlderThan") {
                let allowed = ["Exact", "NotOlderThan", ""];
                errors.push(FieldError::not_supported("resourceVersionMatch", version_match, &allowed));
            }
            if version_match == "Exact" && self.resource_version.as_deref() == Some("0") {
                errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
            }
        }
        if self.send_initial.is_some() {
            errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        errors
    }

    /// The resourceVersion as a number; 0 when none or any is requested.
    pub(crate) fn revision(&self) -> Result<u64, FieldError> {
        self.resource_version.as_deref().map_or(Ok(0), parse_revision)
    }
}

/// Reads a resourceVersion.
pub(crate) fn parse_revision(text: &str) -> Result<u64, FieldError> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        if let Ok(revision) = text.parse() {
            return Ok(revision);
        }
        return Err(not_a_number(text, "value out of range"));
    }
    Err(not_a_number(text, "invalid syntax"))
}

fn not_a_number(text: &str, why: &str) -> FieldError {
    FieldError::invalid("resourceVersion", text, format!("strconv.ParseUint: parsing {text:?}: {why}"))
}

fn number(query: &Query, key: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = query.get(key) else { return Ok(None) };
    text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let why =
            if matches!(error.kind(), PosOverflow | NegOverflow) { "value out of range" } else { "invalid syntax" };
        ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    })
}

fn field_selector(query: &Query, resource: &Resource, name: &str) -> Result<FieldSelector, ApiError> {
    let text = query.get("fieldSelector").unwrap_or_default();
    let selector = FieldSelector::parse(text, |field| field_name(resource, field)).map_err(ApiError::bad_request)?;
    if name.is_empty() {
        return Ok(selector);
    }
    if selector.is_empty() {
        return Ok(FieldSelector::name(name));
    }
    if selector.exact("metadata.name") != Some(name) {
        return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    Ok(selector)
}

/// The store's name of a selectable field, or the real server's error for the kind.
fn field_name(resource: &Resource, field: &str) -> Result<String, String> {
    let known = [
        "Pod",
        "Node",
        "ReplicationController",
        "Event",
        "Namespace",
        "Secret",
        "Service",
        "CertificateSigningRequest",
    ];
    let custom = matches!(resource.origin, Origin::Custom(_));
    let own_rules = custom || known.contains(&&*resource.kind);
    let placeless = field == "metadata.namespace" && !resource.namespaced && own_rules;
    if field == "spec.host" && resource.is("", "pods") {
        return Ok("spec.nodeName".into());
    }
    if resource.field_is_selectable(field) && !placeless {
        // events.k8s.io has other names for the fields of core/v1 events.
        return Ok(match (resource.is("events.k8s.io", "events"), field.strip_prefix("regarding.")) {
            (true, Some(rest)) => format!("involvedObject.{rest}"),
            (true, None) if field == "reportingController" => "reportingComponent".into(),
            _ => field.into(),
        });
    }
    Err(match () {
        () if own_rules => format!("field label not supported: {field}"),
        () if resource.is("batch", "jobs") => format!("field label {field:?} not supported for Job"),
        () => format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
    })
}

/// Waits until the store reaches a revision; 504 after a timeout.
pub(crate) async fn wait_for(store: &Store, revision: u64) -> Result<(), ApiError> {
    store.reach(revision, WAIT_TIMEOUT).await.map_err(|current| {
        let cause = Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        };
        ApiError::timeout(format!("Timeout: Too large resource version: {revision}, current: {current}"), 1)
            .with_causes(vec![cause])
    })
}

/// Reads one object; `resourceVersion` requests one that is not older.
pub(crate) async fn get(
    store: &Store,
    resource: &Resource,
    key: &Key,
    query: &Query,
    view: &ResponseFormat,
) -> Result<Response<Body>, ApiError> {
    if let Some(version) = query.get("resourceVersion") {
        let revision = parse_revision(version).map_err(|error| ApiError::new(500, "", error.to_string()))?;
        wait_for(store, revision).await?;
    }
    let object = store.get(&resource.storage, key).ok_or_else(|| resource.not_found(&key.name))?;
    view.stored(resource, &object, 200)
}

/// Lists a collection: of one namespace or, when it is empty, of all.
pub(crate) async fn list(
    store: &Store,
    resource: &Arc<Resource>,
    namespace: &str,
    query: &Query,
    view: &ResponseFormat,
) -> Result<Response<Body>, ApiError> {
    let options = ListOptions::read(query, resource, "", false)?;
    let (at, after) = match &options.token {
        Some(token) => {
            let token = Token::decode(token, resource.namespaced && namespace.is_empty(), namespace)?;
            if !matches!(options.resource_version.as_deref(), None | Some("0")) {
                return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
            }
            (token.revision, Some(token))
        }
        None => (moment(store, &options).await?, None),
    };
    if let Some(revision) = at {
        wait_for(store, revision).await?;
    }
    // Lists of "any" version come whole, as they do from the real server's cache.
    let limit = if options.resource_version.as_deref() == Some("0") { 0 } else { options.limit };
    let selectors = &options.selectors;
    let page = match single(store, resource, namespace, at, &options) {
        Some(page) => page,
        None => {
            let place = Some(namespace).filter(|namespace| !namespace.is_empty());
            let after = after.as_ref().map(|token| &token.after);
            match store.page(&resource.storage, place, at, after, limit, |object| selectors.matches(object)) {
                Ok(page) => page,
                Err(_) if after.is_some() => return Ok(expired(view, after, namespace)),
                Err(_) => return Err(ApiError::expired(LIST_EXPIRED)),
            }
        }
    };
    let token = page.next.as_ref().map(|last| Token::encode(last, namespace, page.revision as i64));
    let remaining = page.remaining.filter(|_| selectors.is_empty());
    view.list(resource, page, token, remaining)
}

/// The revision of a list without a token; none for the present.
async fn moment(store: &Store, options: &ListOptions) -> Result<Option<u64>, ApiError> {
    let revision =
        options.revision().map_err(|error| ApiError::bad_request(format!("invalid resource version: {error}")))?;
    if revision == 0 {
        return Ok(None);
    }
    match options.version_match {
        Some(Match::Exact) => Ok(Some(revision)),
        None if options.limit > 0 => Ok(Some(revision)),
        _ => wait_for(store, revision).await.map(|()| None),
    }
}

/// Answers a list of one name in one namespace without a walk over all objects.
fn single(store: &Store, resource: &Resource, namespace: &str, at: Option<u64>, options: &ListOptions) -> Option<Page> {
    let name = options.selectors.fields.exact("metadata.name")?;
    if at.is_some() || options.token.is_some() || (resource.namespaced && namespace.is_empty()) {
        return None;
    }
    let revision = store.revision();
    let object = store.get(&resource.storage, &Key::new(namespace, name));
    let objects = object.filter(|object| options.selectors.matches(object)).into_iter().collect();
    Some(Page { objects, revision, next: None, remaining: None })
}

/// 410 with a token that continues in the present.
fn expired(view: &ResponseFormat, after: Option<&Key>, namespace: &str) -> Response<Body> {
    let mut status = ApiError::expired(CONTINUE_EXPIRED).status();
    if let Some(after) = after {
        status["metadata"]["continue"] = Token::encode(after, namespace, -1).into();
    }
    view.plain(410, &status)
}

/// The continue token of a paged list.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    /// The revision of the list; none for the present, after the first one expired.
    revision: Option<u64>,
    /// The last key of the previous page.
    after: Key,
}

impl Token {
    fn encode(last: &Key, namespace: &str, revision: i64) -> String {
        let start = if namespace.is_empty() && !last.namespace.is_empty() {
            format!("/{}/{}\0", last.namespace, last.name)
        } else {
            format!("/{}\0", last.name)
        };
        let start = Value::from(start);
        URL_SAFE_NO_PAD.encode(format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":{revision},\"start\":{start}}}"))
    }

    /// Reads a token; `across` tells whether its key names a namespace.
    fn decode(text: &str, across: bool, namespace: &str) -> Result<Self, ApiError> {
        Self::try_decode(text, across, namespace)
            .map_err(|error| ApiError::bad_request(format!("invalid continue token: continue key is not valid{error}")))
    }

    fn try_decode(text: &str, across: bool, namespace: &str) -> Result<Self, String> {
        let data = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| format!(": illegal base64 data at input byte {}", bad_byte(text)))?;
        let token: Value = serde_json::from_slice(&data).map_err(|_| match data.first() {
            Some(&first) if first != b'{' => {
                format!(": invalid character {:?} looking for beginning of value", char::from(first))
            }
            _ => ": unexpected end of JSON input".into(),
        })?;
        let version = token.get("v").and_then(Value::as_str).unwrap_or_default();
        if version != "meta.k8s.io/v1" {
            return Err(format!(": server does not recognize this encoded version {version}"));
        }
        let revision = token.get("rv").and_then(Value::as_i64).unwrap_or(0);
        if revision == 0 {
            return Err(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into());
        }
        let start = token.get("start").and_then(Value::as_str).unwrap_or_default();
        if start.is_empty() {
            return Err(": encoded start key empty (version meta.k8s.io/v1)".into());
        }
        let path = start.strip_prefix('/').unwrap_or(start);
        if path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(format!(": {start}"));
        }
        let path = path.strip_suffix('\0').unwrap_or(path);
        let after = match path.split_once('/') {
            Some((namespace, name)) if across => Key::new(namespace, name),
            None if across => Key::new(path, ""),
            _ => Key::new(namespace, path),
        };
        Ok(Self { revision: u64::try_from(revision).ok(), after })
    }
}

/// The byte at which Go's decoder fails.
fn bad_byte(text: &str) -> usize {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.bytes().position(|byte| !known(byte)).unwrap_or(text.len())
}

/// The object of a bookmark, which has only a version.
pub(crate) fn bookmark(resource: &Resource, revision: u64) -> Value {
    json!({"kind": &*resource.kind, "apiVersion": &*resource.api_version,
        "metadata": {"resourceVersion": revision.to_string()}})
}

#[cfg(test)]
mod tests;
