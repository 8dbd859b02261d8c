//! Admission: checks of a write beyond its own object, and fields that the server adds. These are the plugins
//! that kube-apiserver runs by default, in its order, plus the work of its storage layer around a write: cluster IPs,
//! escalation checks, the requestor of a certificate.

mod certificates;
mod denial;
mod namespaces;
mod networks;
mod nodes;
pub(crate) mod pod_defaults;
mod quotas;
mod storage;

pub(crate) use storage::{CLAIM_PROTECTION, VOLUME_PROTECTION};

use std::sync::Arc;

use fleetwright_builtins::strategy;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::meta_text;
use crate::registry::Resource;
use crate::state::Inner;
use crate::store::Key;
use crate::write_request::WriteRequest;
use denial::{forbidden, shown_name};
use networks::AllocationGuard;

impl Inner {
    /// Before a create: may change the object.
    pub(crate) fn admit_create(&self, op: &WriteRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        self.admit_namespace(op.resource, op.namespace, shown_name(object))?;
        if op.resource.custom().is_some() {
            return self.definition_stays(op.resource, object);
        }
        nodes::write(op, None, object)?;
        match (&*op.resource.group, &*op.resource.plural) {
            ("", "pods") => pod_defaults::create(op, object)?,
            ("", "nodes") => pod_defaults::taint_new_node(object),
            ("", "services") => networks::normalize(None, object),
            ("", "persistentvolumes" | "persistentvolumeclaims") => storage::create(op, object),
            ("networking.k8s.io", "ingresses") => storage::default_ingress_class(op, object),
            _ => {}
        }
        self.check_escalation(op, None, object)
    }

    /// Refuses a new custom resource whose definition is being deleted.
    fn definition_stays(&self, resource: &Resource, object: &Value) -> Result<(), ApiError> {
        let Some(definitions) = self.registry.by_plural("apiextensions.k8s.io", "customresourcedefinitions") else {
            return Ok(());
        };
        let definition = format!("{}.{}", resource.plural, resource.group);
        let ending = self.store.get(&definitions.storage, &Key::new("", &definition)).is_some_and(|crd| crd.deleting);
        if !ending {
            return Ok(());
        }
        let object = meta_text(object, "name");
        let why = "create not allowed while custom resource definition is terminating";
        Err(ApiError::forbidden(&resource.group, &resource.plural, object, why))
    }

    /// A create that is valid and about to be stored.
    pub(crate) fn admit_created(&self, op: &WriteRequest<'_>, object: &Value) -> Result<(), ApiError> {
        quotas::create(op, object)?;
        match (&*op.resource.group, &*op.resource.plural) {
            ("", "resourcequotas") => quotas::write(op, object),
            ("scheduling.k8s.io", "priorityclasses") => pod_defaults::one_default_class(op, None, object),
            ("certificates.k8s.io", "certificatesigningrequests") => certificates::create(op, object),
            _ => Ok(()),
        }
    }

    /// Adds the server's own fields to a new object after its strategy has prepared it.
    pub(crate) fn complete_create(&self, op: &WriteRequest<'_>, object: &mut Value) {
        if op.resource.is("certificates.k8s.io", "certificatesigningrequests") {
            let extra = serde_json::to_value(&op.user.extra).unwrap_or_default();
            strategy::set_requestor(object, &op.user.name, &op.user.uid, &op.user.groups, &extra);
        }
    }

    /// Before an update: may change the new object.
    pub(crate) fn admit_update(&self, op: &WriteRequest<'_>, old: &Value, new: &mut Value) -> Result<(), ApiError> {
        if op.resource.custom().is_some() {
            return Ok(());
        }
        nodes::write(op, Some(old), new)?;
        if op.subresource().is_some() {
            return Ok(());
        }
        match (&*op.resource.group, &*op.resource.plural) {
            ("", "pods") => pod_defaults::update(old, new),
            ("", "services") => networks::normalize(Some(old), new),
            ("networking.k8s.io", "ingresses") => storage::default_ingress_class(op, new),
            _ => {}
        }
        self.check_escalation(op, Some(old), new)
    }

    /// An update that is valid and about to be stored.
    pub(crate) fn admit_updated(&self, op: &WriteRequest<'_>, old: &Value, new: &Value) -> Result<(), ApiError> {
        match (&*op.resource.group, &*op.resource.plural, op.subresource) {
            ("", "resourcequotas", "") => quotas::write(op, new),
            ("scheduling.k8s.io", "priorityclasses", "") => pod_defaults::one_default_class(op, Some(old), new),
            ("certificates.k8s.io", "certificatesigningrequests", "approval") => certificates::approve(op, old),
            ("certificates.k8s.io", "certificatesigningrequests", "status") => certificates::sign(op, old, new),
            ("", "persistentvolumeclaims", "") => storage::resize(op, old, new),
            _ => Ok(()),
        }
    }

    /// Before a delete.
    pub(crate) fn admit_delete(&self, op: &WriteRequest<'_>, old: &Value) -> Result<(), ApiError> {
        if op.resource.is("", "namespaces") {
            return namespaces::may_be_deleted(op, meta_text(old, "name"));
        }
        nodes::delete(op, old)?;
        let name = meta_text(old, "name");
        if op.resource.is("scheduling.k8s.io", "priorityclasses")
            && matches!(name, "system-node-critical" | "system-cluster-critical")
        {
            return Err(forbidden(op, old, "this is a system priority class and cannot be deleted"));
        }
        Ok(())
    }

    /// Allocates cluster IPs and node ports for a service before its commit. The guard holds the lock,
    /// so that it must live until the commit is over.
    pub(crate) fn allocate<'a>(
        &'a self,
        op: &WriteRequest<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<Option<AllocationGuard<'a>>, ApiError> {
        if op.resource.is("", "services") && op.subresource().is_none() {
            return self.networks.allocate(&self.store, op, old, new).map(Some);
        }
        Ok(None)
    }

    /// Whether an object without finalizers may be deleted at the end of an update: a namespace has finalizers in its spec too.
    pub(crate) fn may_go(&self, resource: &Arc<Resource>, object: &Value) -> bool {
        !resource.is("", "namespaces") || !self.namespace_has_work(object)
    }

    /// Whether a namespace that is deleted still has spec.finalizers, i.e. must go through Terminating.
    pub(crate) fn namespace_has_work(&self, namespace: &Value) -> bool {
        namespace["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
    }

    /// Marks a definition that is deleted for the first time: it waits for its instances. False for all else.
    pub(crate) fn prepare_delete(&self, op: &WriteRequest<'_>, object: &mut Value) -> bool {
        let first = op.resource.is("apiextensions.k8s.io", "customresourcedefinitions")
            && meta_text(object, "deletionTimestamp").is_empty();
        if first {
            crate::crd::mark_for_deletion(object, &self.timestamp());
        }
        first
    }

    /// A built-in object, by group, plural, namespace and name.
    pub(crate) fn lookup(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = self.registry.by_plural(group, plural)?;
        self.store.get(&resource.storage, &Key::new(namespace, name)).map(|object| resource.value(&object))
    }

    /// All objects of a built-in resource, in a namespace or everywhere.
    pub(crate) fn lookup_all(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value> {
        let Some(resource) = self.registry.by_plural(group, plural) else { return Vec::new() };
        let page = self.store.page(&resource.storage, namespace, None, None, 0, |_| true);
        page.map(|page| page.objects).unwrap_or_default().iter().map(|object| resource.value(object)).collect()
    }
}
