//! What is asked of a control plane before it is changed, and what the answers say.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_syntax::Quantity;
use jiff::Timestamp;
use serde::Serialize;

/// What is to be found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyQuestion {
    /// For which change, at which pods: an answer counts for that only.
    pub of: String,
    /// The API servers: name and address.
    pub servers: Vec<(String, String)>,
}

/// What was found out.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// For which change, at which pods.
    pub of: String,
    /// When.
    pub at: Timestamp,
    /// The APIs that callers used since the API servers began and that a release removes; or why that is not known.
    pub apis: Result<BTreeSet<RemovedApi>, String>,
    /// The quotas of the namespace in the meta cluster; or why they are not known.
    pub quotas: Result<Vec<Quota>, String>,
    /// The Nodes of the cluster and the versions of their kubelets, as each says of itself; or why they are not known.
    pub kubelets: Result<BTreeMap<String, String>, String>,
}

/// An API that was used, and that a release removes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedApi {
    /// Its group; empty for the core.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Its resource, in the plural.
    pub resource: String,
    /// The first minor without it.
    pub removed_release: String,
}

impl RemovedApi {
    /// Whether that minor, such as `1.37`, does not have it any more.
    pub fn is_gone_in(&self, minor: &str) -> bool {
        numbers(&self.removed_release).zip(numbers(minor)).is_some_and(|(removed, minor)| removed <= minor)
    }

    /// As people write it.
    pub fn text(&self) -> String {
        let of = if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) };
        format!("{} of {of} (removed in {})", self.resource, self.removed_release)
    }
}

fn numbers(minor: &str) -> Option<(u32, u32)> {
    let (major, minor) = minor.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// The metric by which an API server tells which deprecated APIs were asked for.
const METRIC: &str = "apiserver_requested_deprecated_apis{";

/// Reads what an API server tells of itself for Prometheus.
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
    /// Its name.
    pub name: String,
    /// How much there may be.
    pub hard: BTreeMap<String, String>,
    /// How much there is.
    pub used: BTreeMap<String, String>,
}

impl Quota {
    /// What has no room for one more pod that asks for so much.
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

/// The amount that a text says, if it is a quantity.
pub(super) fn amount(text: &str) -> Option<Quantity> {
    Quantity::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_apis_that_were_used_and_go_are_told() {
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
