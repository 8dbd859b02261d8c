use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;

/// Bodies that kubectl sent, each with the command that made it send them.
mod sent {
    /// `kubectl create configmap cm --from-literal=a=b --from-literal=c=`
    pub const CONFIG_MAP: &str = "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEiMKEgoCY20SABoAIgAqADIAOABCABIGCgFhEgFiEgUKAWMSABoAIgA=";
    /// `kubectl create deployment web --image=nginx --replicas=0 --port=80`
    pub const DEPLOYMENT: &str = "azhzAAoVCgdhcHBzL3YxEgpEZXBsb3ltZW50ErgBCh8KA3dlYhIAGgAiACoAMgA4AEIAWgoKA2FwcBIDd2ViEoYBCAASDAoKCgNh\
     cHASA3dlYhpsChwKABIAGgAiACoAMgA4AEIAWgoKA2FwcBIDd2ViEkwSLgoFbmdpbngSBW5naW54KgAyCgoAEAAYUCIAKgBCAGoA\
     cgCAAQCIAQCQAQCiAQAaADIAQgBKAFIAWABgAGgAggEAigEAmgEAwgEAIgIKACgAOAAaDAgAEAAYACAAKAA4ABoAIgA=";
    /// `kubectl create cronjob cj --image=busybox --schedule='* * * * *' -- date`
    pub const CRON_JOB: &str = "azhzAAoTCghiYXRjaC92MRIHQ3JvbkpvYhKiAQoSCgJjahIAGgAiACoAMgA4AEIAEokBCgkqICogKiAqICoaACp6ChIKAmNqEgAa\
     ACIAKgAyADgAQgASZDJiChAKABIAGgAiACoAMgA4AEIAEk4SJwoCY2oSB2J1c3lib3gaBGRhdGUqAEIAagByAIABAIgBAJABAKIB\
     ABoJT25GYWlsdXJlMgBCAEoAUgBYAGAAaACCAQCKAQCaAQDCAQAaABoAIgA=";
    /// `kubectl create service nodeport svcn --tcp=80:web`
    pub const SERVICE: &str = "azhzAAoNCgJ2MRIHU2VydmljZRJsCiEKBHN2Y24SABoAIgAqADIAOABCAFoLCgNhcHASBHN2Y24SQwocCgY4MC13ZWISA1RDUBhQ\
     IgkIARAAGgN3ZWIoABILCgNhcHASBHN2Y24aACIITm9kZVBvcnQ6AEIAUgBaAGAAaAAaAgoAGgAiAA==";
    /// `kubectl create secret generic s --from-literal=user=admin`
    pub const SECRET: &str = "azhzAAoMCgJ2MRIGU2VjcmV0EiQKEQoBcxIAGgAiACoAMgA4AEIAEg0KBHVzZXISBWFkbWluGgAaACIA";
    /// `kubectl create token sa --duration=10m`
    pub const TOKEN: &str = "azhzAAooChhhdXRoZW50aWNhdGlvbi5rOHMuaW8vdjESDFRva2VuUmVxdWVzdBIdChAKABIAGgAiACoAMgA4AEIAEgMg2AQaBAoA\
     EgAaACIA";
    /// `kubectl auth can-i get pods`
    pub const CAN_I: &str = "azhzAAoyChdhdXRob3JpemF0aW9uLms4cy5pby92MRIXU2VsZlN1YmplY3RBY2Nlc3NSZXZpZXcSPAoQCgASABoAIgAqADIAOABC\
     ABIeChwKB2RlZmF1bHQSA2dldBoAIgAqBHBvZHMyADoAGggIABIAGgAgABoAIgA=";
    /// `kubectl drain n1 --force --disable-eviction`
    pub const DELETE: &str = "azhzAAoTCgJ2MRINRGVsZXRlT3B0aW9ucxIAGgAiAA==";
}

fn read(sent: &str) -> Value {
    decode(&STANDARD.decode(sent).unwrap()).unwrap()
}

/// A field of bytes: a string, or a message.
fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    while length > 0x7f {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(value);
    bytes
}

/// A field of a number.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, api_version), field(2, kind)].concat();
    [MAGIC, &field(1, type_meta), &field(2, raw), &field(3, ""), &field(4, "")].concat()
}

#[test]
fn a_config_map_keeps_its_empty_values() {
    let expected = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"a": "b", "c": ""},
    });
    assert_eq!(read(sent::CONFIG_MAP), expected);
}

#[test]
fn a_deployment_of_no_replicas_says_zero_and_leaves_out_what_was_not_set() {
    let container = json!({"name": "nginx", "image": "nginx", "ports": [{"containerPort": 80}], "resources": {}});
    let expected = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
        },
        "status": {},
    });
    assert_eq!(read(sent::DEPLOYMENT), expected);
}

