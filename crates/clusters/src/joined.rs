//! The machines that are joined to a business cluster that is to be deleted: their list, and the Operation that releases them.

use std::time::Duration;

use fleetwright_api::{ClusterOnDelete, Machine, Target};
use fleetwright_kit::journal::{Act, CallOutcome, Intent, OperationKey, ProbeResult, Progress};
use fleetwright_kit::{Clock, Key, Pass};
use fleetwright_plan::cluster::release::{
    DeletionHold, JoinedAnswer, JoinedObjects, ListJoinedError, ListedObject, RELEASE_MACHINES, ReleaseBatch,
};
use fleetwright_plan::cluster::{Names, counted};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};

use crate::background_tasks::BackgroundTasks;
use crate::cluster::{Clusters, Found};
use crate::connect::{self, MetaAccess, PAGE, page_of_metadata};
use crate::errors::ActError;
use crate::messages::{api_error_message, truncated};
use crate::operations::{self, KIND, Permit};
use crate::proofs::client_of;
use crate::thin::ThinMeta;

/// Timeout of a request to an API server.
const WITHIN: Duration = Duration::from_secs(20);
/// Outcome of a release, inferred from the list of joined objects.
pub const RELEASED: &str = "all joined Machines and PodDisruptionBudgets are deleted or terminating";
/// Maximum number of listed objects of a kind; only their metadata is listed.
const MAX_LISTED: usize = 500;

/// Lists the objects that are joined to business clusters, without changes.
pub type JoinedMachines = BackgroundTasks<Option<JoinedAnswer>>;

impl JoinedMachines {
    /// Whether no machine was joined at the last query.
    pub fn none_joined(&self, key: &Key) -> bool {
        self.answer(key).is_some_and(|answer| answer.found.is_ok_and(|joined| joined.machines.is_empty()))
    }

    /// Lists the joined objects, unless a query is running. Its end triggers a pass of the cluster.
    fn ask(&self, key: &Key, names: &Names, servers: Vec<String>, on_delete: ClusterOnDelete) {
        let names = names.clone();
        let operation_future = async move |meta: MetaAccess, clock: Clock| {
            let found = list_joined(&meta, &names, &servers).await;
            (clock.now(), found)
        };
        self.begin(key, "", operation_future, move |known, (at, found)| {
            *known = Some(JoinedAnswer::after(known.as_ref(), at, on_delete, found));
        });
    }

    /// Marks the last answer as acted on. After a success, the objects are listed again at once.
    fn acted_on(&self, key: &Key, well: bool) {
        self.known(key, |known| {
            if let Some(answer) = known {
                answer.acted_on = true;
                answer.at = if well { Timestamp::UNIX_EPOCH } else { answer.at };
            }
        });
    }
}

impl Clusters {
    /// Carries out the decision about machines that block the deletion of a cluster. Returns why the gate does not grant the release, if it does not.
    pub(crate) async fn hold(
        &self,
        pass: &Pass,
        found: &Found,
        hold: &DeletionHold,
    ) -> Result<Option<String>, ActError> {
        let (key, names, spec) = (pass.key(), &found.names, found.spec());
        let servers = self.caches.servers(&names.namespace);
        if hold.ask {
            self.askers.ask(key, names, servers.clone(), spec.on_delete);
        }
        let intent =
            hold.release.as_ref().map(|release| operations::attempt(&self.journal, intent(release, &key.name)));
        let wanted = intent.as_ref().map(|intent| self.journal.key(intent));
        // Before the first answer, the same machines may still have to be released.
        if hold.message.is_some() && !hold.ask {
            // If the answer of a started release was lost, the list of the business cluster shows the outcome.
            let outcome = match hold.released {
                true => ProbeResult::Succeeded(RELEASED.to_owned()),
                false => ProbeResult::Failed("outcome unknown; other machines are joined".to_owned()),
            };
            self.close(pass, &[RELEASE_MACHINES], |key, _| wanted.as_ref() == Some(key), |_| outcome.clone()).await?;
        }
        let (Some(release), Some(intent)) = (&hold.release, intent) else { return Ok(None) };
        let permit = Permit { meta: self.askers.meta(), caches: &self.caches, key };
        let act = ReleaseAct { permit, names, servers, release, intent };
        let progress = self.journal.drive(pass, &act).await?;
        tracing::info!(cluster = %key, ?progress, "releasing machines");
        match progress {
            Progress::Waiting { why, .. } | Progress::NeedsPerson(why) => return Ok(Some(why)),
            Progress::Running { .. } => {}
            Progress::Succeeded(_) => self.askers.acted_on(key, true),
            Progress::Failed(_) | Progress::NeverStarted => self.askers.acted_on(key, false),
        }
        Ok(None)
    }
}

