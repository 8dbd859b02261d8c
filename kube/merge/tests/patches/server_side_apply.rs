//! Server-side apply, as Kubernetes documents it.

use crate::common::ApplyFixture;
use fleetwright_merge::{MergeError, Request, apply};
use serde_json::{Value, json};

fn conflict(error: &MergeError) -> Vec<(String, String)> {
    match error {
        MergeError::Conflicts(all) => all.iter().map(|c| (c.message.clone(), c.field.clone())).collect(),
        other => panic!("not a conflict: {other}"),
    }
}

#[test]
fn an_apply_owns_exactly_what_it_names() {
    let mut world = ApplyFixture::new();
    world.apply("me", json!({"replicas": 1, "containers": [{"name": "x", "image": "i"}], "config": {"a": 1}}));
    assert_eq!(
        world.owned("me"),
        json!({"f:replicas": {}, "f:containers": {"k:{\"name\":\"x\"}": {".": {}, "f:image": {}, "f:name": {}}}, "f:config": {"f:a": {}}})
    );
    assert_eq!(world.managers(), ["me Apply"]);
}

#[test]
fn a_conflict_names_the_manager_and_the_field() {
    let mut world = ApplyFixture::new();
    world.update("kubectl", json!({"spec": {"replicas": 1}}));
    let error = world.try_apply("me", json!({"replicas": 2}), false).expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl\" using ex.io/v1: .spec.replicas"
    );
    assert_eq!(
        conflict(&error),
        [("conflict with \"kubectl\" using ex.io/v1".to_owned(), ".spec.replicas".to_owned())]
    );
}

#[test]
fn several_conflicts_are_listed_by_manager() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1, "containers": [{"name": "x", "image": "i"}]}));
    world.change("b", |object| object["spec"]["paused"] = json!(true));
    let spec = json!({"replicas": 2, "paused": false, "containers": [{"name": "x", "image": "j"}]});
    let error = world.try_apply("c", spec, false).expect_err("conflicts");
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.replicas\n- .spec.containers[name=\"x\"].image\nconflicts with \"b\" using ex.io/v1:\n- .spec.paused"
    );
}

#[test]
fn a_conflict_with_a_subresource_says_so() {
    let mut world = ApplyFixture::new();
    world.update("x", json!({"spec": {"paused": true}}));
    let mut new = world.live.clone().expect("live");
    new["spec"]["replicas"] = json!(4);
    let request = Request { subresource: Some("scale"), ..world.request("x") };
    fleetwright_merge::update(&request, world.live.as_ref(), &mut new).expect("updated");
    world.live = Some(new);
    let error = world.try_apply("me", json!({"replicas": 2}), false).expect_err("a conflict");
    assert_eq!(conflict(&error)[0].0, "conflict with \"x\" with subresource \"scale\" using ex.io/v1");
}

#[test]
fn force_takes_the_field_over() {
    let mut world = ApplyFixture::new();
    world.update("kubectl", json!({"spec": {"replicas": 1, "paused": true}}));
    world.try_apply("me", json!({"replicas": 2}), true).expect("forced");
    assert_eq!(world.spec()["replicas"], 2);
    assert_eq!(world.owned("me"), json!({"f:replicas": {}}));
    assert_eq!(world.owned("kubectl"), json!({".": {}, "f:paused": {}}));
}

#[test]
fn the_same_value_is_shared_without_conflict() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1}));
    world.apply("b", json!({"replicas": 1}));
    assert_eq!(world.owned("a"), world.owned("b"));
}

#[test]
fn a_field_dropped_by_its_only_owner_is_removed() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1, "paused": true}));
    world.apply("a", json!({"replicas": 1}));
    assert_eq!(world.spec(), json!({"replicas": 1}));
}

#[test]
fn a_field_dropped_by_one_of_two_owners_stays() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1, "paused": true}));
    world.apply("b", json!({"paused": true}));
    world.apply("a", json!({"replicas": 1}));
    assert_eq!(world.spec(), json!({"replicas": 1, "paused": true}));
}

