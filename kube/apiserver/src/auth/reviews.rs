//! The endpoints of `kubectl auth can-i` and `whoami`, and the reviews for other servers.

use std::collections::BTreeMap;

use fleetwright_rbac::{Attributes, Policy, Rule, User};
use fleetwright_schema::FieldError;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::token::Verified;
use super::token_request::seconds_only;
use super::{Objects, TokenIssuer, authenticated, bootstrap_token, text, texts};
use crate::error::ApiError;
use crate::selectors::{FieldSelector, LabelSelector};

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Answers a SubjectAccessReview: the rights of another user.
pub fn subject_access_review(policy: &Policy, body: Value) -> Result<Value, ApiError> {
    let mut errors = attribute_errors(&body);
    errors.extend(subject_errors(&body));
    errors.extend(selector_errors(&body));
    if !is_empty(&body, &[]) {
        errors.push(FieldError::invalid("metadata", metadata(&body), "must be empty"));
    }
    valid(&errors)?;
    Ok(decide(policy, &reviewed_user(&body), body))
}

/// Answers a LocalSubjectAccessReview: the same within one namespace.
pub fn local_subject_access_review(policy: &Policy, namespace: &str, mut body: Value) -> Result<Value, ApiError> {
    match text(&body, "/metadata/namespace") {
        "" => {
            let mut with_namespace = metadata(&body);
            with_namespace["namespace"] = json!(namespace);
            if let Some(body) = body.as_object_mut() {
                body.insert("metadata".to_owned(), with_namespace);
            }
        }
        given if given != namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        _ => {}
    }
    let mut errors = attribute_errors(&body);
    errors.extend(subject_errors(&body));
    errors.extend(selector_errors(&body));
    if !is_empty(&body, &["namespace"]) {
        errors.push(FieldError::invalid("metadata", metadata(&body), "must be empty except for namespace"));
    }
    let reviewed = text(&body, "/spec/resourceAttributes/namespace");
    if attributes(&body, "resourceAttributes").is_some() && reviewed != namespace {
        let field = "spec.resourceAttributes.namespace";
        errors.push(FieldError::invalid(field, reviewed, "must match metadata.namespace"));
    }
    if attributes(&body, "nonResourceAttributes").is_some() {
        let why = "disallowed on this kind of request";
        errors.push(FieldError::invalid("spec.nonResourceAttributes", path_attributes(&body), why));
    }
    valid(&errors)?;
    Ok(decide(policy, &reviewed_user(&body), body))
}

/// Answers a SelfSubjectAccessReview: a right of the sender.
pub fn self_subject_access_review(policy: &Policy, user: &User, body: Value) -> Result<Value, ApiError> {
    let mut errors = attribute_errors(&body);
    errors.extend(selector_errors(&body));
    if !is_empty(&body, &[]) {
        errors.push(FieldError::invalid("metadata", metadata(&body), "must be empty"));
    }
    valid(&errors)?;
    Ok(decide(policy, user, body))
}

/// Answers a SelfSubjectRulesReview: the sender's rights in a namespace.
pub fn self_subject_rules_review(policy: &Policy, user: &User, body: &Value) -> Result<Value, ApiError> {
    let namespace = text(body, "/spec/namespace");
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let found = policy.rules_for(user, namespace);
    let resources = found
        .rules
        .iter()
        .filter(|rule| !rule.resources.is_empty())
        .map(|rule| json!(Rule { non_resource_urls: Vec::new(), ..rule.clone() }));
    let paths = found.rules.iter().filter(|rule| !rule.non_resource_urls.is_empty());
    let paths = paths.map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
    let mut status = json!({
        "resourceRules": resources.collect::<Vec<_>>(),
        "nonResourceRules": paths.collect::<Vec<_>>(),
        "incomplete": false,
    });
    if let Some(error) = found.error() {
        status["evaluationError"] = json!(error);
    }
    Ok(json!({
        "kind": "SelfSubjectRulesReview",
        "apiVersion": format!("{AUTHORIZATION}/v1"),
        "metadata": {},
        "spec": {},
        "status": status,
    }))
}

/// Answers a SelfSubjectReview: the sender's identity.
pub fn self_subject_review(user: &User, now: Timestamp) -> Value {
    json!({
        "kind": "SelfSubjectReview",
        "apiVersion": format!("{AUTHENTICATION}/v1"),
        "metadata": {"creationTimestamp": seconds_only(now)},
        "status": {"userInfo": user_info(user)},
    })
}

