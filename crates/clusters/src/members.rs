//! The members of etcd: queries, and the acts that change them, each of them an Operation of the journal.

use std::time::Duration;

use fleetwright_api::{Amount, Operation, OperationPolicySpec, Span, Target};
use fleetwright_kit::events::Level;
use fleetwright_kit::journal::{Act as Journaled, CallOutcome, Intent, Journal, OperationKey, ProbeResult, Progress};
use fleetwright_kit::{Clock, Key, Next as Again, Pass, View, WriteError};
use fleetwright_plan::cluster::members::{
    Member, MemberAction, MemberAnswer, MemberList, MemberQueryResult, NextMemberStep, OPERATIONS, claim, was_done,
};
use fleetwright_plan::cluster::{Decision, Names};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use crate::background_tasks::BackgroundTasks;
use crate::caches::Caches;
use crate::cluster::{Clusters, Found};
use crate::connect::{EtcdAccess as Way, MetaAccess};
use crate::errors::ActError;
use crate::messages::{api_error_message, truncated};
use crate::operations::{self, KEEP_OPERATIONS, KIND};
use crate::view::PodView;

/// Name of the default policy for member changes, if no other policy exists.
const POLICY: &str = "etcd-members";
/// Timeout of a query to a member. A later answer does not count.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Timeout of an act, after which its outcome is unknown and is probed. A pass waits for the act: etcd answers at once or not at all.
const ACT_WITHIN: Duration = Duration::from_secs(20);
/// Wait before the next query after a failed act.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Answers of members, and running queries.
pub type MemberQueries = BackgroundTasks<Option<MemberReports>>;

/// Answers of the members of a cluster.
#[derive(Clone)]
pub struct MemberReports {
    /// When the first query was sent.
    began: Timestamp,
    asked: MemberQueryResult,
}

impl MemberQueries {
    /// Invalidates earlier answers after an attempt of an act. If the act failed, the next attempt waits for a moment, with this reason.
    fn invalidate(&self, key: &Key, at: Timestamp, why: Option<String>) {
        self.abort_others(key, |_| false);
        self.known(key, |known| {
            *known = why
                .map(|why| MemberReports { began: at, asked: MemberQueryResult { at, outcome: Err(truncated(&why)) } });
        });
    }

    /// Queries the members at these addresses, unless a query is running. Their answers trigger a pass of the cluster.
    fn ask(&self, key: &Key, names: &Names, addresses: Vec<String>) {
        let names = names.clone();
        let operation_future = async move |meta: MetaAccess, clock: Clock| {
            let began = clock.now();
            let outcome = ask_of(&meta, &names, &addresses).await;
            let outcome = outcome.map_err(|why| format!("cannot query the etcd members: {why}"));
            MemberReports { began, asked: MemberQueryResult { at: clock.now(), outcome } }
        };
        self.begin(key, "", operation_future, |known, heard| *known = Some(heard));
    }
}

impl Clusters {
    /// The last answers of the members of a cluster. They do not count if an act on the members started or ended since the query: another process may
    /// have done that act, and the old answers would cause it to be repeated, or reverted.
    pub(crate) fn last_answer(&self, key: &Key) -> Option<MemberQueryResult> {
        let operations = self.journal.of_target(KIND, &key.name);
        let acts = operations.iter().map(|(_, one)| &one.0).filter(|one| OPERATIONS.contains(&one.spec.type_.as_str()));
        let changed =
            acts.filter_map(|one| one.status.as_ref().and_then(|status| status.ended_at.or(status.started_at)));
        let changed = changed.max();
        let counts = |heard: &MemberReports| heard.asked.outcome.is_err() || changed.is_none_or(|at| heard.began >= at);
        self.members.answer(key).filter(counts).map(|heard| heard.asked)
    }

