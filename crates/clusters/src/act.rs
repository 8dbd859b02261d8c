//! Carries out the decision about a cluster that is not being deleted.

use fleetwright_api::{ControlPlaneComponent, ExtensionPlacement, Operation, names};
use fleetwright_kit::events::Level;
use fleetwright_kit::journal::ProbeResult;
use fleetwright_kit::{JsonPatch, Key, Pass, WriteError};
use fleetwright_plan::cluster::copied_secrets::required_copies;
use fleetwright_plan::cluster::objects::{Kind, Object};
use fleetwright_plan::cluster::release::{CLUSTER_DELETE, DeletionHold};
use fleetwright_plan::cluster::{Decision, Names, certificates, extensions};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PropagationPolicy};

use crate::cluster::{Clusters, Found, UnchangedComponents};
use crate::errors::{ActError, Refusal};
use crate::secrets::{Authorities, CertificateIssuer, SecretError};
use crate::{namespace_claim, secret_copies, snapshots};

/// Result of carrying out a decision.
pub(crate) struct ActResult {
    /// Error of a Secret that the cluster refers to: only the steps that need the Secret are skipped.
    pub(crate) trouble: Option<SecretError>,
    /// When to run the next pass, besides the decision's own time.
    pub(crate) next: Option<Timestamp>,
    pub(crate) refusal: Refusal,
}

impl Clusters {
    /// Carries out the decision about machines that block the deletion, and ends the Operation of a deletion that is blocked.
    pub(crate) async fn held(
        &self,
        pass: &Pass,
        found: &Found,
        hold: Option<&DeletionHold>,
    ) -> Result<Option<String>, ActError> {
        // Until the machines can be listed, the Operation keeps its place in the queue.
        let wanted = hold.map_or(found.gated.is_some(), |hold| !hold.joined);
        if !wanted {
            let outcome = |_: &Operation| ProbeResult::Failed("stopped: the deletion is blocked again".to_owned());
            self.close(pass, &[CLUSTER_DELETE], |_, _| false, outcome).await?;
        }
        match hold {
            Some(hold) => self.hold(pass, found, hold).await,
            None => Ok(None),
        }
    }

    /// Stops background tasks that change something. A proof that already runs continues, so that it deletes the object that it created.
    pub(crate) fn stop_tasks(&self, key: &Key) {
        self.members.abort_others(key, |_| false);
        self.extenders.stop_tasks(key);
        // Machines that join during a pause block the deletion after it.
        self.askers.forget(key);
    }

    /// Records which components are as declared, so that the next pass does not compare their objects again if nothing changed.
    pub(crate) fn remember_unchanged(&self, key: &Key, found: &Found, rested: Option<&UnchangedComponents>) {
        let known = found.observed.as_ref().map(|observed| &observed.rested);
        if let Some(rested) = rested.filter(|rested| known != Some(*rested)) {
            self.rested().insert(key.clone(), rested.clone());
        }
    }

