//! What is joined to a business cluster that is to be deleted: listing it, and the Operation that releases machines.

use std::fmt::Debug;
use std::time::Duration;

use fleetwright_api::{ClusterOnDelete, Machine, Target};
use fleetwright_kit::journal::{Act, Ending, Intent, OperationKey, Probed, Progress};
use fleetwright_kit::{Clock, Key, Pass};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::release::{Answer, Hold, Joined, Listed, RELEASE_MACHINES, Release, Unlisted};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::cluster::{Clusters, Found};
use crate::connect::Meta;
use crate::errands::Errands;
use crate::errors::ActError;
use crate::operations::{self, KIND, Permit};
use crate::prove::client_of;
use crate::words::{bounded, said};

/// An API server that does not answer within this time does not answer.
const WITHIN: Duration = Duration::from_secs(20);
/// What became of a release, as the list of what is joined tells.
pub const RELEASED: &str = "no Machine and no disruption budget is joined that is not being deleted";
/// At most this many are listed, by their metadata, in one answer.
const MOST: u32 = 500;

/// Lists what is joined to business clusters. Nothing is changed by that.
pub struct Askers(pub Errands<Option<Answer>>);

impl Askers {
    /// What was answered last.
    pub fn answer(&self, key: &Key) -> Option<Answer> {
        self.0.known(key, |answer| answer.clone()).flatten()
    }

    /// Whether no machine was joined when that was asked last.
    pub fn none_joined(&self, key: &Key) -> bool {
        self.answer(key).is_some_and(|answer| answer.found.is_ok_and(|joined| joined.machines.is_empty()))
    }

    /// The cluster is gone, or stays.
    pub fn forget(&self, key: &Key) {
        self.0.forget(key);
    }

    /// Lists, unless that is under way. When it is over, the cluster is woken.
    fn ask(&self, key: &Key, names: &Names, servers: Vec<String>, on_delete: ClusterOnDelete) {
        let names = names.clone();
        let errand = async move |meta: Meta, clock: Clock| {
            let found = list_joined(&meta, &names, &servers).await;
            (clock.now(), found)
        };
        self.0.begin(key, "", errand, move |known, (at, found)| {
            *known = Some(Answer::after(known.as_ref(), at, on_delete, found));
        });
    }

    /// What was answered last is acted on. If that went well, it is asked again at once.
    fn acted_on(&self, key: &Key, well: bool) {
        self.0.known(key, |known| {
            if let Some(answer) = known {
                answer.acted_on = true;
                answer.at = if well { Timestamp::UNIX_EPOCH } else { answer.at };
            }
        });
    }
}

impl Clusters {
    /// Does what was decided about machines that hold a cluster. Answers why the gate does not let machines be released, if it does not.
    pub(crate) async fn hold(&self, pass: &Pass, found: &Found, hold: &Hold) -> Result<Option<String>, ActError> {
        let (key, names, spec) = (pass.key(), &found.names, found.spec());
        let servers = self.eyes.servers(&names.namespace);
        if hold.ask {
            self.askers.ask(key, names, servers.clone(), spec.on_delete);
        }
        let intent =
            hold.release.as_ref().map(|release| operations::attempt(&self.journal, intent(release, &key.name)));
        let wanted = intent.as_ref().map(|intent| self.journal.key(intent));
        // Before there was an answer, the same machines may still be wanted gone.
        if hold.message.is_some() && !hold.ask {
            // Of one that was started and whose outcome was not heard, the business cluster tells.
            let outcome = match hold.released {
                true => Probed::Succeeded(RELEASED.to_owned()),
                false => Probed::Failed("its outcome was not heard, and other machines are joined".to_owned()),
            };
            self.close(pass, &[RELEASE_MACHINES], |key, _| wanted.as_ref() == Some(key), |_| outcome.clone()).await?;
        }
        let (Some(release), Some(intent)) = (&hold.release, intent) else { return Ok(None) };
        let permit = Permit { meta: self.askers.0.meta(), eyes: &self.eyes, key };
        let act = ReleaseAct { permit, names, servers, release, intent };
        let progress = self.journal.drive(pass, &act).await?;
        tracing::info!(cluster = %key, ?progress, "machines are released");
        match progress {
            Progress::Waiting { why, .. } | Progress::NeedsPerson(why) => return Ok(Some(why)),
            Progress::Running { .. } => {}
            Progress::Succeeded(_) => self.askers.acted_on(key, true),
            Progress::Failed(_) | Progress::NeverStarted => self.askers.acted_on(key, false),
        }
        Ok(None)
    }
}

