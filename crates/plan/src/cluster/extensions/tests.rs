use std::collections::BTreeMap;

use fleetwright_api::{
    ClusterPackageVersionSpec, ClusterSpec, Extension, ExtensionChoice, ExtensionPlacement, names, templates,
};
use serde_json::{Value, json};

use super::super::Names;
use super::*;

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ values.name | json }}, namespace: kube-system}\ndata: {dns: {{ cluster.dnsAddress | json }}}\n";

fn extension(name: &str, template: &str) -> Extension {
    let schema =
        "type: object\nproperties:\n  name: {type: string, default: a}\n  replicas: {type: integer, minimum: 1}\n";
    Extension {
        name: name.to_owned(),
        template: template.to_owned(),
        values_schema: Some(schema.to_owned()),
        ..Extension::default()
    }
}

struct ExtensionFixture {
    names: Names,
    labels: BTreeMap<String, String>,
    spec: ClusterSpec,
    package: ClusterPackageVersionSpec,
}

impl ExtensionFixture {
    fn of(extensions: Vec<Extension>) -> Self {
        let mut package = ClusterPackageVersionSpec::of_images("registry.example", "1.36.4", "3.6.16");
        package.extensions = extensions;
        Self {
            names: Names::of("fleet", "pay"),
            labels: [("tier".to_owned(), "prod".to_owned())].into(),
            spec: ClusterSpec::of("v1.36"),
            package,
        }
    }

    fn choose(mut self, name: &str, values: Value) -> Self {
        self.spec.extensions.push(ExtensionChoice { name: name.to_owned(), enabled: None, values: Some(values) });
        self
    }

    fn render(&self) -> Vec<Result<RenderedExtension, ExtensionError>> {
        render(&ExtensionInputs {
            names: &self.names,
            labels: &self.labels,
            spec: &self.spec,
            package: ("v1.36", &self.package),
            server: Some("https://192.0.2.7:6443"),
            ca_bundle: Some("-----BEGIN-----\n"),
        })
    }

    /// Without built-in extensions.
    fn given(&self) -> Vec<Result<RenderedExtension, ExtensionError>> {
        let mut all = self.render();
        all.retain(|one| one.as_ref().map_or(true, |one| one.order > 0));
        all
    }

    /// The only extension, which cannot be rendered.
    fn mistake(&self) -> String {
        match &self.given()[..] {
            [Err(mistake)] => mistake.to_string(),
            other => panic!("{other:#?}"),
        }
    }

    fn one(&self) -> RenderedExtension {
        match &self.given()[..] {
            [Ok(one)] => one.clone(),
            other => panic!("{other:#?}"),
        }
    }
}

#[test]
fn templates_see_what_is_known_of_the_cluster_and_nothing_else() {
    for name in templates::CLUSTER {
        let template = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{it: {{{{ cluster.{name} | json }}}}}}\n"
        );
        ExtensionFixture::of(vec![extension("a", &template)]).one();
    }
    let told = ExtensionFixture::of(vec![extension("a", "x: 1\ny: {{ cluster.password }}\n")]).mistake();
    assert!(told.contains("extension a") && told.contains("line 2") && told.contains("cluster.password "), "{told}");
    let told = ExtensionFixture::of(vec![extension("a", "{% if machine.name %}{% endif %}")]).mistake();
    assert!(told.contains("machine ") && told.contains("cluster, values)"), "{told}");
    let told = ExtensionFixture::of(vec![extension("a", "x: {{ values.size }}")]).mistake();
    assert!(told.contains("values.size ") && told.contains("values.name)"), "{told}");
    let told = ExtensionFixture::of(vec![extension("a", "x: {{ cluster.labels.zone }}")]).mistake();
    assert!(told.contains("cluster.labels.zone ") && told.contains("cluster.labels.tier)"), "{told}");
}

