//! Values in the YAML of extension templates: a string of a Cluster must stay one string, whatever it contains.

use serde_json::Value;

use super::shell::{Interpolation, interpolations, last_filter};

/// The interpolations of an extension's template by which a value of a Cluster could become other YAML than a string:
/// the line of each, and what is wrong.
/// A value that its schema restricts to a number, a boolean, an `enum` or a `pattern` is safe as it is.
pub fn unquoted_values(template: &str, schema: Option<&str>) -> Vec<(usize, String)> {
    let schema: Value = schema.and_then(|text| serde_saphyr::from_str(text).ok()).unwrap_or_default();
    let found = interpolations(template).into_iter().filter(|Interpolation { expression, .. }| {
        last_filter(expression) != Some("json") && from_values(expression) && !is_constrained(expression, &schema)
    });
    found
        .map(|Interpolation { line, expression, .. }| {
            let message = format!(
                "{{{{ {expression} }}}} is inserted into the YAML unquoted, so its value could add fields and objects: write {{{{ {expression} | json }}}}, or give the value a pattern or an enum in valuesSchema"
            );
            (line, message)
        })
        .collect()
}

/// Whether an expression contains a value: by its name, or by that of a variable of the template.
fn from_values(expression: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let root: String = expression.chars().take_while(|c| word(*c)).collect();
    let named = expression.split(|c: char| !word(c)).any(|part| part == "values");
    named || !root.is_empty() && root != "cluster" && !root.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether the expression is a value that its schema restricts to safe ones.
fn is_constrained(expression: &str, schema: &Value) -> bool {
    let Some(path) = expression.strip_prefix("values.") else { return false };
    let of = path.split('.').fold(schema, |schema, name| &schema["properties"][name]);
    let type_ = of["type"].as_str().unwrap_or_default();
    ["integer", "number", "boolean"].contains(&type_) || of.get("enum").is_some() || of.get("pattern").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_cluster_are_quoted_or_held_by_their_schema() {
        let schema = "type: object\nproperties:\n  text: {type: string}\n  count: {type: integer}\n  mode: {type: string, enum: [a, b]}\n  of: {type: object, properties: {host: {type: string, pattern: '^[a-z]+$'}}}\n";
        for good in [
            "a: {{ values.text | json }}",
            "a: {{ (\"--x=\" ~ values.text) | json }}",
            "a: {{ values.count }}",
            "a: {{ values.mode }}",
            "a: {{ values.of.host }}",
            "a: {{ cluster.pods }}",
            "{% for one in values.all %}- {{ one | json }}{% endfor %}",
            "{# {{ values.text }} #}",
        ] {
            assert_eq!(unquoted_values(good, Some(schema)), [], "{good}");
        }
        for bad in [
            "a: 1\nb: {{ values.text }}",
            "a: 1\nb: --x={{ values.text | upper }}",
            "a: 1\nb: {{ values.unknown }}",
            "a: 1\nb: {{ cluster.name ~ values.text }}",
            "{% for one in values.all %}\n- {{ one }}{% endfor %}",
        ] {
            let lines: Vec<_> = unquoted_values(bad, Some(schema)).into_iter().map(|(line, _)| line).collect();
            assert_eq!(lines, [2], "{bad}");
        }
        assert_eq!(unquoted_values("{{ values.count }}", None).len(), 1);
    }

    #[test]
    fn what_is_shipped_is_quoted() {
        for one in crate::cluster::extensions::shipped(|name| format!("registry.example/{name}:v1")).unwrap() {
            assert_eq!(unquoted_values(&one.template, one.values_schema.as_deref()), [], "{}", one.name);
        }
    }
}