#[test]
fn a_list_item_dropped_by_its_owner_is_removed_and_others_stay() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"containers": [{"name": "x", "image": "1"}, {"name": "y", "image": "1"}]}));
    world.apply("b", json!({"containers": [{"name": "z", "image": "1"}]}));
    world.apply("a", json!({"containers": [{"name": "y", "image": "1"}]}));
    assert_eq!(world.spec()["containers"], json!([{"name": "y", "image": "1"}, {"name": "z", "image": "1"}]));
}

#[test]
fn a_parent_whose_last_field_is_dropped_goes_with_it() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1, "strategy": {"type": "x"}}));
    world.apply("a", json!({"replicas": 1}));
    assert_eq!(world.spec(), json!({"replicas": 1}));
}

#[test]
fn a_default_below_a_dropped_item_goes_with_the_item() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"containers": [{"name": "x"}]}));
    world.live.as_mut().expect("live")["spec"]["containers"][0]["image"] = json!("defaulted");
    world.apply("a", json!({"replicas": 1}));
    assert_eq!(world.spec(), json!({"replicas": 1}));
}

#[test]
fn a_multi_key_item_is_known_by_its_defaulted_key() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"ports": [{"port": 80, "name": "http"}]}));
    assert_eq!(
        world.owned("a"),
        json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}}}})
    );
    world.apply("b", json!({"ports": [{"port": 80, "protocol": "UDP"}]}));
    assert_eq!(world.spec()["ports"].as_array().map(Vec::len), Some(2));
}

#[test]
fn sets_are_merged_and_atomic_lists_and_maps_replaced() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"tags": ["x"], "args": ["1", "2"], "selector": {"k": "v"}}));
    world.apply("b", json!({"tags": ["y"]}));
    assert_eq!(world.spec()["tags"], json!(["x", "y"]));
    let error = world.try_apply("b", json!({"tags": ["y"], "args": ["3"], "selector": {"j": "v"}}), false);
    let fields: Vec<String> = conflict(&error.expect_err("conflicts")).into_iter().map(|c| c.1).collect();
    assert_eq!(fields, [".spec.args", ".spec.selector"]);
}

#[test]
fn applied_order_wins_for_items_in_both_lists() {
    let mut world = ApplyFixture::new();
    world.update("a", json!({"spec": {"tags": ["a", "b", "c", "d"]}}));
    world.apply("b", json!({"tags": ["c", "a", "new"]}));
    assert_eq!(world.spec()["tags"], json!(["b", "c", "d", "a", "new"]));
}

#[test]
fn duplicate_items_are_rejected_in_an_apply() {
    let mut world = ApplyFixture::new();
    let error = world.try_apply("a", json!({"ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}]}), false);
    assert_eq!(
        error.expect_err("refused").to_string(),
        "failed to create typed patch object (n/a; ex.io/v1, Kind=Thing): .spec.ports: duplicate entries for key [port=80,protocol=\"TCP\"]"
    );
}

#[test]
fn an_applied_object_must_fit_its_schema() {
    let prefix = "failed to create typed patch object (n/a; ex.io/v1, Kind=Thing): ";
    let cases = [
        (json!({"nope": 1}), ".spec.nope: field not declared in schema"),
        (json!({"replicas": "1"}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"paused": "yes"}), ".spec.paused: expected boolean, got &{yes}"),
        (json!({"containers": {}}), ".spec.containers: expected list, got &{map[]}"),
        (
            json!({"containers": [{"image": "i"}]}),
            ".spec.containers: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (
            json!({"containers": [{"name": "x", "image": 3}]}),
            ".spec.containers[name=\"x\"].image: expected string, got &value.valueUnstructured{Value:3}",
        ),
        (
            json!({"nope": 1, "paused": 1}),
            "errors:\n  .spec.nope: field not declared in schema\n  .spec.paused: expected boolean, got &{1}",
        ),
    ];
    for (spec, expected) in cases {
        let error = ApplyFixture::new().try_apply("a", spec, false).expect_err("refused");
        assert_eq!(error, MergeError::Internal(format!("{prefix}{expected}")));
    }
}

#[test]
fn an_applied_object_may_not_carry_managed_fields() {
    let world = ApplyFixture::new();
    let applied = json!({"apiVersion": "ex.io/v1", "kind": "Thing", "metadata": {"name": "a", "managedFields": []}});
    let error = apply(&world.request("a"), None, &applied, false).expect_err("refused");
    assert_eq!(error, MergeError::BadRequest("metadata.managedFields must be nil".to_owned()));
}

#[test]
fn another_kind_or_version_is_refused() {
    let world = ApplyFixture::new();
    let applied = json!({"apiVersion": "v1", "kind": "Pod"});
    let error = apply(&world.request("a"), None, &applied, false).expect_err("refused");
    assert_eq!(error, MergeError::BadRequest("invalid object type: /v1, Kind=Pod".to_owned()));
}

#[test]
fn an_apply_that_changes_nothing_changes_nothing() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1, "tags": ["x"]}));
    let before = world.live.clone();
    world.apply("a", json!({"replicas": 1, "tags": ["x"]}));
    assert_eq!(world.live, before);
}