fn intent(release: &ReleaseBatch, cluster: &str) -> Intent {
    Intent {
        type_: RELEASE_MACHINES.to_owned(),
        target: Target { kind: KIND.to_owned(), name: cluster.to_owned(), labels: [].into() },
        reason: format!(
            "the Cluster is being deleted with spec.onDelete ReleaseMachines: deleting {} and {} in it",
            counted(release.machines.len(), "Machine"),
            counted(release.budgets.len(), "PodDisruptionBudget")
        ),
        fingerprint: release.fingerprint(),
        keep_for: None,
    }
}

/// Deletes Machines and disruption budgets of a business cluster, each by its uid: a repetition does no harm, and an object of the same name that was
/// created later is kept.
struct ReleaseAct<'a> {
    permit: Permit<'a>,
    names: &'a Names,
    servers: Vec<String>,
    release: &'a ReleaseBatch,
    intent: Intent,
}

impl Act for ReleaseAct<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        let ReleaseBatch { budgets, machines } = self.release;
        match delete_all(&self.permit, self.names, &self.servers, self.release).await {
            Ok(()) => CallOutcome::Done(format!(
                "deleted {} and {}",
                counted(machines.len(), "Machine"),
                counted(budgets.len(), "PodDisruptionBudget")
            )),
            Err(why) => CallOutcome::Failed(why),
        }
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        match list_joined(&self.permit.meta, self.names, &self.servers).await {
            Ok(joined) => {
                let wanted = self.release.budgets.iter().chain(&self.release.machines);
                let here: Vec<_> =
                    joined.budgets.iter().chain(&joined.machines).filter(|one| !one.terminating).collect();
                match wanted.filter(|one| here.iter().any(|here| here.uid == one.uid)).count() {
                    0 => ProbeResult::Succeeded("all are deleted".to_owned()),
                    left => ProbeResult::Failed(format!("{} not deleted yet", counted(left, "object"))),
                }
            }
            // The release does not continue after the process that started it has ended, and the rest is listed before the next attempt.
            Err(why) => ProbeResult::Failed(why.to_string()),
        }
    }

    fn timeout(&self) -> Duration {
        2 * WITHIN
    }
}

/// The joined objects, from the first API server that answers.
async fn list_joined(meta: &MetaAccess, names: &Names, servers: &[String]) -> Result<JoinedObjects, ListJoinedError> {
    let mut found = Err(ListJoinedError::NoServer);
    for server in servers {
        let asked = with_timeout(async { joined(&client(meta, names, server).await?).await });
        found = asked.await.map_err(ListJoinedError::Failed);
        if found.is_ok() {
            break;
        }
    }
    found
}

/// Deletes the objects through the first API server that answers.
async fn delete_all(
    permit: &Permit<'_>,
    names: &Names,
    servers: &[String],
    release: &ReleaseBatch,
) -> Result<(), String> {
    let mut done = Err(ListJoinedError::NoServer.to_string());
    for server in servers {
        done = with_timeout(async {
            let client = client(&permit.meta, names, server).await?;
            delete::<PodDisruptionBudget>(permit, &client, &release.budgets).await?;
            delete::<Machine>(permit, &client, &release.machines).await
        })
        .await;
        if done.is_ok() {
            break;
        }
    }
    done
}

async fn with_timeout<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let none = || Err(format!("the API server did not respond within {} s", WITHIN.as_secs()));
    tokio::time::timeout(WITHIN, asked).await.unwrap_or_else(|_| none())
}

async fn client(meta: &MetaAccess, names: &Names, ip: &str) -> Result<Client, String> {
    client_of(meta, names, ip).await.map_err(|error| truncated(&error.to_string()))
}

async fn joined(client: &Client) -> Result<JoinedObjects, String> {
    let machines = match list::<Machine>(client).await {
        Ok(machines) => machines,
        // A cluster without the kind has no objects of it. The API server answers that with plain text.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(truncated(&format!("listing machines: {}", api_error_message(&error)))),
    };
    let budgets = match machines.is_empty() {
        true => Vec::new(),
        false => list::<PodDisruptionBudget>(client)
            .await
            .map_err(|error| truncated(&format!("listing disruption budgets: {}", api_error_message(&error))))?,
    };
    let nodes = list::<Node>(client)
        .await
        .map_err(|error| truncated(&format!("listing nodes: {}", api_error_message(&error))))?;
    Ok(JoinedObjects { machines, nodes: nodes.into_iter().map(|node| node.name).collect(), budgets })
}

