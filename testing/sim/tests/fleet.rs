//! Simulated hosts behave as real ones would, in virtual time.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetwright_kit::Clock;
use fleetwright_sim::{BrokenUnit, Faults, Fleet, FleetTiming, HelperBehavior, KubeletConfig, Kubelets, Network};
use fleetwright_transport::{Hop, Link, LinkError, Login, ReachError, Route, Transport, TransportLimits, Trust};
use fleetwright_wire::{
    Answer, Apply, Check, Claim, Content, File, Health, Method, Observation, Observe, Outcome, Package, Progress,
    Request, Step, StepRecord, Unit,
};

fn fleet() -> Fleet {
    Fleet::new(Clock::manual("2030-01-01T00:00:00Z".parse().unwrap()))
}

fn route(address: &str, trust: Trust) -> Arc<Route> {
    let login = Login { key: "k".into(), certificate: None };
    let host = Hop { address: address.into(), port: 22, user: "root".into(), login, trust };
    Arc::new(Route { machine: address.into(), host, jumps: Vec::new(), limits: TransportLimits::default() })
}

/// A package with a unit, its file, and a sysctl.
fn package(version: &str) -> Package {
    Package {
        component: "agent".into(),
        version: version.into(),
        reference: format!("agent-{version}"),
        method: Method::Sysctl(BTreeMap::from([("vm.swappiness".into(), "1".into())])),
        files: vec![File {
            path: "/etc/agent.conf".into(),
            mode: 0o644,
            owner: "root".into(),
            group: "root".into(),
            content: Content::Text(format!("version = {version}\n")),
            ..File::default()
        }],
        units: vec![Unit {
            name: "agent.service".into(),
            enabled: Some(true),
            running: Some(true),
            content: Some("[Service]\nExecStart=/usr/bin/agent\n".into()),
            restart_on: vec!["/etc/agent.conf".into()],
            ..Unit::default()
        }],
        health: Health { checks: vec![Check::Unit("agent.service".into())] },
        ..Package::default()
    }
}

fn install(id: &str, version: &str) -> Request {
    Request::Apply(Box::new(Apply {
        id: id.into(),
        claim: Claim::default(),
        step: Step::Install(package(version)),
        within: 600,
        unproven: false,
    }))
}

fn observe(version: &str, records: &[&str]) -> Request {
    let records = records.iter().map(|id| (*id).to_owned()).collect();
    Request::Observe(Box::new(Observe {
        packages: vec![package(version)],
        health: true,
        records,
        ..Observe::default()
    }))
}

async fn connect(fleet: &Fleet, address: &str) -> Box<dyn Link> {
    fleet.connect(route(address, Trust::FirstUse)).await.unwrap()
}

async fn ask(link: &dyn Link, request: &Request) -> Result<Answer, LinkError> {
    link.ask(request, Duration::from_secs(600), &|_: Progress| {}).await
}

async fn seen(link: &dyn Link, request: &Request) -> Observation {
    match ask(link, request).await.unwrap() {
        Answer::Observed(seen) => *seen,
        other => panic!("{other:?}"),
    }
}

async fn ended(link: &dyn Link, request: &Request) -> StepRecord {
    match ask(link, request).await.unwrap() {
        Answer::Ended(record) => record,
        other => panic!("{other:?}"),
    }
}

/// Runs a future, and lets virtual time pass while nothing else is busy.
async fn in_time<T>(fleet: &Fleet, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Ok(done) = tokio::time::timeout(Duration::from_millis(2), &mut what).await {
            return done;
        }
        assert!(Instant::now() < deadline, "it does not end");
        if fleet.is_idle()
            && let Some(timer) = fleet.clock().next_timer()
        {
            let wait = timer.duration_since(fleet.clock().now());
            fleet.clock().advance(Duration::try_from(wait).unwrap_or_default());
        }
    }
}

