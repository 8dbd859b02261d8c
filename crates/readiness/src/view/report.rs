use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Report, names};
use fleetwright_plan::readiness::reports::{FiledReport, ReportContent};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use serde::Deserialize;

use super::thin::{Meta, thin};
use super::{ConditionView, intern};

/// The cached form of a report: its decoded content, not its text.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportView {
    /// Uid of the ConfigMap.
    pub uid: Box<str>,
    /// Creation time.
    pub created: Timestamp,
    /// The machine that its label names.
    pub machine: Arc<str>,
    /// The decoded content.
    pub said: ParsedReport,
}

/// The decoded content of a report.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedReport {
    /// A valid report.
    Valid {
        /// Name of the reporter.
        reporter: Arc<str>,
        /// The reported conditions.
        conditions: Box<[ConditionView]>,
    },
    /// An invalid report, and why.
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
            Ok(report) => ParsedReport::Valid {
                reporter: intern(&report.reporter),
                conditions: report
                    .conditions
                    .iter()
                    .map(|condition| ConditionView {
                        type_: intern(&condition.type_),
                        status: condition.status,
                        reason: intern(&condition.reason),
                        message: intern(&condition.message),
                        since: created,
                        // A write counts as a heartbeat: a report without heartbeats is as fresh as its last write.
                        heartbeat: Some(condition.heartbeat.unwrap_or(written)),
                        observed_generation: None,
                        reporter: None,
                        ours: false,
                    })
                    .collect(),
            },
            Err(broken) => ParsedReport::Broken(broken.to_string().into()),
        };
        let machine = labels.get(names::MACHINE).map(String::as_str).unwrap_or_default().into();
        Self { uid: metadata.uid.into(), created, machine, said }
    }

    /// The report in the form of the decision.
    pub fn filed<'a>(&'a self, name: &'a str) -> FiledReport<'a> {
        let content = match &self.said {
            ParsedReport::Valid { reporter, conditions } => {
                ReportContent::Read { reporter, facts: conditions.iter().map(ConditionView::fact).collect() }
            }
            ParsedReport::Broken(why) => ReportContent::Broken(why),
        };
        FiledReport { name, created: self.created, content }
    }
}
