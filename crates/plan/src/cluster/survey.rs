//! The survey of a control plane before a change: the questions, and the parsed answers.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_syntax::Quantity;
use jiff::Timestamp;
use serde::Serialize;

/// A survey question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyQuestion {
    /// The change and the pods that the question is about: an answer is valid for these only.
    pub of: String,
    /// API servers: name and address.
    pub servers: Vec<(String, String)>,
}

/// A survey answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// The change and the pods that the answer is about.
    pub of: String,
    /// Time of the survey.
    pub at: Timestamp,
    /// APIs that clients have used since the API servers started and that a release removes; or why they are unknown.
    pub apis: Result<BTreeSet<RemovedApi>, String>,
    /// Quotas of the namespace in the meta cluster; or why they are unknown.
    pub quotas: Result<Vec<Quota>, String>,
    /// Nodes of the cluster and the versions that their kubelets report; or why they are unknown.
    pub kubelets: Result<BTreeMap<String, String>, String>,
}

/// An API that a client used, and that a release removes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedApi {
    /// Group; empty for the core group.
    pub group: String,
    pub version: String,
    /// Resource, in the plural.
    pub resource: String,
    /// First minor without the API.
    pub removed_release: String,
}

impl RemovedApi {
    /// Whether that minor, such as `1.37`, does not serve the API.
    pub fn is_gone_in(&self, minor: &str) -> bool {
        numbers(&self.removed_release).zip(numbers(minor)).is_some_and(|(removed, minor)| removed <= minor)
    }

    /// The API as text for people.
    pub fn text(&self) -> String {
        let of = if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) };
        format!("{} of {of} (removed in {})", self.resource, self.removed_release)
    }
}

fn numbers(minor: &str) -> Option<(u32, u32)> {
    let (major, minor) = minor.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// Metric of an API server about requested deprecated APIs.
const METRIC: &str = "apiserver_requested_deprecated_apis{";

/// Parses the metrics page of an API server.
pub fn removed_apis(page: &str) -> BTreeSet<RemovedApi> {
    let rows = page.lines().filter_map(|line| line.strip_prefix(METRIC)?.split_once('}'));
    let used = rows.filter(|(_, value)| value.trim().parse::<f64>().is_ok_and(|value| value > 0.0));
    let apis = used.map(|(labels, _)| {
        let label = |name: &str| {
            let rest = labels.split(',').find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
            rest.map(|value| value.trim_matches('"').to_owned()).unwrap_or_default()
        };
        RemovedApi {
            group: label("group"),
            version: label("version"),
            resource: label("resource"),
            removed_release: label("removed_release"),
        }
    });
    apis.filter(|api| numbers(&api.removed_release).is_some()).collect()
}

/// A ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quota {
    /// Name of the quota.
    pub name: String,
    /// Limits.
    pub hard: BTreeMap<String, String>,
    /// Usage.
    pub used: BTreeMap<String, String>,
}

impl Quota {
    /// The resource of which the quota has not enough left for one more pod with these requests.
    pub fn lacks(&self, requests: &BTreeMap<String, String>) -> Option<String> {
        self.hard.iter().find_map(|(what, hard)| {
            let more = match what.as_str() {
                "pods" | "count/pods" => Quantity::from(1_i64),
                "cpu" | "memory" => amount(requests.get(what)?)?,
                other => amount(requests.get(other.strip_prefix("requests.")?)?)?,
            };
            let used = self.used.get(what).and_then(|used| amount(used)).unwrap_or_else(|| Quantity::from(0_i64));
            let short = used.plus(&more) > amount(hard)?;
            short.then(|| {
                let used = self.used.get(what).map_or("0", String::as_str);
                format!(
                    "ResourceQuota {} has too little left for one more pod: {what}: {used} of {hard} used",
                    self.name
                )
            })
        })
    }
}

/// The quantity in a text, if it is one.
pub(super) fn amount(text: &str) -> Option<Quantity> {
    Quantity::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_apis_that_were_used_and_go_are_reported() {
        let page = "\
# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested
# TYPE apiserver_requested_deprecated_apis gauge
apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"endpoints\",subresource=\"\",version=\"v1\"} 1
apiserver_requested_deprecated_apis{group=\"flow.example\",removed_release=\"1.37\",resource=\"schemas\",subresource=\"\",version=\"v1beta1\"} 1
apiserver_requested_deprecated_apis{group=\"flow.example\",removed_release=\"1.40\",resource=\"others\",subresource=\"status\",version=\"v1beta2\"} 1
apiserver_requested_deprecated_apis{group=\"flow.example\",removed_release=\"1.37\",resource=\"nobody\",subresource=\"\",version=\"v1\"} 0
apiserver_request_total{verb=\"GET\"} 7
";
        let apis = removed_apis(page);
        assert_eq!(apis.len(), 2, "{apis:?}");
        let gone: Vec<_> = apis.iter().filter(|api| api.is_gone_in("1.37")).map(RemovedApi::text).collect();
        assert_eq!(gone, ["schemas of flow.example/v1beta1 (removed in 1.37)"]);
        assert!(apis.iter().all(|api| !api.is_gone_in("1.36") && api.is_gone_in("1.40")));
    }

    #[test]
    fn a_quota_lacks_what_one_more_pod_would_ask_for() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let requests = map(&[("cpu", "100m"), ("memory", "384Mi")]);
        let lacks = |hard: &[(&str, &str)], used: &[(&str, &str)]| {
            Quota { name: "q".to_owned(), hard: map(hard), used: map(used) }.lacks(&requests)
        };
        assert_eq!(lacks(&[("pods", "10")], &[("pods", "9")]), None);
        let why = lacks(&[("pods", "10")], &[("pods", "10")]).unwrap();
        assert!(why.contains("ResourceQuota q ") && why.contains("pods: 10 of 10"), "{why}");
        assert_eq!(lacks(&[("requests.cpu", "1")], &[("requests.cpu", "900m")]), None);
        assert!(lacks(&[("requests.cpu", "1")], &[("requests.cpu", "950m")]).is_some());
        assert!(lacks(&[("memory", "1Gi")], &[("memory", "700Mi")]).is_some());
        assert!(lacks(&[("cpu", "1e0")], &[("cpu", "900000001n")]).is_some());
        assert_eq!(lacks(&[("memory", "1Ei")], &[("memory", "700Mi")]), None);
        assert_eq!(lacks(&[("limits.cpu", "1"), ("configmaps", "1")], &[("configmaps", "1")]), None);
    }
}
