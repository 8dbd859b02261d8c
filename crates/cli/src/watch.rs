//! Prints a line for each change, until the command is stopped.

use std::collections::HashMap;

use futures::{TryStreamExt as _, pin_mut};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// A watch ends before the client times out on a silent server (see `ClusterArgs::connect`), and continues from its
/// last bookmark.
const EACH: u32 = 20;

/// The printer of objects of one kind.
pub(crate) struct KindPrinter<S, P> {
    /// Formats an object as a line. An unchanged line is not printed again.
    pub(crate) summary: S,
    /// Whether the object has a problem.
    pub(crate) is_problem: P,
    /// Prints only objects with a problem, and those whose problem is gone.
    pub(crate) only_problems: bool,
}

/// Prints every change of the objects that `config` selects, after the initial output.
pub(crate) async fn changes<K, S, P>(
    api: Api<K>,
    config: watcher::Config,
    shown: &[K],
    telling: KindPrinter<S, P>,
) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    S: Fn(&K) -> String,
    P: Fn(&K) -> bool,
{
    let KindPrinter { summary, is_problem, only_problems } = telling;
    let changes = watcher(api, config.timeout(EACH)).default_backoff();
    let stop = crate::stop_signal()?;
    pin_mut!(changes, stop);
    let mut last: HashMap<String, String> = shown.iter().map(|one| (one.name_any(), summary(one))).collect();
    let mut trouble = None;
    loop {
        let next = tokio::select! {
            next = changes.try_next() => next,
            () = &mut stop => return Ok(()),
        };
        let (object, told) = match next {
            Ok(Some(Event::Apply(object) | Event::InitApply(object))) => {
                let told = summary(&object);
                (object, Some(told))
            }
            Ok(Some(Event::Delete(object))) => (object, None),
            Ok(Some(Event::Init | Event::InitDone)) => continue,
            Ok(None) => return Ok(()),
            Err(error) => {
                let error = error.to_string();
                if trouble.as_ref() != Some(&error) {
                    eprintln!("cannot watch for changes, retrying: {error}");
                    trouble = Some(error);
                }
                continue;
            }
        };
        trouble = None;
        let name = object.name_any();
        let known = last.get(&name);
        // Of objects without a problem, only the end of a problem is printed.
        if known == told.as_ref() || (known.is_none() && only_problems && !is_problem(&object)) {
            continue;
        }
        let time = Timestamp::now().strftime("%H:%M:%S");
        crate::print(&format!("{time}  {name}  {}\n", told.as_deref().unwrap_or("deleted")))?;
        match told.filter(|_| !only_problems || is_problem(&object)) {
            Some(told) => last.insert(name, told),
            None => last.remove(&name),
        };
    }
}
