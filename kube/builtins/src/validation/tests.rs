use super::*;
use serde_json::json;

fn kind(group: &str, name: &str) -> &'static Kind {
    match crate::table::KINDS.iter().find(|kind| kind.group == group && kind.kind == name) {
        Some(kind) => kind,
        None => panic!("{group}/{name} is in the table"),
    }
}

fn error_texts(errors: Vec<FieldError>) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// What the server says about a new object, after its defaults.
fn created(group: &str, name: &str, mut object: Value) -> Vec<String> {
    let kind = kind(group, name);
    if let Some(meta) = crate::access::object(&mut object, "metadata") {
        crate::access::default(meta, "name", "it");
        if kind.namespaced {
            crate::access::default(meta, "namespace", "default");
        }
    }
    crate::defaults::apply(kind, &mut object);
    crate::strategy::prepare_create(kind, &mut object);
    error_texts(validate_create(kind, &object))
}

fn updated(group: &str, name: &str, old: Value, new: Value) -> Vec<String> {
    let kind = kind(group, name);
    let ready = |mut object: Value| {
        if let Some(meta) = crate::access::object(&mut object, "metadata") {
            crate::access::default(meta, "name", "it");
            crate::access::default(meta, "resourceVersion", "1");
            if kind.namespaced {
                crate::access::default(meta, "namespace", "default");
            }
        }
        crate::defaults::apply(kind, &mut object);
        object
    };
    let old = ready(old);
    let mut new = ready(new);
    crate::strategy::prepare_update(kind, None, &old, &mut new);
    error_texts(validate_update(kind, None, &new, &old))
}

fn pod(extra: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (key, value) in extra.as_object().into_iter().flatten() {
        crate::access::set(&mut spec, key, value.clone());
    }
    json!({"spec": spec})
}

fn deployment(extra: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    for (key, value) in extra.as_object().into_iter().flatten() {
        crate::access::set(&mut spec, key, value.clone());
    }
    json!({"spec": spec})
}

#[test]
fn an_ordinary_pod_is_fine() {
    assert_eq!(created("", "Pod", pod(json!({}))), Vec::<String>::new());
}

#[test]
fn a_pod_needs_a_container() {
    assert_eq!(created("", "Pod", json!({"spec": {"containers": []}})), ["spec.containers: Required value"]);
}

