//! The server's metrics, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::in_flight::InFlightLimiter;
use crate::interceptor::Removal;
use crate::request::RequestInfo;
use crate::store::Store;

/// The labels of request counts. The text is copied when a row is new, not for every request.
#[derive(Clone, Debug)]
struct Labels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    code: u16,
}

#[derive(Clone, Debug)]
struct Row {
    labels: Labels,
    count: u64,
    took: Duration,
}

/// The counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Counts by verb and code; few resources share both, and are compared one by one.
    requests: Mutex<BTreeMap<(&'static str, u16), Vec<Row>>>,
    /// Running watches.
    pub(crate) watches: AtomicI64,
    /// Connections that were closed because of the limit.
    pub(crate) refused_connections: AtomicU64,
    /// Panics of controllers, by controller.
    panics: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    /// Counts a panic of a controller.
    pub(crate) fn panicked(&self, controller: &'static str) {
        *self.panics.lock().unwrap_or_else(PoisonError::into_inner).entry(controller).or_default() += 1;
    }

    /// Counts an answered request. Paths without a known resource share one row, so that a client cannot create rows.
    pub(crate) fn answered(&self, info: &RequestInfo, known: bool, code: u16, took: Duration) {
        let texts = [&info.group, &info.version, &info.resource, &info.subresource];
        let [group, version, resource, subresource] = texts.map(|text| if known { text.as_str() } else { "" });
        let fits = |row: &&mut Row| {
            let labels = &row.labels;
            labels.resource == resource
                && labels.group == group
                && labels.subresource == subresource
                && labels.version == version
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = requests.entry((info.verb, code)).or_default();
        if let Some(row) = rows.iter_mut().find(fits) {
            row.count += 1;
            row.took += took;
            return;
        }
        let labels = Labels {
            verb: info.verb,
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            code,
        };
        rows.push(Row { labels, count: 1, took });
    }

    /// The page for Prometheus.
    pub(crate) fn page(&self, store: &Store, in_flight_limiter: &InFlightLimiter, removals: &[Removal]) -> String {
        let mut out = String::new();
        let requests: Vec<Row> = {
            let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            requests.values().flatten().cloned().collect()
        };
        let mut section = |name: &str, kind: &str, help: &str, rows: Vec<(String, String)>| {
            let base = name.strip_suffix("_sum").or_else(|| name.strip_suffix("_count")).unwrap_or(name);
            if !out.contains(&format!("# TYPE {base} ")) {
                let _ = writeln!(out, "# HELP {base} {help}\n# TYPE {base} {kind}");
            }
            for (labels, value) in rows {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        let label = |l: &Labels, code: bool| {
            let code = if code { format!(",code=\"{}\"", l.code) } else { String::new() };
            format!(
                "{{verb=\"{}\",group=\"{}\",version=\"{}\",resource=\"{}\",subresource=\"{}\"{code}}}",
                l.verb.to_uppercase(),
                l.group,
                l.version,
                l.resource,
                l.subresource
            )
        };
        let mut gone: Vec<_> = requests.iter().filter_map(|row| deprecated(&row.labels, removals)).collect();
        gone.sort();
        gone.dedup();
        let rows = gone.into_iter().map(|labels| (labels, "1".to_owned())).collect();
        section("apiserver_requested_deprecated_apis", "gauge", "Deprecated APIs that were asked for.", rows);
        let rows = requests.iter().map(|row| (label(&row.labels, true), row.count.to_string())).collect();
        section("apiserver_request_total", "counter", "Requests answered, by verb, resource and code.", rows);
        let help = "Time spent on requests.";
        let mut times: BTreeMap<String, (u64, f64)> = BTreeMap::new();
        for row in &requests {
            let entry = times.entry(label(&row.labels, false)).or_default();
            entry.0 += row.count;
            entry.1 += row.took.as_secs_f64();
        }
        let rows = times.iter().map(|(l, (_, sum))| (l.clone(), sum.to_string())).collect();
        section("apiserver_request_duration_seconds_sum", "summary", help, rows);
        let rows = times.iter().map(|(l, (count, _))| (l.clone(), count.to_string())).collect();
        section("apiserver_request_duration_seconds_count", "summary", help, rows);
        let rows = vec![(String::new(), self.watches.load(Ordering::Relaxed).to_string())];
        section("apiserver_longrunning_requests", "gauge", "Watches that run now.", rows);
        let rows = in_flight_limiter
            .taken()
            .map(|(kind, taken)| (format!("{{request_kind=\"{kind}\"}}"), taken.to_string()))
            .into();
        section("apiserver_current_inflight_requests", "gauge", "Requests that are worked on now, by kind.", rows);
        let rows = vec![(String::new(), self.refused_connections.load(Ordering::Relaxed).to_string())];
        section(
            "apiserver_refused_connections_total",
            "counter",
            "Connections that were closed because there were too many.",
            rows,
        );
        let panics = self.panics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rows =
            panics.iter().map(|(name, count)| (format!("{{controller=\"{name}\"}}"), count.to_string())).collect();
        section("apiserver_controller_panics_total", "counter", "Panics of controllers, which then start again.", rows);
        let rows =
            store.resources().iter().map(|r| (format!("{{resource=\"{r}\"}}"), store.len(r).to_string())).collect();
        section("apiserver_storage_objects", "gauge", "Objects held, by resource.", rows);
        out
    }
}

/// The labels of a deprecated API that a release removes, if the request was for one.
fn deprecated(labels: &Labels, removals: &[Removal]) -> Option<String> {
    let Labels { group, version, resource, subresource, .. } = labels;
    let asked = |one: &&Removal| one.group == *group && one.version == *version && one.resource == *resource;
    let release = &removals.iter().find(asked)?.release;
    Some(format!(
        "{{group=\"{group}\",removed_release=\"{release}\",resource=\"{resource}\",subresource=\"{subresource}\",version=\"{version}\"}}"
    ))
}