    /// Takes the next step towards the declared members. Returns when to run the next pass.
    pub(crate) async fn change_members(
        &self,
        pass: &Pass,
        found: &Found,
        decision: &Decision,
    ) -> Result<Option<Timestamp>, ActError> {
        let (names, key) = (&found.names, pass.key());
        let wanted = match &decision.members {
            NextMemberStep::Act(act) => Some(self.journal.key(&intent(&self.journal, act, &key.name))),
            _ => None,
        };
        // Until the members answer, the same act may still be wanted: an Operation that waits for the gate keeps its place in the queue.
        let unanswered = || self.members.answer(key).is_some_and(|heard| heard.asked.outcome.is_err());
        let undecided = match &decision.members {
            NextMemberStep::QueryMembers => true,
            NextMemberStep::Wait(_) => unanswered(),
            _ => false,
        };
        if !undecided {
            // The outcome of an act whose answer was late is recorded from the member list.
            let member_list = self.last_answer(key).and_then(|asked| asked.outcome.ok());
            let done = |one: &Operation, member_list: &MemberList| {
                let claims = self.caches.claims(&names.namespace);
                was_done(&one.spec.type_, &one.spec.fingerprint, names, member_list, &claims)
            };
            let outcome = |one: &Operation| match &member_list {
                Some(member_list) if done(one, member_list) => {
                    ProbeResult::Succeeded("response lost; confirmed by the etcd members".to_owned())
                }
                _ => ProbeResult::Failed("outcome unknown; the etcd members were queried again since".to_owned()),
            };
            self.close(pass, &OPERATIONS, |key, _| wanted.as_ref() == Some(key), outcome).await?;
        }
        if decision.query_members || decision.members == NextMemberStep::QueryMembers {
            self.members.ask(key, names, self.caches.members(&names.namespace));
        }
        match &decision.members {
            NextMemberStep::Nothing
            | NextMemberStep::QueryMembers
            | NextMemberStep::Record(_)
            | NextMemberStep::Refuse(_)
            | NextMemberStep::Wait(_) => Ok(None),
            NextMemberStep::Recreate(pod) => {
                let place = Key::new(&names.namespace, &pod.name);
                match pass.writer().delete(&self.caches.pods, &place, &pod.uid, &pod.version).await {
                    Ok(()) | Err(WriteError::Gone(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                let message = format!("{} lost its data; recreating it with an empty volume", pod.name);
                self.publish_event(pass, found, Level::Warning, "MemberReplaced", &message).await;
                Ok(None)
            }
            NextMemberStep::Act(act) => {
                let addresses = self.caches.members(&names.namespace);
                let intent = intent(&self.journal, act, &key.name);
                let act =
                    MemberAct { meta: self.members.meta(), caches: &self.caches, pass, names, act, addresses, intent };
                self.journal.limit(pass, POLICY, policy()).await?;
                let progress = self.journal.drive(pass, &act).await?;
                tracing::info!(cluster = %key, act = ?act.act, ?progress, "changing an etcd member");
                let (now, type_) = (pass.clock().now(), act.act.type_());
                let why = match &progress {
                    Progress::Failed(why) => Some(format!("{type_} failed: {why}")),
                    Progress::Waiting { why, .. } => Some(format!("{type_} is waiting: {why}")),
                    Progress::NeverStarted => Some(format!("{type_} did not start; retrying")),
                    Progress::NeedsPerson(why) => Some(format!("{type_} needs manual action: {why}")),
                    _ => None,
                };
                self.members.invalidate(key, now, why);
                Ok(match (&progress, progress.next()) {
                    (Progress::Failed(_) | Progress::NeverStarted | Progress::Waiting { .. }, _) => {
                        now.checked_add(RETRY_AFTER).ok()
                    }
                    (_, Again::At(at)) => Some(at),
                    (_, Again::After(wait)) => now.checked_add(wait).ok(),
                    (Progress::Succeeded(_), Again::AwaitChange) => Some(now),
                    (_, Again::AwaitChange) => None,
                })
            }
        }
    }
}

/// Default number of concurrent acts on members in all clusters.
fn policy() -> OperationPolicySpec {
    let operations = OPERATIONS.map(str::to_owned).to_vec();
    OperationPolicySpec { operations, scope: None, max: Amount::Count(10), at_least: 1 }
}

/// The intent of an act: the first attempt that has not ended.
fn intent(journal: &Journal, act: &MemberAction, cluster: &str) -> Intent {
    let reason = match act {
        MemberAction::Remove { member, lost: Some(_), .. } => {
            format!("etcd member {member} lost its data; replacing it")
        }
        MemberAction::Remove { member, .. } => format!("removing etcd member {member}"),
        MemberAction::Add { member, .. } => format!("adding etcd member {member} as a learner"),
        MemberAction::Promote { member, .. } => format!("etcd learner {member} has caught up; promoting it"),
        MemberAction::DeleteVolume { member, .. } => format!("no etcd member uses the volume of {member}; deleting it"),
    };
    let intent = Intent {
        type_: act.type_().to_owned(),
        target: Target { kind: KIND.to_owned(), name: cluster.to_owned(), labels: [].into() },
        reason,
        fingerprint: act.fingerprint(),
        keep_for: Some(Span(KEEP_OPERATIONS)),
    };
    operations::attempt(journal, intent)
}

/// An act on a member, with the clients that it needs.
///
/// Each act is idempotent: members are removed and promoted by their id, a peer URL is added once, and a volume is deleted by its uid. Therefore an
/// act that never started is repeated by a new Operation.
struct MemberAct<'a> {
    meta: MetaAccess,
    caches: &'a Caches,
    pass: &'a Pass,
    names: &'a Names,
    act: &'a MemberAction,
    addresses: Vec<String>,
    intent: Intent,
}

impl Journaled for MemberAct<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, _: &OperationKey) -> CallOutcome {
        match self.act {
            MemberAction::DeleteVolume { claim, .. } => {
                let key = Key::new(&self.names.namespace, &claim.name);
                match self.pass.writer().delete(&self.caches.claims, &key, &claim.uid, &claim.version).await {
                    Ok(()) => CallOutcome::Done(format!("deleted PersistentVolumeClaim {}", claim.name)),
                    Err(WriteError::Gone(_)) => {
                        CallOutcome::Done(format!("PersistentVolumeClaim {} was already deleted", claim.name))
                    }
                    Err(error) => CallOutcome::Failed(truncated(&error.to_string())),
                }
            }
            act => match self.change(act).await {
                Ok(done) => CallOutcome::Done(done),
                Err(MemberActError::NotStarted(why)) => CallOutcome::Failed(truncated(&why)),
                Err(MemberActError::OutcomeUnknown(why)) => CallOutcome::Unknown(truncated(&why)),
            },
        }
    }

