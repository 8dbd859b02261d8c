//! The ownership of fields after creates, updates and patches.

use crate::common::ApplyFixture;
use fleetwright_merge::{Request, keep_times_if_unchanged, manager_from_user_agent, update};
use serde_json::{Value, json};

#[test]
fn a_create_gives_all_fields_to_its_manager() {
    let mut world = ApplyFixture::new();
    world.update(
        "me",
        json!({"spec": {"replicas": 1, "selector": {"a": "b"}, "containers": [{"name": "x", "image": "i"}]}}),
    );
    assert_eq!(
        world.owned("me"),
        json!({".": {}, "f:replicas": {}, "f:selector": {}, "f:containers": {".": {}, "k:{\"name\":\"x\"}": {".": {}, "f:image": {}, "f:name": {}}}})
    );
    assert_eq!(world.time("me"), "1970-01-01T00:00:01Z");
}

#[test]
fn identity_and_version_fields_have_no_owner() {
    let mut world = ApplyFixture::new();
    world.update("me", json!({"metadata": {"labels": {"a": "b"}, "generation": 1}, "spec": {}}));
    let fields = &world.entries()[0]["fieldsV1"];
    assert_eq!(fields, &json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {}}));
}

#[test]
fn a_built_in_structure_is_not_owned_apart_from_its_fields() {
    let world = ApplyFixture::new();
    let mut new = json!({"metadata": {"name": "a"}, "spec": {"replicas": 1, "strategy": {"type": "x"}}});
    let request = Request { built_in: true, ..world.request("me") };
    update(&request, None, &mut new).expect("updated");
    assert_eq!(
        new["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:replicas": {}, "f:strategy": {"f:type": {}}}})
    );
}

#[test]
fn the_list_of_containers_is_not_owned_apart_from_its_items() {
    let world = ApplyFixture::new();
    let mut new = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "x", "image": "i"}]}});
    let request = Request { built_in: true, ..world.request("me") };
    update(&request, None, &mut new).expect("updated");
    assert_eq!(
        new["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"x\"}": {".": {}, "f:image": {}, "f:name": {}}}}})
    );
}

#[test]
fn an_update_takes_the_changed_field_from_its_owner() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1, "paused": true}}));
    world.change("two", |object| object["spec"]["replicas"] = json!(2));
    assert_eq!(world.owned("one"), json!({".": {}, "f:paused": {}}));
    assert_eq!(world.owned("two"), json!({"f:replicas": {}}));
}

#[test]
fn an_owner_of_nothing_is_forgotten() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"metadata": {"labels": {"a": "1"}}, "spec": {}}));
    world.change("two", |object| object["spec"]["replicas"] = json!(2));
    world.change("three", |object| object["spec"]["replicas"] = json!(3));
    assert_eq!(world.managers(), ["one Update", "three Update"]);
}

#[test]
fn a_removed_field_leaves_all_owners() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1, "paused": true}}));
    world.change("two", |object| {
        object["spec"].as_object_mut().expect("spec").remove("paused");
    });
    assert_eq!(world.owned("one"), json!({".": {}, "f:replicas": {}}));
    assert_eq!(world.managers(), ["one Update"]);
}

#[test]
fn an_update_that_changes_nothing_keeps_entries_and_times() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1}}));
    let before = world.live.clone();
    world.change("two", |_| {});
    assert_eq!(world.live, before);
}

#[test]
fn clearing_managed_fields_stops_tracking_until_the_first_apply() {
    for reset in [json!([]), json!([{}])] {
        let mut world = ApplyFixture::new();
        world.update("one", json!({"spec": {"replicas": 1}}));
        world.change("two", |object| object["metadata"]["managedFields"] = reset);
        assert_eq!(world.managers(), Vec::<String>::new());
        world.change("two", |object| object["spec"]["replicas"] = json!(5));
        assert_eq!(world.managers(), Vec::<String>::new());
        world.try_apply("three", json!({"paused": true}), false).expect("applied");
        assert_eq!(world.managers(), ["three Apply", "before-first-apply Update"]);
    }
}

#[test]
fn managed_fields_sent_by_a_client_are_taken_and_broken_ones_ignored() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1}}));
    world.change("two", |object| object["metadata"]["managedFields"][0]["manager"] = json!("renamed"));
    assert_eq!(world.managers(), ["renamed Update"]);
    world.change("two", |object| object["metadata"]["managedFields"][0]["operation"] = json!("Guess"));
    assert_eq!(world.managers(), ["renamed Update"]);
}

