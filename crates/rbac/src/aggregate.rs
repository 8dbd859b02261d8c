//! Cluster roles that gather the rules of others.

use serde_json::Value;

use crate::Rule;
use crate::policy::text;

/// The aggregated cluster roles whose rules are out of date, by name, with the rules they should have.
///
/// Call it again until it returns nothing: a role may gather one that gathers itself (`view` in `edit` in `admin`).
pub fn aggregate(cluster_roles: &[Value]) -> Vec<(String, Vec<Rule>)> {
    let mut sorted = cluster_roles.iter().collect::<Vec<_>>();
    sorted.sort_by_key(|role| text(role, "/metadata/name"));
    let stale = |role: &&Value| {
        let selectors = role.pointer("/aggregationRule/clusterRoleSelectors");
        role.get("aggregationRule").filter(|rule| !rule.is_null())?;
        let selectors = selectors.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let name = text(role, "/metadata/name");
        let mut rules: Vec<Rule> = Vec::new();
        for selector in selectors {
            let chosen =
                sorted.iter().filter(|other| text(other, "/metadata/name") != name && selects(selector, other));
            for rule in chosen.flat_map(|other| Rule::of_role(other)) {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        (rules != Rule::of_role(role)).then(|| (name.to_owned(), rules))
    };
    sorted.iter().filter_map(stale).collect()
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

    /// Runs aggregation until it settles, as the controller does.
    fn settle(mut roles: Vec<Value>) -> Vec<Value> {
        for _ in 0..5 {
            for (name, rules) in aggregate(&roles) {
                for role in roles.iter_mut().filter(|role| text(role, "/metadata/name") == name) {
                    role["rules"] = json!(rules);
                }
            }
        }
        assert!(aggregate(&roles).is_empty());
        roles
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