#[test]
fn values_have_defaults_and_are_as_the_schema_says() {
    let world = || ExtensionFixture::of(vec![extension("a", CONFIG)]);
    assert_eq!(world().one().objects[0]["metadata"]["name"], "a");
    assert_eq!(world().choose("a", json!({ "name": "b: c" })).one().objects[0]["metadata"]["name"], "b: c");
    for (values, parts) in [
        (json!({ "replicas": 0 }), ["replicas: ", ""]),
        (json!({ "replicas": "2" }), ["replicas: ", ""]),
        (json!({ "size": 2 }), [" size", "name, replicas"]),
        (json!({ "kind": 2 }), [" kind", "name, replicas"]),
    ] {
        let told = world().choose("a", values).mistake();
        assert!(told.starts_with("extension a, values: "), "{told}");
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    }
    let mut plain = extension("a", CONFIG);
    plain.values_schema = None;
    let told = ExtensionFixture::of(vec![plain]).choose("a", json!({ "name": "b" })).mistake();
    assert!(told.starts_with("extension a, values: ") && told.contains("no values"), "{told}");
}

#[test]
fn a_schema_that_says_nothing_is_found() {
    let patterns: String = (0..60).map(|n| format!("  p{n}: {{type: string, pattern: '^.{{1000}}$'}}\n")).collect();
    let costly = format!("type: object\nproperties:\n{patterns}");
    for (schema, said) in [
        ("type: object\nproperites: {}\n", "properites"),
        ("type: string\n", "type: object"),
        ("type: [", "YAML"),
        (costly.as_str(), "2000000 units"),
    ] {
        let mut one = extension("a", CONFIG);
        one.values_schema = Some(schema.to_owned());
        let told = ExtensionFixture::of(vec![one]).mistake();
        assert!(told.starts_with("extension a, valuesSchema: ") && told.contains(said), "{told}");
    }
}

#[test]
fn the_same_inputs_give_the_same_bytes_with_our_labels() {
    let world = ExtensionFixture::of(vec![extension("a", CONFIG)]);
    let (one, two) = (world.one(), world.one());
    assert_eq!((&one.digest, json!(one.objects).to_string()), (&two.digest, json!(two.objects).to_string()));
    let labels = &one.objects[0]["metadata"]["labels"];
    assert_eq!(
        (&labels[EXTENSION], &labels[names::CLUSTER], &labels[names::CLUSTER_NAMESPACE]),
        (&json!("a"), &json!("pay"), &json!("fleet"))
    );
    assert_ne!(
        ExtensionFixture::of(vec![extension("a", CONFIG)]).choose("a", json!({ "name": "b" })).one().digest,
        one.digest
    );
}

#[test]
fn they_come_by_order_and_name_and_what_others_need_comes_first() {
    let at = |name: &str, order| Extension {
        order,
        ..extension(name, &CONFIG.replace("values.name", &format!("'{name}'")))
    };
    let world = ExtensionFixture::of(vec![at("z", 10), at("b", 20), at("a", 20)]);
    let names: Vec<_> = world.given().into_iter().map(|one| one.unwrap().name).collect();
    assert_eq!(names, ["z", "a", "b"]);
    let two = format!("{CONFIG}---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: other}}\n---\n# nothing\n");
    let kinds: Vec<_> =
        ExtensionFixture::of(vec![extension("a", &two)]).one().objects.iter().map(|one| one["kind"].clone()).collect();
    assert_eq!(kinds, ["Namespace", "ConfigMap"]);
}

#[test]
fn what_is_off_is_not_rendered_and_an_unknown_extension_is_reported() {
    let mut world = ExtensionFixture::of(vec![Extension { enabled: false, ..extension("a", CONFIG) }]);
    assert!(world.render().is_empty());
    world.spec.extensions.push(ExtensionChoice { name: "a".to_owned(), enabled: Some(true), values: None });
    assert_eq!(world.given().len(), 1);
    world.spec.extensions = vec![ExtensionChoice { name: "b".to_owned(), enabled: Some(false), values: None }];
    assert!(world.render().is_empty());
    world.spec.extensions[0].enabled = None;
    let told = world.mistake();
    assert!(told.starts_with("extension b, spec.extensions: "), "{told}");
    assert!(told.contains("v1.36") && told.ends_with(": a"), "{told}");
}