/// The first objects of a kind, in pages.
async fn list<K: Resource<DynamicType = ()>>(client: &Client) -> kube::Result<Vec<ListedObject>> {
    let (mut after, mut all, mut read) = (None::<String>, Vec::new(), 0);
    loop {
        let page = page_of_metadata::<K>(client, None, after.as_deref()).await?;
        // A page counts as full even if it is not: a tenant can serve any number of short pages with a server of their own.
        read += page.items.len().max(PAGE as usize);
        all.extend(page.items.into_iter().map(|one| listed(one.metadata)));
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) if read < MAX_LISTED => after = Some(more),
            _ => return Ok(all),
        }
    }
}

fn listed(meta: ThinMeta) -> ListedObject {
    ListedObject {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        terminating: meta.deletion_timestamp.is_some(),
    }
}

/// Deletes objects that may be gone already.
async fn delete<K>(permit: &Permit<'_>, client: &Client, all: &[ListedObject]) -> Result<(), String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    for one in all {
        permit.check()?;
        delete_one::<K>(client, one).await?;
    }
    Ok(())
}

async fn delete_one<K: Resource<DynamicType = ()>>(client: &Client, one: &ListedObject) -> Result<(), String> {
    let preconditions = Preconditions { uid: Some(one.uid.clone()), resource_version: None };
    let params = DeleteParams::default().preconditions(preconditions);
    match connect::delete::<K>(client, &one.namespace, &one.name, &params).await {
        Ok(()) => Ok(()),
        // The object is gone, or another one has its name.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(truncated(&format!("deleting {} {one}: {}", K::kind(&()), api_error_message(&error)))),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A business cluster whose API server gives these answers, and the requests that it received.
    fn answering(answer: impl Fn(&str) -> Value + Send + 'static) -> (Client, Arc<Mutex<Vec<String>>>) {
        let log = Arc::<Mutex<Vec<String>>>::default();
        let into = log.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let asked = format!("{} {}", request.method(), request.uri().path());
            let body = answer(&asked).to_string().into_bytes();
            into.lock().unwrap().push(asked);
            async move { Ok::<_, Infallible>(http::Response::new(Body::from(body))) }
        });
        (Client::new(service, "default"), log)
    }

    /// An object that a tenant has made unreadable for API clients.
    fn hostile(name: &str, namespace: &str) -> Value {
        let late = "9999-12-31T23:59:59Z";
        let entry = json!({ "manager": "m", "operation": "Update", "apiVersion": "v1", "time": late });
        let metadata = json!({
            "name": name, "namespace": namespace, "uid": format!("uid of {name}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": late, "managedFields": [entry], "ownerReferences": "none",
        });
        json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata })
    }

    #[tokio::test]
    async fn objects_with_metadata_that_does_not_parse_are_listed_and_deleted() {
        let (client, log) = answering(|asked| match asked.rsplit('/').next() {
            Some("machines") => {
                let plain = json!({ "metadata": { "name": "plain", "namespace": "default", "uid": "p" } });
                json!({ "metadata": {}, "items": [hostile("evil", "tenant"), plain] })
            }
            Some("poddisruptionbudgets") => json!({ "metadata": {}, "items": [hostile("budget", "tenant")] }),
            Some("nodes") => json!({ "metadata": {}, "items": [hostile("node", "")] }),
            _ => hostile("evil", "tenant"),
        });
        let joined = joined(&client).await.unwrap();
        let machines: Vec<_> = joined.machines.iter().map(|one| (one.to_string(), one.terminating)).collect();
        assert_eq!(machines, [("tenant/evil".to_owned(), true), ("default/plain".to_owned(), false)]);
        let budgets: Vec<_> = joined.budgets.iter().map(|one| (one.to_string(), one.uid.as_str())).collect();
        assert_eq!(budgets, [("tenant/budget".to_owned(), "uid of budget")]);
        assert_eq!(joined.nodes, ["node"]);
        // The API server answers a delete with the deleted object.
        delete_one::<Machine>(&client, &joined.machines[0]).await.unwrap();
        let last = log.lock().unwrap().last().cloned();
        let path = "/apis/fleetwright.io/v1alpha1/namespaces/tenant/machines/evil";
        assert_eq!(last, Some(format!("DELETE {path}")));
    }

    #[tokio::test]
    async fn no_more_than_the_first_objects_of_a_kind_are_read() {
        let page = |items: usize| {
            let items: Vec<_> = (0..items).map(|_| json!({ "metadata": { "name": "a" } })).collect();
            json!({ "metadata": { "continue": "more" }, "items": items })
        };
        for (items, listed) in [(50, 500), (0, 0)] {
            let (client, log) = answering(move |_| page(items));
            assert_eq!(list::<Node>(&client).await.unwrap().len(), listed);
            assert_eq!(log.lock().unwrap().len(), 10);
        }
        let (client, _) = answering(move |_| page(51));
        let refused = api_error_message(&list::<Node>(&client).await.unwrap_err());
        assert!(refused.contains("50 objects"), "{refused}");
    }
}
