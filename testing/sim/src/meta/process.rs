//! Processes of containers, chosen by the name of the image.

mod apiserver;
mod custom_program;
mod etcd;
mod manager;
mod names;
mod noop;
mod snapshots;
mod tls;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleetwright_apiserver::{HistoryLimits, Removal};
use fleetwright_kit::{Clock, Key, Random};
use futures::future::BoxFuture;

use super::delays::Delays;
use super::kubelet::files::Files;
use super::kubelet::sandbox::ContainerHandle;
pub(super) use apiserver::ApiServers;
pub(super) use custom_program::Programs;
pub use custom_program::{Container, Program};
pub(super) use etcd::Etcds;
pub use etcd::{EmptyStart, OlderStart};
pub(super) use names::Names;
use noop::NoopProcess;
pub(super) use snapshots::{Buckets, kept_file};

/// A defect of a version of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionDefect {
    /// The process runs and never becomes ready.
    NeverReady,
    /// The process is ready and does not do its work: an API server stores no write, a controller-manager renews its lease and
    /// does nothing else.
    WrongAnswers,
    /// The process is ready, and delays each answer by this time.
    Slow(Duration),
    /// The process exits after this time.
    CrashesAfter(Duration),
}

/// The declared defects by component and tag. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct VersionDefects(Arc<Mutex<HashMap<(String, String), VersionDefect>>>);

impl VersionDefects {
    pub(super) fn set(&self, component: &str, version: &str, bad: Option<VersionDefect>) {
        let key = (component.to_owned(), version.to_owned());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match bad {
            Some(bad) => all.insert(key, bad),
            None => all.remove(&key),
        };
    }

    fn get(&self, component: &str, version: &str) -> Option<VersionDefect> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(component.to_owned(), version.to_owned())).copied()
    }
}

/// The declared API removals. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Removals(Arc<Mutex<Vec<Removal>>>);

impl Removals {
    pub(super) fn add(&self, removal: Removal) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(removal);
    }

    fn all(&self) -> Vec<Removal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The exit of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    /// The termination message.
    pub(super) message: String,
}

impl Exit {
    /// An exit after an error.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// An exit with the message of Kubernetes components that fail to start.
    pub(super) fn command_failed<S: std::fmt::Display>(why: S) -> Self {
        Self::failed(format!("\"command failed\" err={:?}", why.to_string()))
    }

    /// An exit by SIGKILL.
    pub(super) fn killed() -> Self {
        Self { code: 137, message: String::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Http {
        https: bool,
        port: u16,
        path: String,
    },
    Tcp(u16),
    /// A command in the container, or a call that is not simulated.
    Other,
}

/// The process of a running container.
pub(super) trait Process: Send + Sync {
    /// Answers a probe; the error is what the kubelet would report.
    fn probe(&self, probe: &Probe) -> Result<(), String>;

    /// Called when its files may have changed.
    fn refreshed(&self) {}

    /// Called before a stop: clients should switch to another process.
    fn drain(&self) {}

    /// Stops the process gracefully.
    fn stop(&self) -> BoxFuture<'_, ()>;

    /// Kills the process.
    fn kill(&self);
}

/// The arguments of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    flags: Vec<(String, String)>,
    words: Vec<String>,
}

impl Args {
    /// Parses words of the form `--name=value`; `--name` alone means `true`. Other words stay words.
    pub(super) fn of(words: impl IntoIterator<Item = String>) -> Self {
        let mut args = Self::default();
        for word in words {
            match word.strip_prefix("--") {
                Some(flag) => {
                    let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
                    args.flags.push((name.to_owned(), value.to_owned()));
                }
                None => args.words.push(word),
            }
        }
        args
    }

    /// The whole command line: words, then flags.
    fn line(&self) -> Vec<String> {
        let flags = self.flags.iter().map(|(name, value)| format!("--{name}={value}"));
        self.words.iter().cloned().chain(flags).collect()
    }

    /// The words that are not flags, in their order.
    pub(super) fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }

