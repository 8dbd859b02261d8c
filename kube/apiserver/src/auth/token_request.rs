//! The `token` subresource of service accounts.

use fleetwright_rbac::quote;
use fleetwright_schema::FieldError;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::{Bound, Grant, Objects, TokenIssuer, text, texts};
use crate::error::ApiError;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const SHORTEST: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT: i64 = 3600;
/// The expiry that pods without token rotation request. For old clients that never reload it, the token is valid for a year.
const UNROTATED: i64 = 3607;
const YEAR: i64 = 365 * 24 * 3600;

/// Answers a TokenRequest for a service account: the request, with the token in its status.
pub fn token_request(
    issuer: &TokenIssuer,
    objects: &dyn Objects,
    namespace: &str,
    name: &str,
    body: Value,
    now: Timestamp,
) -> Result<Value, ApiError> {
    for (field, given, wanted, word) in [
        ("metadata.name", text(&body, "/metadata/name"), name, "name"),
        ("metadata.namespace", text(&body, "/metadata/namespace"), namespace, "namespace"),
    ] {
        if !given.is_empty() && given != wanted {
            let error =
                FieldError::invalid(field, given, format!("must match the service account {word} if specified"));
            return Err(ApiError::invalid(GROUP, KIND, name, &[error]));
        }
    }
    let account = objects.get("serviceaccounts", namespace, name);
    let account = account.ok_or_else(|| ApiError::not_found("", "serviceaccounts", name))?;
    let uid = text(&account, "/metadata/uid");
    let given = text(&body, "/metadata/uid");
    if !given.is_empty() && given != uid {
        let why =
            format!("the UID in the token request ({given}) does not match the UID of the service account ({uid})");
        return Err(ApiError::conflict(GROUP, KIND, name, why));
    }

    let mut audiences = texts(&body, "/spec/audiences");
    if audiences.is_empty() {
        audiences = issuer.audiences().to_vec();
    }
    let seconds = body.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT);
    validate(seconds, &body)?;

    let mut grant = Grant {
        namespace: namespace.to_owned(),
        service_account: Bound::to(&account),
        audiences,
        seconds,
        ..Grant::default()
    };
    let reference = body.pointer("/spec/boundObjectRef").filter(|reference| !reference.is_null());
    if let Some(reference) = reference {
        bind(&mut grant, reference, objects)?;
    }
    let for_the_server = grant.audiences.iter().all(|audience| issuer.audiences().contains(audience));
    if seconds == UNROTATED && grant.pod.is_some() && for_the_server {
        grant.warn_after = seconds;
        grant.seconds = YEAR;
    }
    let issued = issuer.issue(&grant, now);
    let issued = issued.map_err(|error| ApiError::internal(format!("failed to generate token: {error}")))?;

    let mut metadata = body.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    metadata.extend(Map::from_iter([
        ("name".to_owned(), json!(name)),
        ("namespace".to_owned(), json!(namespace)),
        ("uid".to_owned(), json!(uid)),
        ("creationTimestamp".to_owned(), json!(seconds_only(now))),
    ]));
    let expiration = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    Ok(json!({
        "kind": KIND,
        "apiVersion": format!("{GROUP}/v1"),
        "metadata": metadata,
        "spec": {"audiences": grant.audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
        "status": {"token": issued.token, "expirationTimestamp": seconds_only(expiration)},
    }))
}

