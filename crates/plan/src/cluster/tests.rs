mod backups;
mod before;
mod extending;
mod healing;
mod members;
mod rehearsing;
mod restores;

use std::collections::BTreeMap;

use fleetwright_api::{
    ClusterPackageVersionSpec, ClusterPhase, ClusterSpec, ClusterStatus, ComponentOverrides, ConfigFile,
    ControlPlaneComponent, EtcdDatastore, Status, condition, names,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::certificates::{self, Authority, Due, Held};
use super::contains::contains;
use super::objects::{Blueprint, Kind, objects};
use super::*;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn package(kubernetes: &str) -> ClusterPackageVersionSpec {
    ClusterPackageVersionSpec::of_images("registry.example", kubernetes, "3.6.16")
}

/// A cluster as it is seen, which the tests change.
struct World {
    names: Names,
    spec: ClusterSpec,
    status: ClusterStatus,
    packages: BTreeMap<String, ClusterPackageVersionSpec>,
    live: BTreeMap<(Kind, String), Value>,
    workloads: BTreeMap<ControlPlaneComponent, Workload>,
    proofs: BTreeMap<String, Proof>,
    mendings: BTreeMap<String, datastore::Mending>,
    asked: Option<String>,
    tasks: Vec<snapshots::Task>,
    due: Vec<(certificates::Wanted, Due)>,
    authorities: Vec<Authority>,
    anchors: Vec<Anchor>,
    namespace: bool,
    retry: Option<String>,
    now: Timestamp,
    known: preflight::Known,
    extensions: extensions::Known,
}

impl World {
    /// One that has its namespace and certificates.
    fn new() -> Self {
        let packages = [("v1.36", "1.36.4"), ("v1.37", "1.37.1")];
        Self {
            names: Names::of("fleet", "pay"),
            spec: ClusterSpec::of("v1.36"),
            status: ClusterStatus::default(),
            packages: packages.into_iter().map(|(name, version)| (name.to_owned(), package(version))).collect(),
            live: BTreeMap::new(),
            workloads: BTreeMap::new(),
            proofs: BTreeMap::new(),
            mendings: BTreeMap::new(),
            asked: None,
            tasks: Vec::new(),
            due: Vec::new(),
            authorities: Vec::new(),
            anchors: Authority::ALL.into_iter().map(|one| anchor(one, false, &["old"])).collect(),
            namespace: true,
            retry: None,
            now: NOW,
            known: preflight::Known::default(),
            extensions: extensions::Known::default(),
        }
    }

    fn look<T>(&self, with: impl FnOnce(&Seen<'_>) -> T) -> T {
        let packages = |name: &str| self.packages.get(name);
        let object = |kind: Kind, name: &str| self.live.get(&(kind, name.to_owned())).cloned();
        with(&Seen {
            names: &self.names,
            spec: &self.spec,
            status: &self.status,
            generation: Some(1),
            retry: self.retry.as_deref(),
            package: (&self.spec.package_version, &self.packages[&self.spec.package_version]),
            packages: &packages,
            namespace: self.namespace,
            authorities: self.authorities.clone(),
            anchors: self.anchors.clone(),
            service_account: false,
            due: self.due.clone(),
            due_next: None,
            object: &object,
            workloads: self.workloads.clone(),
            proofs: self.proofs.clone(),
            endpoint: None,
            mendings: self.mendings.clone(),
            extensions: self.extensions.clone(),
            backup: snapshots::Backup {
                image: "registry.example/fleetwright:v1",
                created: NOW,
                // Another reference is another generation.
                generation: Some(self.spec.package_version.bytes().map(i64::from).sum()),
                asked: self.asked.as_deref(),
                tasks: self.tasks.clone(),
            },
            preflight: self.known.clone(),
        })
    }

    fn decide(&self) -> Decision {
        self.look(|seen| decide(seen, self.now))
    }

    /// What the meta cluster does with what is applied: everything is ready at once, if it can be.
    fn applied(&mut self, decision: &Decision) {
        for (object, _) in &decision.apply {
            self.live.insert((object.kind, object.name.clone()), object.body.clone());
            let Some(component) = ControlPlaneComponent::of_binary(&object.name) else { continue };
            if !matches!(object.kind, Kind::Deployment | Kind::StatefulSet) {
                continue;
            }
            let package = object.body["metadata"]["annotations"][objects::PACKAGE_VERSION].as_str().unwrap().to_owned();
            let template = objects::template_digest(object).map(str::to_owned);
            let workload = self.workloads.entry(component).or_default();
            workload.package = Some(package);
            let count = object.body["spec"]["replicas"].as_u64().unwrap();
            // Members of etcd are replaced one by one, when the operator says so.
            if component != ControlPlaneComponent::Etcd || workload.replicas.is_empty() {
                workload.replicas = (0..count).map(|number| replica(component, number, template.clone())).collect();
            }
        }
        for (authority, turn) in &decision.rotate {
            let held = self.anchors.iter_mut().find(|held| held.authority == *authority).unwrap();
            *held = match turn {
                Turn::Trust => anchor(*authority, true, &["old", "new"]),
                Turn::Sign => anchor(*authority, false, &["new", "old"]),
                Turn::Drop => anchor(*authority, false, &["new"]),
            };
        }
        if let Some(gone) = &decision.replace {
            let template = decision.templates[&ControlPlaneComponent::Etcd].clone();
            let members = &mut self.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
            let member = members.iter_mut().find(|member| member.name == gone.name).unwrap();
            (member.template, member.uid) = (Some(template), format!("{}+", member.uid));
        }
        self.tasks.retain(|task| !decision.tidy.contains(task));
        // Time stands still here, and no two snapshots have the name of the same second.
        if let Some(last) = self.status.last_snapshot.as_mut().filter(|_| !decision.tidy.is_empty()) {
            last.name = "20000101-000000".to_owned();
        }
        if let Some(taking) = &decision.snapshot {
            self.tasks.push(backups::done(taking));
        }
        if let Some(ask) = &decision.preflight.ask {
            let (apis, quotas) = (Ok(Default::default()), Ok(Vec::new()));
            self.known.survey = Some(survey::Survey { of: ask.of.clone(), at: NOW, apis, quotas });
        }
        for prover in &decision.prove {
            let proof =
                Proof { at: self.now, restarts: prover.restarts, outcome: Ok("1.36.4".to_owned()), failing: None };
            self.proofs.insert(prover.uid.clone(), proof);
        }
    }

    fn status(&self) -> ClusterStatus {
        let outlook = Outlook { generation: Some(1), ..Outlook::default() };
        self.look(|seen| status(seen, &decide(seen, self.now), &outlook, self.now))
    }

    /// Until nothing is left to do; the status is written each time.
    fn settle(&mut self) -> Vec<Decision> {
        let mut all = Vec::new();
        for _ in 0..40 {
            let decision = self.decide();
            let status = self.status();
            let asks = decision.preflight.ask.is_some();
            let works = decision.snapshot.is_some() || !decision.tidy.is_empty();
            let acts = !decision.apply.is_empty() || !decision.prove.is_empty() || !decision.rotate.is_empty();
            let rests = !acts && !works && !asks && decision.replace.is_none();
            let still = status == self.status;
            self.status = status;
            if rests && still {
                return all;
            }
            self.applied(&decision);
            all.push(decision);
        }
        panic!("it does not come to rest: {:#?}", all.last());
    }
}

fn anchor(authority: Authority, next: bool, trusted: &[&str]) -> Anchor {
    let digest = anchor_digest(&trusted.join("+"), trusted[0]);
    Anchor { authority, next, trusted: trusted.len(), digest }
}

fn replica(component: ControlPlaneComponent, number: u64, template: Option<String>) -> Replica {
    let name = match component {
        ControlPlaneComponent::Etcd => format!("etcd-{number}"),
        _ => format!("{component}-{}-{number}", template.as_deref().unwrap_or_default()),
    };
    let (uid, ip) = (format!("uid-{name}"), Some(format!("10.0.0.{number}")));
    let node = Some("meta".to_owned());
    let serves = (component == ControlPlaneComponent::Apiserver).then_some(true);
    Replica { name, uid, ip, node, template, ready: true, serves, ..Replica::default() }
}

fn kinds(decision: &Decision) -> Vec<(Kind, &str)> {
    decision.apply.iter().map(|(object, _)| (object.kind, object.name.as_str())).collect()
}

#[test]
fn a_namespace_comes_first_then_authorities_then_what_they_sign_then_the_rest() {
    let mut world = World::new();
    world.namespace = false;
    world.authorities = Authority::ALL.to_vec();
    let decision = world.decide();
    assert!(decision.namespace && decision.authorities.is_empty() && decision.apply.is_empty());
    world.namespace = true;
    let decision = world.decide();
    assert!(!decision.namespace && decision.authorities.len() == 3 && decision.certificates.is_empty());
    world.authorities.clear();
    let wanted = certificates::wanted(&world.names, &world.spec, &[]);
    world.due = wanted.into_iter().map(|one| (one, Due::Missing)).collect();
    let decision = world.decide();
    assert!(decision.certificates.len() >= 10 && decision.apply.is_empty());
    world.due.clear();
    assert!(!world.decide().apply.is_empty());
}

#[test]
fn who_does_not_wait_for_the_api_server_comes_after_it() {
    let mut world = World::new();
    let decision = world.decide();
    let first = kinds(&decision);
    assert!(first.contains(&(Kind::StatefulSet, "etcd")) && first.contains(&(Kind::Deployment, "kube-apiserver")));
    assert!(!first.iter().any(|(_, name)| name.contains("scheduler") || name.contains("controller-manager")));
    world.applied(&decision);
    let decision = world.decide();
    let second = kinds(&decision);
    assert!(second.contains(&(Kind::Deployment, "kube-scheduler")));
    assert!(second.contains(&(Kind::Deployment, "kube-controller-manager")));
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
}

#[test]
fn a_cluster_is_ready_only_when_every_api_server_is_proven() {
    let mut world = World::new();
    world.settle();
    let uid = world.proofs.keys().next().unwrap().clone();
    world.status = ClusterStatus::default();
    world.proofs.get_mut(&uid).unwrap().outcome = Err("it lies".to_owned());
    let status = world.status();
    let ready = condition(&status.conditions, names::READY).unwrap();
    assert_eq!((ready.status, status.phase), (Status::False, Some(ClusterPhase::Creating)));
    assert!(status.waiting_for.unwrap().contains("it lies"));
}

#[test]
fn what_was_proven_of_a_container_says_nothing_of_the_one_after_it() {
    let mut world = World::new();
    world.settle();
    assert!(world.decide().prove.is_empty());
    let servers = &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas;
    servers[0].restarts = 1;
    let decision = world.decide();
    assert_eq!(decision.prove.len(), 1);
    assert!(decision.waiting[0].1.contains("not proven"), "{:?}", decision.waiting);
}

#[test]
fn what_was_proven_before_a_restart_of_the_operator_counts_in_its_time() {
    let mut world = World::new();
    world.settle();
    world.proofs.clear();
    assert!(world.decide().prove.is_empty() && world.decide().waiting.is_empty());
    for component in &mut world.status.components {
        for replica in &mut component.replicas {
            replica.proven = replica.proven.map(|at| at - SignedDuration::from_hours(4));
        }
    }
    assert_eq!(world.decide().prove.len(), 2);
}

#[test]
fn an_upgrade_goes_component_by_component_and_etcd_member_by_member() {
    let mut world = World::new();
    world.settle();
    let newer = ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.7.0");
    world.packages.insert("v1.37".to_owned(), newer);
    world.spec.package_version = "v1.37".to_owned();
    let steps = world.settle();
    let mut order = Vec::new();
    for step in &steps {
        order.extend(
            kinds(step).into_iter().filter(|(kind, _)| *kind != Kind::ConfigMap).map(|(_, name)| name.to_owned()),
        );
        order.extend(step.replace.iter().map(|member| format!("replace {}", member.name)));
    }
    order.dedup();
    let expected = [
        "etcd",
        "replace etcd-2",
        "replace etcd-1",
        "replace etcd-0",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    ];
    assert_eq!(order, expected);
    assert_eq!(
        (world.status.package_version.as_deref(), world.status.previous.as_deref()),
        (Some("v1.37"), Some("v1.36"))
    );
    // And back the same way.
    world.spec.package_version = "v1.36".to_owned();
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
}

fn args(world: &World, deployment: &str) -> String {
    let object = &world.live[&(Kind::Deployment, deployment.to_owned())];
    object["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
}

#[test]
fn a_new_minor_emulates_the_old_one_until_the_soak_is_over() {
    let mut world = World::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    assert_eq!((world.status.phase, world.status.emulates.as_deref()), (Some(ClusterPhase::Soaking), Some("1.36")));
    for deployment in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        assert!(args(&world, deployment).contains("--emulated-version=1.36"), "{deployment}");
    }
    // Over: that is written down first, and only then something is done about it.
    world.status.soak_until = Some(NOW);
    assert!(world.decide().apply.is_empty());
    assert_eq!(world.status().emulates, None);
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
    assert!(!args(&world, "kube-apiserver").contains("emulated-version"));
    // There is no way back any more, and nothing is touched.
    world.spec.package_version = "v1.36".to_owned();
    let decision = world.decide();
    assert!(decision.apply.is_empty() && decision.refused.is_some());
    let status = world.status();
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::SOAK_OVER));
    assert!(status.waiting_for.unwrap().contains("snapshot"));
    assert_eq!(status.package_version.as_deref(), Some("v1.37"));
}