#[test]
fn what_is_no_object_or_there_twice_is_refused() {
    for (template, said) in [
        ("- a\n", "not an object"),
        ("kind: ConfigMap\n", "apiVersion and kind"),
        ("apiVersion: v1\nkind: ConfigMap\n", "ConfigMap: metadata.name"),
        ("apiVersion: v1\nkind: List\nitems: []\n", "document 1: List "),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {a: 1}}\n", "ConfigMap a: metadata.labels"),
        ("a: b: c\n", "YAML"),
    ] {
        let told = ExtensionFixture::of(vec![extension("a", template)]).mistake();
        assert!(told.contains(said), "{told}");
    }
    assert!(ExtensionFixture::of(vec![extension("a", &format!("{CONFIG}---\n{CONFIG}"))]).mistake().contains("twice"));
    let world = ExtensionFixture::of(vec![extension("a", CONFIG), extension("b", CONFIG)]);
    let told = world.given().remove(1).unwrap_err().to_string();
    assert!(told.contains("ConfigMap kube-system/a") && told.contains("extension a;"), "{told}");
}

#[test]
fn beside_the_control_plane_are_a_few_kinds_in_its_namespace_alone() {
    let meta = |template: &str| {
        ExtensionFixture::of(vec![Extension { placement: ExtensionPlacement::Meta, ..extension("a", template) }])
    };
    let one = meta("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n").one();
    assert_eq!(one.objects[0]["metadata"]["namespace"], "fleet-pay");
    for (template, said) in [
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: other}\n", "metadata.namespace other"),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "Secret a is not allowed"),
        (
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\n",
            "ClusterRole a is not allowed",
        ),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: kube-apiserver}\n", "reserved"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: etcd-config}\n", "reserved"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: extensions}\n", "reserved"),
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: x\n",
            "spec.template.metadata.labels is required",
        ),
    ] {
        let told = meta(template).mistake();
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn workloads_work_when_all_of_the_present_template_do() {
    use health::{CheckTarget, health_problem};
    let deployment = |updated: i64, available: i64, observed: i64| {
        json!({
            "metadata": { "generation": 2 }, "spec": { "replicas": 2 },
            "status": { "observedGeneration": observed, "updatedReplicas": updated, "availableReplicas": available },
        })
    };
    let told = |object: Value| health_problem(CheckTarget::Deployment, "dns", Some(&object));
    assert_eq!(told(deployment(2, 2, 2)), None);
    let one = told(deployment(1, 2, 2)).unwrap();
    assert!(one.starts_with("Deployment dns") && one.contains("1 of 2"), "{one}");
    let stale = told(deployment(2, 2, 1)).unwrap();
    assert!(stale.starts_with("Deployment dns") && !stale.contains(" of "), "{stale}");
    assert!(health_problem(CheckTarget::Job, "j", None).unwrap().starts_with("Job j "));
    let job =
        |type_: &str| json!({ "status": { "conditions": [{ "type": type_, "status": "True", "message": "no" }] } });
    assert_eq!(health_problem(CheckTarget::Job, "j", Some(&job("Complete"))), None);
    assert!(health_problem(CheckTarget::Job, "j", Some(&job("Failed"))).unwrap().ends_with("failed: no"));
    let set =
        json!({ "metadata": { "generation": 1 }, "status": { "observedGeneration": 1, "desiredNumberScheduled": 0 } });
    assert_eq!(
        health_problem(CheckTarget::DaemonSet, "p", Some(&set)),
        None,
        "where there are no nodes, there are no pods"
    );
    assert!(health_problem(CheckTarget::ApiService, "a", Some(&json!({}))).is_some());
}

fn images(name: &str) -> String {
    format!("registry.example/{name}:v1.36.4")
}

#[test]
fn what_is_shipped_can_be_rendered_and_brings_the_kinds_and_the_endpoint() {
    let world = ExtensionFixture::of(shipped(images).unwrap());
    let all: Vec<_> = world.render().into_iter().map(Result::unwrap).collect();
    let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(
        names,
        ["kubernetes-endpoint", "machine-kinds", "machine-access", "machine-operator", "kube-proxy", "coredns"]
    );
    let slice = &all[0].objects[0];
    assert_eq!(
        (&slice["endpoints"][0]["addresses"], &slice["ports"][0]["port"]),
        (&json!(["192.0.2.7"]), &json!(6443))
    );
    assert_eq!(slice["addressType"], "IPv4");
    let kinds: Vec<_> = all[1].objects.iter().map(|one| one["spec"]["names"]["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"Machine") && !kinds.contains(&"Cluster"), "{kinds:?}");
    for one in all.iter().flat_map(|one| &one.objects).filter(|one| one["kind"] == "Deployment") {
        assert!(
            one["spec"]["template"]["spec"]["containers"][0]["image"]
                .as_str()
                .unwrap()
                .starts_with("registry.example/")
        );
    }
}

#[test]
fn who_runs_beside_the_control_plane_has_a_user_of_its_own() {
    use super::super::certificates::of_extensions;
    let world = ExtensionFixture::of(shipped(images).unwrap());
    let [one] = &of_extensions(&world.package)[..] else { panic!("one certificate") };
    assert_eq!((one.common_name.as_str(), one.organizations.len()), ("fleetwright:machine-operator", 0));
    assert!(of_extensions(&ExtensionFixture::of(vec![extension("a", CONFIG)]).package).is_empty());
}

#[test]
fn a_name_leaves_the_endpoint_to_the_api_servers() {
    let mut world = ExtensionFixture::of(vec![extension("a", CONFIG)]);
    assert!(keeps_endpoint(&world.spec, &world.package));
    world.spec.endpoint.host = Some("pay.example.com".to_owned());
    assert!(!keeps_endpoint(&world.spec, &world.package));
    world.package.extensions.clear();
    world.spec.endpoint.host = None;
    assert!(!keeps_endpoint(&world.spec, &world.package), "without workers nobody asks");
}

#[test]
fn the_example_has_what_is_shipped() {
    let text = include_str!("../../../../../docs/examples/workers.yaml");
    let example: Value = serde_saphyr::from_str(text).unwrap();
    let images = |name: &str| match name {
        "coredns" => "registry.example/coredns:v1.14.0".to_owned(),
        "fleetwright" => "registry.example/fleetwright:v0.1.0".to_owned(),
        other => format!("registry.example/{other}:v1.36.4"),
    };
    let extensions: Vec<Extension> = serde_json::from_value(example["spec"]["extensions"].clone()).unwrap();
    assert_eq!(extensions, shipped(images).unwrap());
}

/// A Deployment beside the control plane, with this in its pods.
fn beside(spec: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a}}\nspec:\n  selector: {{matchLabels: {{app: a}}}}\n  template:\n    metadata: {{labels: {{app: a}}}}\n    spec: {spec}\n"
    )
}

