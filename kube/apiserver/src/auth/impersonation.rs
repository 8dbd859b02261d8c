//! User impersonation.
//!
//! There are the classic mode, one `impersonate` check per name, group, uid and extra value, and the constrained modes, which
//! also check whether the sender may make this request as another user (`impersonate-on:MODE:VERB`). All matching modes
//! are tried; when none allows it, the first refusal is the answer.

use std::collections::BTreeMap;

use fleetwright_rbac::{ANONYMOUS, AUTHENTICATED, MASTERS, Policy, UNAUTHENTICATED, quote};
use http::HeaderMap;

use super::authorizer::forbidden;
use super::{Attributes, User, authorize, names};
use crate::error::ApiError;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// From this number of checks on, a constrained mode first checks all at once.
const MANY: usize = 4;

/// The impersonated user of this request; `None` without impersonation headers.
pub fn impersonate(policy: &Policy, request: &Attributes<'_>, headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let Some(wanted) = wanted(headers)? else { return Ok(None) };
    let mut refusal = None;
    for mode in MODES.iter().filter(|mode| (mode.fits)(&wanted, request.user)) {
        match mode.check(policy, request, &wanted) {
            Ok(user) => return Ok(Some(user)),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| ApiError::internal("all impersonation modes failed")))
}

/// The user that the headers describe.
fn wanted(headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let all =
        |name: &str| headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let first = |name: &str| all(name).next().unwrap_or_default();
    let mut user = User { name: first(USER), uid: first(UID), groups: all(GROUP).collect(), extra: BTreeMap::new() };
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            user.extra.entry(unescape(key)).or_default().push(value);
        }
    }
    match (user.name.is_empty(), only_a_name(&user)) {
        (false, _) => Ok(Some(user)),
        (true, true) => Ok(None),
        (true, false) => {
            let message = format!("requested {} without impersonating a user name", go_syntax(&user));
            Err(ApiError::bad_request(message))
        }
    }
}