#[test]
fn within_the_soak_it_goes_back_and_forth_as_often_as_one_likes() {
    let mut world = World::new();
    world.settle();
    for _ in 0..2 {
        world.spec.package_version = "v1.37".to_owned();
        world.settle();
        let reversible = condition(&world.status.conditions, names::REVERSIBLE).unwrap();
        assert_eq!(reversible.status, Status::True, "{reversible:?}");
        world.spec.package_version = "v1.36".to_owned();
        world.settle();
        assert_eq!((world.status.package_version.as_deref(), world.status.emulates.as_deref()), (Some("v1.36"), None));
        assert!(!args(&world, "kube-apiserver").contains("emulated-version"));
    }
}

#[test]
fn an_upgrade_that_is_under_way_goes_back_from_any_stage() {
    for stage in 0..12 {
        let mut world = World::new();
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        for _ in 0..stage {
            let decision = world.decide();
            world.status = world.status();
            world.applied(&decision);
        }
        world.spec.package_version = "v1.36".to_owned();
        world.settle();
        assert_eq!(world.status.package_version.as_deref(), Some("v1.36"), "from stage {stage}");
        assert!(world.workloads.values().all(|workload| workload.package.as_deref() == Some("v1.36")));
    }
}

#[test]
fn etcd_does_not_go_back_to_a_minor_that_cannot_read_its_data() {
    let mut world = World::new();
    world
        .packages
        .insert("v1.37".to_owned(), ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.7.0"));
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    world.spec.package_version = "v1.36".to_owned();
    world.settle();
    assert_eq!(world.status.package_version.as_deref(), Some("v1.36"));
    let etcd = &world.live[&(Kind::StatefulSet, "etcd".to_owned())];
    assert!(etcd.to_string().contains("etcd:v3.7.0"));
}

#[test]
fn no_member_of_etcd_is_replaced_while_another_does_not_work() {
    let mut world = World::new();
    world.settle();
    world
        .packages
        .insert("v1.37".to_owned(), ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.7.0"));
    world.spec.package_version = "v1.37".to_owned();
    world.snapshotted();
    let asks = world.decide();
    world.applied(&asks);
    let decision = world.decide();
    world.applied(&Decision { replace: None, ..decision });
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[0].ready = false;
    // It is of before: it costs nothing to try it with the new version.
    assert_eq!(world.decide().replace.map(|member| member.name).as_deref(), Some("etcd-0"));
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas[1].ready = false;
    assert_eq!(world.decide().replace, None);
}

#[test]
fn what_was_changed_by_hand_is_applied_again_and_nothing_else() {
    let mut world = World::new();
    world.settle();
    let key = (Kind::Deployment, "kube-scheduler".to_owned());
    world.live.get_mut(&key).unwrap()["spec"]["replicas"] = 7.into();
    let decision = world.decide();
    assert_eq!(kinds(&decision), [(Kind::Deployment, "kube-scheduler")]);
    assert_eq!(decision.apply[0].1.as_deref(), Some("spec.replicas"));
}

#[test]
fn arguments_of_a_cluster_win_over_those_of_its_package_version_and_ours_over_all() {
    let world = World::new();
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
    let world = World::new();
    let digest = |package: &ClusterPackageVersionSpec| {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package,
            etcd_exists: false,
            emulates: None,
            trusts: "",
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
fn that_etcd_goes_on_is_no_reason_to_begin_anew() {
    let world = World::new();
    let package = package("1.36.4");
    let of = |etcd_exists| {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package: &package,
            etcd_exists,
            emulates: None,
            trusts: "",
        };
        let all = objects(&of, ControlPlaneComponent::Etcd);
        all.into_iter().find(|object| object.kind == Kind::StatefulSet).unwrap()
    };
    let (new, existing) = (of(false), of(true));
    assert_eq!(objects::template_digest(&new), objects::template_digest(&existing));
    assert!(!contains(&new.body, &existing.body));
    // It is written, and nobody is told of a repair; what somebody changed is one.
    let mut world = World::new();
    let all = world.settle();
    let told = |decision: &Decision| decision.apply.iter().any(|(_, place)| place.is_some());
    assert!(!all.iter().any(told), "{:#?}", all.iter().find(|decision| told(decision)).unwrap().apply);
    let etcd = world.live.get_mut(&(Kind::StatefulSet, "etcd".to_owned())).unwrap();
    etcd["spec"]["template"]["spec"]["containers"][0]["args"] = serde_json::json!([]);
    assert!(told(&world.decide()));
}

#[test]
fn no_pod_but_the_controller_managers_has_the_key_of_an_authority() {
    let world = World::new();
    let package = package("1.36.4");
    for component in ControlPlaneComponent::ALL {
        let of = Blueprint {
            names: &world.names,
            spec: &world.spec,
            package: &package,
            etcd_exists: false,
            emulates: None,
            trusts: "",
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

#[test]
fn certificates_are_replaced_after_two_thirds_of_their_life_or_when_names_are_missing() {
    let names = Names::of("fleet", "pay");
    let spec = ClusterSpec::of("v1.36");
    let wanted = certificates::wanted(&names, &spec, &[]).remove(0);
    let day = SignedDuration::from_hours(24);
    let held = Held {
        not_before: NOW,
        not_after: NOW + day * 90,
        dns_names: wanted.dns_names.clone(),
        ips: wanted.ips.clone(),
        common_name: wanted.common_name.clone(),
        organizations: wanted.organizations.clone(),
        key_matches: true,
    };
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 90, NOW + day * 59), None);
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 90, NOW + day * 61), Some(Due::Old));
    // One that was made to last longer than they do now is no exception; one that was made to last shorter ends as it says.
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 30, NOW + day * 19), None);
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 30, NOW + day * 21), Some(Due::Old));
    assert_eq!(certificates::due(&wanted, Some(&held), true, day * 365, NOW + day * 61), Some(Due::Old));
    // It begins some minutes before it is made, and does not last longer for it.
    let begins = SignedDuration::from_mins(5);
    let made = Held { not_before: NOW - begins, ..held.clone() };
    assert_eq!(certificates::replace_at(&made, day * 90), NOW - begins + (day * 90 + begins) / 3 * 2);
    assert_eq!(certificates::due(&wanted, Some(&held), false, day * 90, NOW), Some(Due::OtherAuthority));
    assert_eq!(certificates::due(&wanted, None, false, day * 90, NOW), Some(Due::Missing));
    let more = certificates::wanted(&names, &spec, &["192.0.2.7".to_owned(), "api.example".to_owned()]).remove(0);
    assert_eq!(certificates::due(&more, Some(&held), true, day * 90, NOW), Some(Due::OtherNames));
    assert!(
        wanted.ips.contains(&"10.96.0.1".parse().unwrap())
            && wanted.dns_names.contains(&"kube-apiserver.fleet-pay.svc".to_owned())
    );
}

