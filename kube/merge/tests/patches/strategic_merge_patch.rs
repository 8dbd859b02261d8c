//! Strategic merge patches.

use fleetwright_merge::{PatchError, strategic_merge_patch};
use serde_json::{Value, json};

use crate::common::schema;

fn patched(spec: Value, patch: Value) -> Result<Value, PatchError> {
    strategic_merge_patch(&schema(), &json!({"spec": spec}), &json!({"spec": patch})).map(|mut o| o["spec"].take())
}

#[test]
fn lists_merge_by_key_or_value_and_maps_by_field() {
    let cases = [
        (json!({"replicas": 1, "paused": true}), json!({"replicas": 2, "paused": null}), json!({"replicas": 2})),
        (
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "2"}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "b", "image": null}]}),
            json!({"containers": [{"name": "b", "image": null}, {"name": "a"}]}),
        ),
        (json!({"args": ["a"]}), json!({"args": ["b"]}), json!({"args": ["b"]})),
        (json!({"tags": ["a"]}), json!({"tags": ["b", "a"]}), json!({"tags": ["b", "a"]})),
        (json!({}), json!({"strategy": {"type": "x", "max": null}}), json!({"strategy": {"type": "x"}})),
        (json!({"strategy": 1}), json!({"strategy": {"type": "x"}}), json!({"strategy": {"type": "x"}})),
    ];
    for (live, patch, expected) in cases {
        assert_eq!(patched(live, patch.clone()).expect("patched"), expected, "{patch}");
    }
}

#[test]
fn directives_replace_and_delete() {
    let two =
        json!({"containers": [{"name": "a"}, {"name": "b"}], "strategy": {"type": "x", "max": 1}, "tags": ["a", "b"]});
    let cases = [
        (json!({"containers": [{"$patch": "delete", "name": "a"}]}), "containers", json!([{"name": "b"}])),
        (json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}), "containers", json!([{"name": "c"}])),
        (json!({"strategy": {"$patch": "replace", "max": 2}}), "strategy", json!({"max": 2})),
        (json!({"strategy": {"$patch": "delete"}}), "strategy", json!({})),
        (json!({"strategy": {"$retainKeys": ["type"], "type": "y"}}), "strategy", json!({"type": "y"})),
        (json!({"$deleteFromPrimitiveList/tags": ["a"]}), "tags", json!(["b"])),
        (
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
            "containers",
            json!([{"name": "b"}, {"name": "a"}]),
        ),
        (
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}], "containers": [{"name": "c"}]}),
            "containers",
            json!([{"name": "c"}, {"name": "a"}, {"name": "b"}]),
        ),
        (json!({"$setElementOrder/tags": ["b", "a"], "tags": []}), "tags", json!(["b", "a"])),
    ];
    for (patch, field, expected) in cases {
        assert_eq!(patched(two.clone(), patch.clone()).expect("patched")[field], expected, "{patch}");
    }
}

#[test]
fn mistakes_say_what_the_real_server_says() {
    let live = json!({"containers": [{"name": "a"}], "strategy": {"type": "x"}, "tags": ["a"]});
    let internal = |text: &str| PatchError::Internal(text.to_owned());
    let bad = |text: &str| PatchError::BadRequest(text.to_owned());
    let cases = [
        (
            json!({"containers": [{"image": "i"}]}),
            internal("map: map[image:i] does not contain declared merge key: name"),
        ),
        (json!({"containers": ["x"]}), internal("list element types are not identical: [[map[name:a]] [x]]")),
        (json!({"strategy": {"$patch": "twist"}}), internal("unknown patch type: twist in map: map[$patch:twist]")),
        (json!({"containers": [{"$patch": "merge"}]}), internal("merging lists cannot yet be specified in the patch")),
        (json!({"$deleteFromPrimitiveList": ["a"]}), bad("invalid patch format of primitive list")),
        (json!({"$setElementOrder": ["a"]}), bad("invalid patch format of setElementOrder list")),
        (json!({"strategy": {"$retainKeys": ["max"], "type": "y"}}), bad("invalid patch format of retainKeys")),
        (
            json!({"$setElementOrder/tags": ["a"], "tags": ["b"]}),
            internal("The order in patch list:\n[b]\n doesn't match $setElementOrder list:\n[a]\n"),
        ),
    ];
    for (patch, expected) in cases {
        assert_eq!(patched(live.clone(), patch), Err(expected));
    }
}
