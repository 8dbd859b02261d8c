//! The objects of a control plane.

use fleetwright_api::ConfigFile;

use super::object_drift::contains;
use super::objects::{Blueprint, objects};
use super::*;

#[test]
fn what_was_changed_by_hand_is_applied_again_and_nothing_else() {
    let mut world = TestCluster::new();
    world.settle();
    let key = (Kind::Deployment, "kube-scheduler".to_owned());
    world.live.get_mut(&key).unwrap()["spec"]["replicas"] = 7.into();
    let decision = world.decide();
    assert_eq!(kinds(&decision), [(Kind::Deployment, "kube-scheduler")]);
    assert_eq!(decision.apply[0].1.as_deref(), Some("spec.replicas"));
}

#[test]
fn arguments_of_a_cluster_win_over_those_of_its_package_version_and_ours_over_all() {
    let world = TestCluster::new();
    let mut package = package("1.36.4");
    package.components.apiserver.args = [("v", "2"), ("profiling", "true"), ("secure-port", "1")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let mut spec = world.spec.clone();
    let args = [("v".to_owned(), "4".to_owned())].into();
    spec.components.apiserver = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    let of = Blueprint {
        names: &world.names,
        spec: &spec,
        package: &package,
        etcd_exists: false,
        emulates: None,
        trusts: "",
        members: (3, 3),
    };
    let all = objects(&of, ControlPlaneComponent::Apiserver);
    let deployment = all.iter().find(|object| object.kind == Kind::Deployment).unwrap();
    let args: Vec<_> = deployment.body["spec"]["template"]["spec"]["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for one in ["--v=4", "--profiling=true", "--secure-port=6443"] {
        assert!(args.contains(&one), "{one} in {args:?}");
    }
}

#[test]
fn a_changed_configuration_file_makes_new_pods() {
    let world = TestCluster::new();
    let digest = |package: &ClusterPackageVersionSpec| {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package,
            etcd_exists: false,
            emulates: None,
            trusts: "",
            members: (3, 3),
        };
        let all = objects(&of, ControlPlaneComponent::Scheduler);
        all.iter().find_map(objects::template_digest).unwrap().to_owned()
    };
    let (before, mut after) = (package("1.36.4"), package("1.36.4"));
    let content = "percentageOfNodesToScore: 20\n".to_owned();
    after.components.scheduler.config = vec![ConfigFile { name: "scheduler.yaml".to_owned(), content }];
    assert_ne!(digest(&before), digest(&after));
    let of = Blueprint {
        names: &world.names,
        spec: &world.spec,
        package: &after,
        etcd_exists: false,
        emulates: None,
        trusts: "",
        members: (3, 3),
    };
    let all = objects(&of, ControlPlaneComponent::Scheduler);
    let file = all.iter().find(|object| object.kind == Kind::ConfigMap).unwrap().body["data"]["scheduler.yaml"]
        .as_str()
        .unwrap();
    let file: Value = serde_json::from_str(file).unwrap();
    assert_eq!(file["percentageOfNodesToScore"], 20);
    assert_eq!(file["clientConnection"]["kubeconfig"], "/etc/kubernetes/scheduler-kubeconfig/kubeconfig");
}

#[test]
fn that_etcd_exists_is_no_reason_to_recreate_its_pods() {
    let world = TestCluster::new();
    let package = package("1.36.4");
    let of = |etcd_exists| {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package: &package,
            etcd_exists,
            emulates: None,
            trusts: "",
            members: (3, 3),
        };
        let all = objects(&of, ControlPlaneComponent::Etcd);
        all.into_iter().find(|object| object.kind == Kind::StatefulSet).unwrap()
    };
    let (new, existing) = (of(false), of(true));
    assert_eq!(objects::template_digest(&new), objects::template_digest(&existing));
    assert!(!contains(&new.body, &existing.body));
    // The field is written without an Event about a repair; a change by somebody else is repaired with one.
    let mut world = TestCluster::new();
    let all = world.settle();
    let told = |decision: &Decision| decision.apply.iter().any(|(_, place)| place.is_some());
    assert!(!all.iter().any(told), "{:#?}", all.iter().find(|decision| told(decision)).unwrap().apply);
    let etcd = world.live.get_mut(&(Kind::StatefulSet, "etcd".to_owned())).unwrap();
    etcd["spec"]["template"]["spec"]["containers"][0]["args"] = serde_json::json!([]);
    assert!(told(&world.decide()));
}

#[test]
fn no_pod_but_the_controller_managers_has_the_key_of_an_authority() {
    let world = TestCluster::new();
    let package = package("1.36.4");
    for component in ControlPlaneComponent::ALL {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package: &package,
            etcd_exists: false,
            emulates: None,
            trusts: "",
            members: (3, 3),
        };
        let all = objects(&of, component);
        let workload = all.iter().find(|object| objects::template_digest(object).is_some()).unwrap();
        let volumes = workload.body["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        let holds = volumes.iter().any(|volume| {
            let secret = volume["secret"]["secretName"].as_str().unwrap_or_default();
            let keys = volume["secret"]["items"].to_string();
            (secret == "ca" || secret.ends_with("-ca")) && keys.contains("tls.key")
        });
        assert_eq!(holds, component == ControlPlaneComponent::ControllerManager, "{component}");
        let pod = &workload.body["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
    }
}

/// Whoever gets a serving certificate of a kubelet for a wrong name must not be taken for the API server.
#[test]
fn serving_certificates_of_kubelets_come_from_an_authority_that_only_api_servers_trust_for_kubelets() {
    let (world, package) = (TestCluster::new(), package("1.36.4"));
    let mut flags = Vec::new();
    for component in ControlPlaneComponent::ALL {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package: &package,
            etcd_exists: false,
            emulates: None,
            trusts: "",
            members: (3, 3),
        };
        let all = objects(&of, component);
        let workload = all.iter().find(|object| objects::template_digest(object).is_some()).unwrap();
        let args = workload.body["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap();
        let args = args.iter().filter_map(|arg| arg.as_str()?.split_once('='));
        flags.extend(args.filter(|(_, value)| value.contains("/kubelet-ca/")).map(|(flag, _)| flag.to_owned()));
    }
    let expected = [
        "--kubelet-certificate-authority",
        "--cluster-signing-kubelet-serving-cert-file",
        "--cluster-signing-kubelet-serving-key-file",
    ];
    assert_eq!(flags, expected);
}

#[test]
fn long_names_that_begin_alike_do_not_share_a_namespace() {
    let long = "a".repeat(63);
    let (one, two) = (Names::of("fleet", &long), Names::of("fleet", &format!("{}b", "a".repeat(62))));
    assert!(one.namespace.len() <= 63 && one.namespace != two.namespace);
    assert_eq!(Names::of("fleet", "pay").namespace, "fleet-pay");
    // Nor does one that is named as the namespace of another one.
    for victim in [long, "a".repeat(58), format!("{}-b", "a".repeat(60))] {
        let victim = Names::of("fleet", &victim);
        let twin = Names::of("fleet", victim.namespace.strip_prefix("fleet-").unwrap());
        assert!(twin.namespace.len() <= 63);
        assert_ne!(twin.namespace, victim.namespace, "{}", victim.name);
    }
    // Nor one that has the form of such a name and is short.
    let short = format!("a-{}", "0".repeat(32));
    assert_ne!(Names::of("fleet", &short).namespace, format!("fleet-{short}"));
    assert_eq!(Names::of("fleet", "a-0123abcd").namespace, "fleet-a-0123abcd");
}