#[test]
fn long_names_that_begin_alike_do_not_share_a_namespace() {
    let long = "a".repeat(63);
    let (one, two) = (Names::of("fleet", &long), Names::of("fleet", &format!("{}b", "a".repeat(62))));
    assert!(one.namespace.len() <= 63 && one.namespace != two.namespace);
    assert_eq!(Names::of("fleet", "pay").namespace, "fleet-pay");
}

#[test]
fn one_member_is_enough_where_one_is_asked_for() {
    let mut world = World::new();
    world.spec.replicas = 1;
    world.spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    world.settle();
    assert_eq!(world.status.phase, Some(ClusterPhase::Ready));
}

#[test]
fn a_stage_that_does_not_work_in_time_is_taken_back_and_not_tried_again_until_somebody_asks() {
    let mut world = World::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    // The new API servers never become ready.
    let broken = |world: &mut World| {
        let decision = world.decide();
        let status = world.status();
        world.applied(&decision);
        world.status = status;
        for replica in &mut world.workloads.get_mut(&ControlPlaneComponent::Apiserver).unwrap().replicas {
            replica.ready = decision.package != "v1.37";
        }
        decision
    };
    for _ in 0..10 {
        broken(&mut world);
    }
    let begun = world.status.progress.clone().unwrap();
    assert_eq!((begun.step.as_str(), begun.since), ("bring kube-apiserver to v1.37", NOW));
    assert_eq!(world.status.phase, Some(ClusterPhase::Upgrading));
    let until = NOW + SignedDuration::from_mins(10);
    assert!(world.decide().next.is_some_and(|next| next <= until), "it is looked at in time");

    world.now = until;
    let decision = world.decide();
    let failed = decision.failed.clone().unwrap();
    assert!(failed.message.contains("kube-apiserver: 0 of 2 replicas are ready"), "{failed:?}");
    assert!(decision.apply.is_empty() && decision.replace.is_none(), "it is written down before anything is done");
    world.status = world.status();
    assert_eq!(world.status.phase, Some(ClusterPhase::RollingBack));
    world.settle();
    let status = world.status.clone();
    assert_eq!((status.package_version.as_deref(), status.phase), (Some("v1.36"), Some(ClusterPhase::Ready)));
    let upgradable = condition(&status.conditions, names::UPGRADABLE).unwrap();
    assert_eq!((upgradable.status, upgradable.reason.as_str()), (Status::False, names::reasons::TRIED_AND_FAILED));
    assert_eq!(status.failed, Some(failed));

    world.retry = Some("again".to_owned());
    world.settle();
    assert_eq!((world.status.package_version.as_deref(), &world.status.failed), (Some("v1.37"), &None));
    assert_eq!(world.status.retried.as_deref(), Some("again"));
}

