//! Has a member of etcd replaced that has lost what it knew: the others are asked, forget it, and keep a place for a new one.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::datastore::{self, Member, Mend, Mending, Suspect, Told};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::connect::{Etcd, Meta};
use crate::errands::Errands;
use crate::words::{bounded, said};

/// Asking and telling takes no longer, or is given up for now.
const WITHIN: Duration = Duration::from_secs(30);
/// Remove, add, and see that a place is kept: with one more for what came in between.
const STEPS: usize = 4;

/// What became of members, and what is under way: of a cluster one at a time.
pub struct Menders(pub Errands<BTreeMap<String, Mending>>);

impl Menders {
    /// What is known of the pods with these uids; the others are forgotten.
    pub fn known(&self, key: &Key, uids: &[&str]) -> BTreeMap<String, Mending> {
        let known = self.0.known(key, |known| {
            known.retain(|uid, _| uids.contains(&uid.as_str()));
            known.clone()
        });
        known.unwrap_or_default()
    }

    /// The cluster is gone.
    pub fn forget(&self, key: &Key) {
        self.0.forget(key);
    }

    /// Begins, unless something is under way for that cluster. When it is over, the cluster is woken.
    pub fn begin(&self, key: &Key, names: &Names, suspect: &Suspect) {
        let (cluster, names, suspect, uid) = (key.clone(), names.clone(), suspect.clone(), suspect.uid.clone());
        let errand = async move |meta: Meta, clock: Clock| {
            let outcome = match tokio::time::timeout(WITHIN, mend(&meta, &names, &suspect)).await {
                Ok(outcome) => outcome.map_err(|why| bounded(&why)),
                Err(_) => Err(format!("the others did not answer within {} s", WITHIN.as_secs())),
            };
            tracing::info!(cluster = %cluster, member = suspect.name, ?outcome, "a member of etcd has lost what it knew");
            Mending { at: clock.now(), outcome }
        };
        self.0.begin(key, "", errand, move |known, mending| drop(known.insert(uid, mending)));
    }
}

async fn mend(meta: &Meta, names: &Names, suspect: &Suspect) -> Result<(), String> {
    for _ in 0..STEPS {
        let (others, told) = ask(meta, names, suspect).await?;
        // What is cached may be of a moment before: a member that is well again stays.
        still(meta, names, suspect).await?;
        let done = match datastore::mend(&told, suspect) {
            Mend::Begin => return Ok(()),
            Mend::Leave(why) => return Err(why),
            Mend::Remove(id) => others.ask("cluster/member/remove", json!({ "ID": id })).await,
            Mend::Add => others.ask("cluster/member/add", json!({ "peerURLs": [suspect.peer_url] })).await,
        };
        done?;
    }
    Err("others change its members as well".to_owned())
}

/// Whether it is still the same pod, and still not well.
async fn still(meta: &Meta, names: &Names, suspect: &Suspect) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(meta.client.clone(), &names.namespace);
    let pod = pods.get_opt(&suspect.name).await.map_err(|error| format!("its pod cannot be read: {}", said(&error)))?;
    let same = pod.as_ref().is_some_and(|pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
        pod.uid().as_deref() == Some(&suspect.uid) && pod.metadata.deletion_timestamp.is_none() && !ready
    });
    if same { Ok(()) } else { Err("its pod is another one now".to_owned()) }
}

/// What all who are well say, and one of them.
async fn ask(meta: &Meta, names: &Names, suspect: &Suspect) -> Result<(Etcd, Told), String> {
    let (mut one, mut told, mut why) = (None, Told::default(), "nobody is there to ask".to_owned());
    for ip in &suspect.others {
        let answer = async {
            let etcd = Etcd::at(meta, names, ip).await?;
            let status = etcd.ask("maintenance/status", json!({})).await?;
            let list = etcd.ask("cluster/member/list", json!({ "linearizable": true })).await?;
            Ok::<_, String>((etcd, status, list))
        };
        match answer.await {
            Ok((etcd, status, list)) => {
                told.answered.push((text(&status["header"]["member_id"]), text(&status["leader"])));
                told.members = members(&list);
                one = Some(etcd);
            }
            Err(error) => why = error,
        }
    }
    one.map(|one| (one, told)).ok_or(why)
}

fn members(list: &Value) -> Vec<Member> {
    let member = |one: &Value| Member {
        id: text(&one["ID"]),
        name: text(&one["name"]),
        peer_urls: one["peerURLs"].as_array().into_iter().flatten().map(text).collect(),
    };
    list["members"].as_array().into_iter().flatten().map(member).collect()
}

/// Numbers of 64 bits are texts in JSON, and what is zero or empty is left out.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
