//! One rule of a role: what it matches, and whether it covers another rule.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Attributes;
use crate::messages::quote_list;

/// A rule of a Role or ClusterRole. Rules only add; nothing is ever denied by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// The verbs; `*` is all.
    #[serde(deserialize_with = "null_is_empty")]
    pub verbs: Vec<String>,
    /// The API groups; `*` is all, the empty string the core group.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Resources and `resource/subresource`; `*` is all, `*/sub` that subresource of all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The only objects that the rule is about; empty for all.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Paths outside the resources; a `*` at the end stands for any rest.
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

/// A rule of more atoms is compared whole, which can only refuse more: four long lists in one request would otherwise
/// multiply to more work than the server has time for.
const MAX_ATOMS: usize = 100_000;

fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn has(set: &[String], wanted: &str) -> bool {
    set.iter().any(|item| item == wanted)
}

fn has_or_all(set: &[String], wanted: &str) -> bool {
    set.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    /// The rules of a role object. Items that are no rules are left out: validation keeps them from being stored.
    pub fn of_role(role: &Value) -> Vec<Rule> {
        let items = role.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|item| Rule::deserialize(item).ok()).collect()
    }

    /// Whether the rule allows the request.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, attributes.verb) {
            return false;
        }
        if !attributes.resource_request {
            return self.non_resource_urls.iter().any(|url| url_covers(url, attributes.path));
        }
        has_or_all(&self.api_groups, attributes.group)
            && self.matches_resource(attributes.resource, attributes.subresource)
            && (self.resource_names.is_empty() || has(&self.resource_names, attributes.name))
    }

    fn matches_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|item| match item.split_once('/') {
            _ if item == "*" => true,
            // Without a subresource the names are compared whole, also one that has a slash in it.
            _ if subresource.is_empty() => item == resource,
            Some((parent, sub)) => sub == subresource && (parent == "*" || parent == resource),
            None => false,
        })
    }

    /// The number of atoms of the rule.
    fn size(&self) -> usize {
        let objects = self.api_groups.len().saturating_mul(self.resources.len());
        let objects = objects.saturating_mul(self.resource_names.len().max(1));
        objects.saturating_add(self.non_resource_urls.len()).saturating_mul(self.verbs.len())
    }

    /// The rule as the smallest rules with the same meaning: one verb, group, resource and name each.
    pub(crate) fn atoms(&self) -> Vec<Rule> {
        let one = |value: &String| vec![value.clone()];
        let mut atoms = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom =
                        Rule { verbs: one(verb), api_groups: one(group), resources: one(resource), ..Rule::default() };
                    if self.resource_names.is_empty() {
                        atoms.push(atom);
                    } else {
                        let named = |name| Rule { resource_names: one(name), ..atom.clone() };
                        atoms.extend(self.resource_names.iter().map(named));
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            let of_verb = |verb| Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() };
            atoms.extend(self.verbs.iter().map(of_verb));
        }
        atoms
    }

    /// Whether this rule includes all rights of `atom`.
    pub(crate) fn covers(&self, atom: &Rule) -> bool {
        let all = |set: &[String], wanted: &[String]| has(set, "*") || wanted.iter().all(|item| has(set, item));
        let names = self.resource_names.is_empty()
            || (!atom.resource_names.is_empty() && atom.resource_names.iter().all(|n| has(&self.resource_names, n)));
        all(&self.verbs, &atom.verbs)
            && all(&self.api_groups, &atom.api_groups)
            && atom.resources.iter().all(|resource| self.covers_resource(resource))
            && names
            && atom.non_resource_urls.iter().all(|url| self.non_resource_urls.iter().any(|own| url_covers(own, url)))
    }

    fn covers_resource(&self, resource: &str) -> bool {
        has_or_all(&self.resources, resource)
            || resource.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
    }

    /// The rule as escalation errors show it.
    pub(crate) fn compact(&self) -> String {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = parts.iter().filter(|(_, list)| !list.is_empty());
        let shown = shown.map(|(name, list)| format!("{name}:{}", quote_list(list))).collect::<Vec<_>>();
        format!("{{{}}}", shown.join(", "))
    }
}

fn url_covers(own: &str, path: &str) -> bool {
    own == path || (own.ends_with('*') && path.starts_with(own.trim_end_matches('*')))
}