#[test]
fn the_time_moves_only_with_the_object() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1}));
    world.apply("a", json!({"replicas": 2}));
    assert_eq!(world.time("a"), "1970-01-01T00:00:02Z");
    world.apply("a", json!({"replicas": 2}));
    assert_eq!(world.time("a"), "1970-01-01T00:00:02Z");
}

#[test]
fn an_update_of_an_applied_field_makes_the_next_apply_conflict() {
    let mut world = ApplyFixture::new();
    world.apply("a", json!({"replicas": 1}));
    world.change("hpa", |object| object["spec"]["replicas"] = json!(5));
    assert!(world.try_apply("a", json!({"replicas": 1}), false).is_err());
    world.apply("a", json!({}));
    assert_eq!(world.spec()["replicas"], 5);
}

#[test]
fn finalizers_and_owner_references_of_any_kind_are_merged() {
    let world = ApplyFixture::new();
    let live = json!({
        "apiVersion": "ex.io/v1", "kind": "Thing",
        "metadata": {"name": "a", "uid": "1", "finalizers": ["x"], "ownerReferences": [{"uid": "1", "name": "o"}]},
    });
    let applied = json!({
        "apiVersion": "ex.io/v1", "kind": "Thing",
        "metadata": {"name": "a", "finalizers": ["y"], "ownerReferences": [{"uid": "2", "name": "p"}]},
    });
    let object = apply(&world.request("a"), Some(&live), &applied, false).expect("applied");
    assert_eq!(object["metadata"]["finalizers"], json!(["x", "y"]));
    assert_eq!(object["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(2));
}

fn client_side_applied(replicas: i64) -> Value {
    let last = json!({"apiVersion": "ex.io/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"replicas": 1}});
    json!({
        "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": last.to_string()}},
        "spec": {"replicas": replicas},
    })
}

#[test]
fn kubectl_takes_over_what_it_applied_from_the_clients_side() {
    let mut world = ApplyFixture::new();
    world.update("kubectl-client-side-apply", client_side_applied(1));
    world.apply("kubectl", json!({"replicas": 2}));
    let annotation = &world.live.as_ref().expect("live")["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(
        annotation.as_str(),
        Some(
            "{\"apiVersion\":\"ex.io/v1\",\"kind\":\"Thing\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\"},\"spec\":{\"replicas\":2}}\n"
        )
    );
}

#[test]
fn kubectl_still_conflicts_where_somebody_changed_what_it_had_applied() {
    let mut world = ApplyFixture::new();
    world.update("kubectl-client-side-apply", client_side_applied(1));
    world.change("hpa", |object| object["spec"]["replicas"] = json!(9));
    assert!(world.try_apply("kubectl", json!({"replicas": 2}), false).is_err());
}

#[test]
fn only_kubectl_may_take_over_from_the_annotation() {
    let mut world = ApplyFixture::new();
    world.update("kubectl-client-side-apply", client_side_applied(1));
    assert!(world.try_apply("me", json!({"replicas": 2}), false).is_err());
}
