//! The folder with all files of one Fleetwright.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use fleetwright_pki::{Authority, ServiceAccountKey, write_private};

/// The folder, locked by this process while this value exists.
pub(crate) struct Home {
    path: PathBuf,
    _lock: File,
}

pub(crate) enum OpenedHome {
    /// This process holds the lock.
    Ours(Home),
    /// Another process holds the lock.
    Running,
}

impl Home {
    /// The default folder.
    pub(crate) fn default_path() -> anyhow::Result<PathBuf> {
        match std::env::var_os("HOME") {
            Some(home) if !home.is_empty() => Ok(PathBuf::from(home).join(".fleetwright")),
            _ => bail!("HOME is not set; pass a directory with --home"),
        }
    }

    /// Opens the folder, creates it if needed (mode 0700), and takes its lock.
    pub(crate) fn open(path: &Path) -> anyhow::Result<OpenedHome> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("cannot create the directory {}; pass another one with --home", path.display()))?;
        let lock = File::create(path.join("lock")).with_context(|| format!("cannot write in {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(OpenedHome::Ours(Self { path: path.to_owned(), _lock: lock })),
            Err(fs::TryLockError::WouldBlock) => Ok(OpenedHome::Running),
            Err(fs::TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// The path of the kubeconfig.
    pub(crate) fn kubeconfig(path: &Path) -> PathBuf {
        path.join("kubeconfig")
    }

    /// The authority, created once and loaded from then on, so that a kubeconfig stays valid after a restart.
    pub(crate) fn authority(&self) -> anyhow::Result<Arc<Authority>> {
        let (cert, key) = (self.path.join("ca.crt"), self.path.join("ca.key"));
        if cert.exists() && key.exists() {
            let authority =
                Authority::from_pem(&fs::read_to_string(&cert)?, &fs::read_to_string(&key)?).with_context(|| {
                    format!("cannot read {} and {}; remove both to create new ones", cert.display(), key.display())
                })?;
            return Ok(Arc::new(authority));
        }
        let authority = Authority::new("fleetwright-ca")?;
        write_private(&key, authority.key_pem())?;
        write_private(&cert, authority.cert_pem())?;
        Ok(Arc::new(authority))
    }

    /// The signing key of service-account tokens, created once.
    pub(crate) fn service_account_key(&self) -> anyhow::Result<Arc<ServiceAccountKey>> {
        let path = self.path.join("sa.key");
        if path.exists() {
            let key = ServiceAccountKey::from_pem(&fs::read_to_string(&path)?)
                .with_context(|| format!("cannot read {}; remove it to create a new one", path.display()))?;
            return Ok(Arc::new(key));
        }
        let key = ServiceAccountKey::generate()?;
        write_private(&path, &key.private_pem)?;
        Ok(Arc::new(key))
    }
}
