//! ResourceQuotas limit the number of objects in a namespace. Amounts (CPU, memory, storage) and scopes are not counted here, so that a quota
//! with them is
//! refused instead of ignored.

use std::collections::BTreeMap;

use fleetwright_syntax::Quantity;
use serde_json::{Map, Value};

use super::denial::{forbidden, shown_name};
use crate::error::ApiError;
use crate::state::Inner;
use crate::write_request::WriteRequest;

const PLURAL: &str = "resourcequotas";
/// Resources with their own name in quotas, besides `count/PLURAL.GROUP`.
const NAMED: [&str; 6] = ["pods", "services", "secrets", "configmaps", "persistentvolumeclaims", PLURAL];

/// Refuses a quota on things that this server does not count.
pub(super) fn write(op: &WriteRequest<'_>, quota: &Value) -> Result<(), ApiError> {
    let spec = &quota["spec"];
    let hard = spec["hard"].as_object().into_iter().flatten();
    let mut unknown =
        hard.map(|(name, _)| name).filter(|name| !name.starts_with("count/") && !NAMED.contains(&name.as_str()));
    if let Some(name) = unknown.next() {
        let why = format!("this server limits numbers of objects, not {name:?}: take it from spec.hard");
        return Err(forbidden(op, quota, why));
    }
    let scoped =
        spec["scopes"].as_array().is_some_and(|scopes| !scopes.is_empty()) || spec["scopeSelector"].is_object();
    if scoped {
        return Err(forbidden(op, quota, "this server knows no scopes of quotas: take them from the spec"));
    }
    Ok(())
}

/// Refuses an object that exceeds a quota.
pub(super) fn create(op: &WriteRequest<'_>, object: &Value) -> Result<(), ApiError> {
    let names = names(&op.resource.group, &op.resource.plural);
    let Some(quotas) = op.server.registry.by_plural("", PLURAL) else { return Ok(()) };
    if !op.resource.namespaced || op.server.store.is_empty(&quotas.storage) {
        return Ok(());
    }
    for quota in op.server.lookup_all("", PLURAL, Some(op.namespace)) {
        for name in &names {
            let Some(limit) = limit(&quota["spec"]["hard"][name]) else { continue };
            let used = op.server.count(name, op.namespace);
            if used >= limit {
                let quota = shown_name(&quota);
                let why = format!(
                    "exceeded quota: {quota}, requested: {name}=1, used: {name}={used}, limited: {name}={limit}"
                );
                return Err(forbidden(op, object, why));
            }
        }
    }
    Ok(())
}

/// The names under which quotas count a resource.
fn names(group: &str, plural: &str) -> Vec<String> {
    let mut names = vec![if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") }];
    if group.is_empty() && NAMED.contains(&plural) {
        names.push(plural.to_owned());
    }
    names
}

fn limit(value: &Value) -> Option<i64> {
    Quantity::parse(value.as_str()?).ok().map(|limit| limit.value())
}

impl Inner {
    /// The present count of what a quota limits under this name.
    fn count(&self, name: &str, namespace: &str) -> i64 {
        let counted = name.strip_prefix("count/").unwrap_or(name);
        let (plural, group) = counted.split_once('.').unwrap_or((counted, ""));
        let Some(resource) = self.registry.by_plural(group, plural) else { return 0 };
        // A finished pod does not count, except in a quota on objects as such.
        let room = |phase: &str| name != "pods" || !matches!(phase, "Succeeded" | "Failed");
        let page = self.store.page(&resource.storage, Some(namespace), None, None, 0, |object| {
            let phase = object.fields.iter().find(|(field, _)| &**field == "status.phase");
            room(phase.map(|(_, phase)| phase.as_str()).unwrap_or_default())
        });
        i64::try_from(page.map(|page| page.objects.len()).unwrap_or_default()).unwrap_or(i64::MAX)
    }

    /// The value of `status.used` of a quota.
    pub(crate) fn quota_used(&self, namespace: &str, hard: &Value) -> Value {
        let names = hard.as_object().into_iter().flatten().map(|(name, _)| name);
        let used: BTreeMap<&String, i64> = names.map(|name| (name, self.count(name, namespace))).collect();
        Value::Object(
            used.into_iter().map(|(name, used)| (name.clone(), used.to_string().into())).collect::<Map<_, _>>(),
        )
    }
}
