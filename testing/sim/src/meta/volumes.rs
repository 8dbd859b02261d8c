//! Volumes of claims. They exist as long as their claims, independent of the pods that use them.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_kit::{Cache, Key, Next, Pass};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::reconciler::{ReconcileError, Reconciler};
use super::view::ClaimView;

/// The data that containers stored on a volume: one value of each type. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Volume(Arc<Mutex<HashMap<TypeId, AnyContent>>>);

type AnyContent = Arc<dyn Any + Send + Sync>;

/// A mark: the volume was wiped.
struct Wiped;

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.contents().is_empty() { "Volume(empty)" } else { "Volume" })
    }
}

impl Volume {
    fn contents(&self) -> MutexGuard<'_, HashMap<TypeId, AnyContent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of this type on the volume.
    pub(super) fn read<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.contents().get(&TypeId::of::<T>())?.clone().downcast().ok()
    }

    /// Stores a value on the volume.
    pub(super) fn write<T: Send + Sync + 'static>(&self, content: Arc<T>) {
        self.contents().insert(TypeId::of::<T>(), content);
    }

    /// The value of this type on the volume; created if it does not exist.
    pub(super) fn ensure<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        if let Some(known) = self.read() {
            return known;
        }
        let new = Arc::new(T::default());
        self.write(new.clone());
        new
    }

    /// Removes all data, and marks the volume as wiped.
    pub(super) fn wipe(&self) {
        self.contents().clear();
        self.write(Arc::new(Wiped));
    }

    /// Whether the volume was wiped.
    pub(super) fn wiped(&self) -> bool {
        self.read::<Wiped>().is_some()
    }
}

/// The volumes of all claims. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Volumes(Arc<Mutex<HashMap<Key, ClaimVolume>>>);

/// The uid of a claim, and its volume.
type ClaimVolume = (Box<str>, Volume);

impl Volumes {
    /// The volume of a claim.
    pub(super) fn of(&self, key: &Key) -> Option<Volume> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).map(|(_, volume)| volume.clone())
    }

    fn ensure(&self, key: &Key, uid: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(key).is_none_or(|(known, _)| **known != *uid) {
            all.insert(key.clone(), (uid.into(), Volume::default()));
        }
    }

    fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// The controller that provides volumes for claims.
pub(super) struct Claims {
    pub(super) claims: Cache<ClaimView>,
    pub(super) volumes: Volumes,
}

impl Reconciler for Claims {
    const NAME: &'static str = "claims";
    type Kind = PersistentVolumeClaim;

    fn exists(&self, key: &Key) -> bool {
        let there = self.claims.get(key).is_some();
        if !there {
            self.volumes.forget(key);
        }
        there
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let Some(claim) = self.claims.get(pass.key()) else { return Ok(Next::AwaitChange) };
        self.volumes.ensure(pass.key(), &claim.uid);
        if !claim.bound {
            let capacity = claim.size.as_ref().map(|size| json!({ "storage": size }));
            let status = json!({ "phase": "Bound", "accessModes": claim.modes, "capacity": capacity });
            pass.writer().merge_status(&self.claims, pass.key(), &claim.version, status).await?;
        }
        Ok(Next::AwaitChange)
    }
}