#[test]
fn a_write_without_managed_fields_keeps_them() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1}}));
    world.update("two", json!({"spec": {"replicas": 1}}));
    assert_eq!(world.managers(), ["one Update"]);
}

#[test]
fn a_status_write_owns_only_status_and_is_its_own_entry() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1}}));
    let mut new = world.live.clone().expect("live");
    new["status"] = json!({"phase": "up"});
    new["spec"]["replicas"] = json!(7);
    let request = Request { subresource: Some("status"), reset_fields: &[&["spec"]], ..world.request("one") };
    update(&request, world.live.as_ref(), &mut new).expect("updated");
    let entries = new["metadata"]["managedFields"].as_array().expect("entries").clone();
    let status = entries.iter().find(|e| e["subresource"] == "status").expect("a status entry");
    assert_eq!(status["fieldsV1"], json!({"f:status": {".": {}, "f:phase": {}}}));
    assert_eq!(entries.len(), 2);
}

#[test]
fn the_oldest_updaters_are_folded_into_one_beyond_ten() {
    let mut world = ApplyFixture::new();
    world.update("m0", json!({"spec": {}, "metadata": {"labels": {"l0": "x"}}}));
    for i in 1..13 {
        world.change(&format!("m{i}"), |object| object["metadata"]["labels"][format!("l{i}")] = json!("x"));
    }
    assert_eq!(world.managers().len(), 10);
    assert_eq!(world.managers()[0], "ancient-changes Update");
}

#[test]
fn entries_of_versions_that_are_gone_are_dropped() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1}}));
    let mut new = world.live.clone().expect("live");
    new["spec"]["paused"] = json!(true);
    let request = Request { api_version: "ex.io/v2", versions: &["ex.io/v2"], ..world.request("two") };
    update(&request, world.live.as_ref(), &mut new).expect("updated");
    let entries = new["metadata"]["managedFields"].as_array().expect("entries");
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0]["manager"], "two");
}

#[test]
fn untyped_objects_are_shared_by_field_and_untyped_lists_as_a_whole() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"config": {"a": {"b": 1}, "l": [1, 2]}}}));
    world.change("two", |object| object["spec"]["config"]["a"]["c"] = json!(1));
    world.change("two", |object| object["spec"]["config"]["l"] = json!([1]));
    assert_eq!(world.owned("one"), json!({".": {}, "f:config": {".": {}, "f:a": {".": {}, "f:b": {}}}}));
    assert_eq!(world.owned("two"), json!({"f:config": {"f:a": {"f:c": {}}, "f:l": {}}}));
}

#[test]
fn duplicate_list_items_are_allowed_in_an_update() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"tags": ["a", "a", "b"]}}));
    assert_eq!(world.owned("one"), json!({".": {}, "f:tags": {".": {}, "v:\"a\"": {}, "v:\"b\"": {}}}));
}

#[test]
fn times_are_kept_when_nothing_else_differs() {
    let mut world = ApplyFixture::new();
    world.update("one", json!({"spec": {"replicas": 1}}));
    let old = world.live.clone().expect("live");
    let mut new = old.clone();
    new["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    keep_times_if_unchanged(&old, &mut new);
    assert_eq!(new, old);

    new["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    new["spec"]["replicas"] = json!(2);
    keep_times_if_unchanged(&old, &mut new);
    assert_eq!(new["metadata"]["managedFields"][0]["time"], "2030-01-01T00:00:00Z");
}

#[test]
fn the_user_agent_names_the_manager_up_to_the_slash() {
    assert_eq!(manager_from_user_agent("kubectl/v1.37 (linux)"), "kubectl");
    assert_eq!(manager_from_user_agent("a\u{7}b"), "ab");
    assert_eq!(manager_from_user_agent(&"x".repeat(200)).len(), 128);
    assert_eq!(manager_from_user_agent(""), "");
}

#[test]
fn a_manager_without_a_name_is_unknown() {
    let mut world = ApplyFixture::new();
    world.update("", json!({"spec": {"replicas": 1}}));
    assert_eq!(world.managers(), ["unknown Update"]);
}

#[test]
fn hostile_objects_never_panic() {
    let world = ApplyFixture::new();
    for bad in [
        json!({}),
        json!({"metadata": 3, "spec": []}),
        json!({"metadata": {"managedFields": [3]}, "spec": {"ports": [null]}}),
    ] {
        let mut new = bad.clone();
        update(&world.request("m"), Some(&bad), &mut new).expect("kept");
        let mut new = bad;
        update(&world.request("m"), None, &mut new).expect("kept");
    }
    assert!(update(&world.request("m"), None, &mut Value::Null).is_err());
}
