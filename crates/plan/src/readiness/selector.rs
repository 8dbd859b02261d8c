//! Selects machines by their labels.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A valid label selector.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// Why a selector is invalid. Admission refuses such a selector; it is checked again because no machine must be selected by mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSelector(pub String);

impl std::fmt::Display for InvalidSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidSelector {}

impl Selector {
    /// Parses a selector.
    ///
    /// # Errors
    /// When an expression is invalid; the message names it and what is allowed.
    pub fn read(selector: &LabelSelector) -> Result<Self, InvalidSelector> {
        let mut all = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            all.push(Requirement::In(key.clone(), vec![value.clone()]));
        }
        for expression in selector.match_expressions.iter().flatten() {
            let key = expression.key.clone();
            let values = expression.values.clone().unwrap_or_default();
            all.push(match (expression.operator.as_str(), values.is_empty()) {
                ("In", false) => Requirement::In(key, values),
                ("NotIn", false) => Requirement::NotIn(key, values),
                ("Exists", true) => Requirement::Exists(key),
                ("DoesNotExist", true) => Requirement::DoesNotExist(key),
                ("In" | "NotIn", true) => {
                    return Err(InvalidSelector(format!(
                        "spec.selector.matchExpressions for {key}: {} needs values",
                        expression.operator
                    )));
                }
                ("Exists" | "DoesNotExist", false) => {
                    return Err(InvalidSelector(format!(
                        "spec.selector.matchExpressions for {key}: {} takes no values",
                        expression.operator
                    )));
                }
                (other, _) => {
                    return Err(InvalidSelector(format!(
                        "spec.selector.matchExpressions for {key}: operator {other:?} is not one of In, NotIn, Exists, DoesNotExist"
                    )));
                }
            });
        }
        Ok(Self(all))
    }

    /// Whether the selector selects an object. `label` returns the value of a label. An empty selector selects all.
    pub fn selects<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => label(key).is_some_and(|value| values.iter().any(|other| other == value)),
            // As in Kubernetes: an object without the label matches, too.
            Requirement::NotIn(key, values) => {
                !label(key).is_some_and(|value| values.iter().any(|other| other == value))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::DoesNotExist(key) => label(key).is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    fn selector(labels: &[(&str, &str)], expressions: &[(&str, &str, &[&str])]) -> LabelSelector {
        LabelSelector {
            match_labels: Some(labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()),
            match_expressions: Some(
                expressions
                    .iter()
                    .map(|(key, operator, values)| LabelSelectorRequirement {
                        key: key.to_string(),
                        operator: operator.to_string(),
                        values: (!values.is_empty()).then(|| values.iter().map(|v| v.to_string()).collect()),
                    })
                    .collect(),
            ),
        }
    }

    fn selects(selector: &LabelSelector, labels: &[(&str, &str)]) -> bool {
        let selector = Selector::read(selector).unwrap();
        let labels: Vec<(String, String)> = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        selector.selects(|key| labels.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()))
    }

    #[test]
    fn selectors_mean_what_they_mean_in_kubernetes() {
        type Case<'a> = (LabelSelector, &'a [(&'a str, &'a str)], bool);
        let cases: &[Case<'_>] = &[
            (LabelSelector::default(), &[], true),
            (selector(&[("pool", "online")], &[]), &[("pool", "online"), ("rack", "r1")], true),
            (selector(&[("pool", "online")], &[]), &[("pool", "batch")], false),
            (selector(&[], &[("pool", "In", &["a", "b"])]), &[("pool", "b")], true),
            (selector(&[], &[("pool", "In", &["a", "b"])]), &[], false),
            (selector(&[], &[("pool", "NotIn", &["a"])]), &[], true),
            (selector(&[], &[("pool", "NotIn", &["a"])]), &[("pool", "a")], false),
            (selector(&[], &[("pool", "Exists", &[])]), &[("pool", "")], true),
            (selector(&[], &[("pool", "DoesNotExist", &[])]), &[("pool", "")], false),
            (selector(&[("a", "1")], &[("b", "Exists", &[])]), &[("a", "1")], false),
        ];
        for (selector, labels, expected) in cases {
            assert_eq!(selects(selector, labels), *expected, "{selector:?} {labels:?}");
        }
    }

    #[test]
    fn a_selector_that_is_not_understood_is_refused_and_selects_nothing_by_mistake() {
        for (wrong, part) in [
            (selector(&[], &[("pool", "Like", &["x"])]), "\"Like\""),
            (selector(&[], &[("pool", "In", &[])]), "In "),
            (selector(&[], &[("pool", "Exists", &["x"])]), "Exists "),
        ] {
            let error = Selector::read(&wrong).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("for pool"), "{error}");
        }
    }
}
