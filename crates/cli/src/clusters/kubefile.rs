//! Kubeconfig files: adds the access to one cluster, and changes nothing else.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use fleetwright_pki::{PemPair, write_private};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::package::source;

/// The extension of a context that names the cluster it was written for.
const MARK: &str = "fleetwright.io/cluster";

/// The access of one person to one cluster.
pub(super) struct ClusterAccess<'a> {
    /// The name of the context and of the cluster entry.
    pub(super) context: &'a str,
    /// The namespace and the name of the Cluster.
    pub(super) of: (&'a str, &'a str),
    pub(super) server: &'a str,
    /// The name in the server's certificate, if the certificate does not contain the address.
    pub(super) server_name: Option<&'a str>,
    pub(super) ca_pem: &'a str,
    pub(super) user: &'a str,
    pub(super) pair: &'a PemPair,
    pub(super) until: Timestamp,
}

/// The content of a kubeconfig.
pub(super) struct KubeconfigFile(Value);

impl KubeconfigFile {
    pub(super) fn new() -> Self {
        Self(json!({"apiVersion": "v1", "kind": "Config"}))
    }

    /// Reads a kubeconfig; none if the file does not exist or is empty.
    ///
    /// # Errors
    /// The file cannot be read, or is not a kubeconfig.
    pub(super) fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let shown = path.display();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let documents = source::documents(&text)
            .map_err(|(line, column, said)| anyhow!("{shown}:{line}:{column}: not a kubeconfig: {said}"))?;
        match documents.as_slice() {
            [] => Ok(None),
            [one] if one.entries().is_empty() || one.get("kind").is_some_and(|kind| kind.text() != Some("Config")) => {
                bail!("{shown} exists and is not a kubeconfig: use another file")
            }
            [one] => Ok(Some(Self(one.value()))),
            many => bail!("{shown} contains {} documents, expected one kubeconfig: use another file", many.len()),
        }
    }

    fn named<'a>(&'a self, list: &'a str, name: &str) -> Option<&'a Value> {
        self.0[list].as_array()?.iter().find(|entry| entry["name"] == name)
    }

    pub(super) fn has_context(&self, name: &str) -> bool {
        self.named("contexts", name).is_some()
    }

    /// Contexts that were not written for this cluster.
    pub(super) fn others(&self, of: (&str, &str)) -> Vec<String> {
        let contexts = self.0["contexts"].as_array().into_iter().flatten();
        let foreign = contexts.filter(|context| mark(context) != Some(of));
        foreign.map(|context| context["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Replaces the earlier access to this cluster, or adds it beside the other entries. The current context stays,
    /// if there is one.
    ///
    /// # Errors
    /// An entry of this name belongs to another cluster or tool; the error says what to do.
    pub(super) fn put(&mut self, access: &ClusterAccess<'_>) -> Result<(), String> {
        let name = access.context;
        let user = format!("{}@{name}", access.user);
        let present = self.named("contexts", name).cloned();
        if let Some(present) = present.as_ref().filter(|present| mark(present) != Some(access.of)) {
            let leads = present["context"]["cluster"].as_str().unwrap_or_default();
            return Err(format!(
                "context {name} already exists, points to {leads:?} and was not written for this cluster: choose another name with --context-name, or remove it (kubectl config delete-context {name})"
            ));
        }
        let own = present.as_ref().map(|present| &present["context"]);
        for (list, field, entry) in [("clusters", "cluster", name), ("users", "user", user.as_str())] {
            let ours = own.is_some_and(|context| context[field] == entry);
            if !ours && self.named(list, entry).is_some() {
                return Err(format!(
                    "{field} {entry} already exists and was not written for this cluster: choose another name with --context-name, or remove it (kubectl config delete-{field} {entry})"
                ));
            }
        }
        // The user entry of the old context is removed with it, unless another context refers to it.
        if let Some(old) = own.and_then(|context| context["user"].as_str()).filter(|old| *old != user) {
            let old = old.to_owned();
            let contexts = self.0["contexts"].as_array().into_iter().flatten();
            let used = contexts.filter(|context| context["context"]["user"] == old.as_str()).count() > 1;
            if let Some(users) = self.0["users"].as_array_mut().filter(|_| !used) {
                users.retain(|entry| entry["name"] != old.as_str());
            }
        }
        let mut cluster = json!({
            "server": access.server, "certificate-authority-data": base64(access.ca_pem),
        });
        if let Some(server_name) = access.server_name {
            cluster["tls-server-name"] = json!(server_name);
        }
        let (fleet, of) = access.of;
        let until = access.until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mark = json!({"fleet": fleet, "cluster": of, "until": until});
        self.set("clusters", json!({"name": name, "cluster": cluster}));
        self.set(
            "users",
            json!({"name": user, "user": {
                "client-certificate-data": base64(&access.pair.cert_pem), "client-key-data": base64(&access.pair.key_pem),
            }}),
        );
        self.set(
            "contexts",
            json!({"name": name, "context": {
                "cluster": name, "user": user, "extensions": [{"name": MARK, "extension": mark}],
            }}),
        );
        if self.0["current-context"].as_str().is_none_or(str::is_empty) {
            self.0["current-context"] = json!(name);
        }
        Ok(())
    }

    fn set(&mut self, list: &str, entry: Value) {
        if !self.0[list].is_array() {
            self.0[list] = json!([]);
        }
        let Some(entries) = self.0[list].as_array_mut() else { return };
        match entries.iter_mut().find(|present| present["name"] == entry["name"]) {
            Some(present) => *present = entry,
            None => entries.push(entry),
        }
    }

    /// The file as YAML.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        // Keys and certificates stay on their line.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        let yaml = serde_saphyr::to_string_with_options(&self.0, options)?;
        // Read the YAML back before overwriting a user's file: if the result differs, write JSON, which is YAML, too.
        match source::documents(&yaml).as_deref() {
            Ok([one]) if one.value() == self.0 => Ok(yaml),
            _ => Ok(format!("{:#}\n", self.0)),
        }
    }

    /// Writes the file, readable by its owner only.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let path = place(path)?;
        write_private(&path, self.text()?).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The file behind a symbolic link, so that the link is not replaced. Creates its folder.
fn place(path: &Path) -> anyhow::Result<PathBuf> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.with_context(|| format!("cannot create the directory {}", folder.display()))?;
    }
    Ok(path)
}

