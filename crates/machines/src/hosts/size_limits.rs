//! Limits for answers of hosts, which are kept in memory and shown to people.

use fleetwright_wire::text::{last_bytes, truncate_bytes};
use fleetwright_wire::{
    CheckSeen, ComponentSeen, Deviation, Facts, Failure, Installed, MAX_TAIL, Observation, Owner, StepRecord,
};

/// Most components of a host; a machine may name 64.
const COMPONENTS: usize = 128;
/// Most records of an observation; no request asks for more.
const RECORDS: usize = 128;
/// Most deviations or checks of one component; more would not help a reader.
const ITEMS: usize = 256;
/// The longest single line.
const LINE: usize = 1024;

/// Cuts an observation to the size that an honest host would send.
pub(super) fn observation(mut seen: Observation) -> Observation {
    facts(&mut seen.facts);
    if let Some(mark) = &mut seen.owner {
        let Owner { cluster, namespace, name, uid } = &mut mark.owner;
        [cluster, namespace, name, uid].into_iter().for_each(line);
    }
    seen.components.truncate(COMPONENTS);
    seen.components.iter_mut().for_each(component);
    seen.records.truncate(RECORDS);
    seen.records.iter_mut().for_each(bound_record);
    // Frees the capacity that a lying host caused.
    seen.components.shrink_to_fit();
    seen.records.shrink_to_fit();
    seen
}

/// Cuts a record to the size that an honest host would send.
pub(super) fn record(mut record: StepRecord) -> StepRecord {
    bound_record(&mut record);
    record
}

/// Cuts a failure to the size that an honest host would send.
pub(super) fn failure(mut failure: Failure) -> Failure {
    tail(&mut failure.message);
    failure
}

/// Cuts a text to one line.
pub(super) fn line(text: &mut String) {
    if text.len() > LINE {
        *text = truncate_bytes(text, LINE);
    }
}

fn tail(text: &mut String) {
    if text.len() > MAX_TAIL {
        *text = format!("…{}", last_bytes(text, MAX_TAIL));
    }
}

fn bound_record(record: &mut StepRecord) {
    line(&mut record.id);
    record.component.iter_mut().for_each(line);
    record.digest.iter_mut().for_each(line);
    line(&mut record.boot_id);
    tail(&mut record.message);
    tail(&mut record.tail);
}

fn facts(facts: &mut Facts) {
    let Facts { hostname, os, kernel, arch, boot_id, machine_id, serials, cpus: _, memory: _, clock: _, free: _ } =
        facts;
    serials.truncate(ITEMS);
    serials.iter_mut().for_each(line);
    [hostname, os, kernel, arch, boot_id, machine_id].into_iter().for_each(line);
}

fn component(seen: &mut ComponentSeen) {
    line(&mut seen.component);
    seen.installed.iter_mut().for_each(installed);
    seen.previous.truncate(ITEMS);
    seen.previous.iter_mut().for_each(installed);
    seen.version.iter_mut().for_each(line);
    if seen.deviations.len() > ITEMS {
        // Deviations whose repair disrupts come first, so that the cut does not lose them.
        seen.deviations.sort_by_key(|deviation| !deviation.disrupts);
        seen.deviations.truncate(ITEMS);
    }
    for Deviation { what, found, wanted, disrupts: _ } in &mut seen.deviations {
        [what, found, wanted].into_iter().for_each(line);
    }
    seen.down.truncate(ITEMS);
    seen.down.iter_mut().for_each(line);
    seen.health.truncate(ITEMS);
    for CheckSeen { check, holds: _, message } in &mut seen.health {
        line(check);
        line(message);
    }
}

fn installed(installed: &mut Installed) {
    let Installed { reference, version, digest } = installed;
    [reference, version, digest].into_iter().for_each(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_says_without_end_is_kept_in_part() {
        let long = "ü".repeat(10 << 10);
        let deviation = Deviation { what: long.clone(), ..Deviation::default() };
        let component =
            ComponentSeen { component: "a".into(), deviations: vec![deviation; 5], ..ComponentSeen::default() };
        let facts = Facts { hostname: long.clone(), ..Facts::default() };
        let seen = observation(Observation { facts, components: vec![component; 200], ..Observation::default() });
        let size = serde_json::to_vec(&seen).unwrap().len();
        assert!(size < 4 << 20, "{size} bytes are kept");
        assert_eq!(seen.components.len(), COMPONENTS);
        let failed = failure(Failure { kind: fleetwright_wire::FailureKind::Other, message: format!("{long}the end") });
        assert!(failed.message.len() < MAX_TAIL + 8 && failed.message.ends_with("the end"));
    }
}