/// Answers a TokenReview: the user of a token.
pub fn token_review(
    issuer: &TokenIssuer,
    objects: &dyn Objects,
    mut body: Value,
    now: Timestamp,
) -> Result<Value, ApiError> {
    // Text after a space is not part of the token, as in a request's header.
    let token = text(&body, "/spec/token").trim().split(' ').next().unwrap_or_default();
    if text(&body, "/spec/token").is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = texts(&body, "/spec/audiences");
    let bootstrapper = bootstrap_token::user(token, objects, now)
        .filter(|_| audiences.is_empty() || audiences.iter().any(|audience| issuer.audiences().contains(audience)));
    let verified = match bootstrapper {
        Some(user) => Ok(Verified { user, audiences: issuer.audiences().to_vec() }),
        None => issuer.verify(token, &audiences, objects, now),
    };
    let status = match verified {
        Ok(verified) => json!({
            "authenticated": true,
            "user": user_info(&authenticated(verified.user)),
            "audiences": verified.audiences,
        }),
        Err(error) => json!({"user": {}, "error": error.to_string()}),
    };
    finish(&mut body, status);
    Ok(body)
}

/// A user in the form of the API; empty fields are left out.
fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    for (key, value) in [("username", &user.name), ("uid", &user.uid)] {
        if !value.is_empty() {
            info.insert(key.to_owned(), json!(value));
        }
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

fn metadata(body: &Value) -> Value {
    body.get("metadata").filter(|metadata| metadata.is_object()).cloned().unwrap_or_else(|| json!({}))
}

/// Whether the metadata is empty, apart from server-side fields and the named ones.
fn is_empty(body: &Value, but: &[&str]) -> bool {
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    let metadata = body.get("metadata").and_then(Value::as_object);
    metadata
        .into_iter()
        .flatten()
        .all(|(key, value)| key == "managedFields" || but.contains(&key.as_str()) || !says(value))
}

fn attributes<'a>(body: &'a Value, kind: &str) -> Option<&'a Value> {
    body.get("spec")?.get(kind).filter(|attributes| !attributes.is_null())
}

/// The attributes of a path as errors print them.
fn path_attributes(body: &Value) -> Value {
    let text = |key: &str| text(body, &format!("/spec/nonResourceAttributes/{key}")).to_owned();
    attributes(body, "nonResourceAttributes")
        .map_or(Value::Null, |_| json!({"Path": text("path"), "Verb": text("verb")}))
}

fn attribute_errors(body: &Value) -> Vec<FieldError> {
    let resource = attributes(body, "resourceAttributes").is_some();
    let path = attributes(body, "nonResourceAttributes").is_some();
    let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    if resource == path { vec![FieldError::invalid("spec", path_attributes(body), why)] } else { Vec::new() }
}

fn subject_errors(body: &Value) -> Vec<FieldError> {
    if text(body, "/spec/user").is_empty() && texts(body, "/spec/groups").is_empty() {
        vec![FieldError::invalid("spec.user", "", "at least one of user or group must be specified")]
    } else {
        Vec::new()
    }
}

/// The errors in the selectors that narrow a review.
fn selector_errors(body: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for kind in ["fieldSelector", "labelSelector"] {
        let Some(selector) = attributes(body, "resourceAttributes").and_then(|attributes| attributes.get(kind)) else {
            continue;
        };
        if selector.is_null() {
            continue;
        }
        let field = format!("spec.resourceAttributes.{kind}");
        let raw = text(selector, "/rawSelector");
        let requirements =
            selector.get("requirements").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if !raw.is_empty() && !requirements.is_empty() {
            let why = "may not specified at the same time as requirements";
            errors.push(FieldError::invalid(format!("{field}.rawSelector"), raw, why));
        }
        if raw.is_empty() && requirements.is_empty() {
            let why = format!("when {field} is specified, requirements or rawSelector is required");
            errors.push(FieldError::required(format!("{field}.requirements"), why));
        }
        for (index, requirement) in requirements.iter().enumerate() {
            let field = format!("{field}.requirements[{index}]");
            if kind == "fieldSelector" && text(requirement, "/key").is_empty() {
                errors.push(FieldError::required(format!("{field}.key"), "must be specified"));
            }
            let values = texts(requirement, "/values");
            match text(requirement, "/operator") {
                "In" | "NotIn" if values.is_empty() => {
                    let why = "must be specified when `operator` is 'In' or 'NotIn'";
                    errors.push(FieldError::required(format!("{field}.values"), why));
                }
                "Exists" | "DoesNotExist" if !values.is_empty() => {
                    let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errors.push(FieldError::forbidden(format!("{field}.values"), why));
                }
                _ => {}
            }
        }
    }
    errors
}