/// The cluster that a context was written for.
fn mark(context: &Value) -> Option<(&str, &str)> {
    let extensions = context["context"]["extensions"].as_array()?;
    let mark = &extensions.iter().find(|extension| extension["name"] == MARK)?["extension"];
    Some((mark["fleet"].as_str()?, mark["cluster"].as_str()?))
}

fn base64(text: &str) -> Value {
    // Base64, as in Secrets of the API.
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}

/// The lock file that kubectl uses while it changes a kubeconfig.
pub(super) struct Lock(PathBuf);

impl Lock {
    /// Creates the lock file.
    ///
    /// # Errors
    /// Another process holds the lock.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let path = place(path)?;
        let mut name = path.into_os_string();
        name.push(".lock");
        let lock = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&lock) {
            Ok(_) => Ok(Self(lock)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => bail!(
                "{} exists: another process is changing the kubeconfig; try again, or remove the file if no process uses it",
                lock.display()
            ),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", lock.display())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access<'a>(user: &'a str, of: (&'a str, &'a str), pair: &'a PemPair) -> ClusterAccess<'a> {
        ClusterAccess {
            context: "pay-01",
            of,
            server: "https://192.0.2.1:6443",
            server_name: None,
            ca_pem: "CA",
            user,
            pair,
            until: "2026-11-16T08:00:00Z".parse().unwrap(),
        }
    }

    fn pair() -> PemPair {
        PemPair { cert_pem: "C".repeat(500), key_pem: "K".to_owned() }
    }

    const PRESENT: &str = "\
apiVersion: v1
kind: Config
current-context: home
preferences: {colors: true}
clusters:
- name: home
  cluster: {server: 'https://home', certificate-authority: /ca.crt}
users:
- name: me
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login, args: ['1', 'yes', \"a: b\"], env: null}
contexts:
- name: home
  context: {cluster: home, user: me, namespace: '007'}
unknown-to-us: [1, 1.5]
";

    #[test]
    fn what_is_there_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, PRESENT).unwrap();
        let before = KubeconfigFile::read(&path).unwrap().unwrap();
        let mut file = KubeconfigFile::read(&path).unwrap().unwrap();
        let pair = pair();
        file.put(&access("ann", ("fleet", "pay-01"), &pair)).unwrap();
        file.write(&path).unwrap();
        let after = KubeconfigFile::read(&path).unwrap().unwrap();
        for list in ["clusters", "users", "contexts"] {
            assert_eq!(after.0[list].as_array().map(Vec::len), Some(2), "{list}");
            assert_eq!(after.0[list][0], before.0[list][0], "{list}");
        }
        for field in ["current-context", "preferences", "unknown-to-us"] {
            assert_eq!(after.0[field], before.0[field], "{field}");
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().any(|line| line.trim_start().starts_with("client-certificate-data:") && line.len() > 500),
            "{text}"
        );
    }

    #[test]
    fn the_same_cluster_takes_its_own_place_and_leaves_no_other_person_behind() {
        let (pair, mut file) = (pair(), KubeconfigFile::new());
        for user in ["ann", "bob", "bob"] {
            file.put(&access(user, ("fleet", "pay-01"), &pair)).unwrap();
        }
        assert_eq!(file.0["users"].as_array().map(Vec::len), Some(1));
        assert_eq!(file.0["users"][0]["name"], "bob@pay-01");
        assert_eq!(file.0["contexts"].as_array().map(Vec::len), Some(1));
        assert_eq!(file.0["current-context"], "pay-01");
        assert_eq!(file.others(("fleet", "pay-01")), Vec::<String>::new());
    }

    #[test]
    fn a_context_of_that_name_that_is_somebody_elses_is_not_replaced() {
        let (pair, mut file) = (pair(), KubeconfigFile::new());
        file.put(&access("ann", ("blue", "pay-01"), &pair)).unwrap();
        let before = file.0.clone();
        let refused = file.put(&access("ann", ("fleet", "pay-01"), &pair)).unwrap_err();
        assert!(refused.contains("--context-name"), "{refused}");
        assert_eq!(file.0, before);
        let mut file =
            KubeconfigFile(json!({"clusters": [{"name": "pay-01", "cluster": {"server": "https://other"}}]}));
        assert!(file.put(&access("ann", ("fleet", "pay-01"), &pair)).unwrap_err().contains("cluster pay-01"));
    }

    #[test]
    fn what_is_no_kubeconfig_is_not_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert!(KubeconfigFile::read(&path).unwrap().is_none());
        for text in ["kind: Pod\n", "hello\n", "a: b\n---\nc: d\n", "a: [\n"] {
            fs::write(&path, text).unwrap();
            assert!(KubeconfigFile::read(&path).is_err(), "{text}");
        }
        let lock = Lock::of(&path).unwrap();
        assert!(Lock::of(&path).is_err());
        drop(lock);
        Lock::of(&path).unwrap();
    }
}