    /// Carries out the decision. A write that the API server refuses does not stop the other steps.
    pub(crate) async fn keep(&self, pass: &Pass, found: &Found, decision: &Decision) -> Result<ActResult, ActError> {
        let names = &found.names;
        let mut refusal = Refusal::default();
        let recorded = found.cluster.0.status.as_ref().map(|status| &status.keys[..]).unwrap_or_default();
        let maker = CertificateIssuer { caches: &self.caches, pass, names, spec: &found.cluster.0.spec, recorded };
        let done = refusal.noted(maker.keys(&decision.keys).await)?;
        let restored = decision.keys.restore.iter().filter(|key| !decision.keys.requested.contains(key));
        for key in restored.filter(|_| done.is_some()) {
            let message = format!(
                "Secret {}/{} was missing; recreated with the same key from the sealed copy",
                names.namespace,
                key.secret()
            );
            self.publish_event(pass, found, Level::Warning, "KeyRestored", &message).await;
        }
        let copies = required_copies(&found.cluster.0.spec);
        let copied = secret_copies::copy(&self.caches, pass, names, &copies, &mut refusal).await;
        // New pods would wait for the missing Secret: running pods stay unchanged, and all steps that need no new pod continue.
        let (mut trouble, lacks) = match copied {
            Err(ActError::Secret(error)) if error.needs_person() => (Some(error), true),
            copied => (copied?, false),
        };
        if !lacks {
            refusal.noted(self.record_accepted(pass, found).await)?;
        }
        refusal.noted(maker.rotate(&decision.rotate).await)?;
        let mut authorities = Authorities::new();
        for (wanted, why) in &decision.certificates {
            if refusal.noted(maker.certificate_of(wanted, &mut authorities).await)?.is_none() {
                continue;
            }
            self.meters.certificate(why.as_str());
            if *why != certificates::RenewalReason::Missing {
                let message = format!("reissued certificate {}: {}", wanted.secret, why.as_str());
                self.publish_event(pass, found, Level::Normal, "CertificateReplaced", &message).await;
            }
        }
        // Deleted members are recreated with the live template: that would be the old one, if the new one was refused.
        let mut replaces = !lacks;
        for (object, place) in decision.apply.iter().filter(|_| !lacks) {
            let applied = refusal.noted(self.apply(pass, names, object).await)?;
            replaces &= applied.is_some() || object.kind != Kind::StatefulSet;
            if let (Some(()), Some(place)) = (applied, place)
                && found
                    .cluster
                    .0
                    .status
                    .as_ref()
                    .is_some_and(|status| status.observed_generation == found.cluster.0.metadata.generation)
            {
                let message = format!("corrected drift of {} {} at {place}", object.kind.as_str(), object.name);
                self.meters.repaired(object.kind.as_str());
                self.publish_event(pass, found, Level::Normal, "Repaired", &message).await;
            }
        }
        if let Some(replica) = decision.replace.as_ref().filter(|_| replaces) {
            let key = Key::new(&names.namespace, &replica.name);
            match pass.writer().delete(&self.caches.pods, &key, &replica.uid, &replica.version).await {
                Err(WriteError::Gone(_)) => {}
                deleted => {
                    refusal.noted(deleted)?;
                }
            }
        }
        if let Some(uid) = decision.orphan.as_ref().filter(|_| !lacks) {
            let etcd = Key::new(&names.namespace, ControlPlaneComponent::Etcd.binary());
            refusal.noted(pass.writer().delete_uid::<StatefulSet>(&etcd, uid, PropagationPolicy::Orphan).await)?;
        }
        for (claim, size) in &decision.expand {
            let key = Key::new(&names.namespace, &claim.name);
            let path = ["spec", "resources", "requests", "storage"];
            let patch = JsonPatch::new().test_uid(&claim.uid).replace(&path, size);
            refusal.noted(pass.writer().json_patch(&self.caches.claims, &key, patch).await)?;
        }
        let mut next = refusal.noted(self.change_members(pass, found, decision).await)?.flatten();
        self.heal(pass, found, &decision.heal, &mut refusal).await?;
        match decision.preflight.ask.as_ref().or(decision.soak.ask.as_ref()) {
            Some(ask) => self.surveys.start(pass.key(), names, ask),
            None if !decision.preflight.begins && !decision.soak.surveyed => self.surveys.forget(pass.key()),
            None => {}
        }
        match &decision.follow {
            Some(follow) => self.followers.start(pass.key(), names, follow),
            None if decision.rotation.is_none() => self.followers.forget(pass.key()),
            None => {}
        }
        for prover in &decision.prove {
            self.provers.begin(pass.key(), names, prover);
        }
        let again = refusal.noted(self.drive_restore(pass, found, decision.restore.as_ref()).await)?.flatten();
        next = next.into_iter().chain(again).min();
        for task in &decision.tidy {
            refusal.noted(snapshots::delete_pod(&self.caches, pass, names, task).await)?;
        }
        let status = found.cluster.0.status.clone().unwrap_or_default();
        let (caches, spec) = (&self.caches, &found.cluster.0.spec);
        let supplies = snapshots::SnapshotSecrets { caches, pass, names, spec, status: &status };
        let restored = supplies.restore(decision).await;
        let taken = match &decision.snapshot {
            Some(taking) => supplies.take(taking).await,
            None => Ok(()),
        };
        for done in [restored, taken] {
            match done {
                Err(ActError::Secret(error)) if error.needs_person() => trouble = trouble.or(Some(error)),
                done => drop(refusal.noted(done)?),
            }
        }
        let again = self.extend(pass, found, &decision.extensions, &mut refusal).await?;
        next = next.into_iter().chain(again).min();
        Ok(ActResult { trouble, next, refusal })
    }