fn meta(template: &str) -> ExtensionFixture {
    ExtensionFixture::of(vec![Extension { placement: ExtensionPlacement::Meta, ..extension("a", template) }])
}

#[test]
fn pods_beside_the_control_plane_get_no_keys_and_nothing_of_the_node() {
    let with = |rest: &str| beside(&format!("{{containers: [{{name: a, image: a}}], {rest}}}"));
    let container = |rest: &str| beside(&format!("{{containers: [{{name: a, image: a, {rest}}}]}}"));
    let init = |rest: &str| {
        beside(&format!("{{containers: [{{name: a, image: a}}], initContainers: [{{name: b, image: a, {rest}}}]}}"))
    };
    let volume = |rest: &str| with(&format!("volumes: [{{name: a, emptyDir: {{}}}}, {{name: b, {rest}}}]"));
    for (template, at) in [
        (volume("secret: {secretName: ca}"), "volumes[1].secret.secretName is \"ca\""),
        (volume("secret: {}"), "volumes[1].secret.secretName"),
        (
            volume("projected: {sources: [{secret: {name: snapshot-key}}]}"),
            "volumes[1].projected.sources[0].secret.name",
        ),
        (volume("projected: {sources: [{serviceAccountToken: {path: t}}]}"), "sources[0].serviceAccountToken"),
        (volume("persistentVolumeClaim: {claimName: data-etcd-0}"), "volumes[1].persistentVolumeClaim"),
        (volume("hostPath: {path: /}"), "volumes[1].hostPath"),
        (volume("csi: {driver: secrets-store.csi.k8s.io}"), "volumes[1].csi"),
        (container("envFrom: [{secretRef: {name: etcd-external}}]"), "containers[0].envFrom[0].secretRef.name"),
        (
            init("env: [{name: A, valueFrom: {secretKeyRef: {name: service-account, key: sa.key}}}]"),
            "initContainers[0].env[0].valueFrom.secretKeyRef.name",
        ),
        (container("ports: [{containerPort: 1, hostPort: 1}]"), "containers[0].ports[0].hostPort"),
        (container("securityContext: {privileged: true}"), "containers[0].securityContext.privileged"),
        (init("securityContext: {capabilities: {add: [NET_ADMIN]}}"), "securityContext.capabilities.add"),
        (with("hostNetwork: true"), "spec.template.spec.hostNetwork"),
        (with("hostPID: true"), "spec.template.spec.hostPID"),
        (with("serviceAccountName: fleetwright-operators"), "spec.template.spec.serviceAccountName"),
        (with("serviceAccount: default"), "spec.template.spec.serviceAccount"),
        (with("automountServiceAccountToken: true"), "spec.template.spec.automountServiceAccountToken"),
        (with("imagePullSecrets: [{name: ca}]"), "spec.template.spec.imagePullSecrets"),
        (
            with("").replace("labels: {app: a}", "labels: {app: a, fleetwright.io/component: kube-apiserver}"),
            "spec.template.metadata.labels has fleetwright.io/component",
        ),
        (
            with("").replace("labels: {app: a}", "labels: {app: a, fleetwright.io/serving: \"true\"}"),
            "spec.template.metadata.labels has fleetwright.io/serving",
        ),
        (
            with("").replace("{name: a}\nspec", "{name: a, labels: {fleetwright.io/component: etcd}}\nspec"),
            "metadata.labels has fleetwright.io/component",
        ),
        (
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: x\n".to_owned(),
            "spec.podSelector",
        ),
    ] {
        let told = meta(&template).mistake();
        assert!(told.starts_with("extension a, template: document 1: ") && told.contains(at), "{at}: {told}");
    }
    let good = volume("secret: {secretName: machine-operator-kubeconfig}");
    let one = meta(&good).one();
    let spec = &one.objects[0]["spec"]["template"]["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    // In the business cluster the package version decides about all of it.
    ExtensionFixture::of(vec![extension("a", &with("hostNetwork: true"))]).one();
}

#[test]
fn a_network_policy_beside_the_control_plane_is_for_the_extensions_own_pods() {
    for selector in ["podSelector: {}", "podSelector: {matchLabels: {app: a}}", "ingress: [{}]"] {
        let policy = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: a}}\nspec: {{{selector}, policyTypes: [Egress]}}\n"
        );
        let one = meta(&policy).one();
        assert_eq!(one.objects[0]["spec"]["podSelector"]["matchLabels"][EXTENSION], "a", "{selector}");
    }
}

