use std::collections::BTreeMap;

use fleetwright_api::{Facts, Machine, MachinePackageVersion};
use fleetwright_wire::{Content, Package};
use serde_json::{Value, json};

use crate::package::shipped::{Placeholder, SHIPPED, ShippedPackage};
use crate::package::{Lookup, PackageMember, SecretUnavailable, Values, check, check_set, render};

struct Nothing;

impl Lookup for Nothing {
    fn secret(&self, _: &str, _: &str, _: &str) -> Result<Vec<u8>, SecretUnavailable> {
        Err(SecretUnavailable::Missing)
    }

    fn config_map(&self, _: &str, _: &str) -> Option<Vec<u8>> {
        None
    }
}

fn filled(shipped: &ShippedPackage, url: bool) -> MachinePackageVersion {
    let fill = Placeholder {
        url: url.then(|| "http://packages/x.tar.gz".to_owned()),
        sha256: url.then(|| "ab".repeat(32)),
        ..Placeholder::default()
    };
    let text = shipped.fill(&fill);
    assert!(!text.contains("@NAME@") && !text.contains("#@url"), "{text}");
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", shipped.name))
}

fn cluster(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let base =
        [("caBundle", "-----BEGIN\n-----END\n\n"), ("dnsAddress", "10.96.0.10"), ("server", "https://198.18.0.1:6443")];
    base.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn machine() -> Machine {
    serde_json::from_value(json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "host-1", "labels": {"fleetwright.io/pod-cidr": "10.1.17.0_24"}},
        "spec": {
            "addresses": ["198.18.0.17"],
            "providerID": "lab://host-1",
            "nodeLabels": {"pool": "online", "node-role.kubernetes.io/worker": ""},
            "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        },
    }))
    .unwrap()
}

fn rendered(name: &str, more: &[(&str, &str)]) -> Package {
    let package = filled(ShippedPackage::named(name).unwrap(), true);
    let (machine, facts, cluster) = (machine(), Facts::default(), cluster(more));
    render(&package, &Values { machine: &machine, facts: Some(&facts), cluster: &cluster }, &Nothing).unwrap().package
}

fn file<'a>(package: &'a Package, path: &str) -> &'a str {
    match &package.files.iter().find(|file| file.path == path).unwrap().content {
        Content::Text(text) => text,
        Content::Bytes(_) => panic!("text"),
    }
}

#[test]
fn nothing_is_wrong_with_any_of_them() {
    for shipped in SHIPPED {
        for url in [true, shipped.needs_source()] {
            let package = filled(shipped, url);
            assert_eq!(package.spec.component, shipped.component, "{}", shipped.name);
            assert_eq!(check(&package.spec), [], "{}", shipped.name);
        }
        assert!(shipped.about().ends_with(['.', ':']), "{}: {:?}", shipped.name, shipped.about());
    }
}

#[test]
fn there_is_one_for_each_method() {
    let methods = ["deb", "rpm", "tarball", "config", "sysctl", "kernel", "script", "reboot"];
    for method in methods {
        let shipped = ShippedPackage::named(method).unwrap_or_else(|| panic!("an example of {method}"));
        let spec = serde_json::to_value(filled(shipped, true).spec).unwrap();
        assert!(spec.get(method).is_some(), "{method}");
    }
}

#[test]
fn the_components_of_a_node_go_together() {
    let specs: Vec<_> = SHIPPED.iter().filter(|shipped| !shipped.example).map(|one| filled(one, true).spec).collect();
    let members: Vec<_> = specs.iter().map(PackageMember::from).collect();
    assert_eq!(check_set(&members), []);
}