#[test]
fn a_cron_job_holds_a_job_that_holds_a_pod() {
    let object = read(sent::CRON_JOB);
    assert_eq!(object["spec"]["schedule"], "* * * * *");
    let container = &object["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(*container, json!({"name": "cj", "image": "busybox", "command": ["date"], "resources": {}}));
}

#[test]
fn a_port_may_be_a_name() {
    let expected = json!([{"name": "80-web", "port": 80, "protocol": "TCP", "targetPort": "web"}]);
    assert_eq!(read(sent::SERVICE)["spec"]["ports"], expected);
}

#[test]
fn bytes_are_base64_in_json() {
    assert_eq!(read(sent::SECRET)["data"], json!({"user": "YWRtaW4="}));
}

#[test]
fn subresources_have_kinds_of_their_own() {
    let token = read(sent::TOKEN);
    assert_eq!((&token["kind"], &token["spec"]["expirationSeconds"]), (&json!("TokenRequest"), &json!(600)));
}

#[test]
fn an_access_review_asks_only_what_was_asked() {
    let asked = json!({"resourceAttributes": {"namespace": "default", "resource": "pods", "verb": "get"}});
    assert_eq!(read(sent::CAN_I)["spec"], asked);
}

#[test]
fn delete_options_are_read_in_any_version() {
    assert_eq!(read(sent::DELETE), json!({"apiVersion": "v1", "kind": "DeleteOptions"}));
    let raw = [number(1, 0), field(2, field(1, "u-1")), field(4, "Orphan"), field(5, "All")].concat();
    let expected = json!({
        "apiVersion": "apps/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u-1"}, "propagationPolicy": "Orphan", "dryRun": ["All"],
    });
    assert_eq!(decode(&body("apps/v1", "DeleteOptions", &raw)).unwrap(), expected);
}

#[test]
fn an_eviction_names_its_pod_and_its_delete_options() {
    let meta = [field(1, "p"), field(2, ""), field(3, "default"), field(5, ""), number(7, 0), field(8, "")].concat();
    let raw = [field(1, meta), field(2, number(1, 30))].concat();
    let expected = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"},
        "deleteOptions": {"gracePeriodSeconds": 30},
    });
    assert_eq!(decode(&body("policy/v1", "Eviction", &raw)).unwrap(), expected);
}

#[test]
fn embedded_messages_are_inlined_and_an_empty_pointer_stays() {
    let volume = [field(1, "tmp"), field(2, field(2, ""))].concat();
    let pod = decode(&body("v1", "Pod", &field(2, field(1, volume)))).unwrap();
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "tmp", "emptyDir": {}}]));
}

#[test]
fn times_and_negative_numbers_are_read() {
    let meta = field(1, field(8, [&[0x08][..], &[0x80, 0xe7, 0x84, 0x0f]].concat()));
    let negative = [&[0x10][..], &[0xff; 9], &[0x01]].concat();
    let class = decode(&body("scheduling.k8s.io/v1", "PriorityClass", &[meta, negative].concat())).unwrap();
    assert_eq!(class["metadata"]["creationTimestamp"], "1971-01-01T00:00:00Z");
    assert_eq!(class["value"], -1);
}

#[test]
fn what_newer_clients_add_is_passed_over() {
    let raw = [field(15, "new"), field(2, [field(1, "a"), field(2, "b")].concat())].concat();
    assert_eq!(decode(&body("v1", "ConfigMap", &raw)).unwrap()["data"], json!({"a": "b"}));
}

#[test]
fn a_body_that_is_not_protobuf_is_named_as_the_real_server_names_it() {
    assert_eq!(decode(b"").unwrap_err(), "empty data");
    assert_eq!(decode(MAGIC).unwrap_err(), "empty body");
    let not = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
    assert_eq!(decode(b"{}").unwrap_err(), not);
}

#[test]
fn a_kind_that_is_not_served_is_not_registered() {
    let error = decode(&body("apps/v7", "Deployment", b"")).unwrap_err();
    assert!(error.starts_with("no kind \"Deployment\" is registered for version \"apps/v7\""), "{error}");
    assert!(decode(&body("v1", "", b"")).unwrap_err().starts_with("Object 'Kind' is missing in "));
}

#[test]
fn a_schema_that_nests_without_end_is_refused() {
    let mut schema = Vec::new();
    for _ in 0..1_000 {
        schema = field(28, schema);
        // Field 28 needs two bytes of key.
        schema.splice(0..1, [0xe2, 0x01]);
    }
    let version = field(1, "v1").into_iter().chain(field(4, field(1, schema))).collect::<Vec<u8>>();
    let raw = field(2, field(7, version));
    let error = decode(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw)).unwrap_err();
    assert!(error.starts_with("proto: messages nest deeper than 100 at offset"), "{error}");
}

#[test]
fn no_damaged_body_panics() {
    let whole = STANDARD.decode(sent::DEPLOYMENT).unwrap();
    for cut in 0..whole.len() {
        let _ = decode(&whole[..cut]);
        for damage in [0x00, 0x7f, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[cut] = damage;
            let _ = decode(&damaged);
        }
    }
}
