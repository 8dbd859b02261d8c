//! The files below the mounts of containers: Secrets and ConfigMaps as files, claims as volumes.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use fleetwright_kit::{Cache, Key};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Container, KeyToPath, PodSpec, Secret};
use kube::{Api, Client};

use super::super::view::{ClaimView, ConfigMapVersion, MAP, PodView, SECRET, SecretVersion};
use super::super::volumes::{Volume, Volumes};

/// The keys of a Secret or ConfigMap with their values.
pub(in super::super) type Data = BTreeMap<String, Vec<u8>>;

/// The content of a pod's volume.
#[derive(Clone, Debug)]
enum Content {
    Keys {
        data: Arc<Data>,
        /// The path of each key; none for all keys under their own names.
        items: Option<Vec<(String, String)>>,
    },
    Disk(Volume),
}

/// The contents of a pod's volumes by name. A projected volume has several parts.
pub(super) type Contents = HashMap<String, Vec<ContentPart>>;

/// One part of a volume's content.
#[derive(Clone, Debug)]
pub(super) struct ContentPart(Content);

#[derive(Debug)]
struct Mount {
    path: String,
    sub_path: Option<String>,
    content: Content,
}

/// The files below a container's mounts.
#[derive(Debug, Default)]
pub(in super::super) struct Files(RwLock<Vec<Mount>>);

impl Files {
    /// The content of a file.
    pub(in super::super) fn read(&self, path: &str) -> Option<Vec<u8>> {
        let mounts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        mounts.iter().find_map(|mount| {
            let Content::Keys { data, items } = &mount.content else { return None };
            let rest = path.strip_prefix(&*mount.path)?;
            let within = match &mount.sub_path {
                Some(sub) if rest.is_empty() => sub,
                Some(_) => return None,
                None => rest.strip_prefix('/')?,
            };
            match items {
                None => data.get(within).cloned(),
                Some(items) => items.iter().find(|(_, at)| at == within).and_then(|(key, _)| data.get(key).cloned()),
            }
        })
    }

    /// The content of a text file.
    pub(in super::super) fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.read(path)?).ok()
    }

    /// The volume that a path lies on.
    pub(in super::super) fn volume(&self, path: &str) -> Option<Volume> {
        let mounts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let on = |mount: &&Mount| {
            path.strip_prefix(&*mount.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let nearest = mounts.iter().filter(on).max_by_key(|mount| mount.path.len())?;
        match &nearest.content {
            Content::Disk(volume) => Some(volume.clone()),
            Content::Keys { .. } => None,
        }
    }

    /// Replaces the mounts of a container.
    pub(super) fn mount(&self, container: &Container, contents: &Contents) {
        let mut mounts = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            for ContentPart(content) in contents.get(&mount.name).into_iter().flatten() {
                mounts.push(Mount {
                    path: mount.mount_path.trim_end_matches('/').to_owned(),
                    sub_path: mount.sub_path.clone().filter(|path| !path.is_empty()),
                    content: content.clone(),
                });
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = mounts;
    }
}

/// The message about an object that a pod mounts and that does not exist.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missing(pub(super) String);

/// The version that was read last, while a pod still uses it.
type Known = (Box<str>, Weak<Data>);

/// Reads the objects that pods mount.
pub(in super::super) struct Sources {
    pub(in super::super) client: Client,
    pub(in super::super) secrets: Cache<SecretVersion>,
    pub(in super::super) maps: Cache<ConfigMapVersion>,
    pub(in super::super) claims: Cache<ClaimView>,
    pub(in super::super) volumes: Volumes,
    /// The data that was read last, while a pod uses it: replicas share one copy.
    pub(in super::super) known: Mutex<HashMap<String, Known>>,
}

impl Sources {
    /// The hash of the versions of the Secrets and ConfigMaps that a pod mounts.
    pub(super) fn stamp(&self, key: &Key, pod: &PodView) -> u64 {
        let mut hasher = DefaultHasher::new();
        for mount in &pod.mounts {
            let Some((kind, name)) = mount.split_once('/') else { continue };
            let key = Key::new(&key.namespace, name);
            self.version(kind, &key).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn version(&self, kind: &str, key: &Key) -> Option<Box<str>> {
        match kind {
            SECRET => self.secrets.get(key).map(|there| there.version.clone()),
            MAP => self.maps.get(key).map(|there| there.version.clone()),
            // Changes on a volume are visible without a new mount.
            _ => None,
        }
    }

    /// The contents of the pod's volumes. `dirs` are its ephemeral volumes, which are deleted with it.
    pub(super) async fn gather(
        &self,
        namespace: &str,
        spec: &PodSpec,
        dirs: &HashMap<String, Volume>,
    ) -> Result<Result<Contents, Missing>, kube::Error> {
        let mut contents = Contents::new();
        for volume in spec.volumes.iter().flatten() {
            let mut wanted = Vec::new();
            if let Some(source) = &volume.secret {
                let name = source.secret_name.clone().unwrap_or_default();
                wanted.push((SECRET, name, source.optional, items(source.items.as_deref())));
            }
            if let Some(source) = &volume.config_map {
                wanted.push((MAP, source.name.clone(), source.optional, items(source.items.as_deref())));
            }
            for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
                if let Some(source) = &source.secret {
                    wanted.push((SECRET, source.name.clone(), source.optional, items(source.items.as_deref())));
                }
                if let Some(source) = &source.config_map {
                    wanted.push((MAP, source.name.clone(), source.optional, items(source.items.as_deref())));
                }
            }
            let parts = contents.entry(volume.name.clone()).or_default();
            for (kind, name, optional, items) in wanted {
                let optional = optional == Some(true);
                let Some(data) = self.data(kind, &Key::new(namespace, &name)).await? else {
                    if optional {
                        continue;
                    }
                    return Ok(Err(Missing(format!(
                        "MountVolume.SetUp failed for volume {:?} : {kind} {name:?} not found",
                        volume.name
                    ))));
                };
                let absent = items.iter().flatten().find(|(key, _)| !data.contains_key(key));
                if let Some((key, _)) = absent.filter(|_| !optional) {
                    return Ok(Err(Missing(format!(
                        "MountVolume.SetUp failed for volume {:?} : references non-existent {kind} key: {key}",
                        volume.name
                    ))));
                }
                parts.push(ContentPart(Content::Keys { data, items }));
            }
            if let Some(claim) = &volume.persistent_volume_claim {
                let key = Key::new(namespace, &claim.claim_name);
                let bound = self.claims.get(&key).is_some_and(|claim| claim.bound);
                match self.volumes.of(&key).filter(|_| bound) {
                    Some(disk) => parts.push(ContentPart(Content::Disk(disk))),
                    None => {
                        return Ok(Err(Missing(format!(
                            "persistentvolumeclaim {:?} not found or not bound",
                            claim.claim_name
                        ))));
                    }
                }
            }
            if let Some(dir) = dirs.get(&volume.name) {
                parts.push(ContentPart(Content::Disk(dir.clone())));
            }
        }
        Ok(Ok(contents))
    }

    async fn data(&self, kind: &str, key: &Key) -> Result<Option<Arc<Data>>, kube::Error> {
        let Some(version) = self.version(kind, key) else { return Ok(None) };
        let name = format!("{kind}/{key}");
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, data)) = known().get(&name)
            && *at == version
            && let Some(data) = data.upgrade()
        {
            return Ok(Some(data));
        }
        let (read, data) = if kind == SECRET {
            let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
            let Some(secret) = api.get_opt(&key.name).await? else { return Ok(None) };
            let bytes = secret.data.unwrap_or_default().into_iter().map(|(key, ByteString(bytes))| (key, bytes));
            (secret.metadata.resource_version, bytes.collect::<Data>())
        } else {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
            let Some(map) = api.get_opt(&key.name).await? else { return Ok(None) };
            let binary = map.binary_data.unwrap_or_default().into_iter().map(|(key, ByteString(bytes))| (key, bytes));
            let text = map.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.into_bytes()));
            (map.metadata.resource_version, binary.chain(text).collect::<Data>())
        };
        let data = Arc::new(data);
        let mut known = known();
        known.insert(name, (read.unwrap_or_default().into(), Arc::downgrade(&data)));
        // Entries that no pod uses any more are dropped now and then.
        if known.len().is_power_of_two() {
            known.retain(|_, (_, data)| data.strong_count() > 0);
        }
        Ok(Some(data))
    }
}