fn valid(errors: &[FieldError]) -> Result<(), ApiError> {
    // The real server's text for these has no kind.
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(AUTHORIZATION, "", "", errors)) }
}

fn reviewed_user(body: &Value) -> User {
    let extra = body.pointer("/spec/extra").and_then(Value::as_object).into_iter().flatten();
    let extra = extra.map(|(key, _)| (key.clone(), texts(body, &format!("/spec/extra/{}", escape(key)))));
    User {
        name: text(body, "/spec/user").to_owned(),
        uid: text(body, "/spec/uid").to_owned(),
        groups: texts(body, "/spec/groups"),
        extra: extra.collect::<BTreeMap<_, _>>(),
    }
}

/// A key as a part of a JSON pointer.
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Writes the decision into the review.
fn decide(policy: &Policy, user: &User, mut body: Value) -> Value {
    let field = |key: &str| text(&body, &format!("/spec/resourceAttributes/{key}")).to_owned();
    let [verb, group, resource, subresource, name, namespace] =
        ["verb", "group", "resource", "subresource", "name", "namespace"].map(field);
    let decision = if attributes(&body, "resourceAttributes").is_some() {
        let asked = Attributes { subresource: &subresource, ..Attributes::resource(user, &verb, &group, &resource) };
        policy.authorize(&asked.named(&name).in_namespace(&namespace))
    } else {
        let field = |key: &str| text(&body, &format!("/spec/nonResourceAttributes/{key}"));
        policy.authorize(&Attributes::path(user, field("verb"), field("path")))
    };
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = json!(decision.reason);
    }
    let ignored = ignored_selectors(&body);
    if !ignored.is_empty() {
        status["evaluationError"] = json!(ignored.join("; "));
    }
    finish(&mut body, status);
    body
}

/// The warnings about invalid selectors: they are left out of the decision, which can only widen it.
fn ignored_selectors(body: &Value) -> Vec<String> {
    let mut ignored = Vec::new();
    for kind in ["fieldSelector", "labelSelector"] {
        let pointer = format!("/spec/resourceAttributes/{kind}");
        let Some(selector) = body.pointer(&pointer).filter(|selector| selector.is_object()) else { continue };
        let raw = text(selector, "/rawSelector");
        let unreadable = match kind {
            "fieldSelector" => FieldSelector::parse(raw, |field| Ok(field.to_owned())).is_err(),
            _ => LabelSelector::parse(raw).is_err(),
        };
        let requirements =
            selector.get("requirements").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let good = requirements.iter().filter(|requirement| readable(kind, requirement)).count();
        let how = match (good, requirements.len()) {
            (0, 0) if unreadable => "ignored",
            (0, 1..) => "ignored",
            (good, all) if good < all => "partially ignored",
            _ => continue,
        };
        ignored.push(format!("spec.resourceAttributes.{kind} {how} due to parse error"));
    }
    ignored
}

fn readable(kind: &str, requirement: &Value) -> bool {
    let values = texts(requirement, "/values").len();
    match (kind, text(requirement, "/operator")) {
        ("fieldSelector", "In" | "NotIn") => values == 1,
        ("labelSelector", "In" | "NotIn" | "Exists" | "DoesNotExist") => true,
        _ => false,
    }
}

fn finish(body: &mut Value, status: Value) {
    if let Some(body) = body.as_object_mut() {
        body.insert("status".to_owned(), status);
    }
}

#[cfg(test)]
mod tests {
    use fleetwright_rbac::bootstrap;

    use super::*;

    fn policy() -> Policy {
        Policy::from_objects(&bootstrap::objects())
    }

    fn amy() -> User {
        User::new("amy", ["dev", "system:authenticated"])
    }

