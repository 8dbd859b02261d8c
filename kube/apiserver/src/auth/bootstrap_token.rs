//! Bootstrap tokens: Secrets in kube-system with which new machines request their first certificate, as kube-apiserver
//! accepts them with `--enable-bootstrap-token-auth`.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fleetwright_rbac::User;
use jiff::Timestamp;
use serde_json::Value;

use super::{Objects, text};

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// The user of a valid bootstrap token; none for other tokens, and for expired or disabled ones.
pub(super) fn user(token: &str, objects: &dyn Objects, now: Timestamp) -> Option<User> {
    let (id, secret) = token.split_once('.')?;
    if !(is_part(id, 6) && is_part(secret, 16)) {
        return None;
    }
    let object = objects.get("secrets", NAMESPACE, &format!("bootstrap-token-{id}"))?;
    let data = |key: &str| decoded(&object, key);
    let good = text(&object, "/type") == TYPE
        && text(&object, "/metadata/deletionTimestamp").is_empty()
        // In constant time: the duration must not reveal how much of a guess is right.
        && verify_slices_are_equal(data("token-secret").as_bytes(), secret.as_bytes()).is_ok()
        && data("token-id") == id
        && !is_expired(&data("expiration"), now)
        && data("usage-bootstrap-authentication") == "true";
    let groups = groups(&data("auth-extra-groups"))?;
    good.then(|| User::new(format!("system:bootstrap:{id}"), groups))
}

/// Whether a Secret is an expired bootstrap token; expired ones are removed.
pub(crate) fn is_over(object: &Value, now: Timestamp) -> bool {
    text(object, "/type") == TYPE && is_expired(&decoded(object, "expiration"), now)
}

fn decoded(object: &Value, key: &str) -> String {
    let bytes = object["data"][key].as_str().and_then(|encoded| STANDARD.decode(encoded).ok()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

fn is_part(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// No expiry: never expires; unparsable: expired.
fn is_expired(expiration: &str, now: Timestamp) -> bool {
    !expiration.is_empty() && expiration.parse::<Timestamp>().map_or(true, |until| until <= now)
}

/// The extra groups, which must be bootstrapper groups; none if one is not.
fn groups(extra: &str) -> Option<Vec<String>> {
    let mut groups: Vec<String> = extra.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect();
    groups.push(BOOTSTRAPPERS.to_owned());
    groups.sort_unstable();
    groups.dedup();
    groups.iter().all(|group| group == BOOTSTRAPPERS || is_bootstrappers(group)).then_some(groups)
}

fn is_bootstrappers(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let last = rest.bytes().next_back();
    rest.len() <= 256 && last.is_some_and(letter) && rest.bytes().all(|byte| letter(byte) || b":-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn secret(change: impl Fn(&mut Value)) -> Value {
        let data = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2026-11-15T08:00:00Z"),
            ("auth-extra-groups", "system:bootstrappers:fleetwright,system:bootstrappers:b"),
        ];
        let mut object = json!({"type": TYPE, "metadata": {"name": "bootstrap-token-abcdef"}, "data": {}});
        for (key, value) in data {
            object["data"][key] = STANDARD.encode(value).into();
        }
        change(&mut object);
        object
    }

    fn ask(token: &str, object: &Value, now: &str) -> Option<User> {
        let objects = |resource: &str, namespace: &str, name: &str| {
            let found = (resource, namespace, name) == ("secrets", "kube-system", "bootstrap-token-abcdef");
            found.then(|| object.clone())
        };
        user(token, &objects, now.parse().unwrap())
    }

    const BEFORE: &str = "2026-11-15T07:59:59Z";

    #[test]
    fn a_token_is_its_user_in_its_groups() {
        let user = ask(TOKEN, &secret(|_| {}), BEFORE).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        let groups = ["system:bootstrappers", "system:bootstrappers:b", "system:bootstrappers:fleetwright"];
        assert_eq!(user.groups, groups);
    }

    #[test]
    fn a_token_that_expired_or_is_wrong_is_no_user() {
        assert_eq!(ask(TOKEN, &secret(|_| {}), "2026-11-15T08:00:00Z"), None);
        let wrong =
            ["abcdef.0123456789abcdee", "abcdee.0123456789abcdef", "abcdef", "ABCDEF.0123456789abcdef", "a.b.c"];
        for token in wrong {
            assert_eq!(ask(token, &secret(|_| {}), BEFORE), None, "{token}");
        }
        let set = |key: &'static str, value: &'static str| {
            secret(move |object| object["data"][key] = STANDARD.encode(value).into())
        };
        for object in [
            set("usage-bootstrap-authentication", "false"),
            set("expiration", "soon"),
            set("token-id", "abcdee"),
            set("auth-extra-groups", "system:masters"),
            set("auth-extra-groups", "system:bootstrappers:"),
            secret(|object| object["type"] = "Opaque".into()),
            secret(|object| object["metadata"]["deletionTimestamp"] = "2026-11-15T07:00:00Z".into()),
        ] {
            assert_eq!(ask(TOKEN, &object, BEFORE), None, "{object}");
        }
        assert!(ask(TOKEN, &set("expiration", ""), "2036-11-15T08:00:00Z").is_some());
    }
}
