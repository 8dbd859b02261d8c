//! The pods that take and restore snapshots.
//!
//! Images of etcd have no shell, so each step is a container with one command: the operator's image takes a snapshot, `etcdutl` restores it, and a
//! scratch etcd runs with it beside the last container, which compares both, stores the snapshot, and reports it in its termination message. No
//! container has any right in the meta cluster.
//!
//! A restore works in the same way: a source pod restores the snapshot and runs an etcd with it, and a pod for each member takes a snapshot of the
//! source, wherever the member's volume is, and restores that.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ControlPlaneComponent, SnapshotStatus, names};
use serde_json::{Value, json};

use super::super::certificates::OPERATOR_ETCD;
use super::super::keys::SEALED_DATA;
use super::super::members::claim;
use super::super::objects::ETCD_PORT;
use super::super::restore::Restore;
use super::super::{Names, pods};
use super::cluster_keys::CLUSTER_KEYS;
use super::{DueSnapshot, SnapshotPodJob};

/// Name of the claim of the volume for snapshots.
pub const CLAIM: &str = "snapshots";
/// Name of the Secret with the credentials of the snapshot store, in the namespace of the control plane.
pub const STORE: &str = "snapshot-store";
/// Name of the Secret with the encryption keys of snapshots, in the namespace of the control plane.
pub const KEY: &str = "snapshot-key";
/// Annotation with the generation whose change a snapshot is for.
pub const GENERATION: &str = "fleetwright.io/generation";

/// Annotation with the version of etcd that the source of a restore runs.
pub const ETCD: &str = "fleetwright.io/etcd-version";

/// Annotation with another purpose of a snapshot.
pub const PURPOSE: &str = "fleetwright.io/purpose";

const WORK: &str = "/work";
const SNAPSHOTS: &str = "/snapshots";
const DATA: &str = "/var/lib/etcd";
const CERTIFICATES: &str = "/etc/kubernetes/operator-etcd-client";
const SERVER: &str = "etcd-server-tls";
const KEYS: &str = "/etc/fleetwright/store";
const KEY_FOLDER: &str = "/etc/fleetwright/snapshot-key";
const CLUSTER_KEYS_FOLDER: &str = "/etc/fleetwright/cluster-keys";
/// Address of the scratch etcd, reachable only within its pod.
const SCRATCH: &str = "http://127.0.0.1:12379";
const SCRATCH_PEER: &str = "http://127.0.0.1:12380";
const SCRATCH_METRICS: u16 = 12381;
/// Number by which a restore increases the revision. Clients with a revision from before the restore get "compacted", and not a revision that goes
/// back.
const BUMP: &str = "1000000000";

/// Inputs from which the pods are built.
#[derive(Clone, Copy, Debug)]
pub struct PodInputs<'a> {
    /// Names and namespace of the cluster's objects.
    pub names: &'a Names,
    /// Spec of the cluster.
    pub spec: &'a ClusterSpec,
    /// Package version of etcd.
    pub package: &'a ClusterPackageVersionSpec,
    /// Image of the operator.
    pub image: &'a str,
    /// Number of members of etcd.
    pub members: u32,
    /// The last snapshot of the cluster.
    pub last: Option<&'a SnapshotStatus>,
}