    #[test]
    fn a_review_names_what_allows_it() {
        let body = json!({"spec": {"user": "system:kube-proxy",
            "resourceAttributes": {"verb": "list", "resource": "services", "namespace": "a"}}});
        assert_eq!(
            subject_access_review(&policy(), body).unwrap()["status"],
            json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"system:node-proxier\" of ClusterRole \"system:node-proxier\" to User \"system:kube-proxy\""})
        );
    }

    #[test]
    fn a_review_of_a_path_and_of_a_resource_is_answered_for_the_sender() {
        let ask = |spec: Value| self_subject_access_review(&policy(), &amy(), json!({"spec": spec})).unwrap();
        let path = ask(json!({"nonResourceAttributes": {"verb": "get", "path": "/version"}}));
        assert_eq!(path["status"]["allowed"], true);
        let pods = ask(json!({"resourceAttributes": {"verb": "list", "resource": "pods"}}));
        assert_eq!(pods["status"], json!({"allowed": false}));
    }

    #[test]
    fn a_review_is_of_one_thing_and_of_somebody() {
        let error = subject_access_review(
            &policy(),
            json!({"metadata": {"name": "x"}, "spec": {
            "resourceAttributes": {"verb": "x"}, "nonResourceAttributes": {"verb": "get", "path": "/x"}}}),
        );
        assert_eq!(
            error.unwrap_err().message,
            r#".authorization.k8s.io "" is invalid: [spec: Invalid value: {"Path":"/x","Verb":"get"}: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: "": at least one of user or group must be specified, metadata: Invalid value: {"name":"x"}: must be empty]"#
        );
        let nothing = self_subject_access_review(&policy(), &amy(), json!({"spec": {}})).unwrap_err();
        assert_eq!(
            nothing.message,
            r#".authorization.k8s.io "" is invalid: spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"#
        );
    }

    #[test]
    fn a_local_review_stays_in_its_namespace() {
        let ask = |body: Value| local_subject_access_review(&policy(), "a", body).map_err(|error| error.message);
        let spec =
            |namespace: &str| json!({"user": "u", "resourceAttributes": {"verb": "get", "namespace": namespace}});
        assert_eq!(ask(json!({"spec": spec("a")})).unwrap()["metadata"], json!({"namespace": "a"}));
        assert_eq!(
            ask(json!({"spec": spec("b")})).unwrap_err(),
            r#".authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: "b": must match metadata.namespace"#
        );
        assert!(ask(json!({"metadata": {"namespace": "b"}, "spec": spec("a")})).is_err());
    }

    #[test]
    fn the_rules_of_everybody_are_listed() {
        let review = self_subject_rules_review(&policy(), &amy(), &json!({"spec": {"namespace": "a"}})).unwrap();
        assert_eq!(review["status"]["resourceRules"].as_array().unwrap().len(), 2);
        assert_eq!(review["status"]["nonResourceRules"].as_array().unwrap().len(), 2);
        let error = self_subject_rules_review(&policy(), &amy(), &json!({"spec": {}})).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, "no namespace on request"));
    }

    #[test]
    fn selectors_that_cannot_be_read_are_said_to_be_ignored() {
        let body = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods",
            "labelSelector": {"rawSelector": "a in ("},
            "fieldSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "a", "operator": "New"}]}}}});
        assert_eq!(
            self_subject_access_review(&policy(), &amy(), body).unwrap()["status"]["evaluationError"],
            "spec.resourceAttributes.fieldSelector partially ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error"
        );
    }

    #[test]
    fn who_am_i_leaves_out_what_is_empty() {
        let review = self_subject_review(&amy(), Timestamp::UNIX_EPOCH);
        assert_eq!(review["status"]["userInfo"], json!({"username": "amy", "groups": ["dev", "system:authenticated"]}));
        assert_eq!(review["metadata"]["creationTimestamp"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_foreign_token_is_reviewed_as_invalid() {
        let issuer = TokenIssuer::generate("https://here", Vec::new()).unwrap();
        let none = |_: &str, _: &str, _: &str| None;
        let review = token_review(&issuer, &none, json!({"spec": {"token": "abc"}}), Timestamp::now()).unwrap();
        assert_eq!(review["status"], json!({"user": {}, "error": "invalid bearer token"}));
        let error = token_review(&issuer, &none, json!({"spec": {}}), Timestamp::now()).unwrap_err();
        assert_eq!(error.message, "token is required for TokenReview in authentication");
    }
}