fn items(given: Option<&[KeyToPath]>) -> Option<Vec<(String, String)>> {
    let given = given?;
    if given.is_empty() {
        return None;
    }
    Some(given.iter().map(|item| (item.key.clone(), item.path.clone())).collect())
}

/// The ephemeral volumes of a pod.
pub(super) fn own_dirs(spec: &PodSpec) -> HashMap<String, Volume> {
    let own = spec.volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some());
    own.map(|volume| (volume.name.clone(), Volume::default())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_files_below_their_mounts_and_disks_are_found_by_any_path_on_them() {
        let container: Container = serde_json::from_value(json!({ "name": "etcd", "volumeMounts": [
            { "name": "tls", "mountPath": "/etc/kubernetes/etcd-server-tls/" },
            { "name": "some", "mountPath": "/etc/some" },
            { "name": "one", "mountPath": "/etc/one.yaml", "subPath": "config.yaml" },
            { "name": "data", "mountPath": "/var/lib/etcd" },
        ] }))
        .unwrap();
        let keys = |data: &[(&str, &str)], items| {
            let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
            vec![ContentPart(Content::Keys { data: Arc::new(data), items })]
        };
        let contents = Contents::from([
            ("tls".to_owned(), keys(&[("tls.crt", "c"), ("tls.key", "k")], None)),
            ("some".to_owned(), keys(&[("a", "A"), ("b", "B")], Some(vec![("a".to_owned(), "x/a".to_owned())]))),
            ("one".to_owned(), keys(&[("config.yaml", "kind: Config")], None)),
            ("data".to_owned(), vec![ContentPart(Content::Disk(Volume::default()))]),
        ]);
        let files = Files::default();
        files.mount(&container, &contents);
        let text = |path: &str| files.text(path);
        assert_eq!(text("/etc/kubernetes/etcd-server-tls/tls.key").as_deref(), Some("k"));
        assert_eq!(text("/etc/kubernetes/etcd-server-tls/ca.crt"), None);
        assert_eq!((text("/etc/some/x/a").as_deref(), text("/etc/some/b")), (Some("A"), None));
        assert_eq!(text("/etc/one.yaml").as_deref(), Some("kind: Config"));
        assert!(files.volume("/var/lib/etcd/member").is_some() && files.volume("/var/lib").is_none());
    }
}
