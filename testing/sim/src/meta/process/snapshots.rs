//! The steps of snapshot pods: they snapshot the real content of the simulated etcd, and restore it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_apiserver::Storage;
use serde_json::json;

use super::super::volumes::Volume;
use super::etcd::cluster::{Restored, minor};
use super::etcd::{Data, host, members};
use super::{ContainerRuntime, Exit, StartRequest, VersionDefect};

/// The files of a volume or a bucket, by name.
#[derive(Debug, Default)]
pub(super) struct FileStore(Mutex<BTreeMap<String, Arc<[u8]>>>);

impl FileStore {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The content of object stores, by their location.
#[derive(Default)]
pub(in super::super) struct Buckets(Mutex<HashMap<String, Arc<FileStore>>>);

impl Buckets {
    fn at(&self, place: String) -> Arc<FileStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(place).or_default().clone()
    }
}

/// A file on the volume for snapshots.
pub(in super::super) fn kept_file(volume: &Volume, file: &str) -> Option<Vec<u8>> {
    volume.read::<FileStore>()?.all().get(file).map(|bytes| bytes.to_vec())
}

/// A step of fleetwright's own program.
pub(super) fn step(runtime: &ContainerRuntime, start: &StartRequest) -> Exit {
    let done = match start.args.words().get(1) {
        Some(&"take") => take(runtime, start),
        Some(&"keep") => keep(runtime, start),
        Some(&"fetch") => fetch(runtime, start),
        Some(&"place") => put_in_place(start),
        Some(&"clean") => Ok(String::new()),
        other => Err(format!("unrecognized subcommand {other:?}")),
    };
    match done {
        Ok(message) => Exit { code: 0, message },
        Err(why) => Exit::failed(format!("error: {why}")),
    }
}

fn flag<'a>(start: &'a StartRequest, name: &str) -> Result<&'a str, String> {
    start.args.get(name).ok_or_else(|| format!("--{name} is not given"))
}

fn volume_files(start: &StartRequest, folder: &str) -> Result<Arc<FileStore>, String> {
    let volume = start.files.volume(folder).ok_or_else(|| format!("{folder}: read-only file system"))?;
    Ok(volume.ensure::<FileStore>())
}

fn take(runtime: &ContainerRuntime, start: &StartRequest) -> Result<String, String> {
    if let Some(folder) = start.args.get("clear") {
        let volume = start.files.volume(folder).ok_or_else(|| format!("{folder}: read-only file system"))?;
        volume.ensure::<Restored>().take(folder);
    }
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        let path = format!("{}/{name}", flag(start, "certificates")?);
        start.files.read(&path).ok_or_else(|| format!("{path}: no such file or directory"))?;
    }
    let found = flag(start, "endpoints")?.split(',').find_map(|url| {
        let ips = runtime.names.resolve(host(url));
        ips.into_iter().find_map(|ip| runtime.etcds.at(ip).filter(|etcd| etcd.cluster.leader().is_some()))
    });
    let etcd = found.ok_or("cannot take a snapshot from any etcd member: connect: connection refused")?;
    let mut bytes = etcd.cluster.storage().snapshot();
    if start.bad == Some(VersionDefect::WrongAnswers) {
        bytes.truncate(bytes.len() / 2);
    }
    let work = volume_files(start, flag(start, "work")?)?;
    let (major, minor) = etcd.cluster.data();
    let version = format!("{major}.{minor}.0");
    let taken = json!({ "at": runtime.clock.now(), "revision": etcd.cluster.storage().revision(), "etcd": version });
    work.all().insert("etcd".to_owned(), version.into_bytes().into());
    work.all().insert("taken".to_owned(), taken.to_string().into_bytes().into());
    work.all().insert("db".to_owned(), bytes.into());
    Ok(String::new())
}

/// `etcdutl snapshot restore FILE`.
pub(super) fn etcdutl(runtime: &ContainerRuntime, start: &StartRequest) -> Exit {
    match restore(runtime, start) {
        Ok(()) => Exit { code: 0, message: String::new() },
        Err(why) => Exit::failed(format!("Error: {why}")),
    }
}