/// Lets virtual time pass until the condition holds.
async fn until(fleet: &Fleet, what: &str, holds: impl AsyncFn() -> bool) {
    in_time(fleet, async {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !holds().await {
            assert!(Instant::now() < deadline, "{what} did not come true");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_installed_spoilt_and_repaired_by_the_code_of_real_ones() {
    let fleet = fleet();
    let host = fleet.host("a");
    let link = connect(&fleet, "a").await;
    assert!(seen(&*link, &observe("1", &[])).await.components[0].installed.is_none());
    assert_eq!(ended(&*link, &install("s-1", "1")).await.outcome, Outcome::Done);
    assert_eq!(ended(&*link, &install("s-1", "1")).await.outcome, Outcome::Done, "the same id is answered again");
    let whole = seen(&*link, &observe("1", &["s-1"])).await;
    assert_eq!(whole.components[0].installed.as_ref().unwrap().version, "1");
    assert!(whole.components[0].deviations.is_empty(), "{whole:?}");
    assert!(whole.components[0].health[0].holds, "{whole:?}");
    assert_eq!(host.journal().iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["s-1"]);

    host.spoil_file("/etc/agent.conf", "version = mine\n");
    host.spoil_sysctl("vm.swappiness", "60");
    host.stop_unit("agent.service");
    let whats: Vec<String> = {
        let seen = seen(&*link, &observe("1", &[])).await;
        seen.components[0].deviations.iter().map(|deviation| deviation.what.clone()).collect()
    };
    assert_eq!(whats.len(), 3, "{whats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_goes_on_when_its_connection_is_cut() {
    let fleet = fleet();
    fleet.set_timing(FleetTiming { step: Duration::from_secs(60), ..FleetTiming::default() });
    let host = fleet.host("a");
    let link = connect(&fleet, "a").await;
    host.cut_next_step();
    let cut = in_time(&fleet, ask(&*link, &install("s-1", "1"))).await;
    assert!(matches!(cut, Err(LinkError::Lost(_))), "{cut:?}");
    assert!(!link.open());
    let link = connect(&fleet, "a").await;
    let now = seen(&*link, &observe("1", &["s-1"])).await;
    assert_eq!(now.records[0].outcome, Outcome::Running, "{now:?}");
    until(&fleet, "its end", async || seen(&*link, &observe("1", &["s-1"])).await.records[0].outcome == Outcome::Done)
        .await;
    assert!(fleet.clock().monotonic() >= Duration::from_secs(60));
    assert_eq!(host.journal().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_host_loses_power_is_interrupted_and_the_host_half_done() {
    let fleet = fleet();
    let host = fleet.host("a");
    let link = connect(&fleet, "a").await;
    host.power_off_at(14);
    assert!(matches!(in_time(&fleet, ask(&*link, &install("s-1", "1"))).await, Err(LinkError::Lost(_))));
    assert!(!host.is_on());
    let gone = in_time(&fleet, fleet.connect(route("a", Trust::FirstUse))).await;
    assert!(matches!(gone.err(), Some(ReachError::Unreachable(_))));
    host.power_on();
    let link = connect(&fleet, "a").await;
    let now = seen(&*link, &observe("1", &["s-1"])).await;
    assert_eq!(now.records[0].outcome, Outcome::Interrupted, "{now:?}");
    assert_eq!(ended(&*link, &install("s-2", "1")).await.outcome, Outcome::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_asked_to_boot_answers_goes_down_and_comes_back() {
    let fleet = fleet();
    let host = fleet.host("a");
    let link = connect(&fleet, "a").await;
    let boot = Request::Apply(Box::new(Apply {
        id: "b-1".into(),
        claim: Claim::default(),
        step: Step::Reboot,
        within: 600,
        unproven: false,
    }));
    assert_eq!(ended(&*link, &boot).await.outcome, Outcome::Running);
    until(&fleet, "it is down", async || !host.is_on()).await;
    assert!(!link.open());
    until(&fleet, "it is up", async || host.is_on()).await;
    let link = connect(&fleet, "a").await;
    assert_eq!(seen(&*link, &observe("1", &["b-1"])).await.records[0].outcome, Outcome::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_a_host_may_be_bad_in_every_way() {
    let fleet = fleet();
    let host = fleet.host("a");
    let first = host.key();
    let pinned = route("a", Trust::Keys(vec![format!("{first} root@a")]));
    assert!(fleet.connect(pinned.clone()).await.is_ok());
    host.change_key();
    let changed = fleet.connect(pinned).await.err().unwrap();
    assert!(matches!(changed, ReachError::HostKeyChanged { known: 1, .. }), "{changed}");
    host.set_refuses_login(true);
    assert!(matches!(fleet.connect(route("a", Trust::FirstUse)).await.err(), Some(ReachError::LoginRefused(_))));
    host.set_refuses_login(false);

    let link = connect(&fleet, "a").await;
    host.set_network(Network::Hangs);
    assert!(matches!(in_time(&fleet, ask(&*link, &observe("1", &[]))).await, Err(LinkError::TimedOut(_))));
    host.set_network(Network::Slow(Duration::from_secs(3)));
    let before = fleet.clock().monotonic();
    assert!(in_time(&fleet, ask(&*link, &observe("1", &[]))).await.is_ok());
    assert!(fleet.clock().monotonic() - before >= Duration::from_secs(6));
    host.set_network(Network::Healthy);

    host.set_helper_behavior(HelperBehavior::InvalidOutput);
    assert!(matches!(ask(&*link, &observe("1", &[])).await, Err(LinkError::InvalidAnswer(_))));
    host.set_helper_behavior(HelperBehavior::FalseSuccess);
    assert_eq!(ended(&*link, &install("s-1", "1")).await.outcome, Outcome::Done);
    assert!(host.journal().is_empty(), "nothing was done");
    host.set_helper_behavior(HelperBehavior::Normal);
    host.set_faults(Faults { full: true, ..Faults::default() });
    assert!(matches!(ask(&*link, &install("s-2", "1")).await, Ok(Answer::Failed(_))));
    host.set_faults(Faults {
        spoilt: Arc::from([BrokenUnit {
            unit: "agent.service".into(),
            path: "/etc/agent.conf".into(),
            contains: "version = 2".into(),
        }]),
        ..Faults::default()
    });
    assert_eq!(ended(&*link, &install("s-3", "1")).await.outcome, Outcome::Done);
    ended(&*link, &install("s-4", "2")).await;
    assert!(!seen(&*link, &observe("2", &[])).await.components[0].health[0].holds, "a bad version does not come up");
}

mod kubelets {
    use fleetwright_apiserver::{Config, Server};
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::api::{DeleteParams, PostParams};
    use kube::{Api, Client};
    use serde_json::json;

    use super::*;

    const UNIT: &str = "[Service]\nExecStart=/usr/local/bin/kubelet \\\n  --config=/etc/kubernetes/kubelet.yaml \\\n  --node-labels=pool=online \\\n  --hostname-override=node-a\n";
    const CONFIG: &str =
        "providerID: sim://a\nregisterWithTaints:\n- {key: fleetwright.io/unready, effect: NoSchedule}\n";

    fn kubelet() -> Package {
        Package {
            component: "kubelet".into(),
            version: "1.37.1".into(),
            reference: "kubelet-1.37.1".into(),
            files: vec![File {
                path: "/etc/kubernetes/kubelet.yaml".into(),
                mode: 0o644,
                owner: "root".into(),
                group: "root".into(),
                content: Content::Text(CONFIG.into()),
                ..File::default()
            }],
            units: vec![Unit {
                name: "kubelet.service".into(),
                enabled: Some(true),
                running: Some(true),
                content: Some(UNIT.into()),
                ..Unit::default()
            }],
            ..Package::default()
        }
    }

    async fn ready(nodes: &Api<Node>) -> String {
        let node = nodes.get_opt("node-a").await.unwrap();
        let conditions = node.and_then(|node| node.status).and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        ready.map(|ready| ready.status).unwrap_or_default()
    }

    async fn pod(client: &Client, name: &str) -> Api<Pod> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "nodeName": "node-a", "containers": [{ "name": "c", "image": "i" }] },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        pods
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_kubelet_joins_runs_pods_and_its_node_is_lost_with_it() {
        let server = Server::start(Config::default()).await.unwrap();
        let client = server.client();
        let fleet = fleet();
        let _kubelets =
            Kubelets::start(&fleet, client.clone(), KubeletConfig { lease: None, ..KubeletConfig::default() });
        let host = fleet.host("a");
        let link = connect(&fleet, "a").await;
        let step = Step::Install(kubelet());
        let request = Request::Apply(Box::new(Apply {
            id: "s-1".into(),
            claim: Claim::default(),
            step,
            within: 600,
            unproven: false,
        }));
        assert_eq!(ended(&*link, &request).await.outcome, Outcome::Done);

        let nodes: Api<Node> = Api::all(client.clone());
        until(&fleet, "it is ready", async || ready(&nodes).await == "True").await;
        until(&fleet, "the born taint is gone", async || {
            let spec = nodes.get("node-a").await.unwrap().spec.unwrap();
            spec.taints.unwrap_or_default().iter().map(|taint| taint.key.clone()).collect::<Vec<_>>()
                == ["fleetwright.io/unready"]
        })
        .await;
        let node = nodes.get("node-a").await.unwrap();
        assert_eq!(node.metadata.labels.unwrap()["pool"], "online");
        assert_eq!(node.spec.unwrap().provider_id.as_deref(), Some("sim://a"));

        let pods = pod(&client, "web").await;
        let running = async || {
            let pod = pods.get("web").await.unwrap();
            pod.status.and_then(|status| status.phase).as_deref() == Some("Running")
        };
        until(&fleet, "the pod runs", running).await;
        pods.delete("web", &DeleteParams::default()).await.unwrap();
        until(&fleet, "the pod ends", async || pods.get_opt("web").await.unwrap().is_none()).await;

        // The kubelet is down with its host: its Node is lost after a while, and back with the host.
        host.power_off();
        assert_eq!(ready(&nodes).await, "True", "nobody knows yet");
        until(&fleet, "it is lost", async || ready(&nodes).await == "Unknown").await;
        assert!(fleet.clock().monotonic() >= Duration::from_secs(40));
        pod(&client, "late").await;
        host.power_on();
        until(&fleet, "it is back", async || ready(&nodes).await == "True").await;
        let boot = nodes.get("node-a").await.unwrap().status.unwrap().node_info.unwrap().boot_id;
        assert_eq!(boot, host.machine().facts().boot_id);
        let late = async || {
            let pod = pods.get("late").await.unwrap();
            pod.status.and_then(|status| status.phase).as_deref() == Some("Running")
        };
        until(&fleet, "the pod that came meanwhile runs", late).await;
    }
}
