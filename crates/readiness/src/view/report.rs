use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Report, names};
use fleetwright_plan::readiness::reports::{Content, Filed};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use serde::Deserialize;

use super::thin::{Meta, thin};
use super::{Kept, intern};

/// What is kept of a report: what it says, not the text.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportView {
    /// Its uid.
    pub uid: Box<str>,
    /// When it was made.
    pub created: Timestamp,
    /// The machine that its label names.
    pub machine: Arc<str>,
    /// What it says.
    pub said: Said,
}

/// What a report says.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// It can be read.
    Well {
        /// Who reports.
        reporter: Arc<str>,
        /// What.
        conditions: Box<[Kept]>,
    },
    /// It cannot, and why.
    Broken(Arc<str>),
}

thin! {
    /// A ConfigMap that decodes into the view of a report.
    ThinReport, ReportView, Raw, k8s_openapi::api::core::v1::ConfigMap, NamespaceResourceScope
}

#[derive(Deserialize)]
pub(super) struct Raw {
    metadata: Meta,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

impl ReportView {
    fn read(raw: Raw) -> Self {
        let Raw { metadata, data } = raw;
        let (created, written) = (metadata.created(), metadata.changed());
        let labels = metadata.labels.unwrap_or_default();
        let said = match Report::read(&metadata.name, &labels, &data.unwrap_or_default()) {
            Ok(report) => Said::Well {
                reporter: intern(&report.reporter),
                conditions: report
                    .conditions
                    .iter()
                    .map(|condition| Kept {
                        type_: intern(&condition.type_),
                        status: condition.status,
                        reason: intern(&condition.reason),
                        message: intern(&condition.message),
                        since: created,
                        // Who writes a report looks; a report without heartbeats is as fresh as its last writing.
                        heartbeat: Some(condition.heartbeat.unwrap_or(written)),
                        observed_generation: None,
                        reporter: None,
                        ours: false,
                    })
                    .collect(),
            },
            Err(broken) => Said::Broken(broken.to_string().into()),
        };
        let machine = labels.get(names::MACHINE).map(String::as_str).unwrap_or_default().into();
        Self { uid: metadata.uid.into(), created, machine, said }
    }

    /// As it is copied from.
    pub fn filed<'a>(&'a self, name: &'a str) -> Filed<'a> {
        let content = match &self.said {
            Said::Well { reporter, conditions } => {
                Content::Read { reporter, facts: conditions.iter().map(Kept::fact).collect() }
            }
            Said::Broken(why) => Content::Broken(why),
        };
        Filed { name, created: self.created, content }
    }
}