fn restore(runtime: &ContainerRuntime, start: &StartRequest) -> Result<(), String> {
    let words = start.args.words();
    let [_, "snapshot", "restore", file] = words[..] else { return Err(format!("unknown command {words:?}")) };
    let (folder, name) = file.rsplit_once('/').ok_or("open: no such file or directory")?;
    let missing = || format!("open {file}: no such file or directory");
    let work = volume_files(start, folder)?;
    let bytes = work.all().get(name).cloned().ok_or_else(missing)?;
    // A snapshot of any minor: etcd itself refuses one that is too new, when it starts.
    let version = work.all().get("etcd").cloned();
    let data = version.map(|version| minor(&String::from_utf8_lossy(&version))).unwrap_or_default();
    let storage = Storage::restore(&bytes, runtime.history.clone())
        .map_err(|why| format!("snapshot file integrity check failed: {why}"))?;
    let (to, name) = (flag(start, "data-dir")?, flag(start, "name")?);
    let volume = start.files.volume(to).ok_or_else(|| format!("mkdir {to}: read-only file system"))?;
    let members = members(flag(start, "initial-cluster")?);
    let own = members.iter().find(|(member, _)| member == name).ok_or("couldn't find local name")?.1.clone();
    let token = start.args.get("initial-cluster-token").map_or_else(|| start.pod.to_string(), str::to_owned);
    // Members that are restored with the same token form one cluster.
    let words = format!("restored {} {token} {members:?}", start.pod.namespace);
    let cluster = runtime.etcds.begin(&words, &members, &runtime.random, data, || storage);
    let member = cluster.claim_member(&own).map_err(|why| format!("{why:?}"))?;
    match volume.ensure::<Restored>().put(to, Data { cluster, member }) {
        true => Ok(()),
        false => Err(format!("data-dir {to:?} not empty or could not be read")),
    }
}

fn keep(runtime: &ContainerRuntime, start: &StartRequest) -> Result<String, String> {
    let work = flag(start, "work")?;
    let files = volume_files(start, work)?;
    let file = |name: &str| files.all().get(name).cloned().ok_or_else(|| format!("cannot read {work}/{name}"));
    let (db, taken) = (file("db")?, file("taken")?);
    let taken: serde_json::Value = serde_json::from_slice(&taken).map_err(|error| error.to_string())?;
    let scratch = start.files.volume(work).and_then(|volume| volume.read::<Restored>());
    let scratch = scratch.and_then(|restored| restored.get(&format!("{work}/scratch")));
    let scratch = scratch.ok_or("timed out waiting for the scratch etcd: connect: connection refused")?;
    scratch.cluster.leader().ok_or("timed out waiting for the scratch etcd: no leader")?;
    let (keys, _) = scratch.cluster.storage().size();
    let place = bucket(runtime, start)?;
    let name = flag(start, "name")?;
    let key_id = known_keys(start)?.swap_remove(0);
    let sealed = json!({
        "at": taken["at"], "revision": taken["revision"], "etcd": taken["etcd"], "keyId": key_id,
        "of": flag(start, "cluster")?,
    });
    let cluster_keys = start.args.get("cluster-keys").and_then(|path| start.files.read(path));
    let kept: Vec<String> = {
        let mut all = place.all();
        if let Some(cluster_keys) = cluster_keys {
            all.insert(format!("{name}.keys"), cluster_keys.into());
        }
        all.insert(format!("{name}.db"), db.clone());
        all.insert(format!("{name}.json"), sealed.to_string().into_bytes().into());
        let mut names: Vec<String> =
            all.keys().filter_map(|key| key.strip_suffix(".json")).rev().map(str::to_owned).collect();
        let keep = flag(start, "keep")?.parse().unwrap_or(1);
        for old in names.split_off(names.len().min(keep)) {
            all.remove(&format!("{old}.db"));
            all.remove(&format!("{old}.json"));
            all.remove(&format!("{old}.keys"));
        }
        names
    };
    let report = json!({
        "name": name, "at": taken["at"], "bytes": db.len(), "revision": taken["revision"], "keys": keys, "kept": kept,
        "key_id": key_id, "etcd": taken["etcd"],
    });
    Ok(report.to_string())
}