#[test]
fn a_kubelet_registers_with_the_taint_that_its_gates_take_away_and_with_the_machines_own() {
    let kubelet = rendered("kubelet", &[]);
    let config: Value = serde_saphyr::from_str(file(&kubelet, "/etc/kubernetes/kubelet.yaml")).unwrap();
    assert_eq!(
        config["registerWithTaints"],
        json!([
            {"key": "fleetwright.io/unready", "effect": "NoSchedule"},
            {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        ])
    );
    assert_eq!(config["providerID"], "lab://host-1");
    assert_eq!(config["cgroupDriver"], "systemd");
    assert_eq!(config.get("failCgroupV1"), None);
    assert_eq!(config["rotateCertificates"], true);
    assert_eq!(config["serverTLSBootstrap"], true);
    assert_eq!(file(&kubelet, "/etc/kubernetes/ca.crt"), "-----BEGIN\n-----END\n");
    let unit = kubelet.units[0].content.as_deref().unwrap();
    let start: Vec<_> = unit
        .lines()
        .skip_while(|line| !line.starts_with("ExecStart="))
        .take_while(|line| !line.starts_with("Restart="))
        .collect();
    assert_eq!(
        start,
        [
            r"ExecStart=/usr/local/bin/kubelet \",
            r"  --config=/etc/kubernetes/kubelet.yaml \",
            r"  --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \",
            r"  --kubeconfig=/etc/kubernetes/kubelet.conf \",
            r"  --cert-dir=/var/lib/kubelet/pki \",
            r"  --node-labels=pool=online \",
            r"  --hostname-override=host-1",
        ]
    );
}

#[test]
fn hosts_that_are_containers_with_old_control_groups_get_other_settings() {
    let values = [("cgroupDriver", "cgroupfs"), ("cgroupV1", "true"), ("nested", "true")];
    let kubelet = rendered("kubelet", &values);
    let config: Value = serde_saphyr::from_str(file(&kubelet, "/etc/kubernetes/kubelet.yaml")).unwrap();
    assert_eq!(config["failCgroupV1"], false);
    assert_eq!(config["cgroupDriver"], "cgroupfs");
    assert_eq!(config["enforceNodeAllocatable"], json!([]));
    assert_eq!(config["localStorageCapacityIsolation"], false);
    let containerd = rendered("containerd", &values);
    let config = file(&containerd, "/etc/containerd/config.toml");
    assert!(config.contains("restrict_oom_score_adj = true") && config.contains("SystemdCgroup = false"), "{config}");
    assert!(containerd.units[0].drop_ins["10-fleetwright.conf"].contains("OOMScoreAdjust=0\nLimitNPROC=\n"));
    let containerd = rendered("containerd", &[]);
    let config = file(&containerd, "/etc/containerd/config.toml");
    assert!(config.contains("restrict_oom_score_adj = false") && config.contains("SystemdCgroup = true"), "{config}");
    assert_eq!(containerd.units[0].drop_ins["10-fleetwright.conf"], "[Service]\nOOMScoreAdjust=-999\n");
}

#[test]
fn each_machine_has_pod_addresses_of_its_own() {
    let cni = rendered("cni-plugins", &[]);
    let config: Value = serde_json::from_str(file(&cni, "/etc/cni/net.d/10-fleetwright.conflist")).unwrap();
    assert_eq!(config["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.1.17.0/24");
    assert_eq!(config["plugins"][0]["ipMasq"], true);
}

#[test]
fn names_of_objects_come_from_versions_that_are_no_names() {
    let containerd = ShippedPackage::named("containerd").unwrap();
    assert_eq!(containerd.object_name("1.6.20~ds1-1+deb12u3"), "containerd-1.6.20-ds1-1-deb12u3");
    assert_eq!(containerd.object_name("1:2.0~"), "containerd-1-2.0");
}

#[test]
fn a_kubelet_says_which_authorities_it_joins_with() {
    let package = filled(ShippedPackage::named("kubelet").unwrap(), true);
    let trusts = |bundle: &str| {
        let (machine, facts, cluster) = (machine(), Facts::default(), cluster(&[("caBundle", bundle)]));
        let values = Values { machine: &machine, facts: Some(&facts), cluster: &cluster };
        let rendered = render(&package, &values, &Nothing).unwrap();
        (rendered.trusts, rendered.digest)
    };
    let (old, signs) = (trusts("old\nnew\n"), trusts("new\nold\n"));
    assert_eq!(old.0.as_deref(), Some(&*crate::join::bundle_digest("old\nnew")));
    assert!(old.0 != signs.0 && old.1 != signs.1, "who signs comes first");
    assert_eq!(trusts("").0, None);
}

/// Runs the shipped script in a directory that stands for the host's root.
#[test]
fn a_kubelet_joins_again_with_other_authorities_and_goes_back_to_what_it_had() {
    let folder = std::env::temp_dir().join(format!("fleetwright-join-{}", std::process::id()));
    let root = folder.display().to_string();
    let script = file(&rendered("kubelet", &[]), "/etc/kubernetes/join-anew").replace("/etc/", &format!("{root}/etc/"));
    let script = script.replace("/var/", &format!("{root}/var/"));
    let path = |name: &str| folder.join(name);
    let (conf, pki) = ("etc/kubernetes/kubelet.conf", "var/lib/kubelet/pki");
    let link = format!("{pki}/kubelet-client-current.pem");
    std::fs::create_dir_all(path("etc/kubernetes")).unwrap();
    let start = |bundle: &str| {
        std::fs::write(path("etc/kubernetes/ca.crt"), bundle).unwrap();
        let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let join = |of: &str| {
        std::fs::write(path(conf), of).unwrap();
        std::fs::write(path(&format!("{pki}/{of}.pem")), of).unwrap();
        let _ = std::fs::remove_file(path(&link));
        std::os::unix::fs::symlink(path(&format!("{pki}/{of}.pem")), path(&link)).unwrap();
    };
    let has = || (std::fs::read_to_string(path(conf)).ok(), std::fs::read_to_string(path(&link)).ok());
    let both = |of: &str| (Some(of.to_owned()), Some(of.to_owned()));

    start("old");
    assert_eq!(has(), (None, None), "its first join");
    join("first");
    start("old");
    assert_eq!(has(), both("first"), "it only began anew");
    start("old\nnew");
    assert_eq!(has(), (None, None));
    start("old\nnew");
    assert_eq!(has(), (None, None), "and it was stopped before it had joined");
    join("second");
    start("old");
    assert_eq!(has(), both("first"), "it went back");
    start("new");
    assert_eq!(has(), (None, None));
    std::fs::remove_dir_all(folder).unwrap();
}
