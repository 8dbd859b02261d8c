//! Hosts and packages for tests.

#![allow(dead_code)]

use std::collections::BTreeMap;

use fleetwright_host::{Host, Memory, System};
use fleetwright_wire::*;

/// A bare host in memory.
pub fn host() -> Host<Memory> {
    Host::new(Memory::new("host"))
}

/// A package with files, a unit and a check.
pub fn kubelet(version: &str) -> Package {
    let file = |path: &str, text: String, mode| File {
        path: path.to_owned(),
        mode,
        owner: "root".to_owned(),
        group: "root".to_owned(),
        content: Content::Text(text),
        secret: false,
        once: false,
    };
    Package {
        component: "kubelet".to_owned(),
        version: version.to_owned(),
        reference: format!("kubelet-{version}"),
        method: Method::Config,
        files: vec![
            file("/etc/kubernetes/kubelet.yaml", format!("version: {version}\n"), 0o640),
            file("/etc/kubernetes/notes", "for people\n".to_owned(), 0o644),
            file(&format!("/var/lib/kubelet/only-in-{version}/x"), String::new(), 0o600),
        ],
        units: vec![Unit {
            name: "kubelet.service".to_owned(),
            enabled: Some(true),
            running: Some(true),
            content: Some("[Service]\nExecStart=/usr/local/bin/kubelet\n".to_owned()),
            drop_ins: BTreeMap::from([("10-limits.conf".to_owned(), "[Service]\nLimitNOFILE=1000000\n".to_owned())]),
            restart_on: vec!["/etc/kubernetes/kubelet.yaml".to_owned()],
        }],
        health: Health {
            checks: vec![
                Check::Unit("kubelet.service".to_owned()),
                Check::Http("http://127.0.0.1:10248/healthz".to_owned()),
            ],
        },
        keep: 2,
        ..Package::default()
    }
}

/// The digest of that version's archive.
pub fn archive_digest(version: &str) -> String {
    fleetwright_host::text::sha256(version.as_bytes())
}

/// A package with an archive.
pub fn archive(version: &str) -> Package {
    Package {
        component: "tool".to_owned(),
        version: version.to_owned(),
        reference: format!("tool-{version}"),
        method: Method::Tarball(Tarball {
            source: Source {
                urls: ["one", "two"].map(|mirror| format!("http://{mirror}/tool-{version}.tar")).into(),
                inline: None,
                sha256: archive_digest(version),
            },
            strip: 1,
            links: BTreeMap::from([("/usr/local/bin/tool".to_owned(), "bin/tool".to_owned())]),
        }),
        keep: 2,
        ..Package::default()
    }
}

/// A package with sysctls.
pub fn settings(settings: &[(&str, &str)]) -> Package {
    Package {
        component: "settings".to_owned(),
        version: "1".to_owned(),
        reference: "settings-1".to_owned(),
        method: Method::Sysctl(
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ),
        ..Package::default()
    }
}

/// Sends a request, and returns the answer.
pub fn ask<S: System>(host: &mut Host<S>, request: Request) -> Answer {
    // Everything is encoded and decoded as on the wire.
    let request = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
    host.answer(request, &mut |_| ())
}

/// The Machine that owns the hosts of these tests.
pub fn owner(uid: &str) -> Owner {
    let [cluster, namespace, name, uid] = ["cluster-1", "fleet", "host", uid].map(str::to_owned);
    Owner { cluster, namespace, name, uid }
}

/// A claim with that fencing token.
pub fn claim(fence: u64) -> Claim {
    Claim { owner: owner("machine-1"), epoch: 0, fence }
}

/// A request to run a step.
pub fn request(id: &str, fence: u64, step: Step) -> Request {
    Request::Apply(Box::new(Apply { id: id.to_owned(), claim: claim(fence), step, within: 60, unproven: false }))
}

/// Runs a step, and returns its record.
pub fn apply<S: System>(host: &mut Host<S>, id: &str, step: Step) -> StepRecord {
    match ask(host, request(id, 1, step)) {
        Answer::Ended(record) => record,
        other => panic!("{other:?}"),
    }
}

/// The record of a step.
pub fn recall<S: System>(host: &mut Host<S>, id: &str) -> Option<StepRecord> {
    match ask(host, Request::Recall { id: id.to_owned() }) {
        Answer::Recalled(record) => record,
        other => panic!("{other:?}"),
    }
}

/// Asserts that a step succeeded.
#[track_caller]
pub fn done(record: &StepRecord) {
    assert_eq!(record.outcome, Outcome::Done, "{}", record.message);
}

/// Observes everything.
pub fn observe<S: System>(host: &mut Host<S>, packages: &[Package]) -> Observation {
    let observe = Observe { packages: packages.to_vec(), health: true, ..Observe::default() };
    match ask(host, Request::Observe(Box::new(observe))) {
        Answer::Observed(seen) => *seen,
        other => panic!("{other:?}"),
    }
}

/// The version of the first component.
pub fn version<S: System>(host: &mut Host<S>) -> Option<String> {
    observe(host, &[]).components.first()?.installed.as_ref().map(|installed| installed.version.clone())
}