    async fn probe(&self, _: &OperationKey) -> ProbeResult {
        if let MemberAction::DeleteVolume { member, claim: wanted } = self.act {
            let known = self.caches.claims.get(&Key::new(&self.names.namespace, &claim(member)));
            return match known.is_none_or(|known| known.claim.uid != wanted.uid || known.claim.ending) {
                true => ProbeResult::Succeeded("the volume is deleted".to_owned()),
                false => ProbeResult::NeverStarted,
            };
        }
        match ask_of(&self.meta, self.names, &self.addresses).await {
            Ok(member_list) if self.act.done(&member_list) => {
                ProbeResult::Succeeded("confirmed by the etcd members".to_owned())
            }
            Ok(_) => ProbeResult::NeverStarted,
            Err(why) => ProbeResult::NoAnswer(why),
        }
    }

    fn timeout(&self) -> Duration {
        ACT_WITHIN
    }
}

/// Why an act on etcd failed, or has an unknown outcome.
enum MemberActError {
    NotStarted(String),
    OutcomeUnknown(String),
}

impl MemberAct<'_> {
    /// Checks again whether the act is allowed, then changes etcd.
    async fn change(&self, act: &MemberAction) -> Result<String, MemberActError> {
        let way = Way::of(&self.meta, self.names).await.map_err(MemberActError::NotStarted)?;
        let member_list = ask(&way, &self.addresses).await.map_err(MemberActError::NotStarted)?;
        if act.done(&member_list) {
            return Ok("already done".to_owned());
        }
        if let Some(why) = act.refused(&member_list) {
            return Err(MemberActError::NotStarted(why));
        }
        if let MemberAction::Remove { member, lost: Some(uid), .. } = act {
            self.check_still_unready(member, uid).await.map_err(MemberActError::NotStarted)?;
        }
        // The member to remove is not the leader, and may not answer any more.
        let own = match act {
            MemberAction::Remove { id, .. } => id.as_str(),
            _ => "",
        };
        let leader = member_list.answered.first().map(|one| one.leader.clone()).unwrap_or_default();
        let voter = |id: &str| member_list.member(id).is_some_and(|member| !member.learner);
        let others = || member_list.answered.iter().filter(|one| one.id != own && voter(&one.id));
        if leader == own
            && let Some(leads) = member_list.answered.iter().find(|one| one.id == own)
            && let Some(next) = others().max_by_key(|one| one.index)
        {
            let etcd = way.at(&leads.address).await.map_err(MemberActError::NotStarted)?;
            self.check_lease()?;
            let moved = etcd.ask("maintenance/transfer-leadership", json!({ "targetID": next.id })).await;
            moved
                .map_err(|why| MemberActError::NotStarted(format!("cannot transfer the leadership of etcd: {why}")))?;
        }
        let asked =
            others().next().ok_or_else(|| MemberActError::NotStarted("no other etcd member responds".to_owned()))?;
        let etcd = way.at(&asked.address).await.map_err(MemberActError::NotStarted)?;
        let (call, body) = match act {
            MemberAction::Remove { id, .. } => ("cluster/member/remove", json!({ "ID": id })),
            MemberAction::Add { peer_url, .. } => {
                ("cluster/member/add", json!({ "peerURLs": [peer_url], "isLearner": true }))
            }
            MemberAction::Promote { id, .. } => ("cluster/member/promote", json!({ "ID": id })),
            MemberAction::DeleteVolume { .. } => {
                return Err(MemberActError::NotStarted("deleting a volume is not a request to etcd".to_owned()));
            }
        };
        self.check_lease()?;
        let answer = etcd.ask(call, body).await.map_err(MemberActError::OutcomeUnknown)?;
        Ok(match act {
            MemberAction::Add { .. } => format!("added learner {}", text(&answer["member"]["ID"])),
            MemberAction::Promote { id, .. } => format!("promoted learner {id}"),
            _ => format!("removed member {own}"),
        })
    }

    /// Right before each request that changes etcd.
    fn check_lease(&self) -> Result<(), MemberActError> {
        match self.pass.leads() {
            true => Ok(()),
            false => Err(MemberActError::NotStarted("the leader election lease may have expired".to_owned())),
        }
    }

    /// Whether the pod is the same one, and still not ready: the cache may be outdated.
    async fn check_still_unready(&self, member: &str, uid: &str) -> Result<(), String> {
        let pods: Api<Pod> = Api::namespaced(self.meta.client.clone(), &self.names.namespace);
        let pod = pods
            .get_opt(member)
            .await
            .map_err(|error| format!("cannot read pod {member}: {}", api_error_message(&error)))?;
        let same = pod
            .map(|pod| PodView::of(pod).replica)
            .is_some_and(|pod| pod.uid == uid && !pod.ready && (pod.lost || pod.looping));
        if same { Ok(()) } else { Err(format!("pod {member} was recreated, is running again or is ready")) }
    }
}

