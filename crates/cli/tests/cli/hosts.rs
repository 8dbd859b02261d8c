//! Commands that reach hosts, with a real one: `machine import --check`, `plan --observe`, `logs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{HostKeyPolicy, Machine, MachinePackageVersion};
use fleetwright_lab::Target;
use fleetwright_lab::hosts::{Host, Network, Template};
use fleetwright_plan::package::{Lookup, SecretUnavailable, Values, render};
use fleetwright_transport::{Helpers, Hop, Login, Route, Ssh, Transport as _, TransportLimits, Trust};
use fleetwright_wire::{Answer, Apply, Claim, Outcome, Request, Step};
use kube::Api;

use crate::support::CliServer;

const PACKAGE: &str = r#"
apiVersion: fleetwright.io/v1alpha1
kind: MachinePackageVersion
metadata: {name: greeting-1}
spec:
  component: greeting
  version: "1"
  script:
    check: test -e /etc/greeting
    apply: echo "hello from {{ machine.name }}"; touch /etc/greeting
    remove: rm /etc/greeting
"#;

struct Nothing;

impl Lookup for Nothing {
    fn secret(&self, _: &str, _: &str, _: &str) -> Result<Vec<u8>, SecretUnavailable> {
        Err(SecretUnavailable::Missing)
    }

    fn config_map(&self, _: &str, _: &str) -> Option<Vec<u8>> {
        None
    }
}

/// The folder in which `hack/helper.sh` puts the helper.
fn helpers() -> Helpers {
    let target = std::path::Path::new(env!("CARGO_BIN_EXE_fleetwright")).ancestors().nth(2).expect("a target folder");
    Helpers::find(&target.join("helpers")).expect("hack/helper.sh has built the helper")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_reaches_hosts_as_the_operator_does_on_hosts() {
    let network = Network::start().await.expect("a network");
    let template = Template::debian().await.expect("a template");
    let host = Host::start(&network, &template, "host-1").await.expect("a host");
    let place = CliServer::new(Target::embedded().await.expect("the server starts"));
    place.run(&["install"]).await.ok();
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.to_str().expect("text").to_owned()
    };
    let list = write("hosts.csv", &format!("name,address\nhost-1,{}\nnobody,198.18.255.254\n", host.address()));
    let key = write("key", &host.ssh_key());
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJjvYy6hVvSkXCBXsMsE1dSBxwJxVNNmrAUkQy+4yBzY";
    let known = write("known", &format!("{} {other}\n", host.address()));
    let secret = format!("--from-file=ssh-privatekey={key}");
    place.kubectl(&["create", "secret", "generic", "fleet-ssh", "-n", "fleet", &secret], None).await.ok();
    place.kubectl(&["apply", "-n", "fleet", "-f", "-"], Some(PACKAGE)).await.ok();

    // A wrong host key, and a host that does not exist: reported, and not imported.
    let import = ["machine", "import", &list, "--check", "--timeout", "5s", "--package", "greeting=greeting-1"];
    let ran = place.run(&[&import[..], &["--known-hosts", &known]].concat()).await;
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("host-1: not reached") && ran.err.contains("host key"), "{}", ran.err);
    let ran = place.run(&[&import[..], &["--pin", "--key-file", &key]].concat()).await;
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("host-1: reached: debian-12"), "{}", ran.err);
    assert!(
        ["nobody: not reached", "1 host ", "not imported"].iter().all(|part| ran.err.contains(part)),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("machine.fleetwright.io/host-1 created"), "{}", ran.out);
    let api: Api<Machine> = Api::namespaced(place.target.admin(), "fleet");
    let machine = api.get("host-1").await.expect("it was imported");
    let keys = &machine.spec.ssh.as_ref().expect("a way to it").host_keys;
    assert_eq!(keys.policy, HostKeyPolicy::Pinned);
    let same = |key: &str| key.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(keys.keys, [same(&host.host_key())]);
    assert_eq!(
        host.run("ls /var/lib/fleetwright 2>/dev/null | wc -l").await.expect("it runs"),
        "0\n",
        "nothing is left on it"
    );

    let out = place.run(&["machine", "plan", "host-1", "--observe"]).await.ok();
    assert!(out.contains("machine/host-1: 1 step") && out.contains("install greeting 1"), "{out}");
    assert_eq!(host.run("ls /etc/greeting 2>/dev/null | wc -l").await.expect("it runs"), "0\n", "nothing was done");
    let refused = place.run(&["machine", "logs", "host-1"]).await.refused();
    assert!(refused.contains("no steps"), "{refused}");

    // A step, as the operator requests it.
    let package: MachinePackageVersion =
        Api::namespaced(place.target.admin(), "fleet").get("greeting-1").await.expect("it is there");
    let values = Values { machine: &machine, facts: None, cluster: &BTreeMap::new() };
    let package = render(&package, &values, &Nothing).expect("it can be rendered").package;
    let login = Login { key: host.ssh_key().into(), certificate: None };
    let hop = Hop { address: host.address().to_string(), port: 22, user: "root".into(), login, trust: Trust::FirstUse };
    let route = Route { machine: "host-1".into(), host: hop, jumps: vec![], limits: TransportLimits::default() };
    let link = Ssh::new(helpers()).connect(Arc::new(route)).await.expect("it is reached");
    let apply = Apply {
        id: "test.greeting.1".into(),
        claim: Claim::default(),
        step: Step::Install(package),
        within: 60,
        unproven: false,
    };
    let answer =
        link.ask(&Request::Apply(Box::new(apply)), Duration::from_secs(60), &|_| {}).await.expect("it answers");
    assert!(matches!(&answer, Answer::Ended(record) if record.outcome == Outcome::Done), "{answer:?}");

    let out = place.run(&["machine", "logs", "host-1", "--list"]).await.ok();
    assert!(out.contains("test.greeting.1") && out.contains("Install greeting") && out.contains("done"), "{out}");
    for args in [&["machine", "logs", "host-1"][..], &["machine", "logs", "host-1", "--step", "test.greeting.1"]] {
        let out = place.run(args).await.ok();
        assert!(out.contains("hello from host-1"), "{out}");
    }
    let refused = place.run(&["machine", "logs", "host-1", "--step", "nosuch"]).await.refused();
    assert!(refused.contains("step nosuch not found"), "{refused}");
    let out = place.run(&["machine", "plan", "host-1", "--observe"]).await.ok();
    assert!(out.contains("machine/host-1: nothing to do"), "{out}");
    host.run("rm /etc/greeting").await.expect("it runs");
    let out = place.run(&["machine", "plan", "host-1", "--observe"]).await.ok();
    assert!(out.contains("repair greeting"), "drift is seen: {out}");
    place.target.stop(false).await;
}
