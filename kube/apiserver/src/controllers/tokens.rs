//! Issues tokens for Secrets of type `kubernetes.io/service-account-token`, and deletes the Secrets with their account.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::actor::{Actor, log};
use crate::auth::{Bound, Grant};
use crate::fields::meta_text;
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};
use crate::write::options::DeleteOptions;

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Such a token is valid as long as its secret and its account exist.
const FOR_EVER: i64 = 100 * 365 * 24 * 60 * 60;

/// The secrets, and the namespaces with deleted accounts, to reconcile.
#[derive(Default)]
pub(super) struct Tokens {
    secrets: BTreeSet<Key>,
    namespaces: BTreeSet<Arc<str>>,
}

impl Tokens {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        match (&*resource.group, &*resource.plural, prev, now) {
            ("", "secrets", _, Some(now)) if !now.deleting && is_token(now) => {
                self.secrets.insert(now.key.clone());
            }
            ("", "serviceaccounts", Some(prev), None) => {
                self.namespaces.insert(prev.key.namespace.clone());
            }
            _ => {}
        }
    }

    pub(super) fn reconcile(&mut self, inner: &Arc<Inner>) {
        let Some(secrets) = inner.registry.by_plural("", "secrets") else { return };
        for namespace in std::mem::take(&mut self.namespaces) {
            let page = inner.store.page(&secrets.storage, Some(&namespace), None, None, 0, |_| true);
            let objects = page.map(|page| page.objects).unwrap_or_default();
            self.secrets.extend(objects.iter().filter(|object| is_token(object)).map(|object| object.key.clone()));
        }
        for key in std::mem::take(&mut self.secrets) {
            if let Some(live) = inner.store.get(&secrets.storage, &key).filter(|live| !live.deleting) {
                settle(inner, &secrets, &live);
            }
        }
    }
}

/// Without parsing: most secrets are of other types.
fn is_token(object: &Object) -> bool {
    let wanted = TYPE.as_bytes();
    object.json.windows(wanted.len()).any(|window| window == wanted) && object.value()["type"] == TYPE
}

fn settle(inner: &Arc<Inner>, secrets: &Arc<Resource>, live: &Arc<Object>) {
    let value = live.value();
    let annotations = &value["metadata"]["annotations"];
    let name = annotations[ACCOUNT].as_str().unwrap_or_default();
    let account = inner.lookup("", "serviceaccounts", &live.key.namespace, name);
    let account =
        account.filter(|account| annotations[ACCOUNT_UID].as_str().is_none_or(|uid| uid == meta_text(account, "uid")));
    let actor = Actor::manager(inner, "tokens-controller");
    let Some(account) = account else {
        log("token secrets", actor.delete(secrets, live, DeleteOptions::default()));
        return;
    };
    let filled = |field: &str| value["data"][field].as_str().is_some_and(|text| !text.is_empty());
    if filled("token") && filled("ca.crt") && filled("namespace") && annotations[ACCOUNT_UID].is_string() {
        return;
    }
    let grant = Grant {
        namespace: live.key.namespace.to_string(),
        service_account: Bound::to(&account),
        audiences: inner.tokens.audiences().to_vec(),
        seconds: FOR_EVER,
        secret: Some(Bound::to(&value)),
        ..Grant::default()
    };
    let issued = match inner.tokens.issue(&grant, inner.now()) {
        Ok(issued) => issued,
        Err(error) => {
            tracing::warn!(%error, "a token cannot be signed");
            return;
        }
    };
    let done = actor.change(secrets, live, "", |secret| {
        let fields =
            [("ca.crt", &*inner.ca_pem), ("namespace", &*live.key.namespace), ("token", issued.token.as_str())];
        if !secret["data"].is_object() {
            secret["data"] = json!({});
        }
        for (field, text) in fields {
            if secret["data"][field].as_str().is_none_or(str::is_empty) {
                secret["data"][field] = Value::from(STANDARD.encode(text));
            }
        }
        secret["metadata"]["annotations"][ACCOUNT_UID] = Value::from(meta_text(&account, "uid"));
    });
    log("token secrets", done);
}
