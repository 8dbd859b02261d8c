//! Writes to the API server, with preconditions that refuse a decision on stale data.
//!
//! | call | precondition |
//! |---|---|
//! | [`Writer::apply_status`], [`Writer::merge_status`], [`Writer::merge_subresource`] | resourceVersion |
//! | [`Writer::json_patch`] | the `test` operations of the patch |
//! | [`Writer::create`], [`Writer::create_in`], [`Writer::create_for_uid`] | no object has that name |
//! | [`Writer::delete`] | uid and resourceVersion |
//! | [`Writer::delete_uid`], [`Writer::hurry`] | uid |
//! | [`Writer::apply`], [`Writer::delete_all`], [`Writer::delete_by_name`] | none |
//!
//! The callers of the last three, and why they are safe without a precondition:
//! - `apply`: the workloads, Services, NetworkPolicies, PodDisruptionBudgets and ConfigMaps of a control plane, its renewed leaf certificates, and its copies
//!   of the Secrets that the Cluster refers to. The caller computes the content without the live object, so it can lose no change that it should have kept, and the
//!   namespace is the one whose uid the status of the Cluster records. Only the Secret with a cluster's keys for snapshots keeps keys of the live object:
//!   its body has the resourceVersion, and it is created with [`Writer::create_in`].
//! - `delete_all`: the workloads and volume claims of a Cluster with a deletionTimestamp, in that namespace, while the Operation of the deletion runs. Objects created since the decision must be deleted too.
//! - `delete_by_name`: the Secret of a bootstrap token. The operator may not read it, so its uid is unknown after a restart; its name is random and not reused.

use std::time::Duration;

use http::{Method, Request, header};
use kube::Resource;
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{CallError, retry_after};
use crate::{Cache, Key, Remedy, View};

/// Why a write failed, or may have failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object changed after the decision, or a precondition failed: decide again.
    #[error("{what}: conflict: {message}")]
    Conflict {
        /// Request and object.
        what: String,
        /// Message of the API server.
        message: String,
    },
    /// The object does not exist.
    #[error("{0} not found")]
    Gone(String),
    /// The API server rejects the request, and would reject it again.
    #[error("{what}: rejected by the API server ({code}): {message}")]
    Refused {
        /// Request and object.
        what: String,
        /// The HTTP status.
        code: u16,
        /// Message of the API server.
        message: String,
    },
    /// The API server asks to wait.
    #[error("{what}: the API server is busy, retrying after {after:?}")]
    Later {
        /// Request and object.
        what: String,
        /// Requested wait.
        after: Duration,
    },
    /// No answer arrived: the object may have been written.
    #[error("{what}: no response, the write may have succeeded: {message}")]
    Unknown {
        /// Request and object.
        what: String,
        /// Error message.
        message: String,
    },
    /// This process does not hold the lease, or the lease could have expired: nothing was sent.
    #[error("{0}: not sent, the lease may have expired")]
    Fenced(String),
}

impl WriteError {
    /// What to do about the error.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Conflict { .. } | Self::Gone(_) => Remedy::DecideAgain,
            Self::Refused { .. } => Remedy::NeedsPerson,
            Self::Later { after, .. } => Remedy::Wait(*after),
            Self::Unknown { .. } | Self::Fenced(_) => Remedy::Retry,
        }
    }

    /// Reason in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "WriteConflict",
            Self::Gone(_) => "ObjectNotFound",
            Self::Refused { .. } => "WriteRefused",
            Self::Later { .. } => "ServerBusy",
            Self::Unknown { .. } => "NoResponse",
            Self::Fenced(_) => "NotLeading",
        }
    }

    /// Classifies the error of a client.
    fn of(what: String, error: kube::Error) -> Self {
        match CallError::of(&error) {
            Some(CallError::Fenced) => return Self::Fenced(what),
            Some(unanswered) => return Self::Unknown { what, message: unanswered.to_string() },
            None => {}
        }
        let after = retry_after(&error);
        let status = match error {
            kube::Error::Api(status) => status,
            // The request could not be built, and a retry would not change that.
            kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
                return Self::Refused { what, code: 0, message: error.to_string() };
            }
            // No answer, or an answer that cannot be parsed.
            error => return Self::Unknown { what, message: error.to_string() },
        };
        match (status.code, after) {
            (404, _) => Self::Gone(what),
            (409, _) => Self::Conflict { what, message: status.message },
            (429, after) => Self::Later { what, after: after.unwrap_or(Duration::from_secs(1)) },
            (503 | 504, Some(after)) => Self::Later { what, after },
            (code @ 400..500, _) => Self::Refused { what, code, message: status.message },
            // An object that does not match the schema is the mistake of the client, but API servers answer 500.
            (code, _) if status.message.starts_with("failed to create typed patch object") => {
                Self::Refused { what, code, message: status.message }
            }
            (code, _) => Self::Unknown { what, message: format!("{code} {}", status.message) },
        }
    }
}

