//! `fleetwright package`: generated packages are valid, and errors are reported with their place.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{BINARY, CommandResult, alone};

/// Runs `fleetwright package lint - …` on this text.
fn lint(text: &str, more: &[&str]) -> CommandResult {
    let mut command = Command::new(BINARY);
    command.args(["package", "lint", "-"]).args(more).env_remove("KUBECONFIG").env_remove("FLEETWRIGHT_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it is read");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    CommandResult { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

const GOOD: &str = r#"apiVersion: fleetwright.io/v1alpha1
kind: MachinePackageVersion
metadata:
  name: motd-1
spec:
  component: motd
  version: "1"
  config: {}
  files:
  - path: /etc/motd
    template: |
      Welcome to
      {{ machine.name }}
"#;

#[test]
fn everything_that_new_makes_is_accepted_by_lint() {
    let list = alone(&["package", "new", "--list"]).ok();
    let names: Vec<_> = list.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert!(names.len() >= 16, "{list}");
    let (mut bare, mut sourced) = (String::new(), String::new());
    for name in names {
        let made = alone(&["package", "new", name]).ok();
        bare.push_str(&format!("---\n{made}"));
        if made.contains("sha256:") || ["deb", "rpm", "containerd", "runc", "cni-plugins", "kernel"].contains(&name) {
            let digest = "ab".repeat(32);
            let url = ["--url", "http://packages.fleet/file", "--sha256", &digest];
            let made = alone(&[&["package", "new", name][..], &url].concat()).ok();
            assert!(made.contains("http://packages.fleet/file") && made.contains(&digest), "{made}");
            sourced.push_str(&format!("---\n{made}"));
        }
    }
    let said = lint(&bare, &[]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let doubtful: Vec<_> = said.out.lines().filter(|line| line.contains(": warning: ")).collect();
    assert!(doubtful.iter().all(|line| line.contains("sha256sum")), "{doubtful:#?}");
    let said = lint(&sourced, &["--strict"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
}

#[test]
fn the_digest_of_a_file_is_computed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.tar");
    std::fs::write(&file, "foo").expect("it can be written");
    let file = file.to_str().expect("text");
    let made =
        alone(&["package", "new", "kubelet", "--version", "1.36.4", "--url", "http://p/x.tar", "--from-file", file])
            .ok();
    assert!(made.contains("2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"), "{made}");
    assert!(made.contains("name: kubelet-1.36.4"), "{made}");
}

#[test]
fn what_new_cannot_use_is_refused() {
    for (args, said) in [
        (&["sysctl", "--url", "http://x/y"][..], "--url"),
        (&["kubelet", "--package-version", "1"], "one version"),
        (&["containerd", "--sha256", &"0".repeat(64)], "need --url"),
        (&["kubelet", "--from-file", "/nonexistent"], "cannot open /nonexistent"),
    ] {
        let refused = alone(&[&["package", "new"][..], args].concat()).refused();
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
}

#[test]
fn a_good_package_version_is_accepted_and_others_are_passed_by() {
    let said = lint(GOOD, &["--strict"]).ok();
    assert_eq!(said, "no errors, no warnings in 1 package version\n");
    let said = lint(&format!("{GOOD}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n"), &[]).ok();
    assert!(said.contains("standard input:16:7: note: kind: ConfigMap "), "{said}");
}

#[test]
fn values_in_scripts_are_quoted_and_images_are_named_by_their_digests() {
    let script = "apiVersion: fleetwright.io/v1alpha1\nkind: MachinePackageVersion\nmetadata: {name: team-1}\nspec:\n  component: team\n  version: \"1\"\n  script:\n    check: test -e /etc/team\n    apply: |\n      true\n      echo {{ machine.labels.team }} >/etc/team\n    remove: rm -f /etc/team\n";
    let ran = lint(script, &[]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains(":11:1: error: spec.script.apply: {{ machine.labels.team }}"), "{}", ran.out);
    lint(&script.replace("machine.labels.team", "machine.labels.team | sh"), &["--strict"]).ok();
    let component = |name: &str, image: &str| format!("    {name}: {{image: \"{image}\", version: 1.36.4}}\n");
    let digest = format!("registry.example/a@sha256:{}", "a".repeat(64));
    let plane = |image: &str| {
        let components = ["etcd", "apiserver", "controllerManager", "scheduler"];
        let components: String = components.iter().map(|name| component(name, image)).collect();
        format!(
            "apiVersion: fleetwright.io/v1alpha1\nkind: ClusterPackageVersion\nmetadata: {{name: k8s}}\nspec:\n  kubernetes: 1.36.4\n  components:\n{components}"
        )
    };
    assert!(lint(&plane(&digest), &["--strict"]).ok().contains("no warnings"));
    let ran = lint(&plane("registry.example/a:v1.36.4"), &["--strict"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert_eq!(ran.out.matches("@sha256:").count(), 4, "{}", ran.out);
    assert!(ran.out.contains("warning: spec.components.apiserver.image:"), "{}", ran.out);
}

#[test]
fn values_in_templates_of_extensions_are_quoted() {
    let image = format!("registry.example/a@sha256:{}", "a".repeat(64));
    let plane = |text: &str| {
        let components = ["etcd", "apiserver", "controllerManager", "scheduler"];
        let components =
            components.map(|name| format!("    {name}: {{image: \"{image}\", version: 1.36.4}}\n")).concat();
        format!(
            "apiVersion: fleetwright.io/v1alpha1\nkind: ClusterPackageVersion\nmetadata: {{name: k8s}}\nspec:\n  kubernetes: 1.36.4\n  components:\n{components}  extensions:\n  - name: notes\n    template: |\n      a: 1\n      b: {text}\n"
        )
    };
    let ran = lint(&plane("{{ values.text }}"), &["--strict"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains(":15:1: warning: spec.extensions[0].template: {{ values.text }}"), "{}", ran.out);
    lint(&plane("{{ values.text | json }}"), &["--strict"]).ok();
}

#[test]
fn mistakes_are_reported_with_their_line() {
    for (from, to, place, said) in [
        ("{{ machine.name }}", "{{ machine.nam }}", "13:1: error: spec.files[0].template:", "machine.nam"),
        ("/etc/motd", "/proc/motd", "10:11: error: spec.files[0].path:", "/proc"),
        ("  config: {}\n", "  config: {}\n  reboot: {}\n", "6:3: error: spec:", "deb, rpm"),
        ("version: \"1\"", "version: 1", "7:12: error: spec.version:", "string"),
        ("  config: {}\n", "  config: {}\n  colour: red\n", "error: spec.colour: ", ""),
        ("config: {}", "config: {", "error: invalid YAML:", ""),
        ("name: motd-1", "name: Motd_1", "4:9: error: metadata.name:", "lowercase"),
    ] {
        assert!(GOOD.contains(from));
        let ran = lint(&GOOD.replace(from, to), &[]);
        assert_eq!(ran.code, 1, "{to}: {}", ran.out);
        assert!(ran.out.contains(place) && ran.out.contains(said), "{to}: {}", ran.out);
    }
}

#[test]
fn what_is_doubtful_fails_only_if_asked_for() {
    let text = GOOD.replace("path: /etc/motd", "path: /run/motd");
    let said = lint(&text, &[]).ok();
    assert!(said.contains("standard input:10:11: warning: spec.files[0].path:"), "{said}");
    assert!(lint(&text, &["--strict"]).refused().contains("1 warning"));
}

#[test]
fn programs_get_json() {
    let ran = lint(&GOOD.replace("machine.name", "nosuch"), &["-o", "json"]);
    assert_eq!(ran.code, 1);
    let findings: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(findings[0]["line"], 13, "{findings}");
    assert_eq!(findings[0]["severity"], "error");
    assert_eq!(findings[0]["name"], "motd-1");
    assert_eq!(findings[0]["field"], "spec.files[0].template");
}

#[test]
fn packages_for_one_machine_are_judged_together() {
    let all: String = ["containerd", "runc", "cni-plugins", "sysctl-network"]
        .iter()
        .map(|name| format!("---\n{}", alone(&["package", "new", name]).ok()))
        .collect();
    lint(&all, &["--together"]).ok();
    let alone = alone(&["package", "new", "containerd"]).ok();
    assert_eq!(lint(&alone, &[]).code, 0);
    let ran = lint(&format!("{alone}---\n{alone}"), &["--together"]);
    assert!(ran.out.contains("containerd depends on runc") && ran.out.contains("twice"), "{}", ran.out);
}

#[test]
fn the_examples_of_the_guide_are_accepted() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/packages.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    let examples: Vec<_> = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 8, "one for each method");
    for example in examples {
        let said = lint(example, &["--strict"]);
        assert_eq!(said.code, 0, "{example}\n{}{}", said.out, said.err);
    }
}