fn fetch(runtime: &ContainerRuntime, start: &StartRequest) -> Result<String, String> {
    let (name, place) = (flag(start, "name")?, bucket(runtime, start)?);
    let file = |end: &str| place.all().get(&format!("{name}{end}")).cloned();
    let (db, taken) = file(".db").zip(file(".json")).ok_or_else(|| {
        let all: Vec<String> =
            place.all().keys().filter_map(|key| key.strip_suffix(".json")).map(str::to_owned).collect();
        format!("snapshot {name} not found; available: {}", all.join(", "))
    })?;
    let taken: serde_json::Value = serde_json::from_slice(&taken).map_err(|error| error.to_string())?;
    let known = known_keys(start)?;
    match taken["keyId"].as_str() {
        Some(id) if !known.iter().any(|known| known == id) => {
            return Err(format!("snapshot {name} rejected: encrypted with key {id}"));
        }
        Some(_) if taken["of"].as_str() != Some(flag(start, "cluster")?) => {
            return Err(format!("snapshot {name} rejected: it has the Cluster {}", taken["of"]));
        }
        None if start.args.get("allow-unencrypted").is_none() => {
            return Err(format!("snapshot {name} is not encrypted"));
        }
        _ => {}
    }
    let report = json!({
        "name": name, "at": taken["at"], "bytes": db.len(), "revision": taken["revision"], "keys": 0,
        "etcd": taken["etcd"],
    });
    let work = volume_files(start, flag(start, "work")?)?;
    work.all().insert("db".to_owned(), db);
    let version = taken["etcd"].as_str().unwrap_or_default();
    work.all().insert("etcd".to_owned(), version.as_bytes().into());
    Ok(report.to_string())
}

fn put_in_place(start: &StartRequest) -> Result<String, String> {
    let (folder, id) = (flag(start, "data")?, flag(start, "id")?);
    let volume = start.files.volume(folder).ok_or_else(|| format!("{folder}: read-only file system"))?;
    let restored = volume.ensure::<Restored>().take(&format!("{folder}/restored-{id}"));
    volume.write(restored.ok_or_else(|| format!("no restored data in {folder}/restored-{id}"))?);
    Ok(String::new())
}

/// The ids of the container's keys, the encrypting one first.
fn known_keys(start: &StartRequest) -> Result<Vec<String>, String> {
    let folder = flag(start, "encryption-keys")?;
    let read = |name: &str| start.files.read(&format!("{folder}/{name}"));
    let key = read("key").ok_or("the Secret with the snapshot key has no key")?;
    if key.len() != 32 {
        return Err(format!("key of the Secret with the snapshot key has {} bytes", key.len()));
    }
    let id = |bytes: &[u8]| bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let all = [Some(key), read("previous"), read("other")];
    Ok(all.into_iter().flatten().map(|bytes| format!("{:016x}", id(&bytes))).collect())
}

/// The bucket for the snapshots.
fn bucket(runtime: &ContainerRuntime, start: &StartRequest) -> Result<Arc<FileStore>, String> {
    if let Some(folder) = start.args.get("volume") {
        return volume_files(start, folder);
    }
    let keys = flag(start, "s3-keys")?;
    for name in ["accessKeyId", "secretAccessKey"] {
        start
            .files
            .read(&format!("{keys}/{name}"))
            .ok_or_else(|| format!("the Secret of the S3 store has no key {name}"))?;
    }
    let parts = [flag(start, "s3-endpoint")?, flag(start, "s3-bucket")?, flag(start, "s3-prefix")?];
    Ok(runtime.buckets.at(parts.join(" ")))
}