async fn ask_of(meta: &MetaAccess, names: &Names, addresses: &[String]) -> Result<MemberList, String> {
    ask(&Way::of(meta, names).await?, addresses).await
}

/// Queries the members at these addresses.
async fn ask(way: &Way<'_>, addresses: &[String]) -> Result<MemberList, String> {
    let asked = addresses.iter().map(|address| async move {
        let answer = async {
            let etcd = way.at(address).await?;
            let status = etcd.ask("maintenance/status", json!({})).await?;
            // A learner does not list members.
            let list = etcd.ask("cluster/member/list", json!({ "linearizable": true })).await;
            Ok::<_, String>((address, status, list))
        };
        let late = |_| Err(format!("no response from {address} within {} s", ASK_WITHIN.as_secs()));
        tokio::time::timeout(ASK_WITHIN, answer).await.unwrap_or_else(late)
    });
    let (mut member_list, mut listed, mut why) =
        (MemberList::default(), false, "no etcd member has an IP address".to_owned());
    for answer in join_all(asked).await {
        match answer {
            Ok((address, status, list)) => {
                member_list.answered.push(MemberAnswer {
                    id: text(&status["header"]["member_id"]),
                    leader: text(&status["leader"]),
                    index: member_id(&status["raftIndex"]),
                    applied: member_id(&status["raftAppliedIndex"]),
                    address: address.clone(),
                });
                match list {
                    Ok(list) => (member_list.members, listed) = (members(&list), true),
                    Err(error) => why = error,
                }
            }
            Err(error) => why = error,
        }
    }
    if listed { Ok(member_list) } else { Err(truncated(&why)) }
}

fn members(list: &Value) -> Vec<Member> {
    let member = |one: &Value| Member {
        id: text(&one["ID"]),
        name: text(&one["name"]),
        peer_urls: one["peerURLs"].as_array().into_iter().flatten().map(text).collect(),
        learner: one["isLearner"] == true,
    };
    list["members"].as_array().into_iter().flatten().map(member).collect()
}

/// In the gateway's JSON, numbers of 64 bits are strings, and zero or empty values are omitted.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn member_id(value: &Value) -> u64 {
    text(value).parse().unwrap_or_default()
}