#[test]
fn a_network_policy_beside_the_control_plane_opens_nothing_of_the_meta_cluster() {
    let policy = |name: &str, spec: &str| {
        format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
    };
    for spec in [
        "egress: [{}]",
        "podSelector: {}, policyTypes: [Ingress, Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]",
    ] {
        let mistake = meta(&policy("a", spec)).mistake();
        assert!(mistake.contains("spec.egress"), "{mistake}");
    }
    for ours in ["default-deny", "names", "extensions", "snapshot", "restore-source", "restore-member"] {
        let mistake = meta(&policy(ours, "podSelector: {}")).mistake();
        assert!(mistake.contains("reserved"), "{mistake}");
    }
}

/// Objects that an attacker with the right to write Clusters would want beside the control plane.
const INJECTED: &str = "x\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: evil}\nspec:\n  selector: {matchLabels: {app: evil}}\n  template:\n    metadata: {labels: {app: evil}}\n    spec: {containers: [{name: evil, image: evil}]}\n";

#[test]
fn values_choose_neither_objects_nor_images_beside_the_control_plane() {
    let refused = |template: &str, values: Value, said: &str| {
        let world = meta(template).choose("a", values);
        let [Err(mistake)] = &world.given()[..] else { panic!("{:#?}", world.given()) };
        assert!(mistake.chosen && mistake.place == "values" && mistake.message.contains(said), "{mistake}");
    };
    // By YAML injection in a template that does not quote values.
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  text: {{ values.name }}\n";
    refused(config, json!({ "name": INJECTED }), "Deployment fleet-pay/evil");
    meta(config).choose("a", json!({ "name": "b" })).one();
    // By values that a template allows.
    refused(
        &config.replace("name: a", "name: {{ values.name | json }}"),
        json!({ "name": "b" }),
        "ConfigMap fleet-pay/b",
    );
    let optional =
        format!("{config}{{% if values.name == 'b' %}}---\n{}{{% endif %}}", config.replace("name: a", "name: b"));
    refused(&optional, json!({ "name": "b" }), "ConfigMap fleet-pay/b");
    for chosen in [
        "{containers: [{name: a, image: {{ values.name | json }}}]}",
        "{containers: [{name: a, image: x, command: [{{ values.name | json }}]}]}",
        "{containers: [{name: {{ values.name | json }}, image: x}]}",
    ] {
        refused(&beside(chosen), json!({ "name": "evil" }), "containers, images or commands");
    }
    let unquoted = beside("{containers: [{name: a, image: x, args: [{{ values.name }}]}]}");
    meta(&unquoted).choose("a", json!({ "name": "b" })).one();
    for (name, said) in [
        ("b]}, {name: evil, image: evil, args: [c", "containers, images"),
        ("b], envFrom: [{secretRef: {name: ca}}], ports: [", "envFrom[0].secretRef.name"),
    ] {
        refused(&unquoted, json!({ "name": name }), said);
    }
    // Without a default there is no baseline for the comparison.
    let mut one = extension("a", config);
    one.values_schema = Some("type: object\nrequired: [name]\nproperties: {name: {type: string}}\n".to_owned());
    let world = ExtensionFixture::of(vec![Extension { placement: ExtensionPlacement::Meta, ..one }]);
    let told = world.choose("a", json!({ "name": "b" })).mistake();
    assert!(told.starts_with("extension a, valuesSchema: ") && told.contains("default"), "{told}");
}

