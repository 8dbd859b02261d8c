//! Creates the service account `default` and the ConfigMap with the CA certificate in every active namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::actor::{Actor, all, log};
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::{Key, Object};

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const ABOUT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The namespaces to reconcile.
#[derive(Default)]
pub(super) struct Accounts {
    due: BTreeSet<Arc<str>>,
}

impl Accounts {
    pub(super) fn changed(&mut self, resource: &Arc<Resource>, prev: Option<&Arc<Object>>, now: Option<&Arc<Object>>) {
        let Some(key) = now.or(prev).map(|object| &object.key) else { return };
        let namespace = match &*resource.plural {
            "namespaces" if now.is_some_and(|now| !now.deleting) => &key.name,
            "serviceaccounts" if &*key.name == ACCOUNT && now.is_none() => &key.namespace,
            "configmaps" if &*key.name == ROOT_CA => &key.namespace,
            _ => return,
        };
        self.due.insert(namespace.clone());
    }

    pub(super) fn reconcile(&mut self, inner: &Arc<Inner>) {
        for namespace in std::mem::take(&mut self.due) {
            ensure(inner, &namespace);
        }
    }
}

/// Reconciles every namespace.
pub(super) fn settle(inner: &Arc<Inner>) {
    let Some(namespaces) = inner.registry.by_plural("", "namespaces") else { return };
    for object in all(inner, &namespaces.storage) {
        ensure(inner, &object.key.name);
    }
}

fn ensure(inner: &Arc<Inner>, namespace: &str) {
    let active =
        inner.lookup("", "namespaces", "", namespace).is_some_and(|found| found["status"]["phase"] == "Active");
    if active {
        ensure_account(inner, namespace);
        ensure_certificate(inner, namespace);
    }
}

/// Creates the default service account of a namespace unless it exists.
pub(crate) fn ensure_account(inner: &Arc<Inner>, namespace: &str) {
    let Some(accounts) = inner.registry.by_plural("", "serviceaccounts") else { return };
    if inner.store.get(&accounts.storage, &Key::new(namespace, ACCOUNT)).is_some() {
        return;
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace},
    });
    let actor = Actor::manager(inner, "service-account-controller");
    log("service accounts", actor.create(&accounts, namespace, object));
}

fn ensure_certificate(inner: &Arc<Inner>, namespace: &str) {
    let Some(maps) = inner.registry.by_plural("", "configmaps") else { return };
    let data = json!({"ca.crt": &*inner.ca_pem});
    let actor = Actor::manager(inner, "root-ca-cert-publisher");
    let Some(live) = inner.store.get(&maps.storage, &Key::new(namespace, ROOT_CA)) else {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": ROOT_CA, "namespace": namespace, "annotations": {DESCRIPTION: ABOUT}},
        });
        log("root certificates", actor.create(&maps, namespace, object));
        return;
    };
    let value = live.value();
    let described = value["metadata"]["annotations"][DESCRIPTION].as_str().is_some_and(|text| !text.is_empty());
    if live.deleting || (value["data"] == data && described) {
        return;
    }
    log(
        "root certificates",
        actor.change(&maps, &live, "", |map| {
            map["data"] = data.clone();
            let annotations = &mut map["metadata"]["annotations"];
            if !annotations.is_object() {
                *annotations = json!({});
            }
            annotations[DESCRIPTION] = Value::from(ABOUT);
        }),
    );
}
