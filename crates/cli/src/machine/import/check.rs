//! Connects to each host before it becomes a Machine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fleetwright_transport::{Hop, Login, Route, Trust};
use fleetwright_wire::{Answer, Claim, Observe, Request};
use futures::StreamExt as _;

use super::candidate::Candidate;
use crate::cluster::Cluster;
use crate::machine::reach::{self, ReachArgs};
use crate::terminal_text::line;

/// The number of concurrent connections.
const AT_ONCE: usize = 64;

pub(super) struct Options<'a> {
    /// Whether unknown host keys are taken from the host.
    pub(super) pin: bool,
    pub(super) key_file: Option<&'a Path>,
    pub(super) reach: &'a ReachArgs,
    pub(super) key_secret: &'a str,
}

/// Connects to all hosts, prints a line for each, and removes the unreachable ones. Returns the reasons.
pub(super) async fn all(
    cluster: &Cluster,
    namespace: &str,
    hosts: &mut Vec<Candidate>,
    options: &Options<'_>,
) -> anyhow::Result<Vec<String>> {
    let way = options.reach.way(cluster)?;
    let mut logins: HashMap<String, Login> = HashMap::new();
    for host in hosts.iter() {
        let secret = host.key_secret.as_deref().unwrap_or(options.key_secret);
        if !logins.contains_key(secret) {
            let given =
                options.key_file.or_else(|| host.key_file.as_deref().map(Path::new).filter(|file| file.exists()));
            let login = match given {
                Some(file) => reach::login_from(file)?,
                None => reach::login(cluster, namespace, secret).await?,
            };
            logins.insert(secret.to_owned(), login);
        }
    }
    let work = std::mem::take(hosts).into_iter().map(|mut host| {
        let (way, within) = (way.clone(), options.reach.within());
        let login = logins[host.key_secret.as_deref().unwrap_or(options.key_secret)].clone();
        async move {
            let done = match route(&host, login, options) {
                Ok(route) => look(&way, route, within).await,
                Err(why) => Err(why),
            };
            if let (Ok((_, key)), true, true) = (&done, options.pin, host.host_keys.is_empty()) {
                host.host_keys = vec![key.clone()];
            }
            (host, done)
        }
    });
    let mut failed = Vec::new();
    let mut done = futures::stream::iter(work).buffered(AT_ONCE);
    while let Some((host, ended)) = done.next().await {
        match ended {
            Ok((said, _)) => {
                eprintln!("{}: reached: {}", host.name, line(&said));
                hosts.push(host);
            }
            Err(why) => {
                let why = line(&why);
                eprintln!("{}: not reached: {why}", host.name);
                failed.push(format!("{} ({}): {why}", host.name, host.place));
            }
        }
    }
    Ok(failed)
}

fn route(host: &Candidate, login: Login, options: &Options<'_>) -> Result<Arc<Route>, String> {
    let trust = match host.host_keys.as_slice() {
        [] if options.pin => Trust::FirstUse,
        [] => return Err("unknown host key: pass a --known-hosts file that contains it, or --pin".to_owned()),
        keys => Trust::Keys(keys.to_vec()),
    };
    let hop = |address: &str, port, user: &str, trust| Hop {
        address: address.to_owned(),
        port,
        user: user.to_owned(),
        login: login.clone(),
        trust,
    };
    let jumps = host.jumps.iter().map(|jump| match jump.host_keys.as_slice() {
        [] => Err(format!(
            "unknown host key of the jump host {}: pass a --known-hosts file that contains it",
            jump.address
        )),
        keys => Ok(hop(&jump.address, jump.port, &jump.user, Trust::Keys(keys.to_vec()))),
    });
    let jumps = jumps.collect::<Result<Vec<_>, _>>()?;
    let address = host.addresses.first().map_or(host.name.as_str(), String::as_str);
    let own = hop(address, host.port.unwrap_or(22), host.user.as_deref().unwrap_or("root"), trust);
    Ok(Arc::new(Route { machine: host.name.clone(), host: own, jumps, limits: options.reach.limits() }))
}

/// The facts of a host, and its host key. The check leaves nothing on a host without an owner.
async fn look(
    way: &reach::HostConnector,
    route: Arc<Route>,
    within: std::time::Duration,
) -> Result<(String, String), String> {
    let (seen, link) =
        reach::observe(way, route, Observe::default(), within).await.map_err(|error| format!("{error:#}"))?;
    let facts = &seen.facts;
    let memory = facts.memory >> 30;
    let said = format!("{}, kernel {}, {}, {} cpus, {memory} GiB", facts.os, facts.kernel, facts.arch, facts.cpus);
    let said = match seen.components.iter().filter(|component| component.installed.is_some()).count() {
        0 => {
            // A host with an owner refuses the cleanup: then it is managed already, and stays unchanged.
            let cleaned = link.ask(&Request::Clean { claim: Claim::default() }, within, &|_| {}).await;
            match cleaned {
                Ok(Answer::Cleaned | Answer::Failed(_)) => said,
                _ => format!("{said}; the helper was not removed from the host"),
            }
        }
        1 => format!("{said}; 1 component is already installed"),
        many => format!("{said}; {many} components are already installed"),
    };
    Ok((said, link.host_key().to_owned()))
}
