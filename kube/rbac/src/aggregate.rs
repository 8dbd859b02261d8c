//! Cluster roles that gather the rules of others.

use std::collections::HashMap;
use std::rc::Rc;

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
///
/// Clients choose how many roles there are and what they select. With `n` roles that all select all, this takes about `n³ / 64` steps of a few instructions
/// each: selections are bit sets, equal selectors are evaluated once, and the rules of a role are parsed once.
pub fn aggregate(cluster_roles: &[Value]) -> Vec<(String, Vec<Rule>)> {
    let mut sorted = cluster_roles.iter().collect::<Vec<_>>();
    sorted.sort_by_key(|role| text(role, "/metadata/name"));
    let mut selections = Selections::new(&sorted);
    let selected: Vec<Option<Vec<Rc<Roles>>>> = sorted.iter().map(|role| selections.of(role)).collect();
    let held: Vec<Vec<Rule>> = sorted.iter().map(|role| Rule::of_role(role)).collect();
    let sources = Sources::new(&held, &selected);
    let stale = |at: usize| {
        selected.get(at)?.as_ref()?;
        let rules = sources.rules(&reached(at, &selected));
        let current = held.get(at)?;
        let same = rules.len() == current.len() && rules.iter().zip(current).all(|(one, other)| *one == other);
        let name = text(sorted.get(at)?, "/metadata/name").to_owned();
        (!same).then(|| (name, rules.into_iter().cloned().collect()))
    };
    (0..sorted.len()).filter_map(stale).collect()
}

/// A set of roles, by their place in the order of names.
struct Roles(Vec<u64>);

impl Roles {
    fn none(of: usize) -> Self {
        Self(vec![0; of.div_ceil(64)])
    }

    /// Adds a role; false if the set has it already.
    fn insert(&mut self, at: usize) -> bool {
        let (word, bit) = (at / 64, 1 << (at % 64));
        let Some(word) = self.0.get_mut(word) else { return false };
        let added = *word & bit == 0;
        *word |= bit;
        added
    }

    /// The first role that is in this set and not in the other one, from that place on.
    fn next_not_in(&self, other: &Self, from: usize) -> Option<usize> {
        let skipped = from / 64;
        let mut mask = u64::MAX << (from % 64);
        for (at, (ours, theirs)) in self.0.iter().zip(&other.0).enumerate().skip(skipped) {
            let left = ours & !theirs & mask;
            if left != 0 {
                return Some(at * 64 + left.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// The roles that selectors match. A selector that many roles share is evaluated once.
struct Selections<'a> {
    sorted: &'a [&'a Value],
    known: HashMap<String, Rc<Roles>>,
}

impl<'a> Selections<'a> {
    fn new(sorted: &'a [&'a Value]) -> Self {
        Self { sorted, known: HashMap::new() }
    }

    /// The roles that an aggregated role selects, for each of its selectors; none for a role that is not aggregated.
    fn of(&mut self, role: &Value) -> Option<Vec<Rc<Roles>>> {
        role.get("aggregationRule").filter(|rule| !rule.is_null())?;
        let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
        Some(selectors.into_iter().flatten().map(|selector| self.chosen(selector)).collect())
    }

    fn chosen(&mut self, selector: &Value) -> Rc<Roles> {
        let sorted = self.sorted;
        let found = self.known.entry(selector.to_string()).or_insert_with(|| {
            let mut chosen = Roles::none(sorted.len());
            for (at, _) in sorted.iter().enumerate().filter(|(_, other)| selects(selector, other)) {
                chosen.insert(at);
            }
            Rc::new(chosen)
        });
        found.clone()
    }
}

/// The rules of the roles without an `aggregationRule`, with a number for each different one.
struct Sources<'a> {
    numbered: Vec<Vec<(usize, &'a Rule)>>,
    count: usize,
}

impl<'a> Sources<'a> {
    fn new(held: &'a [Vec<Rule>], selected: &[Option<Vec<Rc<Roles>>>]) -> Self {
        let mut numbers: HashMap<&Rule, usize> = HashMap::new();
        let mut numbered = Vec::with_capacity(held.len());
        for (rules, selected) in held.iter().zip(selected) {
            let sources = rules.iter().filter(|_| selected.is_none());
            numbered.push(
                sources
                    .map(|rule| {
                        let next = numbers.len();
                        (*numbers.entry(rule).or_insert(next), rule)
                    })
                    .collect(),
            );
        }
        Self { numbered, count: numbers.len() }
    }

    /// The rules of these roles, each once.
    fn rules(&self, roles: &[usize]) -> Vec<&'a Rule> {
        let mut known = Roles::none(self.count);
        let all = roles.iter().filter_map(|at| self.numbered.get(*at)).flatten();
        all.filter(|(number, _)| known.insert(*number)).map(|(_, rule)| *rule).collect()
    }
}

/// The roles that can be reached from this one, each once, depth first: in the order of selectors and of names.
fn reached(from: usize, selected: &[Option<Vec<Rc<Roles>>>]) -> Vec<usize> {
    let mut visited = Roles::none(selected.len());
    visited.insert(from);
    let mut found = vec![from];
    // A stack of our own: the depth of the graph is the client's to choose. Of each role: which of its selectors, and from which role on.
    let mut path = vec![(from, 0, 0)];
    while let Some((at, selector, place)) = path.pop() {
        let Some(chosen) = selected.get(at).and_then(Option::as_ref).and_then(|all| all.get(selector)) else {
            continue;
        };
        match chosen.next_not_in(&visited, place) {
            None => path.push((at, selector + 1, 0)),
            Some(next) => {
                visited.insert(next);
                found.push(next);
                path.push((at, selector, next + 1));
                path.push((next, 0, 0));
            }
        }
    }
    found
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

    /// The CPU time of this thread, without other processes. Linux measures it.
    fn cpu_seconds() -> f64 {
        let known = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        known.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).unwrap_or_default() / 1e9
    }

    #[test]
    fn a_thousand_roles_that_select_all_roles_settle_in_seconds() {
        let all = json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]});
        // Each also has a selector of its own, so that no two are equal.
        let greedy = |n: usize| {
            let mut role = aggregated(&format!("r{n}"), &[&format!("r{}", (n * 7 + 1) % 1500)], &[]);
            let own = role["aggregationRule"]["clusterRoleSelectors"][0].clone();
            role["aggregationRule"]["clusterRoleSelectors"] = json!([all, own]);
            role
        };
        let mut roles: Vec<Value> = (0..1500).map(greedy).collect();
        roles.extend([plain("source-a", &["pods"]), plain("source-b", &["secrets", "pods"])]);
        let before = cpu_seconds();
        let stale = aggregate(&roles);
        let took = cpu_seconds() - before;
        assert_eq!(stale.len(), 1500);
        assert!(stale.iter().all(|(_, rules)| rules.len() == 2), "each gathers both rules once");
        // Walking all edges for each role takes minutes.
        assert!(took < 20.0, "{took} s");
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