impl PodInputs<'_> {
    /// The pod that takes a snapshot.
    pub fn snapshot(&self, wanted: &DueSnapshot) -> Value {
        let keep = self.spec.snapshots.as_ref().map_or(28, |policy| policy.keep);
        let mut keeps = words(&["snapshot", "keep"]);
        keeps.extend([format!("--name={}", wanted.name), format!("--scratch={SCRATCH}"), format!("--keep={keep}")]);
        let own = self.spec.restore.iter().filter(|restore| restore.cluster.is_none());
        keeps.extend(own.map(|restore| format!("--spare={}", restore.snapshot)));
        keeps.extend(self.etcd());
        keeps.extend(self.place(&self.names.name));
        keeps.push(format!("--cluster-keys={CLUSTER_KEYS_FOLDER}/{SEALED_DATA}"));
        let mut takes = words(&["snapshot", "take"]);
        takes.extend(self.etcd());
        let mut scratch = self.scratch(SCRATCH, SCRATCH);
        scratch["restartPolicy"] = json!("Always");
        scratch["startupProbe"] = begun();
        let steps = [
            self.ours("take", takes, &["work", OPERATOR_ETCD]),
            self.unpack(),
            scratch,
            self.ours("keep", keeps, &["work", OPERATOR_ETCD, KEY, CLUSTER_KEYS, self.kept()]),
        ];
        let mut annotations = BTreeMap::new();
        annotations.extend(wanted.asked.iter().map(|asked| (names::SNAPSHOT, asked.clone())));
        annotations.extend(wanted.generation.map(|number| (GENERATION, number.to_string())));
        annotations.extend(wanted.purpose.iter().map(|purpose| (PURPOSE, purpose.clone())));
        self.pod(SnapshotPodJob::Snapshot, &wanted.pod(), annotations, steps.into(), None)
    }

    /// The pod that serves a snapshot as an etcd, for the pods of members.
    pub fn source(&self, restore: &Restore) -> Value {
        let mut fetches = words(&["snapshot", "fetch"]);
        fetches.extend([format!("--name={}", restore.snapshot), format!("--work={WORK}")]);
        fetches.extend(self.place(restore.cluster.as_deref().unwrap_or(&self.names.name)));
        let allowed = self.spec.restore.as_ref().is_some_and(|restore| restore.allow_unencrypted);
        // A snapshot that was encrypted when it was taken, and is not any more, was replaced in the store.
        let encrypted = self.last.is_some_and(|last| last.name == restore.snapshot && last.key_id.is_some());
        if allowed && restore.cluster.is_none() && !encrypted {
            fetches.push("--allow-unencrypted".to_owned());
        }
        let file = |key: &str| format!("/etc/kubernetes/{SERVER}/{key}");
        let at = format!("https://{}:{ETCD_PORT}", self.names.etcd());
        let mut serves = self.scratch(&format!("https://0.0.0.0:{ETCD_PORT}"), &at);
        if let Some(arguments) = serves["args"].as_array_mut() {
            arguments.extend([
                json!("--client-cert-auth=true"),
                json!(format!("--cert-file={}", file("tls.crt"))),
                json!(format!("--key-file={}", file("tls.key"))),
                json!(format!("--trusted-ca-file={}", file("ca.crt"))),
            ]);
        }
        serves["volumeMounts"] = json!([mount("work"), mount(SERVER)]);
        serves["readinessProbe"] = begun();
        let steps = [self.ours("fetch", fetches, &["work", KEY, self.kept()]), self.unpack(), serves];
        let annotations = [(ETCD, self.package.version_of(ControlPlaneComponent::Etcd).to_owned())];
        self.pod(SnapshotPodJob::Source, &restore.source(), annotations.into(), steps.into(), None)
    }

    /// The pod that restores the data of the source at that address for one member.
    pub fn member(&self, restore: &Restore, number: u32, source: &str) -> Value {
        let member = format!("etcd-{number}");
        let host = if source.contains(':') { format!("[{source}]") } else { source.to_owned() };
        let folder = format!("{DATA}/restored-{}", restore.id);
        let mut takes = words(&["snapshot", "take"]);
        takes.extend([
            format!("--work={WORK}"),
            format!("--endpoints=https://{host}:{ETCD_PORT}"),
            format!("--server-name={}", self.names.etcd()),
            format!("--certificates={CERTIFICATES}"),
            // Data that a previous attempt left behind.
            format!("--clear={folder}"),
        ]);
        let mut restores = words(&["snapshot", "restore", "/work/db"]);
        restores.extend([
            format!("--data-dir={folder}"),
            format!("--name={member}"),
            format!("--initial-cluster={}", self.names.etcd_peers(self.members)),
            format!("--initial-cluster-token={}-{}", self.names.namespace, restore.id),
            format!("--initial-advertise-peer-urls=https://{}:2380", self.names.etcd_member(number)),
            format!("--bump-revision={BUMP}"),
            "--mark-compacted".to_owned(),
        ]);
        let mut places = words(&["snapshot", "place"]);
        places.extend([format!("--data={DATA}"), format!("--id={}", restore.id)]);
        let mut unpack = self.theirs("restore", "etcdutl", restores);
        unpack["volumeMounts"] = json!([mount("work"), mount("data")]);
        let steps =
            [self.ours("take", takes, &["work", OPERATOR_ETCD, "data"]), unpack, self.ours("place", places, &["data"])];
        self.pod(SnapshotPodJob::Member, &restore.member(number), BTreeMap::new(), steps.into(), Some((&member, None)))
    }

    /// The pod that removes the old data of a member, on the node where the member runs.
    pub fn clean(&self, restore: &Restore, number: u32, node: &str) -> Value {
        let mut cleans = words(&["snapshot", "clean"]);
        cleans.push(format!("--data={DATA}"));
        let steps = vec![self.ours("clean", cleans, &["data"])];
        let member = format!("etcd-{number}");
        self.pod(SnapshotPodJob::Clean, &restore.clean(number), BTreeMap::new(), steps, Some((&member, Some(node))))
    }

    /// The claim of the volume for snapshots, if the store is a volume.
    pub fn claim(&self) -> Option<Value> {
        let policy = self.spec.snapshots.clone().unwrap_or_default();
        if policy.s3.is_some() {
            return None;
        }
        let volume = policy.volume.unwrap_or_default();
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": CLAIM, "namespace": self.names.namespace, "labels": self.names.labels() },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": volume.size } },
            },
        });
        if let Some(class) = volume.class {
            claim["spec"]["storageClassName"] = json!(class);
        }
        Some(claim)
    }

    /// Arguments with the address and credentials of etcd.
    fn etcd(&self) -> Vec<String> {
        vec![
            format!("--work={WORK}"),
            format!("--endpoints={}", self.names.etcd_clients(self.members).join(",")),
            format!("--certificates={CERTIFICATES}"),
        ]
    }

    /// Volume with the snapshots, or with the credentials of their store.
    fn kept(&self) -> &'static str {
        if self.claim().is_some() { CLAIM } else { STORE }
    }

    /// Arguments with the store of a Cluster's snapshots and their encryption keys.
    ///
    /// Names in a bucket always start with `NAMESPACE/NAME/` of that Cluster: a person who may write a Cluster chooses only what follows. In front of it,
    /// a prefix could be the directory of another Cluster, which would then list the snapshots of this one.
    fn place(&self, cluster: &str) -> Vec<String> {
        let mut arguments =
            vec![format!("--cluster={}/{cluster}", self.names.fleet), format!("--encryption-keys={KEY_FOLDER}")];
        let policy = self.spec.snapshots.clone().unwrap_or_default();
        let Some(bucket) = policy.s3 else {
            arguments.push(format!("--volume={SNAPSHOTS}"));
            return arguments;
        };
        let prefix = format!("{}/{cluster}/{}", self.names.fleet, bucket.prefix.unwrap_or_default());
        arguments.extend([
            format!("--s3-endpoint={}", bucket.endpoint),
            format!("--s3-bucket={}", bucket.bucket),
            format!("--s3-region={}", bucket.region),
            format!("--s3-prefix={prefix}"),
            format!("--s3-keys={KEYS}"),
        ]);
        if bucket.insecure {
            arguments.push("--s3-insecure".to_owned());
        }
        arguments
    }

    /// Container that creates a data directory on which an etcd can run.
    fn unpack(&self) -> Value {
        let mut arguments = words(&["snapshot", "restore", "/work/db", "--data-dir=/work/scratch", "--name=scratch"]);
        arguments.extend([
            format!("--initial-cluster=scratch={SCRATCH_PEER}"),
            format!("--initial-advertise-peer-urls={SCRATCH_PEER}"),
        ]);
        self.theirs("restore", "etcdutl", arguments)
    }

    fn scratch(&self, listen: &str, at: &str) -> Value {
        let mut arguments = words(&["--name=scratch", "--data-dir=/work/scratch"]);
        arguments.extend([
            format!("--listen-client-urls={listen}"),
            format!("--advertise-client-urls={at}"),
            format!("--listen-peer-urls={SCRATCH_PEER}"),
            format!("--listen-metrics-urls=http://0.0.0.0:{SCRATCH_METRICS}"),
        ]);
        self.theirs("scratch", "etcd", arguments)
    }

    /// A container with the operator's own image.
    fn ours(&self, name: &str, arguments: Vec<String>, volumes: &[&str]) -> Value {
        let mut container = container(name, self.image, arguments);
        container["volumeMounts"] = volumes.iter().map(|volume| mount(volume)).collect();
        container
    }

    /// A container with etcd's image.
    fn theirs(&self, name: &str, command: &str, arguments: Vec<String>) -> Value {
        let mut container = container(name, &self.package.components.etcd.image, arguments);
        container["command"] = json!([command]);
        container["volumeMounts"] = json!([mount("work")]);
        container
    }

    /// A pod with these containers; with the volume of a member, and on its node, if they are given.
    fn pod(
        &self,
        job: SnapshotPodJob,
        name: &str,
        annotations: BTreeMap<&str, String>,
        mut steps: Vec<Value>,
        on: Option<(&str, Option<&str>)>,
    ) -> Value {
        let mut labels = self.names.labels();
        labels.insert(names::COMPONENT.to_owned(), job.as_str().to_owned());
        let mounted: BTreeSet<String> = steps
            .iter()
            .flat_map(|step| step["volumeMounts"].as_array().into_iter().flatten())
            .filter_map(|mount| mount["name"].as_str().map(str::to_owned))
            .collect();
        let volume = |name: &String| match name.as_str() {
            "work" => json!({ "name": name, "emptyDir": {} }),
            CLAIM => json!({ "name": name, "persistentVolumeClaim": { "claimName": CLAIM } }),
            "data" => {
                let member = on.map(|(member, _)| claim(member)).unwrap_or_default();
                json!({ "name": name, "persistentVolumeClaim": { "claimName": member } })
            }
            // The Secret does not exist while the sealed copy of the keys cannot be opened: a snapshot without the keys is better than none.
            CLUSTER_KEYS => json!({
                "name": name, "secret": { "secretName": name, "defaultMode": 0o440, "optional": true },
            }),
            secret => json!({ "name": secret, "secret": { "secretName": secret, "defaultMode": 0o440 } }),
        };
        let volumes: Vec<Value> = mounted.iter().map(volume).collect();
        let last = steps.pop();
        let mut spec = json!({
            "restartPolicy": "Never",
            "activeDeadlineSeconds": super::SNAPSHOT_TIMEOUT.as_secs(),
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 5,
            "securityContext": pods::confined(),
            "initContainers": steps,
            "containers": [last],
            "volumes": volumes,
        });
        if let Some((_, Some(node))) = on {
            // The volume may be attached to one node only, and already is.
            spec["nodeName"] = json!(node);
        }
        pods::place(&mut spec, &self.spec.placement);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.names.namespace, "labels": labels, "annotations": annotations,
            },
            "spec": spec,
        })
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn mount(volume: &str) -> Value {
    let path = match volume {
        "work" => WORK.to_owned(),
        "data" => DATA.to_owned(),
        CLAIM => SNAPSHOTS.to_owned(),
        STORE => KEYS.to_owned(),
        KEY => KEY_FOLDER.to_owned(),
        CLUSTER_KEYS => CLUSTER_KEYS_FOLDER.to_owned(),
        secret => format!("/etc/kubernetes/{secret}"),
    };
    let mut mount = json!({ "name": volume, "mountPath": path });
    if !["work", "data", CLAIM].contains(&volume) {
        mount["readOnly"] = json!(true);
    }
    mount
}

fn begun() -> Value {
    json!({
        "httpGet": { "path": "/readyz", "port": SCRATCH_METRICS, "scheme": "HTTP" },
        "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 300, "successThreshold": 1,
    })
}

fn container(name: &str, image: &str, arguments: Vec<String>) -> Value {
    json!({
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "args": arguments,
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" } },
        "securityContext": pods::bound(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}
