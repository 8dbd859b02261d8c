//! The packages of this project, on a real host without an operator: if this test fails, the cause is in the packages, the helper or the
//! transport.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_api::{Machine, MachinePackageVersion};
use fleetwright_lab::hosts::{Host, HostDescription, Site, Tree};
use fleetwright_plan::package::{Lookup, Rendered, SecretUnavailable, Values, render};
use fleetwright_transport::{Helpers, Hop, Link, Login, Route, Ssh, Transport as _, TransportLimits, Trust};
use fleetwright_wire::{
    Answer, Apply, Claim, Content, FailureKind, Observation, Observe, Outcome, Owner, Request, Step,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::{NAMESPACE, helpers};

/// Paths that are not part of a host's state: logs, caches, and systemd's own records. For dpkg and apt, their output about packages
/// is compared instead of their files.
const PASSING: [&str; 8] = [
    "/var/log",
    "/var/cache",
    "/var/lib/apt/lists",
    "/var/lib/apt/extended_states",
    "/var/lib/systemd",
    "/var/lib/dpkg/status",
    "/var/lib/dpkg/status-old",
    "/var/tmp",
];

/// The state of a host.
pub(crate) struct HostProfile {
    tree: Tree,
    packages: String,
    units: String,
}

impl HostProfile {
    pub(crate) async fn of(host: &Host) -> Result<Self> {
        let packages = r"dpkg-query -W -f '${Package} ${Version} ${Status}\n'; apt-mark showauto; apt-mark showhold";
        let units = "systemctl list-unit-files --no-legend --no-pager; systemctl --failed --no-legend --no-pager";
        Ok(Self {
            tree: host.tree().await?.without(&PASSING),
            packages: host.run(packages).await?,
            units: host.run(units).await?,
        })
    }

    /// Fails if a file was left on a host, or is missing.
    pub(crate) fn assert_same(&self, later: &Self) {
        let left = self.tree.changes(&later.tree);
        assert!(left.is_empty(), "the host is not as it was before:\n{}", left.join("\n"));
        assert_eq!(self.packages, later.packages);
        assert_eq!(self.units, later.units);
    }
}

struct Nothing;

impl Lookup for Nothing {
    fn secret(&self, _: &str, _: &str, _: &str) -> Result<Vec<u8>, SecretUnavailable> {
        Err(SecretUnavailable::Missing)
    }

    fn config_map(&self, _: &str, _: &str) -> Option<Vec<u8>> {
        None
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_packages_make_a_node_and_leave_a_clean_host_on_hosts() -> Result<()> {
    let mut site = Site::start().await?;
    let host = site.host("by-hand").await?;
    let tried = by_hand(&site, &host).await;
    if tried.is_err() {
        site.keep_logs();
    }
    tried
}

async fn by_hand(site: &Site, host: &Host) -> Result<()> {
    host.run("apt-get update -qq").await?;
    let before = HostProfile::of(host).await?;
    let described = HostDescription::host(host, 0);
    let wanted = site.worker("1.37.1")?;
    let machine: Machine = serde_json::from_value(described.machine(NAMESPACE, &wanted))?;
    let link = connect(site, host).await?;
    let rendered = rendered(site, &machine)?;
    tokio::spawn(approve_all(site.plane.client()));

    let mut fence = 0;
    for package in &rendered {
        let mut package = package.package.clone();
        for file in package.files.iter_mut().filter(|file| file.path.ends_with("bootstrap-kubelet.conf")) {
            file.content = Content::Text(site.plane.kubeconfig());
        }
        fence += 1;
        apply(&*link, 0, fence, Step::Install(package)).await?;
    }
    others_are_refused(&*link, &rendered[0].package.component).await?;
    let epoch = adopted_and_back(&*link, fence).await?;
    let mark = host.run("stat -c '%a %U' /var/lib/fleetwright/owner.json").await?;
    assert_eq!(mark.trim(), "600 root");
    let nodes: Api<Node> = Api::all(site.plane.client());
    eventually("the Node to be ready", || async {
        let conditions = nodes.get_opt("by-hand").await?.and_then(|node| node.status?.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
    })
    .await?;
    let observed = eventually_healthy(&*link, &rendered).await?;
    for component in &observed.components {
        assert_eq!(component.deviations, [], "{}", component.component);
    }

    for package in rendered.iter().rev() {
        fence += 1;
        apply(&*link, epoch, fence, Step::Remove { component: package.package.component.clone() }).await?;
    }
    let cleaned = ask(&*link, Request::Clean { claim: claim("by-hand", epoch, fence) }).await?;
    assert_eq!(cleaned, Answer::Cleaned);
    drop(link);
    before.assert_same(&HostProfile::of(host).await?);
    Ok(())
}

async fn connect(site: &Site, host: &Host) -> Result<Box<dyn Link>> {
    let transport = Ssh::new(Helpers::find(&helpers()?)?);
    let route = Route {
        machine: host.name(),
        host: Hop {
            address: host.address().to_string(),
            port: 22,
            user: "root".to_owned(),
            login: Login { key: Arc::from(site.network.ssh_key()), certificate: None },
            trust: Trust::Keys(vec![host.host_key()]),
        },
        jumps: Vec::new(),
        limits: TransportLimits::default(),
    };
    transport.connect(Arc::new(route)).await.context("the host is not reached")
}

/// All packages of a machine for its host, dependencies first.
fn rendered(site: &Site, machine: &Machine) -> Result<Vec<Rendered>> {
    let cluster: BTreeMap<_, _> = site.cluster_values();
    let values = Values { machine, facts: None, cluster: &cluster };
    let mut waiting = Vec::new();
    for version in site.package_versions(NAMESPACE)? {
        let version: MachinePackageVersion = serde_json::from_value(version)?;
        if machine.spec.packages.iter().any(|package| Some(&package.ref_) == version.metadata.name.as_ref()) {
            waiting.push(render(&version, &values, &Nothing)?);
        }
    }
    let mut ordered: Vec<Rendered> = Vec::new();
    while !waiting.is_empty() {
        let there = |name: &String| ordered.iter().any(|package| &package.package.component == name);
        let Some(next) = waiting.iter().position(|package| package.depends_on.iter().all(there)) else {
            bail!("packages depend on what is not there: {:?}", waiting[0].depends_on);
        };
        ordered.push(waiting.remove(next));
    }
    Ok(ordered)
}

async fn ask(link: &dyn Link, request: Request) -> Result<Answer> {
    Ok(link.ask(&request, Duration::from_secs(300), &|_| {}).await?)
}

/// A claim of that Machine.
fn claim(machine: &str, epoch: u64, fence: u64) -> Claim {
    let [cluster, namespace, name, uid] = ["lab", NAMESPACE, machine, machine].map(str::to_owned);
    Claim { owner: Owner { cluster, namespace, name, uid }, epoch, fence }
}

/// Another Machine with the same address, as another cluster's operator would have it, changes nothing, and sees the owner of the host.
async fn others_are_refused(link: &dyn Link, component: &str) -> Result<()> {
    let id = "by-another".to_owned();
    let asked = [
        Request::Apply(Box::new(Apply {
            id: id.clone(),
            claim: claim("another", 0, 9),
            step: Step::Remove { component: component.to_owned() },
            within: 60,
            unproven: false,
        })),
        Request::Refuse { id: id.clone(), claim: claim("another", 1, 9) },
        Request::Clean { claim: claim("another", 1, 9) },
        Request::Release { claim: claim("another", 1, 9) },
        Request::Adopt { claim: claim("another", 2, 9), from: claim("by-hand", 0, 0).owner },
    ];
    for request in asked {
        match ask(link, request.clone()).await? {
            Answer::Failed(failure) if failure.kind == FailureKind::NotOwner => {}
            other => bail!("{request:?} by another Machine: {other:?}"),
        }
    }
    let seen = match ask(link, Request::Observe(Box::new(Observe { records: vec![id], ..Observe::default() }))).await? {
        Answer::Observed(seen) => *seen,
        other => bail!("{other:?}"),
    };
    assert!(seen.records.is_empty(), "something was begun: {:?}", seen.records);
    assert!(seen.components.iter().any(|found| found.component == component && found.installed.is_some()));
    let mark = seen.owner.context("the host has an owner")?;
    assert_eq!((mark.owner, mark.epoch), (claim("by-hand", 0, 0).owner, 1));
    Ok(())
}

/// Another Machine adopts the host; the former owner is refused, and adopts it back. Returns its epoch.
async fn adopted_and_back(link: &dyn Link, fence: u64) -> Result<u64> {
    for (epoch, from, to) in [(1, "by-hand", "another"), (2, "another", "by-hand")] {
        let adopt = Request::Adopt { claim: claim(to, epoch, fence), from: claim(from, 0, 0).owner };
        match ask(link, adopt).await? {
            Answer::Adopted(mark) => assert_eq!((mark.owner, mark.epoch), (claim(to, 0, 0).owner, epoch + 1)),
            other => bail!("{to} does not get the host: {other:?}"),
        }
        match ask(link, Request::Refuse { id: "too-late".to_owned(), claim: claim(from, epoch, fence + 1) }).await? {
            Answer::Failed(failure) if failure.kind == FailureKind::NotOwner => {}
            other => bail!("{from} still has the host: {other:?}"),
        }
    }
    Ok(3)
}

async fn apply(link: &dyn Link, epoch: u64, fence: u64, step: Step) -> Result<()> {
    let what = format!("{:?} {}", step.verb(), step.component().unwrap_or_default());
    let begun = Instant::now();
    let apply = Apply {
        id: format!("by-hand-{fence}"),
        claim: claim("by-hand", epoch, fence),
        step,
        within: 240,
        unproven: false,
    };
    match ask(link, Request::Apply(Box::new(apply))).await? {
        Answer::Ended(record) if record.outcome == Outcome::Done => {
            eprintln!("{what} took {:?}", begun.elapsed());
            Ok(())
        }
        other => bail!("{what}: {other:#?}"),
    }
}

async fn eventually_healthy(link: &dyn Link, rendered: &[Rendered]) -> Result<Observation> {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let packages = rendered.iter().map(|package| package.package.clone()).collect();
        let asked = Observe { packages, health: true, ..Observe::default() };
        let Answer::Observed(observed) = ask(link, Request::Observe(Box::new(asked))).await? else {
            bail!("no observation");
        };
        let ill: Vec<_> =
            observed.components.iter().flat_map(|seen| &seen.health).filter(|check| !check.holds).cloned().collect();
        if ill.is_empty() {
            return Ok(*observed);
        }
        if Instant::now() > deadline {
            bail!("not healthy: {ill:#?}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Stands for the approver: this test has no operator.
async fn approve_all(client: Client) {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    loop {
        for mut request in requests.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let status = request.status.get_or_insert_default();
            if status.conditions.is_none() {
                let approved = json!([{ "type": "Approved", "status": "True", "reason": "Test" }]);
                status.conditions = serde_json::from_value(approved).ok();
                let name = request.metadata.name.clone().unwrap_or_default();
                let _ = requests.replace_subresource("approval", &name, &PostParams::default(), &request).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub(crate) async fn eventually<F: Future<Output = Result<bool>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !look().await? {
        if Instant::now() > deadline {
            bail!("waited three minutes for {what}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}
