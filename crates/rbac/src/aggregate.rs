//! Cluster roles that gather the rules of others.

use std::collections::HashSet;

use serde_json::Value;

use crate::Rule;
use crate::policy::text;

/// The aggregated cluster roles whose rules are out of date, by name, with the rules they should have.
///
/// The rules of an aggregated role come from the roles without an `aggregationRule` that its selectors reach, directly or through other
/// aggregated roles (`view` in `edit` in `admin`). The `rules` of aggregated roles are never an input. So one call finds the fixed point,
/// also when roles select each other: writing the result and calling again returns nothing, whatever the rules were before.
/// kube-controller-manager merges the present rules of the selected roles instead, once for each change. Both give the same rules in the same
/// order when no role reaches itself. When roles select each other, kube-controller-manager keeps a rule that was removed from its source, and
/// a cycle of three roles can rotate its rules without an end.
pub fn aggregate(cluster_roles: &[Value]) -> Vec<(String, Vec<Rule>)> {
    let mut sorted = cluster_roles.iter().collect::<Vec<_>>();
    sorted.sort_by_key(|role| text(role, "/metadata/name"));
    let selected: Vec<Option<Vec<usize>>> = sorted.iter().map(|role| selected(role, &sorted)).collect();
    let stale = |at: usize| {
        selected.get(at)?.as_ref()?;
        let role = sorted.get(at)?;
        let rules = reached(at, &sorted, &selected);
        (rules != Rule::of_role(role)).then(|| (text(role, "/metadata/name").to_owned(), rules))
    };
    (0..sorted.len()).filter_map(stale).collect()
}

/// The roles that an aggregated role selects, in the order of its selectors and of their names; none for a role that is not aggregated.
fn selected(role: &Value, sorted: &[&Value]) -> Option<Vec<usize>> {
    role.get("aggregationRule").filter(|rule| !rule.is_null())?;
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    let chosen = |selector: &Value| {
        let all = sorted.iter().enumerate();
        all.filter(|(_, other)| selects(selector, other)).map(|(at, _)| at).collect::<Vec<_>>()
    };
    Some(selectors.into_iter().flatten().flat_map(chosen).collect())
}

/// The rules of the roles without an `aggregationRule` that can be reached from this one, each once, depth first.
fn reached(from: usize, sorted: &[&Value], selected: &[Option<Vec<usize>>]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut known = HashSet::new();
    let mut visited = HashSet::new();
    // A stack of our own: the depth of the graph is the client's to choose.
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        if !visited.insert(at) {
            continue;
        }
        match selected.get(at).and_then(Option::as_ref) {
            Some(others) => next.extend(others.iter().rev()),
            None => rules.extend(Rule::of_role(sorted[at]).into_iter().filter(|rule| known.insert(rule.clone()))),
        }
    }
    rules
}

/// Whether a label selector chooses the object; one that cannot be read chooses nothing.
fn selects(selector: &Value, object: &Value) -> bool {
    let label =
        |key: &str| object.pointer("/metadata/labels").and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let pairs = selector.get("matchLabels").and_then(Value::as_object);
    let pairs_match =
        pairs.into_iter().flatten().all(|(key, value)| label(key).is_some() && label(key) == value.as_str());
    let requirements = selector.get("matchExpressions").and_then(Value::as_array);
    pairs_match
        && requirements.into_iter().flatten().all(|requirement| {
            let have = label(text(requirement, "/key"));
            let values = requirement.get("values").and_then(Value::as_array);
            let listed = values.into_iter().flatten().any(|value| have.is_some() && value.as_str() == have);
            match text(requirement, "/operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => have.is_some(),
                "DoesNotExist" => have.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bootstrap;

    /// Writes what aggregation wants. A second look must find nothing to write.
    fn settle(mut roles: Vec<Value>) -> Vec<Value> {
        for (name, rules) in aggregate(&roles) {
            for role in roles.iter_mut().filter(|role| text(role, "/metadata/name") == name) {
                role["rules"] = json!(rules);
            }
        }
        assert_eq!(aggregate(&roles), []);
        roles
    }

    /// An aggregated role with a label of its own name, which selects the roles with these labels.
    fn aggregated(name: &str, selects: &[&str], rules: &[&str]) -> Value {
        let selectors: Vec<Value> = selects.iter().map(|label| json!({"matchLabels": {*label: "true"}})).collect();
        let mut role = plain(name, rules);
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        role
    }

    fn plain(name: &str, rules: &[&str]) -> Value {
        let rules: Vec<Value> =
            rules.iter().map(|what| json!({"verbs": ["get"], "apiGroups": [""], "resources": [what]})).collect();
        json!({"metadata": {"name": name, "labels": {name: "true"}}, "rules": rules})
    }

    fn resources(roles: &[Value], name: &str) -> Vec<String> {
        let role = roles.iter().find(|role| text(role, "/metadata/name") == name).unwrap();
        role["rules"].as_array().unwrap().iter().map(|rule| text(rule, "/resources/0").to_owned()).collect()
    }

    #[test]
    fn roles_that_select_each_other_settle_whatever_they_held_before() {
        let roles = vec![
            aggregated("a", &["b", "base-a"], &["x"]),
            aggregated("b", &["c", "base-b"], &["y"]),
            aggregated("c", &["a"], &["z"]),
            plain("base-a", &["pods", "nodes"]),
            plain("base-b", &["secrets", "pods"]),
        ];
        let settled = settle(roles);
        assert_eq!(resources(&settled, "a"), ["secrets", "pods", "nodes"]);
        assert_eq!(resources(&settled, "b"), ["pods", "nodes", "secrets"]);
        assert_eq!(resources(&settled, "c"), ["secrets", "pods", "nodes"]);
    }

    #[test]
    fn rules_that_no_source_has_any_more_do_not_survive_in_a_cycle() {
        let settled = settle(vec![aggregated("a", &["b"], &["x"]), aggregated("b", &["a"], &["y"])]);
        assert!(resources(&settled, "a").is_empty() && resources(&settled, "b").is_empty());
    }

    #[test]
    fn a_chain_of_many_roles_settles_in_one_pass() {
        let chain = (0..50).map(|n| aggregated(&format!("r{n}"), &[&format!("r{}", n + 1)], &[]));
        let settled = settle(chain.chain([plain("r50", &["pods"])]).collect());
        assert_eq!(resources(&settled, "r0"), ["pods"]);
    }

    #[test]
    fn admin_gathers_edit_which_gathers_view() {
        let roles = bootstrap::objects().into_iter().filter(|object| object["kind"] == "ClusterRole").collect();
        let roles = settle(roles);
        let count = |name: &str| {
            let role = roles.iter().find(|role| text(role, "/metadata/name") == name);
            role.map(|role| Rule::of_role(role).len()).unwrap_or_default()
        };
        assert_eq!(count("view"), count("system:aggregate-to-view"));
        assert!(count("edit") > count("view"));
        assert!(count("admin") > count("edit"));
    }

    #[test]
    fn a_role_does_not_gather_itself() {
        let role = json!({"metadata": {"name": "a", "labels": {"x": "y"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        assert_eq!(aggregate(&[role]), [("a".to_owned(), Vec::new())]);
    }
}
