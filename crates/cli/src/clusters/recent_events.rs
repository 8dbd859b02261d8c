//! Recent events of a cluster from operators and the meta cluster.

use fleetwright_api::Cluster;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use kube::api::ListParams;

use crate::cluster::Cluster as Meta;
use crate::terminal_text::{ago, cut, line, table};

/// The number of events shown.
const MAX_COUNT: usize = 10;

/// The last events about the cluster, and the warnings about its parts; oldest first.
///
/// # Errors
/// The events cannot be read.
pub(super) async fn news(meta: &Meta, cluster: &Cluster) -> anyhow::Result<Vec<Event>> {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let about = format!("involvedObject.kind=Cluster,involvedObject.name={name}");
    let mut found = crate::why::all::<Event>(meta, &namespace, ListParams::default().fields(&about)).await?;
    // An earlier Cluster of the same name has events of its own.
    let uid = cluster.uid();
    found.retain(|event| event.involved_object.uid.is_none() || event.involved_object.uid == uid);
    if let Some(own) = cluster.status.as_ref().and_then(|status| status.namespace.as_deref()) {
        found.extend(crate::why::all::<Event>(meta, own, ListParams::default().fields("type=Warning")).await?);
    }
    found.sort_by_key(at);
    let skipped = found.len().saturating_sub(MAX_COUNT);
    Ok(found.split_off(skipped))
}

/// The time of the last occurrence.
fn at(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    series.or(last).or(event.event_time.as_ref().map(|time| time.0)).or(event.creation_timestamp().map(|time| time.0))
}

/// The events as a table; empty if there are none.
pub(super) fn shown(events: &[Event], now: Timestamp) -> String {
    let row = |event: &Event| {
        let about = &event.involved_object;
        let of = |text: &Option<String>| line(text.as_deref().unwrap_or("-"));
        vec![
            format!("  {}", at(event).map_or("-".to_owned(), |at| ago(at, now))),
            of(&event.type_),
            of(&event.reason),
            format!("{}/{}", of(&about.kind).to_lowercase(), of(&about.name)),
            cut(&of(&event.message), 240),
        ]
    };
    table(&events.iter().map(row).collect::<Vec<_>>())
}