#[test]
fn a_container_needs_an_image_and_a_mounted_volume_must_exist() {
    let containers = json!([{"name": "C", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let errors = created("", "Pod", pod(json!({"containers": containers})));
    assert!(errors.iter().any(|error| error == "spec.containers[0].image: Required value"), "{errors:?}");
    let missing = "spec.containers[0].volumeMounts[0].name: Not found: \"v\"";
    assert!(errors.iter().any(|error| error == missing), "{errors:?}");
    assert!(errors.iter().any(|error| error.starts_with("spec.containers[0].name: Invalid value: \"C\"")));
}

#[test]
fn a_request_above_its_limit_is_refused() {
    let containers =
        json!([{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}]);
    assert_eq!(
        created("", "Pod", pod(json!({"containers": containers}))),
        ["spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"]
    );
}

#[test]
fn a_pod_update_changes_the_image_only() {
    let old = pod(json!({}));
    let image = pod(json!({"containers": [{"name": "c", "image": "j"}]}));
    assert_eq!(updated("", "Pod", old.clone(), image), Vec::<String>::new());
    let moved = updated("", "Pod", old.clone(), pod(json!({"nodeName": "n"})));
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert!(moved.join("").starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"));
    let more = json!([{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]);
    assert_eq!(
        updated("", "Pod", old, pod(json!({"containers": more}))),
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
}

#[test]
fn a_deployment_selects_its_own_pods() {
    assert_eq!(created("apps", "Deployment", deployment(json!({}))), Vec::<String>::new());
    assert_eq!(
        created("apps", "Deployment", deployment(json!({"selector": {"matchLabels": {"a": "c"}}}))),
        ["spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"]
    );
    let missing = created("apps", "Deployment", deployment(json!({"selector": null})));
    assert_eq!(missing.first().map(String::as_str), Some("spec.selector: Required value"));
    assert_eq!(
        created("apps", "Deployment", deployment(json!({"replicas": -1}))),
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
    );
}

#[test]
fn a_selector_is_for_ever() {
    let both =
        json!({"metadata": {"labels": {"a": "b", "c": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let old = deployment(json!({"template": both}));
    let new = deployment(json!({"template": both, "selector": {"matchLabels": {"c": "d"}}}));
    assert_eq!(
        updated("apps", "Deployment", old, new),
        ["spec.selector: Invalid value: {\"matchLabels\":{\"c\":\"d\"}}: field is immutable"]
    );
}

#[test]
fn a_frozen_config_map_stays_as_it_is() {
    let old = json!({"data": {"a": "b"}, "immutable": true});
    assert_eq!(
        updated("", "ConfigMap", old.clone(), json!({"data": {"a": "c"}, "immutable": true})),
        ["data: Forbidden: field is immutable when `immutable` is set"]
    );
    assert_eq!(
        updated("", "ConfigMap", old, json!({"data": {"a": "b"}})),
        ["immutable: Forbidden: field is immutable when `immutable` is set"]
    );
}

#[test]
fn a_key_of_a_config_map_is_a_file_name() {
    let errors = created("", "ConfigMap", json!({"data": {"a b": "c"}}));
    assert!(errors.join("").starts_with("data[a b]: Invalid value: \"a b\": a valid config key"), "{errors:?}");
}

#[test]
fn a_service_keeps_its_address() {
    let service = |ip: &str| json!({"spec": {"ports": [{"port": 80}], "clusterIP": ip, "clusterIPs": [ip]}});
    assert_eq!(
        updated("", "Service", service("10.96.0.1"), service("10.96.0.2")),
        ["spec.clusterIPs[0]: Invalid value: [\"10.96.0.2\"]: may not change once set"]
    );
}

#[test]
fn a_service_needs_ports() {
    assert_eq!(created("", "Service", json!({"spec": {}})), ["spec.ports: Required value"]);
    assert_eq!(
        created("", "Service", json!({"spec": {"ports": [{"port": 0}]}})),
        [
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive"
        ]
    );
}

#[test]
fn a_job_does_not_restart_for_ever() {
    let job = |policy: &str| json!({"metadata": {"uid": "u"}, "spec": {"template": {"spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(created("batch", "Job", job("Never")), Vec::<String>::new());
    assert_eq!(
        created("batch", "Job", job("Always")),
        ["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""]
    );
}

#[test]
fn a_role_ref_is_for_ever() {
    let binding = |name: &str| json!({"roleRef": {"kind": "Role", "name": name}});
    assert_eq!(
        updated("rbac.authorization.k8s.io", "RoleBinding", binding("a"), binding("b")),
        [
            "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"b\"}: field is immutable"
        ]
    );
}

#[test]
fn a_rule_has_verbs_groups_and_resources() {
    assert_eq!(
        created("rbac.authorization.k8s.io", "Role", json!({"rules": [{}]})),
        [
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[0].resources: Required value: resource rules must supply at least one resource",
            "rules[0].verbs: Required value"
        ]
    );
}

#[test]
fn a_claim_says_how_much_and_how() {
    assert_eq!(
        created("", "PersistentVolumeClaim", json!({"spec": {}})),
        [
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.resources[storage]: Required value"
        ]
    );
}

#[test]
fn taints_are_unique_by_key_and_effect() {
    let taint = json!({"key": "a", "effect": "NoSchedule"});
    let errors = created("", "Node", json!({"spec": {"taints": [taint, taint]}}));
    assert!(errors.join("").ends_with("taints must be unique by key and effect pair"), "{errors:?}");
}

#[test]
fn an_exception_lies_inside_of_its_block() {
    let policy =
        json!({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}]}});
    assert_eq!(
        created("networking.k8s.io", "NetworkPolicy", policy),
        [
            "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`"
        ]
    );
}

#[test]
fn a_block_of_all_addresses_does_not_overflow() {
    for range in ["0.0.0.0/0", "::/0"] {
        let policy = json!({"spec": {"egress": [{"to": [{"ipBlock": {"cidr": range}}]}]}});
        assert_eq!(created("networking.k8s.io", "NetworkPolicy", policy), Vec::<String>::new());
    }
}

#[test]
fn an_approved_request_is_not_denied_as_well() {
    let request = |conditions: Value| {
        json!({"metadata": {"name": "c", "resourceVersion": "1"}, "spec": {"request": "", "signerName": "a.b/c", "usages": ["client auth"]},
            "status": {"conditions": conditions}})
    };
    let approved = json!([{"type": "Approved", "status": "True"}]);
    let both = json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]);
    let kind = kind("certificates.k8s.io", "CertificateSigningRequest");
    let errors = error_texts(validate_update(kind, Some("approval"), &request(both), &request(approved)));
    let exclusive =
        "must specify at most one of: `conditions[{\"type\": \"Approved\"}]`, `conditions[{\"type\": \"Denied\"}]`";
    assert!(errors.iter().any(|error| error.ends_with(exclusive)), "{errors:?}");
}

#[test]
fn a_cron_job_has_a_schedule_that_parses() {
    let job = json!({"spec": {"schedule": "never", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}});
    assert_eq!(
        created("batch", "CronJob", job),
        ["spec.schedule: Invalid value: \"never\": expected exactly 5 fields, found 1: [never]"]
    );
}

#[test]
fn a_terminating_namespace_says_so() {
    let kind = kind("", "Namespace");
    let old = json!({"metadata": {"name": "n", "resourceVersion": "1", "deletionTimestamp": "t"}, "status": {"phase": "Terminating"}});
    let mut new = old.clone();
    crate::access::set(&mut new, "status", json!({"phase": "Active"}));
    assert_eq!(
        error_texts(validate_update(kind, Some("status"), &new, &old)),
        ["status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"]
    );
}