#[test]
fn values_of_what_is_shipped_stay_what_they_are() {
    let shipped = || ExtensionFixture::of(shipped(images).unwrap());
    for name in ["machine-operator", "machine-access"] {
        for namespace in [INJECTED, "x, y: z", "", "-a", "A"] {
            let all = shipped().choose(name, json!({ "namespace": namespace })).render();
            let mistakes: Vec<_> = all.iter().filter_map(|one| one.as_ref().err()).collect();
            let [mistake] = &mistakes[..] else { panic!("{name} {namespace}: {mistakes:?}") };
            assert!(
                mistake.extension == name && mistake.chosen && mistake.message.starts_with("namespace: "),
                "{mistake}"
            );
        }
    }
    for forward in ["x\n    evil", "1.1.1.1 {", "1.1.1.1\n}"] {
        let all = shipped().choose("coredns", json!({ "forward": forward })).render();
        assert!(all.iter().any(|one| one.as_ref().is_err_and(|one| one.extension == "coredns")), "{forward}");
    }
    for name in ["machine-operator", "kube-proxy", "coredns"] {
        let all = shipped().choose(name, json!({ "image": "evil" })).render();
        let told = all.iter().find_map(|one| one.as_ref().err()).map(ToString::to_string).unwrap_or_default();
        assert!(told.starts_with(&format!("extension {name}, values: ")) && told.contains(" image;"), "{told}");
    }
    let all = shipped().choose("machine-operator", json!({ "namespace": "machines" })).render();
    let operator = all.iter().flatten().find(|one| one.name == MACHINE_OPERATOR).unwrap();
    let args = &operator.objects[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    assert!(args.as_array().unwrap().contains(&json!("--namespace=machines")), "{args}");
    shipped().choose("coredns", json!({ "forward": "192.0.2.1 2001:db8::1" })).render().into_iter().for_each(|one| {
        one.unwrap();
    });
}