/// The part of `wanted` that `held` does not cover, with rules that differ only by verb merged again.
fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let atoms = wanted.iter().flat_map(|rule| if rule.size() > MAX_ATOMS { vec![rule.clone()] } else { rule.atoms() });
    let uncovered = atoms.filter(|atom| !held.iter().any(|rule| rule.covers(atom)));
    let mut by_object: BTreeMap<[Vec<String>; 3], Rule> = BTreeMap::new();
    let mut paths = Vec::new();
    for atom in uncovered {
        if !atom.non_resource_urls.is_empty() {
            paths.push(atom);
            continue;
        }
        let key = [atom.api_groups.clone(), atom.resources.clone(), atom.resource_names.clone()];
        match by_object.get_mut(&key) {
            Some(rule) => rule.verbs.extend(atom.verbs),
            None => {
                by_object.insert(key, atom);
            }
        }
    }
    paths.into_iter().chain(by_object.into_values()).collect()
}

/// The part of `wanted` that `held` does not cover, as sorted, unique lines.
pub(crate) fn missing_lines(held: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let mut lines = missing(held, wanted).iter().map(Rule::compact).collect::<Vec<_>>();
    lines.sort();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::User;

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        Rule {
            verbs: list(verbs),
            api_groups: list(groups),
            resources: list(resources),
            resource_names: list(names),
            non_resource_urls: Vec::new(),
        }
    }

    fn allows(rule: &Rule, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        let user = User::default();
        rule.allows(&Attributes { subresource, ..Attributes::resource(&user, verb, group, resource).named(name) })
    }

    #[test]
    fn a_rule_for_a_resource_does_not_reach_its_subresources() {
        let pods = rule(&["get"], &[""], &["pods"], &[]);
        assert!(allows(&pods, "get", "", "pods", "", "a"));
        assert!(!allows(&pods, "get", "", "pods", "log", "a"));
        assert!(!allows(&pods, "get", "apps", "pods", "", "a"));
    }

    #[test]
    fn a_star_before_the_slash_is_that_subresource_of_everything() {
        let scale = rule(&["update"], &["*"], &["*/scale"], &[]);
        assert!(allows(&scale, "update", "apps", "deployments", "scale", "a"));
        assert!(!allows(&scale, "update", "apps", "deployments", "", "a"));
        assert!(!allows(&scale, "update", "apps", "deployments", "status", "a"));
    }

    #[test]
    fn a_rule_with_names_does_not_allow_requests_without_one() {
        let named = rule(&["*"], &[""], &["secrets"], &["a"]);
        assert!(allows(&named, "get", "", "secrets", "", "a"));
        assert!(!allows(&named, "list", "", "secrets", "", ""));
        assert!(!allows(&named, "get", "", "secrets", "", "b"));
    }

    #[test]
    fn a_path_may_end_with_a_star() {
        let user = User::default();
        let rule = Rule { verbs: list(&["get"]), non_resource_urls: list(&["/api/*", "/x"]), ..Rule::default() };
        for (path, allowed) in [("/api/v1", true), ("/api", false), ("/x", true), ("/x/y", false)] {
            assert_eq!(rule.allows(&Attributes::path(&user, "get", path)), allowed, "{path}");
        }
    }

    #[test]
    fn missing_rules_are_put_together_by_object() {
        let held = [rule(&["get"], &[""], &["pods"], &[])];
        let wanted = [rule(&["get", "list", "watch"], &[""], &["pods", "secrets"], &[])];
        assert_eq!(
            missing_lines(&held, &wanted),
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list" "watch"]}"#,
            ]
        );
    }

    #[test]
    fn a_rule_too_large_to_take_apart_is_compared_whole() {
        let many = (0..500).map(|n| n.to_string()).collect::<Vec<_>>();
        let large = Rule { verbs: many.clone(), resources: many, ..rule(&[], &[""], &[], &[]) };
        let large = [large];
        assert_eq!(missing(&[], &large), large);
        assert!(missing(&[rule(&["*"], &["*"], &["*"], &[])], &large).is_empty());
    }

    #[test]
    fn a_rule_for_one_name_does_not_cover_the_rule_for_all() {
        let all = rule(&["get"], &[""], &["pods"], &[]);
        let one = rule(&["get"], &[""], &["pods"], &["a"]);
        assert!(missing(std::slice::from_ref(&all), std::slice::from_ref(&one)).is_empty());
        assert_eq!(missing(std::slice::from_ref(&one), std::slice::from_ref(&all)).len(), 1);
    }
}