    /// The value of a flag; the last one if it is repeated.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.flags.iter().rev().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
    }

    /// All values of a repeatable flag.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.flags.iter().filter(move |(flag, _)| flag == name).map(|(_, value)| value.as_str())
    }

    /// Checks that the files named by flags exist.
    ///
    /// # Errors
    /// The missing file, in the words of the system.
    fn check_files(&self, files: &Files) -> Result<(), Exit> {
        let file = |flag: &str| {
            ["-file", "-cafile", "-certfile", "-keyfile", "-kubeconfig"].iter().any(|end| flag.ends_with(end))
                || [
                    "kubeconfig",
                    "config",
                    "authentication-config",
                    "authorization-config",
                    "encryption-provider-config",
                ]
                .contains(&flag)
        };
        let named = self.flags.iter().filter(|(flag, path)| file(flag) && path.starts_with('/'));
        for (_, path) in named {
            tls::file(files, path).map_err(Exit::command_failed)?;
        }
        Ok(())
    }
}

/// The description of a container to start.
pub(super) struct StartRequest {
    pub(super) pod: Key,
    pub(super) ip: Ipv4Addr,
    /// The last part of the image's path, and its tag.
    pub(super) component: String,
    pub(super) version: String,
    pub(super) args: Args,
    pub(super) files: Arc<Files>,
    pub(super) life: ContainerHandle,
    pub(super) bad: Option<VersionDefect>,
}

/// The shared state from which processes are created.
pub(super) struct ContainerRuntime {
    pub(super) clock: Clock,
    pub(super) random: Random,
    pub(super) defects: VersionDefects,
    pub(super) programs: Programs,
    pub(super) removals: Removals,
    pub(super) delays: Delays,
    pub(super) names: Names,
    pub(super) etcds: Etcds,
    pub(super) apis: ApiServers,
    /// The content of object stores, by their location.
    pub(super) buckets: Buckets,
    /// The interval of lease renewals.
    pub(super) lease: Duration,
    /// Whether components call API servers within the process.
    pub(super) near: bool,
    /// The limits of the watch history in the store of a business cluster.
    pub(super) history: HistoryLimits,
}

impl ContainerRuntime {
    /// The declared defect of a version.
    pub(super) fn bad(&self, component: &str, version: &str) -> Option<VersionDefect> {
        self.defects.get(component, version)
    }

    pub(super) async fn start(&self, start: StartRequest) -> Result<Arc<dyn Process>, Exit> {
        match start.component.as_str() {
            "kube-apiserver" => apiserver::start(self, start).await,
            "etcd" if start.args.words().first() == Some(&"etcdutl") => Err(snapshots::etcdutl(self, &start)),
            "fleetwright" if start.args.words().first() == Some(&"snapshot") => Err(snapshots::step(self, &start)),
            "etcd" => etcd::start(self, start).await,
            "kube-controller-manager" | "kube-scheduler" => manager::start(self, start).await,
            other => match self.programs.get(other) {
                Some(program) => Ok(custom_program::start(self, start, &program)),
                // An unknown image: its process only runs.
                None => Ok(Arc::new(NoopProcess)),
            },
        }
    }
}

/// The component and the version in the name of an image.
pub(super) fn component(image: &str) -> (String, String) {
    let image = image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let (name, tag) = last.split_once(':').unwrap_or((last, "latest"));
    (name.to_owned(), tag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_tell_component_and_version() {
        let of = |image: &str| component(image);
        let expected = |name: &str, tag: &str| (name.to_owned(), tag.to_owned());
        assert_eq!(of("registry.example:5000/a/kube-apiserver:v1.36.4"), expected("kube-apiserver", "v1.36.4"));
        assert_eq!(of("etcd:v3.6.16@sha256:00"), expected("etcd", "v3.6.16"));
        assert_eq!(of("nginx"), expected("nginx", "latest"));
    }

    #[test]
    fn of_several_flags_the_last_counts() {
        let args = Args::of(["--a=1".to_owned(), "--b".to_owned(), "--a=2=3".to_owned(), "x".to_owned()]);
        assert_eq!((args.get("a"), args.get("b"), args.get("x")), (Some("2=3"), Some("true"), None));
        assert_eq!(args.words(), ["x"]);
    }
}