/// Decodes percent escapes in a header name; an invalid one is taken literally.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => bytes.push(byte),
            None => return key.to_owned(),
        }
        rest = tail.get(2..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The user in the notation of the real server's error, a Go value.
fn go_syntax(user: &User) -> String {
    let list = |items: &[String]| items.iter().map(|item| quote(item)).collect::<Vec<_>>().join(", ");
    let slice = |items: &[String]| {
        if items.is_empty() { "[]string(nil)".to_owned() } else { format!("[]string{{{}}}", list(items)) }
    };
    let extra = user.extra.iter().map(|(key, values)| format!("{}:{}", quote(key), slice(values)));
    let extra = extra.collect::<Vec<_>>().join(", ");
    let extra = if extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        format!("map[string][]string{{{extra}}}")
    };
    let (name, uid, groups) = (quote(&user.name), quote(&user.uid), slice(&user.groups));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

fn only_a_name(user: &User) -> bool {
    user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty()
}

/// A mode of impersonation.
struct Mode {
    /// The name of a constrained mode; `None` is the classic mode.
    name: Option<&'static str>,
    /// Whether this mode applies to this sender and this impersonated user.
    fits: fn(&User, &User) -> bool,
}

const MODES: [Mode; 5] = [
    Mode { name: Some("associated-node"), fits: |wanted, sender| only_a_name(wanted) && runs_on(sender, &wanted.name) },
    Mode { name: Some("arbitrary-node"), fits: |wanted, _| only_a_name(wanted) && names::node(&wanted.name).is_some() },
    Mode {
        name: Some("serviceaccount"),
        fits: |wanted, _| only_a_name(wanted) && names::service_account(&wanted.name).is_some(),
    },
    Mode {
        name: Some("user-info"),
        fits: |wanted, _| names::node(&wanted.name).is_none() && names::service_account(&wanted.name).is_none(),
    },
    Mode { name: None, fits: |_, _| true },
];

/// Whether the sender is a service account that runs on the node of this user name.
fn runs_on(sender: &User, username: &str) -> bool {
    let node = sender.extra.get("authentication.kubernetes.io/node-name").map(Vec::as_slice);
    names::service_account(&sender.name).is_some()
        && names::node(username).is_some_and(|wanted| matches!(node, Some([own]) if own == wanted))
}

impl Mode {
    fn check(&self, policy: &Policy, request: &Attributes<'_>, wanted: &User) -> Result<User, ApiError> {
        let verb = match self.name {
            Some(mode) => {
                let on = format!("impersonate-on:{mode}:{}", request.verb);
                authorize(policy, &Attributes { verb: &on, ..*request })?;
                format!("impersonate:{mode}")
            }
            None => "impersonate".to_owned(),
        };
        let identity = |resource| Attributes {
            version: "v1",
            ..Attributes::resource(request.user, &verb, AUTHENTICATION, resource)
        };
        // The classic mode has names and groups in the core group.
        let group = if self.name.is_some() { AUTHENTICATION } else { "" };
        let mut user = wanted.clone();
        let mut name = Attributes { group, ..identity("users").named(&wanted.name) };
        if let (Some(mode), Some(node)) = (self.name, names::node(&wanted.name)) {
            let node = if mode == "associated-node" { "*" } else { node };
            name = Attributes { resource: "nodes", name: node, ..name };
            user.groups = vec!["system:nodes".to_owned()];
        }
        if let Some((namespace, account)) = names::service_account(&wanted.name) {
            name = Attributes { resource: "serviceaccounts", name: account, namespace, ..name };
            if wanted.groups.is_empty() {
                user.groups = User::service_account(namespace, account, "").groups;
            }
        }
        authorize(policy, &name)?;
        if !wanted.uid.is_empty() {
            authorize(policy, &identity("uids").named(&wanted.uid))?;
        }
        self.check_groups(policy, Attributes { group, ..identity("groups") }, wanted)?;
        self.check_extra(policy, identity("userextras"), wanted)?;

        if user.name == ANONYMOUS {
            user.ensure_group(UNAUTHENTICATED);
        } else if !user.is_in(UNAUTHENTICATED) {
            user.ensure_group(AUTHENTICATED);
        }
        Ok(user)
    }

    fn check_groups(&self, policy: &Policy, attributes: Attributes<'_>, wanted: &User) -> Result<(), ApiError> {
        if self.name.is_some() {
            if wanted.is_in("") {
                return Err(forbidden(&attributes, "impersonating the empty string group is not allowed"));
            }
            if wanted.is_master() {
                let masters = attributes.named(MASTERS);
                return Err(forbidden(&masters, "impersonating the system:masters group is not allowed"));
            }
            if wanted.groups.len() >= MANY && policy.authorize(&attributes.named("*")).allowed {
                return Ok(());
            }
        }
        wanted.groups.iter().try_for_each(|group| authorize(policy, &attributes.named(group)))
    }

    fn check_extra(&self, policy: &Policy, attributes: Attributes<'_>, wanted: &User) -> Result<(), ApiError> {
        if self.name.is_some() && !wanted.extra.is_empty() {
            check_extra_form(&wanted.extra).map_err(|why| forbidden(&attributes, &why))?;
            let count = wanted.extra.values().map(Vec::len).sum::<usize>();
            let all = Attributes { subresource: "*", ..attributes.named("*") };
            if count >= MANY && policy.authorize(&all).allowed {
                return Ok(());
            }
        }
        for (key, values) in &wanted.extra {
            for value in values {
                authorize(policy, &Attributes { subresource: key, ..attributes.named(value) })?;
            }
        }
        Ok(())
    }
}

/// Checks the form of extra keys and values in constrained modes.
fn check_extra_form(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for (key, values) in extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".to_owned());
        }
        let prefixed = key.split_once('/').is_some_and(|(host, path)| names::is_subdomain(host) && !path.is_empty());
        if !prefixed {
            let key = quote(key);
            return Err(format!(
                "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {key}: must be a domain-prefixed path (such as \"acme.io/foo\")"
            ));
        }
        if key.chars().any(char::is_uppercase) {
            return Err(format!("impersonating a non-lowercase key in extra is not allowed: {}", quote(key)));
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;
    use serde_json::{Value, json};

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    /// A policy in which `amy` has these rules.
    fn policy(rules: Value) -> Policy {
        Policy::from_objects(&[
            json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "User", "name": "amy"}]}),
        ])
    }

    fn ask(sender: &User, rules: Value, pairs: &[(&str, &str)]) -> Result<Option<User>, String> {
        let request = Attributes::resource(sender, "list", "", "pods").in_namespace("default");
        impersonate(&policy(rules), &request, &headers(pairs)).map_err(|error| error.message)
    }

    #[test]
    fn no_user_is_impersonated_without_headers() {
        assert_eq!(ask(&User::new("amy", ["dev"]), json!([]), &[("accept", "x")]), Ok(None));
    }

    #[test]
    fn the_refusal_names_the_first_mode_that_fits() {
        let amy = User::new("amy", ["dev"]);
        for (wanted, mode) in [
            ("bob", "user-info"),
            ("system:serviceaccount:a:b", "serviceaccount"),
            ("system:node:n1", "arbitrary-node"),
        ] {
            assert_eq!(
                ask(&amy, json!([]), &[("Impersonate-User", wanted)]).unwrap_err(),
                format!(
                    "pods is forbidden: User \"amy\" cannot impersonate-on:{mode}:list resource \"pods\" in API group \"\" in the namespace \"default\""
                )
            );
        }
    }

    #[test]
    fn groups_without_a_user_are_a_bad_request() {
        let pairs = [("Impersonate-Group", "g"), ("Impersonate-Uid", "5"), ("Impersonate-Extra-Foo", "a")];
        assert_eq!(
            ask(&User::new("amy", ["dev"]), json!([]), &pairs).unwrap_err(),
            r#"requested &user.DefaultInfo{Name:"", UID:"5", Groups:[]string{"g"}, Extra:map[string][]string{"foo":[]string{"a"}}} without impersonating a user name"#
        );
    }

    #[test]
    fn the_old_verb_is_enough_for_each_part_that_it_is_granted_on() {
        let amy = User::new("amy", ["dev"]);
        let rules = json!([
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]},
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["groups"], "resourceNames": ["dev"]},
        ]);
        let bob = ask(&amy, rules.clone(), &[("Impersonate-User", "bob"), ("Impersonate-Group", "dev")]);
        assert_eq!(bob, Ok(Some(User::new("bob", ["dev", "system:authenticated"]))));
        assert!(ask(&amy, rules.clone(), &[("Impersonate-User", "bob"), ("Impersonate-Group", "ops")]).is_err());
        assert!(ask(&amy, rules, &[("Impersonate-User", "eve")]).is_err());
    }

    #[test]
    fn a_constrained_mode_needs_the_user_and_the_request() {
        let amy = User::new("amy", ["dev"]);
        let who = json!({"verbs": ["impersonate:user-info"], "apiGroups": [AUTHENTICATION], "resources": ["users"]});
        let what = json!({"verbs": ["impersonate-on:user-info:list"], "apiGroups": [""], "resources": ["pods"]});
        let bob = [("Impersonate-User", "bob")];
        assert!(ask(&amy, json!([who]), &bob).is_err());
        assert!(ask(&amy, json!([what]), &bob).is_err());
        assert!(ask(&amy, json!([who, what]), &bob).is_ok());
    }

    #[test]
    fn a_service_account_brings_its_groups_and_a_master_may_be_anybody() {
        let root = User::new("root", [MASTERS]);
        let bot = ask(&root, json!([]), &[("Impersonate-User", "system:serviceaccount:a:bot")]).unwrap().unwrap();
        assert_eq!(bot.groups, ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]);
        let pairs = [("Impersonate-User", "bob"), ("Impersonate-Group", MASTERS)];
        assert!(ask(&root, json!([]), &pairs).unwrap().unwrap().is_master());
    }

    #[test]
    fn extra_keys_are_unescaped() {
        let root = User::new("root", [MASTERS]);
        let pairs =
            [("Impersonate-User", "bob"), ("Impersonate-Extra-Acme.io%2fRole", "a"), ("impersonate-extra-x%zz", "b")];
        let bob = ask(&root, json!([]), &pairs).unwrap().unwrap();
        assert_eq!(bob.extra.keys().collect::<Vec<_>>(), ["acme.io/role", "x%zz"]);
    }
}