    /// The inventory is written first, so that every object of an extension is recorded before it is created.
    async fn extend(
        &self,
        pass: &Pass,
        found: &Found,
        choice: &extensions::ExtensionDecision,
        refusal: &mut Refusal,
    ) -> Result<Option<Timestamp>, ActError> {
        let names = &found.names;
        if let Some(inventory) = &choice.inventory
            && refusal.noted(self.apply(pass, names, inventory).await)?.is_none()
        {
            return Ok(None);
        }
        for (object, place) in choice.apply.iter().take(extensions::MAX_IN_META) {
            let applied = refusal.noted(self.apply(pass, names, object).await)?;
            if let (Some(()), Some(place)) = (applied, place) {
                let (kind, name) = (object.kind.as_str(), &object.name);
                let message = format!("corrected drift of {kind} {name} of an extension at {place}");
                self.publish_event(pass, found, Level::Normal, "Repaired", &message).await;
            }
        }
        self.extenders.begin(pass.key(), names, &choice.servers, &choice.work);
        for message in self.extenders.repaired(pass.key()) {
            self.publish_event(pass, found, Level::Normal, "Repaired", &message).await;
        }
        let mut next = None;
        for placement in [ExtensionPlacement::Meta, ExtensionPlacement::Cluster] {
            let again = refusal.noted(self.prune(pass, found, choice, placement).await)?.flatten();
            next = next.into_iter().chain(again).min();
        }
        Ok(next)
    }

    /// Creates the namespace, and returns its uid. Nothing is written into the namespace before the uid is recorded.
    pub(crate) async fn namespace(&self, pass: &Pass, found: &Found) -> Result<Option<String>, ActError> {
        let names = &found.names;
        let proof = namespace_claim::prove(&self.caches, pass, names, &found.cluster.0).await?;
        let mut labels = names.labels();
        for level in ["enforce", "audit", "warn"] {
            labels.insert(format!("pod-security.kubernetes.io/{level}"), "restricted".to_owned());
        }
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(names.namespace.clone()),
                labels: Some(labels),
                annotations: Some([(names::CREATION_PROOF.to_owned(), proof)].into()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let Some(uid) = pass.writer().create_for_uid(&self.caches.namespaces, &namespace).await? else {
            // The namespace is terminating, or was created a moment ago: its next change triggers a pass.
            if self.caches.labelled(names).is_some() {
                return Ok(None);
            }
            let what = format!("Namespace {}", names.namespace);
            let message = format!(
                "the namespace exists and does not belong to this Cluster: delete it, or create the Cluster under another name; to give it to this Cluster, label it {} and record its uid: {}",
                names.label_arguments(),
                namespace_claim::adopt(names, "UID")
            );
            return Err(WriteError::Refused { what, code: 409, message }.into());
        };
        self.created().insert(pass.key().clone(), (found.uid().to_owned(), uid.clone()));
        if self.account.is_none() {
            self.caches.secrets.begins_empty(&names.namespace);
        }
        Ok(Some(uid))
    }

    pub(crate) async fn apply(&self, pass: &Pass, names: &Names, object: &Object) -> Result<(), WriteError> {
        let (key, writer, caches) = (Key::new(&names.namespace, &object.name), pass.writer(), &self.caches);
        match object.kind {
            Kind::ConfigMap => writer.apply(&caches.config_maps, &key, &object.body).await,
            Kind::Service => writer.apply(&caches.services, &key, &object.body).await,
            Kind::NetworkPolicy => writer.apply(&caches.policies, &key, &object.body).await,
            Kind::PodDisruptionBudget => writer.apply(&caches.budgets, &key, &object.body).await,
            Kind::StatefulSet => writer.apply(&caches.stateful_sets, &key, &object.body).await,
            Kind::Deployment => writer.apply(&caches.deployments, &key, &object.body).await,
        }
    }
}