/// A time in whole seconds, as in objects.
pub(super) fn seconds_only(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn validate(seconds: i64, body: &Value) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let field = "spec.expirationSeconds";
    if seconds < SHORTEST {
        errors.push(FieldError::invalid(field, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > MAX_SECONDS {
        errors.push(FieldError::invalid(field, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    let attestations =
        body.pointer("/spec/attestations").filter(|map| map.as_object().is_some_and(|map| !map.is_empty()));
    if let Some(attestations) = attestations {
        let why = "attestations may only be specified with a webhook bound object reference";
        errors = vec![FieldError::invalid("spec.attestations", attestations.clone(), why)];
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(GROUP, KIND, "", &errors)) }
}

/// Binds the token to the referenced object.
fn bind(grant: &mut Grant, reference: &Value, objects: &dyn Objects) -> Result<(), ApiError> {
    let (name, kind) = (text(reference, "/name"), text(reference, "/kind"));
    let (group, version) = match text(reference, "/apiVersion").split_once('/') {
        Some((_, version)) if version.contains('/') => ("", ""),
        Some(parts) => parts,
        None => ("", text(reference, "/apiVersion")),
    };
    let find = |resource: &str, namespace: &str| {
        objects.get(resource, namespace, name).ok_or_else(|| ApiError::not_found("", resource, name))
    };
    let uid = match (group, kind) {
        ("", "Pod") => {
            let pod = find("pods", &grant.namespace)?;
            let account = &grant.service_account.name;
            if text(&pod, "/spec/serviceAccountName") != account {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                    quote(account)
                )));
            }
            let node = text(&pod, "/spec/nodeName");
            if !node.is_empty() {
                let known = objects.get("nodes", "", node).map(|node| Bound::to(&node));
                grant.node = Some(known.unwrap_or_else(|| Bound { name: node.to_owned(), uid: String::new() }));
            }
            grant.pod.insert(Bound::to(&pod)).uid.clone()
        }
        ("", "Node") => grant.node.insert(Bound::to(&find("nodes", "")?)).uid.clone(),
        ("", "Secret") => grant.secret.insert(Bound::to(&find("secrets", &grant.namespace)?)).uid.clone(),
        _ => {
            let webhook = matches!(kind, "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration");
            let disabled = if (group, version, webhook) == ("admissionregistration.k8s.io", "v1", true) {
                " (feature gate APIServerWebhookAuthenticationToken is disabled)"
            } else {
                ""
            };
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}{disabled}");
            return Err(ApiError::bad_request(message));
        }
    };
    let given = text(reference, "/uid");
    if !given.is_empty() && given != uid {
        let why = format!(
            "the UID in the bound object reference ({given}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict("", kind, name, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(resource: &str, namespace: &str, name: &str) -> Option<Value> {
        match (resource, namespace, name) {
            ("serviceaccounts", "a", "bot") => Some(json!({"metadata": {"name": "bot", "uid": "u1"}})),
            ("pods", "a", "web") => Some(json!({"metadata": {"name": "web", "uid": "p1"},
                "spec": {"serviceAccountName": "bot", "nodeName": "n1"}})),
            ("pods", "a", "other") => Some(json!({"metadata": {"name": "other", "uid": "p2"},
                "spec": {"serviceAccountName": "default"}})),
            _ => None,
        }
    }

    fn issuer() -> TokenIssuer {
        TokenIssuer::generate("https://here", Vec::new()).unwrap()
    }

    fn ask(body: Value) -> Result<Value, (u16, String)> {
        let answer = token_request(&issuer(), &store, "a", "bot", body, Timestamp::UNIX_EPOCH);
        answer.map_err(|error| (error.code, error.message))
    }

    #[test]
    fn an_empty_request_is_for_an_hour_and_for_the_server() {
        let answer = ask(json!({})).unwrap();
        assert_eq!(
            answer["spec"],
            json!({"audiences": ["https://here"], "expirationSeconds": 3600, "boundObjectRef": null})
        );
        assert_eq!(answer["status"]["expirationTimestamp"], "1970-01-01T01:00:00Z");
        assert_eq!(answer["metadata"]["uid"], "u1");
    }

    #[test]
    fn durations_have_bounds() {
        let ask = |seconds: i64| ask(json!({"spec": {"expirationSeconds": seconds}})).map(|_| ());
        assert_eq!(ask(600), Ok(()));
        assert_eq!(ask(1 << 32), Ok(()));
        assert_eq!(
            ask(599).unwrap_err(),
            (422, "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes".to_owned())
        );
        assert_eq!(ask((1 << 32) + 1).unwrap_err().0, 422);
        assert_eq!(ask(i64::MAX).unwrap_err().0, 422);
    }

    #[test]
    fn a_token_is_bound_only_to_a_pod_of_the_account() {
        let bind = |reference: Value| ask(json!({"spec": {"boundObjectRef": reference}})).map(|_| ());
        let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name});
        assert_eq!(bind(pod("web")), Ok(()));
        assert_eq!(bind(pod("none")), Err((404, "pods \"none\" not found".to_owned())));
        assert_eq!(
            bind(pod("other")),
            Err((
                400,
                "cannot bind token for serviceaccount \"bot\" to pod running with different serviceaccount name."
                    .to_owned()
            ))
        );
        assert_eq!(
            bind(json!({"apiVersion": "v2", "kind": "Foo", "name": "x"})),
            Err((400, "cannot bind token to object of type /v2, Kind=Foo".to_owned()))
        );
        assert_eq!(bind(json!({"kind": "Pod", "name": "web", "uid": "old"})).unwrap_err().0, 409);
    }

    #[test]
    fn the_names_in_the_body_are_those_of_the_path() {
        assert_eq!(ask(json!({"metadata": {"name": "eve"}})).unwrap_err().0, 422);
        assert_eq!(
            ask(json!({"metadata": {"uid": "u0"}})).unwrap_err(),
            (409, "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"bot\": the UID in the token request (u0) does not match the UID of the service account (u1)".to_owned())
        );
    }

    #[test]
    fn a_pod_that_does_not_rotate_its_token_keeps_it_for_a_year() {
        let issuer = issuer();
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "web"});
        let body = json!({"spec": {"expirationSeconds": UNROTATED, "boundObjectRef": reference}});
        let now = Timestamp::now();
        let answer = token_request(&issuer, &store, "a", "bot", body, now).unwrap();
        let later = now + SignedDuration::from_secs(YEAR - 1);
        assert!(issuer.verify(text(&answer, "/status/token"), &[], &store, later).is_ok());
    }
}