#[test]
fn what_failed_is_forgotten_when_another_is_asked_for_and_going_back_is_never_given_up() {
    let mut world = World::new();
    world.settle();
    world.spec.package_version = "v1.37".to_owned();
    world.settle();
    world.status.failed = Some(fleetwright_api::FailedChange {
        package_version: "v1.38".to_owned(),
        generation: Some(1),
        at: NOW,
        message: "it did not work".to_owned(),
    });
    assert_eq!(world.status().failed, None);

    world.spec.package_version = "v1.36".to_owned();
    let decision = world.decide();
    world.status = world.status();
    world.applied(&decision);
    world.now = NOW + SignedDuration::from_hours(5);
    assert!(world.decide().failed.is_none());
}

#[test]
fn authorities_are_replaced_in_phases_and_everybody_begins_anew_in_each() {
    let mut world = World::new();
    world.spec.snapshots =
        Some(fleetwright_api::Snapshots { every: fleetwright_api::Span::seconds(0), ..Default::default() });
    world.spec.certificates.rotate_authorities = Some("first".to_owned());
    world.settle();
    assert_eq!((&world.status.rotation, world.status.authorities.as_deref()), (&None, Some("first")), "it is new");
    let before = world.decide().templates;

    world.spec.certificates.rotate_authorities = Some("2026-11".to_owned());
    let decision = world.decide();
    assert!(decision.rotate.is_empty(), "it is written down before anything is done");
    world.settle();
    let trusting = world.status.rotation.clone().unwrap();
    assert_eq!((trusting.phase, trusting.since), (fleetwright_api::RotationPhase::Trusting, NOW));
    assert!(world.anchors.iter().all(|anchor| anchor.next && anchor.trusted == 2));
    let during = world.decide().templates;
    assert!(before.iter().all(|(component, template)| during[component] != *template), "they read it when they start");
    let valid = condition(&world.status.conditions, names::CERTIFICATES_VALID).unwrap();
    assert_eq!((valid.status, valid.reason.as_str()), (Status::True, names::reasons::ROTATING));
    assert_eq!(world.status(), world.status, "nothing goes on before its time");

    world.now = NOW + SignedDuration::from_hours(24);
    world.settle();
    assert!(world.anchors.iter().all(|anchor| !anchor.next && anchor.trusted == 2));
    assert_eq!(world.status.rotation.clone().unwrap().phase, fleetwright_api::RotationPhase::Signing);
    world.now = NOW + SignedDuration::from_hours(48);
    world.settle();
    assert!(world.anchors.iter().all(|anchor| !anchor.next && anchor.trusted == 1));
    assert_eq!((&world.status.rotation, world.status.authorities.as_deref()), (&None, Some("2026-11")));
}