fn intent(release: &Release, cluster: &str) -> Intent {
    Intent {
        type_: RELEASE_MACHINES.to_owned(),
        target: Target { kind: KIND.to_owned(), name: cluster.to_owned(), labels: [].into() },
        reason: format!(
            "the Cluster is deleted with onDelete: ReleaseMachines: {} Machines and {} disruption budgets are deleted in it",
            release.machines.len(),
            release.budgets.len()
        ),
        fingerprint: release.fingerprint(),
        keep_for: None,
    }
}

/// Deletes Machines and disruption budgets of a business cluster, each by its uid: doing it twice does no harm, and an object of the same name that came
/// later stays.
struct ReleaseAct<'a> {
    permit: Permit<'a>,
    names: &'a Names,
    servers: Vec<String>,
    release: &'a Release,
    intent: Intent,
}

impl Act for ReleaseAct<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> Ending {
        let Release { budgets, machines } = self.release;
        match delete_all(&self.permit, self.names, &self.servers, self.release).await {
            Ok(()) => Ending::Done(format!("deleted {} Machines, {} budgets", machines.len(), budgets.len())),
            Err(why) => Ending::Failed(why),
        }
    }

    async fn probe(&self, _: &OperationKey) -> Probed {
        match list_joined(&self.permit.meta, self.names, &self.servers).await {
            Ok(joined) => {
                let wanted = self.release.budgets.iter().chain(&self.release.machines);
                let here: Vec<_> =
                    joined.budgets.iter().chain(&joined.machines).filter(|one| !one.terminating).collect();
                match wanted.filter(|one| here.iter().any(|here| here.uid == one.uid)).count() {
                    0 => Probed::Succeeded("all of them are deleted".to_owned()),
                    left => Probed::Failed(format!("{left} of them are not deleted")),
                }
            }
            // Nothing goes on after the process that started it, and what is left is listed before another attempt.
            Err(why) => Probed::Failed(why.to_string()),
        }
    }

    fn timeout(&self) -> Duration {
        2 * WITHIN
    }
}

/// What is joined, as the first API server tells that answers.
async fn list_joined(meta: &Meta, names: &Names, servers: &[String]) -> Result<Joined, Unlisted> {
    let mut found = Err(Unlisted::NoServer);
    for server in servers {
        let asked = within(async { joined(&client(meta, names, server).await?).await });
        found = asked.await.map_err(Unlisted::Failed);
        if found.is_ok() {
            break;
        }
    }
    found
}

/// Deletes at the first API server that answers.
async fn delete_all(permit: &Permit<'_>, names: &Names, servers: &[String], release: &Release) -> Result<(), String> {
    let mut done = Err(Unlisted::NoServer.to_string());
    for server in servers {
        done = within(async {
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

async fn within<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let none = || Err(format!("its API server did not answer within {} s", WITHIN.as_secs()));
    tokio::time::timeout(WITHIN, asked).await.unwrap_or_else(|_| none())
}

async fn client(meta: &Meta, names: &Names, ip: &str) -> Result<Client, String> {
    client_of(meta, names, ip).await.map_err(|error| bounded(&error.to_string()))
}

async fn joined(client: &Client) -> Result<Joined, String> {
    let machines = match list::<Machine>(client).await {
        Ok(machines) => machines,
        // A cluster that does not know the kind has none. It says so in plain words.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(bounded(&format!("listing machines: {}", said(&error)))),
    };
    let budgets = match machines.is_empty() {
        true => Vec::new(),
        false => list::<PodDisruptionBudget>(client)
            .await
            .map_err(|error| bounded(&format!("listing disruption budgets: {}", said(&error))))?,
    };
    let nodes = list::<Node>(client).await.map_err(|error| bounded(&format!("listing nodes: {}", said(&error))))?;
    Ok(Joined { machines, nodes: nodes.into_iter().map(|node| node.name).collect(), budgets })
}

async fn list<K>(client: &Client) -> kube::Result<Vec<Listed>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let all = Api::<K>::all(client.clone()).list_metadata(&ListParams::default().limit(MOST)).await?;
    Ok(all.items.into_iter().map(|one| listed(one.metadata)).collect())
}

fn listed(meta: ObjectMeta) -> Listed {
    Listed {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        terminating: meta.deletion_timestamp.is_some(),
    }
}

/// Deletes what may be gone already.
async fn delete<K>(permit: &Permit<'_>, client: &Client, all: &[Listed]) -> Result<(), String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    for one in all {
        permit.check()?;
        let preconditions = Preconditions { uid: Some(one.uid.clone()), resource_version: None };
        let api: Api<K> = Api::namespaced(client.clone(), &one.namespace);
        match api.delete(&one.name, &DeleteParams::default().preconditions(preconditions)).await {
            Ok(_) => {}
            // It is gone, or another one has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(bounded(&format!("deleting {} {one}: {}", K::kind(&()), said(&error)))),
        }
    }
    Ok(())
}