/// For controllers with steps in which only writes can fail.
impl crate::StepError for WriteError {
    fn reason(&self) -> &'static str {
        Self::reason(self)
    }

    fn remedy(&self) -> Remedy {
        Self::remedy(self)
    }
}

/// Writes for one controller as field manager `fleetwright-NAME`, and stores the answers in the caches.
///
/// [The module](self) lists the precondition of each call. The client sends a write only while the lease is certain to be held.
/// Status and the rest of an object have different owners: no call writes both.
#[derive(Clone)]
pub struct Writer {
    client: kube::Client,
    manager: String,
}

impl Writer {
    pub(crate) fn new(client: kube::Client, controller: &str) -> Self {
        Self { client, manager: format!("fleetwright-{controller}") }
    }

    /// The name of the field manager.
    pub fn manager(&self) -> &str {
        &self.manager
    }

    /// Applies fields of the status, server-side, provided that the object still has that resourceVersion. `desired` contains all fields that this
    /// controller owns: ownership of omitted fields is given up. `current` contains the same fields of the live object; if both are equal, nothing is
    /// sent and the answer is `Ok(false)`.
    ///
    /// Entries of other owners in keyed lists, such as conditions, are not touched.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn apply_status<V>(
        &self,
        cache: &Cache<V>,
        key: &Key,
        version: &str,
        current: &Value,
        desired: Value,
    ) -> Result<bool, WriteError>
    where
        V: View,
    {
        if same(current, &desired) {
            return Ok(false);
        }
        let body = json!({
            "apiVersion": V::Object::api_version(&()),
            "kind": V::Object::kind(&()),
            "metadata": { "name": &*key.name, "resourceVersion": version },
            "status": desired,
        });
        // Forced, because these are our fields: otherwise a manual edit of one field would block the controller for ever.
        self.patch(cache, key, "/status", "application/apply-patch+yaml", "&force=true", &body).await?;
        Ok(true)
    }

    /// Merge-patches the status, provided that the object still has that resourceVersion: each field in `status` is replaced as a whole,
    /// lists too, whichever manager owns it. For status that several controllers write in turn,
    /// such as the holders of an OperationPolicy.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn merge_status<V>(
        &self,
        cache: &Cache<V>,
        key: &Key,
        version: &str,
        status: Value,
    ) -> Result<(), WriteError>
    where
        V: View,
    {
        let body = json!({ "metadata": { "resourceVersion": version }, "status": status });
        self.patch(cache, key, "/status", "application/merge-patch+json", "", &body).await
    }

    /// Applies a JSON patch, a [`JsonPatch`](crate::JsonPatch), which should start with `test` operations on what the decision relied on.
    /// A failed test is a conflict. An empty patch is not sent.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn json_patch<V>(&self, cache: &Cache<V>, key: &Key, patch: impl Into<Value>) -> Result<(), WriteError>
    where
        V: View,
    {
        let patch = patch.into();
        if patch.as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        self.patch(cache, key, "", "application/json-patch+json", "", &patch).await.map_err(|error| match error {
            WriteError::Refused { what, code: 422, message } if failed_test(&message) => {
                WriteError::Conflict { what, message }
            }
            error => error,
        })
    }

    /// Creates an object; `Ok(false)` if an object of that name exists.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn create<K>(&self, object: &K) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        Ok(self.create_object(object).await?.is_some())
    }

    /// Like [`Writer::create`], and stores the object in the cache. It must have the labels that the cache selects.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn create_in<V>(&self, cache: &Cache<V>, object: &V::Object) -> Result<bool, WriteError>
    where
        V: View,
        V::Object: Serialize,
    {
        Ok(self.create_for_uid(cache, object).await?.is_some())
    }

    /// Like [`Writer::create_in`], and returns the uid of the object if it was created. A cache or a later read can have another object of that name.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn create_for_uid<V>(&self, cache: &Cache<V>, object: &V::Object) -> Result<Option<String>, WriteError>
    where
        V: View,
        V::Object: Serialize,
    {
        let Some(created) = self.create_object(object).await? else { return Ok(None) };
        let uid = created.meta().uid.clone().unwrap_or_default();
        cache.created(created);
        Ok(Some(uid))
    }

    async fn create_object<K>(&self, object: &K) -> Result<Option<K>, WriteError>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let meta = object.meta();
        let key = Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let what = describe::<K>(&key);
        let mut body = json(&what, object)?;
        // A type without these fields (they are in the path) is completed: the server requires them.
        body["apiVersion"] = K::api_version(&()).into();
        body["kind"] = K::kind(&()).into();
        let uri = format!("{}?fieldManager={}", path::<K>(&key), self.manager);
        let request = request(&what, Method::POST, &uri, "application/json", &body)?;
        match self.client.request::<K>(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(match WriteError::of(what, error) {
                // The namespace or the kind does not exist.
                WriteError::Gone(what) => {
                    WriteError::Refused { what, code: 404, message: "its namespace or kind does not exist".into() }
                }
                error => error,
            }),
        }
    }

    /// Creates an object, or sets the fields in `body`, by server-side apply with force. Fields of other managers that `body` does not have stay, and fields
    /// that this manager set before and `body` leaves out are removed. The object must have the labels that the cache selects.
    ///
    /// There is no precondition: `body` replaces values of other writers that this process has not seen. That is safe for objects of this controller whose
    /// content each pass computes again, such as the workloads of a control plane: overwriting is how drift is repaired, and an apply that arrives late is drift
    /// too, which the watch reports. The caller must know that the namespace is its own. A `body` that keeps values of the live object needs
    /// `metadata.resourceVersion`.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn apply<V: View>(&self, cache: &Cache<V>, key: &Key, body: &Value) -> Result<(), WriteError> {
        let what = describe::<V::Object>(key);
        let uri = format!("{}/{}?fieldManager={}&force=true", path::<V::Object>(key), key.name, self.manager);
        let request = request(&what, Method::PATCH, &uri, "application/apply-patch+yaml", body)?;
        let object = self.client.request(request).await.map_err(|error| WriteError::of(what, error))?;
        cache.created(object);
        Ok(())
    }

    /// Deletes the object with that uid and resourceVersion.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete<V>(&self, cache: &Cache<V>, key: &Key, uid: &str, version: &str) -> Result<(), WriteError>
    where
        V: View,
    {
        let what = describe::<V::Object>(key);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        let body = json(&what, &DeleteParams::default().preconditions(preconditions))?;
        let uri = format!("{}/{}", path::<V::Object>(key), key.name);
        let request = request(&what, Method::DELETE, &uri, "application/json", &body)?;
        let answer: Value = self.client.request(request).await.map_err(|error| WriteError::of(what, error))?;
        let meta = &answer["metadata"];
        let held = meta["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        let has_grace_period = meta["deletionGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds > 0);
        match answer["kind"].as_str() {
            // It has finalizers, or is a pod with a grace period: it is only terminating.
            Some(kind) if kind == V::Object::kind(&()) && (held || has_grace_period) => {
                if let Ok(object) = serde_json::from_value(answer) {
                    cache.written(object);
                }
            }
            _ => cache.deleted(key, version.parse().unwrap_or_default()),
        }
        Ok(())
    }

    /// Deletes all objects of a kind with these labels in a namespace. With [`PropagationPolicy::Orphan`] their dependents stay, and the caller has to delete them.
    ///
    /// There is no precondition: objects that were created or changed since the decision are deleted as well. That is safe only when everything with these labels
    /// in that namespace has to be deleted, and the decision for it cannot be reverted: for a Cluster with a deletionTimestamp, in the namespace that its status
    /// records by uid.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete_all<K>(
        &self,
        namespace: &str,
        labels: &str,
        policy: PropagationPolicy,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        let key = Key::new(namespace, "");
        let what = format!("{} of {namespace}", K::kind(&()));
        let body = json!({ "propagationPolicy": policy });
        let selector: String = labels.replace('/', "%2F").replace('=', "%3D").replace(',', "%2C");
        let uri = format!("{}?labelSelector={selector}", path::<K>(&key));
        let request = request(&what, Method::DELETE, &uri, "application/json", &body)?;
        self.client.request::<Value>(request).await.map_err(|error| WriteError::of(what, error))?;
        Ok(())
    }

    /// Deletes the pod with that uid with a grace period of `seconds`, also if it is terminating with a longer one; `Ok(false)` if there is none.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn hurry<K>(&self, key: &Key, uid: &str, seconds: u32) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { grace_period_seconds: Some(seconds), ..DeleteParams::default() };
        self.delete_with::<K>(key, &params.preconditions(preconditions)).await
    }

    /// Merge-patches a subresource, such as the approval of a CertificateSigningRequest, provided that the object still has that
    /// resourceVersion.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn merge_subresource<V: View>(
        &self,
        cache: &Cache<V>,
        key: &Key,
        subresource: &str,
        version: &str,
        mut patch: Value,
    ) -> Result<(), WriteError> {
        patch["metadata"]["resourceVersion"] = version.into();
        self.patch(cache, key, &format!("/{subresource}"), "application/merge-patch+json", "", &patch).await
    }

    /// Deletes the object with that uid, even if it changed since the decision; `Ok(false)` if no object has that name. With [`PropagationPolicy::Orphan`] its
    /// dependents stay.
    ///
    /// # Errors
    /// See [`WriteError`]; another object of that name is a conflict.
    pub async fn delete_uid<K>(&self, key: &Key, uid: &str, policy: PropagationPolicy) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        self.delete_with::<K>(key, &params.preconditions(preconditions)).await
    }

    /// Deletes the object of that name, whatever its uid; `Ok(false)` if there is none. Everything whose uid is known is deleted with [`Writer::delete_uid`].
    ///
    /// There is no precondition. That is safe only if the name identifies the object, such as the random name of a bootstrap token, which the operator may not
    /// read.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete_by_name<K>(&self, key: &Key) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        self.delete_with::<K>(key, &DeleteParams::default()).await
    }

    async fn delete_with<K>(&self, key: &Key, params: &DeleteParams) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = ()>,
    {
        let what = describe::<K>(key);
        let uri = format!("{}/{}", path::<K>(key), key.name);
        let body = json(&what, params)?;
        let request = request(&what, Method::DELETE, &uri, "application/json", &body)?;
        match self.client.request::<Value>(request).await.map_err(|error| WriteError::of(what, error)) {
            Ok(_) => Ok(true),
            Err(WriteError::Gone(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn patch<V: View>(
        &self,
        cache: &Cache<V>,
        key: &Key,
        subresource: &str,
        content_type: &'static str,
        options: &str,
        body: &Value,
    ) -> Result<(), WriteError> {
        let what = format!("{}{subresource}", describe::<V::Object>(key));
        let uri =
            format!("{}/{}{subresource}?fieldManager={}{options}", path::<V::Object>(key), key.name, self.manager);
        let request = request(&what, Method::PATCH, &uri, content_type, body)?;
        let object = self.client.request(request).await.map_err(|error| WriteError::of(what, error))?;
        cache.written(object);
        Ok(())
    }
}

/// Whether two values are equal: numbers by value, and a field that is null equals one that is missing.
pub fn same(one: &Value, two: &Value) -> bool {
    match (one, two) {
        (Value::Object(one), Value::Object(two)) => {
            let within = |a: &serde_json::Map<_, _>, b: &serde_json::Map<_, _>| {
                a.iter().all(|(key, value)| same(value, b.get(key).unwrap_or(&Value::Null)))
            };
            within(one, two) && within(two, one)
        }
        (Value::Array(one), Value::Array(two)) => {
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| same(one, two))
        }
        (Value::Number(one), Value::Number(two)) => one == two || one.as_f64() == two.as_f64(),
        _ => one == two,
    }
}

/// Whether the message of an API server says that a `test` of a JSON patch failed.
fn failed_test(message: &str) -> bool {
    message.contains("testing")
        || message.contains("test failed")
        || message.contains("the server rejected our request")
}

fn describe<K: Resource<DynamicType = ()>>(key: &Key) -> String {
    format!("{} {key}", K::kind(&()))
}

fn path<K: Resource<DynamicType = ()>>(key: &Key) -> String {
    K::url_path(&(), (!key.namespace.is_empty()).then_some(&*key.namespace))
}

fn json(what: &str, value: &impl Serialize) -> Result<Value, WriteError> {
    let refused =
        |error: serde_json::Error| WriteError::Refused { what: what.to_owned(), code: 0, message: error.to_string() };
    serde_json::to_value(value).map_err(refused)
}

fn request(
    what: &str,
    method: Method,
    uri: &str,
    content_type: &'static str,
    body: &Value,
) -> Result<Request<Vec<u8>>, WriteError> {
    let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, content_type);
    let refused =
        |error: http::Error| WriteError::Refused { what: what.to_owned(), code: 0, message: error.to_string() };
    request.body(body.to_string().into_bytes()).map_err(refused)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn of(code: u16, retry_after: Option<u32>) -> WriteError {
        let mut status = json!({"code": code, "message": "no", "reason": "No"});
        if let Some(seconds) = retry_after {
            status["details"] = json!({"retryAfterSeconds": seconds});
        }
        let status: Status = serde_json::from_value(status).unwrap();
        WriteError::of("Machine fleet/host-17".into(), kube::Error::Api(status.boxed()))
    }

    #[test]
    fn each_answer_says_what_to_do() {
        let second = Duration::from_secs(1);
        let remedies = [
            (of(404, None), Remedy::DecideAgain),
            (of(409, None), Remedy::DecideAgain),
            (of(400, None), Remedy::NeedsPerson),
            (of(403, None), Remedy::NeedsPerson),
            (of(422, None), Remedy::NeedsPerson),
            (of(429, Some(7)), Remedy::Wait(7 * second)),
            (of(429, None), Remedy::Wait(second)),
            (of(503, Some(3)), Remedy::Wait(3 * second)),
            (of(504, Some(2)), Remedy::Wait(2 * second)),
            (of(503, None), Remedy::Retry),
            (of(500, None), Remedy::Retry),
        ];
        for (error, remedy) in remedies {
            assert_eq!(error.remedy(), remedy, "{error:?}");
            assert!(error.to_string().contains("Machine fleet/host-17"), "{error}");
        }
        let cut = kube::Error::ReadEvents(std::io::Error::other("connection reset"));
        assert!(matches!(WriteError::of("x".into(), cut), WriteError::Unknown { .. }));
        let fenced = kube::Error::Service(CallError::Fenced.into());
        assert!(matches!(WriteError::of("x".into(), fenced), WriteError::Fenced(_)));
        let late = kube::Error::Service(CallError::TimedOut(second).into());
        assert!(matches!(WriteError::of("x".into(), late), WriteError::Unknown { .. }));
    }

    #[test]
    fn values_that_say_the_same_are_the_same() {
        let same_ones = [
            (json!({"a": 1, "b": null}), json!({"a": 1.0})),
            (json!({"a": [{"b": null}]}), json!({"a": [{}]})),
            (json!("x"), json!("x")),
        ];
        for (one, two) in same_ones {
            assert!(same(&one, &two) && same(&two, &one), "{one} {two}");
        }
        let others = [
            (json!({"a": 1}), json!({"a": 2})),
            (json!({"a": 1}), json!({})),
            (json!([1, 2]), json!([2, 1])),
            (json!([1]), json!([1, null])),
            (json!("1"), json!(1)),
        ];
        for (one, two) in others {
            assert!(!same(&one, &two) && !same(&two, &one), "{one} {two}");
        }
    }
}
